// The bench's controls: what is run on what stands above the picture, everything else is behind "…".

import { button, element } from "./dom.js";
import { EndingMap } from "./map.js";

export const CONTROLS = [
  "programs",
  "case",
  "engines",
  "engine",
  "knobs",
  "barrier_value",
  "pad",
  "status",
  "go",
  "can_go",
  "launches",
  "running",
  "comparing",
  "covered",
  "map",
  "counts",
];

export class Controls {
  /** @param {Model} model @param {(counts: number[]) => void} count called with other inputs */
  constructor(model, count) {
    this.model = model;
    this.program = this.choice("Program", (value) => this.set("case", Number(value)));
    this.engine = this.choice("Run it on", (value) => this.set("engine", value));
    this.run = button(
      "Run",
      "Run it (each rank becomes a process of its own)",
      () => this.ask("go", "Starting …"),
      { class: "jlb-go" },
    );
    this.stop = button("■ Stop", "End the run", () => this.ask("stop", "Stopping …"), {
      class: "jlb-stop",
    });
    this.status = element("p", { class: "jlb-status", role: "status" });
    this.above = [this.program, this.engine, this.run, this.stop, this.status];
    this.compare = button(
      "⇄ compare",
      "Keep this picture, and show what comes next above it",
      () => this.ask("compare", "Asking Python …"),
      { "aria-label": "Compare with this" },
    );
    this.saves = ["PNG", "SVG"].map((what) =>
      button(what, `Save as ${what}`, () => this.model.send?.({ save: what })),
    );
    this.fewer = button("− rank", "Remove the last rank", () => count(this.counts.slice(0, -1)), {
      "aria-label": "− remove a rank",
    });
    this.more = button("+ rank", "Add a rank", () => count([...this.counts, this.counts.at(-1)]), {
      "aria-label": "+ add a rank",
    });
    this.knobs = element("span", { class: "jlb-knobs" });
    this.inputs = Object.fromEntries(
      ["barrier_value", "pad"].map((name) => [name, this.knob(name)]),
    );
    this.map = new EndingMap((counts) => {
      this.say("Asking Python …");
      this.model.send({ counts });
    });
    this.below = [
      element(
        "div",
        { class: "jl-bar" },
        this.fewer,
        this.more,
        this.compare,
        ...this.saves,
        this.knobs,
      ),
      this.map.whole,
    ];
    this.draw();
  }

  /** @returns {number[]} */
  get counts() {
    return this.model.get("counts");
  }

  /** @param {string} name @param {(value: string) => void} chosen @returns {HTMLSelectElement} */
  choice(name, chosen) {
    const made = /** @type {HTMLSelectElement} */ (element("select", { "aria-label": name }));
    made.addEventListener("change", () => {
      this.name(made, false);
      chosen(made.value);
    });
    for (const event of ["pointerdown", "keydown", "focus"])
      made.addEventListener(event, () => this.name(made, true));
    made.addEventListener("blur", () => this.name(made, false));
    return made;
  }

  /** A list in use shows full names, "Case 1: join(), no barrier"; at rest only the part before the colon.
   * @param {HTMLSelectElement} select @param {boolean} whole */
  name(select, whole) {
    for (const one of select.options)
      one.text =
        whole || !one.selected ? (one.dataset.name ?? "") : (one.dataset.name?.split(":")[0] ?? "");
  }

  /** @param {string} trait @param {unknown} value */
  set(trait, value) {
    this.model.set(trait, value);
    this.model.save_changes();
    this.draw();
    this.say("Asking Python …");
  }

  /** @param {string} what @param {string} said shown until Python answers */
  ask(what, said) {
    this.say(said);
    this.model.send({ press: what });
  }

  /** @param {string} said */
  say(said) {
    this.status.textContent = said;
  }

  /** @param {string} name of a trait */
  knob(name) {
    const [label, title] =
      name === "pad"
        ? [
            "pad of a line",
            "The upper 32 bits of an NCCL line that holds 4 bytes of data: undefined on a GPU",
          ]
        : [
            "barrier's word",
            "PyTorch 1.9's barrier all-reduces a byte that no one had set; " +
              "a float that meets it reads 4",
          ];
    const input = /** @type {HTMLInputElement} */ (
      element("input", { type: "number", min: 0, max: 2 ** 32 - 1 })
    );
    input.addEventListener("change", () => {
      if (input.checkValidity() && input.value !== "") this.set(name, Number(input.value));
      else this.draw();
    });
    const whole = element("label", { title }, `${label} `, input);
    this.knobs.append(whole);
    return { input, whole };
  }

  draw() {
    const get = (/** @type {string} */ name) => this.model.get(name),
      busy = get("running");
    this.options(this.program, get("programs"), String(get("case")), busy);
    this.options(
      this.engine,
      get("engines").map((/** @type {any} */ one) => [one.name, one.label, one.missing]),
      get("engine"),
      busy,
    );
    this.run.hidden = !get("go");
    this.run.textContent = get("go");
    this.run.disabled = busy || !get("can_go");
    this.stop.hidden = !get("launches");
    this.stop.disabled = !busy;
    this.compare.ariaPressed = String(get("comparing"));
    const nothing = busy || get("covered").length > 0;
    for (const one of [this.compare, ...this.saves]) one.disabled = nothing;
    this.fewer.disabled = busy || this.counts.length <= 1;
    this.more.disabled = busy || this.counts.length >= get("ranks");
    for (const [name, { input, whole }] of Object.entries(this.inputs)) {
      whole.hidden = !get("knobs").includes(name);
      input.disabled = busy;
      if (input !== document.activeElement) input.value = String(get(name));
    }
    this.drawStatus(get("status"));
    this.map.draw(get("map"), this.counts);
  }

  /** @param {HTMLSelectElement} select
   * @param {[value: string, label: string, missing?: string][]} wanted @param {string} chosen
   * @param {boolean} busy */
  options(select, wanted, chosen, busy) {
    if (
      [...select.options].map((one) => one.value).join() !== wanted.map(([value]) => value).join()
    )
      select.replaceChildren(
        ...wanted.map(([value, label]) => element("option", { value, "data-name": label })),
      );
    wanted.forEach(([, , missing], at) => {
      select.options[at].title = missing ?? "";
    });
    select.value = chosen;
    select.disabled = busy;
    if (select !== document.activeElement) this.name(select, false);
  }

  /** @param {{ text: string, bad?: boolean, done?: number, of?: number }} status */
  drawStatus({ text, bad, done, of }) {
    this.status.replaceChildren();
    if (bad) this.status.append(element("b", {}, "✕ "));
    if (of !== undefined)
      this.status.append(
        element("progress", { "aria-label": "inputs done", max: Math.max(of, 1), value: done }),
        " ",
      );
    this.status.append(text);
  }
}
