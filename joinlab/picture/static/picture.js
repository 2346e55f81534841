// The picture of a first screen (picture/first_screen.py): lanes of calls, with time to the right or
// down. Of every drawing the geometry is kept, so that one position can pose it (play.js): `at` is a column
// and a fraction of it, null the picture at rest.

import { still, travel } from "./play.js";
import { find, findAll } from "./dom.js";
import {
  Lanes,
  clamp,
  ending,
  esc,
  fade,
  line,
  px,
  rect,
  pill,
  sign,
  tag,
  widthOf,
  word,
  words,
} from "./text.js";

// Milliseconds that a column takes in play.
function pace(one) {
  if (!one) return 1600;
  if (one.stack) return 500;
  if (one.focus) return 3000;
  return one.flag !== "met" ? 1900 : one.size === "slim" ? 750 : 1200;
}

/** The columns of a scene, before they have places. @param {RawRun} run */
export const columnsOf = ({ scene }) =>
  scene.columns.map((column, i) => ({
    ...column,
    i,
    focus: i === scene.focus,
    t: 0,
    w: 0,
    middle: 0,
  }));

/** Give the columns their places along time, as joinlab/picture/layout.py does; returns their length.
 * @param {Placed[]} columns @param {Looks} looks */
export function along(columns, looks, how, room) {
  const sizes = { ...looks.sizes[how] };
  if (how === "phone" && columns[0]?.boxes.length > 2) sizes.slim = 30; // a name has two lines
  const lay = () => {
    let t = 0;
    columns.forEach((one, i) => {
      const before = columns[i - 1],
        calm = one.size === "slim" && before?.size === "slim";
      if (before) t += one.far || before.far ? sizes.far : calm ? sizes.gap : sizes.wide;
      one.t = t;
      one.w = sizes[one.size];
      t += one.w;
    });
    return t;
  };
  let length = lay();
  for (const [size, least] of looks.gives) {
    const many = columns.filter((one) => one.size === size).length || columns.length;
    if (length <= room) continue;
    sizes[size] = Math.max(least, sizes[size] - (length - room) / many);
    length = lay();
  }
  return length;
}

export const FOOT = 48; // px below columns, for endings
const LONG = 4; // characters of a value that stand beside ≠; svg.py has it, too

export class Picture extends Lanes {
  /** The column that is shown at rest. @type {number | undefined} */
  rest;
  phone = "";
  width = 0;
  least = 0; // px of the height of columns
  alone = true;
  below = false; // another picture follows on the same axis
  before = 0; // px before the first call, if more than the names take
  covered = false;
  cover = ""; // what covered lanes say

  /** @param {LaneData} data @param {RawRun} run @param name of the view, for ids
   * @param {Partial<Picture>} how */
  constructor(data, run, name, how) {
    super();
    Object.assign(this, how);
    this.run = run;
    this.name = name;
    this.scene = run.scene;
    this.columns = this.covered ? [] : columnsOf(run);
    this.focus = run.scene.focus ?? -1;
    this.n = run.scene.names.length;
    const { n, turned, phone, width, alone } = this;
    this.behind = turned ? 0 : run.scene.behind; // px past the last call, for how each rank ended
    const few = n < 3 && (turned || alone),
      marked = run.scene.columns.some(({ clashes }) => clashes.length),
      apart = n < 5 ? 44 : n < 7 || marked ? 30 : 20,
      [two, more] = turned ? (phone ? [36, 16] : [72, 28]) : [68, apart],
      between = turned && n > 4 ? 10 : few ? two : more;
    if (turned) {
      this.t0 = phone ? 78 : 88;
      this.side = 64;
      this.thick = clamp((width - this.side - 12 - between * (n - 1)) / n, 24, 210);
      this.long = along(this.columns, data.looks, phone || "column", 1e9);
      this.height = Math.max(this.least, this.t0 + this.long + FOOT);
      this.scrub = 12;
    } else {
      this.t0 = this.before || run.scene.before;
      this.side = 44;
      this.thick = few ? 58 : n < 5 ? 50 : 40;
      this.long = along(this.columns, data.looks, "row", width - this.t0 - this.behind);
      this.scrub = this.side + n * this.thick + (n - 1) * between + 50;
      this.height = this.scrub - (this.below ? 20 : -20);
    }
    for (const one of this.columns)
      one.middle = this.t0 + one.t + (one.stack ? one.w - 8 : one.w) / 2;
    this.pitch = this.thick + between;
    this.between = between;
    this.path = this.covered ? [] : this.journey();
  }

