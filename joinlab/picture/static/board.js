// The bench's picture: the live view, with sliders as the heads of its lanes, an overview above, and what can be saved.

import { Ahead } from "./ahead.js";
import { neighbour } from "./align.js";
import { button, element } from "./dom.js";
import { Heads } from "./heads.js";
import { looking, writing } from "./later.js";
import { pairOf } from "./pair.js";
import { save } from "./save.js";
import { LiveView } from "./view.js";

const TRAITS = ["counts", "said", "results", "busy", "predict", "covered"]; // those that the heads show

class Board extends LiveView {
  makeElements() {
    super.makeElements();
    this.view.classList.add("jl-board");
    this.heads = new Heads(this.model, () => { this.waits.hidden = false; });
    this.waits = element("span", { class: "jl-waits", hidden: true }, "asking Python …");
    this.scroll.prepend(this.heads.whole);
    this.saves = ["PNG", "SVG", "CSV"].map((what) => button(what, `Save as ${what}`, () => this.model.send?.({ save: what })));
    this.saves.push(button("copy call", "Copy the Python call that gives this run", () => this.model.send?.({ save: "call" })));
    this.toolbar.bar.append(
      element("div", { class: "jl-choice", role: "group", "aria-label": "Ranks" }, this.heads.fewer, this.heads.more),
      element("div", { class: "jl-choice", role: "group", "aria-label": "Save" }, ...this.saves), this.waits);
  }

  listen() {
    super.listen();
    this.redraw = () => { this.heads.draw(); this.waits.hidden = true; };
    for (const trait of TRAITS) this.model.on(`change:${trait}`, this.redraw);
    this.saved = (/** @type {any} */ message) => { if (message?.save) save(message, (said) => this.announce(said)); };
    this.model.on("msg:custom", this.saved);
    this.ahead = new Ahead(this.model, (count) => { this.view.dataset.ahead = String(count); });
    /** The key of what is drawn and Python has not answered yet. @type {string} */
    this.early = "";
    this.moved = () => queueMicrotask(() => this.drawEarly()); // after the message to Python
    this.model.on("change:counts", this.moved);
    this.heads.draw();
  }

  close() {
    super.close();
    for (const trait of TRAITS) this.model.off(`change:${trait}`, this.redraw);
    this.model.off("msg:custom", this.saved);
    this.model.off("change:counts", this.moved);
    this.ahead.close();
  }

  /** Draw what the sliders ask for, if Python has sent it ahead. */
  drawEarly() {
    const able = this.alive && this.run && !this.covered.length && !this.get("busy") && !pairOf(this.view), { key } = this.ahead;
    const found = able ? this.ahead.known.get(key) : null;
    if (!found || key === this.early || (!this.early && key === this.get("shown"))) return;
    this.early = key;
    this.selectUndrawn(found.first);
    this.ahead.begin(found);
    writing(() => this.show(found.data, found.run));
  }

  /** Select what is drawn so already, or will be. @param {number | null} slot */
  selectUndrawn(slot) {
    this.shownBytes = null;
    this.ahead.select(slot);
    this.shownBytes = this.get("_packed");
  }

  /** Whether Python's answer says nothing new: it is to what was drawn early, or to an older position of the sliders. */
  has() {
    if (!this.early) return false;
    const shown = this.get("shown"), same = shown === this.early, older = shown && !same && this.early === this.ahead.key;
    if (older) queueMicrotask(() => this.selectUndrawn(this.marked)); // a model that is being set must not be set again
    if (older || same) this.shownBytes = this.get("_packed");
    if (older) return true;
    this.early = "";
    this.ahead.end(same);
    if (same && this.marked !== this.selected) writing(() => this.selectionChanged());
    return same;
  }

  /** @param {LaneData} data @param {RawRun} run */
  show(data, run) {
    super.show(data, run);
    this.waits.hidden = true;
    for (const one of this.saves) one.disabled = this.covered.length > 0 || !this.layout.boxes.calls;
    looking(() => this.centre());
  }

  /** Mark what is selected, and bring its rank's card into sight, too. @param {boolean} scrolls */
  pick(scrolls) {
    super.pick(scrolls);
    looking(() => this.showCard());
  }

  showCard() {
    const side = this.panel, here = this.panel.querySelector(".jl-here");
    if (!here) return;
    const top = here.getBoundingClientRect().top - side.getBoundingClientRect().top + side.scrollTop;
    if (top < side.scrollTop || top + 60 > side.scrollTop + side.clientHeight) side.scrollTop = top - 4;
  }

  /** Scroll the selected row to the middle of what the heads leave free. */
  centre() {
    const extent = this.selected === null ? null : this.picture.extent(this.selected);
    if (!extent) return;
    const middle = (extent[0] + extent[1]) / 2, { scroll, heads } = this;
    if (this.picture.down) scroll.scrollTop = middle - (scroll.clientHeight - heads.whole.offsetHeight) / 2;
    else scroll.scrollLeft = middle - (scroll.clientWidth - heads.whole.offsetWidth) / 2;
    if (this.room.length > 1) neighbour(this.view)?.scroll.scrollTo({ top: scroll.scrollTop });
  }

  /** @param {[Gap[], number?]} room */
  render(...room) {
    super.render(...room);
    this.heads.place(this.picture);
  }
}

export default {
  /** @param {{ model: Model, el: HTMLElement }} context */
  render({ model, el }) {
    const board = new Board(el, model);
    return () => board.close();
  },
};
