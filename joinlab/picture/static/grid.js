// Every call of a run in its lane, on the clock or one by one. What is in sight is drawn; neighbours too
// small are one piece, and what went wrong always has its colour. On the clock a lane has two tracks: the
// network's, and its program's, from which each call drops into the network's queue. Units of the axis are
// ns, or rows.

import {
  BAD,
  OPEN,
  QUEUED,
  WRONG,
  callsOf,
  inputsOf,
  laneOf,
  slotsOf,
  touching,
} from "./columns.js";
import { element, find } from "./dom.js";
import {
  Lanes,
  clamp,
  ending,
  esc,
  fade,
  pill,
  px,
  rect,
  sign,
  tag,
  widthOf,
  word,
  words,
} from "./text.js";
import { linesOf, stateOf } from "./details.js";

const { abs, ceil, floor, max, min, round } = Math;

const LEAST = 3; // px: what is shorter is drawn together
// What is drawn together, and of which no kind takes most.
export const MIXED = "color-mix(in srgb, var(--soft) 35%, var(--paper))";
const DEEPEST = 500; // ns across, at the deepest zoom
const CELLS = 600; // of the strip of the whole run
const MOST = 400; // names and ribbons of a lane
const CROWDED = 10_000; // calls of a lane, between which no ribbon could be seen
const PLAY = 9000; // ms that a run takes in play

// px across time of a lane, by how many there are at most: its inputs, its calls, its program, and what is
// left for ribbons.
const TRACKS = [
  { most: 2, band: 20, thick: 46, host: 17, gap: 64 },
  { most: 4, band: 18, thick: 34, host: 16, gap: 30 },
  { most: Infinity, band: 0, thick: 24, host: 14, gap: 18 },
];

let scrolled = -Infinity; // when the page last moved: a wheel that scrolls it does not begin to zoom
addEventListener("scroll", () => (scrolled = performance.now()), { capture: true, passive: true });

export class Grid extends Lanes {
  /** @param {import("./first.js").First} view */
  constructor(view) {
    super();
    this.view = view;
    this.name = `${view.name}-grid`;
    this.from = this.span = this.width = 0;
    this.all = true; // whether the whole axis is in sight
    this.band = this.thick = this.host = this.gap = 0; // px across time, as in TRACKS
    this.rows = []; // of each lane drawn its number in the columns, and px across time of what it shows
    this.whole = []; // what the strip shows: a run, and an axis
    this.strip = element("div.jl-strip");
    this.chart = element("div.jl-chart");
    this.listen();
  }

  listen() {
    const { chart, strip } = this;
    const wheel = (event) => {
      const pinch = event.ctrlKey || event.metaKey,
        aside = abs(event.deltaX) > abs(event.deltaY),
        whole = this.all && (aside || event.deltaY > 0),
        scrolls = this.view.inside || performance.now() - scrolled < 300;
      if (whole || (!pinch && !aside && scrolls)) return;
      event.preventDefault();
      if (aside && !pinch) this.go(this.from + event.deltaX / this.per);
      else this.zoom(event.deltaY > 0 ? 1.25 : 0.8, this.unitAt(event));
    };
    chart.addEventListener("wheel", wheel, { passive: false });
    // Each pointer that is down: what it holds, and where it is, px.
    const held = new Map();
    let moved = false;
    chart.onpointerdown = (event) => {
      moved &&= held.size > 0;
      held.set(event.pointerId, [this.unitAt(event), this.placeOf(event)[0]]);
      chart.setPointerCapture(event.pointerId);
    };
    chart.onpointermove = (event) => {
      const hold = held.get(event.pointerId),
        [at] = this.placeOf(event);
      if (!hold) return this.view.point(clamp(this.unitAt(event), 0, this.extent));
      if (!moved && abs(at - hold[1]) < 5) return;
      moved = true;
      hold[1] = at;
      const [one, other] = held.values();
      if (other) this.span = ((other[0] - one[0]) * this.long) / (other[1] - one[1]) || this.span;
      this.go(one[0] - (one[1] - this.t0) / this.per);
    };
    chart.onlostpointercapture = (event) => held.delete(event.pointerId);
    chart.onclick = (event) => {
      if (moved) return;
      if (event.detail === 2) this.fit();
      else this.pick(event);
    };
    chart.onpointerleave = () => this.view.point(null);
    strip.onclick = (event) => {
      const box = strip.getBoundingClientRect();
      this.go(((event.clientX - box.left) / box.width) * this.extent - this.span / 2);
    };
  }

  get run() {
    return this.view.run;
  }

  get scene() {
    return this.run.scene;
  }

  get calls() {
    return callsOf(this.run);
  }

  codeOf(i) {
    return this.run.columns.codes[this.calls.code[i]];
  }

  get clock() {
    return this.view.axis === "time";
  }

  get extent() {
    return max(this.clock ? this.run.columns.end : this.run.columns.rows, 1);
  }

  // px of a unit.
  get per() {
    return this.long / this.span;
  }

