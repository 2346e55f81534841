// The live view: draws lane data (joinlab/lane_data.py) as SVG and lets a reader step through it.
// Every word and every place along the axis comes from Python; here they become pixels. The same text is the widget's
// module in a notebook (the default export) and a part of the page that joinlab.write_html makes (mount, unpack, Store).

const OPEN = 1, BAD = 2, FAILED = 4, MET = 1;
const ROW = 24, SIDE_ROW = 76, LINE = 14, NARROW = 4; // px a row, a row sideways, a line of text; ranks
const ZOOMS = [0.5, 0.7, 1, 1.4, 2, 2.8, 4, 5.6, 8, 16, 32, 64];
let views = 0;

// ---- data

export async function unpack(bytes, base) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const data = await new Response(stream).json();
  const texts = base ? base.texts.concat(data.texts) : data.texts;
  const facts = base ? base.facts.slice() : [];
  let known = facts.length;
  for (let i = 0; i < data.facts.length; i += 2) facts.push([texts[data.facts[i]], texts[data.facts[i + 1]]]);
  for (const run of data.runs) // 0: the next fact that was not named before
    run.told = run.told.map((numbers) => numbers.map((n) => (n === 0 ? known++ : n - 1)));
  return { looks: data.looks ?? base.looks, texts, facts, runs: data.runs };
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
      line: run.line[thing], told: run.told[thing], host: kind >= data.looks.kinds.length - 2,
    };
  });
  const calls = boxes.filter((box) => !box.host);
  const at = new Map(calls.map((box) => [`${box.slot},${box.rank}`, box]).reverse());
  const slots = [...new Set(calls.map((box) => box.slot))];
  const bands = raw.bands.map(([slot, a, b, flags, said]) => ({
    slot, a: at.get(`${slot},${a}`), b: at.get(`${slot},${b}`), met: !!(flags & MET), bad: !!(flags & BAD), text: text(said),
  }));
  const notes = raw.notes.map(([rank, begin, end, said, bad, slot]) => ({ rank, begin, end, text: text(said), bad, slot }));
  const groups = raw.groups.map(([rank, begin, end, label]) => ({ rank, begin, end, label: text(label) }));
  return { axis, boxes, calls, at, slots, bands, notes, groups, stops: raw.stops, begin: raw.begin, end: raw.end, unit: raw.unit };
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

// ---- the picture

class Picture {
  constructor(data, run, layout, name, { down, width, zoom, hidden, covered, mark }) {
    Object.assign(this, { data, run, layout, name, down, zoom, covered, mark, looks: data.looks });
    this.hidden = new Set(hidden.map((kind) => this.looks.kinds.findIndex(([named]) => named === kind)));
    this.n = run.ranks;
    this.narrow = this.n >= NARROW;
    this.time = layout.axis === "time";
    this.font = this.time ? 11 : clamp(11 * zoom ** 0.35, 9, 16);
    const extent = (layout.end - layout.begin) || 1;
    this.left = down ? (this.narrow ? 58 : 76) : 0; // room for what is said of the rows
    if (down) {
      const fitting = Math.max((width - this.left) / this.n, this.narrow ? 92 : 130);
      this.column = fitting * (this.time ? 1 : Math.max(zoom, 1));
      this.perUnit = this.time ? (620 * zoom) / extent : ROW * layout.unit * clamp(zoom, 0.6, 1 + (zoom - 1) * 0.4);
    } else {
      this.column = (this.narrow ? 58 : 92) * (this.time ? 1 : clamp(zoom, 0.5, 1 + (zoom - 1) * 0.4));
      this.perUnit = this.time ? (Math.max(width - 60, 500) * zoom) / extent : SIDE_ROW * layout.unit * zoom;
    }
    this.top = down ? 4 : 20;
    this.makeRoom();
    this.capLines = run.ends.map((n, rank) => wrap(this.capText(rank), down ? this.column * 0.72 - 10 : 150, 11).slice(0, 4));
    const caps = down ? 14 + LINE * Math.max(...this.capLines.map((lines) => lines.length)) : 170;
    this.length = this.along(layout.end) + caps;
    this.across = this.left + this.column * this.n;
    const foot = down ? 4 : 24;
    [this.width, this.height] = down ? [this.across, this.length + foot] : [this.length, this.top + this.column * this.n + foot];
  }

  capText(rank) {
    const text = this.data.texts[this.run.ends[rank]];
    return `${this.run.good[rank] ? "✓" : "✕"} ${text}`;
  }

  makeRoom() { // a note is broken to the width that is there, and takes the room it needs; what follows moves on
    this.shifts = [];
    if (this.covered.length) return;
    for (const note of this.layout.notes) {
      const own = note.rank >= 0 && this.down;
      const room = this.down ? (own ? this.column * 0.9 : this.column * this.n - 12) : 190;
      note.lines = wrap(note.text, room - 12, 11.5);
      const needed = this.down ? note.lines.length * LINE + 10 : 200;
      this.shifts.push([note.begin, note.end, needed - (note.end - note.begin) * this.perUnit]);
    }
  }

  along(at) { // px along the axis
    let found = (at - this.layout.begin) * this.perUnit;
    for (const [begin, end, more] of this.shifts) found += clamp((at - begin) / (end - begin), 0, 1) * more;
    return this.down ? this.top + found : found;
  }

  beside(rank, part) { // px across the ranks
    return this.down ? this.left + (rank + part) * this.column : this.top + (rank + part) * this.column;
  }

