// The gallery: one large picture, and below it small ones of every run; choosing one fills the large one.

import { arrow, choice, find, findAll } from "./dom.js";
import { First } from "./first.js";
import { data, follow } from "./page.js";
import { show } from "./positions.js";
import { Picture } from "./picture.js";
import { Store } from "./store.js";
import { tag } from "./text.js";

const NOMINAL = 800; // px for which a small picture is drawn, before it is made small

class Gallery extends First {
  constructor(root, told) {
    super(root, new Store());
    this.told = told;
    this.radios = /** @type {HTMLInputElement[]} */ (findAll(document, ".gallery input"));
    this.many = told.fabrics.length;
    this.inputs = choice(
      "Inputs of rank 0 and rank 1",
      () => this.fill(),
      Object.keys(told.runs),
      (value) => `${value.replace(",", " and ")} inputs`,
    );
    this.inputs.value = told.start;
    this.own.append(this.inputs);
    this.radios.forEach((radio, at) => {
      radio.onchange = () => this.go();
      radio.onkeydown = (event) => this.walk(event, at);
    });
  }

  get address() {
    const { program, fabric } = this.place();
    return {
      case: 1 + program,
      on: 1 + fabric,
      inputs: this.inputs.value,
      ...super.address,
    };
  }

  // What stands at a place of the table, at first that of the large picture.
  place(at = this.radios.findIndex((radio) => radio.checked)) {
    const [program, fabric] = [Math.floor(at / this.many), at % this.many],
      { programs, fabrics, runs } = this.told,
      [number, ended, note] = runs[this.inputs.value][program][fabric],
      name = `${programs[program]}, ${fabrics[fabric]}`;
    return { program, fabric, name, number, ended, note, run: data.runs[number] };
  }

  goTo(asked) {
    const { program, fabric } = this.place(),
      number = (name, now) => Number(asked.get(name) ?? now + 1) - 1;
    if (asked.get("inputs") in this.told.runs) this.inputs.value = asked.get("inputs");
    const radio = this.radios[number("case", program) * this.many + number("on", fabric)];
    if (radio) radio.checked = true;
    this.fill();
    super.goTo(asked);
  }

  // Draw every small picture, and the large one.
  fill() {
    this.radios.forEach((radio, at) => {
      const { name, ended, run } = this.place(at),
        small = find(radio.parentElement, ".small");
      radio.ariaLabel = `${name}: ${ended}`;
      small.className = `small drawn jl-tone-${run.scene.tone}`;
      small.title = ended;
      const signs = run.scene.ends.map(([sign, , tone]) =>
        tag("span", { class: `jl-tone-${tone}` }, sign, tone === "warn" ? "…" : ""),
      );
      small.innerHTML = this.small(run, at) + tag("span", { class: "signs" }, signs);
    });
    this.go();
  }

  /** The large picture of a run without its words. @param {RawRun} run */
  small(run, at) {
    const scene = new Picture(data, run, `${this.name}-${at}`, { width: NOMINAL }),
      { t0, side, long, n, pitch, between } = scene,
      box = [t0 - 6, side - 14, Math.max(540, long + 12), n * pitch - between + 22].join(" ");
    return scene
      .svg()
      .replace("<svg ", `<svg viewBox="${box}" preserveAspectRatio="xMinYMid" `)
      .replace('role="img"', 'aria-hidden="true"');
  }

  go() {
    const { name, number, ended, note, run } = this.place(),
      short = name.replace(`, ${run.scene.provenance}`, ""); // which stands above
    this.model.set("heading", [short, note].filter(Boolean).join(": "));
    show(this, data, number);
    this.announce(ended);
  }

  // Arrows go where they point.
  walk(event, at) {
    const [x, y] = arrow(event),
      to = at + x * this.many + y,
      radio = this.radios[to];
    if (x === undefined) return;
    event.preventDefault();
    if (!radio || (y && this.place(to).program !== this.place(at).program)) return;
    radio.focus();
    radio.click();
  }
}

follow(new Gallery(find(document, ".live"), data.gallery));
