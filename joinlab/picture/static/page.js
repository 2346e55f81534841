// Puts the live view in place of each static picture of a page, and its position into the address.

import { bytesOf, unpack } from "./data.js";
import { find, findAll } from "./dom.js";
import { First } from "./first.js";
import { Positions, show } from "./positions.js";
import { Store } from "./store.js";

export const data = await unpack(bytesOf(find(document, "#data").textContent));

/** Go where the address points, #case=4&inputs=2,3&at=28.5, whenever it changes, and write into it where a
 * view is.
 * @param {First} view */
export function follow(view) {
  const asked = () => new URLSearchParams(location.hash.slice(1));
  view.moved = () => {
    if (location.protocol === "about:") return; // in a notebook's cell, which has no address
    const before = asked(),
      next = new URLSearchParams(view.hash),
      other = ["case", "on", "barrier"].some((name) => before.get(name) !== next.get(name)),
      how = other && before.has("case") ? "pushState" : "replaceState"; // Back goes back to a case
    history[how](null, "", view.hash ? `#${view.hash}` : location.pathname + location.search);
  };
  view.goTo(asked());
  addEventListener("hashchange", () => view.goTo(asked()));
}

const frame = /** @type {?HTMLElement} */ (window.frameElement), // in a notebook's cell
  { body } = document;
if (frame) {
  body.dataset.jpThemeLight = frame.ownerDocument.body.dataset.jpThemeLight;
  new ResizeObserver(() => (frame.style.height = `${body.offsetHeight}px`)).observe(body);
}

const all = findAll(document, "[data-run]");
const inSight = new IntersectionObserver(
  (entries) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      inSight.unobserve(target);
      const place = /** @type {HTMLElement} */ (target),
        view = new First(find(place, ".live"), new Store());
      show(view, data, Number(place.dataset.run));
      if (all.length === 1) follow(view);
    }
  },
  { rootMargin: "600px" },
);
for (const place of all) inSight.observe(place);

if (data.positions) follow(new Positions(find(document, ".live"), new Store(), data));
