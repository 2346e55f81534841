"""A log of bounded size, for jobs that run for days: segments, of which the last two are kept.

Each segment is a file of events (events.py), rank-<rank>.<number>.jsonl. Each segment begins with a
preamble, so that the last two segments are enough for a reader: the rank, its groups, the number of
collectives it has issued in each group, and the calls that are still open. For a group that is
seldom used, a reader thus knows how many calls the rank has issued, even if the calls themselves
were dropped:

    rank-0.7.jsonl    dropped       group "1", calls 40 to 55       (the last that it issued)
    rank-0.8.jsonl    kept          group "0", calls 90,000 to 94,000
    rank-0.9.jsonl    being filled  preamble: 55 in group "1", 94,000 in "0"; group "0" from 94,001

Invariant: if a segment has the end of a call, it also has the call, since each preamble repeats the
open calls.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from joinlab.recorder.events import EventLog, cut

SEGMENT_BYTES = 4 << 20
"""A segment is full at this size: some 4,000 calls of a DDP step with their waits and spans."""
PREAMBLE_BYTES = 1 << 20
"""Largest preamble; most of it is the source text of functions (MAX_TEXTS in
program/sources.py)."""

MOST_BYTES = 2 * (SEGMENT_BYTES + PREAMBLE_BYTES) + SEGMENT_BYTES
"""Disk space of one rank: two segments with their preambles, and briefly a third while it replaces
the oldest."""

_NAME = re.compile(r"rank-(\d+)\.(\d+)\.jsonl")


def segment_name(rank: int, number: int) -> str:
    return f"rank-{rank}.{number}.jsonl"


def parse_segment_name(name: str) -> tuple[int, int] | None:
    """Rank and number of a segment; None if no segment has that name.

    >>> parse_segment_name("rank-3.12.jsonl"), parse_segment_name("rank-3.out")
    ((3, 12), None)
    """
    match = _NAME.fullmatch(name)
    if match:
        return (int(match[1]), int(match[2]))
    return None


class BoundedLog(EventLog):
    """Appends events to the current segment."""

    __slots__ = ("_folder", "_rank", "preamble")

    def __init__(self, folder: Path, rank: int, on_failure: Callable[[Exception], None]) -> None:
        self.preamble: Callable[[], Iterable[str]] = lambda: ()
        """Makes the lines of the next segment's preamble; set by the recorder."""
        self._folder = folder
        self._rank = rank
        super().__init__(self._path(0), on_failure, SEGMENT_BYTES)

    def _path(self, number: int) -> Path:
        return self._folder / segment_name(self._rank, number)

    def _make_room(self, size: int) -> bool:
        end = self._seal()
        if end + size > self._full_at:
            return self._begin_next(end, size)
        return self._grow(end, size)

    def _begin_next(self, end: int, size: int) -> bool:
        """Begin the next segment, with room for `size` bytes; the text of the current one ends at
        `end`."""
        full = self._fd
        self.segment += 1
        preamble = "".join(self.preamble()).encode()
        self._full_at = len(preamble) + max(SEGMENT_BYTES, size)
        try:
            self._begin(self._path(self.segment), preamble)
        except OSError as error:
            self.segment -= 1
            self.give_up(error)
            return False
        cut(full, end)
        with suppress(OSError):
            self._path(self.segment - 2).unlink(missing_ok=True)
        return size <= len(self._map) - len(preamble) or self._grow(self._seal(), size)
