// One row per rank: how many inputs it has, what is said of its ending, and what came of that.
// Native controls: they have names, and answer to the keyboard, by themselves.

import { element } from "./dom.js";

/** One rank's controls.
 * @typedef {{ whole: HTMLElement, slider: HTMLInputElement, number: HTMLElement, say: HTMLSelectElement, said: HTMLElement, result: HTMLElement }} Row */

class RankControls {
  /** @param {HTMLElement} el @param {Model} model */
  constructor(el, model) {
    this.model = model;
    this.name = `jlr${(globalThis.joinlabRanks = (globalThis.joinlabRanks ?? 0) + 1)}`; // every widget has its own module
    /** @type {Row[]} */
    this.shown = [];
    this.rows = element("div", { class: "jl-ranklist" });
    const counts = () => this.model.get("counts");
    this.fewer = element("button", { type: "button", onclick: () => this.set("counts", counts().slice(0, -1)) }, "− remove a rank");
    this.more = element("button", { type: "button", onclick: () => this.set("counts", [...counts(), counts().at(-1)]) }, "+ add a rank");
    const root = element("div", { class: "jl-ranks", role: "group", "aria-label": "Ranks", "data-lm-suppress-shortcuts": "true" },
      this.rows, element("div", { class: "jl-rankbar" }, this.fewer, this.more));
    el.replaceChildren(root);
    root.addEventListener("keydown", (event) => { // the arrow keys are the slider's, not the notebook's
      if (!event.ctrlKey && !event.metaKey && !event.altKey && event.key !== "Escape") event.stopPropagation();
    });
  }

  /** @param {string} trait @param {unknown} value */
  set(trait, value) {
    this.model.set(trait, value);
    this.model.save_changes();
  }

  /** Change one rank's part of a list. @param {string} trait @param {number} rank @param {unknown} value */
  change(trait, rank, value) {
    const next = [...this.model.get(trait)];
    next[rank] = value;
    this.set(trait, next);
  }

  /** @param {number} rank @returns {Row} */
  row(rank) {
    const slider = /** @type {HTMLInputElement} */ (element("input", { type: "range", min: 0, max: this.model.get("most"), step: 1, id: `${this.name}-${rank}` }));
    const number = element("output", { for: slider.id });
    const words = this.model.get("words").map((/** @type {string} */ word) =>
      element("option", { value: word }, word === "raises" ? "raises or crashes" : word || "…"));
    const say = /** @type {HTMLSelectElement} */ (element("select", { "aria-label": `I say that rank ${rank}` }, ...words));
    const result = element("span", { class: "jl-result", id: `${this.name}-${rank}-r` });
    say.setAttribute("aria-describedby", result.id);
    slider.addEventListener("input", () => this.change("counts", rank, Number(slider.value)));
    say.addEventListener("change", () => this.change("said", rank, say.value));
    const said = element("span", { class: "jl-say" }, "I say it ", say, result);
    const whole = element("div", { class: "jl-rank" }, element("label", { for: slider.id }, `rank ${rank}: inputs`), slider, number, said);
    return { slider, number, say, said, result, whole };
  }

  draw() {
    const { model, shown } = this;
    const counts = model.get("counts"), said = model.get("said"), results = model.get("results"), busy = model.get("busy");
    while (shown.length > counts.length) shown.pop().whole.remove();
    while (shown.length < counts.length) {
      shown.push(this.row(shown.length));
      this.rows.append(shown.at(-1).whole);
    }
    shown.forEach((one, rank) => {
      if (Number(one.slider.value) !== counts[rank]) one.slider.value = counts[rank];
      one.number.textContent = counts[rank];
      one.slider.disabled = busy;
      one.said.hidden = !model.get("predict");
      one.say.disabled = busy || !model.get("covered");
      if (one.say.value !== (said[rank] ?? "")) one.say.value = said[rank] ?? "";
      one.result.textContent = results[rank] ?? "";
      one.result.className = `jl-result${(results[rank] ?? "").startsWith("✓") ? " jl-right" : ""}`;
    });
    this.fewer.toggleAttribute("disabled", busy || counts.length <= 1);
    this.more.toggleAttribute("disabled", busy || counts.length >= model.get("ranks"));
  }
}

export default {
  /** @param {{ model: Model, el: HTMLElement }} context */
  render({ model, el }) {
    const controls = new RankControls(el, model), draw = () => controls.draw();
    const traits = ["counts", "said", "results", "busy", "predict", "covered"];
    for (const trait of traits) model.on(`change:${trait}`, draw);
    draw();
    return () => { for (const trait of traits) model.off(`change:${trait}`, draw); };
  },
};
