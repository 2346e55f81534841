// The bench: the first screen with dots for the inputs, the controls above it, and pictures that Python sent
// ahead of the dots (joinlab/notebook/ending_map.py): a move is drawn from them.

import { controls } from "./controls.js";
import { unpack } from "./data.js";
import { element, write } from "./dom.js";
import { dots, wireDots } from "./dots.js";
import { First, widget } from "./first.js";
import { hand } from "./hand.js";
import { save } from "./save.js";
import { esc, tag } from "./text.js";

const SHIPPED = 9; // counts of inputs of each of two ranks for which the endings ship

export class Board extends First {
  makeElements() {
    super.makeElements();
    this.controls = controls(this);
    this.view.classList.add("jl-board");
    this.hand = hand(this);
    const { above, below, program } = this.controls;
    below[0].prepend(this.turner);
    this.own.append(...above);
    if (this.get("programs")[0][0]) below[0].prepend(program); // only the cases, which the loop in hand has
    this.story.before(...below);
    this.printed = element("div.jlb-printed");
    this.story.after(this.printed);
    wireDots(this);
    this.stage.addEventListener("change", (event) => {
      const say = /** @type {HTMLSelectElement} */ (event.target);
      this.set("said", this.get("said").with(Number(say.dataset.rank), say.value));
    });
  }

  listen() {
    // What Python has sent ahead, by key: data and the run in it.
    this.ahead = new Map();
    // The key of what is drawn and Python has not answered yet.
    this.early = "";
    // What was drawn before the line was taken into the air, while it is there.
    this.kept = null;
    this.missed = false;
    super.listen();
    let due = false;
    this.follow("change", () => {
      // once for all that a message changes
      this.controls.answered();
      if (!due)
        queueMicrotask(() => {
          due = false;
          if (!this.alive) return;
          this.controls.draw();
          if (!this.run) return;
          this.tellHeadline();
          this.drawHeads();
          this.hand.draw();
          this.tellPrinted();
        });
      due = true;
    });
    this.tellPrinted();
    this.follow("msg:custom", async (message, buffers) => {
      if (message?.ahead) this.keep(buffers[0]);
      if (message?.save) this.announce(await save(message));
    });
    const followed = () => queueMicrotask(() => this.drawEarly()); // after the message to Python
    this.follow("comm_live_update", () => this.controls.draw());
    for (const name of ["counts", "case"]) this.follow(`change:${name}`, followed);
    this.model.send({ press: "shown" }); // from now on somebody can see a map
  }

  async keep(packed) {
    const data = await unpack(packed),
      setting = (key) => key.split(",").slice(1, 4).join(); // less case and counts
    const [first] = Object.keys(data.ahead);
    // what was sent for an older setting may come last
    for (const key of setting(first) === setting(this.keyOf()) ? this.ahead.keys() : [])
      if (setting(key) !== setting(first)) this.ahead.delete(key);
    for (const [key, run] of Object.entries(data.ahead))
      this.ahead.set(key, { data, run: data.runs[run] });
    this.view.dataset.ahead = String(this.ahead.size);
    this.hand.glance();
  }

  // All that the picture of a case depends on which the controls ask for, as `BenchSetting.key` has it.
  keyOf(n = this.case) {
    const set = ["engine", "barrier_value", "pad", "counts"].map((name) => this.get(name));
    return `${n},${set}`;
  }

  tellPrinted() {
    const printed = ([rank, text]) =>
      `<section aria-label="Output of rank ${rank}"><b>rank ${rank} printed</b>` +
      `<pre tabindex="0">${esc(text)}</pre></section>`;
    write(this.printed, this.get("printed").map(printed));
  }

  get(trait) {
    return this.model.get("controls")[trait] ?? super.get(trait);
  }

  // Whether a covered run is there, and waits for a prediction.
  get asks() {
    return this.get("predict") || !this.get("launches");
  }

  get question() {
    if (this.asks) return super.question;
    if (this.gone) return "Python is gone.";
    return this.busy ? `${this.counts.length} processes run …` : "Not run yet.";
  }

  get before() {
    return 206;
  }

  get cover() {
    return this.asks ? super.cover : this.word;
  }

  get most() {
    return this.get("most");
  }

  get counts() {
    return this.get("counts");
  }

