// The lanes of one run as SVG text: places in px, and the pieces that are drawn there.

import { PARTS } from "./boxes.js";
import { Detail, LEAST, WRONG } from "./detail.js";
import { clamp, esc, fit, px, widthOf, wrap } from "./text.js";

const ROW = 24, SIDE_ROW = 92, LINE = 14; // px of a row, of a row sideways, of a line of text
export const NARROW = 4; // from so many ranks on, a lane is narrow
const FREE = 0.1, MARK = 20; // rows of free space above a box; px of a mark above a row
const LEAST_COLUMN = 92; // px: a lane in which "anyone left?" can be read; two fit a notebook on a phone
const SMALL = 8; // px: of a shorter one of many boxes, nothing but a rect is drawn
const NEAR = 8; // calls at the end of a lane that can reach behind the others
const ALL = 600, BEYOND = 0.2; // up to so many boxes are all drawn; of more, those in sight and so many screens beyond
const LONGEST = 4e6; // px: beyond, places in an SVG are off by more than half a px
const RULE = 8; // px of an input on the clock, at least, for a rule where it begins
const CELL = 3; // px of a cell of a block, which has the colour of most calls in it

/** @typedef {{ down: boolean, width: number, zoom: number, hidden: string[], covered: number[], mark: Mark }} Options */

export class Picture {
  /** @param {LaneData} data @param {RawRun} run @param {Layout} layout @param {string} name @param {Options} options */
  constructor(data, run, layout, name, { down, width, zoom, hidden, covered, mark }) {
    this.data = data;
    this.run = run;
    this.layout = layout;
    this.name = name;
    this.down = down;
    this.zoom = zoom;
    this.covered = covered;
    this.mark = mark;
    this.looks = data.looks;
    this.seenWidth = width;
    this.hidden = new Set(hidden.map((kind) => this.looks.kinds.findIndex(({ name: named }) => named === kind)));
    /** @type {[begin: number, end: number, px: number][]} */
    this.shifts = [];
    /** @type {[begin: number, end: number, px: number][]} */
    this.gaps = [];
    /** Both, in order, each with the px that those before it add. @type {{ begin: number, end: number, px: number, before: number }[]} */
    this.breaks = [];
    /** What is drawn by itself on the clock, and what in blocks. @type {Detail | undefined} */
    this.detail = undefined;
    /** What is drawn: px along the axis, and ranks. @type {{ from: number, to: number, first: number, last: number }} */
    this.window = { from: -Infinity, to: Infinity, first: 0, last: run.ranks - 1 };
    this.partial = layout.boxes.count > ALL;
    /** @type {number | null} */
    this.selected = null;
    /** px below which nothing of a rank is drawn. @type {number[] | undefined} */
    this.lowest = undefined;
    /** px of the whole. */
    this.width = 0;
    this.height = 0;
    /** Names of the rows, as SVG. @type {string[]} */
    this.rowNames = [];
    this.n = run.ranks;
    this.narrow = this.n >= NARROW;
    this.time = layout.axis === "time";
    this.font = this.time ? 11 : clamp(11 * zoom ** 0.35, 9, 16);
    const extent = (layout.end - layout.begin) || 1, most = LONGEST / extent; // px of a unit, at most
    this.left = down ? (this.narrow || width < 340 ? 58 : 76) : 0; // room for what is said of the rows
    if (down) {
      const fitting = Math.max((width - this.left) / this.n, this.narrow ? 100 : LEAST_COLUMN);
      this.column = fitting * (this.time ? 1 : Math.max(zoom, 1));
      this.perUnit = Math.min(most, this.time ? (620 * zoom) / extent : ROW * layout.unit * clamp(zoom, 0.6, 1 + (zoom - 1) * 0.4));
    } else {
      this.column = (this.narrow ? 58 : 92) * (this.time ? 1 : clamp(zoom, 0.5, 1 + (zoom - 1) * 0.4));
      this.perUnit = Math.min(most, this.time ? (Math.max(width - 60, 500) * zoom) / extent : SIDE_ROW * layout.unit * zoom);
    }
    this.top = down ? 4 : 20;
    this.makeRoom();
    if (this.time) this.detail = new Detail(layout.boxes, this.perUnit, true);
    if (this.time) this.lowest = run.ends.map((_, rank) => this.lowestOf(rank));
    this.capLines = run.ends.map((n, rank) => wrap(this.capText(rank), down ? this.column * 0.72 - 10 : 150, 11).slice(0, 4));
    this.leave([]);
  }

  /** Leave room before what begins at some places. @param {Gap[]} gaps @param {number} atLeast length of the whole, px */
  leave(gaps, atLeast = 0) {
    const { layout, down } = this;
    this.gaps = gaps.map(([begin, px]) => [begin - FREE / layout.unit, begin, px]);
    this.breakUp();
    const last = layout.notes.reduce((far, note) => Math.max(far, note.end), Math.max(layout.boxes.last, layout.begin));
    const caps = layout.stops.map((stop, rank) => this.capAt(rank) + (down ? 10 + LINE * this.capLines[rank].length : 166));
    this.length = Math.max(this.along(last), atLeast, ...caps);
    this.across = this.left + this.column * this.n;
    const foot = down ? 4 : 24;
    [this.width, this.height] = down ? [this.across, this.length + foot] : [this.length, this.top + this.column * this.n + foot];
  }

