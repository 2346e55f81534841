// One row per rank: how many inputs it has, what is said of its ending, and what came of that.
// Native controls: they have names, and answer to the keyboard, by themselves.

export default {
  render({ model, el }) {
    const name = `jlr${(globalThis.joinlabRanks = (globalThis.joinlabRanks ?? 0) + 1)}`; // every widget has its own module
    const set = (trait, value) => { model.set(trait, value); model.save_changes(); };
    const element = (tag, attributes = {}, ...children) => {
      const found = document.createElement(tag);
      for (const [key, value] of Object.entries(attributes)) found.setAttribute(key, value);
      found.append(...children);
      return found;
    };
    const rows = element("div", { class: "jl-ranklist" });
    const fewer = element("button", { type: "button" }, "− remove a rank");
    const more = element("button", { type: "button" }, "+ add a rank");
    const root = element("div", { class: "jl-ranks", role: "group", "aria-label": "Ranks", "data-lm-suppress-shortcuts": "true" },
      rows, element("div", { class: "jl-rankbar" }, fewer, more));
    el.replaceChildren(root);
    root.addEventListener("keydown", (event) => { // the arrow keys are the slider's, not the notebook's
      if (!event.ctrlKey && !event.metaKey && !event.altKey && event.key !== "Escape") event.stopPropagation();
    });

    const changed = (trait, at, value) => { const next = [...model.get(trait)]; next[at] = value; set(trait, next); };
    fewer.addEventListener("click", () => set("counts", model.get("counts").slice(0, -1)));
    more.addEventListener("click", () => set("counts", [...model.get("counts"), model.get("counts").at(-1)]));

    function row(rank) {
      const slider = element("input", { type: "range", min: 0, max: model.get("most"), step: 1, id: `${name}-${rank}` });
      const number = element("output", { for: slider.id });
      const say = element("select", { "aria-label": `I say that rank ${rank}` },
        ...model.get("words").map((word) => element("option", { value: word }, word === "raises" ? "raises or crashes" : word || "…")));
      const result = element("span", { class: "jl-result", id: `${name}-${rank}-r` });
      say.setAttribute("aria-describedby", result.id);
      slider.addEventListener("input", () => changed("counts", rank, Number(slider.value)));
      say.addEventListener("change", () => changed("said", rank, say.value));
      const said = element("span", { class: "jl-say" }, "I say it ", say, result);
      return { slider, number, say, said, result,
        whole: element("div", { class: "jl-rank" }, element("label", { for: slider.id }, `rank ${rank}: inputs`), slider, number, said) };
    }

    const shown = [];
    function draw() {
      const counts = model.get("counts"), said = model.get("said"), results = model.get("results");
      while (shown.length > counts.length) shown.pop().whole.remove();
      while (shown.length < counts.length) { shown.push(row(shown.length)); rows.append(shown.at(-1).whole); }
      shown.forEach((one, rank) => {
        if (Number(one.slider.value) !== counts[rank]) one.slider.value = counts[rank];
        one.number.textContent = counts[rank];
        one.slider.disabled = model.get("busy");
        one.said.hidden = !model.get("predict");
        one.say.disabled = model.get("busy") || !model.get("covered");
        if (one.say.value !== (said[rank] ?? "")) one.say.value = said[rank] ?? "";
        one.result.textContent = results[rank] ?? "";
        one.result.className = `jl-result${(results[rank] ?? "").startsWith("✓") ? " jl-right" : ""}`;
      });
      fewer.disabled = model.get("busy") || counts.length <= 1;
      more.disabled = model.get("busy") || counts.length >= model.get("ranks");
    }
    const traits = ["counts", "said", "results", "busy", "predict", "covered"];
    for (const trait of traits) model.on(`change:${trait}`, draw);
    draw();
    return () => { for (const trait of traits) model.off(`change:${trait}`, draw); };
  },
};
