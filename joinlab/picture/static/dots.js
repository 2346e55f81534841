// The inputs of a rank as a row of dots, which is the slider: click the last one wanted, drag, or use the
// arrow keys. While one drags, the endings of the other positions shine up behind the dots.

import { arrow, drag, find, hit } from "./dom.js";
import { clamp, tag } from "./text.js";

const SHOWN = 8; // dots of a rank, unless it has more inputs

// ending: tells that of a position, where it is known
export function dots(rank, count, most, busy, ending) {
  const last = Math.min(most, count > SHOWN ? count + 1 : SHOWN);
  const row = Array.from({ length: last + 1 }, (_, n) => {
    const look = [n && n <= count ? "jl-on" : "", n === count ? "jl-at" : ""].join(" "),
      end = ending(n),
      shine =
        end && `<u style="background:${end.color}"></u><em aria-hidden="true">${end.sign}</em>`;
    return tag("i", { class: look }, shine);
  });
  const look = {
    class: `jl-dotrow${last > SHOWN ? " jl-many" : ""}`,
    "data-rank": rank,
    role: "slider",
    tabindex: busy ? -1 : 0,
    "aria-disabled": `${busy}`,
    "aria-label": `rank ${rank}: inputs`,
    "aria-valuemin": 0,
    "aria-valuemax": most,
    "aria-valuenow": count,
    "aria-valuetext": `${count} input${count === 1 ? "" : "s"}`,
  };
  return tag("div", look, row);
}

/** @param {import("./board.js").Board | import("./positions.js").Positions} view */
export function wireDots(view) {
  const { stage } = view,
    row = (rank) => find(stage, `.jl-dotrow[data-rank="${rank}"]`),
    shine = (rank, on) => row(rank)?.classList.toggle("jl-shine", on);
  const move = (rank, to) => {
    const n = clamp(to, 0, view.most);
    if (n !== view.counts[rank]) view.go(view.counts.with(rank, n));
    shine(rank, true); // the row is drawn anew by a move
  };
  const held = (event) => {
    const slider = hit(event, '.jl-dotrow[aria-disabled="false"]');
    return { slider, rank: Number(slider?.dataset.rank) };
  };
  stage.addEventListener("pointerdown", (event) => {
    const { slider, rank } = held(event);
    if (!slider) return;
    slider.focus({ preventScroll: true });
    const lefts = [...slider.children].map((dot) => dot.getBoundingClientRect().left); // kept for the drag
    drag(
      event,
      ({ clientX }) => move(rank, lefts.filter((left) => clientX > left).length - 1),
      () => shine(rank, false),
    );
  });
  stage.addEventListener("keydown", (event) => {
    const { slider, rank } = held(event),
      [x, y] = arrow(event);
    if (!slider || x === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    move(rank, x === Infinity ? SHOWN : view.counts[rank] + x - y);
  });
}
