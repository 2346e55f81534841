// The first screen of a run: a sentence, the lanes, the call that goes wrong, the line that it came from.
// Everything else, the grid of every call among it, is behind "…". It follows a model: a widget's, or a Store
// where there is no Python.

import { button, element, hit, write } from "./dom.js";
import { callsOf } from "./columns.js";
import { unpack } from "./data.js";
import { Grid } from "./grid.js";
import { Play } from "./play.js";
import { save } from "./save.js";
import { Scene, along, columnsOf } from "./scene.js";
import { Store } from "./store.js";
import { coded, esc, px, rect, tag, widthOf } from "./text.js";
import { fill, tags, tellSlot } from "./told.js";

const PHONE = 740; // px: of narrower views the lanes run down, since how each rank ended would be cut
const PADDING = 20; // of the view, left and right
const CARD = 1200; // px across of a picture to share
const WIDE = 1120; // px from which on the program stands beside the lanes
const HAND = 396; // px of a program that can be changed, and of the gap before it
const TURNED = "joinlab: turned";
const DOTS = 64; // of more ranks, a lane names its own in words

/** What the reader chose last, on this page or another. */
function remembered() {
  try {
    return localStorage.getItem(TURNED) === "1";
  } catch {
    return false;
  }
}

/** @param {boolean} turned */
function remember(turned) {
  try {
    localStorage.setItem(TURNED, turned ? "1" : "0");
  } catch {
    /* a page that may not store anything */
  }
}

export class First {
  /** @param {HTMLElement} root @param {Model} model */
  constructor(root, model) {
    this.root = root;
    this.model = model;
    // Counted on the page: every widget has a module of its own, and ids must differ between them.
    this.name = `jl${(globalThis.joinlabViews = (globalThis.joinlabViews ?? 0) + 1)}`;
    /** @type {LaneData} */
    this.data = null;
    /** What is drawn: `main`, or the same with its fix. @type {RawRun} */
    this.run = null;
    /** @type {RawRun} */
    this.main = null;
    /** @type {Scene} */
    this.scene = null;
    /** Of this run, and of one beside it on the same axis. @type {Scene[]} */
    this.scenes = [];
    /** @type {number | null} */
    this.at = null;
    /** What the picture draws: lanes in order, or on the clock. @type {Scene | Grid} */
    this.face = null;
    /** Every call, on the clock or one by one. @type {Grid} */
    this.grid = null;
    /** Where the pointer is, on the axis of the grid. @type {number | null} */
    this.pointed = null;
    this.turn = remembered();
    /** The loop that can be changed, where there is one. @type {import("./hand.js").Hand | null} */
    this.hand = null;
    this.alive = true;
    /** The column whose details are open. @type {number | null} */
    this.openAt = null;
    this.width = this.least = 0;
    /** What waits for every call. @type {(() => void) | null} */
    this.wanted = null;
    /** Called when the position, or what is shown, changed. @type {() => void} */
    this.moved = () => {};
    this.play = new Play({
      face: () => this.face,
      show: (at, glimpse) => this.show_(at, glimpse),
      changed: (on) =>
        this.stage.querySelector(".jl-play")?.setAttribute("aria-pressed", String(on)),
    });
    this.makeElements();
    this.listen();
  }

  /** @param {string} trait */
  get(trait) {
    return this.model.get(trait);
  }

  /** @param {string} trait @param {unknown} value */
  set(trait, value) {
    this.model.set(trait, value);
    this.model.save_changes();
  }

  /** @returns {number[]} */
  get covered() {
    return this.get("covered") ?? [];
  }

  get phone() {
    return this.width < PHONE;
  }

  /** The run, and the one that it is compared with. */
  get drawn() {
    const { data, run } = this;
    return run.beside === undefined ? [run] : [run, data.runs[run.beside]];
  }

  /** What stands in place of a run that is covered, and on each of its lanes. */
  get question() {
    return "What will each rank do?";
  }

  get cover() {
    return "hidden";
  }

  /** px before the first call, where more stands there than names. */
  get before() {
    return 0;
  }

  get turned() {
    return this.turn || this.phone;
  }

  /** Whether there is one run to be seen, whose times are on one clock. */
  get clocked() {
    return (
      !this.covered.length && this.run?.beside === undefined && !!this.run?.scene.columns.length
    );
  }

  /** "logical": in order, with what agrees in stacks; "time": on the clock; "calls": one by one. */
  get axis() {
    return this.clocked ? this.get("axis") : "logical";
  }

  /** Whether every call is drawn. */
  get whole() {
    return this.axis !== "logical";
  }

  /** px of the picture: less than the view has where the program stands beside it. */
  get beside() {
    if ((this.whole && !this.hand) || this.phone) return this.width;
    if (!this.turned) {
      if (this.width < WIDE || this.drawn.length > 1) return this.width;
      return this.hand ? this.width - HAND : this.width * 0.7;
    }
    return this.width >= 900 ? Math.min(620, this.width * 0.55) : this.width;
  }

