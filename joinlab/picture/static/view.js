// Every call of a run as a grid that can be walked, zoomed, unfolded and put on the clock: what first.js has behind "…".
// Each part has a module of its own; joinlab/picture/assets.py joins them.

import { drawDetails, factsOf, rowName } from "./details.js";
import { element } from "./dom.js";
import { Keys } from "./keys.js";
import { looking, writing } from "./later.js";
import { factsIn, foldsOf, layoutOf } from "./layout.js";
import { drawLegend } from "./legend.js";
import { Overview } from "./overview.js";
import { Picture } from "./picture.js";
import { drag, reveal, wheel } from "./scroll.js";
import { drawSource } from "./source.js";
import { clamp } from "./text.js";
import { toolbar } from "./toolbar.js";

const ZOOMS = [0.5, 0.7, 1, 1.4, 2, 2.8, 4, 5.6, 8, 16, 32, 64];
const FIT = ZOOMS.indexOf(1);
const READABLE = 30; // px that each call of the busiest rank has, were they spread evenly, at the deepest zoom on the clock
const CLOSER = 2; // steps of zoom that a press on a block takes
const MOST_COLUMNS = 4; // more lanes than these are drawn as rows, unless the reader asks for columns

export class LiveView {
  /** @param {HTMLElement} root @param {Model} model */
  constructor(root, model) {
    this.root = root;
    this.model = model;
    // Counted on the page: every widget has a module of its own, and ids must differ between them.
    this.name = `jl${(globalThis.joinlabViews = (globalThis.joinlabViews ?? 0) + 1)}`;
    /** @type {LaneData} */
    this.data = null;
    /** @type {RawRun} */
    this.run = null;
    /** @type {Layout} */
    this.layout = null;
    /** @type {Picture} */
    this.picture = null;
    this.rank = 0;
    /** The slot that is drawn as selected. @type {number | null} */
    this.marked = null;
    /** Folds that the reader opened, by their first slot. @type {Set<number>} */
    this.opened = new Set();
    this.zoom = FIT;
    this.alive = true;
    /** Scrolls a picture that was just made to where the reader was. @type {(() => void) | null} */
    this.anchor = null;
    this.sideways = 0; // px the picture is scrolled; to ask the browser takes a layout of the page
    this.width = 0; // of the picture; to ask the browser for it again costs milliseconds
    this.makeElements();
    this.listen();
  }

  /** @param {string} trait */
  get(trait) { return this.model.get(trait); }

  /** @param {string} trait @param {unknown} value */
  set(trait, value) {
    this.model.set(trait, value);
    this.model.save_changes();
  }

  /** @returns {number | null} */
  get selected() { return this.get("selected") ?? null; }

  /** @returns {number[]} */
  get covered() { return this.get("covered") ?? []; }

  get down() {
    const wanted = this.get("ranks_as");
    return wanted === "auto" ? this.run.ranks <= MOST_COLUMNS : wanted === "columns";
  }

  makeElements() {
    this.toolbar = toolbar({
      axis: (axis) => this.set("axis", axis),
      turn: () => this.set("ranks_as", this.down ? "rows" : "columns"),
      setup: () => {
        this.opened.clear();
        this.set("setup", !this.get("setup"));
      },
      zoom: (by) => this.zoomTo(this.zoom + by),
      fit: () => this.zoomTo(FIT),
    });
    this.legend = element("div", { class: "jl-legend", role: "group", "aria-label": "Legend: press to hide or show" });
    this.head = element("div", { class: "jl-head" });
    this.canvas = element("div", { class: "jl-canvas" });
    this.scroll = element("div", { class: "jl-scroll" }, this.head, this.canvas);
    this.panel = element("section", { class: "jl-panel", "aria-label": "Selected row" });
    this.source = element("section", { class: "jl-source", "aria-label": "Program" });
    this.live = element("div", { class: "jl-live", role: "status", "aria-live": "polite" });
    this.overview = new Overview((slot) => this.select(slot));
    this.frame = element("div", { class: "jl-picture" }, this.overview.root, this.scroll, this.legend);
    this.side = element("div", { class: "jl-side" }, this.panel, this.source);
    const main = element("div", { class: "jl-main" }, this.frame, this.side);
    this.view = element("div", { class: "jl-grid" }, this.toolbar.bar, main, this.live);
    this.keys = new Keys(this);
    this.root.replaceChildren(this.view);
  }

