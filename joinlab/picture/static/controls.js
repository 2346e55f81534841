// The bench's controls: what is run on what stands above the picture, everything else is behind "…".

import { button, choice, element, write } from "./dom.js";
import { EndingMap } from "./map.js";
import { esc, tag } from "./text.js";

// Of each trait that is a number: what it is called, and what it means.
const KNOBS = {
  barrier_value: [
    "barrier's word",
    "PyTorch 1.9's barrier all-reduces a byte that no one had set; a float that meets it reads 4",
  ],
  pad: [
    "pad of a line",
    "The upper 32 bits of an NCCL line that holds 4 bytes of data: undefined on a GPU",
  ],
};
const ASKS = "Asking Python …";

export class Controls {
  // Whether Python has not answered yet.
  asks = false;

  /** @param {import("./board.js").Board} board */
  constructor(board) {
    this.board = board;
    this.program = choice("Program", (value) => this.set("case", Number(value)));
    this.engine = choice("Run it on", (value) => this.set("engine", value));
    // said: shown until Python answers
    const ask = (what, said) => {
      write(this.status, said);
      board.model.send({ press: what });
    };
    this.run = button(
      "Run",
      "Run it (each rank becomes a process of its own)",
      () => ask("go", "Starting …"),
      "jlb-go",
    );
    this.stop = button("■ Stop", "End the run", () => ask("stop", "Stopping …"), "jlb-stop");
    this.status = element("p.jlb-status", { role: "status" });
    this.above = [this.program, this.engine, this.run, this.stop, this.status];
    this.compare = button(
      "⇄ compare",
      "Keep this picture, and show what comes next above it",
      () => ask("compare", ASKS),
      "",
      { "aria-label": "Compare with this" },
    );
    this.saves = ["PNG", "SVG"].map((what) =>
      button(what, `Save as ${what}`, () => board.model.send({ save: what })),
    );
    const ranks = (sign, what, change) =>
      button(`${sign} rank`, what, () => board.go(change(board.counts)), "", {
        "aria-label": `${sign} ${what.toLowerCase()}`,
      });
    this.fewer = ranks("−", "Remove a rank", (counts) => counts.slice(0, -1));
    this.more = ranks("+", "Add a rank", (counts) => [...counts, counts.at(-1)]);
    const knobs = element("span.jlb-knobs");
    this.inputs = Object.entries(KNOBS).map(([name, [label, title]]) => {
      const look = { name, type: "number", min: 0, max: 2 ** 32 - 1, required: true },
        input = element("input", look);
      input.onchange = () => {
        if (input.checkValidity()) this.set(name, Number(input.value));
        else this.draw();
      };
      knobs.append(element("label", { title }, `${label} `, input));
      return input;
    });
    this.map = new EndingMap((counts) => board.go(counts));
    const bar = [this.fewer, this.more, this.compare, ...this.saves, knobs];
    this.below = [element("div.jl-bar", {}, ...bar), this.map.whole];
    this.draw();
  }

  set(trait, value) {
    this.board.set(trait, value);
    this.asks = true;
    this.draw();
  }

  draw() {
    const get = (name) => this.board.get(name),
      { busy, counts, gone } = this.board;
    this.options(this.program, get("programs"), get("case"));
    this.options(
      this.engine,
      get("engines").map((one) => [one.name, one.label, one.missing]),
      get("engine"),
    );
    this.run.hidden = !get("go");
    this.run.textContent = get("go");
    this.run.disabled = busy || !get("can_go");
    this.stop.hidden = !get("launches");
    this.stop.disabled = !busy || gone;
    this.compare.ariaPressed = String(get("comparing"));
    for (const one of [this.compare, ...this.saves])
      one.disabled = busy || get("covered").length > 0;
    this.fewer.disabled = busy || counts.length <= 1;
    this.more.disabled = busy || counts.length >= get("ranks");
    for (const input of this.inputs) {
      input.parentElement.hidden = !get("knobs").includes(input.name);
      input.disabled = busy;
      if (input !== document.activeElement) input.value = get(input.name);
    }
    const asked = this.asks && { text: ASKS },
      lost = gone && { text: "Python is gone: run the cell again.", bad: true },
      { text, bad, done, of } = lost || asked || get("status"),
      bar = { "aria-label": "inputs done", max: Math.max(of, 1), value: done };
    write(
      this.status,
      (bad ? "<b>✕ </b>" : "") + (of === undefined ? "" : `${tag("progress", bar)} `) + esc(text),
    );
    this.map.draw(get("map"), counts);
  }

  /** @param {HTMLSelectElement} select */
  options(select, wanted, chosen) {
    const options = wanted.map(([value, label, missing]) =>
      tag("option", { value, title: missing && esc(missing) }, esc(label)),
    );
    write(select, options);
    select.value = chosen;
    select.disabled = this.board.busy;
  }
}
