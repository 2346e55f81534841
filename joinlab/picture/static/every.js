// Every call of a run in its lane, one after the other or on the clock: what first.js has behind "…". What is
// in sight is drawn; calls too small to be seen are one grey piece, and what went wrong always has its
// colour.

import { FAILED, OPEN, WRONG, callsOf, laneOf, members } from "./columns.js";
import { factsIn } from "./data.js";
import { button, element } from "./dom.js";
import { clamp, esc, line, px, rect, tag, widthOf } from "./text.js";
import { swatch, tellSlot } from "./told.js";

const LEFT = 132,
  TOP = 6,
  FOOT = 22; // px beside, above and below the lanes
const LEAST = 3; // px: what is shorter is drawn together
const READABLE = 130; // px of a call, for its name
const DEEPEST = 400; // px of the shortest call on the clock, at the deepest zoom
const STRIP = 5; // px of a lane of the overview

/** Every key, as the reader is told of them. */
const KEYS =
  "← → a call, ↑ ↓ a rank, Home End, PgUp PgDn ten calls, n next mismatch, w s zoom, a d pan, " +
  "f all, / search";

export class Every {
  /** @param {HTMLElement} root @param {import("./first.js").First} view */
  constructor(root, view) {
    this.view = view;
    this.lane = this.from = this.span = this.width = 0;
    this.host = false;
    /** The shortest call on the clock, and of which run. @type {{ of: RawRun, least: number } | null} */
    this.shortest = null;
    /** What the overview shows. @type {RawRun | null} */
    this.shown = null;
    const axis = (/** @type {string} */ name, /** @type {string} */ said) =>
      button(said, "", () => view.set("axis", name), { "data-axis": name });
    this.axes = [axis("logical", "in order"), axis("time", "on the clock")];
    this.hosts = button("hosts", "Also what each rank's Python did, and where it waited", () => {
      this.host = !this.host;
      this.draw();
    });
    this.field = /** @type {HTMLInputElement} */ (
      element("input", {
        type: "search",
        placeholder: "barrier rank 1",
        "aria-label": "Search the calls",
      })
    );
    this.found = element("span", { class: "jl-soft", role: "status" });
    this.legend = element("p", { class: "jl-legend" });
    this.strip = element("div", { class: "jl-strip" });
    this.chart = element("div", {
      class: "jl-chart",
      role: "slider",
      tabindex: "0",
      "aria-label": "Every call",
      "aria-valuemin": "0",
    });
    this.told = element("section", {
      class: "jl-told",
      hidden: true,
      "aria-label": "Details of the selected call",
    });
    const bar = element(
      "div",
      { class: "jl-bar" },
      element("span", { class: "jl-choice", role: "group", "aria-label": "Axis" }, ...this.axes),
      this.hosts,
      button("−", "Zoom out", () => this.zoom(2), { "aria-label": "Zoom out" }),
      button("all", "The whole run", () => this.fit()),
      button("+", "Zoom in", () => this.zoom(0.5), { "aria-label": "Zoom in" }),
      button("next mismatch", "Go to the next call that did not go as meant", () => this.next()),
      this.field,
      this.found,
    );
    root.replaceChildren(
      bar,
      this.strip,
      this.chart,
      this.legend,
      element("p", { class: "jl-soft" }, `Keys: ${KEYS}.`),
      this.told,
    );
    this.listen();
  }

  listen() {
    this.chart.addEventListener("keydown", (event) => this.pressed(event));
    this.chart.addEventListener(
      "wheel",
      (event) => {
        if (!event.ctrlKey && !event.metaKey && Math.abs(event.deltaX) <= Math.abs(event.deltaY))
          return;
        event.preventDefault();
        if (event.ctrlKey || event.metaKey)
          this.zoom(event.deltaY > 0 ? 1.25 : 0.8, this.unitAt(event));
        else this.go(this.from + event.deltaX / this.per);
      },
      { passive: false },
    );
    this.chart.addEventListener("pointerdown", (event) => {
      const x = event.clientX,
        from = this.from;
      let moved = false;
      const move = (/** @type {PointerEvent} */ at) => {
        moved ||= Math.abs(at.clientX - x) > 4;
        if (moved) this.go(from - (at.clientX - x) / this.per);
      };
      addEventListener("pointermove", move);
      addEventListener(
        "pointerup",
        () => {
          removeEventListener("pointermove", move);
          if (!moved) this.pick(event);
        },
        { once: true },
      );
    });
    this.strip.addEventListener("click", (event) => {
      const box = this.strip.getBoundingClientRect();
      this.go(((event.clientX - box.left) / box.width) * this.extent - this.span / 2);
    });
    this.field.addEventListener("keydown", (event) => {
      event.stopPropagation();
      if (event.key === "Enter") this.search();
      if (event.key === "Escape") this.chart.focus();
    });
  }