  makeElements() {
    const icon = (/** @type {string} */ path, width = 18, height = 18) => {
      const made = element("span", { "aria-hidden": "true" }),
        viewBox = `0 0 ${width} ${height}`;
      made.innerHTML = tag("svg", { width, height, viewBox, fill: "currentColor" }, path);
      return made;
    };
    this.word = element("span", { class: "jl-word" });
    this.turner = button("", "Turn the lanes", () => this.turnTo(!this.turn), {
      "aria-label": "Lanes as columns, time runs down",
      class: "jl-icon jl-turner",
    });
    const bar = (/** @type {number} */ y) => rect({ x: 1, y, w: 16, h: 4.5 }, { rx: 1.5 });
    this.turner.append(icon(bar(3) + bar(10.5)));
    this.opener = button(
      "",
      "Where this comes from, the whole story, every call, keys",
      () => (this.more.hidden ? this.openMore() : this.closeMore()),
      { "aria-expanded": "false", class: "jl-icon jl-opener" },
    );
    this.opener.append(
      this.word,
      icon(
        '<circle cx="2" cy="2" r="1.8"/><circle cx="9" cy="2" r="1.8"/><circle cx="16" cy="2" r="1.8"/>',
        18,
        4,
      ),
    );
    const toggle = () => this.toAxis(this.axis === "time" ? "logical" : "time");
    this.switch = button("", "Lanes in order of calls, or on the clock (c)", toggle, {
      role: "switch",
      "aria-label": "order clock: lanes on the clock",
      class: "jl-switch",
    });
    this.switch.append(element("span", {}, "order"), element("span", {}, "clock"));
    this.tools = element(
      "div",
      { class: "jl-tools" },
      element("span", { class: "jl-own" }),
      element("span", { class: "jl-space" }),
      this.switch,
      this.turner,
      this.opener,
    );
    this.headline = element("div", {
      class: "jl-headline",
      role: "heading",
      "aria-level": "3",
      "aria-live": "polite",
    });
    this.stage = element("div", { class: "jl-stage" });
    this.step = element("div", { class: "jl-step" });
    this.legend = element("p", { class: "jl-legend" });
    this.low = element("div", { class: "jl-low" });
    this.details = element("section", {
      class: "jl-told",
      hidden: true,
      "aria-label": "Details of a call",
    });
    this.story = element("section", { class: "jl-story" });
    const zoom = (
      /** @type {string} */ said,
      /** @type {string} */ title,
      /** @type {string} */ key,
    ) =>
      button(said, title, () => this.whole && this.grid.moves(key), {
        "aria-label": said.length > 1 ? null : title,
      });
    this.every = button("every call", "Every call one by one, in order", () =>
      this.toAxis(this.axis === "calls" ? "logical" : "calls"),
    );
    this.bar = element(
      "div",
      { class: "jl-bar" },
      this.every,
      zoom("−", "Zoom out", "s"),
      zoom("all", "The whole run", "f"),
      zoom("+", "Zoom in", "w"),
      zoom("next mismatch", "Go to the next call that did not go as meant", "n"),
    );
    this.card = button("picture to share", "Save headline, lanes, code and fix as one PNG", () =>
      this.share(),
    );
    const link = button("copy link", "Copy a link to this view", async () => {
      await navigator.clipboard.writeText(location.href);
      link.textContent = "copied";
    });
    link.hidden = !!this.model.send || location.protocol === "about:"; // no address of its own
    const shares = element("div", { class: "jl-bar" }, link, this.card);
    this.more = element("div", { class: "jl-more", hidden: true }, this.story, this.bar, shares);
    this.live = element("div", { class: "jl-heard", role: "status", "aria-live": "polite" });
    this.view = element(
      "div",
      {
        class: "jl",
        role: "group",
        "aria-label": "Swimlanes",
        "data-lm-suppress-shortcuts": "true",
      },
      this.tools,
      this.headline,
      element(
        "div",
        { class: "jl-body" },
        element("div", { class: "jl-lanes" }, this.stage, this.step, this.legend),
        this.low,
      ),
      this.details,
      this.more,
      this.live,
    );
    this.root.replaceChildren(this.view);
  }

  listen() {
    this.wire();
    this.view.addEventListener("keydown", (event) => this.pressed(event));
    this.view.addEventListener("pointerdown", () => this.view.classList.add("jl-mouse"), true);
    /** @type {Record<string, (message?: any) => void>} */
    this.listeners = {
      "change:_packed": () => this.load(),
      "change:covered": () => this.draw(),
      "change:heading": () => this.draw(),
      "change:_still": () => this.hideStill(),
      "change:axis": () => this.changeAxis(),
      "change:mended": () => this.main && this.show(this.data, this.main),
      "change:selected": () => this.run?.columns && this.whole && this.grid.draw(),
    };
    for (const [event, listener] of Object.entries(this.listeners)) this.model.on(event, listener);
    this.observer = new ResizeObserver(() => {
      const width = this.view.clientWidth - PADDING;
      if (width > 0 && Math.abs(width - this.width) > 1) {
        this.width = width;
        this.draw();
      }
    });
    this.observer.observe(this.view);
    if (this.get("_packed")) this.load();
  }

