// The first screen's picture: lanes of calls, drawn from a scene (joinlab/picture/scene.py), with time to the right or
// down. Of every drawing the geometry is kept, so that one position can pose it (play.js).

import { esc, px, widthOf } from "./text.js";

/** The columns of a scene, before they have places. @param {RawRun} run @returns {Placed[]} */
export const columnsOf = ({ scene }) =>
  scene.columns.map((column, i) => ({ ...column, i, focus: i === scene.focus, t: 0, w: 0 }));

/** Give the columns their places along time, as joinlab/picture/places.py does; returns their length.
 * @param {Placed[]} columns @param {Looks} looks @param {"row" | "column" | "phone"} how @param {number} room */
export function along(columns, looks, how, room) {
  const sizes = { ...looks.sizes[how] };
  const lay = () => {
    let t = 0;
    columns.forEach((one, i) => {
      const before = columns[i - 1];
      if (before) t += one.focus || before.focus ? sizes.far : one.size === "slim" && before.size === "slim" ? sizes.gap : sizes.wide;
      one.t = t;
      one.w = sizes[one.size];
      t += one.w;
    });
    return t;
  };
  let length = lay();
  for (const [size, least] of looks.gives) {
    const many = columns.filter((one) => one.size === size).length;
    if (length <= room || !many) continue;
    sizes[size] = Math.max(least, sizes[size] - (length - room) / many);
    length = lay();
  }
  return length;
}

const LONG = 4; // characters of a value that stand beside ≠; svg.py has it, too

export class Scene {
  /** @param {LaneData} data @param {RawRun} run @param {string} name of the view, for ids
   * @param {{ turned: boolean, phone: boolean, width: number, covered: number[], least: number }} how `least`: of the height of columns */
  constructor(data, run, name, { turned, phone, width, covered, least }) {
    this.data = data;
    this.run = run;
    this.name = name;
    this.turned = turned;
    this.phone = phone;
    this.width = width;
    this.behind = turned ? 0 : run.scene.behind; // px past the last call, for how each rank ended
    this.scene = run.scene;
    this.covered = new Set(covered);
    this.columns = covered.length ? [] : columnsOf(run);
    this.n = run.scene.names.length;
    const few = this.n < 3, between = turned ? (phone ? 36 : few ? 72 : 28) : few ? 68 : this.n < 5 ? 44 : 30;
    if (turned) {
      this.t0 = phone ? 78 : 88;
      this.side = 64;
      this.thick = Math.max(24, Math.min(210, (width - this.side - 12 - between * (this.n - 1)) / this.n));
      this.length = along(this.columns, data.looks, phone ? "phone" : "column", 1e9);
      this.height = Math.max(least, this.t0 + this.length + 64);
      this.scrub = 19;
    } else {
      this.t0 = width < 1000 ? 190 : 214;
      this.side = 44;
      this.thick = few ? 58 : this.n < 5 ? 50 : 40;
      this.length = along(this.columns, data.looks, "row", width - this.t0 - this.behind);
      this.scrub = this.side + this.n * this.thick + (this.n - 1) * between + 50;
      this.height = this.scrub + 20;
    }
    this.pitch = this.thick + between;
    this.between = between;
    this.long = this.t0 + this.length + this.behind;
    this.path = this.journey();
  }

  /** Where a lane begins, across time. @param {number} lane */
  lane(lane) { return this.side + lane * this.pitch; }

  /** x and y of a place along and across time. @param {number} t @param {number} s @returns {[number, number]} */
  at(t, s) { return this.turned ? [s, t] : [t, s]; }

  /** @param {Placed} one */
  centre(one) { return this.t0 + one.t + (one.stack ? (one.w - 8) / 2 : one.w / 2); }

  /** The rectangle of a column in a lane; the big ones stand out. @param {Placed} one @param {number} lane @param {number} more */
  box(one, lane, more = 0) {
    const grow = one.size === "big" && !this.turned ? 4 : 0;
    const [x, y] = this.at(this.t0 + one.t, this.lane(lane) - grow), [w, h] = this.at(one.w + more, this.thick + 2 * grow);
    return { x, y, w, h, cx: x + w / 2, cy: y + h / 2 };
  }