  spanOf(i) {
    const { begun, ended, slot } = this.calls;
    return this.clock ? [begun[i], ended[i]] : [slot[i], slot[i] + 0.92];
  }

  // Which calls of a lane can lie in a stretch of the axis: the first, and the one behind the last.
  within(lane, from, to = from) {
    const { starts, slot, bounds } = this.calls,
      [begin, behind] = [starts[lane], starts[lane + 1]];
    if (this.clock) return touching(bounds, begin, behind, from, to);
    return touching({ last: slot, first: slot }, begin, behind, from - 1, to);
  }

  // The same, of what its program did.
  during(lane, from, to = from) {
    const { hosts, hostBounds } = this.calls;
    return touching(hostBounds[lane], 0, hosts[lane].length, from, to);
  }

  get fills() {
    return [...this.view.data.looks.kinds.map((_, kind) => `var(--jl-k${kind})`), MIXED];
  }

  fit() {
    this.all = true;
    this.refit();
  }

  // Draw what was in sight, where the room for it, or the run, may be another.
  refit() {
    this.measure();
    if (this.all) this.span = this.extent;
    this.go(this.from);
  }

  // from: what stands at the left edge
  go(from) {
    this.span = clamp(this.span, this.least, this.extent);
    this.all = this.span >= this.extent;
    this.from = clamp(from, 0, this.extent - this.span);
    this.draw();
  }

  // The smallest piece that is worth looking at.
  get least() {
    return min(this.clock ? DEEPEST : 4, this.extent);
  }

  // around: stays where it is
  zoom(by, around = this.from + this.span / 2) {
    const part = (around - this.from) / this.span;
    this.span = clamp(this.span * by, this.least, this.extent);
    this.go(around - part * this.span);
  }

  // px along and across time
  placeOf({ clientX, clientY }) {
    const { left, top } = this.chart.getBoundingClientRect();
    return this.at(clientX - left, clientY - top);
  }

  unitAt(event) {
    return this.from + (this.placeOf(event)[0] - this.t0) / this.per;
  }

  measure() {
    const { clock, scene } = this,
      { turned, phone, before, beside: width } = this.view,
      { lanes } = this.run,
      n = lanes.length,
      tracks = TRACKS.find(({ most }) => n <= most),
      more = scene.ends.map(([, , , pending]) => widthOf(pending, 15) * 1.1 + 14);
    Object.assign(this, clock ? tracks : { ...tracks, band: 0, host: 0, gap: 24 });
    this.turned = turned;
    this.width = width;
    this.t0 = turned ? 88 : before || scene.before;
    this.side = turned ? 68 : 26;
    if (turned) {
      this.gap = n > 2 ? 12 : phone ? 26 : 60;
      this.band = n > 2 ? 0 : this.band && 18;
      const rest = this.band + this.host + this.gap + 8;
      this.thick = clamp((width - this.side + this.gap) / n - rest, 22, 150);
      this.long = phone ? 380 : 540;
    } else this.long = width - this.t0 - max(118, scene.behind, ...more);
    const { band, thick, host, gap, side } = this,
      space = host && 4;
    this.pitch = thick + band + host + gap + 2 * space;
    this.foot = side + n * this.pitch - gap; // px across, past the last lane
    this.scrub = turned ? 12 : this.foot + 50;
    this.rows = lanes.map((lane, at) => {
      const top = side + at * this.pitch,
        net = top + (band && band + space);
      if (!at || n !== 2) return { lane, band: top, net, host: net + thick + space };
      const calls = top + host + space; // of two lanes, the programs face each other
      return { lane, host: top, net: calls, band: calls + thick + space };
    });
  }

  lane(at) {
    return this.rows[at].net;
  }

  x(at) {
    return this.t0 + (at - this.from) * this.per;
  }

  // The same, but not far out of sight.
  near(at) {
    return clamp(this.x(at), this.t0 - 9, this.t0 + this.long + 9);
  }

  dot(t, s) {
    return this.at(t, s).map(px).join(" ");
  }

  draw() {
    const { clock, turned, foot, rows } = this,
      lanes = rows.map((row) => this.drawLane(row)),
      inside = clock ? [this.ground(), this.ribbons(), lanes, this.signs()] : lanes,
      height = turned ? this.t0 + this.long + 44 : foot + 74;
    this.chart.innerHTML = tag(
      "svg",
      { width: this.width, height, role: "img", "aria-label": "Every call" },
      this.definitions(height),
      this.ticks(),
      tag("g", { "clip-path": `url(#${this.name}-c)` }, inside),
      rows.map((row, at) => this.end(row, at)),
      '<g class="jl-posed"></g>',
    );
    this.chart.style.touchAction = turned && !this.all ? "none" : "pan-y";
    this.overview();
    this.view.pose(this.view.at);
  }

  definitions(height) {
    const { name, turned } = this,
      seen = this.area(this.t0 - 1, 0, this.long + 3, turned ? this.width : height);
    return (
      tag("clipPath", { id: `${name}-c` }, rect(seen, {})) +
      fade(name, turned) +
      `<pattern id="${name}-h" width="7" height="7" patternUnits="userSpaceOnUse" ` +
      'patternTransform="rotate(45)"><rect width="3" height="7" class="jl-hatch"/></pattern>'
    );
  }

