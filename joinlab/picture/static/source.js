// The program beside the picture: the function that made the selected calls, with their lines and those of the endings
// marked. The functions that called it are a press away.

import { looking } from "./later.js";
import { esc } from "./text.js";

/** A text of the program. Of its lines: who called from there, or through there, and who ended there.
 * @typedef {{ key: string, name: string, first: number, lines: string[] | null, cited: Marks, ended: Marks }} Text
 * @typedef {Map<number, Set<string>>} Marks
 * @typedef {{ picture: import("./picture.js").Picture, selected: number | null, name: string }} Shown */

/** What a place shows, which of the texts the reader chose there instead of that of a function that called, and how far
 * each is scrolled: to ask the page for that, while it is written, would lay it out.
 * @type {WeakMap<HTMLElement, { html: string, call: string, chosen: Map<string, string>, tops: Map<string, number> }>} */
const shown = new WeakMap();

/** Of several pictures, all have the same program, and each line says of which it speaks.
 * @param {HTMLElement} source @param {Shown[]} of */
export function drawSource(source, of) {
  const { texts, callers } = gather(of), call = JSON.stringify([[...callers.keys()].map((text) => text.key), of.map((one) => one.selected)]);
  const before = shown.get(source), chosen = before?.call === call ? before.chosen : new Map();
  const tops = before?.tops ?? new Map();
  const first = texts.find((text) => text.lines && text.ended.size) ?? texts.find((text) => text.lines);
  if (!callers.size && first) callers.set(first, new Map([[first, []]]));
  const html = [...callers].map(([inner, every]) => {
    const text = [...every.keys()].find(({ key }) => key === chosen.get(inner.key)) ?? inner;
    return heading(inner, every, text) + listing(text, every.get(text));
  }).join("");
  shown.set(source, { html, call, chosen, tops });
  if (html === before?.html) return; // setting it again would lose the reader's place
  source.innerHTML = html;
  for (const pre of source.querySelectorAll("pre")) looking(() => {
    pre.scrollTop = tops.get(pre.dataset.text) ?? 0;
    pre.onscroll = () => tops.set(pre.dataset.text, pre.scrollTop);
    const cited = /** @type {HTMLElement | null} */ (pre.querySelector(".jl-cited"));
    if (cited && (cited.offsetTop < pre.scrollTop || cited.offsetTop + 20 > pre.scrollTop + pre.clientHeight)) pre.scrollTop = cited.offsetTop - 40;
  });
  source.onclick = (event) => {
    const pressed = /** @type {HTMLElement} */ (event.target).closest("button");
    if (!pressed) return;
    const at = [...source.querySelectorAll("button")].indexOf(pressed);
    chosen.set(pressed.dataset.inner, pressed.dataset.text);
    drawSource(source, of);
    source.querySelectorAll("button")[at].focus();
  };
}

/** The texts that the pictures refer to, and for each that made a selected call, all that led there and their lines,
 * outermost first.
 * @param {Shown[]} of */
function gather(of) {
  /** @type {Map<string, Text>} */
  const known = new Map();
  /** @type {Map<Text, Map<Text, number[]>>} */
  const callers = new Map();
  for (const { picture, selected, name } of of) {
    const { data, run } = picture, whose = of.length > 1 ? `${name}: ` : "";
    const texts = run.sources.map((one) => {
      const text = one.text === null ? null : data.texts[one.text], key = `${data.texts[one.name]}:${one.first_line}:${text?.length}`;
      if (!known.has(key)) known.set(key, { key, name: data.texts[one.name], first: one.first_line, lines: text?.split("\n") ?? null, cited: new Map(), ended: new Map() });
      return known.get(key);
    });
    for (const box of picture.layout.boxes.of(selected).filter((one) => picture.seen(one.rank))) {
      const lines = run.lines[box.lines];
      if (!lines.length) continue;
      const inner = texts[lines[0][0]], every = callers.get(inner) ?? new Map();
      callers.set(inner, every);
      for (const [at, line] of [...lines].reverse()) {
        mark(texts[at].cited, line, `${whose}${picture.laneName(box.rank)}`);
        every.set(texts[at], [...new Set([...(every.get(texts[at]) ?? []), line])]);
      }
    }
    if (picture.covered.length) continue;
    run.ended.forEach((lines, rank) => {
      const said = `${run.sign[rank]} ${whose}${data.texts[run.lanes[rank]]} ${data.texts[run.ends[rank]].split(":")[0]}`;
      for (const [at, line] of run.lines[lines]) mark(texts[at].ended, line, said);
    });
  }
  return { texts: [...known.values()], callers };
}

/** @param {Marks} marks @param {number} line @param {string} said */
function mark(marks, line, said) { marks.set(line, (marks.get(line) ?? new Set()).add(said)); }

/** "In [2], line 6". @param {Text} text @param {number[]} lines */
const place = ({ name }, lines) => `${name}, line${lines.length > 1 ? "s" : ""} ${lines.join(", ")}`;

/** The name of the text, or of all that led to a call, to choose from.
 * @param {Text} inner @param {Map<Text, number[]>} every @param {Text} now */
function heading(inner, every, now) {
  if (every.size < 2) return `<p class="jl-h">${esc(now.name)}</p>`;
  const buttons = [...every].map(([text, lines]) =>
    `<button type="button" data-inner="${esc(inner.key)}" data-text="${esc(text.key)}" aria-pressed="${text === now}">${esc(place(text, lines))}</button>`);
  return `<p class="jl-h jl-callers" role="group" aria-label="How the program came to the call">${buttons.join(" › ")}</p>`;
}

/** @param {Text} text @param {number[]} called from these of its lines */
function listing(text, called) {
  if (!text.lines) return `<p class="jl-unknown">The call comes from ${esc(place(text, called))}. The text of that function is not known.</p>`;
  const lines = text.lines.map((line, i) => {
    const number = text.first + i, cited = text.cited.get(number), ended = text.ended.get(number);
    return `<span class="jl-line${cited ? " jl-cited" : ""}"${cited ? ' aria-current="true"' : ""}><span class="jl-no">${number}</span>${esc(line) || " "}` +
      `${cited ? `<b>◂ ${esc([...cited].join(", "))}</b>` : ""}${ended ? `<i>${esc([...ended].join(", "))}</i>` : ""}</span>`;
  });
  return `<pre tabindex="0" data-text="${esc(text.key)}"><code>${lines.join("")}</code></pre>`;
}
