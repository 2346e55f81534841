// The program in hand: the loop of the six cases. Its barrier can be dragged to three places, and its join()
// is a switch; each place is a case.

import { arrow, chord, drag, element, find, hit, write } from "./dom.js";
import { esc, tag } from "./text.js";
import { lineNumber, tags } from "./told.js";

const PLACES = ["inside the loop", "after the loop", "left out"];
const LINES = ["for input in inputs:", "loss = model(input)", "loss.backward()"];
const JOIN = "with model.join():",
  BARRIER = "dist.barrier()";
export const ENDS = {
  good: ["✓", "all finish"],
  warn: ["…", "finish, with a call pending or by luck"],
  bad: ["✕", "not all finish"],
  "": ["", "not known yet"],
};
const AWAY = 48; // px outside of the program, from where on a line is left out

export class Hand {
  /** @param {Partial<import("./board.js").Board>} view of the six: `glance` shows a case while the line is in
   * the air, and says whether it could; `take` chooses one; `toneOf` tells how one ends */
  constructor(view) {
    this.view = view;
    // The case whose place the line is over, while it is in the air.
    this.aloft = null;
    this.dragged = false;
    this.grip = element("span.jl-grip", {
      role: "slider",
      tabindex: 0,
      title: "Drag this line, or move it by arrow keys; Enter drops it, Escape puts it back",
      "aria-label": BARRIER,
      "aria-orientation": "vertical",
      "aria-valuemin": 0,
      "aria-valuemax": 2,
    });
    this.rows = [JOIN, ...LINES, ...PLACES].map(() => element("div"));
    this.places = this.rows.slice(4);
    const look = { role: "group", "aria-label": "The loop" };
    this.code = element("div.jl-code.jl-hand", look, ...this.rows, this.grip);
    this.six = element("p.jl-six", { role: "img" });
    this.below = element("p.jl-do");
    this.six.onclick = (event) => {
      const box = hit(event, "b");
      if (box && !view.busy) this.choose(Number(box.textContent[0]));
    };
    this.code.onclick = (event) => {
      const [join, place] = view.loop[view.case - 1];
      if (hit(event, ".jl-with") && !view.busy) this.choose(this.caseOf(!join, place));
    };
    for (const event of ["pointerenter", "focusin"])
      this.code.addEventListener(event, () => view.prepare?.());
    this.wire();
  }

  caseOf(join, place) {
    return 1 + this.view.loop.findIndex((at) => at[0] === join && at[1] === place);
  }

  placeOf(n) {
    return this.view.loop[n - 1][1];
  }

  choose(n) {
    if (n !== this.view.case) this.view.take(n);
  }

  wire() {
    const { grip, view } = this;
    grip.onpointerdown = (event) => {
      if (view.busy || event.button) return;
      grip.focus({ preventScroll: true });
      const { clientX: left, clientY: top } = event;
      this.dragged = true;
      this.lift();
      drag(
        event,
        ({ clientX, clientY }) => {
          if (!this.dragged) return;
          grip.style.translate = `${clientX - left}px ${clientY - top}px`;
          this.over(this.placeAt(clientX, clientY));
        },
        (lost) => this.dragged && this.land(lost),
      );
    };
    grip.onblur = () => this.land();
    grip.onkeydown = (event) => {
      const { key } = event,
        [x, y] = arrow(event),
        step = y - x;
      if (chord(event)) return;
      if (Math.abs(step) === 1 && !this.dragged && !view.busy) {
        this.lift();
        this.over(PLACES[PLACES.indexOf(this.placeOf(this.aloft)) + step]);
      } else if (this.aloft !== null && /^(Enter| |Escape)$/.test(key)) this.land(key === "Escape");
      else if (key !== " ") return; // which plays elsewhere
      event.preventDefault(); // so the view knows that the key is taken
    };
  }

  lift() {
    if (this.aloft !== null) return;
    this.aloft = this.view.case;
    if (this.view.get("mended")) this.view.set("mended", false);
    this.view.lifted?.();
    this.view.prepare?.();
    this.draw();
  }

  placeAt(x, y) {
    const { left, right, top, bottom } = this.code.getBoundingClientRect();
    if (Math.max(left - x, x - right, top - y, y - bottom) > AWAY) return PLACES[2];
    const far = this.places.map((place) => {
      const { top, height } = place.getBoundingClientRect();
      return Math.abs(top + height / 2 - y);
    });
    return PLACES[far.indexOf(Math.min(...far))];
  }

  over(place) {
    const n = this.caseOf(this.view.loop[this.aloft - 1][0], place);
    if (!n || n === this.aloft) return;
    this.aloft = n;
    this.glance();
  }

  glance() {
    if (this.aloft === null) return;
    const { view } = this,
      known = view.glance(this.aloft),
      { names, ends } = view.run.scene;
    this.draw();
    if (!known) write(this.below, esc(view.later));
    const told = known && !view.covered.length,
      how = told ? ends.map(([, word], i) => `${names[i]} ${word}`).join(", ") : view.later;
    view.announce(`Case ${this.aloft}: ${BARRIER} ${this.placeOf(this.aloft)}. ${how}`);
  }

