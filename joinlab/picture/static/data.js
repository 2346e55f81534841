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
  for (const { columns } of data.runs) if (columns) at = decode(columns, whole, at);
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

/** What is known of a call, of a large run what its kind have in common.
 * @param {LaneData} data @param {RawRun} run @param {number} slot @param {number} lane @param {number} code
 * @returns {Fact[]} */
export function factsIn(data, run, slot, lane, code) {
  const own = run.told.find(([row, of]) => row === slot && of === lane)?.[2];
  return data.told[own ?? run.columns.codes[code].facts].map((fact) => data.facts[fact]);
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