  rect(from, to, low, high, more) {
    const [x, y, w, h] = this.down ? [low, from, high - low, to - from] : [from, low, to - from, high - low];
    return `<rect x="${px(x)}" y="${px(y)}" width="${px(Math.max(w, 0.6))}" height="${px(Math.max(h, 0.6))}" ${more}/>`;
  }

  sides(box) {
    const { span, wait, stream } = this.looks;
    const waits = box.kind === this.looks.kinds.length - 2;
    const [low, high] = box.host ? (waits ? wait : span) : stream;
    const width = (high - low) / box.tracks;
    return [this.beside(box.rank, low + width * box.track), this.beside(box.rank, low + width * (box.track + 1))];
  }

  place(box) {
    return [this.along(box.begin), this.along(box.end)];
  }

  fill(kind) {
    const [, color, pattern] = this.looks.kinds[kind];
    return pattern ? `url(#${this.name}-k${kind})` : color;
  }

  seen(rank) {
    return !this.covered.includes(rank);
  }

  svg() {
    const { layout, name } = this;
    const whole = !this.covered.length;
    const rows = layout.slots.map((slot) => this.row(slot)).join("");
    const decoration = [
      this.backs(), this.groups(), whole ? this.bands() : "",
      layout.boxes.filter((box) => box.host && this.seen(box.rank)).map((box) => this.box(box)).join(""),
    ].join("");
    return (
      `<svg xmlns="http://www.w3.org/2000/svg" class="jl-svg" role="grid" tabindex="0" aria-label="${esc(this.label())}" ` +
      `aria-keyshortcuts="ArrowUp ArrowDown ArrowLeft ArrowRight Home End" id="${name}-grid" ` +
      `viewBox="0 0 ${px(this.width)} ${px(this.height)}" width="${px(this.width)}" height="${px(this.height)}">` +
      `<g role="presentation" aria-hidden="true">${this.defs()}${decoration}</g>${rows}` +
      `<g role="presentation" aria-hidden="true">${whole ? this.signs() + this.notes() + this.marked() : ""}${this.caps()}<g class="jl-picked"></g></g></svg>`
    );
  }

  label() {
    const what = this.time ? "down the time" : "one row for the calls that met";
    return `Calls of ${this.n} rank${this.n === 1 ? "" : "s"}, ${what}. Arrow keys step through them.`;
  }

  head() { // the names of the ranks, which stay in sight while the rest scrolls
    const names = [];
    const { stream, host } = this.looks;
    for (let rank = 0; rank < this.n; rank++) {
      if (this.down) {
        names.push(`<text x="${px(this.beside(rank, (stream[0] + stream[1]) / 2))}" y="15" text-anchor="middle" class="jl-name">rank ${rank}</text>`);
        if (this.column > 150) names.push(`<text x="${px(this.beside(rank, (host[0] + host[1]) / 2))}" y="15" text-anchor="middle">host</text>`);
      } else names.push(`<text x="4" y="${px(this.beside(rank, (stream[0] + stream[1]) / 2) + 4)}" class="jl-name">rank ${rank}</text>`);
    }
    const [width, height] = this.down ? [this.width, 21] : [56, this.height];
    return `<svg aria-hidden="true" viewBox="0 0 ${px(width)} ${px(height)}" width="${px(width)}" height="${px(height)}">${names.join("")}</svg>`;
  }

  defs() {
    const lines = { "/": "M0 7L7 0", x: "M0 7L7 0M0 0L7 7", "-": "M0 3H7", ".": "M3 3h1" };
    const hatched = this.looks.kinds.map(([, color, pattern], kind) =>
      pattern ? `<pattern id="${this.name}-k${kind}" width="7" height="7" patternUnits="userSpaceOnUse"><rect width="7" height="7" fill="${color}"/>` +
        `<path d="${lines[pattern]}" stroke="#000" stroke-opacity=".22" fill="none"/></pattern>` : "");
    const [x2, y2] = this.down ? [0, 1] : [1, 0];
    return (
      `<defs>${hatched.join("")}<linearGradient id="${this.name}-g" x1="0" y1="0" x2="${x2}" y2="${y2}"><stop offset=".35" stop-color="#fff"/>` +
      `<stop offset="1" stop-color="#000"/></linearGradient><mask id="${this.name}-m" maskContentUnits="objectBoundingBox">` +
      `<rect width="1" height="1" fill="url(#${this.name}-g)"/></mask></defs>`
    );
  }

  backs() {
    const { host, stream } = this.looks;
    const found = [];
    for (let rank = 0; rank < this.n; rank++) {
      const [from, to] = [this.along(this.layout.begin), this.along(this.seen(rank) ? this.layout.stops[rank] : this.layout.end)];
      for (const [[low, high], shade] of [[host, "jl-hostlane"], [stream, "jl-streamlane"]])
        found.push(this.rect(from, to, this.beside(rank, low), this.beside(rank, high), `class="${shade}"`));
    }
    return found.join("");
  }

