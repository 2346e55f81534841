// Every call of a run as columns of numbers (joinlab/picture/columns.py): lane by lane, in order of issue.

export const OPEN = 1,
  BAD = 2,
  FAILED = 4,
  QUEUED = 8,
  WAITS = 16,
  WAITS_ON = 32; // flags of a call
export const WRONG = OPEN | BAD | FAILED;

// Read the columns of a run from the bytes behind the JSON, `at` where they begin, and return their end:
// every one byte by byte of significance, which packs well.
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

const signed = (n) => (n & 1 ? -((n + 1) / 2) : n / 2);

// Sums of steps, lane by lane; `each` is added to every step.
function summed(steps, counts, each) {
  const found = new Float64Array(steps.length);
  let at = 0;
  for (const count of counts)
    for (let sum = 0, behind = at + count; at < behind; at++)
      found[at] = sum += signed(steps[at]) + each;
  return found;
}

const edges = (counts) => counts.reduce((all, count) => [...all, all.at(-1) + count], [0]);

/** @param {RawRun} run */
export const callsOf = (run) => (run.calls ??= everyCall(run.columns));

/** Every call by index, lane by lane in order of issue. @param {RawColumns} columns */
export function everyCall(columns) {
  const { read, unit, counts, stops } = columns,
    n = read.slot.length,
    starts = edges(counts),
    slot = Int32Array.from(summed(read.slot, counts, 1)),
    begun = summed(read.begun, counts, 0),
    ended = new Float64Array(n),
    { flags, code } = read,
    wrong = new Uint8Array(columns.rows),
    hosts = counts.map(() => []);
  for (let lane = 0, i = 0, w = 0; lane < counts.length; lane++)
    for (; i < starts[lane + 1]; i++) {
      begun[i] *= unit;
      ended[i] = flags[i] & OPEN ? stops[lane] : begun[i] + read.took[i] * unit;
      if (flags[i] & WRONG) wrong[slot[i]] = 1;
      if (!(flags[i] & WAITS)) continue;
      const from = begun[i] + signed(read.waited[w]) * unit,
        to = flags[i] & WAITS_ON ? stops[lane] : from + read.waits[w] * unit;
      hosts[lane].push({ from, to, name: "waits", call: i, input: 0, lines: 0 });
      w++;
    }
  const spans = summed(read.spanBegun, columns.spans, 0),
    first = edges(columns.spans);
  hosts.forEach((of, lane) => {
    for (let i = first[lane]; i < first[lane + 1]; i++) {
      const from = spans[i] * unit,
        to = read.spanTook[i] === 0xffffffff ? stops[lane] : from + read.spanTook[i] * unit,
        [name, lines] = columns.names[read.spanCode[i]];
      of.push({ from, to, name, call: -1, input: read.spanInput[i], lines });
    }
    of.sort((a, b) => a.from - b.from);
  });
  return {
    starts, // where each lane begins
    slot,
    begun,
    ended,
    flags,
    code,
    kind: Uint8Array.from(code, (at) => columns.codes[at].kind),
    hosts, // by lane, what its program did, ns; `call`: the one that it waited for, or -1
    late: Float64Array.from(read.late, (steps) => steps * unit), // ns from its issue until it began
    input: read.input, // counted from 1; 0: none
    wrong,
    bounds: bounds(starts, begun, ended),
    hostBounds: hosts.map((of) =>
      bounds(
        [0, of.length],
        of.map(({ from }) => from),
        of.map(({ to }) => to),
      ),
    ),
    bySlot: [],
    inputs: [],
  };
}

// For a search among intervals that are almost in order: the last end up to each, and the first begin from
// each on, part by part; `starts`: of the parts.
function bounds(starts, from, to) {
  const last = new Float64Array(from.length),
    first = new Float64Array(from.length);
  for (let part = 0; part + 1 < starts.length; part++) {
    for (let i = starts[part], end = -Infinity; i < starts[part + 1]; i++)
      last[i] = end = Math.max(end, to[i]);
    for (let i = starts[part + 1] - 1, begin = Infinity; i >= starts[part]; i--)
      first[i] = begin = Math.min(begin, from[i]);
  }
  return { last, first };
}

// Which of some intervals can touch a stretch: the first of them, and the one behind the last.
export function touching({ last, first }, begin, behind, from, to) {
  const least = (holds) => {
    let [low, high] = [begin, behind];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (holds(middle)) high = middle;
      else low = middle + 1;
    }
    return low;
  };
  return [least((i) => last[i] >= from), least((i) => first[i] > to)];
}

// The calls of a lane by slot, -1 where it has none.
export function slotsOf(calls, lane) {
  const { bySlot } = calls;
  if (bySlot[lane]) return bySlot[lane];
  const found = new Int32Array(calls.wrong.length).fill(-1);
  for (let i = calls.starts[lane]; i < calls.starts[lane + 1]; i++) found[calls.slot[i]] = i;
  return (bySlot[lane] = found);
}

// When a lane's rank was at each of its inputs, which are counted from 1. A wait belongs to the input
// that its rank was at when it began, whatever call it is for.
export function inputsOf(calls, lane) {
  const { begun, late, input, inputs, starts, hosts } = calls;
  if (inputs[lane]) return inputs[lane];
  const seen = [];
  for (let i = starts[lane]; i < starts[lane + 1]; i++) {
    const issued = begun[i] - late[i];
    seen.push({ from: issued, to: issued, call: -1, input: input[i] });
  }
  for (const span of hosts[lane]) seen.push(span); // more than a call takes arguments
  const bands = [];
  let now = 0;
  for (const piece of seen.sort((a, b) => a.from - b.from)) {
    const last = bands.at(-1);
    if (piece.call < 0) now = piece.input;
    if (!now) continue;
    if (last?.input === now) last.to = Math.max(last.to, piece.to);
    else {
      if (last) last.to = Math.min(last.to, piece.from);
      bands.push({ ...piece });
    }
  }
  return (inputs[lane] = bands);
}

export const laneOf = ({ starts }, i) => starts.findIndex((_, lane) => i < starts[lane + 1]);
