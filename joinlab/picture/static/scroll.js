// The picture in its frame: dragged, zoomed at the pointer, and scrolled to what was selected.

/** Drag the canvas inside its frame; a press that does not move is a click.
 * @param {HTMLElement} scroll @param {HTMLElement} canvas @param {(target: Element, x: number, y: number) => void} clicked */
export function drag(scroll, canvas, clicked) {
  /** @type {{ x: number, y: number, left: number, top: number, far: boolean } | null} */
  let dragged = null;
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button === 0) dragged = { x: event.clientX, y: event.clientY, left: scroll.scrollLeft, top: scroll.scrollTop, far: false };
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!dragged) return;
    const [x, y] = [event.clientX - dragged.x, event.clientY - dragged.y];
    if (!dragged.far && Math.hypot(x, y) < 5) return;
    if (!dragged.far) canvas.setPointerCapture(event.pointerId);
    dragged.far = true;
    [scroll.scrollLeft, scroll.scrollTop] = [dragged.left - x, dragged.top - y];
  });
  const drop = () => setTimeout(() => { dragged = null; }); // after the click that follows
  canvas.addEventListener("pointerup", drop);
  canvas.addEventListener("pointercancel", drop);
  canvas.addEventListener("click", (event) => {
    const frame = scroll.getBoundingClientRect();
    if (!dragged?.far) clicked(/** @type {Element} */ (event.target), event.clientX - frame.left, event.clientY - frame.top);
  });
}

/** Call `zoom(by, x, y)` when the wheel turns with Ctrl. @param {HTMLElement} scroll @param {(by: number, x: number, y: number) => void} zoom */
export function wheel(scroll, zoom) {
  scroll.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const box = scroll.getBoundingClientRect();
    zoom(event.deltaY < 0 ? 1 : -1, event.clientX - box.left, event.clientY - box.top);
  }, { passive: false });
}

/** Scroll the frame, never the page, until a place is in sight.
 * @param {HTMLElement} scroll @param {[number, number] | null} tops px, as [from, to] @param {[number, number] | null} lefts */
export function reveal(scroll, tops, lefts) {
  const heads = /** @type {HTMLElement | null} */ (scroll.querySelector(".jl-heads")); // they cover the first px
  const covered = heads && !heads.classList.contains("jl-headcolumn") ? heads.offsetHeight : 0;
  if (tops) scroll.scrollTop = nudged(scroll.scrollTop, scroll.clientHeight - covered, tops, 40);
  if (lefts) scroll.scrollLeft = nudged(scroll.scrollLeft, scroll.clientWidth, lefts, 70);
}

/** @param {number} at @param {number} size @param {[number, number]} range @param {number} spare */
function nudged(at, size, [from, to], spare) {
  if (from - spare < at) return from - spare;
  return to + spare > at + size ? Math.min(to + spare - size, from - spare) : at;
}
