// Questions that show their answer once a choice is made, live views that load when they come near, and the
// projector: one question a screen, its choices with a counter for a show of hands.

for (const form of document.querySelectorAll("form.ask"))
  form.addEventListener("change", (event) => {
    form.classList.add("committed");
    event.target.closest("label").classList.add("chosen");
    for (const input of form.elements) if (input.type === "radio") input.disabled = true;
    form.querySelector(".answer").hidden = false;
    for (const more of document.querySelectorAll(`[data-after="${event.target.name}"]`))
      more.hidden = false;
  });

/** A script of this site, once. @type {Record<string, Promise<unknown>>} */
const scripts = {};
const script = (source) =>
  (scripts[source] ??= new Promise((done) => {
    const made = document.createElement("script");
    Object.assign(made, { src: source, onload: done });
    document.head.append(made);
  }));

const near = new IntersectionObserver(
  (entries) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      near.unobserve(target);
      const { figure } = target.dataset;
      script(figure.replace(/[^/]*$/, "joinlab.js"))
        .then(() => script(`${figure}.js`))
        .then(() => joinlab.draw(target));
    }
  },
  { rootMargin: "800px" },
);
for (const place of document.querySelectorAll("[data-figure]")) near.observe(place);

const main = document.querySelector("main"),
  forms = [...document.querySelectorAll("form.ask")];

/** The parts of the page that belong to a question: from the heading or question before it to its answer's pictures.
 * @param {HTMLFormElement} form */
function slide(form) {
  const children = [...main.children],
    at = children.findIndex((child) => child.contains(form)),
    parts = [children[at]];
  for (let i = at - 1; i >= 0 && !children[i].querySelector("form.ask"); i--) {
    if (children[i].matches("form.ask, .answer")) break;
    parts.unshift(children[i]);
    if (children[i].matches("h1, h2")) break;
  }
  const name = form.id.replace("ask-", "");
  return [...parts, ...children.filter((child) => child.dataset.after === name)];
}

/** Show one question alone; -1 shows the page. @param {number} number */
function project(number) {
  const on = number >= 0 && number < forms.length;
  document.body.classList.toggle("projector", on);
  for (const child of main.children) child.classList.remove("slide");
  if (!on) return history.replaceState(null, "", location.pathname);
  for (const part of slide(forms[number])) part.classList.add("slide");
  document.querySelector(".bar").classList.add("slide");
  history.replaceState(null, "", `#project=${number + 1}`);
  document.querySelector(".where").textContent = `${number + 1} of ${forms.length}`;
  scrollTo(0, 0);
}

const current = () => Number(new URLSearchParams(location.hash.slice(1)).get("project") ?? 0) - 1;

if (forms.length) {
  for (const form of forms)
    for (const label of form.querySelectorAll("label")) {
      const hands = document.createElement("button");
      Object.assign(hands, { type: "button", className: "hands", textContent: "0" });
      hands.setAttribute("aria-label", "hands for this choice: one more");
      hands.addEventListener("click", (event) => {
        event.preventDefault();
        hands.textContent = String(Number(hands.textContent) + 1);
      });
      label.append(hands);
    }
  document.querySelector(".project").addEventListener("click", () => project(0));
  addEventListener("keydown", (event) => {
    if (!document.body.classList.contains("projector") || event.target.matches("input")) return;
    if (event.defaultPrevented) return; // by a view
    if (event.key === "ArrowRight") project(Math.min(current() + 1, forms.length - 1));
    else if (event.key === "ArrowLeft") project(Math.max(current() - 1, 0));
    else if (event.key === "Escape") project(-1);
  });
  project(current());
}