  /** A point on the edge of a box that faces another lane. @param {Placed} one @param {number} lane @param {number} towards @param {number} part */
  edge(one, lane, towards, part = 0.5) {
    return this.at(this.t0 + one.t + one.w * part, this.lane(lane) + (towards > lane ? this.thick + 4 : -4));
  }

  /** @param {number} kind */
  fill(kind) { return `var(--jl-k${kind})`; }

  /** A label in a box, in one or two lines; nothing where it would have to be cut or under 11 px: pointing at it tells.
   * @param {Rect} b @param {string} text @param {string} colour
   * @param {{ size?: number, bold?: boolean, sub?: string, left?: boolean }} how */
  words(b, text, colour, { size = 14, bold = false, sub = "", left = false } = {}) {
    const room = b.w - (left ? 20 : 10), wide = (/** @type {string} */ said) => widthOf(said, size) * (bold ? 1.08 : 1.02);
    let lines = [text];
    if (wide(text) > room && text.includes(" ") && b.h > 36) {
      const all = text.split(" "), cut = all.length > 2 && wide(`${all[0]} ${all[1]}`) < room ? 2 : 1;
      lines = [all.slice(0, cut).join(" "), all.slice(cut).join(" ")];
    }
    const most = Math.max(...lines.map(wide)), fits = Math.min(size, (size * room) / most), step = fits * 1.18;
    if (fits < 11) return "";
    const y = b.cy + fits * 0.35 - ((lines.length - 1) * step) / 2 - (sub ? 9 : 0), x = left ? b.x + 12 : b.cx;
    const look = `text-anchor="${left ? "start" : "middle"}" style="fill:${colour}"`;
    return lines.map((line, i) =>
      `<text x="${px(x)}" y="${px(y + i * step)}" font-size="${px(fits)}" font-weight="${bold ? 700 : 500}" ${look}>${esc(line)}</text>`).join("") +
      (sub ? `<text class="jl-sub" x="${px(x)}" y="${px(y + (lines.length - 1) * step + 20)}" font-size="13" ${look}>${esc(sub)}</text>` : "");
  }

  /** ≠ between two lanes. @param {[number, number]} at @param {boolean} big */
  sign([x, y], big) {
    const r = big ? (this.phone ? 14 : 17) : Math.min(11, this.between / 2 - 3), w = big ? 2.5 : 1.8;
    return `<g class="jl-ne"><circle cx="${px(x)}" cy="${px(y)}" r="${r}" stroke-width="${w}"/><path d="M${px(x - r * 0.42)} ${px(y - r * 0.2)}h${px(r * 0.84)}` +
      `M${px(x - r * 0.42)} ${px(y + r * 0.2)}h${px(r * 0.84)}M${px(x + r * 0.26)} ${px(y - r * 0.55)}L${px(x - r * 0.26)} ${px(y + r * 0.55)}" stroke-width="${w}"/></g>`;
  }

  svg() {
    const { turned, name, columns, n } = this;
    const fade = `<defs><linearGradient id="${name}-f" ${turned ? 'x2="0" y2="1"' : ""}><stop offset="0" stop-color="#fff"/>` +
      `<stop offset=".55" stop-color="#fff" stop-opacity=".8"/><stop offset="1" stop-color="#fff" stop-opacity="0"/></linearGradient>` +
      `<mask id="${name}-fade" maskContentUnits="objectBoundingBox"><rect x="-.05" y="-.1" width="1.05" height="1.2" fill="url(#${name}-f)"/></mask></defs>`;
    const lanes = Array.from({ length: n }, (_, lane) => lane);
    const drawn = this.covered.size ? lanes.map((lane) => this.cover(lane)).join("")
      : this.ground() + lanes.map((lane) => this.threadOf(lane)).join("") + columns.map((one) => this.column(one)).join("") +
        this.scene.meant.map((pair) => this.join(pair)).join("") + lanes.map((lane) => this.end(lane)).join("");
    const [x, y] = this.at(this.t0, this.side - 14), none = this.covered.size || columns.length ? ""
      : `<text x="${x}" y="${y}" font-size="14">No call was recorded.</text>`;
    return `<svg class="jl-scene" width="${px(Math.max(this.width, turned ? 0 : this.long))}" height="${px(this.height)}" role="img" aria-label="${esc(this.said())}">${fade}${drawn}${none}` +
      `<path class="jl-thread" fill="none"/><g class="jl-token" visibility="hidden"><rect rx="12" height="24" y="-12"/><text text-anchor="middle" y="5" font-size="14"></text></g></svg>`;
  }

