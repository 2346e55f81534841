// The selected row in words: per rank, what it called, put in, got out and made of it.

import { button, element } from "./dom.js";
import { factsIn } from "./layout.js";
import { NARROW } from "./picture.js";
import { esc } from "./text.js";

/** A box's facts: what a reader looks for first, the rest, and its stack.
 * @param {LaneData} data @param {Box} box @returns {{ first: Fact[], rest: Fact[], stack?: string, made?: string }} */
export function factsOf(data, box) {
  const { looks } = data, facts = factsIn(data, box);
  const first = looks.first.flatMap((wanted) => facts.filter(([named]) => named === wanted));
  const rest = facts.filter((fact) => !first.includes(fact));
  return {
    first: first.filter(([named]) => named !== looks.made),
    rest: rest.filter(([named]) => named !== "stack"),
    stack: rest.find(([named]) => named === "stack")?.[1],
    made: first.find(([named]) => named === looks.made)?.[1],
  };
}

/** Which row a slot is: of a large run, not all rows may be drawn, and a slot's number is its row.
 * @param {import("./picture.js").Picture} picture @param {number} slot */
export function rowName({ layout: { boxes }, run }, slot) {
  return run.columns ? `Row ${slot + 1} of ${run.columns.rows}` : `Row ${boxes.rowOf(slot) + 1} of ${boxes.slots.length}`;
}

/** @param {Fact[]} facts */
const listed = (facts) => `<dl>${facts.map(([named, said]) => `<div><dt>${esc(named)}</dt><dd>${esc(said)}</dd></div>`).join("")}</dl>`;

/** One rank's card; of ranks with nothing different to say, one card for all.
 * @param {HTMLElement} panel @param {import("./picture.js").Picture} picture @param {number} rank whose card it is
 * @param {Box | null} box @param {number[]} all the ranks that it speaks of @param {boolean} here */
function card(panel, picture, rank, box, all, here) {
  const who = all.map((lane) => picture.laneName(lane)).join(", ");
  const article = element("article", { class: here ? "jl-card jl-here" : "jl-card", "aria-label": who });
  if (!picture.seen(rank) || !box) {
    article.innerHTML = `<p class="jl-h">${who}</p><p class="jl-soft">${picture.seen(rank) ? "issued no call here" : "covered"}</p>`;
    return article;
  }
  const { first, rest, stack, made } = factsOf(picture.data, box);
  const open = new Set([.../** @type {NodeListOf<HTMLElement>} */ (panel.querySelectorAll("details[open]"))].map((one) => one.dataset.what));
  /** @param {string} what @param {string} inside */
  const fold = (what, inside) => `<details data-what="${what}"${open.has(what) ? " open" : ""}><summary>${what}</summary>${inside}</details>`;
  const how = box.failed ? "failed" : box.open ? "never completes" : "";
  const known = first.length || made;
  article.innerHTML =
    `<p class="jl-h">${who}</p><p class="jl-call" style="border-color:${picture.looks.kinds[box.kind].color}">${esc(box.label)}${how ? ` <strong class="jl-how">${how}</strong>` : ""}</p>` +
    (made ? `<p class="jl-made">${esc(made.replace(/^it /, all.length > 1 ? "each " : `${who} `))}</p>` : "") +
    listed(known ? first : rest) +
    (known ? fold(all.length > 1 ? `times and more, of ${picture.laneName(rank)}` : "times and more", listed(rest)) : "") +
    (stack ? fold("stack", `<pre tabindex="0">${esc(stack)}</pre>`) : "");
  return article;
}

/** Fill the panel. @param {HTMLElement} panel @param {import("./picture.js").Picture} picture
 * @param {number | null} selected slot @param {number} rank @param {() => void} unfold shows the setup call by call
 * @param {string} name what to call the run, where there are two */
export function drawDetails(panel, picture, selected, rank, unfold, name = "") {
  const whose = name && `${name}: `;
  if (selected === null) {
    panel.innerHTML = `<p class="jl-h">${esc(whose)}${name ? "nothing stands here" : "Nothing selected"}</p><p class="jl-soft">Click a call, or go to the picture with Tab and press ↓: what each rank put in, got out and made of it appears here.</p>`;
    return;
  }
  const { data, layout: { boxes: known }, run } = picture;
  const boxes = known.of(selected);
  const cards = element("div", { class: "jl-cards" });
  for (const together of alike(picture, boxes).values()) {
    const [of, box] = together.find(([one]) => one === rank) ?? together[0];
    const all = together.map(([one]) => one);
    cards.append(card(panel, picture, of, box, all, all.includes(rank)));
  }
  const parts = [element("p", { class: "jl-h" }, whose + rowName(picture, selected))];
  const remark = [run.layouts.logical, run.layouts["logical setup"]].flatMap((one) => one?.notes ?? []).find((note) => note.slot === selected);
  if (remark && !picture.covered.length && (picture.time || remark.line !== remark.whole)) // else it stands in the picture
    parts.push(element("p", { class: remark.bad ? "jl-remark jl-bad" : "jl-remark" }, data.texts[remark.whole]));
  if (boxes.some((box) => !factsOf(data, box).first.length && !factsOf(data, box).made))
    parts.push(button("show these call by call", "Show these call by call", unfold));
  panel.replaceChildren(...parts, cards);
}

/** The calls of a slot by rank; of many ranks, those with nothing different to say stand together.
 * @param {import("./picture.js").Picture} picture @param {Box[]} boxes @returns {Map<unknown, [number, Box | null][]>} */
function alike(picture, boxes) {
  const found = new Map();
  for (let rank = 0; rank < picture.n; rank++) {
    const own = boxes.filter((box) => box.rank === rank);
    for (const box of own.length ? own : [null]) {
      const facts = box && factsOf(picture.data, box);
      const same = picture.n < NARROW ? found.size
        : !picture.seen(rank) ? "covered" : box ? JSON.stringify([box.label, box.open, box.failed, facts.first, facts.made]) : "none";
      found.set(same, [...(found.get(same) ?? []), [rank, box]]);
    }
  }
  return found;
}