  /** Where a rank's ending stands: below everything drawn of the rank. @param {number} rank */
  capAt(rank) {
    return Math.max(this.along(this.layout.stops[rank]), this.lowest?.[rank] ?? 0) + 4;
  }

  /** @param {number} rank */
  capText(rank) {
    const text = this.data.texts[this.run.ends[rank]];
    return `${this.run.sign[rank]} ${text}`;
  }

  /** Break notes into lines that fit, and move what follows a note on by the room it needs. */
  makeRoom() {
    this.shifts = [];
    this.gaps = [];
    if (this.covered.length) return;
    const [marked] = this.layout.boxes.of(this.mark?.slot ?? null);
    if (marked && !this.time) this.shifts.push([marked.begin - FREE / this.layout.unit, marked.begin, this.down ? MARK : 0]);
    for (const note of this.layout.notes) {
      const own = note.rank !== null && this.down;
      const seen = Math.max(this.seenWidth - this.left - 12, 150); // where the picture is wider, a note stays in sight
      const room = this.down ? (own ? this.column * 0.78 : Math.min(this.column * this.n - 12, seen)) : 190;
      note.lines = wrap(note.text, room - 12, 11.5);
      const needed = this.down ? note.lines.length * LINE + 10 : 200;
      this.shifts.push([note.begin, note.end, needed - (note.end - note.begin) * this.perUnit]);
    }
  }

  /** Put what moves places on in order. */
  breakUp() {
    let before = 0;
    this.breaks = this.shifts.concat(this.gaps).sort((one, other) => one[1] - other[1] || one[0] - other[0]).map(([begin, end, px]) => {
      before += px;
      return { begin, end, px, before: before - px };
    });
  }

  /** px along the axis. @param {number} at */
  along(at) {
    const { breaks } = this;
    let [low, high] = [0, breaks.length]; // those before `low` lie before `at`
    while (low < high) {
      const middle = (low + high) >> 1;
      if (breaks[middle].end <= at) low = middle + 1; else high = middle;
    }
    let found = (at - this.layout.begin) * this.perUnit + (low < breaks.length ? breaks[low].before : low ? breaks[low - 1].before + breaks[low - 1].px : 0);
    for (; low < breaks.length && breaks[low].begin < at; low++) found += clamp((at - breaks[low].begin) / (breaks[low].end - breaks[low].begin), 0, 1) * breaks[low].px;
    return this.down ? this.top + found : found;
  }

  /** The place along the axis that lies at so many px: the inverse of along(). @param {number} found */
  unitAt(found) {
    const { begin, end } = this.layout, spare = (end - begin) || 1;
    let [low, high] = [begin - spare, Math.max(end, this.layout.boxes.last) + spare];
    for (let step = 0; step < 60; step++) {
      const middle = (low + high) / 2;
      if (this.along(middle) < found) low = middle; else high = middle;
    }
    return low;
  }

  /** Draw what lies there, and a little beyond; true if that is not drawn yet.
   * @param {number} from px along the axis @param {number} size @param {number} low px across it @param {number} wide */
  look(from, size, low, wide) {
    if (!this.partial) return false;
    const lane = (/** @type {number} */ at) => clamp(Math.floor((at - this.beside(0, 0)) / this.column), 0, this.n - 1);
    const { window } = this, end = this.down ? this.height : this.width;
    if (Math.max(from, 0) >= window.from && Math.min(from + size, end) <= window.to && lane(low) >= window.first && lane(low + wide) <= window.last && window.to < Infinity) return false;
    this.window = { from: from - size * BEYOND, to: from + size * (1 + BEYOND), first: Math.max(lane(low) - 1, 0), last: Math.min(lane(low + wide) + 1, this.n - 1) };
    return true;
  }

  /** Whether something between these px is drawn. @param {number} from @param {number} to */
  inSight(from, to) { return to >= this.window.from && from <= this.window.to; }

  /** Each slot's row before any gap; a slot that stands out of order has none. @returns {Map<number, Edge>} */
  get edges() {
    const { boxes, stops } = this.layout, edges = new Map();
    /** @type {Edge | null} */
    let last = null;
    [this.gaps, this.breaks] = [[], []];
    this.breakUp();
    for (const slot of boxes.slots) {
      const [box] = boxes.of(slot), top = this.along(box.begin);
      if (last && top <= last.top) continue;
      if (last) last.bottom = top;
      edges.set(slot, (last = { begin: box.begin, top }));
    }
    if (last) last.bottom = Math.max(...stops.map((stop) => this.along(stop)));
    return edges;
  }