  get run() {
    return this.view.run;
  }

  get calls() {
    return callsOf(this.run);
  }

  get time() {
    return this.view.get("axis") === "time";
  }

  /** Units of the whole axis: rows, or ns. */
  get extent() {
    return this.time ? Math.max(this.run.columns.end, 1) : Math.max(this.run.columns.rows, 1);
  }

  /** px of a unit. */
  get per() {
    return (this.width - LEFT - 8) / this.span;
  }

  /** @returns {number | null} */
  get selected() {
    return this.view.get("selected") ?? null;
  }

  /** Show another run, or the same on another axis, whole. */
  show() {
    this.told.hidden = true;
    this.lane = Math.min(this.lane, this.run.names.length - 1);
    this.fit();
    if (this.selected !== null && this.selected < this.run.columns.rows) this.reveal(this.selected);
  }

  fit() {
    this.span = this.extent;
    this.go(0);
  }

  /** @param {number} from what stands at the left edge */
  go(from) {
    this.span = clamp(this.span, this.least, this.extent);
    this.from = clamp(from, 0, this.extent - this.span);
    this.draw();
  }

  /** The smallest piece that is worth looking at. */
  get least() {
    if (!this.time) return Math.min(4, this.extent);
    if (this.shortest?.of !== this.run) {
      let least = this.extent;
      const { begun, ended, n } = this.calls;
      for (let i = 0; i < n; i++)
        if (ended[i] > begun[i]) least = Math.min(least, ended[i] - begun[i]);
      this.shortest = { of: this.run, least };
    }
    return Math.min(this.extent, (this.shortest.least * this.width) / DEEPEST);
  }

  /** @param {number} by @param {number} around stays where it is */
  zoom(by, around = this.middle()) {
    const part = (around - this.from) / this.span;
    this.span = clamp(this.span * by, this.least, this.extent);
    this.go(around - part * this.span);
  }

  /** What a zoom is about: the selected call, if it is in sight. */
  middle() {
    const at = this.selected === null ? -1 : this.placeOf(this.selected)[0];
    return at >= this.from && at <= this.from + this.span ? at : this.from + this.span / 2;
  }

  /** @param {MouseEvent} event */
  unitAt(event) {
    return this.from + (event.clientX - this.chart.getBoundingClientRect().left - LEFT) / this.per;
  }

  /** Where a slot lies: in the lane that one looks at, if it is there.
   * @param {number} slot @returns {[number, number]} */
  placeOf(slot) {
    if (!this.time) return [slot, slot + 1];
    const of = members(this.calls, slot),
      i = of.get(this.lane) ?? [...of.values()][0];
    return i === undefined ? [0, 0] : [this.calls.begun[i], this.calls.ended[i]];
  }

  // -- drawing

  draw() {
    const { run, view } = this;
    this.width = this.chart.clientWidth || 900;
    const covered = view.covered.length > 0;
    if (covered) this.told.replaceChildren();
    this.legend.hidden = covered;
    this.strip.hidden = covered || run.columns.rows < 60;
    for (const one of this.axes)
      one.setAttribute("aria-pressed", String((one.dataset.axis === "time") === this.time));
    this.hosts.setAttribute("aria-pressed", String(this.host));
    this.high = run.names.length > 8 ? 20 : 30;
    this.pitch = this.high + (this.host ? 12 : 0) + 12;
    const height = TOP + this.pitch * run.names.length + FOOT;
    const lanes = covered ? [] : run.names.map((_, lane) => this.drawLane(lane));
    const names = run.names.map((name, lane) => this.name(name, lane, covered));
    this.chart.innerHTML =
      `<svg width="${this.width}" height="${height}" aria-hidden="true">` +
      `${covered ? "" : this.ticks(height)}${this.marked(height)}${lanes.join("")}` +
      `<rect width="${LEFT - 4}" height="${height}" class="jl-plain"/>${names.join("")}</svg>`;
    this.chart.setAttribute("aria-valuemax", String(run.columns.rows - 1));
    this.chart.setAttribute("aria-valuenow", String(this.selected ?? 0));
    this.chart.setAttribute("aria-valuetext", covered ? "covered" : this.said());
    this.overview();
    const kinds = [...new Set(run.columns.codes.map((code) => code.kind))];
    this.legend.innerHTML = kinds
      .map((kind) => swatch(view.data.looks.kinds[kind], kind))
      .join(" ");
  }

