// Puts the live view in place of each static picture of a page, and moves it where the page has sliders.

import { unpack } from "./layout.js";
import { Store } from "./store.js";
import { mount } from "./view.js";

const packed = Uint8Array.from(atob(document.getElementById("data").textContent), (c) => c.charCodeAt(0));
const data = await unpack(packed);

/** @param {HTMLElement} place @param {number} number of the run */
function show(place, number) {
  const store = new Store({});
  place.classList.add("drawn");
  const view = mount(/** @type {HTMLElement} */ (place.querySelector(".live")), store);
  view.show(data, data.runs[number]);
  return view;
}

const inSight = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) {
    if (!isIntersecting) continue;
    inSight.unobserve(target);
    const place = /** @type {HTMLElement} */ (target);
    show(place, Number(place.dataset.run));
  }
}, { rootMargin: "600px" });
for (const place of document.querySelectorAll("[data-run]")) inSight.observe(place);

const sliders = document.getElementById("sliders");
if (sliders) {
  const { runs } = JSON.parse(document.getElementById("positions").textContent);
  const place = /** @type {HTMLElement} */ (document.querySelector(".run-view"));
  /** @type {{ shown: ReturnType<typeof mount> | null }} */
  const view = { shown: null };
  const counts = [...sliders.querySelectorAll("input")], [program, setting] = sliders.querySelectorAll("select");
  const move = () => {
    for (const count of counts) count.nextElementSibling.textContent = count.value;
    const number = runs[program.value][setting.value][counts.map((count) => count.value).join(",")];
    if (view.shown) view.shown.show(data, data.runs[number]);
    else view.shown = show(place, number);
    place.dataset.shown = String(number);
  };
  sliders.addEventListener("input", move);
  sliders.hidden = false;
  move();
}