  drawLane(row) {
    const { calls, clock, t0, long, thick } = this,
      { slot, begun, ended, flags, kind } = calls,
      { lane, net } = row,
      last = t0 + long,
      many = merged(t0, long, this.turned, this.fills),
      [first, behind] = this.within(lane, this.from, this.from + this.span),
      large = [];
    let wrong = -Infinity;
    for (let i = first; i < behind; i++) {
      // up to a million times: nothing is made for what is not drawn
      const t = this.x(clock ? begun[i] : slot[i]),
        to = clock ? this.x(ended[i]) : t + this.per * 0.92;
      if (to < t0 || t > last) continue;
      const odd = flags[i] & WRONG;
      if (!odd && to - t < LEAST) many.add(t, to, kind[i]);
      else if (!odd || t - wrong >= 1 || (flags[i] & QUEUED && large.length < MOST)) {
        large.push({ i, t, to });
        if (odd) wrong = t;
      }
    }
    const queued = ({ i }) => clock && flags[i] & QUEUED,
      queue = large.filter(queued).slice(0, 3),
      stands = large.filter((call) => !queued(call)),
      end = this.near(this.extent),
      n = queue.length,
      left = (t) => end - max(t, t0),
      held = left(stands.find(({ i }) => flags[i] & OPEN)?.t ?? t0),
      // none before it was issued, and half of the time of the call that holds them is its own
      rooms = queue.map(({ t }, place) => left(t) / (n - place)),
      pitch = min(70, held / 2 / n, ...rooms),
      room = n && n * pitch;
    const drawn = inRows(stands, clock).map(({ i, t, to, row, of }, at) => {
      const high = thick / of,
        stuck = clock && flags[i] & OPEN,
        from = max(t, t0 - 9),
        until = stuck && room ? end - room : min(to, last + 9),
        wide = max(until - from, LEAST),
        q = this.area(from, net + row * high, wide, high - Number(of > 1));
      return this.box(i, q, max(from, t0), stuck ? 16 : 12, at < MOST);
    });
    const waiting = queue.map(({ i }, place) => {
      const t = end - room + (place + 0.06) * pitch,
        q = this.area(t, net + thick * 0.14, pitch * 0.88, thick * 0.72);
      return this.box(i, q, 0, 12, true);
    });
    const pieces = many.paths(net, thick),
      bands = clock && this.band ? this.bands(row) : "",
      host = clock ? [this.drawHost(row), this.drops(row, large)] : "";
    return tag("g", { class: "jl-lane" }, bands, pieces, drawn, waiting, host);
  }

  // begin: px, of what is in sight; size: px of its name, if that fits
  box(i, q, begin, size, named) {
    const { calls, turned } = this,
      kind = calls.kind[i],
      { label } = this.codeOf(i),
      slot = calls.slot[i],
      chosen = slot === this.view.get("selected");
    const look = {
      class: `jl-fill${calls.flags[i] & WRONG ? " jl-bad" : ""}${chosen ? " jl-chosen" : ""}`,
      "data-slot": slot,
      rx: q.w > 12 ? 5 : 0,
      fill: `var(--jl-k${kind})`,
      mask: size === 16 && `url(#${this.name}-fade)`,
    };
    const drawn = rect(q, look, tag("title", {}, esc(this.titled(i)))),
      [left, right] = turned
        ? [q.x, q.x + q.w]
        : [max(q.x, begin), min(q.x + q.w, this.t0 + this.long)],
      room = { ...q, x: left, w: right - left, cx: (left + right) / 2 },
      how = { size: widthOf(label, size) + 10 < room.w ? size : 12, bold: size === 16 };
    return [drawn, named && room.w > 20 ? words(room, label, `var(--jl-i${kind})`, how) : ""];
  }

  drawHost({ lane, host }) {
    const { calls, t0, long, turned } = this,
      spans = calls.hosts[lane],
      i = calls.starts[lane],
      many = merged(t0, long, turned, ["var(--jl-host)", `url(#${this.name}-h)`]),
      [first, behind] = this.during(lane, this.from, this.from + this.span),
      issued = i < calls.starts[lane + 1] ? calls.begun[i] - calls.late[i] : Infinity,
      t = this.near(min(spans[0]?.from ?? Infinity, issued)),
      to = this.near(this.run.columns.over[lane]),
      whole = this.area(t, host, max(to - t, 0), this.host),
      drawn = [rect(whole, { class: "jl-runs", rx: 3 })],
      names = [];
    for (const { from, to, name, call } of spans.slice(first, behind)) {
      const [a, b] = [this.near(from), this.near(to)],
        waits = call >= 0 ? 1 : 0;
      if (b < t0 || a > t0 + long) continue;
      if (b - a < LEAST) {
        many.add(a, b, waits);
        continue;
      }
      const q = this.area(a, host, b - a, this.host),
        look = {
          class: waits ? "jl-waiting" : "jl-host",
          rx: 3,
          style: `fill:${many.fills[waits]}`,
        };
      drawn.push(rect(q, look, tag("title", {}, esc(name))));
      if (!turned && !waits && widthOf(name, 11) + 6 < b - a)
        names.push(word(name, q.cx, q.cy, 11, { class: "jl-halo" }));
    }
    return [drawn, many.paths(host, this.host), names];
  }