  close() {
    this.alive = false;
    this.play.stop();
    this.observer.disconnect();
    for (const [event, listener] of Object.entries(this.listeners)) this.model.off(event, listener);
  }

  // -- what is shown

  async load() {
    const packed = this.get("_packed");
    if (this.has()) return;
    const data = await unpack(packed);
    if (!this.alive || packed !== this.get("_packed") || this.has()) return; // something newer came meanwhile
    this.show(data, data.runs.at(-1));
  }

  /** Whether what came, or something newer, is drawn already. */
  has() {
    return false;
  }

  /** Show a run in place of the one before. @param {LaneData} data @param {RawRun} main */
  show(data, main) {
    this.hideStill();
    const again = this.run !== null;
    let same = again && this.main.title === main.title;
    if (!same && !this.model.send) this.model.set("mended", false); // else Python does
    const run = (this.get("mended") && data.runs[main.mended]) || main;
    same &&= (run === main) === (this.run === this.main);
    [this.data, this.run, this.main] = [data, run, main];
    if (!same) {
      // else the same run has got a longer story
      this.play.stop();
      this.at = this.wanted = null;
      this.details.hidden = true;
    }
    this.draw();
    if (run.columns) {
      this.wanted?.();
      this.wanted = null;
    }
    if (!again && !this.covered.length && this.scene?.path.length)
      this.play.glimpse(run.scene.focus ?? -1);
    this.moved();
    this.root.dispatchEvent(new CustomEvent("joinlab:shown", { bubbles: true }));
  }

  /** Do what takes every call, once it is here: the bench sends the boxes first. @param {() => void} then */
  withCalls(then) {
    if (this.run.columns) return then();
    this.wanted = then;
    this.askCalls();
  }

  askCalls() {
    this.model.send({ press: "calls" });
  }

  hideStill() {
    // what stands in for this view where it cannot live is not needed now
    if (!this.get("_still")) return;
    for (const still of document.querySelectorAll(
      `.joinlab-still[data-view="${this.get("_still")}"]`,
    ))
      /** @type {HTMLElement} */ (still.closest(".jp-OutputArea-child") ?? still).style.display =
        "none";
  }

  draw() {
    if (!this.run) return;
    this.width ||= (this.view.clientWidth || 1120) - PADDING;
    const { data, run, turned, phone } = this,
      title = run.title;
    this.view.setAttribute("aria-label", `Swimlanes: ${title}`);
    this.view.classList.toggle("jl-turned", turned);
    this.view.classList.toggle("jl-phone", phone);
    this.turner.setAttribute("aria-pressed", String(this.turn));
    this.word.textContent = run.scene.word;
    this.opener.setAttribute(
      "aria-label",
      `${run.scene.word}. More: where this comes from, the whole story, every call, keys`,
    );
    this.tellHeadline();
    if (this.covered.length) {
      this.details.hidden = true;
      this.details.replaceChildren();
    }
    if (turned)
      this.least = Math.max(
        this.least,
        88 + along(columnsOf(run), data.looks, phone ? "phone" : "column", 1e9) + 64,
      );
    const { beside, covered } = this,
      runs = covered.length ? [run] : this.drawn;
    const each = turned && !phone ? runs.length : 1,
      width = (each > 1 ? this.width : beside) / each;
    const least = turned && runs.length === 1 ? this.least : 0;
    this.scenes = runs.map(
      (one, i) =>
        new Scene(data, one, `${this.name}-${i}`, {
          turned,
          phone,
          width,
          covered,
          least,
          cover: this.cover,
          before: this.before,
          below: i < runs.length - 1,
        }),
    );
    [this.scene] = this.scenes;
    const lanes = /** @type {HTMLElement} */ (this.stage.parentElement),
      aside = each === 1 && beside < this.width;
    lanes.style.width = aside ? `${beside}px` : "";
    this.view.classList.toggle("jl-beside", aside);
    this.switch.hidden = !this.clocked;
    this.switch.setAttribute("aria-checked", String(this.axis === "time"));
    this.every.setAttribute("aria-pressed", String(this.axis === "calls"));
    this.bar.hidden = !this.clocked;
    this.card.disabled = this.covered.length > 0;
    this.code();
    if (!this.more.hidden) this.tellMore();
    if (this.whole && !run.columns) {
      this.wanted = () => this.draw(); // until then the picture of before stays
      this.askCalls();
      return;
    }
    this.drawPictures(runs);
    this.tellLegend();
    this.markChosen();
    if (this.scene.columns.length) this.show_(this.at);
  }