  listen() {
    drag(this.scroll, this.canvas, (target, x, y) => {
      if (target.closest("[data-at]")) this.zoomTo(this.zoom + CLOSER, x, y);
      const hit = /** @type {HTMLElement | null} */ (target.closest("[data-slot]"));
      if (!hit || !(Number(hit.dataset.slot) >= 0)) return;
      this.press(Number(hit.dataset.slot), Number(hit.dataset.rank ?? this.rank));
    });
    wheel(this.scroll, (by, x, y) => this.zoomTo(this.zoom + by, x, y));
    this.scroll.addEventListener("scroll", () => {
      this.sideways = this.scroll.scrollLeft;
      this.keepNames();
      if (this.picture?.look(...this.sight())) this.paint();
      if (this.picture) this.overview.window(this.picture, this.scroll);
    });
    this.canvas.addEventListener("keydown", (event) => this.pressed(event));
    const ifCurrent = (/** @type {() => void} */ draw) => () => { if (this.run) draw(); };
    /** @type {Record<string, (message?: any) => void>} */
    this.listeners = {
      "change:selected": ifCurrent(() => writing(() => this.selectionChanged())),
      "change:axis": () => {
        if (!this.run) return;
        this.zoom = FIT;
        this.draw();
        this.pick(true);
      },
      "change:setup": () => this.draw(), "change:hidden": () => this.draw(), "change:ranks_as": () => this.draw(),
      "change:mark": ifCurrent(() => this.draw()),
      "change:covered": ifCurrent(() => this.draw()),
    };
    this.listeners["msg:custom"] = (/** @type {any} */ message) => this.answered(message);
    for (const [event, listener] of Object.entries(this.listeners)) this.model.on(event, listener);
    this.observer = new ResizeObserver(() => {
      const width = this.frame.clientWidth;
      if (Math.abs(width - this.width) > 1 && width) { this.width = width; this.draw(); }
    });
    this.observer.observe(this.view);
  }

  close() {
    this.alive = false;
    this.observer.disconnect();
    for (const [event, listener] of Object.entries(this.listeners)) this.model.off(event, listener);
  }

  // -- data

  /** Show a run in place of the one before. @param {LaneData} data @param {RawRun} run */
  show(data, run) {
    const another = this.run !== null;
    [this.data, this.run] = [data, run];
    if (run.columns && !run.columns.told) { // what the folded rows tell is known
      const known = layoutOf(data, run, "logical", false).list.filter((box) => !box.host && !box.fold);
      run.columns.told = new Map(known.map((box) => [`${box.slot},${box.rank}`, factsIn(data, box)]));
      run.columns.asked = new Set(known.map((box) => box.slot));
    }
    this.opened.clear();
    if (another && layoutOf(data, run, this.get("axis"), this.get("setup")).boxes.rowOf(this.selected) < 0) this.set("selected", null);
    this.rank = Math.min(this.rank, run.ranks - 1);
    this.draw();
    const { first } = run.verdict;
    if (this.selected === null && first !== null && !this.covered.length) this.set("selected", first);
  }

  /** Of a large run Python holds the values and stacks: ask for those of what is selected, once. */
  ask() {
    const { run: { columns }, selected } = this;
    if (!columns || selected === null || !this.model.send || columns.asked.has(selected)) return;
    columns.asked.add(selected);
    this.model.send({ details: selected });
  }

