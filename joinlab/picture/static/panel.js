// The bench's controls above the picture: what is run, how it ended, and the map of endings.

import { button, element } from "./dom.js";
import { EndingMap } from "./map.js";
import { esc } from "./text.js";

class Panel {
  /** @param {HTMLElement} el @param {Model} model */
  constructor(el, model) {
    this.model = model;
    this.program = /** @type {HTMLSelectElement} */ (element("select", { "aria-label": "Program" }));
    this.program.addEventListener("change", () => this.set("case", Number(this.program.value)));
    this.engines = element("div", { class: "jl-choice jlb-engines", role: "group", "aria-label": "Run it on" });
    this.run = button("Run", "Run it (each rank becomes a process of its own)", () => this.ask("go", "Starting …"), { class: "jlb-go" });
    this.stop = button("■ Stop", "End the run", () => this.ask("stop", "Stopping …"), { class: "jlb-stop" });
    this.compare = button("⇄ compare", "Keep this picture, and show what comes next beside it", () => this.set("comparing", !model.get("comparing")), { "aria-label": "Compare with this" });
    this.door = button("⚙", "Advanced: what NCCL leaves undefined", () => this.openDoor(), { "aria-label": "Advanced", "aria-expanded": "false" });
    this.knobs = element("div", { class: "jlb-knobs", hidden: true });
    this.inputs = Object.fromEntries(["barrier_value", "pad"].map((name) => [name, this.knob(name)]));
    this.status = element("p", { class: "jlb-status", role: "status" });
    this.verdict = element("section", { class: "jlb-verdict", "aria-label": "How it ended" });
    this.map = new EndingMap((counts) => { this.say("Asking Python …"); this.model.send({ counts }); }, () => this.model.send({ press: "end map" }));
    const root = element("div", { class: "jl jlb", role: "group", "aria-label": "Bench", "data-lm-suppress-shortcuts": "true" },
      element("div", { class: "jlb-bar" }, this.program, this.engines, this.run, this.stop, this.status, this.compare, this.door),
      this.knobs, element("div", { class: "jlb-top" }, this.verdict, this.map.whole));
    el.replaceChildren(root);
    root.addEventListener("keydown", (event) => {
      if (!event.ctrlKey && !event.metaKey && !event.altKey && event.key !== "Escape") event.stopPropagation();
    });
    this.draw();
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
  say(said) { this.status.textContent = said; }

  /** @param {string} name of a trait */
  knob(name) {
    const [label, title, most] = name === "pad"
      ? ["pad of a line", "The upper 32 bits of an NCCL line that holds 4 bytes of data: undefined on a GPU", 2 ** 32 - 1]
      : ["barrier's word", "PyTorch 1.9's barrier all-reduces a byte that no one had set; a float that meets it reads 4", 2 ** 32 - 1];
    const input = /** @type {HTMLInputElement} */ (element("input", { type: "number", min: 0, max: most }));
    input.addEventListener("change", () => {
      if (input.checkValidity() && input.value !== "") this.set(name, Number(input.value));
      else this.draw();
    });
    const whole = element("label", { title }, `${label} `, input);
    this.knobs.append(whole);
    return { input, whole };
  }

  openDoor() {
    this.knobs.hidden = !this.knobs.hidden;
    this.door.setAttribute("aria-expanded", String(!this.knobs.hidden));
  }

  draw() {
    const get = (/** @type {string} */ name) => this.model.get(name);
    const running = get("running");
    if (this.program.options.length !== get("programs").length)
      this.program.replaceChildren(...get("programs").map((/** @type {[number, string]} */ [value, label]) => element("option", { value }, label)));
    this.program.value = String(get("case"));
    this.program.disabled = running;
    this.drawEngines(get("engines"), get("engine"), running);
    this.run.hidden = !get("go");
    this.run.textContent = get("go");
    this.run.disabled = running || !get("can_go");
    this.stop.hidden = !get("launches");
    this.stop.disabled = !running;
    this.compare.setAttribute("aria-pressed", String(get("comparing")));
    this.compare.disabled = running || !(get("can_compare") || get("comparing"));
    for (const [name, { input, whole }] of Object.entries(this.inputs)) {
      whole.hidden = !get("knobs").includes(name);
      input.disabled = running;
      if (input !== document.activeElement) input.value = String(get(name));
    }
    this.door.hidden = !get("knobs").length;
    if (this.door.hidden) this.knobs.hidden = true;
    this.drawStatus(get("status"));
    const early = get("early"); // what the board shows and Python has not answered yet
    this.drawVerdict(early ? early.verdict : get("verdict"));
    this.map.draw(get("map"), early ? early.counts : get("counts"));
  }

  /** @param {{ name: string, label: string, missing: string }[]} engines @param {string} chosen @param {boolean} running */
  drawEngines(engines, chosen, running) {
    const known = [...this.engines.children].map((one) => /** @type {HTMLElement} */ (one).dataset.engine).join();
    if (known !== engines.map((one) => one.name).join())
      this.engines.replaceChildren(...engines.map(({ name, label }) => button(label, "", () => this.set("engine", name), { "data-engine": name })));
    [...this.engines.children].forEach((one, at) => {
      const { name, missing, label } = engines[at];
      one.setAttribute("aria-pressed", String(name === chosen));
      one.setAttribute("title", missing || label);
      /** @type {HTMLButtonElement} */ (one).disabled = running;
    });
  }

  /** @param {{ text: string, bad?: boolean, done?: number, of?: number }} status */
  drawStatus({ text, bad, done, of }) {
    this.status.replaceChildren();
    if (bad) this.status.append(element("b", {}, "✕ "));
    if (of !== undefined) this.status.append(element("progress", { "aria-label": "inputs done", max: Math.max(of, 1), value: done }), " ");
    this.status.append(text);
  }

  /** @param {{ ends?: { text: string, sign: string, good: boolean }[], headline?: string, steps?: string[], documented?: string, eras?: boolean }} verdict */
  drawVerdict({ ends = [], headline = "", steps = [], documented = "", eras = false }) {
    this.verdict.classList.toggle("jlb-bad", ends.some((one) => !one.good));
    this.verdict.hidden = !headline && !ends.length;
    const first = documented.match(/^.*?\.(?= |$)/)?.[0] ?? documented; // on a narrow screen the first sentence alone
    const chips = ends.map(({ text, sign, good }) => `<li class="jlb-chip${good ? " jlb-ok" : ""}">${esc(`${sign} ${text}`)}</li>`);
    this.verdict.innerHTML = `<ul class="jlb-chips">${chips.join("")}</ul><div><p class="jlb-headline">${esc(headline)}</p>` +
      steps.map((step) => `<p>${esc(step)}</p>`).join("") +
      (documented ? `<p class="jl-soft" title="${esc(documented)}">${esc(first)}<span class="jlb-more">${esc(documented.slice(first.length))}</span> </p>` : "") + "</div>";
    if (eras && !this.model.get("comparing")) this.verdict.querySelector("p:last-child").append(button("compare today with 1.9", "Show both eras of NCCL side by side", () => this.ask("eras", "Asking Python …"), { class: "jlb-link" }));
  }
}

export default {
  /** @param {{ model: Model, el: HTMLElement }} context */
  render({ model, el }) {
    const panel = new Panel(el, model);
    let [due, alive] = [false, true];
    const draw = () => { // once for all that a message changes
      if (!due) queueMicrotask(() => { due = false; if (alive) panel.draw(); });
      due = true;
    };
    const traits = ["programs", "case", "engines", "engine", "knobs", "barrier_value", "pad", "status", "go", "can_go", "launches", "running",
      "comparing", "can_compare", "verdict", "map", "counts", "early"];
    for (const trait of traits) model.on(`change:${trait}`, draw);
    model.send({ press: "shown" }); // from now on somebody can see a map
    return () => {
      alive = false;
      for (const trait of traits) model.off(`change:${trait}`, draw);
    };
  },
};