  // back: where it was
  land(back = false) {
    const { view, aloft } = this;
    if (aloft === null) return;
    if (back && aloft !== view.case) view.glance(view.case);
    this.aloft = null;
    this.dragged = false;
    this.grip.style.translate = "";
    if (back) view.announce(`${BARRIER} is back: ${this.placeOf(view.case)}`);
    else this.choose(aloft);
    view.landed?.();
    this.draw();
  }

  // Draw the program in place of the code of a run; false if no case is chosen.
  draw() {
    const { view, rows, places, grip, aloft } = this,
      { main } = view,
      mended = view.run !== main,
      shown = aloft ?? view.case;
    if (!shown) return false;
    if (view.low.firstChild !== this.code)
      view.low.replaceChildren(this.code, this.six, this.below);
    const [join, place] = view.loop[shown - 1],
      step = view.phone ? 2 : 4,
      inner = join ? step : 0;
    const code = main.title.startsWith(`case_${shown},`) ? main.scene.code : [];
    const lineOf = (text, added = false) =>
      code.find(
        ([sign, , said]) =>
          (sign === "+") === added && said.trim().split("(")[0] === text.split("(")[0],
      );
    const fill = (i, line, text, add = false, look = "", after = "") => {
      const [, number = "", , here = []] = line ?? [],
        marks = view.covered.length || mended ? "" : tags(here),
        hit = here.length && !mended ? " jl-hit" : "";
      write(rows[i], tag("span", {}, lineNumber(number, add), text), after, tag("span", {}, marks));
      rows[i].className = `${look}${hit}${add ? " jl-add" : ""}`;
    };
    const turn = { type: "button", class: "jl-with", title: "With or without join()" },
      adds = !join && !!lineOf(JOIN, true);
    fill(
      0,
      lineOf(JOIN),
      "",
      adds,
      "",
      tag("button", { ...turn, "aria-pressed": `${join}` }, JOIN),
    );
    LINES.forEach((text, i) => {
      const line = lineOf(text);
      fill(i + 1, line, " ".repeat(inner + (i && step)) + esc(line?.[2].trim() ?? text));
    });
    const moved = aloft === null && !!lineOf(BARRIER, true);
    PLACES.forEach((name, i) => {
      const here = name === place,
        add = moved && i === 1, // where each fix puts it
        look = `jl-place${here ? ` jl-has${aloft === null ? "" : " jl-over"}` : ""}`,
        spot = (i ? "" : " ".repeat(inner + step)) + tag("i", {}, add ? BARRIER : name);
      fill(i + 4, here ? lineOf(BARRIER) : null, spot, add, look);
    });
    const text = moved ? `<s>${BARRIER}</s>` : BARRIER;
    write(grip, `<span aria-hidden="true">⠿ </span>${text}`);
    grip.classList.toggle("jl-aloft", aloft !== null);
    grip.ariaDisabled = String(!!view.busy);
    grip.ariaValueNow = String(PLACES.indexOf(place));
    grip.ariaValueText = place;
    const home = this.dragged ? this.placeOf(view.case) : place,
      { offsetLeft, offsetTop } = find(places[PLACES.indexOf(home)], "i");
    grip.style.left = `${offsetLeft}px`;
    grip.style.top = `${offsetTop}px`;
    this.drawSix(shown);
    const free = aloft === null && view.scenes.length === 1,
      asks = free && main.mends && (mended || !code.some(([sign]) => sign === "+"));
    const button = asks ? view.mender(mended) : ""; // else one moves the line
    write(this.below, button, view.covered.length ? "" : view.cure);
    this.bring();
    return true;
  }

  // On a phone the lanes lie below the program: while the line is in the air, they come into sight, above
  // the headline or below the strip, and nothing else moves.
  bring() {
    const { stage, headline, phone } = this.view;
    stage.style.transform = "";
    if (!phone || this.aloft === null) return;
    const above = headline.getBoundingClientRect().top,
      below = this.six.getBoundingClientRect().bottom,
      { top, height } = stage.getBoundingClientRect(),
      [from, room] = above > innerHeight - below ? [0, above] : [below, innerHeight - below];
    stage.style.transform = `translateY(${from - top}px) scale(${Math.min(1, room / height)})`;
  }

  drawSix(shown) {
    let [boxes, said] = ["case ", `Case ${shown} of six. How they end:`];
    for (const n of [1, 2, 3, 4, 5, 6]) {
      const tone = this.view.toneOf(n),
        [sign, words] = ENDS[tone],
        look = { class: tone && `jl-tone-${tone}`, "aria-current": n === shown && "true" };
      boxes += tag("b", look, `${n} ${sign}`);
      said += ` ${n}: ${words}.`;
    }
    write(this.six, boxes);
    this.six.ariaLabel = said;
  }
}