  /** px across the ranks. @param {number} rank @param {number} part of the rank's lane, 0 to 1 */
  beside(rank, part) {
    return this.down ? this.left + (rank + part) * this.column : this.top + (rank + part) * this.column;
  }

  /** @param {number} from @param {number} to @param {number} low @param {number} high @param {string} more attributes */
  rect(from, to, low, high, more) {
    const [x, y, w, h] = this.down ? [low, from, high - low, to - from] : [from, low, to - from, high - low];
    return `<rect x="${px(x)}" y="${px(y)}" width="${px(Math.max(w, 0.6))}" height="${px(Math.max(h, 0.6))}" ${more}/>`;
  }

  /** px across the ranks. @param {Box} box @returns {[number, number]} */
  sides(box) {
    const [low, high] = this.looks.lanes[this.looks.kinds[box.kind].lane];
    const longer = this.detail?.tracks[box.i];
    const [track, tracks] = longer ? [this.detail.track[box.i], longer] : this.detail?.owner[box.i] >= 0 || this.detail?.lengthOf(box.i) < LEAST ? [0, 1] : [box.track, box.tracks];
    const width = (high - low) / tracks;
    return [this.beside(box.rank, low + width * track), this.beside(box.rank, low + width * (track + 1))];
  }

  /** px along the axis; what went wrong is always long enough to be seen. @param {Box} box @returns {[number, number]} */
  place(box) {
    const from = this.along(box.begin);
    if (!this.detail) return [from, this.along(box.end)];
    const long = this.detail.lengthOf(box.i);
    return [from, from + (this.layout.boxes.columns.flags[box.i] & WRONG ? Math.max(long, LEAST) : long)];
  }

  /** px below which nothing of a rank is drawn on the clock. @param {number} rank */
  lowestOf(rank) {
    const { starts, order, reach, columns: { begin } } = this.layout.boxes, [first, behind] = [starts[rank * PARTS], starts[rank * PARTS + 1]];
    if (first === behind) return 0;
    let lowest = this.along(reach[behind - 1]); // none begins behind the last, so one drawn longer reaches on only there
    for (let p = Math.max(first, behind - NEAR); p < behind; p++) lowest = Math.max(lowest, this.along(begin[order[p]]) + this.detail.lengthOf(order[p]));
    return lowest;
  }

  /** @param {number} kind */
  fill(kind) {
    const { color, pattern } = this.looks.kinds[kind];
    return pattern ? `url(#${this.name}-k${kind})` : color;
  }

  /** Whether a rank is not covered. @param {number} rank */
  seen(rank) {
    return !this.covered.includes(rank);
  }

  /** What is in sight: boxes drawn by themselves, and blocks of many. */
  pieces() {
    const { layout: { boxes }, window, detail } = this, { order, columns: { kind, begin, flags } } = boxes, owners = detail?.owner, perCell = this.perUnit / CELL;
    const hidden = Uint8Array.from(this.looks.kinds, (_, at) => Number(this.hidden.has(at)));
    const [from, to] = window.to === Infinity ? [-Infinity, Infinity] : [this.unitAt(window.from), this.unitAt(window.to)];
    /** @type {{ calls: Box[], hosts: Box[], blocks: Block[] }} */
    const found = { calls: [], hosts: [], blocks: [] };
    for (let rank = window.first; rank <= window.last; rank++) {
      if (!this.seen(rank)) continue;
      for (let part = 0; part < PARTS; part++) {
        const [first, behind] = boxes.between(rank * PARTS + part, from, to);
        /** The blocks that were begun: of what matched, and of what went wrong. @type {(Block | null)[]} */
        const some = [null, null];
        for (let p = first; p < behind; p++) { // up to a million times: nothing is made here, and nothing looked up in a Set
          const i = order[p], of = owners ? owners[i] : -1;
          if (hidden[kind[i]]) continue;
          if (of < 0) {
            (part ? found.hosts : found.calls).push(boxes.box(i));
            continue;
          }
          const which = flags[i] & WRONG ? 1 : 0;
          let block = some[which];
          if (block === null || block.owner !== of) {
            if (block) this.endCell(block);
            found.blocks.push((block = some[which] = this.beginBlock(of, rank, part, !!which)));
          }
          const at = (begin[i] - begin[of]) * perCell;
          if (at < block.cell || at >= block.cell + 1) {
            this.endCell(block);
            block.cell = Math.floor(at);
          }
          block.counts[kind[i]]++;
        }
        for (const block of some) if (block) this.endCell(block);
      }
    }
    if (this.selected !== null) // is drawn by itself, wherever it lies
      for (const box of boxes.of(this.selected)) if (detail && detail.owner[box.i] >= 0 && this.seen(box.rank) && !this.hidden.has(box.kind)) found.calls.push(box);
    return found;
  }

