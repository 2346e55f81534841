// The bench: the first screen with dots for the inputs, the controls above it, and pictures that came ahead.

import { Ahead } from "./ahead.js";
import { CONTROLS, Controls } from "./controls.js";
import { element, write } from "./dom.js";
import { dots, wireDots } from "./dots.js";
import { First } from "./first.js";
import { save } from "./save.js";
import { esc, tag } from "./text.js";

const HEADS = ["counts", "said", "results", "running", "predict", "printed"]; // those that the heads show

class Board extends First {
  makeElements() {
    super.makeElements();
    this.controls = new Controls(this.model, (counts) => this.count(counts));
    this.view.classList.add("jl-board");
    this.printed = element("div", { class: "jlb-printed" });
    this.story.after(this.printed);
    this.tools.querySelector(".jl-own").append(...this.controls.above);
    this.story.before(...this.controls.below);
    wireDots(
      this.stage,
      (rank) => this.counts[rank],
      this.get("most"),
      (rank, n) => this.count(this.counts.map((count, of) => (of === rank ? n : count))),
    );
    this.stage.addEventListener("change", (event) => {
      const say = /** @type {HTMLSelectElement} */ (event.target);
      this.set(
        "said",
        this.get("said").map((/** @type {string} */ word_, /** @type {number} */ of) =>
          of === Number(say.dataset.rank) ? say.value : word_,
        ),
      );
    });
  }

  listen() {
    /** The key of what is drawn and Python has not answered yet. @type {string} */
    this.early = "";
    this.ahead = new Ahead(this.model, (count) => {
      this.view.dataset.ahead = String(count);
    });
    super.listen();
    let due = false;
    this.redraw = () => {
      // once for all that a message changes
      if (!due)
        queueMicrotask(() => {
          due = false;
          if (!this.alive) return;
          this.controls.draw();
          if (!this.run) return;
          this.tellHeadline();
          this.drawHeads();
          this.tellPrinted();
        });
      due = true;
    };
    this.tellPrinted();
    for (const trait of new Set([...CONTROLS, ...HEADS]))
      this.model.on(`change:${trait}`, this.redraw);
    this.saved = (/** @type {any} */ message) => {
      if (message?.save) save(message, (said) => this.announce(said));
    };
    this.model.on("msg:custom", this.saved);
    this.followed = () => queueMicrotask(() => this.drawEarly()); // after the message to Python
    this.model.on("change:counts", this.followed);
    this.model.send({ press: "shown" }); // from now on somebody can see a map
  }

  close() {
    super.close();
    for (const trait of new Set([...CONTROLS, ...HEADS]))
      this.model.off(`change:${trait}`, this.redraw);
    this.model.off("msg:custom", this.saved);
    this.model.off("change:counts", this.followed);
    this.ahead.close();
  }

  /** The last lines that each rank printed. */
  tellPrinted() {
    write(
      this.printed,
      this.get("printed")
        .map((/** @type {[number, string]} */ [rank, text]) =>
          tag(
            "section",
            { "aria-label": `Output of rank ${rank}` },
            `<b>rank ${rank} printed</b>${tag("pre", { tabindex: 0 }, esc(text))}`,
          ),
        )
        .join(""),
    );
  }

  get question() {
    return this.get("predict") || !this.get("launches")
      ? super.question
      : this.get("running")
        ? `${this.counts.length} processes run …`
        : "Not run yet.";
  }

  get before() {
    return 206;
  }

  get cover() {
    return this.get("predict") || !this.get("launches") ? super.cover : "not run yet";
  }

  /** @returns {number[]} */
  get counts() {
    return this.get("counts");
  }

  /** Ask for other counts. What was said is forgotten here at once: Python, if it is slow, could clear
   * something newer.
   * @param {number[]} counts */
  count(counts) {
    this.model.set(
      "said",
      counts.map(() => ""),
    );
    this.set("counts", counts);
  }

  /** Draw what the dots ask for, if Python has sent it ahead. */
  drawEarly() {
    const able =
        this.alive &&
        this.run &&
        !this.covered.length &&
        !this.whole && // which is drawn from every call
        !this.get("running") &&
        !this.get("comparing"),
      { key } = this.ahead;
    const found = able ? this.ahead.known.get(key) : null;
    if (!found || key === this.early || (!this.early && key === this.get("shown"))) return;
    this.early = key;
    this.show(found.data, found.run);
  }

  /** Whether Python's answer says nothing new: it is to what was drawn early, or to an older position of
   * the dots. */
  has() {
    if (!this.early) return false;
    const shown = this.get("shown");
    if (shown && shown !== this.early && this.early === this.ahead.key) return true;
    const same = shown === this.early;
    this.early = "";
    if (same && this.wanted) this.askCalls();
    return same;
  }

  /** Python knows the calls of what was drawn early only once it has answered. */
  askCalls() {
    if (!this.early) super.askCalls();
  }

  /** @param {number} lane @param {RawRun} run */
  headHeight(lane, run) {
    return run !== this.run ? super.headHeight(lane, run) : this.get("predict") ? 76 : 48;
  }

  /** @param {number} lane @param {string} name */
  laneName(lane, name) {
    return name;
  }

  /** @param {number} lane @param {RawRun} run */
  head(lane, run) {
    if (run !== this.run) return super.head(lane, run);
    const { counts } = this,
      n = counts[lane];
    if (n === undefined) return ""; // the picture is of before: the next one is on its way
    const row = dots(lane, n, this.get("most"), this.get("running"), (at) => this.ending(lane, at));
    if (!this.get("predict")) return row;
    const said = this.get("said")[lane] ?? "";
    const words = this.get("words")
      .map(
        (/** @type {string} */ word) =>
          `<option value="${word}"${word === said ? " selected" : ""}>` +
          `${word === "raises" ? "raises or crashes" : word || "…"}</option>`,
      )
      .join("");
    const result = this.get("results")[lane] ?? "",
      able = this.covered.length && !this.get("running");
    const look = { "data-rank": lane, "aria-label": `I say that rank ${lane}` };
    const select = tag("select", { ...look, disabled: !able && "disabled" }, words);
    return (
      row +
      `<span class="jl-say">will ${select} ` +
      `<b class="jl-result${result.startsWith("✓") ? " jl-right" : ""}">${esc(result)}</b></span>`
    );
  }

  /** How it ends with so many inputs of a rank, if the map knows. @param {number} rank @param {number} n */
  ending(rank, n) {
    const { cells, kinds } = this.get("map"),
      found = kinds?.[cells?.[this.counts.map((count, of) => (of === rank ? n : count)).join()]];
    return found && this.counts.length === 2 ? found : null;
  }
}

export default {
  /** @param {{ model: Model, el: HTMLElement }} context */
  render({ model, el }) {
    const board = new Board(el, model);
    return () => board.close();
  },
};
