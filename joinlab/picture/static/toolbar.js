// The buttons above the picture.

import { button, element } from "./dom.js";

/** What the buttons do.
 * @typedef {{ axis(axis: string): void, turn(): void, setup(): void, zoom(by: number): void, fit(): void }} Commands */

/** @param {Commands} commands */
export function toolbar(commands) {
  const axes = ["logical", "time"].map((axis) => {
    const name = axis === "time" ? "time" : "calls that met";
    const title = axis === "time" ? "Axis: time" : "Axis: one row for the calls that met";
    return button(name, title, () => commands.axis(axis), { "data-axis": axis });
  });
  const setup = button("unfold all", "Show every row", () => commands.setup());
  const bar = element("div", { class: "jl-bar", role: "toolbar", "aria-label": "Picture" },
    element("div", { role: "group", "aria-label": "Axis", class: "jl-choice" }, ...axes),
    element("div", { class: "jl-choice", role: "group", "aria-label": "Zoom" },
      button("−", "Zoom out", () => commands.zoom(-1), { "aria-label": "− zoom out" }),
      button("fit", "Zoom to fit", () => commands.fit()),
      button("+", "Zoom in", () => commands.zoom(1), { "aria-label": "+ zoom in" })),
    button("turn", "Ranks as rows or columns", () => commands.turn()), setup);
  return {
    bar,
    /** @param {string} axis @param {boolean} unfolded */
    update(axis, unfolded) {
      for (const one of axes) one.setAttribute("aria-pressed", String(one.dataset.axis === axis));
      setup.setAttribute("aria-pressed", String(unfolded));
    },
  };
}
