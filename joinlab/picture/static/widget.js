// joinlab.View in a notebook, through anywidget.

import { First } from "./first.js";

export default {
  /** @param {{ model: Model, el: HTMLElement }} context */
  render({ model, el }) {
    const view = new First(el, model);
    return () => view.close();
  },
};