  lane(lane) {
    return this.side + lane * this.pitch;
  }

  /** @param {Placed} one */
  box(one, lane, more = 0) {
    const grow = one.size === "big" && !this.turned ? 4 : 0;
    return this.area(this.t0 + one.t, this.lane(lane) - grow, one.w + more, this.thick + 2 * grow);
  }

  /** @param {Placed} one */
  edge(one, lane, towards, part) {
    return this.at(this.t0 + one.t + one.w * part, this.facing(lane, towards));
  }

  // px across time beside a lane, where it faces another.
  facing(lane, other) {
    return this.lane(lane) + (other > lane ? this.thick + 4 : -4);
  }

  svg() {
    const { columns, scene } = this,
      lanes = scene.names.map((_, lane) => lane),
      [x, y] = this.at(this.t0, this.side - 14),
      wide = this.t0 + this.long + this.behind;
    const drawn = this.covered
      ? lanes.map((lane) => this.covering(lane))
      : [
          columns.length ? "" : tag("text", { x, y, "font-size": 14 }, "No call was recorded."),
          this.ground(),
          lanes.map((lane) => this.threadOf(lane)),
          columns.map((one) => this.column(one)),
          scene.meant.map((pair) => this.join(pair)),
          lanes.map((lane) => this.end(lane)),
        ];
    const look = {
      class: "jl-scene",
      width: Math.max(this.width, this.turned ? 0 : wide),
      height: this.height,
      role: "img",
      "aria-label": esc(this.covered ? this.cover : scene.headline.map(([text]) => text).join("")),
    };
    return tag("svg", look, fade(this.name, this.turned), drawn, '<g class="jl-posed"></g>');
  }

  covering(lane) {
    const long = this.turned ? 260 : this.width - this.t0 - 20,
      q = this.area(this.t0, this.lane(lane), long, this.thick);
    return rect(q, { rx: 8, class: "jl-cover" }) + word(this.cover, q.cx, q.cy, 14);
  }

  ground() {
    const focus = this.columns[this.focus];
    if (!focus) return "";
    const [before, behind] = this.turned ? [30, 12] : [44, 18],
      high = this.n * this.pitch - this.between + before + behind,
      q = this.area(this.t0 + focus.t - 12, this.side - before, focus.w + 24, high);
    return rect(q, { class: "jl-ground", rx: 14 });
  }

  // The line under a rank's boxes: to the call that never ends, or on.
  threadOf(lane) {
    const last = this.columns.findLast((one) => one.boxes[lane]),
      middle = this.lane(lane) + this.thick / 2;
    if (!last) return "";
    const end = last.boxes[lane].open ? last.t : this.long + 6;
    return line(this.at(this.t0 + 20, middle), this.at(this.t0 + end, middle), "jl-line");
  }

  column(one) {
    const title = tag("title", {}, esc(one.title)),
      calls = () => one.boxes.map((box, lane) => this.call(one, box, lane)),
      inside = one.stack
        ? this.stack(one)
        : one.missing
          ? this.gap(one)
          : [calls(), this.clashes(one), this.numbered(one)];
    return tag("g", { class: "jl-col", "data-i": one.i }, title, this.links(one), inside);
  }

  number(t, said, loud) {
    const [x, y] = this.turned ? [62, t + 4] : [t, this.side - (loud ? 24 : 14)],
      anchor = this.turned ? "end" : "middle";
    return tag(
      "text",
      { class: loud ? "jl-num jl-loud" : "jl-num", x, y, "text-anchor": anchor },
      esc(said),
    );
  }