  // From where a program issues its calls into the network's queue.
  drops({ net, host }, large) {
    const { late } = this.calls,
      [from, to] = host > net ? [host, net + this.thick] : [host + this.host, net];
    if (!this.run.queues || large.length > MOST) return "";
    const d = large.map(
      ({ i, t }) => `M${this.dot(t - late[i] * this.per, from)}L${this.dot(t, to)}`,
    );
    return `<path class="jl-drop" d="${d.join("")}"/>`;
  }

  bands({ lane, band }) {
    const { starts, begun, kind } = this.calls,
      bands = inputsOf(this.calls, lane);
    const drawn = bands.map(({ from, to, input }) => {
      const [a, b] = [this.near(from), this.near(to) - 1];
      if (b - a < LEAST) return "";
      const q = this.area(a, band, b - a, this.band),
        said = [`input ${input}`, `${input}`].find((text) => widthOf(text, 12) + 4 < q.w) ?? "";
      return rect(q, { class: "jl-band", rx: 5 }) + word(said, q.cx, q.cy, 12);
    });
    const joins = this.view.data.looks.kinds.findIndex((kind) => kind.includes("ran out"));
    let i = starts[lane];
    while (i < starts[lane + 1] && (kind[i] !== joins || begun[i] < (bands.at(-1)?.to ?? 0))) i++;
    const t = i < starts[lane + 1] ? this.x(begun[i]) : -1; // join() begins to answer for the rank
    if (t < this.t0 || t + 80 > this.t0 + this.long || this.turned) return drawn;
    const look = { "text-anchor": "start", "font-weight": 700, style: `fill:var(--jl-i${joins})` };
    return [drawn, word("out of inputs", t + 3, band + this.band / 2, 12, look)];
  }

  // Between neighbouring lanes, from call to call of those that met: the slope is who came later.
  ribbons() {
    const { calls, rows, t0, long } = this,
      { slot, begun, ended, flags, kind } = calls;
    return rows.slice(1).flatMap((other, at) => {
      const { lane, net } = rows[at],
        there = slotsOf(calls, other.lane),
        begin = net + this.thick + 1,
        end = other.net - 1,
        middle = (begin + end) / 2,
        [first, behind] = this.within(lane, this.from, this.from + this.span),
        found = [];
      if (behind - first > CROWDED) return "";
      for (let i = first; i < behind && found.length < MOST; i++) {
        const j = there[slot[i]];
        if (j < 0 || (flags[i] | flags[j]) & OPEN) continue;
        const [a, b, c, d] = [begun[i], ended[i], begun[j], ended[j]].map((ns) => this.x(ns));
        if (max(b, d) < t0 || min(a, c) > t0 + long) continue;
        const thin = rows.length > 4 || (b - a < 1.5 && d - c < 1.5);
        if (thin && abs(a - c) < LEAST) continue; // it would tell nothing
        const edge = (t, s, to, until) =>
          `${this.dot(t, s)}C${this.dot(t, middle)} ${this.dot(to, middle)} ${this.dot(to, until)}`;
        const back = edge(max(d, c + 1.5), end, max(b, a + 1.5), begin);
        const look = {
          class: flags[i] & WRONG ? "jl-ribbon jl-crossed" : "jl-ribbon",
          d: `M${edge(a, begin, c, end)}L${back}z`,
          fill: `var(--jl-k${kind[i]})`,
        };
        found.push(tag("path", look));
      }
      return found;
    });
  }

  // The calls of a slot in the lanes drawn; -1: none.
  across(slot) {
    return this.rows.map(({ lane }) => slotsOf(this.calls, lane)[slot]);
  }

  /** When the lanes part, and until when: as long as a call stands there.
   * @returns {[number, number] | null} */
  get parting() {
    const { columns, focus } = this.scene,
      { over, end } = this.run.columns,
      column = focus === null ? null : columns[columns[focus].missing ? focus + 1 : focus],
      calls = column ? this.across(column.slot).filter((i) => i >= 0) : [];
    if (!calls.length) return null;
    const spans = calls.map((i) => this.spanOf(i)),
      hangs = this.clock && this.rows.some(({ lane }) => over[lane] >= end);
    return [
      min(...spans.map(([from]) => from)),
      hangs ? this.extent : max(...spans.map(([, to]) => to)),
    ];
  }

  ground() {
    if (!this.parting) return "";
    const [from, to] = this.parting.map((at) => this.x(at)),
      q = this.area(from - 5, this.side - 6, to - from + 16, this.foot - this.side + 12);
    return rect(q, { class: "jl-ground", rx: 12 });
  }

