// A model for a page without Python: the same few methods as a widget's.

/** @implements {Model} */
export class Store {
  /** @param {Record<string, any>} values */
  constructor(values) {
    /** @type {Record<string, any>} */
    this.values = {
      selected: null,
      axis: "logical",
      covered: [],
      heading: "",
      mended: false,
      ...values,
    };
    /** @type {Record<string, (() => void)[]>} */
    this.listeners = {};
  }

  /** @param {string} name */
  get(name) {
    return this.values[name];
  }

  /** @param {string} name @param {any} value */
  set(name, value) {
    if (this.values[name] === value) return;
    this.values[name] = value;
    for (const listener of this.listeners[`change:${name}`] ?? []) listener();
  }

  /** @param {string} event @param {() => void} listener */
  on(event, listener) {
    (this.listeners[event] ??= []).push(listener);
  }

  /** @param {string} event @param {() => void} listener */
  off(event, listener) {
    this.listeners[event] = (this.listeners[event] ?? []).filter((one) => one !== listener);
  }

  save_changes() {}
}