  /** Draw the lanes of each run. @param {RawRun[]} runs */
  drawPictures(runs) {
    const { whole, stage, turned } = this;
    this.grid ??= new Grid(this);
    this.face = whole ? this.grid : this.scene;
    if (stage.children.length !== runs.length || stage.dataset.whole !== String(whole)) {
      const parts = () => [element("div"), element("div"), element("div")];
      stage.replaceChildren(...runs.map(() => element("div", { class: "jl-picture" }, ...parts())));
      stage.dataset.whole = String(whole);
      if (whole) stage.firstElementChild.children[1].append(...this.grid.parts);
    }
    if (whole) this.grid.fit();
    this.drawHeads();
    const scrubber = this.covered.length || !this.scene.columns.length ? "" : this.scrubber(),
      last = turned ? 0 : runs.length - 1;
    for (const [i, scene] of this.scenes.entries()) {
      const [, body, below] = stage.children[i].children;
      const which = tag("p", { class: "jl-which" }, this.pieces(scene.scene.head));
      if (!whole) write(body, scene.svg() + (runs.length > 1 ? which : ""));
      write(below, i === last ? scrubber : "");
    }
  }

  /** @param {string} axis */
  toAxis(axis) {
    this.set("axis", axis);
  }

  changeAxis() {
    this.play.stop();
    this.at = this.pointed = null;
    this.draw();
    this.moved();
  }

  /** The colours of what is drawn. */
  tellLegend() {
    const { data, run, whole, axis } = this,
      columns = this.scenes.flatMap((scene) => scene.columns.filter((one) => !one.stack));
    const drawn = whole
      ? run.columns.codes.map(({ kind }) => kind)
      : columns.flatMap((one) => one.boxes.filter(Boolean).map(({ kind }) => kind));
    const kinds = [...new Set(drawn)].sort((a, b) => a - b);
    const key = (/** @type {string} */ said, /** @type {string} */ look, style = "") =>
      `<span>${tag("i", { class: `jl-key ${look}`, style })}${esc(said)}</span>`;
    const names = kinds.map((kind) =>
      key(data.looks.kinds[kind], "", `background:var(--jl-k${kind})`),
    );
    if (axis === "time") names.push(key("program", "jl-host"), key("it waits", "jl-waiting"));
    if (whole && !this.phone)
      names.push(
        `<span>${self === top ? "" : "Ctrl + "}wheel: zoom · drag: pan · double-click: all</span>`,
      );
    write(this.legend, this.covered.length ? "" : names.join(""));
  }

  /** @param {ScenePiece[]} pieces */
  pieces(pieces) {
    return pieces
      .map(([said, kind, tone]) => {
        const colour = kind >= 0 ? ` style="color:var(--jl-i${kind})"` : "",
          look = tone ? ` class="jl-tone-${tone}"` : "";
        const text = coded(said).replace(/(\d)-(\d)/g, "$1\u2060–\u2060$2");
        return colour || look ? `<span${look}${colour}>${text}</span>` : text;
      })
      .join("");
  }

  tellHeadline() {
    const heading = this.get("heading") ? `<small>${esc(this.get("heading"))}</small>` : "";
    const { apart, scene } = this.run;
    const told = apart ? coded(apart) : this.pieces(scene.head);
    const said = this.covered.length ? this.question : told;
    const html = `${heading}<span>${said}</span>`;
    write(this.headline, html);
  }

  // -- the heads of the lanes

  drawHeads() {
    if (this.whole && !this.run.columns) return; // not there yet
    for (const [i, scene] of (this.whole ? [this.grid] : this.scenes).entries())
      write(this.stage.children[i].firstElementChild, this.heads(scene));
  }

  /** @param {Scene | Grid} scene */
  heads(scene) {
    const { run } = scene;
    return run.scene.names
      .map((name, i) => {
        const room = scene.turned ? scene.pitch - 10 : Infinity;
        const tall = this.headHeight(i, run),
          style = scene.turned
            ? `left:${scene.lane(i)}px;top:0;max-width:min(${room}px, 100% - ${scene.lane(i) + 5}px)`
            : `left:0;top:${Math.round(scene.lane(i) + scene.thick / 2 - tall / 2)}px`;
        const whole = this.laneName(i, name, run),
          many = run.scene.ranks[i].length;
        const forms = [whole, whole.replace(/^ranks? /, ""), ...(many > 1 ? [`×${many}`] : [])];
        const fits = forms.find((said) => widthOf(said, 16.5) < room),
          short = fits ?? forms.at(-1);
        const look = {
          class: run.scene.odd === i && "jl-tone-bad",
          title: esc(whole),
          style: !fits && "font-size:12px",
        };
        const said = tag("b", look, esc(short));
        return `<div class="jl-rank" style="${style}">${said}${this.head(i, run, room)}</div>`;
      })
      .join("");
  }