  // ≠ between calls of the story that do not belong together.
  signs() {
    const { columns, focus } = this.scene,
      { begun, ended } = this.calls;
    // px of the last, by the lane above.
    const last = [];
    return columns.flatMap((column, place) =>
      column.clashes.map(([a, b]) => {
        const calls = this.across(column.slot),
          [i, j] = [calls[a], calls[b]];
        if (!(i >= 0 && j >= 0)) return "";
        const to = min(ended[i], ended[j]),
          t = (this.near(max(begun[i], begun[j])) + this.near(to)) / 2,
          loud = place === focus,
          r = loud && this.gap > 40 ? 17 : clamp(this.gap / 2 - 3, 7, 10);
        if (t < this.t0 || t > this.t0 + this.long || (!loud && t - last[a] < 2 * r + 2)) return "";
        last[a] = t;
        const s = (this.lane(a) + this.lane(b) + this.thick) / 2,
          names = loud && this.gap > 12 ? this.clashing([i, j], t, s, r + 7) : "";
        if (names && !this.turned) last[a] += r + widthOf(this.codeOf(j).label, 13);
        return [sign(this.at(t, s), r), names];
      }),
    );
  }

  // The names of two calls on both sides of the ≠ between them, if one is too short for its own.
  // s: of the ≠; away: px from it
  clashing(calls, t, s, away) {
    const { begun, ended } = this.calls,
      short = (i) =>
        (ended[i] - begun[i]) * this.per <
        (this.turned ? 16 : widthOf(this.codeOf(i).label, 12) + 10);
    if (!calls.some(short)) return "";
    return calls.map((i, behind) => {
      const { label, kind } = this.codeOf(i),
        anchor = this.turned ? "middle" : behind ? "start" : "end",
        look = { class: "jl-clashing", "text-anchor": anchor, style: `fill:var(--jl-i${kind})` },
        [x, y] = this.at(behind ? t + away : t - away, s);
      return word(label, x, y, this.turned ? 11 : 13, look);
    });
  }

  // How a lane's ranks ended: where its program did, or behind what never ends.
  end({ lane, net, host }, at) {
    const { run, t0, long, turned } = this,
      middle = net + this.thick / 2,
      [mark, end, tone, more] = run.scene.ends[at],
      over = run.columns.over[lane],
      stands = turned || !this.clock || over >= run.columns.end,
      room = turned ? this.pitch : Infinity,
      behind = t0 + long;
    const text = (sign, said, t, s) =>
      ending(
        [sign, said, tone, turned ? more : ""],
        turned ? [s, t + 20] : [t + 9, s + 5],
        turned,
        room,
      );
    const left = mark === "✓" ? more : "", // by a program that is over, in its queue
      said = left || !more ? end : `${end} ${more}`;
    const told = stands
      ? text(mark, end, behind, middle)
      : text(mark, said, clamp(this.x(over), t0, behind), host + this.host / 2) +
        (left && text(left, "", behind, middle));
    return tag("g", { class: "jl-end" }, told);
  }

  // Draw a position: all that comes after the play head is veiled, and a line stands where one points.
  pose(_, head) {
    const { t0, long, side, foot } = this,
      at = this.view.pointed ?? head,
      last = t0 + long,
      t = at === null ? -1 : this.x(at),
      from = clamp(this.x(head), t0, last),
      hidden = this.area(from, side - 8, last - from + 140, foot - side + 16),
      said = this.moment(at),
      wide = widthOf(said, 11.5) + 14,
      middle = this.turned ? [32, t] : [clamp(t, t0 + wide / 2, this.width - wide / 2), foot + 15],
      seen = t >= t0 - 1 && t <= last + 1,
      path = `<path d="M${this.dot(t, side - 8)}L${this.dot(t, foot + 4)}"/>`;
    find(this.chart, ".jl-posed").innerHTML =
      (head === null ? "" : rect(hidden, { class: "jl-veil" })) +
      tag(
        "g",
        { class: "jl-cursor", visibility: seen ? "visible" : "hidden" },
        seen ? path + pill(said, middle, wide, 9, 11.5) : "",
      );
  }

  ticks() {
    const { run, clock, t0, long, turned, foot } = this,
      zero = clock ? run.zero : 1,
      [, unit, per] = clock ? unitOf(this.span) : [0, "row", 1],
      rough = ((this.span / per) * (turned ? 46 : 90)) / long,
      ten = 10 ** floor(Math.log10(rough)),
      step = max(
        [1, 2, 5, 10].map((k) => ten * k).find((size) => size >= rough),
        clock ? 0 : 1,
      ),
      found = [];
    for (let k = ceil((this.from + zero) / per / step); ; k++) {
      const t = this.x(k * step * per - zero + (clock ? 0 : 0.46)),
        said = Number((k * step).toPrecision(9)).toLocaleString("en"),
        [x, y] = turned ? [60, t + 4] : [t, foot + 20];
      if (t > t0 + long - 4) break;
      const look = { class: "jl-num", x, y, "text-anchor": turned ? "end" : "middle" };
      found.push(
        `<path class="jl-rule" d="M${this.dot(t, this.side - 8)}L${this.dot(t, foot + 5)}"/>`,
        tag("text", look, said),
      );
    }
    const how = clock ? run.scene.provenance : "",
      names = turned ? [how, unit] : [how ? `${unit}, ${how}` : unit];
    const axis = names.map((said, line) => {
      const [x, y] = turned ? [60, t0 - 22 + line * 13] : [t0 + long + 9, foot + 20];
      return tag("text", { class: "jl-num jl-unit", x, y, "text-anchor": turned && "end" }, said);
    });
    return [found, axis];
  }

