// Texts as HTML and as widths: what fits in a box, and where a line breaks.

/** @type {Record<string, string>} */
const ENTITIES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };

/** @param {unknown} text */
export const esc = (text) => String(text).replace(/[&<>"]/g, (c) => ENTITIES[c]);

/** The same, with the parts in backticks set as code. @param {unknown} text */
export const coded = (text) => esc(text).replace(/`([^`]+)`/g, "<code>$1</code>");

/** @param {number} n @returns {number} */
export const px = (n) => Math.round(n * 10) / 10;

/** @typedef {Record<string, string | number | false | null | undefined>} Look */

/** An element as text: numbers are rounded, what is false, null or "" is left out.
 * @param {string} name @param {Look} look @param {string} inside */
export const tag = (name, look, inside = "") => {
  const said = Object.entries(look).map(([key, value]) =>
    typeof value === "number" ? ` ${key}="${px(value)}"` : value ? ` ${key}="${value}"` : "",
  );
  return `<${name}${said.join("")}>${inside}</${name}>`;
};

/** @param {{ x: number, y: number, w: number, h: number }} q @param {Look} look */
export const rect = ({ x, y, w, h }, look, inside = "") =>
  tag("rect", { ...look, x, y, width: w, height: h }, inside);

/** A text whose middle is there.
 * @param {string} said @param {number} x @param {number} y @param {number} size @param {Look} look */
export const word = (said, x, y, size, look = {}) =>
  tag(
    "text",
    { x, y: y + size * 0.36, "font-size": size, "text-anchor": "middle", ...look },
    esc(said),
  );

/** @param {[number, number]} p @param {[number, number]} q @param {string} look */
export const line = ([x1, y1], [x2, y2], look) => tag("line", { class: look, x1, y1, x2, y2 });

/** @param {number} n @param {number} low @param {number} high */
export const clamp = (n, low, high) => Math.min(high, Math.max(low, n));

const pen = document.createElement("canvas").getContext("2d");

/** Widths per px of font size. Measuring a text takes 100 times as long as looking it up.
 * @type {Map<string, number>} */
const widths = new Map();

/** Width of a text in px. @param {string} text @param {number} size */
export function widthOf(text, size) {
  let found = widths.get(text);
  if (found === undefined) {
    pen.font = "100px system-ui, sans-serif";
    widths.set(text, (found = pen.measureText(text).width / 100));
  }
  return found * size;
}

/** ≠ in a circle. @param {[number, number]} at @param {number} r */
export function sign([cx, cy], r) {
  const width = r > 12 ? 2.5 : 1.8,
    bar = (/** @type {number} */ up) => `M${px(cx - r * 0.42)} ${px(cy - r * up)}h${px(r * 0.84)}`,
    slash = `M${px(cx + r * 0.26)} ${px(cy - r * 0.55)}L${px(cx - r * 0.26)} ${px(cy + r * 0.55)}`;
  const circle = tag("circle", { cx, cy, r, "stroke-width": width });
  const path = tag("path", { d: bar(0.2) + bar(-0.2) + slash, "stroke-width": width });
  return tag("g", { class: "jl-ne" }, circle + path);
}
