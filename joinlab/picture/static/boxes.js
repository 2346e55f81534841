// The boxes of one layout, lane by lane in order along the axis: what is in sight is found by binary search, so that a
// step, a zoom and a pan cost what is drawn, not what there is.
//
//     order   0 3 5 9 | 1 2 4 ...          indices of boxes, lane by lane, by their begin
//     reach   ends so far, at most: grows along a lane, so the first box that ends behind a place can be searched

export const OPEN = 1, BAD = 2, FAILED = 4; // flags of a box
export const PARTS = 3; // lanes of a rank: its calls, what its host did, where its host waited

export class Boxes {
  /** @param {Columns} columns @param {number} ranks @param {(i: number) => Box} box the i-th box, made when it is needed */
  constructor(columns, ranks, box) {
    this.columns = columns;
    /** @type {Set<number>[]} */
    this.known = [];
    /** Columns that Detail works with. @type {{ owner: Int32Array, held: Int32Array, lastOf: Int32Array, tracks: Uint8Array, track: Uint8Array } | null} */
    this.spare = null;
    this.box = box;
    const { lane, begin, end, slot } = columns, n = this.count = lane.length, lanes = ranks * PARTS;
    this.starts = new Int32Array(lanes + 1);
    for (let i = 0; i < n; i++) this.starts[lane[i] + 1]++;
    for (let l = 0; l < lanes; l++) this.starts[l + 1] += this.starts[l];
    const next = this.starts.slice(), order = this.order = new Int32Array(n);
    for (let i = 0; i < n; i++) order[next[lane[i]]++] = i;
    this.reach = new Float64Array(n);
    for (let l = 0; l < lanes; l++) {
      const [from, to] = [this.starts[l], this.starts[l + 1]];
      let sorted = true;
      for (let p = from + 1; p < to && sorted; p++) sorted = begin[order[p - 1]] <= begin[order[p]];
      if (!sorted) order.subarray(from, to).sort((a, b) => begin[a] - begin[b] || a - b);
      for (let p = from, far = -Infinity; p < to; p++) this.reach[p] = far = Math.max(far, end[order[p]]);
    }
    this.last = this.reach.reduce((far, at) => Math.max(far, at), -Infinity);
    this.bySlot(slot, lane, n);
  }

  /** Look up the calls of each slot, and the row that each slot stands in.
   * @param {Int32Array} slot @param {Int32Array} lane @param {number} n */
  bySlot(slot, lane, n) {
    let most = -1, calls = 0;
    for (let i = 0; i < n; i++) if (lane[i] % PARTS === 0) { most = Math.max(most, slot[i]); calls++; }
    this.calls = calls;
    this.offsets = new Int32Array(most + 2);
    for (let i = 0; i < n; i++) if (lane[i] % PARTS === 0) this.offsets[slot[i] + 1]++;
    for (let s = 0; s <= most; s++) this.offsets[s + 1] += this.offsets[s];
    this.members = new Int32Array(calls);
    const next = this.offsets.slice();
    for (let i = 0; i < n; i++) if (lane[i] % PARTS === 0) this.members[next[slot[i]]++] = i;
    /** Where each slot's row comes; -1: it has none here. */
    this.row = new Int32Array(most + 1).fill(-1);
    const slots = new Int32Array(most + 1);
    let rows = 0;
    if (this.columns.inOrder) { for (let s = 0; s <= most; s++) if (this.offsets[s + 1] > this.offsets[s]) slots[this.row[s] = rows++] = s; }
    else for (let i = 0; i < n; i++) if (lane[i] % PARTS === 0 && this.row[slot[i]] < 0) slots[this.row[slot[i]] = rows++] = slot[i];
    /** The slots, row by row. */
    this.slots = slots.subarray(0, rows);
  }

  /** The calls of a slot. @param {number | null} slot @returns {Box[]} */
  of(slot) {
    if (slot === null || !(slot >= 0) || slot + 1 >= this.offsets.length) return [];
    return [...this.members.subarray(this.offsets[slot], this.offsets[slot + 1])].map((i) => this.box(i));
  }

  /** The row of a slot; -1 if it has none here. @param {number | null} slot */
  rowOf(slot) { return slot === null || !(slot >= 0) || slot >= this.row.length ? -1 : this.row[slot]; }

  /** The first place in `order`, within a lane, of a box that ends at `at` or behind it. @param {number} lane @param {number} at */
  first(lane, at) {
    let [low, high] = [this.starts[lane], this.starts[lane + 1]];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.reach[middle] < at) low = middle + 1; else high = middle;
    }
    return low;
  }

  /** Places in `order` of the boxes of a lane that a stretch of the axis may hold: [first, behind the last).
   * @param {number} lane @param {number} from @param {number} to @returns {[number, number]} */
  between(lane, from, to) {
    const { order, columns: { begin } } = this, first = this.first(lane, from);
    let [low, high] = [first, this.starts[lane + 1]];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (begin[order[middle]] <= to) low = middle + 1; else high = middle;
    }
    return [first, low];
  }

  /** Which kinds a rank has. @param {number} rank @returns {Set<number>} */
  kinds(rank) {
    if (!this.known[rank]) {
      const seen = new Uint8Array(256);
      for (let p = this.starts[rank * PARTS]; p < this.starts[(rank + 1) * PARTS]; p++) seen[this.columns.kind[this.order[p]]] = 1;
      this.known[rank] = new Set([...seen.keys()].filter((kind) => seen[kind]));
    }
    return this.known[rank];
  }
}