  // The whole run as a strip, each piece in the colour of the kind that takes most of it.
  overview() {
    const { calls, run, extent, strip, clock } = this,
      { starts, flags, kind } = calls,
      tall = this.rows.length < 3 ? 8 : 5,
      height = this.rows.length * tall,
      { axis } = this.view,
      per = CELLS / extent;
    strip.hidden = this.turned;
    strip.style.cssText = `margin-left:${this.t0}px;width:${this.long}px`;
    if (this.whole[0] !== run || this.whole[1] !== axis) {
      this.whole = [run, axis];
      const rows = this.rows.map(({ lane }, at) => {
        const many = merged(0, CELLS, false, this.fills, 1),
          y = at * tall;
        let bad = "";
        for (let i = starts[lane]; i < starts[lane + 1]; i++) {
          if (clock && flags[i] & QUEUED) continue;
          const [from, to] = this.spanOf(i).map((place) => place * per);
          if (flags[i] & WRONG)
            bad += `M${px(from)} ${y}H${px(max(to, from + 2))}v${tall - 1}H${px(from)}z`;
          else many.add(from, to, kind[i]);
        }
        return [many.paths(y, tall - 1), `<path class="jl-alarm" d="${bad}"/>`];
      });
      const count = calls.wrong.reduce((sum, wrong) => sum + wrong, 0),
        [all, wrong] = [run.columns.rows, count].map((number) => number.toLocaleString("en"));
      const look = {
        viewBox: `0 0 ${CELLS} ${height}`,
        preserveAspectRatio: "none",
        width: "100%",
        height,
        role: "img",
        "aria-label": `The whole run: ${all} rows, ${wrong} of them wrong`,
      };
      strip.innerHTML = `${tag("svg", look, rows)}<i class="jl-window"></i>`;
    }
    const window = find(strip, ".jl-window");
    window.style.left = `${px((this.from / extent) * 100)}%`;
    window.style.width = `${px(max((this.span / extent) * 100, 0.4))}%`;
    window.hidden = this.all;
  }

  titled(i) {
    const { calls, run } = this,
      { label } = this.codeOf(i),
      end = stateOf(run, i),
      meets = calls.flags[i] & BAD ? ", meets what it should not" : "";
    return `${run.names[laneOf(calls, i)]}: ${label}${end && `, ${end}`}${meets}`;
  }

  moment(at) {
    if (!this.clock) return `row ${min(floor(at) + 1, this.extent)} of ${this.extent}`;
    const [, unit, per] = unitOf(this.span),
      digits = clamp(ceil(Math.log10((per * 60) / this.span)) + 1, 0, 3);
    return `${((at + this.run.zero) / per).toFixed(digits)} ${unit}`;
  }

  // What each lane's rank does, as HTML.
  told(at) {
    return this.rows.map((_, i) => {
      const state = this.state(i, at),
        what = this.clock ? this.doing(i, state) : this.noun(state.call);
      return `<b>${esc(this.scene.short[i])}</b> ${what}`;
    });
  }

  noun(i) {
    if (i < 0) return "no call here";
    const { label, kind, lines } = this.codeOf(i),
      line = linesOf(this.run, lines)[0]?.line;
    return `<b style="color:var(--jl-i${kind})">${esc(label)}</b>${line ? `, line ${line}` : ""}`;
  }

  // The call at which a lane is, or -1; on the clock, what its program does, and for which call it waits,
  // of several for what it called last. i: of the lanes drawn
  state(i, at) {
    const { lane } = this.rows[i],
      place = min(at ?? this.extent, this.extent * 0.999);
    if (!this.clock) return { place, call: slotsOf(this.calls, lane)[floor(place)] };
    const spans = this.calls.hosts[lane].slice(...this.during(lane, place)),
      here = spans.filter(({ from, to }) => from <= place && place < to),
      wait = here.findLast(({ call }) => call >= 0);
    return { place, call: wait?.call ?? -1, wait, work: here.find(({ call }) => call < 0) };
  }

