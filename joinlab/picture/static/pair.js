// What two views side by side share: one toolbar, one legend, and one panel that tells of both, with the program once.

import { drawDetails } from "./details.js";
import { element } from "./dom.js";
import { drawSource } from "./source.js";

/** The two views that are compared, and the places that Python left for what they share; null for a view by itself.
 * @param {HTMLElement} view @returns {{ views: Neighbour[], bar: HTMLElement, below: HTMLElement } | null} */
export function pairOf(view) {
  const whole = view.closest(".joinlab-compared");
  if (!whole) return null;
  const views = [.../** @type {NodeListOf<HTMLElement>} */ (whole.querySelectorAll(".joinlab-beside .jl"))].map((one) => one.joinlab);
  const [bar, below] = [".joinlab-shared-bar", ".joinlab-shared-below"].map((name) => /** @type {HTMLElement} */ (whole.querySelector(name)));
  return { views: views.filter((one) => one), bar, below };
}

/** The view whose buttons and legend serve both: the bench's own, else the left one. @param {Neighbour[]} views */
export const leader = (views) => views.find((one) => one.view.classList.contains("jl-board")) ?? views[0];

/** Put what is shared where both see it. @param {Neighbour} own @returns {boolean} whether this view is one of two */
export function share(own) {
  const pair = pairOf(own.view);
  if (!pair) return false;
  own.side.remove();
  if (leader(pair.views) !== own) {
    own.bar.remove();
    own.legend.remove();
    return true;
  }
  for (const [place, part] of /** @type {[HTMLElement, HTMLElement][]} */ ([[pair.bar, own.bar], [pair.below, own.legend]])) {
    if (!place.firstElementChild) place.append(element("div", { class: "jl" }));
    if (part.parentElement !== place.firstElementChild) place.firstElementChild.replaceChildren(part);
  }
  return true;
}

/** Tell below both what is selected in each. @param {HTMLElement} view one of the two */
export function drawBoth(view) {
  const { views, below } = pairOf(view), drawn = views.filter((one) => one.picture);
  const place = below.firstElementChild;
  if (!place) return;
  let both = /** @type {HTMLElement | null} */ (place.querySelector(".jl-both"));
  if (!both) place.append(both = element("section", { class: "jl-both", "aria-label": "Selected rows" }));
  while (both.children.length < 4) both.append(element("section", { class: both.children.length < 2 ? "jl-panel" : "jl-source" }));
  const [left, right, program, another] = /** @type {HTMLElement[]} */ ([...both.children]);
  [left, right].forEach((panel, at) => {
    const one = drawn[at];
    if (one) drawDetails(panel, one.picture, one.selected, one.rank, () => one.press(one.selected, one.rank), one.name);
  });
  const texts = drawn.map(({ picture: { data, run } }) => data.texts[run.sources[0]?.text]);
  const same = drawn.length === 2 && texts[0] === texts[1];
  drawSource(program, drawn.slice(0, same ? 2 : 1));
  drawSource(another, same ? [] : drawn.slice(1));
  another.hidden = same;
}
