"""A log of bounded size, for jobs that run for days: segments, of which the last two are kept.

Each segment is a file of events (events.py), rank-<rank>.<number>.jsonl. When one is full the next one begins with what
a reader of the last two needs to know, its preamble: who the rank is, its groups and how many collectives it has issued
in each, and the calls that are still open. So a reader knows of a group that is seldom used how far the rank has come
in it, though its calls are gone:

    rank-0.7.jsonl    dropped       group "1", calls 40 to 55       (the last that it issued)
    rank-0.8.jsonl    kept          group "0", calls 90,000 to 94,000
    rank-0.9.jsonl    being filled  preamble: 55 in group "1", 94,000 in "0"; group "0" from 94,001

Invariant: a segment that has the end of a call has the call before it, since each preamble repeats the open calls.
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
"""A preamble takes no more than this: the texts of functions are the most of it (MAX_TEXTS in program/sources.py)."""

MOST_BYTES = 2 * (SEGMENT_BYTES + PREAMBLE_BYTES) + SEGMENT_BYTES
"""Disk that one rank can take: two segments with their preambles, and a third while one replaces another."""

_NAME = re.compile(r"rank-(\d+)\.(\d+)\.jsonl")


def segment_name(rank: int, number: int) -> str:
    """File name of a segment."""
    return f"rank-{rank}.{number}.jsonl"


def parse_segment_name(name: str) -> tuple[int, int] | None:
    """Rank and number of a segment; None if no segment has that name.

    >>> parse_segment_name("rank-3.12.jsonl"), parse_segment_name("rank-3.out")
    ((3, 12), None)
    """
    found = _NAME.fullmatch(name)
    return (int(found[1]), int(found[2])) if found else None


class BoundedLog(EventLog):
    """Appends events to the current segment."""

    __slots__ = ("_folder", "_rank", "preamble")

    def __init__(self, folder: Path, rank: int, on_failure: Callable[[OSError], None]) -> None:
        self.preamble: Callable[[], Iterable[str]] = lambda: ()
        """What the next segment begins with, asked for when it begins; set by the recorder."""
        self._folder = folder
        self._rank = rank
        super().__init__(self._path(0), on_failure, SEGMENT_BYTES)

    def _path(self, number: int) -> Path:
        return self._folder / segment_name(self._rank, number)

    def _make_room(self, size: int) -> bool:
        at = self._seal()
        return self._begin_next(at, size) if at + size > self._full_at else self._grow(at, size)

    def _begin_next(self, at: int, size: int) -> bool:
        """Begin the next segment, with room for `size` bytes; the text of the current one ends at `at`."""
        full = self._fd
        self.segment += 1
        preamble = "".join(self.preamble()).encode()
        self._full_at = len(preamble) + max(SEGMENT_BYTES, size)
        try:
            self._begin(self._path(self.segment), preamble)
        except OSError as error:
            self.segment -= 1
            self.lose(error)
            self._on_failure(error)
            return False
        cut(full, at)
        with suppress(OSError):
            self._path(self.segment - 2).unlink(missing_ok=True)
        return size <= len(self._map) - len(preamble) or self._grow(self._seal(), size)