  // The number of a column, where there is room for it beside that of the one before.
  numbered({ i, t, numbers: n, size, middle, focus }) {
    const before = this.columns[i - 1],
      close = size === "slim" && before?.size === "slim",
      room = close ? t - before.t : Infinity;
    if (room <= (this.turned ? 13 : widthOf(n, 12) + 4)) return "";
    return this.number(middle, n && `${focus && !this.turned ? "call " : ""}${n}`, focus);
  }

  // px on the scrubber of what goes wrong, in this picture or one on the same axis.
  loud(scenes) {
    const loud = ({ focus, flag }) => focus || flag === "wrong" || flag === "apart";
    return this.columns
      .filter(({ i }) => scenes.some(({ columns }) => loud(columns[i])))
      .map(({ middle }) => middle - this.t0);
  }

  get first() {
    return this.columns.find((one) => !one.stack)?.i ?? 0;
  }

  get over() {
    return this.columns.length + 1;
  }

  // From where on the verdict is told.
  get verdict() {
    return this.focus < 0 ? this.columns.length - 0.5 : this.focus + 0.74;
  }

  here(at) {
    const last = this.columns.length - 1;
    if (at !== null) return clamp(Math.floor(at), 0, last);
    return this.rest ?? (this.focus < 0 ? last : this.focus);
  }

  advance(at, ms) {
    return at + ms / pace(this.columns[Math.floor(at)]);
  }

  thumb(at) {
    const here = this.here(at),
      one = this.columns[here];
    return at === null ? one.middle - this.t0 : one.t + clamp(at - here, 0, 1) * one.w;
  }

  seek(t) {
    const one = this.columns.find(({ t: begin, w }) => t < begin + w + 8) ?? this.columns.at(-1);
    return one.i + clamp((t - one.t) / one.w, 0.01, 0.99);
  }

  step(at, by) {
    return clamp(this.here(at) + by, 0, this.columns.length - 1) + 0.99;
  }

  // The last number of a column, by which an address names it; where calls have none, its row.
  numberOf({ numbers: n, until }) {
    const counted = this.columns.every((one) => one.numbers || one.missing);
    return counted ? parseInt(n.split("-").at(-1) || "-1") : until;
  }

  // A position as an address has it: a call's number and a fraction.
  addressOf(at) {
    const here = this.here(at);
    return Math.round((this.numberOf(this.columns[here]) + Math.min(0.99, at - here)) * 100) / 100;
  }

  positionOf(address) {
    const { columns } = this,
      one = columns.find((one) => this.numberOf(one) >= Math.floor(address)) ?? columns[0];
    return one.i + (one.stack ? 0.99 : address % 1);
  }

  // The last slot that has come.
  slotAt(at) {
    return this.columns[this.here(at)].until;
  }

  // Where a slot is shown.
  atSlot(wanted) {
    return (this.columns.findLast(({ slot }) => slot <= wanted)?.i ?? 0) + 0.99;
  }

  heard(at) {
    const here = this.here(at),
      { title, how } = this.columns[here];
    return { now: here, most: this.columns.length - 1, text: title + how };
  }

  told(at) {
    return [esc(this.columns[this.here(at)].title)];
  }

  // By lane, the line of the program at which it is; 0: unknown, or at its end.
  linesAt(at) {
    const here = this.here(at),
      { columns } = this;
    return this.scene.names.map((_, lane) => {
      const issued = columns.slice(0, here + 1).findLast(({ boxes }) => boxes[lane]),
        box = issued?.boxes[lane],
        on = issued?.i === here || box?.open;
      return on || columns.slice(here).some(({ boxes }) => boxes[lane]) ? (box?.line ?? 0) : 0;
    });
  }

