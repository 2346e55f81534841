// Reads lane data (joinlab/picture/lane_data.py): every word comes from Python, and every call as a row of
// numbers.

import { decode } from "./columns.js";

/** @param {Uint8Array | DataView} bytes @returns {Promise<LaneData>} */
export async function unpack(bytes) {
  const sent = new Uint8Array(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const whole = sent[0] === 0x1f ? await unzip(sent) : sent; // small data is not compressed
  const behind = whole.indexOf(0); // JSON holds no NUL; the columns follow one
  const data = JSON.parse(new TextDecoder().decode(whole.subarray(0, behind)));
  let at = behind + 1;
  for (const run of data.runs) {
    resolve(run, (n) => data.texts[n]);
    if (!run.columns) continue;
    at = decode(run.columns, whole, at);
    resolveCalls(run, (n) => data.texts[n]);
  }
  return data;
}

/** @param {Uint8Array} bytes */
async function unzip(bytes) {
  // by way of a Blob and a Response it waits for other threads, ten times as long
  const stream = new DecompressionStream("gzip"),
    writer = stream.writable.getWriter();
  const reader = stream.readable.getReader();
  writer.write(/** @type {any} */ (bytes));
  writer.close();
  const parts = [];
  for (let part; !(part = await reader.read()).done;) parts.push(part.value);
  const whole = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

/** Put texts in place of their numbers.
 * @param {any} run as it was sent @param {(n: number) => string} text */
function resolve(run, text) {
  const { scene } = run,
    pieces = (/** @type {[number, number, string][]} */ some) =>
      some.map(([said, kind, tone]) => [text(said), kind, tone]);
  for (const name of ["title", "measured", "apart"]) if (name in run) run[name] = text(run[name]);
  for (const name of ["file", "word"]) scene[name] = text(scene[name]);
  [scene.head, scene.tried] = [pieces(scene.head), pieces(scene.tried)];
  scene.names = scene.names.map(text);
  scene.story = scene.story.map((/** @type {any} */ [kind, some]) => [kind, pieces(some)]);
  scene.code = scene.code.map((/** @type {any} */ [sign, number, line, here]) => [
    sign,
    number,
    text(line),
    pieces(here),
  ]);
  scene.ends = scene.ends.map((/** @type {any} */ [sign, word, tone, more]) => [
    sign,
    text(word),
    tone,
    text(more),
  ]);
  for (const one of scene.columns) {
    [one.stack, one.said] = [text(one.stack), text(one.said)];
    if (one.missing) one.missing[1] = text(one.missing[1]);
    one.boxes = one.boxes.map(
      (/** @type {[number, number, number, number] | null} */ box) =>
        box && {
          kind: box[0],
          label: text(box[1]),
          open: !!(box[2] & 1),
          bad: !!(box[2] & 2),
          failed: !!(box[2] & 4),
          line: box[3],
        },
    );
  }
}

/** @param {any} run as it was sent @param {(n: number) => string} text */
function resolveCalls(run, text) {
  run.ends = run.ends.map(text);
  run.names = run.names.map(text);
  for (const code of run.columns.codes) code.label = text(code.label);
  run.columns.names = run.columns.names.map(text);
  run.sources = run.sources.map((/** @type {any} */ one) => ({
    ...one,
    name: text(one.name),
    text: one.text === null ? null : text(one.text),
  }));
  run.told = new Map(
    run.told.map((/** @type {number[]} */ [slot, lane, told]) => [`${slot},${lane}`, told]),
  );
}

/** What is known of a call, of a large run what its kind have in common.
 * @param {LaneData} data @param {RawRun} run @param {number} slot @param {number} lane @param {number} code
 * @returns {Fact[]} */
export function factsIn(data, run, slot, lane, code) {
  const told = data.told[run.told.get(`${slot},${lane}`) ?? run.columns.codes[code].facts];
  return told.map((fact) => /** @type {Fact} */ (data.facts[fact].map((n) => data.texts[n])));
}

/** The same in parts: what a reader looks for first, the rest, the stack, and what the rank made of it.
 * @param {LaneData} data @param {Fact[]} facts */
export function sorted({ looks }, facts) {
  const first = looks.first.flatMap((wanted) => facts.filter(([named]) => named === wanted));
  const of = (/** @type {string} */ name) => facts.find(([named]) => named === name)?.[1];
  return {
    first: first.filter(([named]) => named !== looks.made),
    stack: of("stack"),
    made: of(looks.made),
    rest: facts.filter((fact) => !first.includes(fact) && fact[0] !== "stack"),
  };
}