  /** What stands here, for who does not see it. */
  said() {
    const focus = this.columns.find((one) => one.focus);
    const all = this.scene.names;
    if (this.covered.size) return `${all.join(", ")}: covered.`;
    if (!focus) return `${all.join(", ")}: every call met its partner.`;
    return `Call ${focus.n}: ${focus.boxes.map((box, lane) => `${all[lane]}: ${focus.missing?.[0] === lane ? `no ${focus.missing[1]}` : box?.label ?? "nothing"}`).join("; ")}.`;
  }

  /** @param {number} lane */
  cover(lane) {
    const [x, y] = this.at(this.t0, this.lane(lane)), [w, h] = this.at(this.turned ? 260 : this.width - this.t0 - 20, this.thick);
    return `<rect x="${px(x)}" y="${px(y)}" width="${px(w)}" height="${px(h)}" rx="8" class="jl-cover"/><text x="${px(x + w / 2)}" y="${px(y + h / 2 + 5)}" text-anchor="middle" font-size="14">covered</text>`;
  }

  /** The one loud place. */
  ground() {
    const focus = this.columns.find((one) => one.focus);
    if (!focus) return "";
    const before = this.turned ? 30 : 44, behind = this.turned ? 12 : 18;
    const [x, y] = this.at(this.t0 + focus.t - 12, this.side - before);
    const [w, h] = this.at(focus.w + 24, this.lane(this.n - 1) + this.thick + behind - this.side + before);
    return `<rect class="jl-ground" x="${px(x)}" y="${px(y)}" width="${px(w)}" height="${px(h)}" rx="14"/>`;
  }

  /** The line under a rank's boxes: to the call that never ends, or on. @param {number} lane */
  threadOf(lane) {
    const of = this.columns.filter((one) => one.boxes[lane]), last = of.at(-1);
    if (!last) return "";
    const [x1, y1] = this.at(this.t0 + 20, this.lane(lane) + this.thick / 2);
    const [x2, y2] = this.at(this.t0 + (last.boxes[lane].open ? last.t : this.length + 6), this.lane(lane) + this.thick / 2);
    return `<line class="jl-line" x1="${px(x1)}" y1="${px(y1)}" x2="${px(x2)}" y2="${px(y2)}"/>`;
  }

  /** @param {Placed} one */
  column(one) {
    const inside = one.stack ? this.stack(one) : one.missing ? this.gap(one) : one.boxes.map((box, lane) => this.call(one, box, lane)).join("") + this.between_(one);
    const [nx, ny] = this.turned ? [58, this.centre(one) + 4] : [this.centre(one), this.side - (one.focus ? 24 : 14)];
    const number = one.stack || one.missing || !this.numbered(one) ? "" :
      `<text class="jl-num${one.focus ? " jl-loud" : ""}" x="${px(nx)}" y="${px(ny)}" text-anchor="${this.turned ? "end" : "middle"}">${one.focus && !this.turned ? "call " : ""}${esc(one.n)}</text>`;
    return `<g class="jl-col" data-i="${one.i}"><title>${esc(this.titleOf(one))}</title>${this.links(one)}${inside}${number}</g>`;
  }

  /** Whether there is room for the number of a call beside that of the one before. @param {Placed} one */
  numbered(one) {
    const before = this.columns[one.i - 1];
    return one.size !== "slim" || before?.size !== "slim" || one.t - before.t > (this.turned ? 13 : widthOf(one.n, 12) + 4);
  }

  /** What a column says when one points at it. @param {Placed} one */
  titleOf(one) {
    if (one.missing) return `${this.scene.names[one.missing[0]]} never issued ${one.missing[1]}`;
    const labels = [...new Set(one.boxes.filter(Boolean).map((box) => box.label))].join(" · ");
    if (one.stack) return `calls ${one.n}: ${labels}, ${one.said}`;
    return `call ${one.n}: ${labels}`;
  }

