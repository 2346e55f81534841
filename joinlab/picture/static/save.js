// Saves what Python wrote, as a file.

export async function save({ save: what, name, text }) {
  const file = what === "PNG" ? await painted(text) : new Blob([text], { type: "image/svg+xml" }),
    link = document.createElement("a");
  link.href = URL.createObjectURL(file);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000); // after the browser has read it
  return `Saved ${name}`;
}

/** An SVG picture as a PNG, twice its size. @returns {Promise<Blob>} */
async function painted(svg) {
  const image = new Image(),
    canvas = document.createElement("canvas");
  image.src = `data:image/svg+xml,${encodeURIComponent(svg)}`;
  await image.decode();
  [canvas.width, canvas.height] = [2 * image.width, 2 * image.height];
  const context = canvas.getContext("2d");
  context.fillStyle = "#fff";
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}