  /** px of a place along the axis. @param {number} at */
  x(at) {
    return LEFT + (at - this.from) * this.per;
  }

  /** px above a lane. @param {number} lane */
  y(lane) {
    return TOP + lane * this.pitch;
  }

  /** @param {string} name @param {number} lane @param {boolean} covered */
  name(name, lane, covered) {
    const end = this.run.ends[lane],
      bad = end.startsWith("✕") ? " jl-tone-bad" : "",
      y = this.y(lane);
    const fit = (/** @type {string} */ text, /** @type {number} */ size) => {
      const room = Math.floor((LEFT - 12) / (size * 0.55));
      return text.length > room ? `${text.slice(0, room - 1)}…` : text;
    };
    const low =
      this.high < 28 || covered
        ? ""
        : `<text y="${y + 27}" font-size="11" class="jl-end${bad}">${esc(fit(end, 11))}</text>`;
    return (
      `<g><title>${esc(covered ? name : `${name}: ${end}`)}</title>` +
      `<text y="${y + 14}" font-size="13" font-weight="700" class="${low ? "" : bad}">` +
      `${esc(fit(name, 13))}</text>${low}</g>`
    );
  }

  /** @param {number} lane */
  drawLane(lane) {
    const { calls, time, high, width, run } = this,
      { starts, slot, begun, ended, flags, code, kinds } = calls,
      y = this.y(lane);
    const drawn = [line([LEFT, y + high / 2], [width, y + high / 2], "jl-line")];
    let [many, low, far, wrong, last, count] = ["", NaN, NaN, -9, -Infinity, 0];
    const end = () => {
      const to = px(Math.max(far, low + 0.6));
      if (low === low) many += `M${px(low)} ${y + 3}H${to}V${y + high - 3}H${px(low)}z`;
      low = far = NaN;
    };
    for (let i = starts[lane]; i < starts[lane + 1]; i++) {
      // up to a million times: nothing is made for what is not drawn
      const from = time ? begun[i] : slot[i],
        x = this.x(from),
        to = this.x(time ? ended[i] : from + 1) - (time ? 0 : this.per * 0.08);
      if (to < LEFT || x > width) continue;
      const odd = flags[i] & WRONG;
      if (!odd && to - x < LEAST) {
        if (x > far + 1) end();
        if (low !== low) low = Math.max(x, LEFT);
        far = far === far ? Math.max(far, to) : to;
        continue;
      }
      if (odd && x - wrong < 1) continue; // one already stands there
      if (odd) wrong = x;
      const over = time && x < last - 1,
        [top, tall] = over ? [y + high / 2, high / 2] : [y, high];
      last = Math.max(last, to);
      const left = Math.max(x, LEFT),
        w = Math.max(to - left, LEAST),
        name = run.columns.codes[code[i]].label;
      const look = `jl-fill${odd ? " jl-bad" : ""}${flags[i] & (OPEN | FAILED) ? " jl-unended" : ""}`;
      const how = { class: look, "data-slot": slot[i], rx: w > 12 ? 4 : 0 },
        said = esc(this.titled(i));
      const fill = `var(--jl-k${kinds[code[i]]})`;
      drawn.push(rect({ x: left, y: top, w, h: tall }, { ...how, fill }, `<title>${said}</title>`));
      if (!over && count++ < 400 && widthOf(name, 12) + 8 < w)
        drawn.push(
          `<text x="${px(left + w / 2)}" y="${y + high / 2 + 4}" ` +
            `font-size="12" text-anchor="middle" ` +
            `style="fill:var(--jl-i${kinds[code[i]]})">${esc(name)}</text>`,
        );
    }
    end();
    const hosts = this.host ? this.drawHost(lane) : "";
    return `<g class="jl-lane"><path class="jl-many" d="${many}"/>${drawn.join("")}${hosts}</g>`;
  }

