// Reads lane data (joinlab/picture/lane_data.py): every word and every place along the axis comes from Python.

import { BAD, Boxes, FAILED, OPEN, PARTS } from "./boxes.js";
import { columnar, decode } from "./columns.js";

/** @param {Uint8Array | DataView} bytes @returns {Promise<LaneData>} */
export async function unpack(bytes) {
  const whole = await unzip(bytes), behind = whole.indexOf(0); // JSON holds no NUL; columns, where there are any, follow one
  const data = JSON.parse(new TextDecoder().decode(behind < 0 ? whole : whole.subarray(0, behind)));
  let at = behind + 1;
  for (const run of data.runs) if (run.columns) at = decode(run.columns, whole, at);
  return data;
}

/** @param {Uint8Array | DataView} bytes */
async function unzip(bytes) { // by way of a Blob and a Response it waits for other threads, ten times as long
  const stream = new DecompressionStream("gzip"), writer = stream.writable.getWriter(), reader = stream.readable.getReader();
  writer.write(/** @type {any} */ (bytes));
  writer.close();
  const parts = [];
  for (let part; !(part = await reader.read()).done; ) parts.push(part.value);
  const whole = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

/** Layouts that were made already: a step, a zoom and the overview ask for the same ones. @type {WeakMap<RawRun, Map<string, Layout>>} */
const made = new WeakMap();

/** One layout of a run, its texts looked up and its boxes placed.
 * @param {LaneData} data @param {RawRun} run @param {string} axis @param {boolean} setup everything is unfolded
 * @param {Set<number>} opened folds that the reader opened, by their first slot @returns {Layout} */
export function layoutOf(data, run, axis, setup, opened = new Set()) {
  if (!made.has(run)) made.set(run, new Map());
  const known = made.get(run);
  const folds = setup || axis === "time" || run.columns ? "" : [...opened].sort((one, other) => one - other).join(), key = `${axis} ${setup} ${folds}`;
  if (!known.has(key)) known.set(key, folds ? unfolded(data, run, opened) : placed(data, run, axis, setup));
  return known.get(key);
}

/** @param {LaneData} data @param {RawRun} run @param {string} axis @param {boolean} setup @returns {Layout} */
function placed(data, run, axis, setup) {
  const raw = run.layouts[setup ? `${axis} setup` : axis];
  if (!raw) return columnar(data, run, axis);
  /** @param {number} n */
  const text = (n) => data.texts[n];
  const boxes = raw.box.map((number, i) => {
    const box = run.boxes[number], kind = data.looks.kinds[box.kind];
    return {
      i, begin: raw.from[i], end: raw.to[i], track: raw.track[i] ?? 0, tracks: raw.tracks[i] ?? 1,
      rank: box.rank, kind: box.kind, label: text(box.label), short: text(box.short),
      open: !!box.open, bad: !!box.bad, failed: !!box.failed, slot: box.slot, lines: box.lines,
      told: box.facts, host: kind.lane !== "stream", fold: kind.fold,
    };
  });
  const bands = raw.bands.map((band) => ({ ...band, text: text(band.text) }));
  const notes = raw.notes.map((note) => ({ ...note, text: text(note.line), whole: text(note.whole) }));
  const groups = raw.groups.map((group) => ({ ...group, label: text(group.label) }));
  return complete(data, run, { axis, notes, groups, stops: raw.stops, begin: raw.begin, end: raw.end, unit: raw.unit }, boxes, bands);
}

/** What a box tells. @param {LaneData} data @param {Box} box @returns {Fact[]} */
export function factsIn(data, box) {
  return box.facts ?? data.told[box.told].map((fact) => /** @type {Fact} */ (data.facts[fact].map((n) => data.texts[n])));
}

/** @typedef {{ slot: number, a: number | Box, b: number | Box, met: boolean, bad: boolean, text: string }} BandEnds */

/** Look up what a layout's boxes and bands are to one another.
 * @param {LaneData} data @param {RawRun} run @param {Omit<Layout, "boxes" | "list" | "kindsOfBands" | "bandsOf">} rest
 * @param {Box[]} list @param {BandEnds[]} bands @returns {Layout} */
function complete(data, run, rest, list, bands) {
  const numbers = (/** @type {(box: Box) => number} */ of) => Int32Array.from(list, of);
  const parts = { stream: 0, span: 1, wait: 2 };
  const boxes = new Boxes({
    lane: numbers((box) => box.rank * PARTS + parts[data.looks.kinds[box.kind].lane]), slot: numbers((box) => box.slot ?? -1),
    begin: Float64Array.from(list, (box) => box.begin), end: Float64Array.from(list, (box) => box.end),
    kind: Uint8Array.from(list, (box) => box.kind),
    flags: Uint8Array.from(list, (box) => (box.open ? OPEN : 0) | (box.bad ? BAD : 0) | (box.failed ? FAILED : 0)),
  }, run.ranks, (i) => list[i]);
  /** @type {Map<number, Band[]>} */
  const bySlot = new Map(), kindsOfBands = new Set();
  for (const band of bands) {
    const [a, b] = [band.a, band.b].map((end) => boxes.of(band.slot).find((box) => box.rank === (typeof end === "number" ? end : end.rank)));
    if (!bySlot.has(band.slot)) bySlot.set(band.slot, []);
    bySlot.get(band.slot).push({ ...band, a, b });
    kindsOfBands.add(`${band.bad} ${band.met}`);
  }
  return { ...rest, boxes, list, kindsOfBands, bandsOf: (slot) => bySlot.get(slot) ?? [] };
}

/** The slots of each fold, by its first one. @param {Layout} folded @param {Layout} whole @returns {Map<number, number[]>} */
export function foldsOf(folded, whole) {
  const folds = new Map(), isFold = new Set(folded.list.filter((box) => box.fold && !box.host).map((box) => box.slot));
  let here = null;
  for (const slot of whole.boxes.slots) {
    if (folded.boxes.rowOf(slot) >= 0) here = isFold.has(slot) ? slot : null;
    if (here === null) continue;
    if (!folds.has(here)) folds.set(here, []);
    folds.get(here).push(slot);
  }
  return folds;
}

/** Whether a box belongs into an open fold: its calls, and what the host did meanwhile.
 * @param {{ slots: Set<number>, from: number, to: number }} fold @param {Box} box */
const isInside = ({ slots, from, to }, box) => (box.slot === null ? box.begin >= from && box.end <= to : slots.has(box.slot));

/** The folded rows with some folds opened: what lies below them moves down by what they hold.
 * @param {LaneData} data @param {RawRun} run @param {Set<number>} opened @returns {Layout} */
function unfolded(data, run, opened) {
  const folded = layoutOf(data, run, "logical", false), whole = layoutOf(data, run, "logical", true);
  const folds = foldsOf(folded, whole);
  const calls = whole.list.filter((box) => !box.host);
  const open = [...opened].filter((slot) => folds.has(slot)).map((slot) => {
    const slots = new Set(folds.get(slot)), inside = calls.filter((box) => slots.has(box.slot));
    const from = Math.min(...inside.map((box) => box.begin)), to = Math.max(...inside.map((box) => box.end));
    const own = folded.boxes.of(slot), at = Math.min(...own.map((box) => box.begin));
    return { slots, from, to, at, until: Math.max(...own.map((box) => box.end)), more: to - from - (own[0].end - own[0].begin) };
  });
  /** @param {number} place in the folded layout */
  const moved = (place) => place + open.reduce((sum, one) => sum + (place >= one.until ? one.more : 0), 0);
  const inside = open.flatMap((one) => whole.list.filter((box) => isInside(one, box)).map((box) => {
    const by = moved(one.at) - one.from;
    return { ...box, begin: box.begin + by, end: box.end + by };
  }));
  const isOpen = new Set(open.flatMap((one) => [...one.slots]));
  const outside = folded.list.filter((box) => !isOpen.has(box.slot));
  const list = [...outside.map((box) => ({ ...box, begin: moved(box.begin), end: moved(box.end) })), ...inside];
  list.sort((one, other) => one.begin - other.begin);
  list.forEach((box, i) => { box.i = i; });
  const bands = [...new Set(list.map((box) => box.slot))].flatMap((slot) => (isOpen.has(slot) ? whole : folded).bandsOf(slot));
  /** @template {{ begin: number, end: number }} T @param {T[]} all @returns {T[]} */
  const shifted = (all) => all.map((one) => ({ ...one, begin: moved(one.begin), end: moved(one.end) }));
  return complete(data, run, {
    ...folded, notes: shifted(folded.notes), groups: shifted(folded.groups),
    stops: folded.stops.map(moved), begin: folded.begin, end: moved(folded.end),
  }, list, bands);
}
