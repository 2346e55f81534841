// Makes elements of a document.

/** An element with attributes and children; `onclick` is a listener, an attribute that is null or false is
 * left out.
 * @param {string} tag @param {Record<string, any>} attributes @param {...(Node | string | null)} children */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "onclick") made.addEventListener("click", value);
    else if (value !== null && value !== undefined && value !== false)
      made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

/** A button. @param {string} text
 * @param {string} title @param {() => void} onclick @param {Record<string, any>} more */
export function button(text, title, onclick, more = {}) {
  return /** @type {HTMLButtonElement} */ (
    element("button", { type: "button", title, onclick, ...more }, text)
  );
}

/** What an event hit. @param {Event} event @param {string} what a selector */
export const hit = (event, what) =>
  /** @type {HTMLElement | null} */ (/** @type {Element} */ (event.target).closest(what));

/** Follow a pointer that is down until it is lifted.
 * @param {PointerEvent} event @param {(event: PointerEvent) => void} go @param {() => void} done */
export function drag(event, go, done = () => {}) {
  const up = () => {
    removeEventListener("pointermove", go);
    done();
  };
  event.preventDefault();
  go(event);
  addEventListener("pointermove", go);
  addEventListener("pointerup", up, { once: true });
}

/** @param {ParentNode} root @param {string} what a selector @returns {HTMLElement | null} */
export const find = (root, what) => root.querySelector(what);

/** @param {ParentNode} root @param {string} what a selector @returns {HTMLElement[]} */
export const findAll = (root, what) =>
  [...root.querySelectorAll(what)].map(/** @returns {any} */ (one) => one);

/** What was last written into an element. @type {WeakMap<Element, string>} */
const written = new WeakMap();

/** Write HTML into an element. What is there already stays, and keeps the focus.
 * @param {Element} place @param {string} html */
export function write(place, html) {
  if (written.get(place) === html) return;
  written.set(place, html);
  const wanted = /** @type {Element} */ (place.cloneNode(false));
  wanted.innerHTML = html;
  change(place, wanted);
}

/** Make the children of an element like those of another, which loses them. A drawing is replaced whole:
 * its parts would fade from one place into another.
 * @param {Element} place @param {Element} wanted */
function change(place, wanted) {
  const here = [...place.childNodes],
    wants = [...wanted.childNodes];
  for (const [i, want] of wants.entries()) {
    const was = here[i];
    if (!was) place.append(want);
    else if (was.isEqualNode(want)) continue;
    else if (!(was instanceof HTMLElement) || was.nodeName !== want.nodeName) was.replaceWith(want);
    else {
      const made = /** @type {Element} */ (want);
      for (const { name } of [...was.attributes])
        if (!made.hasAttribute(name)) was.removeAttribute(name);
      for (const { name, value } of made.attributes) was.setAttribute(name, value);
      if (was instanceof HTMLOptionElement) was.selected = made.hasAttribute("selected");
      change(was, made);
    }
  }
  for (const gone of here.slice(wants.length)) gone.remove();
}