  /** What the rank's Python did: in order of calls, where it waited. @param {number} lane */
  drawHost(lane) {
    const y = this.y(lane) + this.high + 3,
      { calls } = this;
    if (!this.time) {
      let d = "";
      for (let i = calls.starts[lane]; i < calls.starts[lane + 1]; i++)
        if (calls.flags[i] & 16)
          d += `M${px(this.x(calls.slot[i]))} ${y + 4}h${px(this.per * 0.92)}`;
      return `<path class="jl-waits" d="${d}"><title>the host waits</title></path>`;
    }
    return calls.hosts[lane]
      .filter(([from, to]) => this.x(to) >= LEFT && this.x(from) <= this.width)
      .map(([from, to, , name]) => {
        const left = Math.max(this.x(from), LEFT),
          w = Math.max(this.x(to) - left, 1);
        const said =
          w > widthOf(name, 11) + 6
            ? `<text x="${px(left + 3)}" y="${y + 8}" font-size="11">${esc(name)}</text>`
            : "";
        const look = name === "waits" ? "jl-host jl-waiting" : "jl-host";
        return `<g><title>${esc(name)}</title>${rect({ x: left, y, w, h: 9 }, { class: look })}${said}</g>`;
      })
      .join("");
  }

  /** The selected slot. @param {number} height */
  marked(height) {
    if (this.selected === null || this.view.covered.length) return "";
    const [from, to] = this.placeOf(this.selected),
      x = this.x(from),
      w = Math.max(this.x(to) - x, 4);
    const room = { x: x - 2, y: 1, w: w + 4 - (this.time ? 0 : this.per * 0.08), h: height - FOOT };
    return rect(room, { class: "jl-picked", rx: 4 });
  }

  /** @param {number} height */
  ticks(height) {
    const { run, time } = this,
      zero = time ? run.zero : 1,
      to = this.from + this.span;
    const [unit, per] = !time
      ? ["", 1]
      : this.span >= 2e6
        ? ["ms", 1e6]
        : this.span >= 2e3
          ? ["µs", 1e3]
          : ["ns", 1];
    const rough = (this.span / per) * (90 / this.width),
      ten = 10 ** Math.floor(Math.log10(rough));
    const step = Math.max(
        [1, 2, 5, 10].map((k) => ten * k).find((one) => one >= rough),
        time ? 0 : 1,
      ),
      found = [];
    for (let k = Math.ceil((this.from + zero) / per / step); k * step * per <= to + zero; k++) {
      const at = this.x(k * step * per - zero + (time ? 0 : 0.46)),
        said = Number((k * step).toPrecision(9)).toLocaleString("en");
      if (at < LEFT + 20 || at > this.width - 20) continue;
      found.push(
        `<path class="jl-rule" d="M${px(at)} ${TOP}V${height - FOOT + 2}"/>` +
          `<text class="jl-num" x="${px(at)}" y="${height - 5}" text-anchor="middle">${said}</text>`,
      );
    }
    const clock = time ? `${run.modelled ? "modelled" : "recorded"} time, ${unit}` : "row";
    const look = { class: "jl-num", x: LEFT - 10, y: height - 5, "text-anchor": "end" };
    return found.join("") + tag("text", look, clock);
  }

