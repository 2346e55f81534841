// The overview: the whole run as one strip, row by row, with the window that the picture shows and what went wrong.

import { element } from "./dom.js";
import { px } from "./text.js";

const COLUMNS = 480, LANE = 7, MOST = 8; // at most so many columns, px a lane, lanes

export class Overview {
  /** @param {(slot: number) => void} select goes to a row */
  constructor(select) {
    this.root = element("div", { class: "jl-overview" });
    /** @type {number[]} */
    this.slots = [];
    this.root.addEventListener("click", (event) => {
      const box = this.root.getBoundingClientRect();
      const at = Math.floor(((event.clientX - box.left) / box.width) * this.slots.length);
      if (this.slots.length) select(this.slots[Math.min(Math.max(at, 0), this.slots.length - 1)]);
    });
  }

  /** Draw the strip of a run. @param {Layout} whole every row @param {Looks} looks @param {number} lanes @param {number[]} wrong
   * @param {boolean} covered */
  draw(whole, looks, lanes, wrong, covered) {
    this.slots = whole.slots;
    this.root.hidden = covered || whole.slots.length < 4;
    if (this.root.hidden) return;
    const count = whole.slots.length, each = Math.max(1, Math.ceil(count / COLUMNS)), shown = Math.min(lanes, MOST);
    const bad = new Set(wrong), column = new Map(whole.slots.map((slot, at) => [slot, Math.floor(at / each)]));
    /** The colour of each cell: of the first call in it. @type {Map<string, string>} */
    const cells = new Map();
    for (const box of whole.calls)
      if (box.rank < shown && !cells.has(`${column.get(box.slot)},${box.rank}`))
        cells.set(`${column.get(box.slot)},${box.rank}`, looks.kinds[box.kind].color);
    const columns = Math.ceil(count / each), height = shown * LANE;
    const rects = [...cells].map(([key, color]) => {
      const [x, lane] = key.split(",").map(Number);
      return `<rect x="${x}" y="${lane * LANE}" width=".92" height="${LANE - 1}" fill="${color}"/>`;
    });
    const marks = [...new Set([...bad].map((slot) => column.get(slot)))].map((x) => `<rect x="${x}" y="${height}" width="1" height="4" class="jl-wrongmark"/>`);
    this.root.innerHTML =
      `<svg viewBox="0 0 ${columns} ${height + 4}" preserveAspectRatio="none" width="100%" height="${height + 4}" role="img" ` +
      `aria-label="The whole run: ${count} rows, ${bad.size} of them wrong">${rects.join("")}${marks.join("")}</svg><div class="jl-window"></div>`;
  }

  /** Show which part of the run the picture shows. @param {import("./picture.js").Picture} picture @param {HTMLElement} scroll */
  window(picture, scroll) {
    const frame = /** @type {HTMLElement | null} */ (this.root.querySelector(".jl-window"));
    if (!frame || !this.slots.length || picture.time) return;
    const [from, size] = picture.down ? [scroll.scrollTop, scroll.clientHeight] : [scroll.scrollLeft, scroll.clientWidth];
    const place = new Map(this.slots.map((slot, at) => [slot, at]));
    const seen = picture.layout.calls.filter((box) => picture.along(box.end) >= from && picture.along(box.begin) <= from + size).map((box) => box.slot);
    if (!seen.length) return;
    const last = picture.layout.slots[picture.layout.slots.indexOf(seen.at(-1)) + 1]; // a fold reaches to the next row
    const begin = Math.min(...seen.map((slot) => place.get(slot) ?? 0)), end = last === undefined ? this.slots.length : place.get(last) ?? this.slots.length;
    frame.style.left = `${px((begin / this.slots.length) * 100)}%`;
    frame.style.width = `${px((Math.max(end - begin, 1) / this.slots.length) * 100)}%`;
  }
}
