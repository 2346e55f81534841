// The bench's controls: what is run on what stands above the picture, everything else is behind "…".

import { button, choice, element, write } from "./dom.js";
import { endingMap } from "./map.js";
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

/** @param {import("./board.js").Board} board */
export function controls(board) {
  let asks = false; // whether Python has not answered yet
  const program = choice("Program", (value) => set("case", Number(value))),
    engine = choice("Run it on", (value) => set("engine", value)),
    status = element("p.jlb-status", { role: "status" });
  // said: shown until Python answers
  const ask = (what, said) => {
    write(status, said);
    board.model.send({ press: what });
  };
  const runs = "Run it (each rank becomes a process of its own)",
    run = button("", runs, () => ask("go", "Starting …"), "jlb-go"),
    stop = button("■ Stop", "End the run", () => ask("stop", "Stopping …")),
    keeps = "Keep this picture, and show what comes next above it";
  const compare = button("⇄ compare", keeps, () => ask("compare", ASKS), "", {
    "aria-label": "Compare with this",
  });
  const saves = ["PNG", "SVG"].map((what) =>
    button(what, `Save as ${what}`, () => board.model.send({ save: what })),
  );
  const ranks = (sign, what, change) =>
    button(`${sign} rank`, what, () => board.go(change(board.counts)), "", {
      "aria-label": `${sign} ${what.toLowerCase()}`,
    });
  const fewer = ranks("−", "Remove a rank", (counts) => counts.slice(0, -1)),
    more = ranks("+", "Add a rank", (counts) => [...counts, counts.at(-1)]);
  const inputs = Object.keys(KNOBS).map((name) => {
    const range = { min: 0, max: 2 ** 32 - 1, required: true },
      input = element("input", { name, type: "number", ...range });
    input.onchange = () => {
      if (input.checkValidity()) set(name, Number(input.value));
      else draw();
    };
    return input;
  });
  const knobs = inputs.map((input) => {
    const [label, title] = KNOBS[input.name];
    return element("label", { title }, `${label} `, input);
  });
  const map = endingMap((counts) => board.go(counts)),
    bar = element("div.jl-bar", {}, fewer, more, compare, ...saves, element("span", {}, ...knobs));
  draw();

  function set(trait, value) {
    board.set(trait, value);
    asks = true;
    draw();
  }

  function draw() {
    const get = (name) => board.get(name),
      { busy, counts, gone } = board;
    fill(program, get("programs"), get("case"));
    fill(engine, get("engines"), get("engine"));
    run.hidden = !get("go");
    run.textContent = get("go");
    run.disabled = busy || !get("can_go");
    stop.hidden = !get("launches");
    stop.disabled = !busy || gone;
    compare.ariaPressed = get("comparing");
    for (const one of [compare, ...saves]) one.disabled = busy || get("covered").length > 0;
    fewer.disabled = busy || counts.length <= 1;
    more.disabled = busy || counts.length >= get("ranks");
    for (const input of inputs) {
      input.parentElement.hidden = !get("knobs").includes(input.name);
      input.disabled = busy;
      if (input !== document.activeElement) input.value = get(input.name);
    }
    const asked = asks && { text: ASKS },
      lost = gone && { text: "Python is gone: run the cell again.", bad: true },
      { text, bad, done, of } = lost || asked || get("status"),
      progress = { "aria-label": "inputs done", max: Math.max(of, 1), value: done };
    write(
      status,
      bad ? "<b>✕ </b>" : "",
      of === undefined ? "" : `${tag("progress", progress)} `,
      esc(text),
    );
    map.draw(get("map"), counts);
  }

  /** @param {HTMLSelectElement} select */
  function fill(select, wanted, chosen) {
    const option = ([value, label, missing]) =>
      tag("option", { value, title: missing && esc(missing) }, esc(label));
    write(select, wanted.map(option));
    select.value = chosen;
    select.disabled = board.busy;
  }

  return {
    program,
    above: [program, engine, run, stop, status],
    below: [bar, map.whole],
    set,
    draw,
    answered: () => (asks = false), // Python has
  };
}
