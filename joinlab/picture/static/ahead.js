// Pictures that Python sent ahead of the dots (joinlab/notebook/ending_map.py): a move is drawn from them.

import { unpack } from "./data.js";

/** @typedef {{ data: LaneData, run: RawRun }} Early */

export class Ahead {
  /** @param {Model} model the board's
   * @param {(count: number) => void} told called with how many pictures are here */
  constructor(model, told) {
    this.model = model;
    this.told = told;
    /** By key. @type {Map<string, Early>} */
    this.known = new Map();
    this.listener = (/** @type {any} */ message, /** @type {DataView[]} */ buffers) => {
      if (message?.ahead) this.take(buffers[0]);
    };
    model.on("msg:custom", this.listener);
  }

  close() {
    this.model.off("msg:custom", this.listener);
  }

  /** @param {DataView} packed */
  async take(packed) {
    const data = await unpack(packed),
      { ahead } = data,
      [key] = Object.keys(ahead);
    const map = (/** @type {string} */ one) => one.split(",").slice(1, 4).join(); // less case and counts
    for (const one of this.known.keys()) if (map(one) !== map(key)) this.known.delete(one);
    for (const [one, run] of Object.entries(ahead))
      this.known.set(one, { data, run: data.runs[run] });
    this.told(this.known.size);
  }

  /** All that the picture depends on which the controls ask for, as `BenchSetting.key` has it. */
  get key() {
    return this.keyOf(this.model.get("case"));
  }

  /** The same for another case. @param {number} n */
  keyOf(n) {
    const set = ["engine", "barrier_value", "pad", "counts"].map((name) => this.model.get(name));
    return [n, ...set].join();
  }
}
