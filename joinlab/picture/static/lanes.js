// The live view, part 1 of 3: reads lane data (picture/lane_data.py), and says where texts fit.
// Every word and every place along the axis comes from Python; here they become pixels. The three parts are one ES
// module, joined by picture/assets.py: the widget's in a notebook, and a part of the page that joinlab.write_html makes.

const OPEN = 1, BAD = 2, FAILED = 4, MET = 1;
const ROW = 24, SIDE_ROW = 92, LINE = 14, NARROW = 4; // px a row, a row sideways, a line of text; ranks
const FREE = 0.1, MARK = 20; // rows of free space above a box; px of a mark above a row
const SHORTEST = 13, TRACKS = 8; // px of a call on the clock, at least, while no more than so many stand side by side
const ZOOMS = [0.5, 0.7, 1, 1.4, 2, 2.8, 4, 5.6, 8, 16, 32, 64];

export async function unpack(bytes, base) {
  const data = JSON.parse(await unzip(bytes));
  const texts = base ? base.texts.concat(data.texts) : data.texts;
  const facts = base ? base.facts.slice() : [];
  let known = facts.length;
  for (let i = 0; i < data.facts.length; i += 2) facts.push([texts[data.facts[i]], texts[data.facts[i + 1]]]);
  const told = base ? base.told.slice() : [];
  for (const numbers of data.told) told.push(numbers.map((n) => (n === 0 ? known++ : n - 1))); // 0: the next new fact
  for (const run of data.runs) {
    run.told = summed(run.told);
    for (const layout of run.layouts) layout.thing = summed(layout.thing);
  }
  return { looks: data.looks ?? base.looks, texts, facts, told, runs: data.runs };
}

async function unzip(bytes) { // by way of a Blob and a Response it waits for other threads, ten times as long
  const stream = new DecompressionStream("gzip"), writer = stream.writable.getWriter(), reader = stream.readable.getReader();
  writer.write(bytes);
  writer.close();
  const decoder = new TextDecoder();
  let text = "";
  for (let part; !(part = await reader.read()).done; ) text += decoder.decode(part.value, { stream: true });
  return text;
}

function summed(steps) {
  let sum = 0;
  return steps.map((step) => (sum += step));
}

function layoutOf(data, run, axis, setup) {
  const raw = run.layouts[(axis === "time" ? 2 : 0) + (setup ? 1 : 0)];
  const text = (n) => data.texts[n];
  let from = 0;
  const boxes = raw.thing.map((thing, i) => {
    from += raw.from[i];
    const flags = run.flags[thing], kind = run.kind[thing];
    return {
      begin: from, end: from + raw.for[i], track: raw.track[i] ?? 0, tracks: raw.tracks[i] ?? 1,
      rank: run.rank[thing], kind, label: text(run.label[thing]), short: text(run.short[thing]),
      open: !!(flags & OPEN), bad: !!(flags & BAD), failed: !!(flags & FAILED), slot: run.slot[thing],
      line: run.line[thing], told: data.told[run.told[thing]], host: kind >= data.looks.kinds.length - 2,
    };
  });
  const calls = boxes.filter((box) => !box.host);
  const at = new Map(calls.map((box) => [`${box.slot},${box.rank}`, box]).reverse());
  const slots = [...new Set(calls.map((box) => box.slot))];
  const bands = raw.bands.map(([slot, a, b, flags, said]) => ({
    slot, a: at.get(`${slot},${a}`), b: at.get(`${slot},${b}`), met: !!(flags & MET), bad: !!(flags & BAD), text: text(said),
  }));
  const notes = raw.notes.map(([rank, begin, end, said, bad, slot, whole]) =>
    ({ rank, begin, end, text: text(said), bad, slot, follows: whole !== undefined }));
  const groups = raw.groups.map(([rank, begin, end, label]) => ({ rank, begin, end, label: text(label) }));
  return { axis, boxes, calls, at, slots, bands, notes, groups, stops: raw.stops, begin: raw.begin, end: raw.end, unit: raw.unit };
}

// Two pictures on one axis of rows: how many px each leaves free above which of its slots. A row is no higher on one
// side than on the other, and stands below all that stands in the rows above it, on either side.
function together(pictures, rows) {
  const gaps = [[], []], moved = [0, 0];
  let free = -Infinity;
  rows[0].forEach((slot, at) => {
    const here = [slot, rows[1][at]].map((one, side) => pictures[side].edges.get(one));
    const top = Math.max(free, ...here.map((edge, side) => (edge ? edge.top + moved[side] : -Infinity)));
    here.forEach((edge, side) => {
      if (!edge) return; // nothing stands here, or it lies in a fold
      const gap = top - edge.top - moved[side];
      if (gap > 0.01) gaps[side].push([edge.begin, gap]);
      moved[side] += gap;
      free = Math.max(free, edge.bottom + moved[side]);
    });
  });
  return gaps;
}

// ---- small helpers

const esc = (text) => String(text).replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);
const px = (n) => Math.round(n * 10) / 10;
const clamp = (n, low, high) => Math.min(high, Math.max(low, n));

const pen = typeof document === "undefined" ? null : document.createElement("canvas").getContext("2d");
const widths = new Map();
function widthOf(text, size) {
  let found = widths.get(text);
  if (found === undefined) {
    pen.font = "100px system-ui, sans-serif";
    widths.set(text, (found = pen.measureText(text).width / 100));
  }
  return found * size;
}

function fit(label, short, room, size) {
  for (const text of [label, short]) if (widthOf(text, size) <= room) return text;
  const keep = Math.floor((room / Math.max(widthOf(short, size), 1)) * short.length) - 1;
  return keep < 2 ? "" : short.slice(0, keep) + "…";
}

function wrap(text, room, size) {
  const lines = [""];
  for (const word of text.split(" ")) {
    const tried = lines.at(-1) ? `${lines.at(-1)} ${word}` : word;
    if (lines.at(-1) && widthOf(tried, size) > room) lines.push(word);
    else lines[lines.length - 1] = tried;
  }
  return lines;
}

const element = (tag, attributes = {}, ...children) => {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "onclick") made.addEventListener("click", value);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
};
