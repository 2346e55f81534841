// What is said above the picture: title, diagnosis, and how each rank ended.

import { element } from "./dom.js";
import { esc } from "./text.js";

/** @param {HTMLElement} told @param {LaneData} data @param {RawRun} run
 * @param {{ heading: string, sentences: boolean, covered: boolean }} how */
export function drawTold(told, data, run, { heading, sentences, covered }) {
  /** @param {number} n */
  const text = (n) => data.texts[n];
  const title = element("p", { class: "jl-title" }, element("strong", {}, text(run.title)), element("span", { class: "jl-soft" }, ` ${text(run.measured)}`));
  const parts = [...(heading ? [element("p", { class: "jl-h" }, heading)] : []), title];
  if (sentences && covered) parts.push(element("p", {}, "Covered until you have said how each rank will end."));
  else if (sentences) {
    const { headline, chips, steps, then } = run.verdict;
    const verdict = element("div", { class: chips.every((one) => one.good) ? "jl-verdict" : "jl-verdict jl-ill" });
    verdict.innerHTML =
      `<div class="jl-chips">${chips.map((one) => `<span class="${one.good ? "jl-chip" : "jl-chip jl-bad"}">${one.sign} ${esc(text(one.text))}</span>`).join("")}</div>` +
      `<div><p class="jl-headline">${esc(text(headline))}</p>` +
      (steps.length ? `<ol>${steps.map((step) => `<li>${esc(text(step))}</li>`).join("")}</ol>` : "") +
      (then ? `<p class="jl-soft">${esc(text(then))}</p>` : "") + `</div>`;
    parts.push(verdict);
  }
  told.replaceChildren(...parts);
}

/** For a screen reader: how the run ended. @param {LaneData} data @param {RawRun} run @param {boolean} covered */
export function ending(data, run, covered) {
  if (covered) return "The endings are covered.";
  return `${data.texts[run.title]}. ${run.ends.map((said, rank) => `${data.texts[run.lanes[rank]]} ${data.texts[said]}`).join("; ")}.`;
}
