// Pictures that Python sent ahead of the sliders (joinlab/notebook/ahead.py): a move is drawn from them at once.

import { unpack } from "./layout.js";

/** @typedef {{ data: LaneData, run: RawRun, first: number | null, verdict: object }} Early */

/** How many pictures are kept when others come: a map has 81 cells. */
const KEPT = 100;

export class Ahead {
  /** @param {Model} model the board's @param {(count: number) => void} told called with how many pictures are here */
  constructor(model, told) {
    this.model = model;
    this.told = told;
    /** By key. @type {Map<string, Early>} */
    this.known = new Map();
    /** The board and the panel: as what Python says, what is set in these is not sent to Python. @type {WholeModel[]} */
    this.models = [];
    this.listener = (/** @type {any} */ message, /** @type {DataView[]} */ buffers) => { if (message?.ahead) this.take(message.ahead, buffers[0]); };
    model.on("msg:custom", this.listener);
  }

  close() { this.model.off("msg:custom", this.listener); }

  /** @param {string[]} ids of the models @param {DataView} packed */
  async take(ids, packed) {
    const models = await Promise.all(ids.map((id) => this.model.widget_manager?.get_model(id)));
    if (!models.every((one) => one?.set_state)) return; // not a notebook of Jupyter
    this.models = models;
    const data = await unpack(packed), { ahead } = data, [key] = Object.keys(ahead);
    const setting = (/** @type {string} */ one) => { const parts = one.split(","); return [...parts.slice(0, 4), parts.length].join(); };
    const others = [...this.known.keys()].filter((one) => setting(one) !== setting(key)); // of another map
    for (const one of [...others, ...[...this.known.keys()].slice(0, -KEPT)]) this.known.delete(one);
    for (const [one, [run, first, verdict]] of Object.entries(ahead)) this.known.set(one, { data, run: data.runs[run], first, verdict });
    this.told(this.known.size);
  }

  /** All that the picture depends on which the controls ask for, as `Setting.key` writes it. */
  get key() {
    const [, panel] = this.models;
    return ["case", "engine", "barrier_value", "pad"].map((name) => panel?.get(name)).concat(this.model.get("counts")).join();
  }

  /** Until Python answers, the panel shows this one's verdict. @param {Early} early */
  begin(early) {
    this.models[1].set_state({ early: { verdict: early.verdict, counts: this.model.get("counts") } });
  }

  /** Python has answered. @param {boolean} same whether it says what was shown */
  end(same) {
    const [, panel] = this.models;
    panel.set_state({ ...(same ? panel.get("early") : {}), early: null }); // its own message to the panel comes next
  }

  /** @param {number | null} slot */
  select(slot) { this.models[0].set_state({ selected: slot }); }
}
