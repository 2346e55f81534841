// Makes elements of a document, and listens to hands.

/** An element with attributes and children; `onclick` is a listener, an attribute that is null or false is
 * left out.
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K | `${K}.${string}`} tag with its class, as in "div.jl-bar"
 * @param {...(Node | string)} children */
export function element(tag, attributes = {}, ...children) {
  const [name, ...look] = tag.split("."),
    made = document.createElement(/** @type {K} */ (name));
  made.classList.add(...look);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "onclick") made.addEventListener("click", value);
    else if ((value ?? false) !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

// look: its class
export function button(text, title, onclick, look = "", more = {}) {
  return element("button", { type: "button", title, onclick, class: look, ...more }, text);
}

// text: of an option
export function choice(label, chosen, values = [], text = (value) => value) {
  const options = values.map((value) => element("option", { value }, text(value))),
    select = element("select", { "aria-label": label }, ...options);
  select.onchange = () => chosen(select.value);
  return select;
}

// An id for what is on the page once: every widget has a module of its own, which could count no others.
export const fresh = () => `jl${Math.random().toString(36).slice(2)}`;

/** @returns {?HTMLElement} */
export const hit = (event, selector) => event.target.closest(selector);

// Follow a pointer that is down until it is lifted, or taken by the browser to scroll.
export function drag(event, go, done = (lost) => {}) {
  const end = new AbortController(),
    until = { signal: end.signal };
  event.preventDefault();
  go(event);
  addEventListener("pointermove", go, until);
  for (const how of ["pointerup", "pointercancel"])
    addEventListener(
      how,
      () => {
        end.abort();
        done(how === "pointercancel");
      },
      until,
    );
}

// Whether a key is pressed with others, as for a browser's own commands.
export const chord = ({ ctrlKey, metaKey, altKey }) => ctrlKey || metaKey || altKey;

const ARROWS = {
  ArrowLeft: [-1, 0],
  ArrowRight: [1, 0],
  ArrowUp: [0, -1],
  ArrowDown: [0, 1],
  Home: [-Infinity, 0],
  End: [Infinity, 0],
};

// How far a key goes to the right and down; of others, nothing.
export const arrow = (event) => (chord(event) ? [] : (ARROWS[event.key] ?? []));

/** @returns {?HTMLElement} */
export const find = (root, selector) => root.querySelector(selector);

/** @returns {HTMLElement[]} */
export const findAll = (root, selector) => [...root.querySelectorAll(selector)];

// What was last written into an element.
const written = new WeakMap();

// Write HTML, texts and lists of them, into an element. What is there already stays, and keeps the focus.
export function write(place, ...pieces) {
  const html = pieces.flat(9).join("");
  if (written.get(place) === html) return;
  written.set(place, html);
  const wanted = place.cloneNode(false);
  wanted.innerHTML = html;
  change(place, wanted);
}

// Make the children of an element like those of another, which loses them. A drawing is replaced whole:
// its parts would fade from one place into another.
function change(place, wanted) {
  const here = [...place.childNodes],
    wants = [...wanted.childNodes];
  for (const [i, want] of wants.entries()) {
    const was = here[i];
    if (!was) place.append(want);
    else if (was.isEqualNode(want)) continue;
    else if (!(was instanceof HTMLElement) || was.nodeName !== want.nodeName) was.replaceWith(want);
    else {
      for (const { name } of [...was.attributes])
        if (!want.hasAttribute(name)) was.removeAttribute(name);
      for (const { name, value } of want.attributes) was.setAttribute(name, value);
      if (was instanceof HTMLOptionElement) was.selected = want.hasAttribute("selected");
      change(was, want);
    }
  }
  for (const gone of here.slice(wants.length)) gone.remove();
}
