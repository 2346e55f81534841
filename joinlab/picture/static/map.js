// The map of endings: a grid over the inputs of two ranks, each cell coloured by how the program ends there.

import { arrow, element, find, fresh, hit, write } from "./dom.js";
import { clamp, esc, tag } from "./text.js";

// `choose` is called with the inputs of a cell that was chosen.
export function endingMap(choose) {
  const name = fresh(),
    legend = element("p.jlm-legend"),
    grid = element("div.jlm-grid", {
      role: "grid",
      tabindex: "0",
      "aria-label": "Map of endings: inputs of rank 0 across, of rank 1 upward. Arrow keys move.",
    }),
    whole = element("section.jlm", { "aria-label": "Map of endings" }, grid, legend);
  let inputs = [0, 0],
    highest = 0;
  grid.onclick = (event) => {
    const cell = hit(event, "[data-cell]");
    if (cell) go(cell.dataset.cell.split(",").map(Number));
  };
  grid.onkeydown = (event) => {
    const [x, y] = arrow(event),
      [a, b] = inputs;
    if (x === undefined) return;
    event.preventDefault();
    go([a + x, b - y].map((count) => clamp(count, 0, highest)));
  };

  function go(counts) {
    mark(counts);
    choose(counts);
  }

  function mark(counts) {
    inputs = counts;
    const here = find(grid, `[data-cell="${counts}"]`);
    find(grid, "[aria-selected]")?.removeAttribute("aria-selected");
    here?.setAttribute("aria-selected", "true");
    grid.setAttribute("aria-activedescendant", here?.id ?? "");
  }

  // counts: those that the dots show
  function draw({ most = 0, kinds = [], cells = {}, note = "" }, counts) {
    whole.hidden = !kinds.length;
    highest = most;
    const axis = [...Array(most + 1).keys()],
      colour = (kind) => kind && kind !== kinds[0] && `background:${kind.color}`;
    const rows = axis.toReversed().map((y) => {
      const row = axis.map((x) => {
        const kind = kinds[cells[`${x},${y}`]],
          title = esc(`rank 0: ${x}, rank 1: ${y} inputs: ${kind?.name ?? "not emulated yet"}`);
        const look = {
          role: "gridcell",
          id: `${name}-${x}-${y}`,
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
    write(grid, rows, tag("div", { "aria-hidden": "true" }, foot));
    const present = kinds
      .filter((_, number) => Object.values(cells).includes(number))
      .map(
        (kind) => `<span>${tag("i", { style: colour(kind) }, kind.sign)} ${esc(kind.name)}</span>`,
      );
    const how = `rank 0 across, rank 1 upward${note && `. ${esc(note)}`}`;
    write(legend, `${present.join(" ")}<span class="jl-soft">${how}</span>`);
    mark(counts);
  }

  return { whole, draw };
}