  /** @param {number | null} selected slot */
  svg(selected) {
    const { layout, name } = this;
    this.selected = selected;
    this.rowNames = this.down ? [`<rect width="${this.left - 4}" height="${px(this.height)}" class="jl-plate"/>`] : []; // stay in sight, too
    const whole = !this.covered.length, pieces = this.pieces();
    /** The calls that are drawn, by slot. @type {Map<number, Box[]>} */
    const bySlot = new Map();
    for (const box of pieces.calls) {
      if (!bySlot.has(box.slot)) bySlot.set(box.slot, []);
      bySlot.get(box.slot).push(box);
    }
    const slots = [...bySlot.keys()].sort((one, other) => layout.boxes.rowOf(one) - layout.boxes.rowOf(other));
    /** Cells of what is small, of whichever row: a row for each would double their number. @type {string[]} */
    const small = [];
    const rows = slots.map((slot) => {
      const boxes = bySlot.get(slot).sort((one, other) => one.rank - other.rank || one.i - other.i);
      if (!boxes.every((box) => this.isSmall(box))) return this.row(slot, boxes);
      small.push(...boxes.map((box) => this.box(box)));
      return "";
    }).join("");
    const blocks = pieces.blocks.filter((block) => block.to - block.from >= SMALL).map((block) => this.block(block)).join("");
    for (const block of pieces.blocks) if (!block.part && block.to - block.from < SMALL) small.push(this.block(block));
    const bands = whole ? this.bandsInSight(slots) : [];
    const decoration = [this.backs(), this.groups(), this.bands(bands), this.smallHosts(pieces), pieces.hosts.map((box) => (this.isSmall(box) ? "" : this.box(box))).join("")].join("");
    return (
      `<svg xmlns="http://www.w3.org/2000/svg" class="jl-svg" role="grid" tabindex="0" aria-label="${esc(this.label())}" ` +
      `aria-keyshortcuts="ArrowUp ArrowDown ArrowLeft ArrowRight Home End" aria-rowcount="${layout.boxes.slots.length}" id="${name}-grid" ` +
      `viewBox="0 0 ${px(this.width)} ${px(this.height)}" width="${px(this.width)}" height="${px(this.height)}">` +
      `<g role="presentation" aria-hidden="true">${this.defs()}${decoration}</g>${blocks}${small.length ? `<g role="row">${small.join("")}</g>` : ""}${rows}` +
      `<g role="presentation" aria-hidden="true">${whole ? this.signs(bands) + this.notes() + this.marked() : ""}${this.caps()}<g class="jl-picked"></g>` +
      `<g class="jl-rows">${this.rowNames.join("")}</g></g></svg>`
    );
  }

  /** Whether a box is one of so many that nothing but a rect is drawn of it. @param {Box} box */
  isSmall(box) {
    if (!this.partial || box.open) return false;
    const [from, to] = this.place(box);
    return to - from < SMALL;
  }

  /** What is small of the hosts' lanes: a path for each kind. @param {{ hosts: Box[], blocks: Block[] }} pieces */
  smallHosts({ hosts, blocks }) {
    /** @type {Map<number, string>} */
    const paths = new Map();
    const add = (/** @type {number} */ kind, /** @type {number} */ from, /** @type {number} */ to, /** @type {number} */ low, /** @type {number} */ high) => {
      const [x, y, w, h] = this.down ? [low, from, high - low, Math.max(to - from, 0.6)] : [from, low, Math.max(to - from, 0.6), high - low];
      paths.set(kind, `${paths.get(kind) ?? ""}M${px(x)} ${px(y)}h${px(w)}v${px(h)}h${px(-w)}z`);
    };
    for (const box of hosts) if (this.isSmall(box)) add(box.kind, ...this.place(box), ...this.sides(box));
    for (const { owner, part, from, to, low, high } of blocks) if (part && to - from < SMALL) add(this.layout.boxes.columns.kind[owner], from, to, low, high);
    return [...paths].map(([kind, d]) => `<path d="${d}" fill="${this.fill(kind)}" stroke="var(--jl-quiet)" stroke-width=".6"/>`).join("");
  }

  /** Many calls that are too short to be drawn one by one. @param {number} owner the first @param {number} rank @param {number} part
   * @param {boolean} wrong @returns {Block} */
  beginBlock(owner, rank, part, wrong) {
    const { begin, end } = this.layout.boxes.columns, from = this.along(begin[owner]);
    const [low, high] = this.looks.lanes[part === 0 ? "stream" : part === 1 ? "span" : "wait"];
    return {
      owner, rank, part, wrong, from, to: Math.max(this.along(end[this.detail.lastOf[owner]]), from + LEAST),
      low: this.beside(rank, low), high: this.beside(rank, high), cell: -1, counts: new Uint32Array(this.looks.kinds.length), paths: new Map(),
    };
  }

  /** Draw a cell of a block in the colour of most calls in it. @param {Block} block */
  endCell({ counts, cell, from, to, low, high, paths }) {
    let most = -1;
    for (let kind = 0; kind < counts.length; kind++) if (counts[kind] && (most < 0 || counts[kind] > counts[most])) most = kind;
    if (most < 0) return;
    counts.fill(0);
    const at = from + cell * CELL, long = Math.min(CELL, to - at);
    paths.set(most, (paths.get(most) ?? "") + (this.down ? `M${px(low)} ${px(at)}H${px(high)}v${px(long)}H${px(low)}z` : `M${px(at)} ${px(low)}V${px(high)}h${px(long)}V${px(low)}z`));
  }

