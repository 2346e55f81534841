// Makes elements of a document.

/** An element with attributes and children; `onclick` is a listener, an attribute that is null or false is
 * left out.
 * @param {string} tag @param {Record<string, any>} attributes @param {...(Node | string | null)} children */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "onclick") made.addEventListener("click", value);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value === true
      ? "" : value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

/** A button. @param {string} text
 * @param {string} title @param {() => void} onclick @param {Record<string, any>} more */
export function button(text, title, onclick, more = {}) {
  return /** @type {HTMLButtonElement} */ (element("button", { type: "button", title, onclick, ...more },
    text));
}

/** What an event hit. @param {Event} event @param {string} what a selector */
export const hit = (event, what) =>
  /** @type {HTMLElement | null} */ (/** @type {Element} */ (event.target).closest(what));

/** What was last written into an element. @type {WeakMap<Element, string>} */
const written = new WeakMap();

/** Write HTML into an element, unless that is there already. What has the focus gets it again.
 * @param {Element} place @param {string} html */
export function write(place, html) {
  if (written.get(place) === html) return;
  written.set(place, html);
  const focused = place.contains(document.activeElement)
    && /** @type {HTMLElement} */ (document.activeElement).dataset.key;
  place.innerHTML = html;
  if (focused) /** @type {HTMLElement | null} */ (
    place.querySelector(`[data-key="${focused}"]`))?.focus({ preventScroll: true });
}
