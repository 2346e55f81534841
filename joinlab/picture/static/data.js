// Reads lane data (joinlab/picture/lane_data.py): every word comes from Python, and every call as a row of
// numbers.

import { decode } from "./columns.js";

export const bytesOf = (packed) => Uint8Array.from(atob(packed), (c) => c.charCodeAt(0));

/** @returns {Promise<LaneData>} */
export async function unpack(bytes) {
  const sent = new Uint8Array(bytes.buffer, bytes.byteOffset, bytes.byteLength),
    whole = sent[0] === 0x1f ? await unzip(sent) : sent; // small data is not compressed
  const behind = whole.indexOf(0); // JSON holds no NUL; the columns follow one
  const data = JSON.parse(new TextDecoder().decode(whole.subarray(0, behind)));
  data.size = sent.length;
  let at = behind + 1;
  for (const { columns } of data.runs) if (columns) at = decode(columns, whole, at);
  return data;
}

async function unzip(bytes) {
  const { writable, readable } = new DecompressionStream("gzip"),
    writer = writable.getWriter(); // out of a Blob it waits for other threads, six times as long
  writer.write(bytes);
  writer.close();
  return new Uint8Array(await new Response(readable).arrayBuffer());
}