  /** @param {Block} block */
  block({ owner, rank, part, wrong, from, to, low, high, paths }) {
    const { looks } = this, { begin, kind } = this.layout.boxes.columns, held = this.detail.held[owner].toLocaleString("en");
    const said = part ? `${looks.kinds[kind[owner]].name}, ${held} times` : `${held} calls, ${wrong ? "all of them wrong" : "all matched"}`;
    const at = `data-at="${begin[owner]}"`, look = `class="jl-block${wrong ? " jl-wrong" : ""}"`, name = esc(`${this.laneName(rank)}: ${said}`);
    if (to - from < SMALL) return this.rect(from, to, low, high, `fill="${this.fill([...paths.keys()][0])}" ${look} role="gridcell" aria-label="${name}" ${at}`);
    const cells = [...paths].map(([of, d]) => `<path d="${d}" fill="${this.fill(of)}"/>`).join("");
    const edge = this.rect(from, to, low, high, `fill="none" pointer-events="all" ${look}`), tip = `<title>${esc(said)}: press to zoom in</title>`;
    if (part) return `<g aria-hidden="true" ${at}>${tip}${cells}${edge}</g>`;
    const seen = [Math.max(from, this.window.from), Math.min(to, this.window.to)], middle = (seen[0] + seen[1]) / 2;
    const room = (this.down ? high - low : seen[1] - seen[0]) - 10; // a number that is cut off says something else
    const short = seen[1] - seen[0] < 22 ? "" : [said, `${held} calls`].find((text) => widthOf(text, 11) <= room) ?? "";
    const wide = widthOf(short, 11) + 8, [x, y] = this.down ? [(low + high) / 2, middle] : [middle, (low + high) / 2];
    const label = short
      ? `<rect x="${px(x - wide / 2)}" y="${px(y - 9)}" width="${px(wide)}" height="17" class="jl-blockplate"/><text x="${px(x)}" y="${px(y + 4)}" text-anchor="middle">${esc(short)}</text>` : "";
    return `<g role="row" ${at}>${tip}<g role="gridcell" aria-label="${name}">${cells}${edge}</g><g aria-hidden="true">${label}</g></g>`;
  }

  /** @param {number} lane */
  laneName(lane) {
    return this.data.texts[this.run.lanes[lane]];
  }

  label() {
    const what = this.time ? "down the time" : "one row for the calls that met";
    return `Calls of ${this.n} lane${this.n === 1 ? "" : "s"}, ${what}. Arrow keys step through them.`;
  }

  /** The names of the ranks, which stay in sight while the rest scrolls. */
  head() {
    const names = [];
    const { stream, host } = this.looks.lanes;
    for (let rank = 0; rank < this.n; rank++) {
      if (this.down) {
        names.push(`<text x="${px(this.beside(rank, (stream[0] + stream[1]) / 2))}" y="15" text-anchor="middle" class="jl-name">${esc(this.laneName(rank))}</text>`);
        if (this.column > 150) names.push(`<text x="${px(this.beside(rank, (host[0] + host[1]) / 2))}" y="15" text-anchor="middle">host</text>`);
      } else names.push(`<text x="4" y="${px(this.beside(rank, (stream[0] + stream[1]) / 2) + 4)}" class="jl-name">${esc(this.laneName(rank))}</text>`);
    }
    const [width, height] = this.down ? [this.width, 21] : [56, this.height];
    return `<svg aria-hidden="true" viewBox="0 0 ${px(width)} ${px(height)}" width="${px(width)}" height="${px(height)}">${names.join("")}</svg>`;
  }

  defs() {
    /** @type {Record<string, string>} */
    const lines = { "/": "M0 7L7 0", x: "M0 7L7 0M0 0L7 7", "-": "M0 3H7", ".": "M3 3h1" };
    const hatched = this.looks.kinds.map(({ color, pattern }, kind) =>
      pattern ? `<pattern id="${this.name}-k${kind}" width="7" height="7" patternUnits="userSpaceOnUse"><rect width="7" height="7" fill="${color}"/>` +
        `<path d="${lines[pattern]}" stroke="black" stroke-opacity=".22" fill="none"/></pattern>` : "");
    const [x2, y2] = this.down ? [0, 1] : [1, 0];
    return (
      `<defs>${hatched.join("")}<linearGradient id="${this.name}-g" x1="0" y1="0" x2="${x2}" y2="${y2}"><stop offset=".35" stop-color="white"/>` +
      `<stop offset="1" stop-color="black"/></linearGradient><mask id="${this.name}-m" maskContentUnits="objectBoundingBox">` +
      `<rect width="1" height="1" fill="url(#${this.name}-g)"/></mask></defs>`
    );
  }

