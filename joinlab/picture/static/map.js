// The map of endings: a grid over the inputs of two ranks, each cell coloured by how the program ends there.

import { arrow, element, find, fresh, hit, write } from "./dom.js";
import { clamp, esc, tag } from "./text.js";

export class EndingMap {
  // choose: called with the inputs of a cell that was chosen
  constructor(choose) {
    this.choose = choose;
    this.name = fresh();
    this.counts = [0, 0];
    this.most = 0;
    this.grid = element("div.jlm-grid", {
      role: "grid",
      tabindex: "0",
      "aria-label": "Map of endings: inputs of rank 0 across, of rank 1 upward. Arrow keys move.",
    });
    this.legend = element("p.jlm-legend");
    this.whole = element("section.jlm", { "aria-label": "Map of endings" }, this.grid, this.legend);
    this.grid.onclick = (event) => {
      const cell = hit(event, "[data-cell]");
      if (cell) this.go(cell.dataset.cell.split(",").map(Number));
    };
    this.grid.onkeydown = (event) => {
      const [x, y] = arrow(event),
        [a, b] = this.counts;
      if (x === undefined) return;
      event.preventDefault();
      this.go([a + x, b - y].map((count) => clamp(count, 0, this.most)));
    };
  }

  go(counts) {
    this.counts = counts;
    this.mark();
    this.choose(counts);
  }

  // counts: those that the dots show
  draw({ most = 0, kinds = [], cells = {}, note = "" }, counts) {
    this.whole.hidden = !kinds.length;
    this.counts = counts;
    this.most = most;
    const axis = [...Array(most + 1).keys()],
      colour = (kind) => kind && kind !== kinds[0] && `background:${kind.color}`;
    const rows = axis.toReversed().map((y) => {
      const row = axis.map((x) => {
        const kind = kinds[cells[`${x},${y}`]],
          title = esc(`rank 0: ${x}, rank 1: ${y} inputs: ${kind?.name ?? "not emulated yet"}`);
        const look = {
          role: "gridcell",
          id: `${this.name}-${x}-${y}`,
          "data-cell": `${x},${y}`,
          "aria-label": title,
          title,
          class: kind && kind === kinds[0] && "jlm-quiet",
          style: colour(kind),
        };
        return tag("span", look, kind?.sign);
      });
      const head = `<span class="jlm-axis" role="rowheader">${y}</span>`;
      return tag("div", { role: "row" }, head, row);
    });
    const foot = ["", ...axis].map((x) => `<span class="jlm-axis">${x}</span>`);
    write(this.grid, rows, tag("div", { "aria-hidden": "true" }, foot));
    const present = kinds
      .filter((_, number) => Object.values(cells).includes(number))
      .map(
        (kind) => `<span>${tag("i", { style: colour(kind) }, kind.sign)} ${esc(kind.name)}</span>`,
      );
    const how = `rank 0 across, rank 1 upward${note && `. ${esc(note)}`}`;
    write(this.legend, `${present.join(" ")}<span class="jl-soft">${how}</span>`);
    this.mark();
  }

  mark() {
    const here = find(this.grid, `[data-cell="${this.counts}"]`);
    find(this.grid, "[aria-selected]")?.removeAttribute("aria-selected");
    here?.setAttribute("aria-selected", "true");
    this.grid.setAttribute("aria-activedescendant", here?.id ?? "");
  }
}
