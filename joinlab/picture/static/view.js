// The live view, part 3 of 3: what the reader sees, points at and presses. mount() fills an element with it, following
// a model: a widget's, or a Store where there is no Python.

export function mount(root, model) {
  // Counted on the page: every widget has a module of its own, and ids must differ between them.
  const name = `jl${(globalThis.joinlabViews = (globalThis.joinlabViews ?? 0) + 1)}`;
  let data = null, run = null, layout = null, picture = null, rank = 0, zoom = ZOOMS.indexOf(1), playing = null, alive = true, sideways = 0;
  let room = []; // what the picture was told to leave free
  let known = 0, sourceShown = ""; // the width of the picture; to ask the browser for it again costs milliseconds
  const reads = {}; // the base is unpacked once

  const get = (trait) => model.get(trait);
  const set = (trait, value) => { model.set(trait, value); model.save_changes(); };

  // what stays
  const heading = element("p", { class: "jl-h" }), told = element("div", { class: "jl-told" });
  const button = (text, more_words, onclick, more = {}) => element("button", { type: "button", title: more_words, onclick, ...more }, text);
  const axes = element("div", { role: "group", "aria-label": "Axis", class: "jl-choice" },
    button("calls that met", "Axis: one row for the calls that met", () => set("axis", "logical"), { "data-axis": "logical" }),
    button("time", "Axis: time", () => set("axis", "time"), { "data-axis": "time" }));
  const turn = button("turn", "Ranks as rows or columns", () => set("ranks_as", down() ? "rows" : "columns"));
  const unfold = button("DDP's setup", "Show DDP's own setup call by call", () => set("setup", !get("setup")));
  const out = button("−", "Zoom out", () => zoomTo(zoom - 1), { "aria-label": "− zoom out" });
  const fitting = button("fit", "Zoom to fit", () => zoomTo(ZOOMS.indexOf(1)));
  const into = button("+", "Zoom in", () => zoomTo(zoom + 1), { "aria-label": "+ zoom in" });
  const play = button("▶ play", "Step through the rows by themselves", () => (playing ? stop() : start()), { "aria-pressed": "false" });
  const bar = element("div", { class: "jl-bar", role: "toolbar", "aria-label": "Picture" }, axes, play,
    element("div", { class: "jl-choice", role: "group", "aria-label": "Zoom" }, out, fitting, into), turn, unfold);
  const legend = element("div", { class: "jl-legend", role: "group", "aria-label": "Legend: press to hide or show" });
  const head = element("div", { class: "jl-head" });
  const canvas = element("div", { class: "jl-canvas" });
  const scroll = element("div", { class: "jl-scroll" }, head, canvas);
  const panel = element("section", { class: "jl-panel", "aria-label": "Selected row" });
  const source = element("section", { class: "jl-source", "aria-label": "Program" });
  const live = element("div", { class: "jl-live", role: "status", "aria-live": "polite" });
  const main = element("div", { class: "jl-main" },
    element("div", { class: "jl-picture" }, scroll, legend), element("div", { class: "jl-side" }, panel, source));
  const view = element("div", { class: "jl", role: "group", "aria-label": "Swimlanes", "data-lm-suppress-shortcuts": "true" }, told, bar, main, live);
  root.replaceChildren(view);
  view.joinlab = { // for the view that stands beside this one
    told, scroll,
    get picture() { return picture; },
    get rows() { return picture && !picture.time && picture.down ? get("rows") ?? [] : []; },
    render: (...wanted) => { if (String(wanted) !== String(room)) render(...wanted); },
    zoomTo: (to) => zoomTo(to),
  };

  const down = () => (get("ranks_as") === "auto" ? run.ranks <= 8 : get("ranks_as") === "columns");
  const text = (n) => data.texts[n];
  const covered = () => get("covered") ?? [];

  // -- data

  async function load() {
    const base = get("_base"), packed = get("_packed");
    const asked = (reads.asked = {});
    if (reads.base !== base) [reads.base, reads.tables] = [base, unpack(base)];
    const found = await unpack(packed, await reads.tables);
    if (!alive || reads.asked !== asked) return; // something newer came meanwhile
    reads.shown = packed;
    show(found, found.runs[0]);
  }

  function standIn() { // what stands in for this view where it cannot live is not needed now
    if (!get("_still")) return;
    for (const still of document.querySelectorAll(`.joinlab-still[data-view="${get("_still")}"]`))
      (still.closest(".jp-OutputArea-child") ?? still).style.display = "none";
  }

  function show(newData, newRun) {
    standIn();
    const another = run !== null;
    [data, run] = [newData, newRun];
    if (another && !layoutOf(data, run, get("axis"), get("setup")).slots.includes(get("selected") ?? null)) set("selected", null);
    rank = Math.min(rank, run.ranks - 1);
    stop();
    tell();
    draw();
    announce(ending());
    root.dispatchEvent(new CustomEvent("joinlab:shown", { bubbles: true }));
  }

  // -- drawing

  function draw() {
    if (!run) return;
    layout = layoutOf(data, run, get("axis"), get("setup"));
    const selected = get("selected");
    if (selected !== null && selected !== undefined && !layout.slots.includes(selected) && !get("setup"))
      layout = layoutOf(data, run, get("axis"), true); // it lies in a fold
    const width = Math.max(known || main.firstChild.clientWidth, 240) - 2;
    picture = new Picture(data, run, layout, name, {
      down: down(), width: width - 12, zoom: ZOOMS[zoom], hidden: get("hidden") ?? [], covered: covered(), mark: get("mark"),
    });
    const other = beside();
    const aligned = other && view.joinlab.rows.length && view.joinlab.rows.length === other.rows.length;
    if (other) evenly(other);
    if (!aligned) {
      render([]);
      other?.render([]);
      return;
    }
    const gaps = together([picture, other.picture], [view.joinlab.rows, other.rows]);
    picture.leave(gaps[0]);
    other.picture.leave(gaps[1]);
    const length = Math.max(picture.length, other.picture.length);
    render(gaps[0], length);
    other.render(gaps[1], length);
  }

  function beside() { // the view that stands beside this one, where there is one
    const pair = view.closest(".joinlab-beside");
    const other = pair && [...pair.querySelectorAll(".jl")].find((one) => one !== view);
    if (!other?.joinlab?.picture) return null;
    const [here, there] = [view, other].map((one) => one.getBoundingClientRect());
    return here.right <= there.left || there.right <= here.left ? other.joinlab : null;
  }

  function evenly(other) { // what is told above the pictures takes the same height
    const both = [told, other.told];
    for (const one of both) one.style.minHeight = "";
    const height = Math.max(...both.map((one) => one.offsetHeight));
    for (const one of both) one.style.minHeight = `${height}px`;
  }

  function render(...wanted) {
    room = wanted;
    picture.leave(...room);
    const focused = canvas.contains(document.activeElement);
    scroll.classList.toggle("jl-sideways", !picture.down);
    head.innerHTML = picture.head();
    canvas.innerHTML = picture.svg();
    if (sideways) keepNames();
    if (focused) canvas.firstChild.focus({ preventScroll: true });
    for (const one of axes.children) one.setAttribute("aria-pressed", String(one.dataset.axis === get("axis")));
    unfold.setAttribute("aria-pressed", String(!!get("setup")));
    drawLegend();
    pick(false);
  }

  function drawLegend() {
    const hidden = get("hidden") ?? [];
    const present = new Set(layout.boxes.filter((box) => picture.seen(box.rank)).map((box) => box.kind));
    const focused = legend.contains(document.activeElement) ? document.activeElement.dataset.kind : null;
    const swatch = (kind) => {
      const [, color, pattern] = data.looks.kinds[kind];
      return `<svg width="18" height="12" aria-hidden="true"><rect x=".5" y=".5" width="17" height="11" fill="${pattern ? `url(#${name}-k${kind})` : color}" class="jl-edge"/></svg>`;
    };
    legend.replaceChildren(...data.looks.kinds.flatMap(([kind], at) => {
      if (!present.has(at)) return [];
      const shown = !hidden.includes(kind);
      const made = element("button", { type: "button", "aria-pressed": String(shown), "data-kind": kind,
        onclick: () => set("hidden", shown ? [...hidden, kind] : hidden.filter((one) => one !== kind)) });
      made.innerHTML = `${swatch(at)} ${esc(kind)}`;
      return [made];
    }));
    if (!covered().length) for (const [bad, met, said] of data.looks.bands)
      if (layout.bands.some((band) => band.bad === bad && band.met === met)) {
        const made = element("span", {});
        made.innerHTML = `<svg width="18" height="12" aria-hidden="true"><rect x="1" y="1" width="16" height="10" class="${bad ? (met ? "jl-clash" : "jl-miss") : "jl-band"}"/></svg> ${esc(said)}`;
        legend.append(made);
      }
    if ([...picture.longer?.values() ?? []].some((one) => one.more)) {
      const made = element("span", {});
      made.innerHTML = `<svg width="18" height="12" aria-hidden="true"><rect x="1" y="1" width="16" height="10" class="jl-longer" fill="none" stroke="currentColor"/></svg> drawn longer than it took; zoom in to see how long`;
      legend.append(made);
    }
    if (focused) [...legend.children].find((one) => one.dataset.kind === focused)?.focus();
  }

  function tell() {
    view.setAttribute("aria-label", `Swimlanes: ${text(run.title)}`);
    const silent = !get("sentences"), rows = covered().length || silent ? [] : run.why.map((said, of) => {
      const li = element("li", { class: run.good[of] ? "jl-fine" : "jl-ill" });
      li.innerHTML = `<strong>${run.sign[of]} rank ${of}: ${esc(text(run.ends[of]))}</strong> ${esc(text(said))}`;
      return li;
    });
    heading.textContent = get("heading") ?? "";
    told.replaceChildren(...(heading.textContent ? [heading] : []),
      element("p", { class: "jl-title" }, element("strong", {}, text(run.title)), element("span", { class: "jl-soft" }, ` ${text(run.measured)}`)),
      ...(silent ? [] : covered().length ? [element("p", {}, "Covered until you have said how each rank will end.")] : [element("p", {}, text(run.said)), element("ul", run.ranks >= NARROW ? { class: "jl-many", tabindex: "0", "aria-label": "How each rank ended" } : {}, ...rows)]));
  }

  function ending() {
    if (covered().length) return "The endings are covered.";
    return `${text(run.title)}. ${run.ends.map((said, of) => `rank ${of} ${text(said)}`).join("; ")}.`;
  }

  const announce = (said) => { live.textContent = said; };

  // -- selection

  function pick(scrolls) {
    const selected = get("selected") ?? null, grid = canvas.firstChild;
    for (const old of grid.querySelectorAll('[aria-selected="true"]')) old.setAttribute("aria-selected", "false");
    grid.querySelector(".jl-picked").innerHTML = selected === null ? "" : picture.picked(selected, rank);
    const cell = selected === null ? null : grid.querySelector(`[id="${name}-${selected}-${rank}"]`) ?? grid.querySelector(`[role="gridcell"][data-slot="${selected}"]`);
    if (cell) { cell.setAttribute("aria-selected", "true"); grid.setAttribute("aria-activedescendant", cell.id); } else grid.removeAttribute("aria-activedescendant");
    drawPanel(selected);
    drawSource(selected);
    if (scrolls && selected !== null) reveal(selected);
  }

  function reveal(slot) { // scrolls the picture alone, never the page
    const extent = picture.extent(slot);
    if (!extent) return;
    const box = layout.at.get(`${slot},${rank}`);
    const across = box ? picture.sides(box) : null;
    const [tops, lefts] = picture.down ? [extent, across] : [across, extent];
    const nudge = (side, size, range, spare) => {
      if (!range) return;
      if (range[0] - spare < scroll[side]) scroll[side] = range[0] - spare;
      else if (range[1] + spare > scroll[side] + scroll[size]) scroll[side] = Math.min(range[1] + spare - scroll[size], range[0] - spare);
    };
    nudge("scrollTop", "clientHeight", tops, 40);
    nudge("scrollLeft", "clientWidth", lefts, 70);
  }

  function factsOf(box) {
    const facts = box.told.map((n) => data.facts[n]);
    const first = data.looks.first.flatMap((wanted) => facts.filter(([named]) => named === wanted));
    const rest = facts.filter((fact) => !first.includes(fact));
    return { first, rest: rest.filter(([named]) => named !== "stack"), stack: rest.find(([named]) => named === "stack")?.[1] };
  }

  const listed = (facts) => `<dl>${facts.map(([named, said]) => `<div><dt>${esc(named)}</dt><dd>${esc(said)}</dd></div>`).join("")}</dl>`;

  function card(of, box, all) {
    const who = all.length > 1 ? `ranks ${all.join(", ")}` : `rank ${of}`;
    const article = element("article", { class: all.includes(rank) ? "jl-card jl-here" : "jl-card", "aria-label": who });
    if (!picture.seen(of)) { article.innerHTML = `<p class="jl-h">${who}</p><p class="jl-soft">covered</p>`; return article; }
    if (!box) { article.innerHTML = `<p class="jl-h">${who}</p><p class="jl-soft">issued no call here</p>`; return article; }
    const { first, rest, stack } = factsOf(box);
    const made = first.find(([named]) => named === data.looks.made)?.[1];
    const open = new Set([...panel.querySelectorAll("details[open]")].map((one) => one.dataset.what));
    const fold = (what, inside) => `<details data-what="${what}"${open.has(what) ? " open" : ""}><summary>${what}</summary>${inside}</details>`;
    const how = box.failed ? "failed" : box.open ? "never completes" : "";
    article.innerHTML =
      `<p class="jl-h">${who}</p><p class="jl-call" style="border-color:${data.looks.kinds[box.kind][1]}">${esc(box.label)}${how ? ` <strong class="jl-how">${how}</strong>` : ""}</p>` +
      (made ? `<p class="jl-made">${esc(made.replace(/^it /, all.length > 1 ? "each " : `rank ${of} `))}</p>` : "") +
      (first.length ? listed(first.filter(([named]) => named !== data.looks.made)) : listed(rest)) +
      (first.length ? fold(all.length > 1 ? `times and more, of rank ${of}` : "times and more", listed(rest)) : "") + (stack ? fold("stack", `<pre tabindex="0">${esc(stack)}</pre>`) : "");
    return article;
  }

  function drawPanel(selected) {
    if (selected === null) {
      panel.innerHTML = `<p class="jl-h">Nothing selected</p><p class="jl-soft">Click a call, or go to the picture with Tab and press ↓: what each rank put in, got out and made of it appears here.</p>`;
      return;
    }
    const at = layout.slots.indexOf(selected);
    const remark = run.layouts.slice(0, 2).flatMap((one) => one.notes).find((note) => note[5] === selected); // all of it
    const boxes = layout.calls.filter((box) => box.slot === selected);
    const folded = boxes.some((box) => factsOf(box).first.length === 0);
    const cards = element("div", { class: "jl-cards" });
    const alike = new Map(); // of many ranks, those with nothing different to say share a card
    for (let of = 0; of < run.ranks; of++) {
      const own = boxes.filter((box) => box.rank === of);
      for (const box of own.length ? own : [null]) {
        const same = run.ranks < NARROW ? alike.size
          : !picture.seen(of) ? "covered" : box ? JSON.stringify([box.label, box.open, box.failed, factsOf(box).first]) : "none";
        alike.set(same, [...(alike.get(same) ?? []), [of, box]]);
      }
    }
    for (const together of alike.values()) {
      const [of, box] = together.find(([one]) => one === rank) ?? together[0];
      cards.append(card(of, box, together.map(([one]) => one)));
    }
    const parts = [element("p", { class: "jl-h" }, `Row ${at + 1} of ${layout.slots.length}`)];
    if (remark && !covered().length) parts.push(element("p", { class: remark[4] ? "jl-remark jl-bad" : "jl-remark" }, text(remark[6] ?? remark[3])));
    if (folded) parts.push(button("show these call by call", "Show these call by call", () => set("setup", true)));
    panel.replaceChildren(...parts, cards);
  }

  function drawSource(selected) {
    if (!run.source.length) { source.replaceChildren(); sourceShown = ""; return; }
    const [file, firstLine, program] = run.source;
    const marks = new Map();
    const mark = (line, said) => line && marks.set(line, [...(marks.get(line) ?? []), said]);
    if (selected !== null) layout.calls.filter((box) => box.slot === selected && picture.seen(box.rank)).forEach((box) => mark(box.line, `rank ${box.rank}`));
    const ends = new Map();
    if (!covered().length) run.ended.forEach((line, of) => line && ends.set(line, [...(ends.get(line) ?? []), `${run.sign[of]} rank ${of} ${text(run.ends[of]).split(":")[0]}`]));
    const lines = text(program).split("\n").map((line, i) => {
      const number = firstLine + i, here = marks.get(number), ended = ends.get(number);
      const style = here ? " jl-cited" : "";
      return `<span class="jl-line${style}"${here ? ' aria-current="true"' : ""}><span class="jl-no">${number}</span>${esc(line) || " "}` +
        `${here ? `<b>◂ ${esc([...new Set(here)].join(", "))}</b>` : ""}${ended ? `<i>${esc(ended.join(", "))}</i>` : ""}</span>`;
    });
    const made = `<code>${lines.join("")}</code>`;
    if (made === sourceShown) return;
    sourceShown = made;
    if (!source.firstChild) source.append(element("p", { class: "jl-h" }), element("pre", { tabindex: "0" }));
    const [heading, pre] = source.children;
    heading.textContent = text(file);
    pre.innerHTML = made;
    const cited = pre.querySelector(".jl-cited");
    if (cited && (cited.offsetTop < pre.scrollTop || cited.offsetTop + 20 > pre.scrollTop + pre.clientHeight)) pre.scrollTop = cited.offsetTop - 40;
  }

  function select(slot, newRank = rank, says = true) {
    rank = newRank;
    if (slot === get("selected")) pick(true);
    else set("selected", slot);
    if (!says || slot === null) return;
    const boxes = layout.calls.filter((box) => box.slot === slot && picture.seen(box.rank));
    const own = boxes.find((box) => box.rank === rank);
    const made = own && factsOf(own).first.find(([named]) => named === data.looks.made)?.[1];
    announce(`Row ${layout.slots.indexOf(slot) + 1} of ${layout.slots.length}. ${boxes.map((box) => picture.said(box)).join("; ")}.${made ? ` Rank ${rank}: ${made}.` : ""}`);
  }

  function step(by) {
    const shown = layout.slots.filter((slot) => layout.calls.some((box) => box.slot === slot && picture.seen(box.rank) && !picture.hidden.has(box.kind)));
    if (!shown.length) return false;
    const at = shown.indexOf(get("selected"));
    const from = at < 0 && by > 0 ? -1 : at < 0 ? shown.length : at;
    const to = clamp(from + by, 0, shown.length - 1);
    select(shown[to]);
    return to < shown.length - 1;
  }

  function start() {
    if (!run) return;
    if (layout.slots.at(-1) === get("selected")) set("selected", null);
    playing = setInterval(() => { if (!step(1)) stop(); }, 1100);
    play.textContent = "❚❚ pause";
    play.setAttribute("aria-pressed", "true");
    step(1);
  }

  function stop() {
    clearInterval(playing);
    playing = null;
    play.textContent = "▶ play";
    play.setAttribute("aria-pressed", "false");
  }

  // -- zoom and pan

  function keepNames() { // the names of the rows, which stay in sight while the rest scrolls
    if (picture?.down) canvas.querySelector(".jl-rows").setAttribute("transform", `translate(${sideways} 0)`);
  }

  scroll.addEventListener("scroll", () => {
    sideways = scroll.scrollLeft;
    keepNames();
    if (room.length > 1 && scroll.matches(":hover, :focus-within")) beside()?.scroll.scrollTo({ top: scroll.scrollTop });
  });

  function zoomTo(to, x = scroll.clientWidth / 2, y = scroll.clientHeight / 2) {
    const before = zoom;
    zoom = clamp(to, 0, get("axis") === "time" ? ZOOMS.length - 1 : ZOOMS.indexOf(8));
    if (zoom === before) return;
    const [wide, high] = [picture.width, picture.height];
    const [left, top] = [scroll.scrollLeft + x, scroll.scrollTop + y];
    draw();
    scroll.scrollLeft = (left * picture.width) / wide - x;
    scroll.scrollTop = (top * picture.height) / high - y;
    if (room.length > 1) beside()?.zoomTo(zoom);
  }

  scroll.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const box = scroll.getBoundingClientRect();
    zoomTo(zoom + (event.deltaY < 0 ? 1 : -1), event.clientX - box.left, event.clientY - box.top);
  }, { passive: false });

  let dragged = null;
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button === 0) dragged = { x: event.clientX, y: event.clientY, left: scroll.scrollLeft, top: scroll.scrollTop, far: false };
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!dragged) return;
    const [x, y] = [event.clientX - dragged.x, event.clientY - dragged.y];
    if (!dragged.far && Math.hypot(x, y) < 5) return;
    if (!dragged.far) canvas.setPointerCapture(event.pointerId);
    dragged.far = true;
    [scroll.scrollLeft, scroll.scrollTop] = [dragged.left - x, dragged.top - y];
  });
  const let_go = () => setTimeout(() => { dragged = null; });
  canvas.addEventListener("pointerup", let_go);
  canvas.addEventListener("pointercancel", let_go);
  canvas.addEventListener("click", (event) => {
    if (dragged?.far) return;
    const hit = event.target.closest("[data-slot]");
    if (hit && Number(hit.dataset.slot) >= 0) { stop(); select(Number(hit.dataset.slot), Number(hit.dataset.rank ?? rank)); }
  });

  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !run) return;
    const [next, previous, right, left] = picture.down
      ? ["ArrowDown", "ArrowUp", "ArrowRight", "ArrowLeft"] : ["ArrowRight", "ArrowLeft", "ArrowDown", "ArrowUp"];
    const across = (by) => { // to the next rank that can be seen
      let to = rank + by;
      while (to >= 0 && to < run.ranks && !picture.seen(to)) to += by;
      if (to >= 0 && to < run.ranks) select(get("selected") ?? layout.slots[0], to);
    };
    const done = {
      [next]: () => step(1), [previous]: () => step(-1), [right]: () => across(1), [left]: () => across(-1),
      Home: () => step(-Infinity), End: () => step(Infinity), PageDown: () => step(5), PageUp: () => step(-5),
      Escape: () => select(null), "+": () => zoomTo(zoom + 1), "-": () => zoomTo(zoom - 1), 0: () => zoomTo(ZOOMS.indexOf(1)),
      " ": () => (playing ? stop() : start()),
    }[event.key];
    if (!done) return;
    if (playing && event.key !== " ") stop();
    done();
    event.preventDefault();
    event.stopPropagation();
  });

  // -- what changes it

  const current = () => run && reads.shown === get("_packed"); // else the run to come is drawn with what changed now
  const listeners = {
    "change:_packed": load,
    "change:selected": () => {
      if (!run) return;
      const slot = get("selected");
      if (slot !== null && slot !== undefined && !layout.slots.includes(slot)) draw();
      pick(true);
    },
    "change:axis": () => { if (run) { zoom = ZOOMS.indexOf(1); draw(); pick(true); } },
    "change:setup": () => draw(), "change:hidden": () => draw(), "change:ranks_as": () => draw(), "change:mark": () => { if (current()) draw(); },
    "change:rows": () => { if (current()) draw(); }, "change:heading": () => { if (current()) { tell(); draw(); } },
    "change:covered": () => { if (current()) { tell(); draw(); announce(ending()); } },
    "change:_still": standIn,
    "change:sentences": () => { if (current()) tell(); },
  };
  for (const [event, listener] of Object.entries(listeners)) model.on(event, listener);
  const observer = new ResizeObserver(() => {
    const width = main.firstChild.clientWidth;
    if (Math.abs(width - known) > 1 && width) { known = width; draw(); }
  });
  observer.observe(view);
  if (get("_packed")) load();

  return {
    show,
    close() {
      alive = false;
      stop();
      observer.disconnect();
      for (const [event, listener] of Object.entries(listeners)) model.off(event, listener);
    },
  };
}

// A model for a page without Python: the same few methods as a widget's.
export class Store {
  constructor(values) {
    this.values = { selected: null, axis: "logical", setup: false, ranks_as: "auto", hidden: [], covered: [], sentences: true, heading: "", mark: {}, rows: [], ...values };
    this.listeners = {};
  }
  get(name) { return this.values[name]; }
  set(name, value) {
    if (this.values[name] === value) return;
    this.values[name] = value;
    for (const listener of this.listeners[`change:${name}`] ?? []) listener();
  }
  on(event, listener) { (this.listeners[event] ??= []).push(listener); }
  off(event, listener) { this.listeners[event] = (this.listeners[event] ?? []).filter((one) => one !== listener); }
  save_changes() {}
}

export default {
  render({ model, el }) {
    const view = mount(el, model);
    return () => view.close();
  },
};
