// Two views side by side: the rows of both stand at the same heights.

/** Two pictures on one axis of rows: px that each leaves free above which of its slots. A row is no higher on one
 * side than on the other, and stands below everything in the rows above it, on either side.
 * @param {{ edges: Map<number, Edge> }[]} pictures @param {(number | null)[][]} rows @returns {Gap[][]} */
export function align(pictures, rows) {
  /** @type {Gap[][]} */
  const gaps = [[], []];
  const moved = [0, 0];
  let free = -Infinity;
  rows[0].forEach((slot, at) => {
    const here = [slot, rows[1][at]].map((one, side) => pictures[side].edges.get(one));
    const top = Math.max(free, ...here.map((edge, side) => (edge ? edge.top + moved[side] : -Infinity)));
    here.forEach((edge, side) => {
      if (!edge) return; // nothing stands here, or it lies in a fold
      const gap = top - edge.top - moved[side];
      if (gap > 0.01) gaps[side].push([edge.begin, gap]);
      moved[side] += gap;
      free = Math.max(free, edge.bottom + moved[side]);
    });
  });
  return gaps;
}

/** The view that stands beside this one, where there is one. @param {HTMLElement} view */
export function neighbour(view) {
  const pair = view.closest(".joinlab-beside");
  const other = pair && [.../** @type {NodeListOf<HTMLElement>} */ (pair.querySelectorAll(".jl"))].find((one) => one !== view);
  if (!other?.joinlab?.picture) return null;
  const [here, there] = [view, other].map((one) => one.getBoundingClientRect());
  return here.right <= there.left || there.right <= here.left ? other.joinlab : null;
}

/** Give what is told above two pictures the same height. @param {HTMLElement[]} both */
export function evenly(both) {
  for (const one of both) one.style.minHeight = "";
  const height = Math.max(...both.map((one) => one.offsetHeight));
  for (const one of both) one.style.minHeight = `${height}px`;
}

/** Let the pictures of two views begin at one height, whatever stands above each. @param {HTMLElement[]} frames */
export function level(frames) {
  const mains = frames.map((one) => /** @type {HTMLElement} */ (one.closest(".jl-main")));
  for (const one of mains) one.style.paddingTop = "";
  const tops = frames.map((one) => one.getBoundingClientRect().top + /** @type {HTMLElement} */ (one.querySelector(".jl-canvas")).offsetTop);
  mains.forEach((one, at) => { one.style.paddingTop = `${Math.max(...tops) - tops[at]}px`; });
}