  /** @param {number} lane @param {string} name @param {RawRun} run */
  laneName(lane, name, run) {
    const { ranks } = run.scene;
    return ranks[lane].length > 3 && name.startsWith("ranks")
      ? `${ranks[lane].length} ranks`
      : name;
  }

  /** px that a head takes. @param {number} lane @param {RawRun} run @returns {number} */
  headHeight(lane, run) {
    const said = this.head(lane, run);
    return said.startsWith("<svg") ? 46 : said ? 42 : 22;
  }

  /** Below the name of a lane: how many inputs it had, or which ranks it stands for.
   * @param {number} lane @param {RawRun} run @param {number} room px */
  head(lane, run, room = Infinity) {
    const { ranks, world, odd, inputs, names } = run.scene,
      all = names[lane].replace("ranks ", "");
    if (ranks.length === world || world > DOTS) {
      const n = inputs[lane],
        alike = inputs.length > 4 && inputs.every((one) => one === n);
      const given = n === null || alike ? "" : `${n} input${n === 1 ? "" : "s"}`;
      const said = ranks[lane].length > 3 && names[lane] !== all ? all : given;
      const short =
        widthOf(said, 13) > room ? "" : said.length < 26 ? said : `${said.slice(0, 24)}…`;
      return short && tag("span", { class: "jl-soft", title: esc(said) }, esc(short));
    }
    const many = world > 8,
      step = many ? 9 : this.scene.phone ? 15 : 20;
    const per = Math.min(many ? 2 * Math.ceil(Math.sqrt(world)) : 8, Math.floor(room / step));
    const dots = Array.from({ length: world }, (_, rank) => {
      const x = (rank % per) * step + step / 2,
        y = Math.floor(rank / per) * step + step / 2;
      const here = ranks[lane].includes(rank);
      const look = here ? (odd === lane ? "jl-odd" : "jl-in") : "jl-out";
      const said = { class: look, x, y: y + 4, "text-anchor": "middle", "font-size": 11.5 };
      return (
        tag("circle", { class: look, cx: x, cy: y, r: many ? 3.2 : step * 0.43 }) +
        (!many && here ? tag("text", said, `${rank}`) : "")
      );
    });
    const height = Math.ceil(world / per) * step;
    if (height > 45) return ""; // too narrow a lane
    return tag("svg", { "aria-hidden": "true", width: per * step, height }, dots.join(""));
  }

  scrubber() {
    const scene = this.whole ? this.grid : this.scenes[this.turned ? 0 : this.scenes.length - 1],
      { turned, length, t0 } = scene;
    const sides = turned ? ["top", "height", "left", "width"] : ["left", "width", "top", "height"];
    const placed = (/** @type {number[]} */ ...px) =>
      sides.map((side, i) => `${side}:${px[i]}px`).join(";");
    const bar = (
      /** @type {string} */ look,
      /** @type {number} */ from,
      /** @type {number} */ long,
      /** @type {number} */ thick,
    ) => `<i class="${look}" style="${placed(from, long, 14 - thick / 2, thick)}"></i>`;
    const ticks = scene.loud(this.scenes).map((t) => bar("jl-tick", t - 1.5, 3, 14));
    const [one, other] = turned ? [0, 10] : [t0 - 66, scene.scrub - 19];
    const go = '<path class="jl-go" d="M3 1l10 6-10 6z"/>';
    const pause = '<path class="jl-pause" d="M2 1h3.5v12H2zM8.5 1H12v12H8.5z"/>';
    const play = { type: "button", class: "jl-play", "aria-label": "Play" };
    const slider = { class: "jl-scrub", role: "slider", tabindex: 0 };
    const values = {
      "aria-label": this.axis === "time" ? "Time" : "Call",
      "aria-valuemin": 0,
    };
    const rail = bar("jl-rail", 0, length, 4) + bar("jl-done", 0, 0, 4) + ticks.join("");
    return (
      tag(
        "button",
        { ...play, "aria-pressed": "false", style: `left:${one}px;top:${other}px` },
        tag(
          "svg",
          { width: 14, height: 14, viewBox: "0 0 14 14", "aria-hidden": "true" },
          go + pause,
        ),
      ) +
      tag(
        "div",
        {
          ...slider,
          ...values,
          "aria-orientation": turned ? "vertical" : "horizontal",
          style: placed(t0, length, scene.scrub - 14, 28),
        },
        rail + '<i class="jl-thumb"></i>',
      )
    );
  }

  // -- a position

