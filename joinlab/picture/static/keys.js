// Keys beyond the arrows: zoom and pan, search, and the list of all keys.

import { PARTS } from "./boxes.js";
import { button, element } from "./dom.js";
import { factsIn, layoutOf } from "./layout.js";
import { esc } from "./text.js";

/** Every key of the picture, as the reader is told of them. */
export const KEYS = [
  ["← ↑ ↓ →", "step through rows and ranks"], ["Home End", "first and last row"], ["PgUp PgDn", "five rows"],
  ["n", "next mismatch"], ["w s, + −, Ctrl+wheel", "zoom"], ["a d", "pan"], ["f, 0", "fit"],
  ["/", "search by text, rank, kind or group"], ["Esc", "select nothing; close this list"], ["?", "this list"],
];

const PAN = 0.25; // of what is in sight

export class Keys {
  /** @param {import("./view.js").LiveView} view */
  constructor(view) {
    this.view = view;
    this.list = element("div", { class: "jl-keys", role: "dialog", "aria-label": "Keys", hidden: true });
    this.list.innerHTML = `<dl>${KEYS.map(([keys, what]) => `<div><dt><kbd>${esc(keys)}</kbd></dt><dd>${esc(what)}</dd></div>`).join("")}</dl>`;
    this.list.append(button("close", "Close the list of keys", () => this.help(false)));
    this.field = /** @type {HTMLInputElement} */ (element("input", { type: "search", placeholder: "text, rank 1, barrier …", "aria-label": "Search the calls" }));
    this.found = element("span", { class: "jl-soft" });
    this.search = element("span", { class: "jl-search", role: "search", hidden: true }, this.field, this.found);
    this.ask = button("?", "Keys", () => this.help(this.list.hidden), { "aria-label": "? keys", "aria-expanded": "false" });
    view.toolbar.bar.append(this.search, this.ask);
    view.view.append(this.list);
    this.field.addEventListener("keydown", (event) => {
      event.stopPropagation();
      if (event.key === "Enter") this.next();
      if (event.key === "Escape") this.close();
    });
    this.list.addEventListener("keydown", (event) => {
      event.stopPropagation();
      if (event.key === "Escape") this.help(false);
    });
  }

  /** What a key does here, if anything. @param {string} key @returns {(() => void) | undefined} */
  action(key) {
    const { view } = this;
    /** @type {Record<string, () => void>} */
    const actions = {
      w: () => view.zoomTo(view.zoom + 1), s: () => view.zoomTo(view.zoom - 1),
      a: () => this.pan(-1), d: () => this.pan(1), "?": () => this.help(this.list.hidden), "/": () => this.open(),
    };
    return actions[key];
  }

  /** @param {number} by 1: onward along the axis */
  pan(by) {
    const { scroll, picture } = this.view;
    if (picture.down) scroll.scrollTop += by * PAN * scroll.clientHeight;
    else scroll.scrollLeft += by * PAN * scroll.clientWidth;
  }

  /** @param {boolean} shown */
  help(shown) {
    this.list.hidden = !shown;
    this.ask.setAttribute("aria-expanded", String(shown));
    if (shown) /** @type {HTMLElement} */ (this.list.querySelector("button")).focus();
    else this.view.grid?.focus();
  }

  open() {
    this.search.hidden = false;
    this.field.focus();
  }

  close() {
    this.search.hidden = true;
    this.found.textContent = "";
    this.view.grid.focus();
  }

  next() { // the next call with all the words, the first one after the last
    const { view } = this, { selected } = view;
    const { boxes } = layoutOf(view.data, view.run, "logical", true); // what lies in a fold is found, too
    const words = this.field.value.toLowerCase().split(/\s+/).filter(Boolean), here = boxes.rowOf(selected);
    const fits = (/** @type {Box} */ box) => {
      const told = [box.label, `rank ${box.rank}`, view.data.looks.kinds[box.kind].name, ...factsIn(view.data, box).filter(([name]) => name.startsWith("group")).map(([name, said]) => `${name} ${said}`)];
      const text = told.join(" ").toLowerCase();
      return words.every((word) => text.includes(word));
    };
    /** Calls of one kind and rank say the same here. @type {Map<string, boolean>} */
    const known = new Map();
    const { code, lane } = boxes.columns;
    let [count, at, hit] = [0, 0, /** @type {number | null} */ (null)];
    for (const slot of words.length ? boxes.slots : [])
      for (const i of boxes.members.subarray(boxes.offsets[slot], boxes.offsets[slot + 1])) {
        const rank = lane[i] / PARTS, key = code ? `${code[i]},${rank}` : `${i}`;
        if (!known.has(key)) known.set(key, view.picture.seen(rank) && fits(boxes.box(i)));
        if (!known.get(key)) continue;
        count++;
        const behind = boxes.rowOf(slot) > here || (slot === selected && rank > view.rank);
        if (hit === null || (!at && behind)) hit = i; // the first of all, until one lies behind what is selected
        if (!at && behind) at = count;
      }
    this.found.textContent = count ? ` ${Math.max(at, 1)} of ${count}` : " none";
    if (hit !== null) view.select(boxes.columns.slot[hit], lane[hit] / PARTS);
  }
}
