// The first screen of a run: a sentence, the lanes, the call that goes wrong, the line that it came from.
// Everything else, the grid of every call among it, is behind "…". It follows a model: a widget's, or a Store
// where there is no Python.

import { arrow, button, chord, drag, element, find, findAll, fresh, hit, write } from "./dom.js";
import { callsOf } from "./columns.js";
import { unpack } from "./data.js";
import { Grid, MIXED } from "./grid.js";
import { player } from "./play.js";
import { save } from "./save.js";
import { FOOT, Picture, along, columnsOf } from "./picture.js";
import { Store } from "./store.js";
import { coded, esc, px, tag, widthOf } from "./text.js";
import { fill, lineNumber, tags, tellSlot } from "./details.js";

const PHONE = 740; // px: of narrower views the lanes run down, since how each rank ended would be cut
const THIN = 300; // px: of narrower ones a name has two lines, as in JupyterLab on a phone
const PADDING = 20; // of the view, left and right
const CARD = 1200; // px across of a picture to share
const WIDE = 1120; // px from which on the program stands beside the lanes
const CODE = 376; // px of code beside the lanes
const HAND = 396; // px of a program that can be changed, and of the gap before it
const MORE = "where this comes from, the whole story, every call, keys";
const DOTS = 64; // of more ranks, a lane names its own in words

const icon = (height, d, stroke) =>
  `<svg width="18" height="${height}" aria-hidden="true"><path d="${d}" stroke="currentColor" ` +
  `stroke-width="${stroke}" stroke-linecap="round"/></svg>`;

export class First {
  name = fresh();
  /** @type {LaneData} */
  data = null;
  /** What is drawn: `main`, or the same with its fix. @type {RawRun} */
  run = null;
  /** @type {RawRun} */
  main = null;
  /** Of this run, and of one beside it on the same axis. @type {Picture[]} */
  scenes = [];
  at = null;
  // The slot of the call that the play head has come to.
  slot = null;
  // Where the pointer is, on the axis of the grid.
  pointed = null;
  turn = false;
  // Whether Python is: its kernel was restarted.
  gone = false;
  /** The loop that can be changed, where there is one. @type {ReturnType<import("./hand.js").hand>} */
  hand = null;
  alive = true;
  followed = [];
  // The column whose details are open, and its run.
  openAt = [null, null];
  width = 0;
  least = 0;
  // What waits for every call.
  wanted = null;
  // Called when the position, or what is shown, changed.
  moved = () => {};
  play = player(this);

  /** @param {HTMLElement} root @param {Model} model */
  constructor(root, model) {
    this.root = root;
    this.model = model;
    this.makeElements();
    // Every call, on the clock or one by one.
    this.grid = new Grid(this);
    this.listen();
  }

  get(trait) {
    return this.model.get(trait);
  }

  set(trait, value) {
    this.model.set(trait, value);
    this.model.save_changes();
  }

  get covered() {
    return this.get("covered");
  }

  get phone() {
    if (this.width < THIN) return "narrow";
    return this.width < PHONE ? "phone" : "";
  }

  get drawn() {
    const { data, run } = this;
    return run.beside === undefined ? [run] : [run, data.runs[run.beside]];
  }

  get scene() {
    return this.scenes[0];
  }

  // What the pictures draw: lanes in order, or on the clock.
  get faces() {
    return this.whole && !this.waits ? [this.grid] : this.scenes;
  }

  get face() {
    return this.faces[0];
  }

  // What stands in place of a run that is covered, and on each of its lanes.
  get question() {
    return "What will each rank do?";
  }

  get cover() {
    return "hidden";
  }

  // How the run was made.
  get word() {
    return this.gone && this.covered.length ? "unknown" : this.run.scene.provenance;
  }

  // px before the first call, where more stands there than names.
  get before() {
    return 0;
  }

  get turned() {
    return this.turn || !!this.phone;
  }

  // Whether there is one run to be seen, call by call.
  get clocked() {
    const { covered, run } = this;
    if (covered.length || !run || (this.gone && !run.columns)) return false;
    return run.beside === undefined && !!run.scene.columns.length;
  }

  // The same, where times are known.
  get timed() {
    return this.clocked && this.run.columns?.end !== 0;
  }

  get pictures() {
    return findAll(this.stage, ".jl-picture");
  }