  // at: of the lanes drawn
  doing(at, { place: ns, wait = null, work = null }) {
    const { calls, run } = this,
      { lane } = this.rows[at],
      s = run.scene.ranks[at].length > 1 ? "" : "s",
      { flags, begun, ended, slot } = calls,
      [first, behind] = this.within(lane, ns);
    let busy = -1;
    for (let i = first; i < behind; i++)
      if (begun[i] <= ns && ns < ended[i] && !(flags[i] & QUEUED)) busy = i;
    const where = run.queues ? "its queue" : "the network",
      stuck = flags[busy] & OPEN ? `, ${run.fates[lane]}` : "",
      carries = busy >= 0 && busy !== wait?.call ? `; ${where} has ${this.noun(busy)}${stuck}` : "";
    if (wait) {
      const i = wait.call,
        since = `since ${this.moment(wait.from)}: ${run.fates[lane]}`;
      if (flags[i] & OPEN) return `wait${s} in ${this.noun(i)}, ${since}${carries}`;
      const last = run.names
          .map((_, lane) => slotsOf(calls, lane)[slot[i]])
          .reduce((a, b) => (begun[b] > begun[a] ? b : a), i),
        late = begun[last] - begun[i],
        tells = late > 0.02 * (ended[i] - begun[i]) + 1e3,
        later = tells ? `; ${esc(run.names[laneOf(calls, last)])} came ${lasted(late)} later` : "";
      return `wait${s} in ${this.noun(i)}, for ${lasted(wait.to - wait.from)}${later}${carries}`;
    }
    if (work) return `${esc(work.name)}${work.input ? ` of input ${work.input}` : ""}${carries}`;
    if (ns >= run.columns.over[lane])
      return esc(run.ends[lane].replace(/^\S+ /, "").split("\n")[0]) + carries;
    return `run${s} Python${carries}`;
  }

  // The lines of the program at which `told` has the lanes; 0: unknown.
  linesAt(at) {
    const { run } = this,
      numbers = new Set(run.scene.code.map(([, number]) => number));
    return this.rows.map((_, i) => {
      const { call, work } = this.state(i, at),
        lines = call < 0 ? (work?.lines ?? 0) : this.codeOf(call).lines;
      const found = linesOf(run, lines).find(
        ({ source, line }) => source.name === run.scene.file && numbers.has(line),
      );
      return found?.line ?? 0;
    });
  }

  loud() {
    return this.parting ? [this.thumb(this.parting[0])] : [];
  }

  get first() {
    return 0;
  }

  get over() {
    return this.extent;
  }

  get verdict() {
    return this.parting?.[0] ?? this.extent * 0.8;
  }

  advance(at, ms) {
    return at + (ms * this.extent) / PLAY;
  }

  thumb(at) {
    return clamp(this.x(at ?? this.extent) - this.t0, 0, this.long);
  }

  seek(t) {
    return clamp(this.from + t / this.per, 0, this.extent);
  }

  // The begin of the next call in any lane, or of the one before; the ends of the axis.
  step(at, by) {
    const { starts } = this.calls,
      from = at ?? this.extent,
      begins = this.rows.flatMap(({ lane }) => {
        let i = this.within(lane, from)[1];
        if (by > 0) return i < starts[lane + 1] ? [this.spanOf(i)[0]] : [];
        while (--i >= starts[lane]) if (this.spanOf(i)[0] < from) return [this.spanOf(i)[0]];
        return [];
      });
    if (by > 0) return by > 1 ? this.extent : min(this.extent, ...begins);
    return by < -1 ? 0 : max(0, ...begins);
  }

  // ms, or a row.
  addressOf(at) {
    return this.clock ? round((at + this.run.zero) / 10) / 1e5 : floor(at);
  }

  positionOf(address) {
    return clamp(this.clock ? address * 1e6 - this.run.zero : address, 0, this.extent);
  }

  heard(at) {
    const place = at ?? this.extent,
      per = this.clock ? 1e3 : 1,
      words = this.told(at)
        .join("; ")
        .replace(/<[^>]*>/g, "");
    return {
      now: round(place / per), // µs or rows
      most: round(this.extent / per),
      text: `${this.moment(place)}: ${words}`,
    };
  }

  // Select what was pressed; what lies under a merged piece comes closer.
  pick(event) {
    const place = this.unitAt(event),
      [, across] = this.placeOf(event),
      { calls, view } = this,
      row = this.rows[floor((across - this.side) / this.pitch)],
      root = /** @type {Document} */ (this.chart.getRootNode()), // the pointer is captured
      hit = root.elementFromPoint(event.clientX, event.clientY),
      slot = hit?.getAttribute("data-slot");
    if (slot && !view.details.hidden && hit.matches(".jl-chosen")) return view.shut();
    if (slot) return this.select(Number(slot));
    if (!row) return;
    let [found, near] = [-1, 12 / this.per];
    for (let i = calls.starts[row.lane]; i < calls.starts[row.lane + 1]; i++) {
      const [from, to] = this.spanOf(i),
        far = max(from - place, place - to, 0);
      if (far < near || (far === near && calls.flags[i] & WRONG)) [found, near] = [i, far];
    }
    if (found < 0) return;
    const [from, to] = this.spanOf(found);
    if (this.per * (to - from) < LEAST) this.zoom(0.1, place);
    this.select(calls.slot[found]);
  }