  /** Draw a position without ending a play. @param {number | null} at @param {number | null} glimpse */
  show_(at, glimpse = null) {
    this.at = at;
    const { face, stage } = this,
      faces = this.whole ? [this.grid] : this.scenes;
    for (const [i, picture] of [...stage.children].entries())
      faces[i].pose(/** @type {HTMLElement} */ (picture), at, glimpse);
    this.view.classList.toggle("jl-before", at !== null && at < face.verdict);
    this.tellStep();
    const scrub = /** @type {HTMLElement | null} */ (stage.querySelector(".jl-scrub"));
    if (!scrub) return;
    const t = `${px(face.thumb(at))}px`,
      [side, size] = face.turned ? ["top", "height"] : ["left", "width"];
    const [thumb, done] = [".jl-thumb", ".jl-done"].map(
      (name) => /** @type {HTMLElement} */ (scrub.querySelector(name)),
    );
    thumb.style.setProperty(side, t);
    done.style.setProperty(size, t);
    const heard = faces.map((each) => each.heard(at));
    scrub.setAttribute("aria-valuenow", String(heard[0][0]));
    scrub.setAttribute("aria-valuemax", String(heard[0][1]));
    scrub.setAttribute("aria-valuetext", heard.map(([, , words]) => words).join("; "));
    if (!this.play.on) this.moved();
  }

  /** What each rank does where the play head, or the pointer, is, and at which line. */
  tellStep() {
    const { face, pointed, scenes, low } = this,
      at = pointed ?? this.at;
    const told = this.whole ? face.told(at) : scenes.flatMap((scene) => scene.told(at));
    write(this.step, told.map((words) => `<p>${words}</p>`).join(""));
    this.view.classList.toggle("jl-marked", at !== null);
    const lines = at === null ? [] : face.linesAt(at),
      { ranks } = this.run.scene;
    for (const mark of /** @type {NodeListOf<HTMLElement>} */ (low.querySelectorAll(".jl-here"))) {
      const here = ranks.filter((_, lane) => lines[lane] === Number(mark.dataset.line)).flat(),
        who = here.length > 2 ? `×${here.length}` : here.join(" ");
      mark.innerHTML = who && `<b>${who}</b>`;
    }
  }

  /** What the pointer is at: it reads, and leaves the play head where it is. @param {number | null} at */
  point(at) {
    if (at === this.pointed) return;
    this.pointed = at;
    this.grid.pose(this.stage, this.at);
    this.tellStep();
  }

  /** @param {number | null} at */
  seek(at) {
    this.play.stop();
    this.show_(at);
  }

  /** The position as an address has it: a call's number and a fraction, ms, or a row. */
  get address() {
    const at = this.at === null || this.play.on ? "" : String(this.face.addressOf(this.at));
    if (this.axis === "time") return { clock: at };
    return this.whole ? { row: at } : at ? { at } : {};
  }

  /** Go where an address points. @param {URLSearchParams} asked */
  goTo(asked) {
    const name = ["clock", "row", "at"].find((name) => asked.has(name)),
      at = asked.get(name);
    this.toAxis({ clock: "time", row: "calls" }[name] ?? "logical");
    if (at) this.seek(this.face.positionOf(Number(at)));
  }

  /** @param {boolean} turn */
  turnTo(turn) {
    this.turn = turn;
    remember(turn);
    this.draw();
  }

  // -- hands

  /** Listen to the play button, the scrubber and the calls. */
  wire() {
    const { stage } = this;
    stage.addEventListener("click", (event) => {
      if (hit(event, ".jl-play")) return this.play.on ? this.play.stop() : this.play.start();
      const call = hit(event, ".jl-col");
      if (!call) return;
      const at = [...stage.children].indexOf(hit(event, ".jl-picture")),
        { columns, run } = this.scenes[at];
      this.open(columns[Number(call.dataset.i)], run);
    });
    stage.addEventListener("pointerdown", (event) => {
      const scrub = hit(event, ".jl-scrub");
      if (!scrub) return;
      const seek = (/** @type {PointerEvent} */ event) => {
        const box = scrub.getBoundingClientRect();
        this.seek(
          this.face.seek(this.face.turned ? event.clientY - box.top : event.clientX - box.left),
        );
      };
      event.preventDefault();
      scrub.focus();
      seek(event);
      addEventListener("pointermove", seek);
      addEventListener("pointerup", () => removeEventListener("pointermove", seek), { once: true });
    });
  }

