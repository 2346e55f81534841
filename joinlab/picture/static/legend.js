// The legend: what each colour and band means; press a kind to hide or show its boxes.

import { element } from "./dom.js";
import { esc } from "./text.js";

/** @param {string} inside SVG */
const swatch = (inside) => `<svg width="18" height="12" aria-hidden="true">${inside}</svg>`;

/** Fill the legend with what the picture shows.
 * @param {HTMLElement} legend @param {import("./picture.js").Picture} picture @param {string[]} hidden names of kinds
 * @param {(hidden: string[]) => void} hide */
export function drawLegend(legend, picture, hidden, hide) {
  const { looks } = picture;
  const present = new Set(picture.run.ends.flatMap((_, rank) => (picture.seen(rank) ? [...picture.layout.boxes.kinds(rank)] : [])));
  const active = /** @type {HTMLElement | null} */ (document.activeElement);
  const focused = legend.contains(active) ? active.dataset.kind : null;
  /** @param {string} svg @param {string} said */
  const entry = (svg, said) => {
    const made = element("span");
    made.innerHTML = `${swatch(svg)} ${esc(said)}`;
    legend.append(made);
  };
  legend.replaceChildren(...looks.kinds.flatMap(({ name }, kind) => {
    if (!present.has(kind)) return [];
    const shown = !hidden.includes(name);
    const made = element("button", { type: "button", "aria-pressed": String(shown), "data-kind": name,
      onclick: () => hide(shown ? [...hidden, name] : hidden.filter((one) => one !== name)) });
    made.innerHTML = `${swatch(`<rect x=".5" y=".5" width="17" height="11" fill="${picture.fill(kind)}" class="jl-edge"/>`)} ${esc(name)}`;
    return [made];
  }));
  if (!picture.covered.length)
    for (const { bad, met, name } of looks.bands)
      if (picture.layout.kindsOfBands.has(`${bad} ${met}`))
        entry(`<rect x="1" y="1" width="16" height="10" class="${bad ? (met ? "jl-clash" : "jl-miss") : "jl-band"}"/>`, name);
  if (picture.detail?.anyLonger)
    entry('<rect x="1" y="1" width="16" height="10" class="jl-longer" fill="none" stroke="currentColor"/>', "drawn longer than it took; zoom in to see how long");
  if (focused) [.../** @type {HTMLCollectionOf<HTMLElement>} */ (legend.children)].find((one) => one.dataset.kind === focused)?.focus();
}
