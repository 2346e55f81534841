// Puts the live view in place of each static picture of a page, and its position into the address.

import { bytesOf, unpack } from "./data.js";
import { find, findAll } from "./dom.js";
import { First, mount } from "./first.js";
import { Positions, show } from "./positions.js";
import { Store } from "./store.js";

export const data = await unpack(bytesOf(find(document, "#data").textContent));

/** What the address says: #case=4&inputs=2,3&at=28.5 */
export const asked = () => new URLSearchParams(location.hash.slice(1));

/** Go where the address points, whenever it changes, and write the position of a view into it.
 * @param {First} view @param {(said: URLSearchParams) => void} arrive */
export function follow(view, arrive) {
  view.moved = () => {
    if (location.protocol === "about:") return; // in a notebook's cell, which has no address
    const { address, hash } = view,
      before = asked(),
      other = ["case", "on", "barrier"].some(
        (name) => before.get(name) !== (address[name] ?? null),
      ),
      how = other && before.has("case") ? "pushState" : "replaceState"; // Back goes back to a case
    history[how](null, "", hash ? `#${hash}` : location.pathname + location.search);
  };
  arrive(asked());
  addEventListener("hashchange", () => arrive(asked()));
}

const all = findAll(document, "[data-run]");
const inSight = new IntersectionObserver(
  (entries) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      inSight.unobserve(target);
      const place = /** @type {HTMLElement} */ (target),
        view = mount(find(place, ".live"), new Store({}));
      show(view, data, Number(place.dataset.run));
      if (all.length === 1) follow(view, (said) => view.goTo(said));
    }
  },
  { rootMargin: "600px" },
);
for (const place of all) inSight.observe(place);

if (data.positions) {
  const view = new Positions(find(document, ".live"), new Store({}), data);
  follow(view, (said) => view.arrive(said));
}
