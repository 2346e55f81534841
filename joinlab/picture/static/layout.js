// Reads lane data (joinlab/picture/lane_data.py): every word and every place along the axis comes from Python.

/** @param {Uint8Array | DataView} bytes @returns {Promise<LaneData>} */
export async function unpack(bytes) {
  return JSON.parse(await unzip(bytes));
}

/** @param {Uint8Array | DataView} bytes */
async function unzip(bytes) { // by way of a Blob and a Response it waits for other threads, ten times as long
  const stream = new DecompressionStream("gzip"), writer = stream.writable.getWriter(), reader = stream.readable.getReader();
  writer.write(/** @type {any} */ (bytes));
  writer.close();
  const decoder = new TextDecoder();
  let text = "";
  for (let part; !(part = await reader.read()).done; ) text += decoder.decode(part.value, { stream: true });
  return text;
}

/** One layout of a run, its texts looked up and its boxes placed.
 * @param {LaneData} data @param {RawRun} run @param {string} axis @param {boolean} setup everything is unfolded
 * @param {Set<number>} opened folds that the reader opened, by their first slot @returns {Layout} */
export function layoutOf(data, run, axis, setup, opened = new Set()) {
  const folded = placed(data, run, run.layouts[setup ? `${axis} setup` : axis], axis);
  if (setup || axis === "time" || !opened.size) return folded;
  return unfolded(folded, placed(data, run, run.layouts["logical setup"], axis), opened);
}

/** @param {LaneData} data @param {RawRun} run @param {RawLayout} raw @param {string} axis @returns {Layout} */
function placed(data, run, raw, axis) {
  /** @param {number} n */
  const text = (n) => data.texts[n];
  const boxes = raw.box.map((number, i) => {
    const box = run.boxes[number], kind = data.looks.kinds[box.kind];
    return {
      begin: raw.from[i], end: raw.to[i], track: raw.track[i] ?? 0, tracks: raw.tracks[i] ?? 1,
      rank: box.rank, kind: box.kind, label: text(box.label), short: text(box.short),
      open: !!box.open, bad: !!box.bad, failed: !!box.failed, slot: box.slot, line: box.line,
      facts: data.told[box.facts].map((fact) => /** @type {Fact} */ (data.facts[fact].map(text))),
      host: kind.lane !== "stream", fold: kind.fold,
    };
  });
  const bands = raw.bands.map((band) => ({ ...band, text: text(band.text) }));
  const notes = raw.notes.map((note) => ({ ...note, text: text(note.line), whole: text(note.whole) }));
  const groups = raw.groups.map((group) => ({ ...group, label: text(group.label) }));
  return complete({ axis, boxes, notes, groups, stops: raw.stops, begin: raw.begin, end: raw.end, unit: raw.unit }, bands);
}

/** Look up what a layout's boxes and bands are to one another.
 * @param {Omit<Layout, "calls" | "at" | "slots" | "bands">} layout
 * @param {{ slot: number, a: number | Box, b: number | Box, met: boolean, bad: boolean, text: string }[]} bands @returns {Layout} */
function complete(layout, bands) {
  const calls = layout.boxes.filter((box) => !box.host);
  const at = new Map();
  for (const box of calls) if (!at.has(`${box.slot},${box.rank}`)) at.set(`${box.slot},${box.rank}`, box);
  const slots = [...new Set(calls.map((box) => box.slot))];
  /** @param {number} slot @param {number | Box} end */
  const box = (slot, end) => at.get(`${slot},${typeof end === "number" ? end : end.rank}`);
  return { ...layout, calls, at, slots, bands: bands.map((band) => ({ ...band, a: box(band.slot, band.a), b: box(band.slot, band.b) })) };
}

/** The slots of each fold, by its first one. @param {Layout} folded @param {Layout} whole @returns {Map<number, number[]>} */
export function foldsOf(folded, whole) {
  const alone = new Set(folded.slots), folds = new Map();
  const isFold = new Set(folded.calls.filter((box) => box.fold).map((box) => box.slot));
  let here = null;
  for (const slot of whole.slots) {
    if (alone.has(slot)) here = isFold.has(slot) ? slot : null;
    if (here !== null) folds.set(here, [...(folds.get(here) ?? []), slot]);
  }
  return folds;
}

/** Whether a box belongs into an open fold: its calls, and what the host did meanwhile.
 * @param {{ slots: Set<number>, from: number, to: number }} fold @param {Box} box */
const isInside = ({ slots, from, to }, box) => (box.slot === null ? box.begin >= from && box.end <= to : slots.has(box.slot));

/** A folded layout with some folds opened: what lies below them moves down by what they hold.
 * @param {Layout} folded @param {Layout} whole @param {Set<number>} opened @returns {Layout} */
function unfolded(folded, whole, opened) {
  const folds = foldsOf(folded, whole);
  const open = [...opened].filter((slot) => folds.has(slot)).map((slot) => {
    const slots = new Set(folds.get(slot)), inside = whole.calls.filter((box) => slots.has(box.slot));
    const from = Math.min(...inside.map((box) => box.begin)), to = Math.max(...inside.map((box) => box.end));
    const own = folded.calls.filter((box) => box.slot === slot), at = Math.min(...own.map((box) => box.begin));
    return { slots, from, to, at, until: Math.max(...own.map((box) => box.end)), more: to - from - (own[0].end - own[0].begin) };
  });
  /** @param {number} place in the folded layout */
  const moved = (place) => place + open.reduce((sum, one) => sum + (place >= one.until ? one.more : 0), 0);
  const inside = open.flatMap((one) => whole.boxes.filter((box) => isInside(one, box)).map((box) => {
    const by = moved(one.at) - one.from;
    return { ...box, begin: box.begin + by, end: box.end + by };
  }));
  const isOpen = new Set(open.flatMap((one) => [...one.slots]));
  const outside = folded.boxes.filter((box) => !isOpen.has(box.slot));
  const boxes = [...outside.map((box) => ({ ...box, begin: moved(box.begin), end: moved(box.end) })), ...inside];
  boxes.sort((one, other) => one.begin - other.begin);
  const bands = [...folded.bands.filter((band) => !isOpen.has(band.slot)), ...whole.bands.filter((band) => isOpen.has(band.slot))];
  /** @template {{ begin: number, end: number }} T @param {T[]} all @returns {T[]} */
  const shifted = (all) => all.map((one) => ({ ...one, begin: moved(one.begin), end: moved(one.end) }));
  return complete({
    ...folded, boxes, notes: shifted(folded.notes), groups: shifted(folded.groups),
    stops: folded.stops.map(moved), begin: folded.begin, end: moved(folded.end),
  }, bands);
}
