// The overview: the whole run in one strip, with the part that is in sight and where the ranks part.

import { element } from "./dom.js";
import { px } from "./text.js";

const STRIP_ROW = 7, MOST = 56; // px of a rank, and of all of them

export class Strip {
  /** @param {HTMLElement} scroll the frame that holds the picture */
  constructor(scroll) {
    this.scroll = scroll;
    /** @type {import("./picture.js").Picture | null} */
    this.picture = null;
    this.svg = element("div", { class: "jl-strip", title: "The whole run; click to go there" });
    this.whole = element("div", { class: "jl-overview", "aria-hidden": "true" }, this.svg);
    this.svg.addEventListener("pointerdown", (event) => this.go(event));
    this.svg.addEventListener("pointermove", (event) => { if (event.buttons & 1) this.go(event); });
    scroll.addEventListener("scroll", () => this.look());
  }

  /** @param {PointerEvent} event */
  go(event) {
    const box = this.svg.getBoundingClientRect(), at = (event.clientX - box.left) / box.width;
    if (this.picture.down) this.scroll.scrollTop = at * this.scroll.scrollHeight - this.scroll.clientHeight / 2;
    else this.scroll.scrollLeft = at * this.scroll.scrollWidth - this.scroll.clientWidth / 2;
  }

  /** @param {import("./picture.js").Picture} picture */
  draw(picture) {
    this.picture = picture;
    const row = Math.min(STRIP_ROW, MOST / picture.n), tall = row * picture.n, found = [];
    const length = Math.max(picture.length, 1);
    for (const box of picture.layout.calls) {
      if (!picture.seen(box.rank)) continue;
      const [from, to] = picture.place(box).map((at) => (at / length) * 1000);
      const wrong = box.bad || box.failed || (box.open && !picture.run.good[box.rank]);
      found.push(`<rect x="${px(from)}" y="${px(row * box.rank)}" width="${px(Math.max(to - from - 1, 1))}" height="${px(row - 1)}" ` +
        `fill="${picture.looks.kinds[box.kind].color}"${wrong ? ' class="jl-stripbad"' : ""}/>`);
    }
    this.svg.innerHTML = `<svg viewBox="0 0 1000 ${px(tall)}" preserveAspectRatio="none" width="100%" height="${px(tall)}">${found.join("")}<rect class="jl-window" y="0" height="${px(tall)}"/></svg>`;
    this.look();
  }

  look() { // where the part is that is in sight
    const shown = this.svg.querySelector(".jl-window");
    if (!shown || !this.picture) return;
    const { scroll } = this, { down } = this.picture;
    const [at, seen, whole] = down ? [scroll.scrollTop, scroll.clientHeight, scroll.scrollHeight] : [scroll.scrollLeft, scroll.clientWidth, scroll.scrollWidth];
    shown.setAttribute("x", String(px((1000 * at) / whole)));
    shown.setAttribute("width", String(px((1000 * seen) / whole)));
  }
}
