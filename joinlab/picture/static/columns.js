// A large run: its calls as columns of numbers (joinlab/picture/columns.py), from which a box is made when it is drawn.

import { BAD, Boxes, FAILED, OPEN, PARTS } from "./boxes.js";

const WAITS = 16, WAITS_ON = 32; // further flags: the host waited for it, and was never let go
const GAP = 0.1; // free space above and below a row

/** Read the columns of a run from the bytes behind the JSON: every one byte by byte of significance, which packs well.
 * @param {RawColumns} columns @param {Uint8Array} bytes @param {number} at where they begin @returns {number} where they end */
export function decode(columns, bytes, at) {
  columns.read = {};
  for (const [name, size, n] of columns.planes) {
    const found = columns.read[name] = new Uint32Array(n);
    for (let plane = 0; plane < size; plane++, at += n) {
      const shift = 8 * plane;
      for (let i = 0; i < n; i++) found[i] |= bytes[at + i] << shift;
    }
  }
  return at;
}

/** A signed number from an unsigned one. @param {number} n */
const signed = (n) => (n & 1 ? -((n + 1) / 2) : n / 2);

/** Sums of steps, lane by lane. @param {Uint32Array} steps @param {number[]} counts of each lane @param {number} each is added to every step */
function summed(steps, counts, each) {
  const found = new Float64Array(steps.length);
  let at = 0;
  for (const count of counts)
    for (let sum = 0, behind = at + count; at < behind; at++) found[at] = sum += signed(steps[at]) + each;
  return found;
}

/** What both axes share: which lane, slot and kind each call has, and when it was. @param {RawRun} run */
function common(run) {
  const { columns } = run;
  if (columns.common) return columns.common;
  const { slot, begun, took, code, flags, waited, waits } = columns.read, { unit, counts } = columns;
  const rank = new Int32Array(slot.length);
  let at = 0;
  counts.forEach((count, of) => rank.fill(of, at, (at += count)));
  const begin = summed(begun, counts, 0), end = new Float64Array(begin.length);
  for (let i = 0; i < begin.length; i++) {
    begin[i] *= unit;
    end[i] = flags[i] & OPEN ? columns.stops[rank[i]] : begin[i] + took[i] * unit;
  }
  const slots = Int32Array.from(summed(slot, counts, 1)), wrong = new Uint8Array(columns.rows);
  for (let i = 0; i < slots.length; i++) if (flags[i] & (BAD | OPEN | FAILED)) wrong[slots[i]] = 1;
  for (const kept of run.verdict.wrong) wrong[kept] = 1;
  run.verdict.wrong = [...wrong.keys()].filter((at) => wrong[at]); // the verdict knows those alone that the folded picture holds
  return (columns.common = { rank, slot: slots, begin, end, code, flags, waited, waits });
}

/** What is known of a call without its values and stack. @param {LaneData} data @param {RawRun} run @param {number} told
 * @param {number} begin ns @param {number | null} end null: never @returns {Fact[]} */
function sparse(data, run, told, begin, end) {
  const ms = (/** @type {number} */ ns) => `${(ns / 1e6).toFixed(3)} ms`;
  const facts = data.told[told].map((fact) => /** @type {Fact} */ (data.facts[fact].map((one) => data.texts[one])));
  return [...facts, ["began", ms(run.zero + begin)], ["took", end === null ? "never completed" : ms(end - begin)],
    ["values, stack", "too many calls to hold them here: timeline.call(rank, seq)"]];
}