  /** @param {HTMLElement} picture
   * @param glimpse the value alone, while all is shown */
  pose(picture, at, glimpse) {
    const rest = at === null,
      last = this.columns.length - 1,
      here = this.here(at),
      part = rest ? 1 : at - here;
    for (const { classList, dataset } of findAll(picture, ".jl-col, .jl-join, .jl-end")) {
      const i = Number(dataset.i ?? last),
        [join, end] = ["jl-join", "jl-end"].map((name) => classList.contains(name)),
        comes = end ? at < last + 0.85 : i > here || (join && i === here && part < 0.5);
      classList.toggle("jl-future", !rest && comes);
      classList.toggle("jl-now", !rest && !end && i === here && part < 0.74);
      classList.toggle("jl-cur", !end && !join && i === here);
    }
    find(picture, ".jl-ground")?.classList.toggle("jl-future", !rest && here < this.focus);
    const travelled = travel(this.path, rest ? glimpse : at);
    let html = "";
    if (travelled) {
      const { way, p, value } = travelled,
        plate = pill(value, p, Math.max(24, value.length * 9 + 12), 12, 14);
      html = `<path class="jl-thread" d="${way}"/>`;
      if (!still.matches) html += tag("g", { class: "jl-token" }, plate);
    }
    find(picture, ".jl-posed").innerHTML = html;
  }

  stack(one) {
    const wrong = one.flag === "wrong",
      colour = wrong ? "var(--bad)" : "var(--soft)",
      fits = wrong && this.thick >= 50 && !this.turned && widthOf(one.remark, 13) < one.w;
    return one.boxes.map((box, lane) => {
      if (!box) return "";
      const q = this.box(one, lane),
        w = q.w - 8;
      const sheets = [8, 4, 0].map((by) =>
        rect({ ...q, x: q.x + by, y: q.y - by, w }, { class: "jl-fill jl-pile", rx: 8 }),
      );
      return [
        sheets,
        words({ ...q, w, cx: q.cx - 4 }, box.stack || one.stack, colour, {
          sub: fits ? one.remark : "",
        }),
      ];
    });
  }

  gap(one) {
    const [lane, label] = one.missing,
      q = this.box(one, lane);
    if (this.turned) return this.dashed(q, `no ${label}`);
    return this.dashed(q, label) + this.number(q.cx, "missing", true);
  }

  dashed(q, text) {
    const named = words(q, text, "var(--bad)", { bold: true });
    return tag("g", { class: "jl-ghost" }, rect(q, { rx: 8 }), named);
  }

  /** @param {Placed} one @param {?Box} box */
  call(one, box, lane) {
    const big = one.size === "big",
      slim = one.size === "slim";
    if (!box)
      return one.absent.includes(lane) && !slim
        ? this.dashed(this.box(one, lane), one.lacks || "nobody")
        : "";
    const loud = one.focus && big && one.flag !== "met",
      extra = one.extra === lane,
      label = extra && this.turned ? `extra ${box.label}` : box.label;
    const more =
      box.open && !this.turned ? (loud ? 26 : one.i === this.columns.length - 1 ? 14 : 0) : 0;
    const q = this.box(one, lane, more),
      edge = extra ? " jl-extra" : loud || box.failed ? " jl-bad" : "",
      under = { ...q, w: q.w - (one.focus ? Math.max(more - 12, 0) : 0) }; // no wider than the ground
    const plate = box.open ? rect(under, { class: one.focus ? "jl-onground" : "jl-plain" }) : "",
      look = { class: `jl-fill${edge}`, rx: slim ? 6 : 8, fill: `var(--jl-k${box.kind})` },
      drawn = plate + rect(q, { ...look, mask: box.open && `url(#${this.name}-fade)` }),
      { below = "" } = box,
      told = [below, below.split(": ")[0]].find((said) => widthOf(said, 13) < q.w - more) ?? below,
      where = { ...q, w: q.w - more, cx: q.cx - more / 2 };
    const named = words(where, label, `var(--jl-i${box.kind})`, {
      size: big ? 17 : slim ? 12 : 14,
      bold: loud || extra,
      sub: extra && !this.turned ? "extra" : told,
      left: box.open && !loud && !this.turned,
    });
    return [drawn, named];
  }