  // Ask for other counts. What was said is forgotten here at once: Python, if it is slow, could clear
  // something newer.
  go(counts) {
    this.model.set("said", Array(counts.length).fill(""));
    this.controls.set("counts", counts);
  }

  // What Python has sent ahead of a key, if it can be drawn.
  sent(key) {
    const able =
        this.alive && this.run && !this.covered.length && !this.busy && !this.get("comparing"),
      early = able && this.ahead.get(key);
    return early && (!this.whole || early.run.columns) ? early : null; // some is drawn from every call
  }

  drawEarly() {
    const key = this.keyOf(),
      early = this.sent(key);
    if (!early || key === this.early || (!this.early && key === this.get("shown"))) return;
    this.early = key;
    this.controls.answered();
    this.show(early.data, early.run);
  }

  // Whether Python's answer says nothing new: it is to what was drawn early, or to an older position of
  // the dots.
  has() {
    if (this.kept) {
      this.missed = true; // it is drawn once the line has landed
      return true;
    }
    if (!this.early) return false;
    const shown = this.get("shown");
    if (shown && shown !== this.early && this.early === this.keyOf()) return true;
    const same = shown === this.early;
    this.early = "";
    if (same && this.wanted) this.askCalls();
    return same;
  }

  get case() {
    return this.get("case");
  }

  get loop() {
    return this.get("loop");
  }

  get busy() {
    return this.gone || this.get("running");
  }

  // What is said of a place whose picture is not here.
  get later() {
    if (this.get("launches") || this.get("predict")) return "";
    return this.shipped(1) ? "Shown when dropped." : "Emulated when dropped.";
  }

  // How the run of a case with these inputs ends, if it ships.
  shipped(n) {
    const [a, b] = this.counts;
    if (this.counts.length > 2 || Math.max(a, b) >= SHIPPED) return "";
    return this.get("endings")[((n - 1) * SHIPPED + a) * SHIPPED + b] ?? "";
  }

  // How a case ends with these inputs: as shipped, or as it is shown.
  toneOf(n) {
    const shipped = ["good", "warn", "bad"].find((tone) => tone[0] === this.shipped(n));
    if (shipped) return shipped;
    const { title, scene } = this.main;
    return !this.covered.length && title.startsWith(`case_${n},`) ? scene.tone : "";
  }

  prepare() {
    const here = [1, 2, 3, 4, 5, 6].every((n) => this.sent(this.keyOf(n)));
    if (!here && !this.get("predict") && !this.get("launches"))
      this.model.send({ press: "places" });
  }

  lifted() {
    this.kept = { data: this.data, run: this.main };
  }

  glance(n) {
    const early = n === this.case ? this.kept : this.sent(this.keyOf(n)),
      { data, run } = early ?? this.kept;
    this.show(data, run);
    return !!early;
  }

  take(n) {
    this.controls.set("case", n);
  }

  landed() {
    this.kept = null;
    if (this.missed) this.load();
    this.missed = false;
  }

  // Python knows the calls of what was drawn early only once it has answered.
  askCalls() {
    if (!this.early) super.askCalls();
  }

  /** @param {RawRun} run */
  head(lane, run) {
    if (run !== this.run) return super.head(lane, run);
    const n = this.counts[lane];
    if (n === undefined) return ""; // the picture is of before: the next one is on its way
    const row = dots(lane, n, this.most, this.busy, (at) => this.ending(lane, at));
    if (!this.get("predict")) return row;
    const said = this.get("said")[lane] ?? "",
      result = this.get("results")[lane] ?? "";
    const words = this.get("words").map(
      (word) =>
        `<option value="${word}"${word === said ? " selected" : ""}>` +
        `${word === "raises" ? "raises or crashes" : word || "…"}</option>`,
    );
    const look = {
      "data-rank": lane,
      "aria-label": `I say that rank ${lane}`,
      disabled: (!this.covered.length || this.busy) && "disabled",
    };
    return (
      `${row}<span>will ${tag("select", look, words)} ` +
      `<b class="jl-tone-${result.startsWith("✓") ? "good" : "bad"}">${esc(result)}</b></span>`
    );
  }

  // How it ends with so many inputs of a rank, if the map knows.
  ending(rank, n) {
    const { cells, kinds } = this.get("map");
    return (this.counts.length === 2 && kinds?.[cells?.[this.counts.with(rank, n).join()]]) || null;
  }
}

export default widget(Board);