  // "logical": in order, with what agrees in stacks; "time": on the clock; "calls": one by one.
  get axis() {
    const axis = this.get("axis");
    return (axis === "time" ? this.timed : this.clocked) ? axis : "logical";
  }

  get whole() {
    return this.axis !== "logical";
  }

  // Whether the calls that are to be drawn are not there yet: the picture of before stays meanwhile.
  get waits() {
    return this.whole && !this.run.columns;
  }

  // px of the picture: less than the view has where the program stands beside it.
  get beside() {
    const { width, hand } = this;
    if ((this.whole && !hand) || this.phone) return width;
    if (this.turned) return width >= 900 ? Math.min(620, width * 0.55) : width;
    if (width < WIDE || this.drawn.length > 1) return width;
    return width - (hand ? HAND : Math.min(CODE, width * 0.3));
  }

  makeElements() {
    const turn = () => {
      this.turn = !this.turn;
      this.draw();
    };
    this.turner = button("", "Turn the lanes", turn, "jl-icon jl-turner", {
      "aria-label": "Lanes as columns, time runs down",
    });
    this.turner.innerHTML = icon(18, "M2.5 5.2h13m-13 7.6h13", 4.5);
    const open = () => {
      this.more.hidden = !this.more.hidden;
      this.tellMore();
    };
    this.opener = button("", `More: ${MORE}`, open, "jl-icon jl-opener");
    this.opener.innerHTML = `<span></span>${icon(4, "M2 2h0m7 0h0m7 0h0", 3.6)}`;
    const to = (axis) => () => this.set("axis", this.axis === axis ? "logical" : axis),
      orders = "Lanes in order of calls, or on the clock (c)";
    this.switch = button("", orders, to("time"), "jl-switch", {
      role: "switch",
      "aria-label": "order clock: lanes on the clock",
    });
    this.switch.innerHTML = "<span>order</span><span>clock</span>";
    this.own = element("span.jl-own");
    this.headline = element("div.jl-headline", {
      role: "heading",
      "aria-level": "3",
      "aria-live": "polite",
    });
    this.stage = element("div.jl-stage");
    this.step = element("div.jl-step");
    this.legend = element("p.jl-legend");
    this.lanes = element("div.jl-lanes", {}, this.stage, this.step, this.legend);
    this.listing = element("div.jl-listing");
    this.low = element("div.jl-low", {}, this.listing);
    this.details = element("section.jl-told", { hidden: true, "aria-label": "Details of a call" });
    this.story = element("section.jl-story");
    const zoom = (said, title, key) =>
      button(said, title, () => this.whole && this.grid.moves(key), "", {
        "aria-label": said.length < 2 && title,
      });
    this.every = button("every call", "Every call one by one, in order", to("calls"));
    this.bar = element(
      "div.jl-bar",
      {},
      this.every,
      zoom("−", "Zoom out", "s"),
      zoom("all", "The whole run", "f"),
      zoom("+", "Zoom in", "w"),
      zoom("next mismatch", "Go to the next call that did not go as meant", "n"),
    );
    this.card = button("picture to share", "Save headline, lanes, code and fix as one PNG", () =>
      this.share(),
    );
    const alone = this.get("alone"); // the address of a page of its own, where it is part of another
    this.link = button("", "Copy a link to this view", async () => {
      await navigator.clipboard.writeText(alone ? `${alone}#${this.hash}` : location.href);
      this.link.textContent = "copied";
    });
    this.link.hidden = !!this.model.send || location.protocol === "about:"; // no address of its own
    this.more = element(
      "div.jl-more",
      { hidden: true },
      this.story,
      this.bar,
      element("div.jl-bar", {}, this.link, this.card),
    );
    this.live = element("div.jl-heard", { role: "status" });
    const tools = [this.own, element("span.jl-space"), this.switch, this.turner, this.opener];
    this.view = element(
      "div.jl",
      // a click on a call gives it the focus: the keys are the view's from there on
      {
        role: "group",
        tabindex: -1,
        "aria-label": "Swimlanes",
        "data-lm-suppress-shortcuts": "true",
      },
      element("div.jl-tools", {}, ...tools),
      this.headline,
      element("div.jl-body", {}, this.lanes, this.low),
      this.details,
      this.more,
      this.live,
    );
    this.root.replaceChildren(this.view);
  }

