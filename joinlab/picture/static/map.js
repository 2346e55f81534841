// The map of endings: a grid over the inputs of two ranks, each cell coloured by how the program ends there.

import { element, find, hit, write } from "./dom.js";
import { clamp, esc, tag } from "./text.js";

/** @typedef {{ most?: number, kinds?: { name: string, sign: string, color: string }[], cells?:
 * Record<string, number>, note?: string }} MapData */

export class EndingMap {
  /** @param {(counts: [number, number]) => void} choose called with the inputs of a cell that was chosen */
  constructor(choose) {
    this.choose = choose;
    this.name = `jlm${(globalThis.joinlabRanks = (globalThis.joinlabRanks ?? 0) + 1)}`;
    /** @type {number[]} */
    this.counts = [0, 0];
    this.most = 0;
    this.grid = element("div", {
      class: "jlm-grid",
      role: "grid",
      tabindex: "0",
      "aria-label": "Map of endings: inputs of rank 0 across, of rank 1 upward. Arrow keys move.",
    });
    this.legend = element("p", { class: "jlm-legend" });
    this.whole = element(
      "section",
      { class: "jlm", "aria-label": "Map of endings" },
      this.grid,
      this.legend,
    );
    this.grid.addEventListener("click", (event) => {
      const cell = hit(event, "[data-cell]");
      if (cell) this.go(/** @type {[number, number]} */ (cell.dataset.cell.split(",").map(Number)));
    });
    this.grid.addEventListener("keydown", (event) => {
      const [x, y] =
        { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[
          event.key
        ] ?? [];
      if (x === undefined) return;
      event.preventDefault();
      this.go([clamp(this.counts[0] + x, 0, this.most), clamp(this.counts[1] + y, 0, this.most)]);
    });
  }

  /** @param {[number, number]} counts */
  go(counts) {
    this.counts = counts;
    this.mark();
    this.choose(counts);
  }

  /** @param {MapData} data @param {number[]} counts those that the sliders show */
  draw({ most = 0, kinds = [], cells = {}, note = "" }, counts) {
    this.whole.hidden = !kinds.length;
    this.counts = counts;
    this.most = most;
    const made = [];
    for (let y = most; y >= 0; y--) {
      const row = [`<span class="jlm-axis" role="rowheader">${y}</span>`];
      for (let x = 0; x <= most; x++) {
        const kind = kinds[cells[`${x},${y}`]];
        const well = kind && kind === kinds[0];
        const look = {
          class: well && "jlm-quiet",
          style: kind && !well && `background:${kind.color}`,
        };
        const said = `rank 0: ${x}, rank 1: ${y} inputs: ${kind ? kind.name : "not emulated yet"}`;
        row.push(
          tag(
            "span",
            {
              role: "gridcell",
              id: `${this.name}-${x}-${y}`,
              "data-cell": `${x},${y}`,
              "aria-label": esc(said),
              title: esc(said),
              ...look,
            },
            kind ? kind.sign : "",
          ),
        );
      }
      made.push(`<div role="row">${row.join("")}</div>`);
    }
    const foot = Array.from(
      { length: most + 1 },
      (_, x) => `<span class="jlm-axis">${x}</span>`,
    ).join("");
    write(
      this.grid,
      `${made.join("")}<div aria-hidden="true"><span class="jlm-axis"></span>${foot}</div>`,
    );
    const present = kinds.filter((_, number) => Object.values(cells).includes(number));
    write(
      this.legend,
      present
        .map(
          ({ name, sign, color }) =>
            `<span>${tag("i", { style: color !== kinds[0].color && `background:${color}` }, sign)} ` +
            `${esc(name)}</span>`,
        )
        .join(" ") +
        `<span class="jl-soft">rank 0 across, rank 1 upward${note ? `. ${esc(note)}` : ""}</span>`,
    );
    this.mark();
  }

  mark() {
    const here = find(this.grid, `[data-cell="${this.counts.join()}"]`);
    find(this.grid, "[aria-selected]")?.removeAttribute("aria-selected");
    here?.setAttribute("aria-selected", "true");
    if (here) this.grid.setAttribute("aria-activedescendant", here.id);
    else this.grid.removeAttribute("aria-activedescendant");
  }
}
