// First everything is written, then places on the page are looked at: each look in between lays the page out, 3 ms each.

/** What waits for the end of the writing; null while nothing is written. @type {(() => void)[] | null} */
let waiting = null;

/** Change the page; what `looking` is given meanwhile follows at the end. @template T @param {() => T} write @returns {T} */
export function writing(write) {
  if (waiting) return write();
  /** @type {(() => void)[]} */
  const looks = (waiting = []);
  try {
    return write();
  } finally {
    waiting = null;
    for (const look of looks) look();
  }
}

/** Look at places on the page, or scroll, as soon as everything is written. @param {() => void} look */
export function looking(look) {
  if (waiting) waiting.push(look);
  else look();
}