  /** @param {Placed} one */
  stack(one) {
    return one.boxes.map((box, lane) => {
      if (!box) return "";
      const q = this.box(one, lane), rect = (/** @type {number} */ by) =>
        `<rect class="jl-fill jl-pile" x="${px(q.x + by)}" y="${px(q.y - by)}" width="${px(q.w - 8)}" height="${px(q.h)}" rx="8"/>`;
      return [8, 4, 0].map(rect).join("") + this.words({ ...q, w: q.w - 8, cx: q.cx - 4 }, one.stack, one.flag === "wrong" ? "var(--bad)" : "var(--soft)",
        { sub: one.flag === "wrong" && this.thick >= 50 && !this.turned ? one.said : "" });
    }).join("");
  }

  /** A call that a rank never issued. @param {Placed} one */
  gap(one) {
    const [lane, label] = one.missing, q = this.box(one, lane);
    return this.dashed(q, this.turned ? `no ${label}` : label) +
      (this.turned ? "" : `<text class="jl-num jl-loud" x="${px(q.cx)}" y="${px(this.side - 24)}" text-anchor="middle">missing</text>`);
  }

  /** @param {Rect} q @param {string} text */
  dashed(q, text) {
    return `<g class="jl-ghost"><rect x="${px(q.x)}" y="${px(q.y)}" width="${px(q.w)}" height="${px(q.h)}" rx="8"/>${this.words(q, text, "var(--bad)", { bold: true })}</g>`;
  }

  /** @param {Placed} one @param {Box | null} box @param {number} lane */
  call(one, box, lane) {
    if (!box) return one.absent.includes(lane) && one.size !== "slim" ? this.dashed(this.box(one, lane), "nobody") : "";
    const loud = one.focus && one.size === "big" && one.flag !== "met", extra = one.extra === lane;
    const more = box.open && !this.turned ? (loud ? 26 : one.i === this.columns.length - 1 ? 14 : 0) : 0, q = this.box(one, lane, more);
    const reading = this.reading(one.i);
    const sub = reading && one.size === "big"
      ? reading.to === lane ? `hears ${reading.value}${reading.taken && `: ${reading.taken}`}` : reading.of === lane ? `sends ${reading.sent}` : ""
      : one.size === "big" && box.open ? "never ends" : one.size === "big" && box.failed ? "fails" : extra ? "extra" : "";
    const plate = box.open ? `<rect x="${px(q.x)}" y="${px(q.y)}" width="${px(q.w)}" height="${px(q.h)}" class="${one.focus ? "jl-onground" : "jl-plain"}"/>` : "";
    const edge = extra ? " jl-extra" : loud || box.failed ? " jl-bad" : "";
    return plate + `<rect class="jl-fill${edge}" x="${px(q.x)}" y="${px(q.y)}" width="${px(q.w)}" height="${px(q.h)}" rx="${one.size === "slim" ? 6 : 8}" fill="${this.fill(box.kind)}" ${box.open ? `mask="url(#${this.name}-fade)"` : ""}/>` +
      (one.size === "slim" ? "" : this.words({ ...q, cx: q.cx - more / 2 }, box.label, `var(--jl-i${box.kind})`,
        { size: one.size === "big" ? 17 : 14, bold: loud || extra, sub, left: box.open && !loud && !this.turned }));
  }

  /** Thin and light, between calls that met as they should. @param {Placed} one */
  links(one) {
    if (one.flag !== "met" && one.extra === null) return "";
    const with_ = one.boxes.flatMap((box, lane) => (box ? [lane] : []));
    return with_.slice(1).map((lane, i) => {
      const t = this.centre(one), behind = one.stack && !this.turned ? 17 : 9;
      const [x1, y1] = this.at(t, this.lane(with_[i]) + this.thick + 9), [x2, y2] = this.at(t, this.lane(lane) - behind);
      return `<line class="jl-link" x1="${px(x1)}" y1="${px(y1)}" x2="${px(x2)}" y2="${px(y2)}"/>`;
    }).join("");
  }