  groups() {
    const found = [];
    const all = this.layout.groups;
    for (const group of all) {
      const from = this.along(group.begin), to = this.along(group.end), middle = (from + to) / 2;
      if (group.rank < 0) {
        const [low, high] = [0, this.beside(this.n, 0)];
        found.push(this.down ? `<path d="M${low} ${px(from)}H${px(high)}" class="jl-rule"/>` : `<path d="M${px(from)} ${low}V${px(high)}" class="jl-rule"/>`);
        if (this.down) {
          const lines = wrap(group.label, this.left - 6, 11), step = 12;
          const top = clamp(middle - ((lines.length - 1) * step) / 2, from + 5, Math.max(to - step * (lines.length - 1), from + 5)) + 4;
          lines.forEach((line, i) => found.push(`<text x="${this.left - 6}" y="${px(top + i * step)}" text-anchor="end">${esc(line)}</text>`));
        } else found.push(`<text x="${px(from + 4)}" y="13">${esc(fit(group.label, group.label.replace(/ the .* input/, ""), to - from - 6, 11))}</text>`);
      } else if (this.seen(group.rank)) {
        const [low, high] = [this.beside(group.rank, 0.01), this.beside(group.rank, 0.99)];
        found.push(this.down ? `<path d="M${px(low)} ${px(from)}H${px(high)}" class="jl-rule"/>` : `<path d="M${px(from)} ${px(low)}V${px(high)}" class="jl-rule"/>`);
        if (this.down && !this.narrow && to - from > 46)
          found.push(`<text transform="translate(${px(this.beside(group.rank, 0.945))} ${px(from + 4)}) rotate(90)" class="jl-small">${esc(group.label)}</text>`);
        else if (!this.down && to - from > 46) found.push(`<text x="${px(from + 3)}" y="${px(high)}" class="jl-small">${esc(group.label)}</text>`);
      }
    }
    if (this.time) found.push(this.ticks());
    return found.join("");
  }

  ticks() {
    const { layout, run } = this;
    const zero = run.zero, from = zero + layout.begin, to = zero + layout.end;
    const [unit, per] = to - from >= 2e6 ? ["ms", 1e6] : to - from >= 2e3 ? ["µs", 1e3] : ["ns", 1];
    const rough = ((to - from) / per) * (60 / Math.max(this.along(layout.end), 60));
    const ten = 10 ** Math.floor(Math.log10(rough));
    const step = ten * [1, 2, 5, 10].find((k) => ten * k >= rough);
    const found = [];
    for (let k = Math.ceil(from / per / step); k * step * per <= to; k++) {
      const at = this.along(k * step * per - zero), said = `${Number((k * step).toPrecision(8))}`;
      found.push(this.down
        ? `<path d="M${this.left - 6} ${px(at)}H${px(this.across)}" class="jl-tick"/><text x="${this.left - 9}" y="${px(at + 4)}" text-anchor="end">${said}</text>`
        : `<path d="M${px(at)} ${this.top - 4}V${px(this.height - 18)}" class="jl-tick"/><text x="${px(at)}" y="${px(this.height - 6)}" text-anchor="middle">${said}</text>`);
    }
    const clock = `${run.modelled ? "modelled" : "recorded"} time, ${unit}`;
    found.push(this.down
      ? `<text transform="translate(11 ${px(this.along(layout.begin) + 8)}) rotate(90)" class="jl-small">${clock}</text>`
      : `<text x="2" y="12" class="jl-small">${clock}</text>`);
    return found.join("");
  }

  bands() {
    const high = this.looks.stream[1], low = this.looks.stream[0], found = [];
    for (const { a, b, met, bad, text, slot } of this.layout.bands) {
      if (this.hidden.has(a.kind) || this.hidden.has(b.kind)) continue;
      const [one, other] = [this.beside(a.rank, high), this.beside(b.rank, low)];
      const corners = [[one, a.begin], [other, b.begin], [other, b.end], [one, a.end]]
        .map(([side, at]) => (this.down ? `${px(side)},${px(this.along(at))}` : `${px(this.along(at))},${px(side)}`));
      found.push(`<polygon points="${corners.join(" ")}" data-slot="${slot}" class="${bad ? (met ? "jl-clash" : "jl-miss") : "jl-band"}">${text ? `<title>${esc(text)}</title>` : ""}</polygon>`);
    }
    return found.join("");
  }

  signs() {
    const found = [];
    for (const { a, b, bad, text, slot } of this.layout.bands) {
      if (!bad || this.hidden.has(a.kind) || this.hidden.has(b.kind)) continue;
      const at = (this.along(a.begin) + this.along(a.end) + this.along(b.begin) + this.along(b.end)) / 4;
      const side = this.beside(a.rank, (this.looks.stream[1] + 1 + this.looks.host[0]) / 2);
      const [x, y] = this.down ? [side, at] : [at, side];
      found.push(`<g data-slot="${slot}"><title>${esc(text)}</title><circle cx="${px(x)}" cy="${px(y)}" r="8" class="jl-sign"/><text x="${px(x)}" y="${px(y + 4)}" text-anchor="middle" class="jl-onsign">≠</text></g>`);
    }
    return found.join("");
  }

  row(slot) {
    const boxes = this.layout.calls.filter((box) => box.slot === slot && this.seen(box.rank) && !this.hidden.has(box.kind));
    return boxes.length ? `<g role="row">${boxes.map((box) => this.box(box)).join("")}</g>` : "";
  }

