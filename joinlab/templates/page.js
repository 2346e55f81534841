// Draws each figure where its static picture stands, and lets the reader choose the axis.
"use strict";
for (const picture of document.querySelectorAll(".picture")) {
  const config = { showSendToCloud: false, displaylogo: false, responsive: true, scrollZoom: false };
  const choice = document.querySelector(`fieldset[data-picture="${picture.id}"]`);
  const figure = (axis) => JSON.parse(document.getElementById(`${picture.id}-${axis}`).textContent);
  const draw = async (axis) => {
    const { data, layout } = figure(axis);
    if (!picture.classList.contains("js-plotly-plot")) picture.replaceChildren();
    await Plotly.react(picture, data, layout, config);
    picture.dataset.axis = axis;
  };
  for (const radio of choice.querySelectorAll("input")) radio.addEventListener("change", () => draw(radio.value));
  choice.hidden = false;
  draw(choice.querySelector("input:checked").value);
}
