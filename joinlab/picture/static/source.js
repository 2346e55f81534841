// The program beside the picture, with the lines of the selected calls and of the endings marked.

import { element } from "./dom.js";
import { esc } from "./text.js";

/** @type {WeakMap<HTMLElement, string>} Setting the same HTML again would lose the reader's place. */
const shown = new WeakMap();

/** Of several pictures, all have the same program, and each line says of which it speaks.
 * @param {HTMLElement} source @param {{ picture: import("./picture.js").Picture, selected: number | null, name: string }[]} of */
export function drawSource(source, of) {
  if (!of[0]?.picture.run.source) {
    source.replaceChildren();
    shown.delete(source);
    return;
  }
  const { data, run } = of[0].picture, whose = (/** @type {string} */ name) => (of.length > 1 ? `${name}: ` : "");
  const here = grouped(of.flatMap(({ picture, selected, name }) => picture.layout.boxes.of(selected).filter((box) => picture.seen(box.rank))
    .map((box) => /** @type {[number, string]} */ ([box.line, `${whose(name)}${picture.laneName(box.rank)}`]))));
  const ends = grouped(of.flatMap(({ picture, name }) => (picture.covered.length ? [] : picture.run.ended.map((line, rank) => {
    const { data: { texts }, run: { sign, lanes, ends: how } } = picture;
    return /** @type {[number, string]} */ ([line, `${sign[rank]} ${whose(name)}${texts[lanes[rank]]} ${texts[how[rank]].split(":")[0]}`]);
  }))));
  const lines = data.texts[run.source.text].split("\n").map((line, i) => {
    const number = run.source.first_line + i, cited = here.get(number), ended = ends.get(number);
    return `<span class="jl-line${cited ? " jl-cited" : ""}"${cited ? ' aria-current="true"' : ""}><span class="jl-no">${number}</span>${esc(line) || " "}` +
      `${cited ? `<b>◂ ${esc([...new Set(cited)].join(", "))}</b>` : ""}${ended ? `<i>${esc(ended.join(", "))}</i>` : ""}</span>`;
  });
  const made = `<code>${lines.join("")}</code>`;
  if (made === shown.get(source)) return;
  shown.set(source, made);
  if (!source.firstChild) source.append(element("p", { class: "jl-h" }), element("pre", { tabindex: "0" }));
  const [heading, pre] = /** @type {HTMLCollectionOf<HTMLElement>} */ (source.children);
  heading.textContent = data.texts[run.source.name];
  pre.innerHTML = made;
  const cited = /** @type {HTMLElement | null} */ (pre.querySelector(".jl-cited"));
  if (cited && (cited.offsetTop < pre.scrollTop || cited.offsetTop + 20 > pre.scrollTop + pre.clientHeight)) pre.scrollTop = cited.offsetTop - 40;
}

/** What is said of each line; line 0 lies elsewhere. @param {[line: number, said: string][]} pairs */
function grouped(pairs) {
  /** @type {Map<number, string[]>} */
  const found = new Map();
  for (const [line, said] of pairs) if (line) found.set(line, [...(found.get(line) ?? []), said]);
  return found;
}
