// The program beside the picture, with the lines of the selected calls and of the endings marked.

import { element } from "./dom.js";
import { esc } from "./text.js";

/** @type {WeakMap<HTMLElement, string>} Setting the same HTML again would lose the reader's place. */
const shown = new WeakMap();

/** @param {HTMLElement} source @param {import("./picture.js").Picture} picture @param {number | null} selected slot */
export function drawSource(source, picture, selected) {
  const { data, layout, run } = picture;
  if (!run.source) {
    source.replaceChildren();
    shown.delete(source);
    return;
  }
  const here = grouped(layout.boxes.of(selected).filter((box) => picture.seen(box.rank))
    .map((box) => [box.line, picture.laneName(box.rank)]));
  const ends = grouped(picture.covered.length ? [] : run.ended.map((line, rank) =>
    [line, `${run.sign[rank]} ${data.texts[run.lanes[rank]]} ${data.texts[run.ends[rank]].split(":")[0]}`]));
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