  /** ≠ and the value that goes wrong, as an arrow for those at rest. @param {Placed} one */
  between_(one) {
    const first = this.scene.readings[0], reads = first && first[0] === one.i && one.size === "big";
    const t = this.centre(one) + (reads ? one.w * 0.2 : 0), large = one.size === "big" && this.between > 40;
    const signs = one.clashes.map(([a, b]) =>
      this.sign(this.at(t, (this.lane(a) + this.thick + this.lane(b)) / 2), large)).join("");
    if (!reads) return signs;
    const { to, of, value } = this.reading(one.i), [p, q] = [this.edge(one, of, to, 0.3), this.edge(one, to, of, 0.3)];
    const [dx, dy] = [Math.sign(q[0] - p[0]), Math.sign(q[1] - p[1])], tip = [q[0] - dx * 2, q[1] - dy * 2];
    const wing = (/** @type {number} */ s) => `${px(tip[0] - dx * 9 + s * dy * 6)},${px(tip[1] - dy * 9 + s * dx * 6)}`;
    const [x, y] = this.turned ? [(p[0] + q[0]) / 2, p[1] - 10] : [p[0] + 8 + value.length * 5, (p[1] + q[1]) / 2 + 6];
    const said = value.length > LONG ? "" : // the box says what it hears
      `<text x="${px(x)}" y="${px(y)}" text-anchor="middle" font-size="17">${esc(value)}</text>`;
    return signs + `<g class="jl-arrow"><path class="jl-dots" d="M${p.map(px)}L${tip.map(px)}"/><path d="M${wing(1)}L${tip.map(px)}L${wing(-1)}"/>${said}</g>`;
  }

  /** What should have met. @param {[number, number, number, number]} pair */
  join([i, lane, j, other]) {
    const [a, b] = [this.columns[i], this.columns[j]], fore = a.t < b.t;
    const p = this.edge(a, lane, other, fore ? 0.82 : 0.18), q = this.edge(b, other, lane, fore ? 0.18 : 0.82);
    return `<path class="jl-join" data-i="${Math.max(i, j)}" d="M${p.map(px)}L${q.map(px)}"><title>These were meant for each other</title></path>`;
  }

  /** @param {number} lane */
  end(lane) {
    const [sign, word, tone, more] = this.scene.ends[lane];
    const [x, y] = this.turned ? [this.lane(lane) + this.thick / 2, this.t0 + this.length + 34]
      : [this.t0 + this.length + 22, this.lane(lane) + this.thick / 2 + 5 - (more ? 8 : 0)];
    const look = `x="${px(x)}" text-anchor="${this.turned ? "middle" : "start"}" class="jl-tone-${tone}"`;
    return `<g class="jl-end"><text ${look} y="${px(y)}" font-size="15" font-weight="700">${esc(`${sign} ${word}`)}${word.includes("wait") ? '<tspan class="jl-breathe">…</tspan>' : ""}</text>` +
      (more ? `<text ${look} y="${px(y + 19)}" font-size="12.5">${esc(more)}</text>` : "") + `</g>`;
  }

  /** @param {number} i of a column @returns {{ to: number, of: number, value: string, sent: string, taken: string } | null} */
  reading(i) {
    const found = this.scene.readings.find(([at]) => at === i);
    return found ? { to: found[1], of: found[2], value: found[3], sent: found[4], taken: found[5] } : null;
  }

  /** The way of the wrong value: points with the position at which each is reached. @returns {Stop[]} */
  journey() {
    /** @type {Stop[]} */
    const path = [];
    let last = null;
    if (this.covered.size) return path;
    for (const [i, to, of, value, sent] of this.scene.readings) {
      const one = this.columns[i], from = this.edge(one, of, to, 0.3), there = this.edge(one, to, of, 0.3);
      path.push(last?.to === of ? { at: i + 0.3, p: from, value: last.value } : { at: i + 0.25, p: from, value: sent, jump: true });
      path.push({ at: i + 0.34, p: from, value: sent }, { at: i + 0.74, p: there, value }, { at: i + 1, p: there, value });
      last = { i, to, of, value };
    }
    const next = last && this.columns.find((one) => one.i > last.i && one.boxes[last.to]);
    if (next) for (const at of [next.i + 0.3, this.columns.length + 1]) path.push({ at, p: this.edge(next, last.to, last.of, 0.3), value: last.value });
    return path;
  }
}