  /** Thin and light, between calls that met as they should. @param {Placed} one */
  links(one) {
    if (one.flag !== "met" && one.extra === null) return [];
    const lanes = one.boxes.flatMap((box, lane) => (box ? [lane] : [])),
      behind = one.stack && !this.turned ? 17 : 9;
    return lanes.slice(1).map((lane, i) => {
      const ends = [this.lane(lanes[i]) + this.thick + 9, this.lane(lane) - behind],
        [from, to] = ends.map((s) => this.at(one.middle, s));
      return line(from, to, "jl-link");
    });
  }

  /** ≠ and the value that goes wrong, as an arrow for those at rest. @param {Placed} one */
  clashes(one) {
    const big = one.size === "big",
      reads = this.scene.readings[0]?.[0] === one.i && big,
      t = one.middle + (reads ? one.w * 0.2 : 0),
      small = clamp(this.between / 2 - 5, 8, 11),
      r = big && this.between > 40 ? (this.phone ? 14 : 17) : small;
    const signs = one.clashes.map(([a, b]) =>
      sign(this.at(t, (this.lane(a) + this.thick + this.lane(b)) / 2), r),
    );
    if (!reads) return signs;
    const [, to, of, value] = this.scene.readings[0],
      from = this.t0 + one.t + one.w * 0.3,
      begin = this.facing(of, to),
      towards = this.facing(to, of),
      way = Math.sign(towards - begin),
      tip = towards - way * 2;
    // A place beside the arrow.
    const by = (t, s) => this.at(from + t, s).map(px),
      middle = (begin + towards) / 2,
      [x, y] = this.turned ? by(-10, middle) : by(8 + value.length * 5, middle + 6);
    const said =
      value.length > LONG
        ? "" // the box says what it reads
        : tag("text", { x, y, "text-anchor": "middle", "font-size": 17 }, esc(value));
    const wings = [6, -6].map((t) => by(t, tip - way * 9));
    const arrow =
      `<path class="jl-dots" d="M${by(0, begin)}L${by(0, tip)}"/>` +
      `<path d="M${wings[0]}L${by(0, tip)}L${wings[1]}"/>`;
    return [signs, tag("g", { class: "jl-arrow" }, arrow, said)];
  }

  join([i, lane, j, other]) {
    const [a, b] = [this.columns[i], this.columns[j]],
      near = this.turned ? 0.5 : 0.18,
      [one, two] = a.t < b.t ? [1 - near, near] : [near, 1 - near],
      p = this.edge(a, lane, other, one),
      q = this.edge(b, other, lane, two),
      look = { class: "jl-join", "data-i": Math.max(i, j), d: `M${p.map(px)}L${q.map(px)}` };
    return tag("path", look, "<title>These were meant for each other</title>");
  }

  end(lane) {
    const { ends } = this.scene,
      { turned, thick } = this,
      middle = this.lane(lane) + thick / 2,
      own = ends[lane];
    // of lanes that end alike, the first tells
    const alike = this.n > 4 && `${own}` === `${ends[lane - 1]}`,
      at = this.at(this.t0 + this.long + (turned ? 34 : 22), middle);
    if (!turned) at[1] += own[3] ? -3 : 5;
    const room = turned ? Math.min(this.pitch - 4, thick + 20) : Infinity,
      said = ending(alike ? [own[0], "", own[2], ""] : own, at, turned, room);
    return tag("g", { class: "jl-end" }, said);
  }

  // The way of the wrong value.
  journey() {
    const path = [];
    let last = null;
    for (const [i, to, of, value, sent] of this.scene.readings) {
      const one = this.columns[i],
        from = this.edge(one, of, to, 0.3),
        there = this.edge(one, to, of, 0.3);
      path.push(
        last?.to === of
          ? { at: i + 0.3, p: from, value: last.value }
          : { at: i + 0.25, p: from, value: sent, jump: true },
        { at: i + 0.34, p: from, value: sent },
        { at: i + 0.74, p: there, value },
        { at: i + 1, p: there, value },
      );
      last = { i, to, of, value };
    }
    const next = last && this.columns.find((one) => one.i > last.i && one.boxes[last.to]);
    if (next)
      for (const at of [next.i + 0.3, this.columns.length + 1])
        path.push({ at, p: this.edge(next, last.to, last.of, 0.3), value: last.value });
    return path;
  }
}