  select(slot) {
    this.view.set("selected", slot);
    this.view.tellRow(slot);
  }

  // Bring some slots into sight, so that their names can be read.
  reveal(slot, until = slot) {
    const calls = [slot, until].flatMap((of) => this.across(of).filter((i) => i >= 0)),
      [from, to] = calls.length ? [this.spanOf(calls[0])[0], this.spanOf(calls.at(-1))[1]] : [0, 0];
    this.span = min(max((to - from) * 4, this.clock ? 0 : this.long / 130), this.span);
    this.go((from + to) / 2 - this.span / 2);
  }

  next() {
    const { wrong } = this.calls,
      behind = wrong.indexOf(1, (this.view.get("selected") ?? -1) + 1),
      slot = behind < 0 ? wrong.indexOf(1) : behind;
    if (slot < 0) return;
    this.reveal(slot);
    this.select(slot);
  }

  // The slot of the call that began last.
  slotAt(at) {
    const { starts, slot } = this.calls,
      begun = this.rows.flatMap(({ lane }) => {
        const i = this.within(lane, at ?? this.extent)[1] - 1;
        return i >= starts[lane] ? [i] : [];
      });
    return (
      slot[begun.reduce((a, b) => (this.spanOf(b)[0] > this.spanOf(a)[0] ? b : a), begun[0])] ?? 0
    );
  }

  // When all calls of a slot have begun.
  atSlot(slot) {
    return max(0, ...this.across(slot).map((i) => (i < 0 ? 0 : this.spanOf(i)[0])));
  }

  moves(key) {
    const by = { w: 0.5, "+": 0.5, s: 2, "-": 2 }[key],
      pan = { a: -0.25, d: 0.25 }[key];
    if (by) this.zoom(by, this.view.at ?? undefined);
    else if (pan) this.go(this.from + this.span * pan);
    else if (key === "f") this.fit();
    else if (key === "n") this.next();
    else return false;
    return true;
  }
}

/** From which ns on a unit is told, and its ns. @type {[number, string, number][]} */
const UNITS = [
  [2e9, "s", 1e9],
  [1e6, "ms", 1e6],
  [1e3, "µs", 1e3],
  [0, "ns", 1],
];

const unitOf = (ns) => UNITS.find(([least]) => ns >= least);

function lasted(ns) {
  const [, unit, per] = unitOf(ns);
  return `${Number((ns / per).toPrecision(ns / per < 100 ? 2 : 3))} ${unit}`;
}

// Calls in rows, those that are in flight at once below each other: of each its row, and how many rows share
// the lane there.
// clock: else none overlap
function inRows(calls, clock) {
  const placed = calls.map((call) => ({ ...call, row: 0, of: 1 }));
  let first = 0;
  // The end of each row, px.
  let ends = [];
  for (const [at, call] of placed.entries()) {
    if (!clock || ends.every((end) => end <= call.t + 1)) [first, ends] = [at, []];
    const free = ends.findIndex((end) => end <= call.t + 1),
      row = free < 0 ? ends.length : free;
    ends[row] = call.to;
    call.row = min(row, 2);
    for (let k = first; k <= at; k++) placed[k].of = min(ends.length, 3);
  }
  return placed;
}

// Pieces too small to be drawn alone: the room, `long` px, in cells of `size` px, each in the colour of what
// takes most of it.
function merged(t0, long, turned, fills, size = LEAST) {
  const count = ceil(long / size) + 1,
    taken = new Float32Array(count * fills.length); // by cell and colour, for how many px it lies there

  // The colour that takes most of a cell, -1 if it is empty, and of several kinds the last: where calls of
  // some kinds alternate, rounding would choose.
  function mostOf(cell) {
    const parts = taken.subarray(cell * fills.length, (cell + 1) * fills.length),
      most = max(...parts),
      all = parts.reduce((sum, part) => sum + part, 0);
    if (!most) return -1;
    return most < all * 0.6 && fills.at(-1) === MIXED ? fills.length - 1 : parts.indexOf(most);
  }

  return {
    fills,

    add(from, to, fill) {
      const end = max(to, from + 0.001);
      for (let cell = max(floor((from - t0) / size), 0); cell < count; cell++) {
        const left = t0 + cell * size;
        if (left >= end) break;
        taken[cell * fills.length + fill] += min(end, left + size) - max(from, left);
      }
    },

    paths(s, high) {
      const paths = fills.map(() => "");
      for (let cell = 0, end = 0; cell < count; cell = end) {
        const fill = mostOf(cell);
        for (end = cell + 1; end < count && mostOf(end) === fill;) end++;
        if (fill < 0) continue;
        const [a, b] = [px(t0 + cell * size), px(t0 + end * size)];
        paths[fill] += turned
          ? `M${s} ${a}h${high}V${b}h${-high}z`
          : `M${a} ${s}H${b}v${high}H${a}z`;
      }
      return paths.map((d, i) => d && tag("path", { class: "jl-many", d, fill: fills[i] }));
    },
  };
}
