// joinlab.View in a notebook, through anywidget.

import { mount } from "./first.js";

export default {
  /** @param {{ model: Model, el: HTMLElement }} context */
  render({ model, el }) {
    const view = mount(el, model);
    return () => view.close();
  },
};