  /** @param {any} message */
  answered(message) {
    if (!Array.isArray(message?.calls) || !this.run?.columns) return;
    for (const [lane, facts] of message.calls) this.run.columns.told.set(`${message.details},${lane}`, facts);
    if (message.details === this.selected) this.drawDetails();
  }

  drawDetails() {
    drawDetails(this.panel, this.picture, this.selected, this.rank, () => this.press(this.selected, this.rank));
    drawSource(this.source, [{ picture: this.picture, selected: this.selected, name: "" }]);
  }

  /** Say something to a screen reader. @param {string} said */
  announce(said) { this.live.textContent = said; }

  // -- drawing

  draw() {
    if (this.run) writing(() => this.drawAll());
  }

  drawAll() {
    const axis = this.get("axis");
    this.layout = layoutOf(this.data, this.run, axis, this.get("setup"), this.opened);
    if (this.selected !== null && this.layout.boxes.rowOf(this.selected) < 0 && !this.get("setup")) { // it lies in a fold
      const all = axis === "time" || !!this.run.columns;
      if (!all) this.openAt(this.selected);
      this.layout = layoutOf(this.data, this.run, axis, all, this.opened);
    }
    const width = Math.max(this.width || this.frame.clientWidth, 240) - 2;
    this.picture = new Picture(this.data, this.run, this.layout, this.name, {
      down: this.down, width: width - 12, zoom: this.factor(this.zoom), hidden: this.get("hidden") ?? [], covered: this.covered, mark: this.get("mark"),
    });
    this.render();
  }

  /** How much a step of zoom enlarges. @param {number} step */
  factor(step) { return step < ZOOMS.length ? ZOOMS[step] : ZOOMS.at(-1) * 2 ** (step - ZOOMS.length + 1); }

  /** The deepest step of zoom: on the clock it depends on how many calls there are. */
  get deepest() {
    if (this.get("axis") !== "time") return ZOOMS.indexOf(8);
    const { starts } = this.layout.boxes;
    let most = 0;
    for (let lane = 0; lane + 1 < starts.length; lane++) most = Math.max(most, starts[lane + 1] - starts[lane]);
    return ZOOMS.length - 1 + Math.max(0, Math.ceil(Math.log2((most * READABLE) / 620 / ZOOMS.at(-1))));
  }

  /** What of the picture is in sight: px along the axis, and across it. @returns {[number, number, number, number]} */
  sight() {
    const { scrollTop: y, scrollLeft: x, clientHeight: high, clientWidth: wide } = this.scroll;
    return this.picture.down ? [y, high, x, wide] : [x, wide, y, high];
  }

  /** Draw the part of the picture that is in sight. */
  paint() {
    const focused = this.canvas.contains(document.activeElement);
    this.canvas.innerHTML = this.picture.svg(this.selected);
    if (this.sideways) this.keepNames();
    if (focused) this.grid.focus({ preventScroll: true });
    this.markPicked();
  }

  render() {
    this.scroll.classList.toggle("jl-sideways", !this.picture.down);
    this.head.innerHTML = this.picture.head();
    if (this.picture.partial) {
      if (this.anchor) for (const side of /** @type {const} */ (["width", "height"])) this.grid.setAttribute(side, String(this.picture[side])); // room to scroll in
      this.anchor?.();
      this.picture.look(...this.sight());
    }
    this.paint();
    if (!this.picture.partial && this.anchor) looking(this.anchor);
    this.toolbar.update(this.get("axis"), !!this.get("setup"));
    this.overview.draw(layoutOf(this.data, this.run, "logical", true), this.data.looks, this.run, !!this.covered.length);
    this.drawLegend();
    this.pick(false);
    looking(() => this.overview.window(this.picture, this.scroll));
  }

  drawLegend() {
    drawLegend(this.legend, this.picture, this.get("hidden") ?? [], (hidden) => this.set("hidden", hidden));
  }

  get grid() { return /** @type {SVGElement} */ (this.canvas.firstChild); }

