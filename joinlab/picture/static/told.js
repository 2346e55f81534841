// What is said above the picture: title, diagnosis, and how each rank ended.

import { element } from "./dom.js";
import { NARROW } from "./picture.js";
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
    const rows = run.why.map((said, rank) => {
      const row = element("li", { class: run.good[rank] ? "jl-fine" : "jl-ill" });
      row.innerHTML = `<strong>${run.sign[rank]} rank ${rank}: ${esc(text(run.ends[rank]))}</strong> ${esc(text(said))}`;
      return row;
    });
    const many = run.ranks >= NARROW ? { class: "jl-many", tabindex: "0", "aria-label": "How each rank ended" } : {};
    parts.push(element("p", {}, text(run.said)), element("ul", many, ...rows));
  }
  told.replaceChildren(...parts);
}

/** For a screen reader: how the run ended. @param {LaneData} data @param {RawRun} run @param {boolean} covered */
export function ending(data, run, covered) {
  if (covered) return "The endings are covered.";
  return `${data.texts[run.title]}. ${run.ends.map((said, rank) => `rank ${rank} ${data.texts[said]}`).join("; ")}.`;
}