  /** @param {KeyboardEvent} event */
  pressed(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || !this.scene) return;
    const done = event.defaultPrevented; // by the loop in hand
    // the keys are the view's, not the notebook's
    if (event.key !== "Escape" || done) event.stopPropagation();
    this.view.classList.remove("jl-mouse");
    if (done) return;
    const on = /** @type {HTMLElement} */ (event.target),
      { columns } = this.scene;
    if (event.key === "Escape" && !this.details.hidden) this.details.hidden = true;
    else if (on.closest(".jl-more") || /SELECT|INPUT|TEXTAREA/.test(on.tagName)) return;
    else if (on.matches(".jl-scrub") && event.key === "Enter")
      this.whole ? this.grid.open(this.at) : this.open(columns[this.scene.here(this.at)]);
    else if (on.matches(".jl-scrub") && this.stepBy(event.key)) on.focus({ preventScroll: true });
    else if (event.key === " " && on.tagName !== "BUTTON")
      this.play.on ? this.play.stop() : this.play.start();
    else if (event.key === "t") this.turnTo(!this.turn);
    else if (event.key === "c" && this.clocked) this.switch.click();
    else if (this.whole && this.grid.moves(event.key)) on.focus({ preventScroll: true });
    else return;
    event.preventDefault();
  }

  /** Go a call on or back. @param {string} key */
  stepBy(key) {
    const by = {
      ArrowRight: 1,
      ArrowDown: 1,
      ArrowLeft: -1,
      ArrowUp: -1,
      Home: -Infinity,
      End: Infinity,
    }[key];
    if (by) this.seek(this.face.step(this.at, by));
    return !!by;
  }

  /** Tell of a row of every call. @param {number} slot */
  tellRow(slot) {
    const { data, run } = this,
      known = run.scene.columns.find((one) => !one.stack && !one.missing && one.slot === slot);
    const how =
      known?.said || (callsOf(run).wrong[slot] ? "It did not go as meant." : "All went as meant.");
    const title = known?.n
      ? `Call ${known.n}`
      : `Row ${slot + 1} of ${run.columns.rows.toLocaleString("en")}`;
    tellSlot(this.details, data, run, slot, title, how);
    this.bringIntoSight();
  }

  bringIntoSight() {
    requestAnimationFrame(() => this.details.scrollIntoView({ block: "nearest" }));
  }

  /** Tell all of a column below the picture. @param {Placed} one @param {RawRun} run */
  open(one, run = this.run) {
    const { names } = run.scene;
    if (!one.boxes.some(Boolean) && !one.missing) return; // only the other run has something here
    this.openAt = one.i;
    this.markChosen();
    this.bringIntoSight();
    if (one.stack || one.missing) {
      const how = one.missing
        ? "It was never issued: the next call came in its place."
        : `${one.said}.`;
      const cards = one.missing
        ? []
        : names.flatMap((name, lane) =>
            one.boxes[lane]
              ? [`<p class="jl-h">${esc(name)}</p><p>${esc(one.boxes[lane].label)}</p>`]
              : [],
          );
      const each = button("one by one", "Show these calls one by one", () =>
        this.lookAt(one.slot, one.until),
      );
      fill(
        this.details,
        one.missing ? `No ${one.missing[1]}` : one.n ? `Calls ${one.n}` : one.stack,
        how,
        cards,
        ...(one.missing || run !== this.run ? [] : [each]),
      );
      return;
    }
    const how =
      one.said ||
      {
        met: "They met, as they should.",
        wrong: "They met, but should not have.",
        apart: "They face each other, and can never meet.",
        open: "A rank never came, or it never ended.",
      }[one.flag];
    if (run === this.run && this.get("selected") !== one.slot) this.set("selected", one.slot);
    const title = one.n ? `Call ${one.n}` : one.boxes.find(Boolean).label;
    this.withCalls(() =>
      tellSlot(this.details, this.data, run.columns ? run : this.run, one.slot, title, how),
    );
  }

  /** Mark the call that the details are about; style sheets show it while they are open. */
  markChosen() {
    for (const one of /** @type {NodeListOf<SVGElement>} */ (
      this.stage.querySelectorAll(".jl-col")
    ))
      one.classList.toggle("jl-chosen", Number(one.dataset.i) === this.openAt);
  }

  // -- the program

  code() {
    const held = !!this.hand?.draw();
    this.view.classList.toggle("jl-held", held);
    if (held) return;
    const { main, run } = this,
      mended = run !== main,
      { file, tried } = main.scene,
      alone = this.scenes.length === 1 && !this.covered.length;
    const code = this.scenes.length > 1 ? [] : main.scene.code;
    const least = Math.min(...code.map(([, , text]) => text.match(/^ */)[0].length));
    const lines = code.map(([sign, number, text, here], i) => {
      const skipped =
        i && number && code[i - 1][1] && number > code[i - 1][1] + 1
          ? '<div class="jl-skip">⋯</div>'
          : "";
      const stand = mended ? [] : here;
      const said = esc(text.slice(least)),
        look = sign === "+" ? "jl-add" : stand.length ? "jl-hit" : "";
      const shown = sign === "-" ? said.replace(/^( *)(.*)$/, "$1<s>$2</s>") : said;
      const no =
        `<span class="jl-here" data-line="${sign === "+" ? -1 : number}"></span>` +
        `<span class="jl-no">${sign === "+" ? "+" : number}</span>`;
      const marks = this.covered.length ? "" : tags(stand);
      return `${skipped}<div class="${look}"><span>${no}${shown}</span>${marks}</div>`;
    });
    const mends = main.mended !== undefined || (main.mends && this.model.send), // only Python can look
      below = (tried[0][0] || mends) && alone ? `<p class="jl-do">${this.cure}</p>` : "";
    const about = { class: "jl-code", role: "region", "aria-label": `The lines of ${esc(file)}` };
    this.low.innerHTML = (lines.length ? tag("div", about, lines.join("")) : "") + below;
    if (below && mends) this.low.lastElementChild.prepend(this.mender(mended), " ");
    requestAnimationFrame(() => {
      // one that scrolls takes the focus
      for (const one of this.low.querySelectorAll(".jl-code"))
        if (one.scrollWidth > one.clientWidth) one.setAttribute("tabindex", "0");
    });
  }

  /** What is said of the fix. */
  get cure() {
    const { main, run } = this;
    return run === main ? this.pieces(main.scene.tried) : "The program with the fix, emulated.";
  }

  /** A button that shows the run with its fix, or the one without it. @param {boolean} mended */
  mender(mended) {
    const known =
        this.main.mended !== undefined || this.main.scene.code.some(([sign]) => sign === "+"),
      said = mended ? "undo" : known ? "apply" : "look for a fix",
      waits = this.get("mended") && !mended;
    const made = button(waits ? "trying …" : said, "The run with the fix, emulated", () => {
      made.textContent = "trying …";
      this.set("mended", !mended);
      const next = /** @type {HTMLElement | null} */ (this.low.querySelector(".jl-do button"));
      next?.focus({ preventScroll: true });
    });
    made.disabled = waits;
    return made;
  }

  // -- all the rest

  openMore() {
    this.more.hidden = false;
    this.opener.setAttribute("aria-expanded", "true");
    this.tellMore();
  }

  /** Save a picture twice as wide as high, drawn by a view of its own. */
  async share() {
    const { axis, data, main, run } = this,
      place = element("div", { style: `position:absolute;left:-9999px;width:${CARD}px` }),
      mended = this.get("mended");
    this.root.append(place);
    const view = new First(place, new Store({ axis, mended, heading: run.title }));
    view.turn = false;
    view.show(data, main);
    view.seek(null);
    const left = ".jl-tools, button, .jl-scrub, .jl-step, .jl-more, .jl-legend span:not(:has(i))";
    for (const one of place.querySelectorAll(left)) one.remove();
    const sheets = [...document.styleSheets, ...document.adoptedStyleSheets],
      css = sheets.flatMap((sheet) => [...sheet.cssRules].map(({ cssText }) => cssText)),
      high = view.view.offsetHeight,
      size = { width: CARD, height: CARD / 2 },
      scale = Math.min(0.96, size.height / high),
      x = (CARD - CARD * scale) / 2,
      y = (size.height - high * scale) / 2,
      drawn = new XMLSerializer().serializeToString(view.view);
    view.close();
    place.remove();
    const rules = css.filter((rule) => rule.includes("jl")).join(""),
      all = { ...size, height: high, transform: `translate(${x} ${y}) scale(${scale})` };
    const inside =
      tag("style", {}, `${esc(rules)} *{transition:none!important}`) +
      rect({ x: 0, y: 0, w: CARD, h: size.height }, { style: "fill:var(--jl-paper)" }) +
      tag("foreignObject", all, drawn);
    const text = tag("svg", { xmlns: "http://www.w3.org/2000/svg", ...size }, inside);
    await save({ save: "PNG", name: `${run.title.replace(/\W+/g, "_")}.png`, text }, (said) =>
      this.announce(said),
    );
  }

  /** Show some calls one by one. @param {number} slot @param {number} until */
  lookAt(slot, until) {
    this.toAxis("calls");
    this.withCalls(() => this.grid.reveal(slot, until));
  }

  closeMore() {
    this.more.hidden = true;
    this.opener.setAttribute("aria-expanded", "false");
  }

  tellMore() {
    const { run } = this,
      { story } = run.scene,
      covered = this.covered.length > 0;
    const lines = story
      .map(([kind, pieces]) => `<li class="jl-of-${kind}">${this.pieces(pieces)}</li>`)
      .join("");
    this.story.innerHTML =
      `${covered ? "" : `<ol>${lines}</ol>`}<p class="jl-title">` +
      `<strong>${esc(run.title)}</strong> <span class="jl-soft">${esc(run.measured)}</span></p>` +
      `<p class="jl-soft">Keys: ${this.hand ? "arrows on the barrier, Enter drops it; " : ""}` +
      "arrows on the dots and on the scrubber; " +
      "Enter tells of a call; Space plays; c: order or clock; t turns the lanes; on the clock w s zoom, " +
      "a d pan, f shows all.</p>";
  }

  /** Say something to a screen reader. @param {string} said */
  announce(said) {
    this.live.textContent = said;
  }
}

/** Fill an element with the view of a run. @param {HTMLElement} root @param {Model} model */
export function mount(root, model) {
  return new First(root, model);
}
