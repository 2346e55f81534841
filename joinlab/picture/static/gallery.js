// The gallery: one large picture, and below it small ones of every run; choosing one fills the large one.

import { element, find, findAll } from "./dom.js";
import { First } from "./first.js";
import { data, follow } from "./page.js";
import { show } from "./positions.js";
import { Scene } from "./scene.js";
import { Store } from "./store.js";

/** @typedef {{ programs: string[], fabrics: string[], start: string,
 *   runs: Record<string, [run: number, ended: string, note: string][][]> }} Told */

const NOMINAL = 800; // px for which a small picture is drawn, before it is made small

class Gallery extends First {
  /** @param {HTMLElement} root @param {Told} told */
  constructor(root, told) {
    super(root, new Store({}));
    this.told = told;
    this.radios = /** @type {HTMLInputElement[]} */ (findAll(document, ".gallery input"));
    this.many = told.fabrics.length;
    this.inputs = /** @type {HTMLSelectElement} */ (
      element(
        "select",
        { "aria-label": "Inputs of rank 0 and rank 1" },
        ...Object.keys(told.runs).map((counts) =>
          element("option", { value: counts }, counts.replace(",", " and ") + " inputs"),
        ),
      )
    );
    this.inputs.value = told.start;
    this.tools.querySelector(".jl-own").append(this.inputs);
    this.inputs.addEventListener("change", () => this.fill());
    this.radios.forEach((radio, at) => {
      radio.addEventListener("change", () => this.go());
      radio.addEventListener("keydown", (event) => this.walk(event, at));
    });
  }

  get address() {
    return {
      case: String(1 + this.program),
      on: String(1 + this.fabric),
      inputs: this.inputs.value,
      ...super.address,
    };
  }

  get chosen() {
    return Math.max(
      0,
      this.radios.findIndex((radio) => radio.checked),
    );
  }

  get program() {
    return Math.floor(this.chosen / this.many);
  }

  get fabric() {
    return this.chosen % this.many;
  }

  /** Go where an address points. @param {URLSearchParams} said */
  arrive(said) {
    const program = Number(said.get("case") ?? this.program + 1) - 1,
      fabric = Number(said.get("on") ?? this.fabric + 1) - 1;
    if (said.get("inputs") in this.told.runs) this.inputs.value = said.get("inputs");
    const radio = this.radios[program * this.many + fabric];
    if (radio) radio.checked = true;
    this.fill();
    this.goTo(said);
  }

  /** Draw every small picture, and the large one. */
  fill() {
    this.radios.forEach((radio, at) => {
      const [program, fabric] = [Math.floor(at / this.many), at % this.many];
      const [number, ended] = this.told.runs[this.inputs.value][program][fabric],
        run = data.runs[number];
      radio.ariaLabel = `${this.told.programs[program]}, ${this.told.fabrics[fabric]}: ${ended}`;
      const small = find(radio.parentElement, ".small");
      small.className = `small drawn is-${run.scene.tone}`;
      small.title = ended;
      small.innerHTML =
        `${this.small(run, at)}<span class="signs">` +
        run.scene.ends
          .map(
            ([sign, , how]) =>
              `<span class="jl-tone-${how}">${sign}${how === "warn" ? "…" : ""}</span>`,
          )
          .join("") +
        "</span>";
    });
    this.go();
  }

  /** The large picture of a run without its words. @param {RawRun} run @param {number} at */
  small(run, at) {
    const scene = new Scene(data, run, `${this.name}-${at}`, {
      turned: false,
      phone: false,
      width: NOMINAL,
      covered: [],
      least: 0,
    });
    const box = [
      scene.t0 - 6,
      scene.side - 14,
      Math.max(540, scene.length + 12),
      scene.n * scene.pitch - scene.between + 22,
    ];
    return scene
      .svg()
      .replace("<svg ", `<svg viewBox="${box.join(" ")}" preserveAspectRatio="xMinYMid" `)
      .replace('role="img"', 'aria-hidden="true"');
  }

  go() {
    const [number, ended, note] = this.told.runs[this.inputs.value][this.program][this.fabric];
    const fabric = this.told.fabrics[this.fabric].replace(`, ${data.runs[number].scene.word}`, "");
    // which stands above
    this.model.set(
      "heading",
      [`${this.told.programs[this.program]}, ${fabric}`, note].filter(Boolean).join(": "),
    );
    show(this, data, number);
    this.announce(ended);
  }

  /** Arrows go where they point. @param {KeyboardEvent} event @param {number} at */
  walk(event, at) {
    const step = { ArrowLeft: -this.many, ArrowRight: this.many, ArrowUp: -1, ArrowDown: 1 }[
      event.key
    ];
    if (step === undefined) return;
    event.preventDefault();
    const to = at + step;
    if (
      !this.radios[to] ||
      (Math.abs(step) === 1 && Math.floor(to / this.many) !== Math.floor(at / this.many))
    )
      return;
    this.radios[to].focus();
    this.radios[to].click();
  }
}

const told = JSON.parse(find(document, "#gallery").textContent),
  gallery = new Gallery(find(document, ".live"), told);
follow(gallery, (said) => gallery.arrive(said));