  box(box) {
    if (this.hidden.has(box.kind)) return "";
    const [from, to] = this.place(box), [low, high] = this.sides(box), wrong = box.bad || box.failed;
    const parts = [];
    const look = `fill="${this.fill(box.kind)}"`;
    if (box.open) {
      parts.push(this.rect(from, to, low, high, `${look} mask="url(#${this.name}-m)"`));
      const [a, b, c] = [from, from + (to - from) * 0.55, from]; // no edge where it never ended
      parts.push(`<path class="jl-edge${wrong ? " jl-wrong" : ""}" d="${this.down
        ? `M${px(low)} ${px(b)}V${px(a)}H${px(high)}V${px(b)}` : `M${px(b)} ${px(low)}H${px(c)}V${px(high)}H${px(b)}`}"/>`);
    } else parts.push(this.rect(from, to, low, high, `${look} class="jl-edge${wrong ? " jl-wrong" : ""}"`));
    const [wide, high_] = this.down ? [high - low, to - from] : [to - from, high - low];
    if (!(box.host && (this.narrow || !this.down || box.kind === this.looks.kinds.length - 2)) && high_ >= this.font) {
      const upright = box.host && widthOf(box.short, this.font) > wide - 4; // spans are narrow, and mostly long
      const size = upright ? clamp((this.font * (high_ - 3)) / widthOf(box.short, this.font), 8, this.font) : this.font;
      const text = upright ? (widthOf(box.short, size) <= high_ - 2 ? box.short : "") : fit(box.host ? box.short : box.label, box.short, wide - 6, size);
      const [x, y] = this.down ? [(low + high) / 2, (from + (box.open ? Math.min(to, from + 26) : to)) / 2] : [(from + to) / 2, (low + high) / 2];
      const turned = upright ? ` transform="rotate(-90 ${px(x)} ${px(y)})"` : "";
      if (text) parts.push(`<text x="${px(x)}" y="${px(y + this.font * 0.36)}"${turned} text-anchor="middle" font-size="${px(size)}" class="${this.looks.white.includes(box.kind) ? "jl-white" : "jl-black"}">${esc(text)}</text>`);
    }
    const said = this.said(box);
    const inside = `<title>${esc(said)}</title>${parts.join("")}`;
    if (box.host) return `<g${box.slot >= 0 ? ` data-slot="${box.slot}" data-rank="${box.rank}"` : ""}>${inside}</g>`;
    return `<g role="gridcell" id="${this.name}-${box.slot}-${box.rank}" data-slot="${box.slot}" data-rank="${box.rank}" aria-selected="false" aria-label="${esc(said)}">${inside}</g>`;
  }

  said(box) {
    const how = box.failed ? ", failed" : box.open ? ", never completes" : "";
    return `rank ${box.rank}: ${box.label}${box.host ? "" : how}${box.bad ? ", meets what it should not" : ""}`;
  }

  notes() {
    const found = [];
    for (const note of this.layout.notes) {
      const from = this.along(note.begin) + 2, own = note.rank >= 0 && this.down;
      const wide = Math.max(...note.lines.map((line) => widthOf(line, 11.5))) + 12;
      const [x, y] = this.down ? [own ? this.beside(note.rank, this.looks.stream[0]) : this.left + 4, from] : [from + 2, this.top + 8];
      found.push(`<g class="${note.bad ? "jl-note jl-bad" : "jl-note"}" data-slot="${note.slot}"><rect x="${px(x)}" y="${px(y)}" width="${px(wide)}" height="${note.lines.length * LINE + 5}"/>` +
        note.lines.map((line, i) => `<text x="${px(x + 6)}" y="${px(y + 13 + i * LINE)}">${esc(line)}</text>`).join("") + `</g>`);
    }
    return found.join("");
  }

  caps() {
    const found = [];
    for (let rank = 0; rank < this.n; rank++) {
      const stream = this.looks.stream;
      if (!this.seen(rank)) {
        const [from, to] = [this.along(this.layout.begin), this.along(this.layout.end)];
        const [low, high] = [this.beside(rank, this.looks.host[0]), this.beside(rank, stream[1])];
        const [x, y] = this.down ? [(low + high) / 2, from + Math.min(40, (to - from) / 2)] : [from + 60, (low + high) / 2];
        found.push(this.rect(from, to, low, high, `class="jl-cover"`) + `<text x="${px(x)}" y="${px(y)}" text-anchor="middle" class="jl-name">covered</text>`);
        continue;
      }
      const lines = this.capLines[rank], wide = Math.max(...lines.map((line) => widthOf(line, 11))) + 12;
      const at = this.along(this.layout.stops[rank]) + 4, side = this.beside(rank, (stream[0] + stream[1]) / 2);
      const [x, y] = this.down ? [side - wide / 2, at] : [at, side - (lines.length * LINE) / 2];
      found.push(`<g class="${this.run.good[rank] ? "jl-cap" : "jl-cap jl-bad"}"><title>${esc(this.capText(rank))}</title><rect x="${px(x)}" y="${px(y)}" width="${px(wide)}" height="${lines.length * LINE + 5}"/>` +
        lines.map((line, i) => `<text x="${px(x + wide / 2)}" y="${px(y + 13 + i * LINE)}" text-anchor="middle">${esc(line)}</text>`).join("") + `</g>`);
    }
    return found.join("");
  }

  marked() {
    const boxes = this.layout.calls.filter((box) => box.slot === this.mark?.slot);
    if (!boxes.length) return "";
    const at = this.along(Math.min(...boxes.map((box) => box.begin))) - 2, text = this.mark.text ?? "";
    const wide = widthOf(text, 11) + 10;
    return this.down
      ? `<path d="M0 ${px(at)}H${px(this.across)}" class="jl-mark"/><rect x="${px(this.across - wide)}" y="${px(at - 9)}" width="${px(wide)}" height="18" class="jl-markplate"/><text x="${px(this.across - wide + 5)}" y="${px(at + 4)}" class="jl-marktext">${esc(text)}</text>`
      : `<path d="M${px(at)} 0V${px(this.height)}" class="jl-mark"/><rect x="${px(at)}" y="0" width="${px(wide)}" height="18" class="jl-markplate"/><text x="${px(at + 5)}" y="13" class="jl-marktext">${esc(text)}</text>`;
  }