/** Every call of a large run along an axis. @param {LaneData} data @param {RawRun} run @param {string} axis @returns {Layout} */
export function columnar(data, run, axis) {
  const { columns } = run, time = axis === "time", all = common(run), n = all.rank.length;
  const spans = time ? columns.read.spanBegun.length : 0, waits = columns.read.waited.length, total = n + waits + spans;
  const { texts, looks } = data, waitKind = looks.kinds.findIndex(({ lane }) => lane === "wait"), spanKind = looks.kinds.findIndex(({ lane }) => lane === "span");
  const lane = new Int32Array(total), slot = new Int32Array(total), flags = new Uint8Array(total), kind = new Uint8Array(total);
  const begin = new Float64Array(total), end = new Float64Array(total);
  const kindOf = Uint8Array.from(columns.codes, (code) => code.kind);
  /** Of which call a wait is. */
  const waitsFor = new Int32Array(waits);
  for (let i = 0, w = 0; i < n; i++) {
    lane[i] = all.rank[i] * PARTS;
    slot[i] = all.slot[i];
    kind[i] = kindOf[all.code[i]];
    flags[i] = all.flags[i];
    begin[i] = time ? all.begin[i] : slot[i] + GAP;
    end[i] = time ? all.end[i] : slot[i] + 1 - GAP;
    if (!(flags[i] & WAITS)) continue;
    const at = n + w;
    [lane[at], slot[at], kind[at], flags[at]] = [lane[i] + 2, slot[i], waitKind, flags[i] & WAITS_ON ? OPEN : 0];
    begin[at] = time ? begin[i] + signed(all.waited[w]) * columns.unit : begin[i];
    end[at] = !time ? end[i] : flags[at] ? columns.stops[all.rank[i]] : begin[at] + all.waits[w] * columns.unit;
    waitsFor[w++] = i;
  }
  if (time) {
    const { spanBegun, spanTook } = columns.read, from = summed(spanBegun, columns.spans, 0);
    let at = 0;
    columns.spans.forEach((count, rank) => {
      for (const behind = at + count; at < behind; at++) {
        const i = n + waits + at, open = spanTook[at] === 0xffffffff;
        [lane[i], slot[i], kind[i], flags[i]] = [rank * PARTS + 1, -1, spanKind, open ? OPEN : 0];
        begin[i] = from[at] * columns.unit;
        end[i] = open ? columns.stops[rank] : begin[i] + spanTook[at] * columns.unit;
      }
    });
  }
  /** @param {number} i @returns {Box} */
  const box = (i) => {
    const common = { i, begin: begin[i], end: end[i], track: 0, tracks: 1, kind: kind[i], open: !!(flags[i] & OPEN), fold: false, told: 0 };
    if (i >= n + waits) {
      const name = texts[columns.names[columns.read.spanCode[i - n - waits]]];
      return { ...common, rank: (lane[i] - 1) / PARTS, label: name, short: name, bad: false, failed: false, slot: null, lines: 0, facts: [], host: true };
    }
    const call = i < n ? i : waitsFor[i - n], code = columns.codes[all.code[call]], rank = all.rank[call];
    if (i >= n) return { ...common, rank, label: `waits for ${texts[code.label]}`, short: "waits", bad: false, failed: false, slot: slot[i], lines: code.lines, facts: [], host: true };
    return {
      ...common, rank, label: texts[code.label], short: texts[code.label], bad: !!(flags[i] & BAD), failed: !!(flags[i] & FAILED), slot: slot[i], lines: code.lines, host: false,
      get facts() { return run.columns.told?.get(`${slot[i]},${rank}`) ?? sparse(data, run, code.facts, all.begin[i], flags[i] & OPEN ? null : all.end[i]); },
    };
  };
  const boxes = new Boxes({ lane, slot, begin, end, kind, flags, code: all.code, inOrder: true }, run.ranks, box);
  /** @type {Map<number, string>} What is said of those that should not have met. */
  const said = new Map(run.layouts.logical.bands.filter((band) => band.text).map((band) => [band.slot, texts[band.text]]));
  /** @param {number} number @returns {Band[]} */
  const bandsOf = (number) => {
    const members = boxes.of(number);
    return members.slice(1).map((b, at) => {
      const a = members[at], bad = a.bad && columns.codes[all.code[a.i]].like !== columns.codes[all.code[b.i]].like;
      return { slot: number, a, b, bad, met: !columns.missed.includes(number), text: bad ? said.get(number) ?? "" : "" };
    });
  };
  const rows = boxes.slots.length ? boxes.slots.at(-1) + 1 : 1;
  const lasts = run.lanes.map((_, rank) => { // rows, of each lane
    let last = 0;
    for (let p = boxes.starts[rank * PARTS]; p < boxes.starts[rank * PARTS + 1]; p++) last = Math.max(last, end[boxes.order[p]]);
    return last + GAP;
  });
  return {
    axis, boxes, list: [], notes: [], groups: [], bandsOf, kindsOfBands: new Set(run.layouts.logical.bands.map((band) => `${band.bad} ${band.met}`)).add("false true"),
    stops: time ? columns.stops : lasts, begin: 0, end: time ? columns.end : rows, unit: 1,
  };
}
