// Keys beyond the arrows: zoom and pan, search, and the list of all keys.

import { button, element } from "./dom.js";
import { layoutOf } from "./layout.js";
import { esc } from "./text.js";

/** Every key of the picture, as the reader is told of them. */
export const KEYS = [
  ["← ↑ ↓ →", "step through rows and ranks"], ["Home End", "first and last row"], ["PgUp PgDn", "five rows"],
  ["n", "next mismatch"], ["Space", "play, pause"], ["w s, + −, Ctrl+wheel", "zoom"], ["a d", "pan"], ["f, 0", "fit"],
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
    const layout = layoutOf(view.data, view.run, "logical", true); // what lies in a fold is found, too
    const words = this.field.value.toLowerCase().split(/\s+/).filter(Boolean);
    const hits = layout.calls.filter((box) => {
      if (!view.picture.seen(box.rank)) return false;
      const told = [box.label, `rank ${box.rank}`, view.data.looks.kinds[box.kind].name, ...box.facts.filter(([name]) => name === "group").map(([name, said]) => `${name} ${said}`)];
      return words.length && words.every((word) => told.join(" ").toLowerCase().includes(word));
    }).sort((one, other) => layout.slots.indexOf(one.slot) - layout.slots.indexOf(other.slot) || one.rank - other.rank);
    const here = layout.slots.indexOf(selected);
    const at = hits.findIndex((box) => layout.slots.indexOf(box.slot) > here || (box.slot === selected && box.rank > view.rank));
    const hit = hits[Math.max(at, 0)];
    this.found.textContent = hits.length ? ` ${Math.max(at, 0) + 1} of ${hits.length}` : " none";
    if (hit) view.select(hit.slot, hit.rank);
  }
}