  extent(slot) { // px along the axis from the first to the last edge of its calls
    const boxes = this.layout.calls.filter((box) => box.slot === slot);
    return boxes.length ? [Math.min(...boxes.map((box) => this.along(box.begin))), Math.max(...boxes.map((box) => this.along(box.end)))] : null;
  }

  picked(slot, rank) {
    const extent = this.extent(slot);
    if (!extent) return "";
    const [from, to] = [extent[0] - 3, extent[1] + 3];
    const box = this.layout.at.get(`${slot},${rank}`);
    const own = box ? this.rect(...this.place(box), ...this.sides(box), `class="jl-pickedbox"`) : "";
    const low = this.down ? this.left - 2 : this.top, high = this.beside(this.n, 0);
    return this.rect(from, to, low, high - (this.down ? 1 : 0), `class="jl-pickedrow"`) + own;
  }
}

// ---- the view

export function mount(root, model) {
  const name = `jl${++views}`;
  let data = null, run = null, layout = null, picture = null, rank = 0, zoom = ZOOMS.indexOf(1), playing = null, alive = true;
  const reads = {}; // the base is unpacked once

  const get = (trait) => model.get(trait);
  const set = (trait, value) => { model.set(trait, value); model.save_changes(); };

  // what stays
  const told = element("div", { class: "jl-told" });
  const button = (text, label, onclick, more = {}) => element("button", { type: "button", title: label, "aria-label": label, onclick, ...more }, text);
  const axes = element("div", { role: "group", "aria-label": "Axis", class: "jl-choice" },
    button("calls that met", "Axis: one row for the calls that met", () => set("axis", "logical"), { "data-axis": "logical" }),
    button("time", "Axis: time", () => set("axis", "time"), { "data-axis": "time" }));
  const turn = button("turn", "Ranks as rows or columns", () => set("ranks_as", down() ? "rows" : "columns"));
  const unfold = button("DDP's setup", "Show DDP's own setup call by call", () => set("setup", !get("setup")));
  const out = button("−", "Zoom out", () => zoomTo(zoom - 1));
  const fitting = button("fit", "Zoom to fit", () => zoomTo(ZOOMS.indexOf(1)));
  const into = button("+", "Zoom in", () => zoomTo(zoom + 1));
  const play = button("▶ play", "Step through the rows by themselves", () => (playing ? stop() : start()), { "aria-pressed": "false" });
  const bar = element("div", { class: "jl-bar", role: "toolbar", "aria-label": "Picture" }, axes, play,
    element("div", { class: "jl-choice", role: "group", "aria-label": "Zoom" }, out, fitting, into), turn, unfold);
  const legend = element("div", { class: "jl-legend", role: "group", "aria-label": "Legend: press to hide or show" });
  const head = element("div", { class: "jl-head" });
  const canvas = element("div", { class: "jl-canvas" });
  const scroll = element("div", { class: "jl-scroll" }, head, canvas);
  const panel = element("section", { class: "jl-panel", "aria-label": "Selected row" });
  const source = element("section", { class: "jl-source", "aria-label": "Program" });
  const live = element("div", { class: "jl-live", role: "status", "aria-live": "polite" });
  const main = element("div", { class: "jl-main" },
    element("div", { class: "jl-picture" }, scroll, legend), element("div", { class: "jl-side" }, panel, source));
  const view = element("div", { class: "jl", role: "group", "aria-label": "Swimlanes", "data-lm-suppress-shortcuts": "true" }, told, bar, main, live);
  root.replaceChildren(view);

  const down = () => (get("ranks_as") === "auto" ? run.ranks <= 8 : get("ranks_as") === "columns");
  const text = (n) => data.texts[n];
  const covered = () => get("covered") ?? [];

  // -- data

  async function load() {
    const base = get("_base"), packed = get("_packed");
    const asked = (reads.asked = {});
    if (reads.base !== base) [reads.base, reads.tables] = [base, unpack(base)];
    const found = await unpack(packed, await reads.tables);
    if (!alive || reads.asked !== asked) return; // something newer came meanwhile
    show(found, found.runs[0]);
  }

  function show(newData, newRun) {
    [data, run] = [newData, newRun];
    rank = Math.min(rank, run.ranks - 1);
    stop();
    tell();
    draw();
    announce(ending());
    root.dispatchEvent(new CustomEvent("joinlab:shown", { bubbles: true }));
  }

  // -- drawing

  function draw() {
    if (!run) return;
    layout = layoutOf(data, run, get("axis"), get("setup"));
    const selected = get("selected");
    if (selected !== null && selected !== undefined && !layout.slots.includes(selected) && !get("setup"))
      layout = layoutOf(data, run, get("axis"), true); // it lies in a fold
    const width = Math.max(main.firstChild.clientWidth - 2, 240);
    picture = new Picture(data, run, layout, name, {
      down: down(), width: width - 12, zoom: ZOOMS[zoom], hidden: get("hidden") ?? [], covered: covered(), mark: get("mark"),
    });
    const focused = canvas.contains(document.activeElement);
    scroll.classList.toggle("jl-sideways", !picture.down);
    head.innerHTML = picture.head();
    canvas.innerHTML = picture.svg();
    if (focused) canvas.firstChild.focus({ preventScroll: true });
    for (const one of axes.children) one.setAttribute("aria-pressed", String(one.dataset.axis === get("axis")));
    unfold.setAttribute("aria-pressed", String(!!get("setup")));
    drawLegend();
    pick(false);
  }

  function drawLegend() {
    const hidden = get("hidden") ?? [];
    const present = new Set(layout.boxes.filter((box) => picture.seen(box.rank)).map((box) => box.kind));
    const focused = legend.contains(document.activeElement) ? document.activeElement.dataset.kind : null;
    const swatch = (kind) => {
      const [, color, pattern] = data.looks.kinds[kind];
      return `<svg width="18" height="12" aria-hidden="true"><rect x=".5" y=".5" width="17" height="11" fill="${pattern ? `url(#${name}-k${kind})` : color}" class="jl-edge"/></svg>`;
    };
    legend.replaceChildren(...data.looks.kinds.flatMap(([kind], at) => {
      if (!present.has(at)) return [];
      const shown = !hidden.includes(kind);
      const made = element("button", { type: "button", "aria-pressed": String(shown), "data-kind": kind,
        onclick: () => set("hidden", shown ? [...hidden, kind] : hidden.filter((one) => one !== kind)) });
      made.innerHTML = `${swatch(at)} ${esc(kind)}`;
      return [made];
    }));
    if (!covered().length) for (const [bad, met, said] of data.looks.bands)
      if (layout.bands.some((band) => band.bad === bad && band.met === met)) {
        const made = element("span", {});
        made.innerHTML = `<svg width="18" height="12" aria-hidden="true"><rect x="1" y="1" width="16" height="10" class="${bad ? (met ? "jl-clash" : "jl-miss") : "jl-band"}"/></svg> ${esc(said)}`;
        legend.append(made);
      }
    if (focused) [...legend.children].find((one) => one.dataset.kind === focused)?.focus();
  }

  function tell() {
    view.setAttribute("aria-label", `Swimlanes: ${text(run.title)}`);
    const silent = !get("sentences"), rows = covered().length || silent ? [] : run.why.map((said, of) => {
      const li = element("li", { class: run.good[of] ? "jl-fine" : "jl-ill" });
      li.innerHTML = `<strong>${run.good[of] ? "✓" : "✕"} rank ${of}: ${esc(text(run.ends[of]))}</strong> ${esc(text(said))}`;
      return li;
    });
    told.replaceChildren(
      element("p", { class: "jl-title" }, element("strong", {}, text(run.title)), element("span", { class: "jl-soft" }, ` ${text(run.measured)}`)),
      ...(silent ? [] : covered().length ? [element("p", {}, "Covered until you have said how each rank will end.")] : [element("p", {}, text(run.said)), element("ul", {}, ...rows)]));
  }

  function ending() {
    if (covered().length) return "The endings are covered.";
    return `${text(run.title)}. ${run.ends.map((said, of) => `rank ${of} ${text(said)}`).join("; ")}.`;
  }

  const announce = (said) => { live.textContent = said; };

  // -- selection

  function pick(scrolls) {
    const selected = get("selected") ?? null, grid = canvas.firstChild;
    for (const old of grid.querySelectorAll('[aria-selected="true"]')) old.setAttribute("aria-selected", "false");
    grid.querySelector(".jl-picked").innerHTML = selected === null ? "" : picture.picked(selected, rank);
    const cell = selected === null ? null : grid.querySelector(`[id="${name}-${selected}-${rank}"]`) ?? grid.querySelector(`[role="gridcell"][data-slot="${selected}"]`);
    if (cell) { cell.setAttribute("aria-selected", "true"); grid.setAttribute("aria-activedescendant", cell.id); } else grid.removeAttribute("aria-activedescendant");
    drawPanel(selected);
    drawSource(selected);
    if (scrolls && selected !== null) reveal(selected);
  }

  function reveal(slot) { // scrolls the picture alone, never the page
    const extent = picture.extent(slot);
    if (!extent) return;
    const box = layout.at.get(`${slot},${rank}`);
    const across = box ? picture.sides(box) : null;
    const [tops, lefts] = picture.down ? [extent, across] : [across, extent];
    const nudge = (side, size, range, spare) => {
      if (!range) return;
      if (range[0] - spare < scroll[side]) scroll[side] = range[0] - spare;
      else if (range[1] + spare > scroll[side] + scroll[size]) scroll[side] = Math.min(range[1] + spare - scroll[size], range[0] - spare);
    };
    nudge("scrollTop", "clientHeight", tops, 40);
    nudge("scrollLeft", "clientWidth", lefts, 70);
  }

  function factsOf(box) {
    const facts = box.told.map((n) => data.facts[n]);
    const first = data.looks.first.flatMap((wanted) => facts.filter(([named]) => named === wanted));
    const rest = facts.filter((fact) => !first.includes(fact));
    return { first, rest: rest.filter(([named]) => named !== "stack"), stack: rest.find(([named]) => named === "stack")?.[1] };
  }

  const listed = (facts) => `<dl>${facts.map(([named, said]) => `<div><dt>${esc(named)}</dt><dd>${esc(said)}</dd></div>`).join("")}</dl>`;

  function card(of, box) {
    const article = element("article", { class: of === rank ? "jl-card jl-here" : "jl-card", "aria-label": `rank ${of}` });
    if (!picture.seen(of)) { article.innerHTML = `<p class="jl-h">rank ${of}</p><p class="jl-soft">covered</p>`; return article; }
    if (!box) { article.innerHTML = `<p class="jl-h">rank ${of}</p><p class="jl-soft">issued no call here</p>`; return article; }
    const { first, rest, stack } = factsOf(box);
    const made = first.find(([named]) => named === data.looks.made)?.[1];
    const open = new Set([...panel.querySelectorAll("details[open]")].map((one) => one.dataset.what));
    const fold = (what, inside) => `<details data-what="${what}"${open.has(what) ? " open" : ""}><summary>${what}</summary>${inside}</details>`;
    const how = box.failed ? "failed" : box.open ? "never completes" : "";
    article.innerHTML =
      `<p class="jl-h">rank ${of}</p><p class="jl-call" style="border-color:${data.looks.kinds[box.kind][1]}">${esc(box.label)}${how ? ` <strong class="jl-how">${how}</strong>` : ""}</p>` +
      (made ? `<p class="jl-made">${esc(made.replace(/^it /, `rank ${of} `))}</p>` : "") +
      (first.length ? listed(first.filter(([named]) => named !== data.looks.made)) : listed(rest)) +
      (first.length ? fold("times and more", listed(rest)) : "") + (stack ? fold("stack", `<pre tabindex="0">${esc(stack)}</pre>`) : "");
    return article;
  }

  function drawPanel(selected) {
    if (selected === null) {
      panel.innerHTML = `<p class="jl-h">Nothing selected</p><p class="jl-soft">Click a call, or go to the picture with Tab and press ↓: what each rank put in, got out and made of it appears here.</p>`;
      return;
    }
    const at = layout.slots.indexOf(selected);
    const remark = run.layouts.slice(0, 2).flatMap((one) => one.notes).find((note) => note[5] === selected);
    const boxes = layout.calls.filter((box) => box.slot === selected);
    const folded = boxes.some((box) => factsOf(box).first.length === 0);
    const cards = element("div", { class: "jl-cards" });
    for (let of = 0; of < run.ranks; of++) {
      const own = boxes.filter((box) => box.rank === of);
      for (const box of own.length ? own : [null]) cards.append(card(of, box));
    }
    const parts = [element("p", { class: "jl-h" }, `Row ${at + 1} of ${layout.slots.length}`)];
    if (remark && !covered().length) parts.push(element("p", { class: remark[4] ? "jl-remark jl-bad" : "jl-remark" }, text(remark[3])));
    if (folded) parts.push(button("show these call by call", "Show these call by call", () => set("setup", true)));
    panel.replaceChildren(...parts, cards);
  }

  function drawSource(selected) {
    if (!run.source.length) { source.replaceChildren(); return; }
    const [file, firstLine, program] = run.source;
    const marks = new Map();
    const mark = (line, said) => line && marks.set(line, [...(marks.get(line) ?? []), said]);
    if (selected !== null) layout.calls.filter((box) => box.slot === selected && picture.seen(box.rank)).forEach((box) => mark(box.line, `rank ${box.rank}`));
    const ends = new Map();
    if (!covered().length) run.ended.forEach((line, of) => line && ends.set(line, [...(ends.get(line) ?? []), `rank ${of} ${text(run.ends[of]).split(":")[0]}`]));
    const lines = text(program).split("\n").map((line, i) => {
      const number = firstLine + i, here = marks.get(number), ended = ends.get(number);
      const style = here ? " jl-cited" : "";
      return `<span class="jl-line${style}"${here ? ' aria-current="true"' : ""}><span class="jl-no">${number}</span>${esc(line) || " "}` +
        `${here ? `<b>◂ ${esc([...new Set(here)].join(", "))}</b>` : ""}${ended ? `<i>✕ ${esc(ended.join(", "))}</i>` : ""}</span>`;
    });
    const keep = source.querySelector("pre")?.scrollTop ?? 0;
    source.innerHTML = `<p class="jl-h">${esc(text(file))}</p><pre tabindex="0"><code>${lines.join("")}</code></pre>`;
    const pre = source.querySelector("pre"), cited = pre.querySelector(".jl-cited");
    pre.scrollTop = keep;
    if (cited && (cited.offsetTop < pre.scrollTop || cited.offsetTop + 20 > pre.scrollTop + pre.clientHeight)) pre.scrollTop = cited.offsetTop - 40;
  }

  function select(slot, newRank = rank, says = true) {
    rank = newRank;
    if (slot === get("selected")) pick(true);
    else set("selected", slot);
    if (!says || slot === null) return;
    const boxes = layout.calls.filter((box) => box.slot === slot && picture.seen(box.rank));
    const own = boxes.find((box) => box.rank === rank);
    const made = own && factsOf(own).first.find(([named]) => named === data.looks.made)?.[1];
    announce(`Row ${layout.slots.indexOf(slot) + 1} of ${layout.slots.length}. ${boxes.map((box) => picture.said(box)).join("; ")}.${made ? ` Rank ${rank}: ${made}.` : ""}`);
  }

  function step(by) {
    const shown = layout.slots.filter((slot) => layout.calls.some((box) => box.slot === slot && picture.seen(box.rank) && !picture.hidden.has(box.kind)));
    if (!shown.length) return false;
    const at = shown.indexOf(get("selected"));
    const to = at < 0 ? (by > 0 ? 0 : shown.length - 1) : clamp(at + by, 0, shown.length - 1);
    select(shown[to]);
    return to < shown.length - 1;
  }

  function start() {
    if (!run) return;
    if (layout.slots.at(-1) === get("selected")) set("selected", null);
    playing = setInterval(() => { if (!step(1)) stop(); }, 1100);
    play.textContent = "❚❚ pause";
    play.setAttribute("aria-pressed", "true");
    step(1);
  }

  function stop() {
    clearInterval(playing);
    playing = null;
    play.textContent = "▶ play";
    play.setAttribute("aria-pressed", "false");
  }

  // -- zoom and pan

  function zoomTo(to, x = scroll.clientWidth / 2, y = scroll.clientHeight / 2) {
    const before = zoom;
    zoom = clamp(to, 0, get("axis") === "time" ? ZOOMS.length - 1 : ZOOMS.indexOf(8));
    if (zoom === before) return;
    const [wide, high] = [picture.width, picture.height];
    const [left, top] = [scroll.scrollLeft + x, scroll.scrollTop + y];
    draw();
    scroll.scrollLeft = (left * picture.width) / wide - x;
    scroll.scrollTop = (top * picture.height) / high - y;
  }

  scroll.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const box = scroll.getBoundingClientRect();
    zoomTo(zoom + (event.deltaY < 0 ? 1 : -1), event.clientX - box.left, event.clientY - box.top);
  }, { passive: false });

  let dragged = null;
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button === 0) dragged = { x: event.clientX, y: event.clientY, left: scroll.scrollLeft, top: scroll.scrollTop, far: false };
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!dragged) return;
    const [x, y] = [event.clientX - dragged.x, event.clientY - dragged.y];
    if (!dragged.far && Math.hypot(x, y) < 5) return;
    if (!dragged.far) canvas.setPointerCapture(event.pointerId);
    dragged.far = true;
    [scroll.scrollLeft, scroll.scrollTop] = [dragged.left - x, dragged.top - y];
  });
  const let_go = () => setTimeout(() => { dragged = null; });
  canvas.addEventListener("pointerup", let_go);
  canvas.addEventListener("pointercancel", let_go);
  canvas.addEventListener("click", (event) => {
    if (dragged?.far) return;
    const hit = event.target.closest("[data-slot]");
    if (hit && Number(hit.dataset.slot) >= 0) { stop(); select(Number(hit.dataset.slot), Number(hit.dataset.rank ?? rank)); }
  });

  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !run) return;
    const [next, previous, right, left] = picture.down
      ? ["ArrowDown", "ArrowUp", "ArrowRight", "ArrowLeft"] : ["ArrowRight", "ArrowLeft", "ArrowDown", "ArrowUp"];
    const across = (by) => { // to the next rank that can be seen
      let to = rank + by;
      while (to >= 0 && to < run.ranks && !picture.seen(to)) to += by;
      if (to >= 0 && to < run.ranks) select(get("selected") ?? layout.slots[0], to);
    };
    const done = {
      [next]: () => step(1), [previous]: () => step(-1), [right]: () => across(1), [left]: () => across(-1),
      Home: () => step(-Infinity), End: () => step(Infinity), PageDown: () => step(5), PageUp: () => step(-5),
      Escape: () => select(null), "+": () => zoomTo(zoom + 1), "-": () => zoomTo(zoom - 1), 0: () => zoomTo(ZOOMS.indexOf(1)),
      " ": () => (playing ? stop() : start()),
    }[event.key];
    if (!done) return;
    if (playing && event.key !== " ") stop();
    done();
    event.preventDefault();
    event.stopPropagation();
  });

  // -- what changes it

  const listeners = {
    "change:_packed": load,
    "change:selected": () => {
      if (!run) return;
      const slot = get("selected");
      if (slot !== null && slot !== undefined && !layout.slots.includes(slot)) draw();
      pick(true);
    },
    "change:axis": () => { if (run) { zoom = ZOOMS.indexOf(1); draw(); pick(true); } },
    "change:setup": () => draw(), "change:hidden": () => draw(), "change:ranks_as": () => draw(), "change:mark": () => draw(),
    "change:covered": () => { if (run) { tell(); draw(); announce(ending()); } },
    "change:sentences": () => { if (run) tell(); },
  };
  for (const [event, listener] of Object.entries(listeners)) model.on(event, listener);
  let known = 0;
  const observer = new ResizeObserver(() => {
    const width = main.firstChild.clientWidth;
    if (Math.abs(width - known) > 1 && width) { known = width; draw(); }
  });
  observer.observe(view);
  if (get("_packed")) load();

  return {
    show,
    close() {
      alive = false;
      stop();
      observer.disconnect();
      for (const [event, listener] of Object.entries(listeners)) model.off(event, listener);
    },
  };
}

// A model for a page without Python: the same few methods as a widget's.
export class Store {
  constructor(values) {
    this.values = { selected: null, axis: "logical", setup: false, ranks_as: "auto", hidden: [], covered: [], sentences: true, mark: {}, ...values };
    this.listeners = {};
  }
  get(name) { return this.values[name]; }
  set(name, value) {
    if (this.values[name] === value) return;
    this.values[name] = value;
    for (const listener of this.listeners[`change:${name}`] ?? []) listener();
  }
  on(event, listener) { (this.listeners[event] ??= []).push(listener); }
  off(event, listener) { this.listeners[event] = (this.listeners[event] ?? []).filter((one) => one !== listener); }
  save_changes() {}
}

export default {
  render({ model, el }) {
    const view = mount(el, model);
    return () => view.close();
  },
};