  keepNames() { // the names of the rows stay in sight while the rest scrolls
    if (this.picture?.down) this.canvas.querySelector(".jl-rows").setAttribute("transform", `translate(${this.sideways} 0)`);
  }

  /** px in the frame of what is selected; of its middle, where that is out of sight. @returns {[number, number]} */
  middle() {
    const { picture, scroll } = this, [from, size] = this.sight();
    const extent = this.selected === null ? null : picture.extent(this.selected), at = extent ? (extent[0] + extent[1]) / 2 - from : -1;
    const along = at >= 0 && at <= size ? at : size / 2;
    return picture.down ? [scroll.clientWidth / 2, along] : [along, scroll.clientHeight / 2];
  }

  /** @param {number} to @param {number} x px in the frame that stay where they are @param {number} y */
  zoomTo(to, x = this.middle()[0], y = this.middle()[1]) {
    const before = this.zoom;
    this.zoom = clamp(to, 0, this.deepest);
    if (this.zoom === before) return;
    const { picture, scroll } = this, [left, top] = [scroll.scrollLeft + x, scroll.scrollTop + y];
    const place = picture.unitAt(picture.down ? top : left), beside = picture.down ? left / picture.width : top / picture.height;
    this.anchor = () => { // what lies at (x, y) stays there
      const now = this.picture, along = now.along(place);
      scroll.scrollLeft = (now.down ? beside * now.width : along) - x;
      scroll.scrollTop = (now.down ? along : beside * now.height) - y;
    };
    this.draw();
    this.anchor = null;
  }

  // -- selection

  selectionChanged() {
    if (!this.run) return;
    if (this.selected !== null && this.layout.boxes.rowOf(this.selected) < 0) this.draw();
    this.pick(true);
  }

  /** Mark what is selected, in the picture. @returns {Element | null} its cell, if it is drawn */
  markPicked() {
    const { grid, selected } = this;
    for (const old of grid.querySelectorAll('[aria-selected="true"]')) old.setAttribute("aria-selected", "false");
    this.marked = selected;
    grid.querySelector(".jl-picked").innerHTML = selected === null ? "" : this.picture.picked(selected, this.rank);
    const cell = selected === null ? null
      : grid.querySelector(`[id="${this.name}-${selected}-${this.rank}"]`) ?? grid.querySelector(`[role="gridcell"][data-slot="${selected}"]`);
    cell?.setAttribute("aria-selected", "true");
    if (cell) grid.setAttribute("aria-activedescendant", cell.id);
    else grid.removeAttribute("aria-activedescendant");
    return cell;
  }

  /** Mark what is selected, in the picture and beside it. @param {boolean} scrolls */
  pick(scrolls) {
    const { selected } = this, cell = this.markPicked();
    this.drawDetails();
    this.ask();
    if (scrolls && selected !== null) looking(() => this.reveal(selected, cell));
  }

  /** Scroll to what is selected. @param {number} selected @param {Element | null} cell that is drawn of it */
  reveal(selected, cell) {
    const extent = this.picture.extent(selected);
    if (!extent) return;
    const box = this.layout.boxes.of(selected).find((one) => one.rank === this.rank), across = box ? this.picture.sides(box) : null;
    if (this.picture.down) reveal(this.scroll, extent, across);
    else reveal(this.scroll, across, extent);
    if (this.picture.look(...this.sight()) || (this.picture.partial && !cell)) this.paint();
  }

  /** Open the fold that a slot lies in. @param {number} slot */
  openAt(slot) {
    const whole = layoutOf(this.data, this.run, "logical", true), folded = layoutOf(this.data, this.run, "logical", false);
    for (const [first, slots] of foldsOf(folded, whole)) if (slots.includes(slot)) this.opened.add(first);
  }

  /** What a click does: select; a fold opens. @param {number} slot @param {number} rank */
  press(slot, rank) {
    if (this.layout.boxes.of(slot).find((box) => box.rank === rank)?.fold && this.get("axis") === "logical") {
      this.opened.add(slot);
      this.draw();
    }
    this.select(slot, rank);
  }