  backs() {
    const { host, stream } = this.looks.lanes;
    const found = [];
    /** @type {[[number, number], string][]} */
    const lanes = [[host, "jl-hostlane"], [stream, "jl-streamlane"]];
    for (let rank = 0; rank < this.n; rank++) {
      const [from, to] = [this.along(this.layout.begin), this.along(this.seen(rank) ? this.layout.stops[rank] : this.layout.end)];
      for (const [[low, high], shade] of lanes)
        found.push(this.rect(from, to, this.beside(rank, low), this.beside(rank, high), `class="${shade}"`));
    }
    return found.join("");
  }

  groups() {
    const found = [];
    const all = this.layout.groups;
    for (const group of all) {
      const from = this.along(group.begin), to = this.along(group.end), middle = (from + to) / 2;
      if (!this.inSight(from, to) || (this.time && to - from < RULE)) continue;
      if (group.rank === null) {
        const [low, high] = [0, this.beside(this.n, 0)];
        found.push(this.down ? `<path d="M${low} ${px(from)}H${px(high)}" class="jl-rule"/>` : `<path d="M${px(from)} ${low}V${px(high)}" class="jl-rule"/>`);
        if (this.down) {
          const step = 12, whole = wrap(group.label, this.left - 6, 11);
          const outside = group.label.replace(/ the .* (input|step)/, "");
          const brief = outside.replace(/(?:inputs|steps? )(\[?\d+\]? (?:to|and) )(?:inputs|step )?/, "$1"); // "before", "[0] to [4]", "0 to 4"
          const lines = whole.length * step > to - from - 4 ? wrap(brief, this.left - 6, 11) : whole;
          const top = clamp(middle - ((lines.length - 1) * step) / 2, from + 5, Math.max(to - step * (lines.length - 1), from + 5)) + 4;
          lines.forEach((line, i) => this.rowNames.push(`<text x="${this.left - 6}" y="${px(top + i * step)}" text-anchor="end">${esc(line)}</text>`));
        } else found.push(`<text x="${px(from + 4)}" y="13">${esc(fit(group.label, group.label.replace(/ the .* (input|step)/, ""), to - from - 6, 11))}</text>`);
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
    const found = [], first = Math.max(from, zero + this.unitAt(this.window.from));
    for (let k = Math.ceil(first / per / step); k * step * per <= to; k++) {
      const at = this.along(k * step * per - zero);
      if (at > Math.min(this.length - 2, this.window.to)) break; // its number would be cut off, or out of sight
      const said = `${Number((k * step).toPrecision(8))}`;
      if (this.down) this.rowNames.push(`<text x="${this.left - 9}" y="${px(at + 4)}" text-anchor="end">${said}</text>`);
      found.push(this.down
        ? `<path d="M${this.left - 6} ${px(at)}H${px(this.across)}" class="jl-tick"/>`
        : `<path d="M${px(at)} ${this.top - 4}V${px(this.height - 18)}" class="jl-tick"/><text x="${px(at)}" y="${px(this.height - 6)}" text-anchor="middle">${said}</text>`);
    }
    const clock = `${run.modelled ? "modelled" : "recorded"} time, ${unit}`;
    if (this.down) this.rowNames.push(`<text transform="translate(8 ${px(this.along(layout.begin) + 8)}) rotate(90)" class="jl-small">${clock}</text>`);
    else found.push(`<text x="2" y="12" class="jl-small">${clock}</text>`);
    return found.join("");
  }

  /** The bands of what is drawn; a band to what is hidden in a block only where it went wrong. @param {number[]} slots */
  bandsInSight(slots) {
    const { detail } = this;
    return slots.flatMap((slot) => this.layout.bandsOf(slot)).filter(({ a, b, bad }) =>
      a && b && !this.hidden.has(a.kind) && !this.hidden.has(b.kind) && (bad || !detail || (detail.owner[a.i] < 0 && detail.owner[b.i] < 0)));
  }

  /** @param {Band[]} shown */
  bands(shown) {
    const high = this.looks.lanes.stream[1], low = this.looks.lanes.stream[0], found = [];
    let plain = "";
    for (const { a, b, met, bad, text, slot } of shown) {
      const [one, other] = [this.beside(a.rank, high), this.beside(b.rank, low)];
      const [left, right] = [this.beside(a.rank + 1, 0), this.beside(b.rank, 0)];
      // Through the lanes of ranks that took no part goes a line, and no band (layout.py).
      const shapes = b.rank === a.rank + 1 ? [[[one, a.begin], [other, b.begin], [other, b.end], [one, a.end]]]
        : [[[one, a.begin], [left, a.begin], [left, a.end], [one, a.end]], [[right, b.begin], [other, b.begin], [other, b.end], [right, b.end]],
          [[left, (a.begin + a.end) / 2], [right, (b.begin + b.end) / 2]]];
      const outline = shapes.map((shape) => `M${shape.map(([side, at]) => (this.down ? `${px(side)},${px(this.along(at))}` : `${px(this.along(at))},${px(side)}`)).join("L")}z`).join("");
      if (this.partial && !bad) { // a path of all of them is one element for thousands
        plain += outline;
        continue;
      }
      found.push(`<path d="${outline}" data-slot="${slot}" class="${bad ? (met ? "jl-clash" : "jl-miss") : "jl-band"}">${text ? `<title>${esc(text)}</title>` : ""}</path>`);
    }
    return (plain && `<path d="${plain}" class="jl-band"/>`) + found.join("");
  }

  /** @param {Band[]} shown */
  signs(shown) {
    const found = [];
    /** Where the last sign between two ranks stands. @type {Map<number, number>} */
    const last = new Map();
    for (const { a, b, bad, text, slot } of shown) {
      if (!bad) continue;
      const at = (this.along(a.begin) + this.along(a.end) + this.along(b.begin) + this.along(b.end)) / 4;
      if (this.time && at - (last.get(a.rank) ?? -Infinity) < CELL) continue;
      last.set(a.rank, at);
      const side = this.beside(a.rank, (this.looks.lanes.stream[1] + 1 + this.looks.lanes.host[0]) / 2);
      const [x, y] = this.down ? [side, at] : [at, side];
      found.push(`<g data-slot="${slot}"><title>${esc(text)}</title><circle cx="${px(x)}" cy="${px(y)}" r="8" class="jl-sign"/><text x="${px(x)}" y="${px(y + 4)}" text-anchor="middle" class="jl-onsign">≠</text></g>`);
    }
    return found.join("");
  }

  /** @param {number} slot @param {Box[]} boxes */
  row(slot, boxes) {
    return `<g role="row" aria-rowindex="${this.layout.boxes.rowOf(slot) + 1}">${boxes.map((box) => this.box(box)).join("")}</g>`;
  }

  /** @param {Box} box */
  box(box) {
    const [from, to] = this.place(box), [low, high] = this.sides(box), wrong = box.bad || box.failed;
    if (this.isSmall(box)) {
      const cell = `role="gridcell" id="${this.name}-${box.slot}-${box.rank}" aria-selected="false" aria-label="${esc(this.said(box))}" data-slot="${box.slot}" data-rank="${box.rank}"`;
      return this.rect(from, to, low, high, `fill="${this.fill(box.kind)}" ${cell} class="jl-edge${wrong ? " jl-wrong" : ""}"`);
    }
    const parts = [];
    let label = "";
    const look = `fill="${this.fill(box.kind)}"`;
    if (box.open) {
      parts.push(this.rect(from, to, low, high, `${look} mask="url(#${this.name}-m)"`));
      const [a, b, c] = [from, from + (to - from) * 0.55, from]; // no edge where it never ended
      parts.push(`<path class="jl-edge${wrong ? " jl-wrong" : ""}" d="${this.down
        ? `M${px(low)} ${px(b)}V${px(a)}H${px(high)}V${px(b)}` : `M${px(b)} ${px(low)}H${px(c)}V${px(high)}H${px(b)}`}"/>`);
    } else parts.push(this.rect(from, to, low, high, `${look} class="jl-edge${wrong ? " jl-wrong" : ""}${this.detail?.isLonger(box.i) ? " jl-longer" : ""}"`));
    const [wide, high_] = this.down ? [high - low, to - from] : [to - from, high - low];
    if (!(box.host && (this.narrow || !this.down || this.looks.kinds[box.kind].lane === "wait")) && high_ >= this.font) {
      const upright = box.host && widthOf(box.short, this.font) > wide - 4; // spans are narrow, and mostly long
      const size = upright ? clamp((this.font * (high_ - 3)) / widthOf(box.short, this.font), 8, this.font) : this.font;
      const text = upright ? (widthOf(box.short, size) <= high_ - 2 ? box.short : "") : fit(box.host ? box.short : box.label, box.short, wide - 6, size);
      const [x, y] = this.down ? [(low + high) / 2, (from + (box.open ? Math.min(to, from + 26) : to)) / 2] : [(from + to) / 2, (low + high) / 2];
      const turned = upright ? ` transform="rotate(-90 ${px(x)} ${px(y)})"` : "";
      if (text) label = `<text x="${px(x)}" y="${px(y + this.font * 0.36)}"${turned} text-anchor="middle" aria-hidden="true" font-size="${px(size)}" class="jl-black">${esc(text)}</text>`;
    }
    const said = this.said(box);
    const tip = `<title>${esc(said)}</title>`, of = box.slot !== null ? ` data-slot="${box.slot}" data-rank="${box.rank}"` : "";
    if (box.host) return `<g${of}>${tip}${parts.join("")}${label}</g>`;
    const cell = `role="gridcell" id="${this.name}-${box.slot}-${box.rank}" aria-selected="false" aria-label="${esc(said)}"`;
    // Tip and text stand beside the cell: inside, a screen reader would read the call three times.
    return `<g role="presentation"${of}>${tip}<g ${cell}${of}>${parts.join("")}</g>${label}</g>`;
  }

  /** A box in words. @param {Box} box */
  said(box) {
    const how = box.failed ? ", failed" : box.open ? ", never completes" : "";
    return `${this.laneName(box.rank)}: ${box.label}${box.host ? "" : how}${box.bad ? ", meets what it should not" : ""}`;
  }

  notes() {
    const found = [];
    for (const note of this.layout.notes) {
      const from = this.along(note.begin) + 2, own = note.rank !== null && this.down;
      if (!this.inSight(from, this.along(note.end))) continue;
      const wide = Math.max(...note.lines.map((line) => widthOf(line, 11.5))) + 12;
      const [x, y] = this.down ? [own ? this.beside(note.rank, this.looks.lanes.stream[0]) : this.left + 4, from] : [from + 2, this.top + 8];
      found.push(`<g class="jl-note${note.bad ? " jl-bad" : ""}${note.whole !== note.text ? " jl-follows" : ""}" data-slot="${note.slot}"><rect x="${px(x)}" y="${px(y)}" width="${px(wide)}" height="${note.lines.length * LINE + 5}"/>` +
        note.lines.map((line, i) => `<text x="${px(x + 6)}" y="${px(y + 13 + i * LINE)}">${esc(line)}</text>`).join("") + `</g>`);
    }
    return found.join("");
  }

  caps() {
    const found = [];
    for (let rank = 0; rank < this.n; rank++) {
      const stream = this.looks.lanes.stream;
      if (!this.seen(rank)) {
        const [from, to] = [this.along(this.layout.begin), this.along(this.layout.end)];
        const [low, high] = [this.beside(rank, this.looks.lanes.host[0]), this.beside(rank, stream[1])];
        const [x, y] = this.down ? [(low + high) / 2, from + Math.min(40, (to - from) / 2)] : [from + 60, (low + high) / 2];
        found.push(this.rect(from, to, low, high, `class="jl-cover"`) + `<text x="${px(x)}" y="${px(y)}" text-anchor="middle" class="jl-name">covered</text>`);
        continue;
      }
      const lines = this.capLines[rank], wide = Math.max(...lines.map((line) => widthOf(line, 12))) + 14; // it is bold
      const at = this.capAt(rank), side = this.beside(rank, (stream[0] + stream[1]) / 2);
      const [x, y] = this.down ? [side - wide / 2, at] : [at, side - (lines.length * LINE) / 2];
      found.push(`<g class="${this.run.good[rank] ? "jl-cap" : "jl-cap jl-bad"}"><title>${esc(this.capText(rank))}</title><rect x="${px(x)}" y="${px(y)}" width="${px(wide)}" height="${lines.length * LINE + 5}"/>` +
        lines.map((line, i) => `<text x="${px(x + wide / 2)}" y="${px(y + 13 + i * LINE)}" text-anchor="middle">${esc(line)}</text>`).join("") + `</g>`);
    }
    return found.join("");
  }

  marked() {
    const boxes = this.layout.boxes.of(this.mark?.slot ?? null);
    if (!boxes.length) return "";
    const at = this.along(Math.min(...boxes.map((box) => box.begin))) - (this.down ? 4 : 2), text = this.mark.text ?? "";
    const wide = widthOf(text, 12) + 10, x = this.left + 2; // it is bold
    return this.down
      ? `<path d="M0 ${px(at)}H${px(this.across)}" class="jl-mark"/><rect x="${px(x)}" y="${px(at - 17)}" width="${px(wide)}" height="17" class="jl-markplate"/><text x="${px(x + 5)}" y="${px(at - 5)}" class="jl-marktext">${esc(text)}</text>`
      : `<path d="M${px(at)} 0V${px(this.height)}" class="jl-mark"/><rect x="${px(at)}" y="0" width="${px(wide)}" height="18" class="jl-markplate"/><text x="${px(at + 5)}" y="13" class="jl-marktext">${esc(text)}</text>`;
  }

  /** px along the axis from the first to the last edge of a slot's calls. @param {number} slot @returns {[number, number] | null} */
  extent(slot) {
    const boxes = this.layout.boxes.of(slot);
    return boxes.length ? [Math.min(...boxes.map((box) => this.along(box.begin))), Math.max(...boxes.map((box) => this.along(box.end)))] : null;
  }

  /** @param {number} slot @param {number} rank */
  picked(slot, rank) {
    const extent = this.extent(slot);
    if (!extent) return "";
    const [from, to] = [extent[0] - 3, extent[1] + 3];
    const box = this.layout.boxes.of(slot).find((one) => one.rank === rank);
    const own = box ? this.rect(...this.place(box), ...this.sides(box), `class="jl-pickedbox"`) : "";
    const low = this.down ? this.left - 2 : this.top, high = this.beside(this.n, 0);
    return this.rect(from, to, low, high - (this.down ? 1 : 0), `class="jl-pickedrow"`) + own;
  }
}
