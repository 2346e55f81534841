// One position poses the whole picture: `at` is a column and a fraction of it, null is the picture at rest.
// Playing, scrubbing and the address of a page all set it, so that any frame can be linked to and tested.

import { find } from "./dom.js";
import { px } from "./text.js";

const eased = (f) => (f < 0.5 ? 2 * f * f : 1 - 2 * (1 - f) * (1 - f));

export const still = matchMedia("(prefers-reduced-motion: reduce)");

// Where the wrong value is, and its way up to there: `path` has points, and the position at which each is
// reached.
export function travel(path, at) {
  if (at === null || !path.length || at < path[0].at) return null;
  let now = path[0],
    way = "";
  for (const [i, a] of path.entries()) {
    if (a.at > at) break;
    way += `${i === 0 || a.jump ? "M" : "L"}${a.p.map(px)}`;
    now = a;
    const b = path[i + 1];
    if (!b || b.at <= at || b.jump) continue;
    const u = eased((at - a.at) / (b.at - a.at)),
      between = (axis) => a.p[axis] + (b.p[axis] - a.p[axis]) * u;
    now = { at, p: [between(0), between(1)], value: u < 0.5 ? a.value : b.value };
    way += `L${now.p.map(px)}`;
  }
  return { ...now, way };
}

/** Runs the position on, from where the lanes part from the stack, or from the first moment.
 * @param {import("./first.js").First} view */
export function player(view) {
  let frame = 0;

  // Draw before every frame, as long as that goes on.
  function each(draw) {
    let begun = 0;
    const tick = (now) => {
      if (draw(now - (begun ||= now))) frame = requestAnimationFrame(tick);
    };
    frame = requestAnimationFrame(tick);
  }

  return {
    on: false,

    start() {
      this.turn(true);
      const { face } = view;
      let at = face.first,
        last = 0;
      each((ms) => {
        const passed = ms - last,
          calm = still.matches;
        if (!calm || passed > 1100) {
          const next = calm ? face.step(at, 1) : face.advance(at, Math.min(60, passed));
          if (next >= face.over || (calm && next === at)) return view.seek(null);
          [at, last] = [next, ms];
        }
        view.pose(at);
        return true;
      });
    },

    // Once, when the picture is first seen: all is shown, and the value travels.
    glimpse(focus) {
      if (focus < 0 || still.matches) return;
      each((ms) => {
        const at = focus + 0.25 + (ms - 600) / 2600,
          on = at <= focus + 0.95;
        view.pose(null, on ? at : null);
        return on;
      });
    },

    turn(on) {
      cancelAnimationFrame(frame);
      this.on = on;
      find(view.stage, ".jl-play")?.setAttribute("aria-pressed", `${on}`);
    },
  };
}
