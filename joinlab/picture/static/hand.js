// The program in hand: the loop of the six cases. Its barrier can be dragged to three places, and its join()
// is a switch; each place is a case.

import { arrow, chord, drag, element, find, hit, write } from "./dom.js";
import { esc, tag } from "./text.js";
import { lineNumber, tags } from "./details.js";

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

/** @param {Partial<import("./board.js").Board>} view of the six: `glance` shows a case while
 * the line is in the air, and says whether it could; `take` chooses one; `toneOf` tells how one ends */
export function hand(view) {
  const rows = [JOIN, ...LINES, ...PLACES].map(() => element("div")),
    places = rows.slice(4),
    six = element("p.jl-six", { role: "img" }),
    advice = element("p.jl-do");
  const grip = element("span.jl-grip", {
    role: "slider",
    tabindex: 0,
    title: "Drag this line, or move it by arrow keys; Enter drops it, Escape puts it back",
    "aria-label": BARRIER,
    "aria-orientation": "vertical",
    "aria-valuemin": 0,
    "aria-valuemax": 2,
  });
  const look = { role: "group", "aria-label": "The loop" },
    program = element("div.jl-code.jl-hand", look, ...rows, grip);
  let aloft = null, // the case whose place the line is over, while it is in the air
    dragged = false;
  six.onclick = (event) => {
    const box = hit(event, "b");
    if (box && !view.busy) choose(Number(box.textContent[0]));
  };
  program.onclick = (event) => {
    const [join, place] = view.loop[view.case - 1];
    if (hit(event, ".jl-with") && !view.busy) choose(caseOf(!join, place));
  };
  for (const event of ["pointerenter", "focusin"])
    program.addEventListener(event, () => view.prepare?.());

  grip.onpointerdown = (event) => {
    if (view.busy || event.button) return;
    grip.focus({ preventScroll: true });
    const { clientX: left, clientY: top } = event;
    dragged = true;
    lift();
    drag(
      event,
      ({ clientX, clientY }) => {
        if (!dragged) return;
        grip.style.translate = `${clientX - left}px ${clientY - top}px`;
        over(placeAt(clientX, clientY));
      },
      (lost) => dragged && land(lost),
    );
  };
  grip.onblur = () => land();
  grip.onkeydown = (event) => {
    const { key } = event,
      [x, y] = arrow(event),
      step = y - x;
    if (chord(event)) return;
    if (Math.abs(step) === 1 && !dragged && !view.busy) {
      lift();
      over(PLACES[PLACES.indexOf(placeOf(aloft)) + step]);
    } else if (aloft !== null && /^(Enter| |Escape)$/.test(key)) land(key === "Escape");
    else if (key !== " ") return; // which plays elsewhere
    event.preventDefault(); // so the view knows that the key is taken
  };

  function caseOf(join, place) {
    return 1 + view.loop.findIndex((at) => at[0] === join && at[1] === place);
  }

  function placeOf(n) {
    return view.loop[n - 1][1];
  }

  function choose(n) {
    if (n !== view.case) view.take(n);
  }

  function lift() {
    if (aloft !== null) return;
    aloft = view.case;
    if (view.get("mended")) view.set("mended", false);
    view.lifted?.();
    view.prepare?.();
    draw();
  }

  function placeAt(x, y) {
    const { left, right, top, bottom } = program.getBoundingClientRect();
    if (Math.max(left - x, x - right, top - y, y - bottom) > AWAY) return PLACES[2];
    const far = places.map((place) => {
      const { top, height } = place.getBoundingClientRect();
      return Math.abs(top + height / 2 - y);
    });
    return PLACES[far.indexOf(Math.min(...far))];
  }

  function over(place) {
    const n = caseOf(view.loop[aloft - 1][0], place);
    if (!n || n === aloft) return;
    aloft = n;
    glance();
  }

  function glance() {
    if (aloft === null) return;
    const known = view.glance(aloft),
      { names, ends } = view.run.scene;
    draw();
    if (!known) write(advice, esc(view.later));
    const told = known && !view.covered.length,
      how = told ? ends.map(([, word], i) => `${names[i]} ${word}`).join(", ") : view.later;
    view.announce(`Case ${aloft}: ${BARRIER} ${placeOf(aloft)}. ${how}`);
  }

  // back: where it was
  function land(back = false) {
    const n = aloft;
    if (n === null) return;
    if (back && n !== view.case) view.glance(view.case);
    aloft = null;
    dragged = false;
    grip.style.translate = "";
    if (back) view.announce(`${BARRIER} is back: ${placeOf(view.case)}`);
    else choose(n);
    view.landed?.();
    draw();
  }

  // Draw the program in place of the code of a run; false if no case is chosen.
  function draw() {
    const { main } = view,
      mended = view.run !== main,
      shown = aloft ?? view.case;
    if (!shown) return false;
    if (view.low.firstChild !== program) view.low.replaceChildren(program, six, advice);
    const [join, place] = view.loop[shown - 1],
      step = view.phone ? 2 : 4,
      inner = join ? step : 0,
      code = main.title.startsWith(`case_${shown},`) ? main.scene.code : [],
      head = (text) => text.trim().split("(")[0],
      lineOf = (wanted, added = false) =>
        code.find(([sign, , text]) => (sign === "+") === added && head(text) === head(wanted));
    const fill = (i, line, text, add = false, look = "", after = "") => {
      const [, number = "", , here = []] = line ?? [],
        marks = view.covered.length || mended ? "" : tags(here),
        hit = here.length && !mended ? " jl-hit" : "";
      write(rows[i], tag("span", {}, lineNumber(number, add), text), after, tag("span", {}, marks));
      rows[i].className = `${look}${hit}${add ? " jl-add" : ""}`;
    };
    const turn =
      '<button type="button" class="jl-with" title="With or without join()" ' +
      `aria-pressed="${join}">${JOIN}</button>`;
    fill(0, lineOf(JOIN), "", !join && !!lineOf(JOIN, true), "", turn);
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
    grip.ariaDisabled = `${!!view.busy}`;
    grip.ariaValueNow = `${PLACES.indexOf(place)}`;
    grip.ariaValueText = place;
    const home = dragged ? placeOf(view.case) : place,
      { offsetLeft, offsetTop } = find(places[PLACES.indexOf(home)], "i");
    grip.style.left = `${offsetLeft}px`;
    grip.style.top = `${offsetTop}px`;
    drawSix(shown);
    const free = aloft === null && view.scenes.length === 1,
      asks = free && main.mends && (mended || !code.some(([sign]) => sign === "+")),
      button = asks ? view.mender(mended) : ""; // else one moves the line
    write(advice, button, view.covered.length ? "" : view.cure);
    bring();
    return true;
  }

  // On a phone the lanes lie below the program: while the line is in the air, they come into sight, above
  // the headline or below the strip, and nothing else moves.
  function bring() {
    const { stage, headline, phone } = view;
    stage.style.transform = "";
    if (!phone || aloft === null) return;
    const above = headline.getBoundingClientRect().top,
      below = six.getBoundingClientRect().bottom,
      { top, height } = stage.getBoundingClientRect(),
      [from, room] = above > innerHeight - below ? [0, above] : [below, innerHeight - below];
    stage.style.transform = `translateY(${from - top}px) scale(${Math.min(1, room / height)})`;
  }

  function drawSix(shown) {
    let [boxes, said] = ["case ", `Case ${shown} of six. How they end:`];
    for (const n of [1, 2, 3, 4, 5, 6]) {
      const tone = view.toneOf(n),
        [sign, words] = ENDS[tone],
        look = { class: tone && `jl-tone-${tone}`, "aria-current": n === shown && "true" };
      boxes += tag("b", look, `${n} ${sign}`);
      said += ` ${n}: ${words}.`;
    }
    write(six, boxes);
    six.ariaLabel = said;
  }

  return {
    draw,
    glance,
  };
}
