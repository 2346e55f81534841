// A view that shows the run of one position of its controls at a time.

import { choice, element } from "./dom.js";
import { dots, wireDots } from "./dots.js";
import { First } from "./first.js";
import { ENDS, hand } from "./hand.js";
import { endingMap } from "./map.js";
import { clamp } from "./text.js";

/** Show a run in place of its still. @param {First} view @param {LaneData} data */
export function show(view, data, number) {
  view.root.parentElement.classList.add("drawn");
  view.show(data, data.runs[number]);
}

export class Positions extends First {
  /** @param {HTMLElement} root @param {Model} model @param {LaneData} sent */
  constructor(root, model, sent) {
    super(root, model);
    this.data = sent;
    const { runs, map, loop, start } = sent.positions,
      place = root.parentElement,
      [first, second, counts] = start;
    this.map = map && endingMap((counts) => this.go(counts));
    if (this.map) {
      place.prepend(this.map.whole);
      place.classList.add("mapped");
    }
    this.runs = runs;
    this.first = this.counts = counts;
    const select = (label, values) => choice(label, () => this.go(), Object.keys(values)),
      program = (this.program = select("Program", runs)),
      setting = (this.setting = select("Barrier", runs[first]));
    program.value = first;
    setting.value = second;
    this.loop = loop;
    this.own.append(setting);
    if (loop.length) {
      this.hand = hand(this);
      const size = (sent.size / 750000).toFixed(1); // as text, a third more
      const held = `This page holds all its ${sent.runs.length} runs, ${size} MB: none is computed here.`;
      this.story.before(element("div.jl-bar", {}, program, this.turner, held));
    } else setting.before(program);
    this.most = Math.max(...Object.keys(this.here).join().split(",").map(Number));
    wireDots(this);
  }

  get address() {
    return {
      case: this.case,
      barrier: this.setting.selectedIndex,
      inputs: this.counts.join(),
      ...super.address,
    };
  }

  goTo(asked) {
    const choose = (select, at) => (select.selectedIndex = clamp(at, 0, select.length - 1));
    if (asked.has("case")) choose(this.program, Number(asked.get("case")) - 1);
    if (asked.has("barrier")) choose(this.setting, Number(asked.get("barrier")));
    const inputs = asked.get("inputs") ?? this.first.join();
    this.go(inputs in this.here ? inputs.split(",").map(Number) : this.counts);
    super.goTo(asked);
  }

  get here() {
    return this.runs[this.program.value][this.setting.value];
  }

  go(counts = this.counts) {
    if (!(counts.join() in this.here)) return;
    this.counts = counts;
    this.map?.draw(this.data.positions.map, counts);
    show(this, this.data, this.here[counts.join()]);
  }

  // -- the loop in hand

  get case() {
    return this.program.selectedIndex + 1;
  }

  // The run of a case with these inputs.
  runOf(n) {
    return this.runs[this.program.options[n - 1].value][this.setting.value][this.counts.join()];
  }

  toneOf(n) {
    return this.data.runs[this.runOf(n)].scene.tone;
  }

  glance(n) {
    show(this, this.data, this.runOf(n));
    return true;
  }

  take(n) {
    this.program.selectedIndex = n - 1;
    this.go();
  }

  get before() {
    return 186;
  }

  head(lane) {
    return dots(lane, this.counts[lane], this.most, false, (n) => {
      const tone = this.data.runs[this.here[this.counts.with(lane, n).join()]]?.scene.tone;
      if (!tone) return null;
      const color = `color-mix(in srgb, var(--jl-${tone === "good" ? "right" : tone}) 30%, transparent)`;
      return { sign: ENDS[tone][0], color };
    });
  }
}