  /** Select the next row that did not go as meant, the first one after the last. */
  nextWrong() {
    const { wrong } = this.run.verdict;
    if (!wrong.length || this.covered.length) return;
    const { boxes } = this.run.columns ? layoutOf(this.data, this.run, "logical", true) : this.layout; // a large run's folds hold wrong ones, too
    const here = boxes.rowOf(this.selected), order = wrong.filter((slot) => boxes.rowOf(slot) >= 0);
    this.select(order.find((slot) => boxes.rowOf(slot) > here) ?? order[0] ?? wrong[0]);
  }

  /** @param {number | null} slot @param {number} rank */
  select(slot, rank = this.rank) {
    this.rank = rank;
    if (slot === this.selected) this.pick(true);
    else this.set("selected", slot);
    if (slot === null) return;
    const boxes = this.layout.boxes.of(slot).filter((box) => this.picture.seen(box.rank));
    const own = boxes.find((box) => box.rank === rank), made = own && factsOf(this.data, own).made;
    this.announce(`${rowName(this.picture, slot)}. ` +
      `${boxes.map((box) => this.picture.said(box)).join("; ")}.${made ? ` Rank ${rank}: ${made}.` : ""}`);
  }

  /** Select another row; false at the last one. @param {number} by rows, as far as there are any */
  step(by) {
    const { boxes } = this.layout, { slots } = boxes, way = Math.sign(by);
    const shown = (/** @type {number} */ slot) => boxes.of(slot).some((box) => this.picture.seen(box.rank) && !this.picture.hidden.has(box.kind));
    const from = boxes.rowOf(this.selected), none = from < 0;
    let at = Math.abs(by) === Infinity ? (by < 0 ? -1 : slots.length) : none ? (by > 0 ? -1 : slots.length) : from;
    let [left, found] = [Math.abs(by), -1];
    if (left === Infinity) for (at -= way; at >= 0 && at < slots.length && found < 0; at -= way) found = shown(slots[at]) ? at : -1;
    else for (at += way; at >= 0 && at < slots.length && left; at += way) if (shown(slots[at])) [found, left] = [at, left - 1];
    if (found < 0) return false;
    this.select(slots[found]);
    for (at = found + 1; at < slots.length; at++) if (shown(slots[at])) return true;
    return false;
  }

  /** Select in the next rank that can be seen. @param {number} by 1 or -1 */
  across(by) {
    let to = this.rank + by;
    while (to >= 0 && to < this.run.ranks && !this.picture.seen(to)) to += by;
    if (to >= 0 && to < this.run.ranks) this.select(this.selected ?? this.layout.boxes.slots[0], to);
  }

  /** @param {KeyboardEvent} event */
  pressed(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || !this.run) return;
    const [next, previous, right, left] = this.picture.down
      ? ["ArrowDown", "ArrowUp", "ArrowRight", "ArrowLeft"] : ["ArrowRight", "ArrowLeft", "ArrowDown", "ArrowUp"];
    /** @type {Record<string, () => unknown>} */
    const keys = {
      [next]: () => this.step(1), [previous]: () => this.step(-1), [right]: () => this.across(1), [left]: () => this.across(-1),
      Home: () => this.step(-Infinity), End: () => this.step(Infinity), PageDown: () => this.step(5), PageUp: () => this.step(-5),
      Escape: () => this.select(null), "+": () => this.zoomTo(this.zoom + 1), "-": () => this.zoomTo(this.zoom - 1), 0: () => this.zoomTo(FIT),
      n: () => this.nextWrong(), f: () => this.zoomTo(FIT),
      Enter: () => { if (this.selected !== null) this.press(this.selected, this.rank); },
    };
    const done = keys[event.key] ?? this.keys.action(event.key);
    if (!done) return;
    done();
    event.preventDefault();
    event.stopPropagation();
  }
}