  listen() {
    this.wire();
    this.view.onkeydown = (event) => this.pressed(event);
    this.view.addEventListener("pointerdown", () => this.mark({ mouse: true }), true);
    this.follow("change:_packed", () => this.load());
    for (const trait of ["covered", "heading"]) this.follow(`change:${trait}`, () => this.draw());
    this.follow("change:_still", () => this.hideStill());
    this.follow("comm_live_update", () => {
      this.gone = true;
      this.draw();
    });
    this.follow("change:axis", () => this.changeAxis());
    this.follow("change:mended", () => this.main && this.show(this.data, this.main));
    this.follow("change:selected", () => this.face === this.grid && this.grid.draw());
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

  follow(event, listener) {
    this.model.on(event, listener);
    this.followed.push([event, listener]);
  }

  close() {
    this.alive = false;
    this.play.turn(false);
    this.observer.disconnect();
    for (const [event, listener] of this.followed) this.model.off(event, listener);
  }

  // Whether the wheel is the page's.
  get inside() {
    return self !== top || !!this.get("alone");
  }

  async load() {
    const packed = this.get("_packed");
    if (this.has()) return;
    const data = await unpack(packed);
    if (!this.alive || packed !== this.get("_packed") || this.has()) return; // something newer came meanwhile
    this.show(data, data.runs.at(-1));
  }

  // Whether what came, or something newer, is drawn already.
  has() {
    return false;
  }

  /** @param {LaneData} data @param {RawRun} main */
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
      this.play.turn(false);
      this.at = this.wanted = null;
      this.grid.all = true;
      this.details.hidden = true;
    }
    this.draw();
    if (run.columns) {
      this.wanted?.();
      this.wanted = null;
    }
    if (!again && this.scene.path.length) this.play.glimpse(run.scene.focus ?? -1);
    this.moved();
  }

  // Do what takes every call, once it is here: the bench sends the boxes first.
  withCalls(then) {
    if (this.run.columns) return then();
    this.wanted = then;
    this.askCalls();
  }

  askCalls() {
    this.model.send({ press: "calls" });
  }

  // Hide what stands in for this view where it cannot live.
  hideStill() {
    for (const still of findAll(document, `.joinlab-still[data-view="${this.get("_still")}"]`))
      still.style.display = "none";
  }

  draw() {
    if (!this.run) return;
    this.width ||= (this.view.clientWidth || 1120) - PADDING;
    const { data, run, turned, phone, covered, beside, width, word } = this,
      runs = covered.length ? [run] : this.drawn,
      pictures = turned && !phone ? runs.length : 1; // beside each other
    this.view.ariaLabel = `Swimlanes: ${run.title}`;
    this.turner.ariaPressed = `${this.turn}`;
    this.opener.firstElementChild.textContent = word;
    this.opener.ariaLabel = `${word}. More: ${MORE}`;
    this.tellHeadline();
    if (covered.length) {
      this.details.hidden = true;
      this.details.replaceChildren();
    }
    if (turned) {
      const long = along(columnsOf(run), data.looks, phone || "column", 1e9);
      this.least = Math.max(this.least, 88 + long + FOOT);
    }
    this.scenes = runs.map(
      (one, i) =>
        new Picture(data, one, `${this.name}-${i}`, {
          turned,
          phone,
          width: (pictures > 1 ? width : beside) / pictures,
          covered: covered.length > 0,
          least: turned && runs.length === 1 ? this.least : 0,
          cover: this.cover,
          before: this.before,
          alone: runs.length === 1,
          below: i < runs.length - 1,
        }),
    );
    const rest = this.scenes.find(({ focus }) => focus >= 0)?.focus; // one head for both
    for (const scene of this.scenes) scene.rest = rest;
    const aside = pictures === 1 && beside < width;
    this.lanes.style.width = aside ? `${beside}px` : "";
    this.mark({
      turned,
      phone,
      narrow: phone === "narrow",
      beside: aside,
      clock: this.axis === "time",
    });
    this.switch.hidden = !this.timed;
    this.bar.hidden = !this.clocked;
    this.switch.ariaChecked = String(this.axis === "time");
    this.every.ariaPressed = String(this.axis === "calls");
    this.card.disabled = covered.length > 0;
    this.code();
    this.tellMore();
    if (this.waits) return this.withCalls(() => this.draw());
    this.drawPictures(runs);
    this.tellLegend();
    this.markChosen();
    if (this.scene.columns.length) this.pose(this.at);
  }

  // What style sheets know of the view.
  mark(how) {
    for (const [name, on] of Object.entries(how)) this.view.classList.toggle(`jl-${name}`, on);
  }

  /** @param {RawRun[]} runs */
  drawPictures(runs) {
    const { grid, whole, stage, scenes, turned, faces } = this,
      last = turned ? 0 : runs.length - 1; // it has the scrubber
    if (stage.children.length !== runs.length) {
      const picture =
        '<div><p class="jl-which"></p><div class="jl-picture"><div></div><div></div><div></div></div></div>';
      stage.innerHTML = picture.repeat(runs.length);
    }
    if (whole) grid.refit();
    this.drawHeads();
    for (const [i, picture] of this.pictures.entries()) {
      const [, body, below] = picture.children,
        { scene, columns } = scenes[i];
      write(picture.previousElementSibling, runs.length > 1 ? this.pieces(scene.headline) : "");
      if (!whole) write(body, scenes[i].svg());
      else if (grid.chart.parentNode !== body) {
        write(body);
        body.append(grid.strip, grid.chart);
      }
      write(below, i === last && columns.length ? this.scrubber(faces[i]) : "");
    }
  }

  changeAxis() {
    const { slot } = this;
    this.play.turn(false);
    this.at = this.pointed = null;
    this.grid.all = true;
    this.draw();
    if (slot === null) return;
    this.withCalls(() => {
      this.seek(this.face.atSlot(slot));
      this.slot = slot; // others may begin with it
    });
  }

  tellLegend() {
    const { data, run, whole, stage } = this,
      columns = this.scenes.flatMap((scene) => scene.columns.filter((one) => !one.stack)),
      drawn = whole ? run.columns.codes : columns.flatMap(({ boxes }) => boxes.filter(Boolean)),
      kinds = [...new Set(drawn.map(({ kind }) => kind))].sort((a, b) => a - b);
    const key = (said, look, style = "") =>
      `<span>${tag("i", { class: `jl-key ${look}`, style })}${esc(said)}</span>`;
    const names = kinds.map((kind) =>
      key(data.looks.kinds[kind], "", `background:var(--jl-k${kind})`),
    );
    if (!whole && this.scenes.some(({ path }) => path.length))
      names.push(key(data.looks.taken, "jl-taken"));
    if (whole && find(stage, `.jl-many[fill="${MIXED}"]`))
      names.push(key(data.looks.mixed, "", `background:${MIXED}`));
    if (this.axis === "time") names.push(key("program", "jl-host"), key("it waits", "jl-waiting"));
    if (whole && !this.phone)
      names.push(
        `<span>${this.inside ? "Ctrl + " : ""}wheel: zoom · drag: pan · double-click: all</span>`,
      );
    write(this.legend, this.covered.length ? "" : names);
  }

  pieces(pieces) {
    const html = pieces.map(([said, kind, tone]) => {
      const text = coded(said).replace(/(\d)-(\d)/g, "$1\u2060–\u2060$2"),
        style = kind !== null && `color:var(--jl-i${kind})`;
      return tone || style ? tag("span", { class: tone && `jl-tone-${tone}`, style }, text) : text;
    });
    return html.join("");
  }

  tellHeadline() {
    const { apart, scene } = this.run,
      heading = this.get("heading"),
      told = apart ? coded(apart) : this.pieces(scene.headline),
      above = heading && `<small>${esc(heading)}</small>`;
    write(this.headline, `${above}<span>${this.covered.length ? this.question : told}</span>`);
  }

  drawHeads() {
    if (this.waits) return;
    for (const [i, face] of this.faces.entries())
      write(this.pictures[i].firstElementChild, this.heads(face));
  }

  /** @param {Picture | Grid} face */
  heads(face) {
    const { run, turned, pitch, thick } = face,
      { short, ranks, outlier } = run.scene;
    return ranks.map(({ length }, i) => {
      const place = face.lane(i),
        room = turned ? Math.min(pitch - 10, face.width - place - 5) : Infinity,
        style = turned
          ? `left:${place}px;max-width:${room}px`
          : `top:${Math.round(place + thick / 2)}px;translate:0 -50%`;
      const whole = short[i],
        forms = [whole, whole.replace(/^ranks? /, "")];
      if (length > 1) forms.push(`×${length}`);
      const fits = forms.find((said) => widthOf(said, 16.5) < room);
      const look = {
        class: outlier === i && "jl-tone-bad",
        title: esc(whole),
        style: !fits && "font-size:12px",
      };
      const name = tag("b", look, esc(fits ?? forms.at(-1)));
      return tag("div", { class: "jl-rank", style }, name, this.head(i, run, room));
    });
  }

  /** Below the name of a lane: how many inputs it had, or which ranks it stands for.
   * @param {RawRun} run @param room px */
  head(lane, run, room = Infinity) {
    const { ranks, world, outlier, under, inputs } = run.scene,
      said = under[lane],
      had = inputs[lane];
    if (ranks.length === world || world > DOTS) {
      const short = said.length < 26 ? said : `${said.slice(0, 24)}…`;
      if (!said || widthOf(said, 13) > room) return "";
      return tag("span", { class: "jl-soft", title: esc(said) }, esc(short));
    }
    const many = world > 8,
      step = this.phone ? (many ? 7 : 15) : many ? 9 : 20,
      per = Math.min(many ? 2 * Math.ceil(Math.sqrt(world)) : 8, Math.floor(room / step)),
      height = Math.ceil(world / per) * step,
      line = widthOf(`${run.scene.short[lane]} ${had}`, 16),
      fits = line < Math.min(room, 190) || (room < 190 && height < 30),
      beside = had && fits ? tag("small", { class: "jl-soft" }, had) : "";
    if (height > 45) return beside; // too narrow a lane
    const dots = Array.from({ length: world }, (_, rank) => {
      const cx = (rank % per) * step + step / 2,
        cy = Math.floor(rank / per) * step + step / 2,
        here = ranks[lane].includes(rank),
        look = here ? (outlier === lane ? "jl-odd" : "jl-in") : "jl-out",
        how = { class: look, x: cx, y: cy + 4, "text-anchor": "middle", "font-size": 11.5 };
      return [
        tag("circle", { class: look, cx, cy, r: step * (many ? 0.36 : 0.43) }),
        !many && here ? tag("text", how, rank) : "",
      ];
    });
    return beside + tag("svg", { "aria-hidden": "true", width: per * step, height }, dots);
  }

  /** @param {Picture | Grid} face */
  scrubber(face) {
    const { turned, long, t0, scrub } = face,
      [left, top] = turned ? [0, 10] : [t0 - 66, scrub - 19],
      from = "inset-inline-start:",
      ticks = face.loud(this.scenes).map((t) => `<i style="${from}${px(t)}px"></i>`);
    const slider = {
      class: "jl-scrub",
      role: "slider",
      tabindex: 0,
      "aria-label": this.axis === "time" ? "Time" : "Call",
      "aria-valuemin": 0,
      "aria-orientation": turned ? "vertical" : "horizontal",
      style: `${from}${t0}px;inline-size:${long}px;inset-block-start:${scrub - 14}px`,
    };
    return (
      '<button type="button" class="jl-play" aria-label="Play" aria-pressed="false" ' +
      `style="left:${left}px;top:${top}px"><svg width="14" height="14" aria-hidden="true">` +
      '<path class="jl-go" d="M3 1l10 6-10 6z"/>' +
      '<path class="jl-pause" d="M2 1h3.5v12H2zM8.5 1H12v12H8.5z"/></svg></button>' +
      tag("div", slider, '<b></b><b class="jl-done"></b>', ticks, '<i class="jl-thumb"></i>')
    );
  }

  // Draw a position without ending a play.
  pose(at, glimpse = null) {
    if (this.waits) return;
    this.at = at;
    this.link.textContent = "copy link"; // to what is shown now
    const { face, faces, stage } = this;
    this.slot = at === null ? null : face.slotAt(at);
    this.pictures.forEach((picture, i) => faces[i].pose(picture, at, glimpse));
    this.mark({ before: at !== null && faces.some(({ verdict }) => at < verdict) });
    this.tellStep();
    const scrub = find(stage, ".jl-scrub");
    if (!scrub) return;
    scrub.style.setProperty("--thumb", `${px(face.thumb(at))}px`);
    const heard = faces.map((one) => one.heard(at));
    scrub.ariaValueNow = heard[0].now;
    scrub.ariaValueMax = heard[0].most;
    scrub.ariaValueText = heard.map(({ text }) => text).join("; ");
    if (!this.play.on) this.moved();
  }

  // What each rank does where the play head, or the pointer, is, and at which line.
  tellStep() {
    const { face, pointed, faces, low } = this,
      at = pointed ?? this.at,
      told = faces.flatMap((one) => one.told(at)),
      lines = at === null ? [] : face.linesAt(at),
      { ranks } = this.run.scene;
    write(this.step, `<p>${told.join("</p><p>")}</p>`);
    this.mark({ marked: at !== null });
    for (const mark of findAll(low, ".jl-here")) {
      const here = ranks.filter((_, lane) => lines[lane] === Number(mark.dataset.line)).flat(),
        who = here.length > 2 ? `×${here.length}` : here.join(" ");
      mark.innerHTML = who && `<b>${who}</b>`;
    }
  }

  // What the pointer is at: it reads, and leaves the play head where it is.
  point(at) {
    if (at === this.pointed) return;
    this.pointed = at;
    this.grid.pose(this.stage, this.at);
    this.tellStep();
  }

  seek(at) {
    this.play.turn(false);
    this.pose(at);
  }

  // The position as an address has it: a call's number and a fraction, ms, or a row.
  get address() {
    const at = this.at === null || this.play.on ? "" : String(this.face.addressOf(this.at)),
      fix = this.run === this.main ? {} : { fix: "" };
    if (this.axis === "time") return { ...fix, clock: at };
    return { ...fix, ...(this.whole ? { row: at } : at ? { at } : {}) };
  }

  // The part of an address after "#".
  get hash() {
    return `${new URLSearchParams(this.address)}`.replaceAll("%2C", ",");
  }

  goTo(asked) {
    const name = ["clock", "row", "at"].find((name) => asked.has(name)),
      at = asked.get(name);
    if (this.main?.mended !== undefined) this.set("mended", asked.has("fix"));
    this.set("axis", { clock: "time", row: "calls" }[name] ?? "logical");
    if (name) this.seek(at ? this.face.positionOf(Number(at)) : null);
  }

  wire() {
    const { stage, low, details } = this;
    low.addEventListener("click", (event) => {
      if (hit(event, ".jl-fix")) this.set("mended", this.run === this.main);
    });
    details.addEventListener("click", (event) => hit(event, ".jl-x") && this.shut());
    stage.addEventListener("click", (event) => {
      if (hit(event, ".jl-play")) return this.playOrStop();
      const call = hit(event, ".jl-col");
      if (!call) return;
      const at = this.pictures.indexOf(hit(event, ".jl-picture")),
        { columns, run } = this.scenes[at];
      if (!details.hidden && call.matches(".jl-chosen")) this.shut();
      else this.open(columns[Number(call.dataset.i)], run);
    });
    stage.addEventListener("pointerdown", (event) => {
      const scrub = hit(event, ".jl-scrub");
      if (!scrub) return;
      scrub.focus();
      drag(event, ({ clientX, clientY }) => {
        const { left, top } = scrub.getBoundingClientRect();
        this.seek(this.face.seek(this.face.turned ? clientY - top : clientX - left));
      });
    });
  }

  shut() {
    const { details, stage } = this;
    if (details.matches(":focus-within")) find(stage, ".jl-scrub").focus({ preventScroll: true });
    details.hidden = true;
  }

  playOrStop() {
    if (this.play.on) this.play.turn(false);
    else this.play.start();
  }

  pressed(event) {
    if (chord(event) || !this.scene || this.waits) return;
    const { key, defaultPrevented: done } = event; // by the loop in hand
    // the keys are the view's, not the notebook's
    if (key !== "Escape" || done) event.stopPropagation();
    this.mark({ mouse: false });
    if (done) return;
    const on = event.target,
      scrubs = on.matches(".jl-scrub"),
      [x, y] = arrow(event);
    if (key === "Escape" && !this.details.hidden) this.shut();
    else if (on.closest(".jl-more") || /SELECT|INPUT|TEXTAREA/.test(on.tagName)) return;
    else if (scrubs && key === "Enter")
      this.whole
        ? this.grid.select(this.grid.slotAt(this.at))
        : this.open(this.scene.columns[this.scene.here(this.at)]);
    else if (scrubs && x !== undefined) this.seek(this.face.step(this.at, x + y));
    else if (key === " " && on.tagName !== "BUTTON") this.playOrStop();
    else if (key === "t") this.turner.click();
    else if (key === "c" && this.timed) this.switch.click();
    else if (!this.whole || !this.grid.moves(key)) return;
    on.focus({ preventScroll: true });
    event.preventDefault();
  }

  tellRow(slot) {
    const { data, run, scene } = this,
      known = scene.columns.find(
        (one) => !one.stack && !one.missing && one.slot <= slot && slot <= one.until,
      );
    if (known) return this.open(known);
    const how = callsOf(run).wrong[slot] ? "It did not go as meant." : "All went as meant.",
      title = `Row ${slot + 1} of ${run.columns.rows.toLocaleString("en")}`;
    tellSlot(this.details, data, run, { slot, until: slot }, title, how);
    this.bringIntoSight();
  }

  // The details, and the call that they are about, which they may cover on a phone.
  bringIntoSight() {
    requestAnimationFrame(() => {
      const { details, stage } = this,
        call = find(stage, ".jl-chosen .jl-fill, .jl-fill.jl-chosen");
      details.scrollIntoView({ block: "nearest" });
      if (!call) return;
      const over = call.getBoundingClientRect().bottom - details.getBoundingClientRect().top;
      if (over < 0) return;
      call.style.scrollMarginBottom = `${details.offsetHeight + 20}px`;
      call.scrollIntoView({ block: "nearest" });
    });
  }

  /** @param {Placed} one @param {RawRun} run */
  open(one, run = this.run) {
    const { details } = this,
      { missing, stack, slot, until, numbers: n, boxes, remark } = one,
      title = n ? `Call${stack && "s"} ${n}` : stack || boxes.find(Boolean)?.label;
    if (!boxes.some(Boolean) && !missing) return; // only the other run has something here
    this.openAt = [one.i, run];
    this.markChosen();
    this.bringIntoSight();
    if (missing) return fill(details, `No ${missing[1]}`, remark);
    if (stack) {
      const cards = run.scene.names.flatMap((name, lane) => {
        const { label } = boxes[lane] ?? {};
        return label ? [[name, `<p>${esc(label)}</p>`]] : [];
      });
      fill(details, title, `${remark}.`, cards);
      const single = () => {
        this.set("axis", "calls");
        this.withCalls(() => this.grid.reveal(slot, until));
      };
      if (run === this.run)
        details.append(button("one by one", "Show these calls one by one", single));
      return;
    }
    if (run === this.run && this.get("selected") !== slot) this.set("selected", slot);
    this.withCalls(() =>
      tellSlot(details, this.data, run.columns ? run : this.run, one, title, remark),
    );
  }

  // Mark the call that the details are about; style sheets show it while they are open.
  markChosen() {
    const [i, run] = this.openAt;
    for (const [at, picture] of this.pictures.entries())
      for (const { classList, dataset } of findAll(picture, ".jl-col"))
        classList.toggle("jl-chosen", this.drawn[at] === run && Number(dataset.i) === i);
  }

  code() {
    const held = !!this.hand?.draw();
    this.mark({ held });
    if (held) return;
    const { main, run, covered, low, listing } = this,
      mended = run !== main,
      alone = run.beside === undefined,
      { code, tried } = ((!alone && this.drawn.find(mends)) || main).scene,
      alike = this.drawn.filter(({ scene }) => `${scene.code}` === `${code}`),
      least = Math.min(...code.map(([, , text]) => text.match(/^ */)[0].length));
    const lines = code.map(([sign, number, line, here], i) => {
      const before = code[i - 1]?.[1],
        skipped = number && before && number > before + 1 ? '<div class="jl-soft">⋯</div>' : "",
        stand = mended ? [] : here,
        added = sign === "+",
        look = added ? "jl-add" : stand.length ? "jl-hit" : sign ? "" : "jl-calm",
        text = esc(line.slice(least)),
        shown = sign === "-" ? text.replace(/^( *)(.*)$/, "$1<s>$2</s>") : text,
        numbered = tag("span", {}, lineNumber(number, added), shown);
      return [skipped, tag("div", { class: look }, numbered, covered.length ? "" : tags(stand))];
    });
    // only Python can look
    const able = alone && (main.mended !== undefined || (main.mends && this.model.send)),
      cure = alone
        ? this.cure
        : alike.map(({ scene }) => this.pieces([scene.headline[0], ...scene.tried])).join("<br>"),
      below = (tried[0][0] || able) && !covered.length;
    if (low.firstChild !== listing) low.replaceChildren(listing);
    write(
      listing,
      lines.length ? tag("div", { class: "jl-code" }, lines) : "",
      below ? tag("p", { class: "jl-do" }, able ? this.mender(mended) : "", cure) : "",
    );
  }

  get cure() {
    const { main, run } = this;
    return run === main ? this.pieces(main.scene.tried) : "The program with the fix, emulated.";
  }

  // A button that shows the run with its fix, or the one without it.
  mender(mended) {
    const { main } = this,
      known = main.mended !== undefined || mends(main),
      waits = this.get("mended") && !mended,
      asks = known ? "apply" : "look for a fix";
    const look = {
      type: "button",
      class: "jl-fix",
      title: "The run with the fix, emulated",
      disabled: this.gone && main.mended === undefined && "true",
    };
    return tag("button", look, waits ? "trying …" : mended ? "undo" : asks) + " ";
  }

  // Save a picture twice as wide as high, drawn by a view of its own.
  async share() {
    const { axis, data, main } = this,
      { title } = this.run,
      place = element("div", { style: `position:absolute;left:-9999px;width:${CARD}px` });
    this.root.append(place);
    const card = new First(place, new Store({ axis, heading: title }));
    card.show(data, main);
    card.set("mended", this.get("mended"));
    card.seek(null);
    card.mark({ card: true }); // nobody can scroll it
    const left = ".jl-tools, button, .jl-scrub, .jl-step, .jl-more, .jl-legend span:not(:has(i))";
    for (const one of findAll(place, left)) one.remove();
    const { adoptedStyleSheets, styleSheets } = /** @type {Document} */ (place.getRootNode()),
      rules = [...styleSheets, ...adoptedStyleSheets]
        .flatMap((sheet) => [...sheet.cssRules].map(({ cssText }) => cssText))
        .filter((rule) => rule.includes("jl"))
        .join(""),
      height = card.view.offsetHeight,
      drawn = new XMLSerializer().serializeToString(card.view);
    card.close();
    place.remove();
    const look = {
      xmlns: "http://www.w3.org/2000/svg",
      width: CARD,
      height: CARD / 2,
      viewBox: `-25 0 ${CARD + 50} ${height}`,
      style: "background:var(--jl-paper)",
    };
    const text = tag(
      "svg",
      look,
      tag("style", {}, `${esc(rules)} *{transition:none!important}`),
      tag("foreignObject", { width: CARD, height }, drawn),
    );
    this.announce(await save({ save: "PNG", name: `${title.replace(/\W+/g, "_")}.png`, text }));
  }

  tellMore() {
    const { run, more } = this,
      story = this.covered.length ? [] : run.scene.story;
    this.opener.ariaExpanded = `${!more.hidden}`;
    if (more.hidden) return;
    const lines = story.map(
      ([kind, pieces], i) =>
        `<li>${kind === story[i - 1]?.[0] ? "" : `<b>${kind}</b> `}${this.pieces(pieces)}</li>`,
    );
    this.story.innerHTML =
      `<ol>${lines.join("")}</ol><p class="jl-title">` +
      `<strong>${esc(run.title)}</strong> <span class="jl-soft">${esc(run.measured)}</span></p>` +
      `<p class="jl-soft">Keys: ${this.hand ? "arrows on the barrier, Enter drops it; " : ""}` +
      `${this.data.looks.keys}</p>`;
  }

  announce(said) {
    this.live.textContent = said;
  }
}

/** What anywidget asks for. @param {typeof First} View */
export const widget = (View) => ({
  /** @param {{ model: Model, el: HTMLElement }} context */
  render({ model, el }) {
    const view = new View(el, model);
    return () => view.close();
  },
});

/** @param {RawRun} run */
const mends = ({ scene }) => scene.code.some(([sign]) => sign === "+");
