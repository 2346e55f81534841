// Draws each figure in place of its static picture, and lets the reader choose the axis.
"use strict";
const config = { showSendToCloud: false, displaylogo: false, responsive: true };
for (const picture of document.querySelectorAll(".picture")) {
  const choice = document.querySelector(`fieldset[data-picture="${picture.id}"]`);
  const draw = async (axis) => {
    const { data, layout } = JSON.parse(document.getElementById(`${picture.id}-${axis}`).textContent);
    picture.classList.add("drawn");
    await Plotly.react(picture.querySelector(".live"), data, layout, config);
    picture.dataset.axis = axis;
  };
  for (const radio of choice.querySelectorAll("input")) radio.addEventListener("change", () => draw(radio.value));
  choice.hidden = false;
  draw(choice.querySelector("input:checked").value);
}
