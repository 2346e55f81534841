// Reads lane data (joinlab/picture/lane_data.py): every word comes from Python, and every call as a row of
// numbers.

import { decode } from "./columns.js";

export const bytesOf = (packed) => Uint8Array.from(atob(packed), (c) => c.charCodeAt(0));

/** @param {Uint8Array | DataView} bytes @returns {Promise<LaneData>} */
export async function unpack(bytes) {
  const sent = new Uint8Array(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const whole = sent[0] === 0x1f ? await unzip(sent) : sent; // small data is not compressed
  const behind = whole.indexOf(0); // JSON holds no NUL; the columns follow one
  const data = JSON.parse(new TextDecoder().decode(whole.subarray(0, behind)));
  data.size = sent.length;
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
