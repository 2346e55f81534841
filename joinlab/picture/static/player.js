// The button that steps through the rows by itself.

const EVERY_MS = 1100;

export class Player {
  /** @param {HTMLButtonElement} button @param {() => boolean} step one row on; false at the last */
  constructor(button, step) {
    this.button = button;
    this.step = step;
    /** @type {ReturnType<typeof setInterval> | null} */
    this.timer = null;
  }

  get playing() { return this.timer !== null; }

  start() {
    this.timer = setInterval(() => { if (!this.step()) this.stop(); }, EVERY_MS);
    this.button.textContent = "❚❚ pause";
    this.button.setAttribute("aria-pressed", "true");
    this.step();
  }

  stop() {
    clearInterval(this.timer);
    this.timer = null;
    this.button.textContent = "▶ play";
    this.button.setAttribute("aria-pressed", "false");
  }
}
