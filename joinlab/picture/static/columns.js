// Every call of a run as columns of numbers (joinlab/picture/columns.py): lane by lane, in order of issue.

export const OPEN = 1,
  BAD = 2,
  FAILED = 4,
  WAITS = 16,
  WAITS_ON = 32; // flags of a call
export const WRONG = OPEN | BAD | FAILED;

/** Read the columns of a run from the bytes behind the JSON: every one byte by byte of significance, which
 * packs well.
 * @param {RawColumns} columns @param {Uint8Array} bytes @param {number} at where they begin
 * @returns {number} their end */
export function decode(columns, bytes, at) {
  columns.read = {};
  for (const [name, size, n] of columns.planes) {
    const found = (columns.read[name] = new Uint32Array(n));
    for (let plane = 0; plane < size; plane++, at += n) {
      const shift = 8 * plane;
      for (let i = 0; i < n; i++) found[i] |= bytes[at + i] << shift;
    }
  }
  return at;
}

/** A signed number from an unsigned one. @param {number} n */
const signed = (n) => (n & 1 ? -((n + 1) / 2) : n / 2);

/** Sums of steps, lane by lane.
 * @param {Uint32Array} steps @param {number[]} counts of each lane
 * @param {number} each is added to every step */
function summed(steps, counts, each) {
  const found = new Float64Array(steps.length);
  let at = 0;
  for (const count of counts)
    for (let sum = 0, behind = at + count; at < behind; at++)
      found[at] = sum += signed(steps[at]) + each;
  return found;
}

/** Where each lane's part begins. @param {number[]} counts */
const edges = (counts) => counts.reduce((all, count) => [...all, all.at(-1) + count], [0]);

/** The calls of a run, with places on both axes. @param {RawRun} run @returns {Calls} */
export function callsOf(run) {
  if (run.calls) return run.calls;
  const { columns } = run,
    { read, unit, counts, stops } = columns,
    n = read.slot.length;
  const starts = edges(counts),
    slot = Int32Array.from(summed(read.slot, counts, 1));
  const begun = summed(read.begun, counts, 0),
    ended = new Float64Array(n),
    { flags, code } = read;
  const wrong = new Uint8Array(columns.rows);
  /** @type {[begin: number, end: number, open: boolean, name: string][][]} */
  const hosts = counts.map(() => /** @type {any[]} */ ([]));
  for (let lane = 0, i = 0, w = 0; lane < counts.length; lane++)
    for (; i < starts[lane + 1]; i++) {
      begun[i] *= unit;
      ended[i] = flags[i] & OPEN ? stops[lane] : begun[i] + read.took[i] * unit;
      if (flags[i] & WRONG) wrong[slot[i]] = 1;
      if (!(flags[i] & WAITS)) continue;
      const from = begun[i] + signed(read.waited[w]) * unit,
        on = !!(flags[i] & WAITS_ON);
      hosts[lane].push([from, on ? stops[lane] : from + read.waits[w] * unit, on, "waits"]);
      w++;
    }
  const spans = summed(read.spanBegun, columns.spans, 0),
    first = edges(columns.spans);
  hosts.forEach((of, lane) => {
    for (let i = first[lane]; i < first[lane + 1]; i++) {
      const from = spans[i] * unit,
        on = read.spanTook[i] === 0xffffffff;
      of.push([
        from,
        on ? stops[lane] : from + read.spanTook[i] * unit,
        on,
        columns.names[read.spanCode[i]],
      ]);
    }
  });
  const offsets = new Int32Array(columns.rows + 1),
    members = new Int32Array(n); // the calls of each slot
  for (let i = 0; i < n; i++) offsets[slot[i] + 1]++;
  for (let s = 0; s < columns.rows; s++) offsets[s + 1] += offsets[s];
  const next = offsets.slice();
  for (let i = 0; i < n; i++) members[next[slot[i]]++] = i;
  const kinds = Uint8Array.from(columns.codes, (one) => one.kind);
  return (run.calls = {
    n,
    starts,
    slot,
    begun,
    ended,
    flags,
    code,
    kinds,
    hosts,
    wrong,
    offsets,
    members,
  });
}

/** The lane of a call. @param {Calls} calls @param {number} i */
export const laneOf = ({ starts }, i) => starts.findIndex((_, lane) => i < starts[lane + 1]);

/** The calls of a slot by lane. @param {Calls} calls @param {number} slot @returns {Map<number, number>} */
export function members(calls, slot) {
  const found = new Map();
  for (let p = calls.offsets[slot]; p < calls.offsets[slot + 1]; p++)
    found.set(laneOf(calls, calls.members[p]), calls.members[p]);
  return found;
}