  /** The whole run as a strip: grey, and what went wrong in colour. */
  overview() {
    const { calls, run } = this,
      n = 600,
      rows = Math.max(run.columns.rows, 1),
      lanes = Math.min(run.names.length, 12);
    if (this.shown !== run) {
      this.shown = run;
      let [grey, bad] = ["", ""];
      for (let lane = 0; lane < lanes; lane++) {
        const cells = new Uint8Array(n);
        for (let i = calls.starts[lane]; i < calls.starts[lane + 1]; i++)
          cells[Math.floor((calls.slot[i] / rows) * n)] |= calls.flags[i] & WRONG ? 3 : 1;
        for (let x = 0, from = 0; x <= n; x++) {
          if (cells[x] & 2) bad += `M${x - 1} ${lane * STRIP}h3v${STRIP - 1}h-3z`;
          if (cells[x]) continue;
          const gap = rows < n && x < n && x - from < n / rows; // a row is wider than a cell
          if (gap && from < x) continue;
          if (x > from) grey += `M${from} ${lane * STRIP}H${x}v${STRIP - 1}H${from}z`;
          from = x + 1;
        }
      }
      const count = calls.wrong.reduce((sum, one) => sum + one, 0);
      const [all, wrong] = [rows, count].map((one) => one.toLocaleString("en")),
        height = lanes * STRIP;
      const said = {
        role: "img",
        "aria-label": `The whole run: ${all} rows, ${wrong} of them wrong`,
      };
      const whole = {
        viewBox: `0 0 ${n} ${height}`,
        preserveAspectRatio: "none",
        width: "100%",
        height,
      };
      const paths = `<path class="jl-calm" d="${grey}"/><path class="jl-alarm" d="${bad}"/>`;
      this.strip.innerHTML = `${tag("svg", { ...whole, ...said }, paths)}<i class="jl-window"></i>`;
    }
    const window = /** @type {HTMLElement} */ (this.strip.lastElementChild),
      { extent } = this;
    window.style.left = `${px((this.from / extent) * 100)}%`;
    window.style.width = `${px(Math.max((this.span / extent) * 100, 0.4))}%`;
    window.hidden = this.time; // the strip shows rows
  }

  // -- selection

  /** A call in words. @param {number} i */
  titled(i) {
    const { calls, run } = this,
      flags = calls.flags[i],
      how = flags & FAILED ? ", failed" : flags & OPEN ? ", never ends" : "";
    return (
      `${run.names[laneOf(calls, i)]}: ${run.columns.codes[calls.code[i]].label}${how}` +
      (flags & 2 ? ", meets what it should not" : "")
    );
  }

  said() {
    if (this.selected === null) return "nothing selected";
    const i = members(this.calls, this.selected).get(this.lane);
    const what =
      i === undefined ? `${this.run.names[this.lane]}: issued no call here` : this.titled(i);
    return `row ${this.selected + 1} of ${this.run.columns.rows}. ${what}`;
  }

  /** Select what was pressed; what lies under a grey piece comes closer. @param {PointerEvent} event */
  pick(event) {
    const box = this.chart.getBoundingClientRect(),
      at = this.unitAt(event),
      { calls } = this;
    const lane = Math.floor((event.clientY - box.top - TOP) / this.pitch);
    if (at < 0 || lane < 0 || lane >= this.run.names.length || this.view.covered.length) return;
    this.lane = lane;
    let [found, near] = [-1, Infinity];
    for (let i = calls.starts[lane]; i < calls.starts[lane + 1]; i++) {
      const [from, to] = this.time
        ? [calls.begun[i], calls.ended[i]]
        : [calls.slot[i], calls.slot[i] + 1];
      const far = at < from ? from - at : at > to ? at - to : 0;
      if (far < near || (far === near && calls.flags[i] & WRONG)) [found, near] = [i, far];
    }
    if (found < 0) return;
    if (this.per * (this.time ? calls.ended[found] - calls.begun[found] : 1) < LEAST)
      this.zoom(0.1, at);
    this.select(calls.slot[found]);
  }

  /** @param {number} slot @param {number} lane */
  select(slot, lane = this.lane) {
    this.lane = lane;
    if (slot === this.selected) this.changed();
    else this.view.set("selected", slot);
  }

  /** What is selected, or its place, is another one. */
  changed() {
    if (this.selected === null || this.view.covered.length) {
      this.told.hidden = true;
      this.draw();
      return;
    }
    this.reveal(this.selected);
    this.tell();
  }

  tell() {
    const { selected, run, view } = this,
      wrong = this.calls.wrong[selected];
    const known = run.scene.columns.find(
      (one) => !one.stack && !one.missing && one.slot === selected,
    );
    const how = known?.said || (wrong ? "It did not go as meant." : "All went as meant.");
    tellSlot(
      this.told,
      view.data,
      run,
      selected,
      `Row ${selected + 1} of ${run.columns.rows.toLocaleString("en")}`,
      how,
    );
  }

