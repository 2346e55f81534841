// The heads of the lanes: per rank a slider for its inputs, what is said of its ending, and what came of that.
// Native controls: they have names, and answer to the keyboard, by themselves.

import { button, element } from "./dom.js";

/** One rank's controls.
 * @typedef {{ whole: HTMLElement, slider: HTMLInputElement, number: HTMLElement, say: HTMLSelectElement, said: HTMLElement, result: HTMLElement }} Head */

export class Heads {
  /** @param {Model} model @param {() => void} pressed called as soon as something is pressed */
  constructor(model, pressed) {
    this.model = model;
    this.pressed = pressed;
    this.name = `jlr${(globalThis.joinlabRanks = (globalThis.joinlabRanks ?? 0) + 1)}`; // every widget has its own module
    /** @type {Head[]} */
    this.shown = [];
    this.whole = element("div", { class: "jl-heads" });
    this.whole.addEventListener("keydown", (event) => { // the arrow keys are the slider's, not the notebook's
      if (!event.ctrlKey && !event.metaKey && !event.altKey && event.key !== "Escape") event.stopPropagation();
    });
    this.fewer = button("− rank", "Remove the last rank", () => this.count(this.counts.slice(0, -1)), { "aria-label": "− remove a rank" });
    this.more = button("+ rank", "Add a rank", () => this.count([...this.counts, this.counts.at(-1)]), { "aria-label": "+ add a rank" });
  }

  /** @returns {number[]} */
  get counts() { return this.model.get("counts"); }

  /** Ask for other counts. What was said is forgotten here at once: Python, if it is slow, could clear something newer.
   * @param {number[]} counts */
  count(counts) {
    this.model.set("said", counts.map(() => ""));
    this.model.set("counts", counts);
    this.model.save_changes();
    this.draw();
    this.pressed();
  }

  /** @param {number} rank @returns {Head} */
  head(rank) {
    const slider = /** @type {HTMLInputElement} */ (element("input", {
      type: "range", min: 0, max: this.model.get("most"), step: 1, id: `${this.name}-${rank}`, "aria-label": `rank ${rank}: inputs` }));
    const number = element("output", { for: slider.id });
    const words = this.model.get("words").map((/** @type {string} */ word) =>
      element("option", { value: word }, word === "raises" ? "raises or crashes" : word || "…"));
    const say = /** @type {HTMLSelectElement} */ (element("select", { "aria-label": `I say that rank ${rank}` }, ...words));
    const result = element("span", { class: "jl-result", id: `${this.name}-${rank}-r` });
    say.setAttribute("aria-describedby", result.id);
    slider.addEventListener("input", () => this.count(this.counts.map((count, of) => (of === rank ? Number(slider.value) : count))));
    say.addEventListener("change", () => {
      this.model.set("said", this.model.get("said").map((/** @type {string} */ word, /** @type {number} */ of) => (of === rank ? say.value : word)));
      this.model.save_changes();
    });
    const said = element("span", { class: "jl-say" }, "it ", say, " ", result);
    const whole = element("div", { class: "jl-rankhead" }, element("b", {}, `rank ${rank}`), " ", number, slider, said);
    return { slider, number, say, said, result, whole };
  }

  draw() {
    const { model, shown, counts } = this;
    const said = model.get("said"), results = model.get("results"), busy = model.get("busy");
    while (shown.length > counts.length) shown.pop().whole.remove();
    while (shown.length < counts.length) {
      shown.push(this.head(shown.length));
      this.whole.append(shown.at(-1).whole);
    }
    shown.forEach((one, rank) => {
      if (Number(one.slider.value) !== counts[rank]) one.slider.value = String(counts[rank]);
      one.number.textContent = `${counts[rank]} input${counts[rank] === 1 ? "" : "s"}`;
      one.slider.disabled = busy;
      one.said.hidden = !model.get("predict");
      one.say.disabled = busy || !model.get("covered").length;
      if (one.say.value !== (said[rank] ?? "")) one.say.value = said[rank] ?? "";
      one.result.textContent = results[rank] ?? "";
      one.result.className = `jl-result${(results[rank] ?? "").startsWith("✓") ? " jl-right" : ""}`;
    });
    this.fewer.disabled = busy || counts.length <= 1;
    this.more.disabled = busy || counts.length >= model.get("ranks");
  }

  /** Put each head at its lane. @param {import("./picture.js").Picture} picture */
  place(picture) {
    const tall = this.model.get("predict") ? 88 : 46;
    this.whole.classList.toggle("jl-headcolumn", !picture.down);
    this.whole.style.width = picture.down ? `${picture.width}px` : "";
    this.whole.style.height = `${picture.down ? tall : picture.height}px`;
    this.shown.forEach(({ whole }, rank) => {
      const at = rank < picture.n ? picture.beside(rank, 0) : -9999; // one that was just added is drawn a moment later
      Object.assign(whole.style, picture.down
        ? { left: `${at}px`, top: "0", width: `${picture.column}px`, height: `${tall}px` }
        : { left: "0", top: `${at}px`, width: "", height: `${picture.column}px` });
    });
  }
}
