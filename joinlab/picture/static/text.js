// Texts as HTML and as widths: what fits in a box, and where a line breaks.

const ENTITIES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };

export const esc = (text) => String(text).replace(/[&<>"]/g, (c) => ENTITIES[c]);

// The same, with the parts in backticks set as code.
export const coded = (text) => esc(text).replace(/`([^`]+)`/g, "<code>$1</code>");

export const px = (n) => Math.round(n * 10) / 10;

// An element as text: numbers are rounded, what is false, null or "" is left out.
// inside: texts, and lists of them
export const tag = (name, look, ...inside) => {
  const said = Object.entries(look).map(([key, value]) =>
    typeof value === "number" ? ` ${key}="${px(value)}"` : value ? ` ${key}="${value}"` : "",
  );
  return `<${name}${said.join("")}>${inside.flat(9).join("")}</${name}>`;
};

export const rect = ({ x, y, w, h }, look, inside = "") =>
  tag("rect", { ...look, x, y, width: w, height: h }, inside);

export const word = (said, x, y, size, look = {}) =>
  tag(
    "text",
    { x, y: y + size * 0.36, "font-size": size, "text-anchor": "middle", ...look },
    esc(said),
  );

export const line = ([x1, y1], [x2, y2], look) => tag("line", { class: look, x1, y1, x2, y2 });

export const clamp = (n, low, high) => Math.min(high, Math.max(low, n));

const pen = document.createElement("canvas").getContext("2d");

// Widths per px of font size. Measuring a text takes 100 times as long as looking it up.
const widths = Object.create(null);

export function widthOf(text, size, weight = 400) {
  const measure = () => {
    pen.font = `${weight} 100px system-ui, sans-serif`;
    return pen.measureText(text).width / 100;
  };
  return (widths[weight + text] ??= measure()) * size;
}

const SPACE = /(?<= )/,
  HYPHEN = /(?<=[ -])/;

// A label in the fewest lines that let its letters be large, and their size; behind a hyphen it breaks only
// where it would be too small otherwise. svg.py breaks in the same way.
function broken(text, size, wide, high, gap = SPACE) {
  let best = { lines: [text], fits: 0 };
  for (let count = 1; count === 1 || (count <= 3 && count * size * 1.18 < high); count++) {
    const lines = split(text.split(gap), count, size);
    if (lines.length < count) break;
    const fits = Math.min(size, (size * wide) / longest(lines, size));
    if (fits > best.fits * 1.03) best = { lines, fits };
  }
  if (best.fits >= 11 || gap === HYPHEN) return best;
  return broken(text, size, wide, high, HYPHEN);
}

const longest = (lines, size) => Math.max(...lines.map((line) => widthOf(line, size)));

const joined = (words) => words.join("").trimEnd();

// Words in so many lines, of which the longest is as short as can be.
function split(words, count, size) {
  if (count === 1 || words.length < count) return [joined(words)];
  const ways = words
    .slice(1)
    .map((_, i) => [joined(words.slice(0, i + 1)), ...split(words.slice(i + 1), count - 1, size)]);
  return ways
    .filter((lines) => lines.length === count)
    .sort((a, b) => longest(a, size) - longest(b, size))[0];
}

const NARROW = 0.8; // how far letters may be squeezed: those of some fonts are wide

// A label in a box, in up to three lines; nothing where it would be cut or under 11 px: pointing at it tells.
export function words(b, text, colour, { size = 14, bold = false, sub = "", left = false }) {
  const heavy = bold ? 700 : 500,
    wider = (1.02 * widthOf(text, 1, heavy)) / widthOf(text, 1),
    room = (b.w - (left ? 12 : size < 17 || b.w < 70 ? 2 : 10)) / wider,
    small = [13, 11].find((px) => widthOf(sub, px) < b.w - 4);
  if (!small) sub = "";
  const { lines, fits } = broken(text, size, room, b.h - (sub ? 20 : 0)),
    high = Math.max(fits, 11),
    step = high * 1.18,
    y = b.cy + high * 0.35 - ((lines.length - 1) * step) / 2 - (sub ? 9 : 0);
  if (fits < 11 * NARROW || high > b.h) return "";
  const look = {
    x: left ? b.x + 6 : b.cx,
    "text-anchor": left ? "start" : "middle",
    style: `fill:${colour}`,
  };
  const fitted = (line) => ({
    "font-size": high,
    "font-weight": heavy,
    textLength: widthOf(line, high) > room && room * wider,
    lengthAdjust: "spacingAndGlyphs",
  });
  const below = { class: "jl-sub", y: y + (lines.length - 1) * step + 20, "font-size": small };
  return [
    lines.map((line, i) => tag("text", { ...look, y: y + i * step, ...fitted(line) }, esc(line))),
    sub && tag("text", { ...look, ...below }, esc(sub)),
  ];
}

// How a lane's ranks ended, by its sign alone where there is no room (px), and what is pending.
export function ending([sign, word, tone, more], [x, y], turned, room) {
  const told = widthOf(`${sign} ${word}…`, 16) < room ? word : "",
    text = esc(`${sign} ${told}${told.includes("wait") ? "…" : ""}`),
    look = { x, "text-anchor": turned ? "middle" : "start", class: `jl-tone-${tone}` },
    end = tag("text", { ...look, y, "font-size": 15, "font-weight": 700 }, text);
  if (!more || widthOf(more, 13) >= room) return end;
  return end + tag("text", { ...look, y: y + 19, "font-size": 12.5 }, esc(more));
}

// A mask to nothing, for calls that never end.
export function fade(name, turned) {
  const stop = (at, seen) => `<stop offset="${at}" stop-color="#fff" stop-opacity="${seen}"/>`,
    stops = stop(0, 1) + stop(0.6, 0.8) + stop(1, 0);
  return (
    tag("linearGradient", { id: `${name}-f`, x2: Number(!turned), y2: Number(turned) }, stops) +
    `<mask id="${name}-fade" maskContentUnits="objectBoundingBox">` +
    `<rect x="-.05" y="-.1" width="1.05" height="1.2" fill="url(#${name}-f)"/></mask>`
  );
}

// Lanes along which time runs to the right, or down.
export class Lanes {
  turned = false;

  /** @returns {[number, number]} */
  at(t, s) {
    return this.turned ? [s, t] : [t, s];
  }

  // A rectangle by its places along and across time, px.
  area(t, s, long, high) {
    const [x, y] = this.at(t, s),
      [w, h] = this.at(long, high);
    return { x, y, w, h, cx: x + w / 2, cy: y + h / 2 };
  }
}

// A word on a plate, whose middle is there.
// wide: px; r: px of half its height; size: px of the word
export const pill = (said, at, wide, r, size) =>
  tag(
    "g",
    { transform: `translate(${at.map(px).join(" ")})` },
    rect({ x: -wide / 2, y: -r, w: wide, h: 2 * r }, { rx: r }) + word(said, 0, 0, size),
  );

export function sign([cx, cy], r) {
  const width = r > 12 ? 2.5 : 1.8,
    bar = (up) => `M${px(cx - r * 0.42)} ${px(cy - r * up)}h${px(r * 0.84)}`,
    slash = `M${px(cx + r * 0.26)} ${px(cy - r * 0.55)}L${px(cx - r * 0.26)} ${px(cy + r * 0.55)}`;
  return tag(
    "g",
    { class: "jl-ne", "stroke-width": width },
    tag("circle", { cx, cy, r }),
    tag("path", { d: bar(0.2) + bar(-0.2) + slash }),
  );
}