  /** Bring a slot into sight. @param {number} slot @param {number} until the last of several */
  reveal(slot, until = slot) {
    const [from, to] = [this.placeOf(slot)[0], this.placeOf(until)[1]];
    if (until > slot) this.span = clamp((to - from) * 1.1, this.least, this.extent);
    if (from < this.from || to > this.from + this.span || until > slot)
      this.go((from + Math.min(to, from + this.span)) / 2 - this.span / 2);
    else this.draw();
  }

  /** Show some slots so that their names can be read. @param {number} slot @param {number} until */
  lookAt(slot, until) {
    const readable = Math.max(1, Math.floor((this.width - LEFT) / READABLE));
    this.reveal(slot, Math.max(slot + 1, Math.min(until, slot + readable)));
    this.select(slot);
  }

  next() {
    const { wrong } = this.calls,
      n = wrong.length,
      here = this.selected ?? -1;
    for (let k = 1; k <= n; k++) if (wrong[(here + k) % n]) return this.select((here + k) % n);
  }

  search() {
    // the next call with all the words, the first one after the last
    const { calls, run, view } = this,
      words = this.field.value.toLowerCase().split(/\s+/).filter(Boolean);
    /** Calls of one kind and lane say the same here. @type {Map<string, boolean>} */
    const known = new Map();
    let [count, at, hit, hitLane] = [0, 0, -1, 0];
    if (words.length)
      for (let slot = 0; slot < run.columns.rows; slot++)
        for (let p = calls.offsets[slot]; p < calls.offsets[slot + 1]; p++) {
          const i = calls.members[p],
            lane = laneOf(calls, i),
            code = run.columns.codes[calls.code[i]],
            key = `${calls.code[i]},${lane}`;
          if (!known.has(key)) {
            const group =
              factsIn(view.data, run, slot, lane, calls.code[i]).find(([name]) =>
                name.startsWith("group"),
              )?.[1] ?? "";
            const kind = view.data.looks.kinds[code.kind],
              who = run.names[lane];
            const text = `${code.label} ${who} ${kind} group ${group}`.toLowerCase();
            known.set(
              key,
              words.every((word) => text.includes(word)),
            );
          }
          if (!known.get(key)) continue;
          count++;
          const later =
            slot > (this.selected ?? -1) || (slot === this.selected && lane > this.lane);
          if (hit < 0 || (!at && later)) [hit, hitLane] = [slot, lane];
          if (!at && later) at = count;
        }
    this.found.textContent = count ? `${Math.max(at, 1)} of ${count}` : "none";
    if (hit >= 0) this.select(hit, hitLane);
  }

  /** @param {KeyboardEvent} event */
  pressed(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || this.view.covered.length) return;
    const here = this.selected ?? -1,
      last = this.run.columns.rows - 1,
      lanes = this.run.names.length;
    const go = (/** @type {number} */ to) => this.select(clamp(to, 0, last));
    const cross = (/** @type {number} */ by) => {
      this.lane = clamp(this.lane + by, 0, lanes - 1);
      go(Math.max(here, 0));
    };
    /** @type {Record<string, () => void>} */
    const keys = {
      ArrowRight: () => go(here + 1),
      ArrowLeft: () => go(here - 1),
      ArrowDown: () => cross(1),
      ArrowUp: () => cross(-1),
      Home: () => go(0),
      End: () => go(last),
      PageDown: () => go(here + 10),
      PageUp: () => go(here - 10),
      n: () => this.next(),
      w: () => this.zoom(0.5),
      "+": () => this.zoom(0.5),
      s: () => this.zoom(2),
      "-": () => this.zoom(2),
      a: () => this.go(this.from - this.span / 4),
      d: () => this.go(this.from + this.span / 4),
      f: () => this.fit(),
      0: () => this.fit(),
      "/": () => this.field.focus(),
      Escape: () => this.view.set("selected", null),
    };
    if (!keys[event.key]) return;
    keys[event.key]();
    event.preventDefault();
    event.stopPropagation();
  }
}
