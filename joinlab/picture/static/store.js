// A model for a page without Python: the same few methods as a widget's.

export class Store extends EventTarget {
  on = this.addEventListener;
  off = this.removeEventListener;

  constructor(values = {}) {
    super();
    this.values = { axis: "logical", covered: [], heading: "", mended: false, ...values };
  }

  get(name) {
    return this.values[name];
  }

  set(name, value) {
    if (this.values[name] === value) return;
    this.values[name] = value;
    this.dispatchEvent(new Event(`change:${name}`));
  }

  save_changes() {}
}
