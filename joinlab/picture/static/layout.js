// Reads lane data (joinlab/picture/lane_data.py): every word and every place along the axis comes from Python.

/** @param {Uint8Array | DataView} bytes @returns {Promise<LaneData>} */
export async function unpack(bytes) {
  return JSON.parse(await unzip(bytes));
}

/** @param {Uint8Array | DataView} bytes */
async function unzip(bytes) { // by way of a Blob and a Response it waits for other threads, ten times as long
  const stream = new DecompressionStream("gzip"), writer = stream.writable.getWriter(), reader = stream.readable.getReader();
  writer.write(/** @type {any} */ (bytes));
  writer.close();
  const decoder = new TextDecoder();
  let text = "";
  for (let part; !(part = await reader.read()).done; ) text += decoder.decode(part.value, { stream: true });
  return text;
}

/** One layout of a run, its texts looked up and its boxes placed.
 * @param {LaneData} data @param {RawRun} run @param {string} axis @param {boolean} setup @returns {Layout} */
export function layoutOf(data, run, axis, setup) {
  const raw = run.layouts[setup ? `${axis} setup` : axis];
  /** @param {number} n */
  const text = (n) => data.texts[n];
  const boxes = raw.box.map((number, i) => {
    const box = run.boxes[number];
    return {
      begin: raw.from[i], end: raw.to[i], track: raw.track[i] ?? 0, tracks: raw.tracks[i] ?? 1,
      rank: box.rank, kind: box.kind, label: text(box.label), short: text(box.short),
      open: !!box.open, bad: !!box.bad, failed: !!box.failed, slot: box.slot, line: box.line,
      facts: data.told[box.facts].map((fact) => /** @type {Fact} */ (data.facts[fact].map(text))),
      host: data.looks.kinds[box.kind].lane !== "stream",
    };
  });
  const calls = boxes.filter((box) => !box.host);
  const at = new Map();
  for (const box of calls) if (!at.has(`${box.slot},${box.rank}`)) at.set(`${box.slot},${box.rank}`, box);
  const slots = [...new Set(calls.map((box) => box.slot))];
  const bands = raw.bands.map((band) => ({ ...band, a: at.get(`${band.slot},${band.a}`), b: at.get(`${band.slot},${band.b}`), text: text(band.text) }));
  const notes = raw.notes.map((note) => ({ ...note, text: text(note.line), whole: text(note.whole) }));
  const groups = raw.groups.map((group) => ({ ...group, label: text(group.label) }));
  return { axis, boxes, calls, at, slots, bands, notes, groups, stops: raw.stops, begin: raw.begin, end: raw.end, unit: raw.unit };
}
