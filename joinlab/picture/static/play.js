// One position poses the whole picture: `at` is a column and a fraction of it, null is the picture at rest.
// Playing, scrubbing and the address of a page all set it, so that any frame can be linked to and tested.

import { px } from "./text.js";

/** @param {number} f */
const eased = (f) => (f < 0.5 ? 2 * f * f : 1 - 2 * (1 - f) * (1 - f));

export const still = matchMedia("(prefers-reduced-motion: reduce)");

/** Where the wrong value is, and its way up to there. @param {Stop[]} path @param {number} at
 * @returns {{ p: [number, number], value: string, way: string } | null} */
export function travel(path, at) {
  if (!path.length || at < path[0].at) return null;
  let now = path[0],
    way = "";
  for (const [i, a] of path.entries()) {
    if (a.at > at) break;
    way += `${i === 0 || a.jump ? "M" : "L"}${a.p.map(px)}`;
    now = a;
    const b = path[i + 1];
    if (!b || b.at <= at || b.jump) continue;
    const u = eased((at - a.at) / (b.at - a.at));
    now = {
      at,
      p: [a.p[0] + (b.p[0] - a.p[0]) * u, a.p[1] + (b.p[1] - a.p[1]) * u],
      value: u < 0.5 ? a.value : b.value,
    };
    way += `L${now.p.map(px)}`;
  }
  return { p: now.p, value: now.value, way };
}

/** Runs the position on, from where the lanes part from the stack, or from the first moment. */
export class Play {
  /** @param {{ face(): import("./scene.js").Scene | import("./grid.js").Grid,
   *   show(at: number | null, glimpse?: number | null): void, changed(on: boolean): void }} of */
  constructor(of) {
    this.of = of;
    this.on = false;
    this.frame = 0;
  }

  start() {
    this.stop();
    this.on = true;
    this.of.changed(true);
    const face = this.of.face();
    let at = face.first,
      last = 0;
    const tick = (/** @type {number} */ now) => {
      if (!this.on) return;
      if (!still.matches) at = last ? face.advance(at, Math.min(60, now - last)) : at;
      else if (last && now - last > 1100) {
        const next = face.step(at, 1); // a call at a time, without motion
        if (next === at) return this.stop(true);
        [at, last] = [next, now];
      }
      if (!still.matches || !last) last = now;
      if (at >= face.over) return this.stop(true);
      this.of.show(at);
      this.frame = requestAnimationFrame(tick);
    };
    this.frame = requestAnimationFrame(tick);
  }

  /** Once, when the picture is first seen: all is shown, and the value travels. @param {number} focus */
  glimpse(focus) {
    if (focus < 0 || still.matches) return;
    let from = 0;
    const tick = (/** @type {number} */ now) => {
      from ||= now;
      const at = focus + 0.25 + (now - from - 600) / 2600;
      if (at > focus + 0.95) return this.of.show(null);
      this.of.show(null, at);
      this.frame = requestAnimationFrame(tick);
    };
    this.frame = requestAnimationFrame(tick);
  }

  /** @param {boolean} over it came to its end */
  stop(over = false) {
    cancelAnimationFrame(this.frame);
    const was = this.on;
    this.on = false;
    if (was) this.of.changed(false);
    if (over) this.of.show(null);
  }
}
