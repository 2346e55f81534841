// The calls of one slot, a card for each lane: what it put in, got out and made of it, its lines.

import { FAILED, OPEN, QUEUED, callsOf, laneOf, slotsOf } from "./columns.js";
import { button } from "./dom.js";
import { esc, tag } from "./text.js";

// The colours of a kind of call, or of none.
const kindStyle = (kind) =>
  kind !== null && `background:var(--jl-k${kind});color:var(--jl-i${kind})`;

export const tags = (here) =>
  here.map(([who, kind, tone]) =>
    tag("span", { class: tone ? "jl-tag jl-tag-bad" : "jl-tag", style: kindStyle(kind) }, esc(who)),
  );

/** The lines that led to a call, innermost first. @param {RawRun} run */
export const linesOf = (run, lines) =>
  run.lines[lines].map(([source, line]) => ({
    source: run.sources[source],
    line,
    at: `${run.sources[source].name}:${line}`,
  }));

// The number of a line of code, and a place for who is there.
export const lineNumber = (number, added) =>
  `<span class="jl-here" data-line="${added ? -1 : number}"></span>` +
  `<span class="jl-no">${added ? "+" : number}</span>`;

/** What became of a call that did not complete. @param {RawRun} run */
export function stateOf(run, i) {
  const calls = callsOf(run),
    flags = calls.flags[i];
  if (flags & FAILED) return "failed";
  if (flags & QUEUED) return "queued";
  return flags & OPEN ? run.fates[laneOf(calls, i)] : "";
}

/** @param {LaneData} data @param {RawRun} run */
export function tellSlot(section, data, run, { slot, until, absent = [], lacks = "" }, title, how) {
  const calls = callsOf(run),
    cards = new Map(); // of many lanes, those with nothing different to say have one
  run.names.forEach((name, lane) => {
    const rows = slotsOf(calls, lane).subarray(slot, until + 1),
      by = rows.findIndex((i) => i >= 0);
    if (by < 0) return;
    const [key, html] = card(data, run, calls, slot + by, lane),
      same = run.names.length > 4 ? key : name;
    if (cards.has(same)) cards.get(same)[0].push(name);
    else cards.set(same, [[name], html]);
  });
  const issued = [...cards.values()].map(([names, html]) => [names.join(", "), html]);
  fill(section, title, how, [
    ...issued,
    ...absent.map((lane) => [
      run.scene.names[lane],
      `<p class="jl-soft">issued ${lacks || "no call"} here</p>`,
    ]),
  ]);
}

/** What a lane's card says without values that differ anyhow, and all of it.
 * @param {LaneData} data @param {RawRun} run */
function card(data, run, calls, slot, lane) {
  const i = slotsOf(calls, lane)[slot],
    code = run.columns.codes[calls.code[i]],
    end = stateOf(run, i),
    own = run.told.find(([row, of]) => row === slot && of === lane)?.[2],
    [first, rest, stack, made] = data.told[own ?? code.facts],
    row = ([name, said]) => `<tr><th scope="row">${esc(name)}</th><td>${esc(said)}</td></tr>`,
    table = (facts) =>
      tag(
        "table",
        {},
        facts.map((n) => row(data.facts[n])),
      );
  const lines = linesOf(run, code.lines)
    .reverse()
    .map(({ source, line, at }) => {
      const text =
        source.text?.split("\n")[line - source.first_line]?.trim() ?? "its text is not known";
      return `<p class="jl-from"><span class="jl-soft">${esc(at)}</span> <code>${esc(text)}</code></p>`;
    });
  const swatch = { class: "jl-swatch", style: kindStyle(code.kind) };
  const html =
    `<p>${tag("span", swatch, esc(code.label))}</p>${made < 0 ? "" : `<p>${esc(data.facts[made][1])}</p>`}` +
    (end && `<p class="jl-tone-bad">${end}</p>`) +
    table(first.length ? first : rest) +
    lines.join("") +
    (first.length
      ? `<details><summary>times and more</summary>${table(rest)}` +
        `${stack < 0 ? "" : `<pre tabindex="0">${esc(data.facts[stack][1])}</pre>`}</details>`
      : "");
  return [JSON.stringify([code.label, end, first, made]), html];
}

// cards: each a name and HTML
export function fill(section, title, how, cards = []) {
  const all = cards.map(([name, html]) => `<div><p class="jl-h">${esc(name)}</p>${html}</div>`);
  section.innerHTML =
    `<p class="jl-h jl-big">${esc(title)} <span class="jl-soft">${esc(how)}</span></p>` +
    `<div class="jl-two">${all.join("")}</div>`;
  section.append(button("✕", "Close", () => {}, "jl-x", { "aria-label": "Close" }));
  section.hidden = false;
}
