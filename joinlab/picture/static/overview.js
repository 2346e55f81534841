// The overview: the whole run as one strip, row by row, with the window that the picture shows and what went wrong.

import { PARTS } from "./boxes.js";
import { element } from "./dom.js";
import { px } from "./text.js";

const COLUMNS = 480, LANE = 7, MOST = 8; // at most so many columns, px a lane, lanes

export class Overview {
  /** @param {(slot: number) => void} select goes to a row */
  constructor(select) {
    this.root = element("div", { class: "jl-overview" });
    /** @type {Int32Array} */
    this.slots = new Int32Array(0);
    /** What the strip shows: to draw it again costs a look at every call. @type {{ whole: Layout | null, covered: boolean }} */
    this.shown = { whole: null, covered: false };
    this.root.addEventListener("click", (event) => {
      const box = this.root.getBoundingClientRect();
      const at = Math.floor(((event.clientX - box.left) / box.width) * this.slots.length);
      if (this.slots.length) select(this.slots[Math.min(Math.max(at, 0), this.slots.length - 1)]);
    });
  }

  /** Draw the strip of a run. @param {Layout} whole every row @param {Looks} looks @param {RawRun} run
   * @param {boolean} covered */
  draw(whole, looks, run, covered) {
    const { boxes } = whole, { wrong } = run.verdict;
    if (this.shown.whole === whole && this.shown.covered === covered) return;
    this.shown = { whole, covered };
    this.slots = boxes.slots;
    this.root.hidden = covered || boxes.slots.length < 4;
    if (this.root.hidden) return;
    const count = boxes.slots.length, each = Math.max(1, Math.ceil(count / COLUMNS)), shown = Math.min(run.ranks, MOST);
    const bad = new Set(wrong), column = (/** @type {number} */ slot) => Math.floor(boxes.rowOf(slot) / each);
    const columns = Math.ceil(count / each), height = shown * LANE, rects = [];
    for (let lane = 0; lane < shown; lane++) {
      const drawn = new Uint8Array(columns); // a cell has the colour of the first call in it
      for (let p = boxes.starts[lane * PARTS]; p < boxes.starts[lane * PARTS + 1]; p++) {
        const i = boxes.order[p], x = column(boxes.columns.slot[i]);
        if (drawn[x]) continue;
        drawn[x] = 1;
        rects.push(`<rect x="${x}" y="${lane * LANE}" width=".92" height="${LANE - 1}" fill="${looks.kinds[boxes.columns.kind[i]].color}"/>`);
      }
    }
    const marks = [...new Set([...bad].map(column))].map((x) => `<rect x="${x}" y="${height}" width="1" height="4" class="jl-wrongmark"/>`);
    this.root.innerHTML =
      `<svg viewBox="0 0 ${columns} ${height + 4}" preserveAspectRatio="none" width="100%" height="${height + 4}" role="img" ` +
      `aria-label="The whole run: ${count} rows, ${bad.size} of them wrong">${rects.join("")}${marks.join("")}</svg><div class="jl-window"></div>`;
  }

  /** Show which part of the run the picture shows. @param {import("./picture.js").Picture} picture @param {HTMLElement} scroll */
  window(picture, scroll) {
    const frame = /** @type {HTMLElement | null} */ (this.root.querySelector(".jl-window"));
    if (!frame || !this.slots.length || picture.time) return;
    const [from, size] = picture.down ? [scroll.scrollTop, scroll.clientHeight] : [scroll.scrollLeft, scroll.clientWidth];
    const { boxes } = picture.layout, [begin, end] = [picture.unitAt(from), picture.unitAt(from + size)];
    let [low, high] = [Infinity, -1]; // rows of the picture
    for (let lane = 0; lane < picture.n; lane++) {
      const [first, behind] = boxes.between(lane * PARTS, begin, end);
      if (behind <= first) continue;
      low = Math.min(low, boxes.rowOf(boxes.columns.slot[boxes.order[first]]));
      high = Math.max(high, boxes.rowOf(boxes.columns.slot[boxes.order[behind - 1]]));
    }
    if (high < 0) return;
    const { boxes: all } = this.shown.whole, next = boxes.slots[high + 1]; // a fold reaches to the next row
    const left = Math.max(all.rowOf(boxes.slots[low]), 0), right = next === undefined ? this.slots.length : all.rowOf(next);
    frame.style.left = `${px((left / this.slots.length) * 100)}%`;
    frame.style.width = `${px((Math.max(right - left, 1) / this.slots.length) * 100)}%`;
  }
}
