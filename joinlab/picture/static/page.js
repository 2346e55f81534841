// Puts the live view in place of each static picture of a page; where the page has positions, with dots that
// move it.

import { element, find, findAll } from "./dom.js";
import { dots, wireDots } from "./dots.js";
import { First, mount } from "./first.js";
import { ENDS, Hand } from "./hand.js";
import { unpack } from "./data.js";
import { EndingMap } from "./map.js";
import { Store } from "./store.js";

const packed = Uint8Array.from(atob(find(document, "#data").textContent), (c) => c.charCodeAt(0));
export const data = await unpack(packed);

if (self !== top) {
  document.body.classList.add("framed"); // the page around it has a heading, and makes the frame as high
  new ResizeObserver(([{ target }]) =>
    parent.postMessage({ joinlab: Math.ceil(target.getBoundingClientRect().height) }, "*"),
  ).observe(document.body);
}

/** What the address says: #case=4&inputs=2,3&at=28.5 */
export const asked = () => new URLSearchParams(location.hash.slice(1));

/** @param {HTMLElement} place @param {First} view @param {number} number of the run */
export function show(place, view, number) {
  place.classList.add("drawn");
  place.dataset.shown = String(number);
  view.show(data, data.runs[number]);
}

/** Write the position of a view into the address. @param {First} view @param {Record<string, string>} more */
export function follow(view, more = {}) {
  if (location.protocol === "about:") return; // in a notebook's cell, which has no address
  const kept = Object.entries({ ...more, ...view.address });
  const hash = kept
    .map(([name, said]) => `${name}=${encodeURIComponent(said).replaceAll("%2C", ",")}`)
    .join("&");
  const before = asked(),
    other = ["case", "on", "barrier"].some((name) => before.get(name) !== (more[name] ?? null)),
    how = other && before.has("case") ? "pushState" : "replaceState"; // Back goes back to a case
  history[how](null, "", hash ? `#${hash}` : location.pathname + location.search);
}

const all = findAll(document, "[data-run]");
const inSight = new IntersectionObserver(
  (entries) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      inSight.unobserve(target);
      const place = /** @type {HTMLElement} */ (target),
        view = mount(find(place, ".live"), new Store({}));
      show(place, view, Number(place.dataset.run));
      if (all.length > 1) continue;
      view.goTo(asked());
      view.moved = () => follow(view);
    }
  },
  { rootMargin: "600px" },
);
for (const place of all) inSight.observe(place);

/** A view that shows the run of one position at a time. */
class Positions extends First {
  /** @param {HTMLElement} root @param {HTMLElement} place
   * @param {{ runs: Record<string, Record<string, Record<string, number>>>, map: import("./map.js").MapData
   * | null, loop: [boolean, string][] }} told */
  constructor(root, place, { runs, map, loop }) {
    super(root, new Store({}));
    this.endings = map;
    this.map = map && new EndingMap((counts) => this.go(counts));
    if (this.map) {
      place.prepend(this.map.whole);
      place.classList.add("mapped");
    }
    this.place = place;
    this.runs = runs;
    const form = find(document, "#positions-of"),
      [program, setting] = /** @type {HTMLSelectElement[]} */ (findAll(form, "select"));
    this.program = program;
    this.setting = setting;
    this.counts = form.dataset.inputs.split(",").map(Number);
    this.first = form.dataset.inputs;
    this.loop = loop;
    this.tools.querySelector(".jl-own").append(...(loop.length ? [] : [program]), setting);
    if (loop.length) {
      this.hand = new Hand(this);
      const size = (packed.length / 750000).toFixed(1); // as text, a third more
      const held = `This page holds all its ${data.runs.length} runs, ${size} MB: none is computed here.`;
      this.story.before(element("div", { class: "jl-bar" }, program, this.turner, held));
    }
    for (const one of [program, setting]) one.addEventListener("change", () => this.go());
    this.most = Math.max(
      ...Object.keys(runs[program.value][setting.value]).flatMap((key) =>
        key.split(",").map(Number),
      ),
    );
    wireDots(
      this.stage,
      () => this.counts,
      this.most,
      (counts) => this.go(counts),
    );
    this.moved = () =>
      follow(this, {
        case: String(program.selectedIndex + 1),
        barrier: String(setting.selectedIndex),
        inputs: this.counts.join(),
      });
    this.arrive();
    addEventListener("hashchange", () => this.arrive());
  }

  /** Go where the address points. */
  arrive() {
    const said = asked(),
      inputs = said.get("inputs") ?? this.first;
    if (said.has("case"))
      this.program.selectedIndex = Math.max(
        0,
        Math.min(this.program.length, Number(said.get("case"))) - 1,
      );
    if (said.has("barrier"))
      this.setting.selectedIndex = Math.min(this.setting.length - 1, Number(said.get("barrier")));
    this.go(inputs in this.here ? inputs.split(",").map(Number) : this.counts);
    this.goTo(said);
  }

  get here() {
    return this.runs[this.program.value][this.setting.value];
  }

  /** @param {number[]} counts */
  go(counts = this.counts) {
    if (!(counts.join() in this.here)) return;
    this.counts = counts;
    this.map?.draw(this.endings, counts);
    show(this.place, this, this.here[counts.join()]);
  }

  // -- the loop in hand

  get case() {
    return this.program.selectedIndex + 1;
  }

  /** The run of a case with these inputs. @param {number} n */
  runOf(n) {
    return this.runs[this.program.options[n - 1].value][this.setting.value][this.counts.join()];
  }

  /** @param {number} n */
  toneOf(n) {
    return data.runs[this.runOf(n)].scene.tone;
  }

  /** @param {number} n */
  glance(n) {
    show(this.place, this, this.runOf(n));
    return true;
  }

  /** @param {number} n */
  take(n) {
    this.program.selectedIndex = n - 1;
    this.go();
  }

  get before() {
    return 186;
  }

  /** @param {number} lane */
  headHeight(lane) {
    return 48;
  }

  /** @param {number} lane */
  head(lane) {
    return dots(lane, this.counts[lane], this.most, false, (n) => {
      const tone = data.runs[this.here[this.counts.with(lane, n).join()]]?.scene.tone;
      if (!tone) return null;
      const color = `color-mix(in srgb, var(--jl-${tone === "good" ? "right" : tone}) 30%, transparent)`;
      return { sign: ENDS[tone][0], color };
    });
  }
}

const positions = find(document, "#positions");
if (positions) {
  const place = find(document, ".run-view");
  new Positions(find(place, ".live"), place, JSON.parse(positions.textContent));
}
