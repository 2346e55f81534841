// The level of detail on the clock, for one zoom. Calls that stand alone are drawn at least SHORTEST long, beside what
// that would hide; in a crowd each is as long as it was, and neighbours under LEAST px are one block:
//
//     |  |     |||||||||||||||||||| ||  |||||||    |
//     longer   one block: "412 calls, all matched"  longer
//
// What went wrong is never in a block with what matched, so it is always seen. So much is drawn per px, and no more.

import { BAD, FAILED, OPEN, PARTS } from "./boxes.js";

const SHORTEST = 13, TRACKS = 8, CROWD = 16; // px of a call, at least, while no more than so many stand beside, or near, each other
export const LEAST = 3; // px: what is shorter is drawn with its neighbours
export const WRONG = OPEN | BAD | FAILED;

export class Detail {
  /** @param {import("./boxes.js").Boxes} boxes @param {number} perUnit px of a unit of the axis @param {boolean} lengthens */
  constructor(boxes, perUnit, lengthens) {
    const n = boxes.count, spare = boxes.spare ?? (boxes.spare = {
      owner: new Int32Array(n), held: new Int32Array(n), lastOf: new Int32Array(n), tracks: new Uint8Array(n), track: new Uint8Array(n),
    }); // of the zoom before: to make new ones takes as long as to fill them
    this.boxes = boxes;
    this.perUnit = perUnit;
    /** The first box of the block that a box lies in; -1: it is drawn by itself. */
    this.owner = spare.owner.fill(-1);
    /** By the first box of a block: how many it holds, and the last of them. */
    this.held = spare.held;
    this.lastOf = spare.lastOf;
    /** How many tracks a call shares its lane with, and its own; 0: as the layout has it. */
    this.tracks = spare.tracks.fill(0);
    this.track = spare.track;
    this.anyLonger = false;
    for (let lane = 0; lane + 1 < boxes.starts.length; lane++) {
      if (lane % PARTS === 0 && lengthens) this.lengthen(boxes.starts[lane], boxes.starts[lane + 1]);
      else this.gather(boxes.starts[lane], boxes.starts[lane + 1]);
    }
  }

  /** px that a box is drawn long. @param {number} i */
  lengthOf(i) {
    const { begin, end } = this.boxes.columns, real = (end[i] - begin[i]) * this.perUnit;
    return this.tracks[i] ? Math.max(real, SHORTEST) : real;
  }

  /** Whether a box is drawn longer than it took. @param {number} i */
  isLonger(i) { return this.tracks[i] > 0 && this.lengthOf(i) > (this.boxes.columns.end[i] - this.boxes.columns.begin[i]) * this.perUnit + 1; }

  /** Draw the calls of a lane longer where they have room. @param {number} from place in the order @param {number} to */
  lengthen(from, to) {
    const { order, columns: { begin, end } } = this.boxes, { perUnit, track } = this;
    const busy = new Float64Array(TRACKS); // where each track is free again
    let used = 0, until = -Infinity, first = from, full = false;
    const settle = (/** @type {number} */ behind) => {
      if (full || behind - first > CROWD) this.gather(first, behind);
      else for (let p = first; p < behind; p++) this.tracks[order[p]] = used;
      for (let p = first; p < behind && !this.anyLonger; p++) this.anyLonger = this.isLonger(order[p]);
      [first, used, until, full] = [behind, 0, -Infinity, false];
    };
    for (let p = from; p < to; p++) {
      const i = order[p], x = begin[i] * perUnit, y = Math.max(end[i] * perUnit, x + SHORTEST);
      if (x >= until && p > first) settle(p);
      if (!full) {
        let at = 0;
        while (at < used && busy[at] > x) at++;
        if (at === TRACKS) full = true;
        else {
          busy[at] = y;
          track[i] = at;
          used = Math.max(used, at + 1);
        }
      }
      if (y > until) until = y;
    }
    if (to > first) settle(to);
  }

  /** Make blocks of neighbours that are too short to be seen. @param {number} from place in the order @param {number} to */
  gather(from, to) {
    const { order, columns: { begin, end, flags } } = this.boxes, { perUnit, owner, held, lastOf } = this;
    const block = [-1, -1], until = [0, 0]; // of what matched, and of what went wrong
    for (let p = from; p < to; p++) {
      const i = order[p], which = flags[i] & WRONG ? 1 : 0;
      const x = begin[i] * perUnit, y = end[i] * perUnit;
      if (y - x >= LEAST) block[which] = -1;
      else if (block[which] >= 0 && x - until[which] < LEAST) {
        owner[block[which]] = owner[i] = block[which];
        held[block[which]]++;
        lastOf[block[which]] = i;
        if (y > until[which]) until[which] = y;
      } else {
        block[which] = lastOf[i] = i;
        held[i] = 1;
        until[which] = y;
      }
    }
  }
}
