// Texts as HTML and as widths: what fits in a box, and where a line breaks.

/** @type {Record<string, string>} */
const ENTITIES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };

/** @param {unknown} text */
export const esc = (text) => String(text).replace(/[&<>"]/g, (c) => ENTITIES[c]);

/** The same, with the parts in backticks set as code. @param {unknown} text */
export const coded = (text) => esc(text).replace(/`([^`]+)`/g, "<code>$1</code>");

/** @param {number} n @returns {number} */
export const px = (n) => Math.round(n * 10) / 10;

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
