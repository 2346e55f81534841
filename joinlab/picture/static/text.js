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

/** The longest form of a label that fits: itself, its short form, that cut off, or nothing.
 * @param {string} label @param {string} short @param {number} room @param {number} size */
export function fit(label, short, room, size) {
  for (const text of [label, short]) if (widthOf(text, size) <= room) return text;
  const keep = Math.floor((room / Math.max(widthOf(short, size), 1)) * short.length) - 1;
  return keep < 2 ? "" : short.slice(0, keep) + "…";
}

/** A text as lines that are at most `room` px wide, as far as its words are.
 * @param {string} text @param {number} room @param {number} size */
export function wrap(text, room, size) {
  const lines = [""];
  for (const word of text.split(" ")) {
    const tried = lines.at(-1) ? `${lines.at(-1)} ${word}` : word;
    if (lines.at(-1) && widthOf(tried, size) > room) lines.push(word);
    else lines[lines.length - 1] = tried;
  }
  return lines;
}
