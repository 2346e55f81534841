"""A log of bounded size, for jobs that run for days: segments, of which the last two are kept.

Each segment is an event log of its own (events.py), rank-<rank>.<number>.jsonl. When one is full the next one begins
with what a reader of the last two needs to know, its preamble: who the rank is, its groups, the calls that are still
open, and the last `keep` calls of every group that the dropped segment takes away. So a group that is seldom used keeps
its calls although a busy one fills the log:

    rank-0.7.jsonl    dropped       group "1", calls 40 to 55       (the last that it issued)
    rank-0.8.jsonl    kept          group "0", calls 90,000 to 99,000
    rank-0.9.jsonl    being filled  preamble with calls 40 to 55 of group "1"; group "0" from 99,001
"""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from joinlab.recorder.events import EventLog, to_json

SEGMENT_BYTES = 4 << 20
"""A segment is full at this size: some 4,000 calls of a DDP step with their waits and spans."""
CARRIED_BYTES = 1 << 20
"""Calls that a preamble takes over have at most this size together; older ones are dropped, and only counted."""

MOST_BYTES = 2 * (SEGMENT_BYTES + CARRIED_BYTES) + SEGMENT_BYTES
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


class KeptCall:
    """The events of one call that a later segment may have to repeat."""

    __slots__ = ("call", "end", "segment", "stack")

    def __init__(self, stack: int) -> None:
        self.stack = stack
        self.call = ""
        self.end = ""  # of its completion or failure; "" while it is open
        self.segment = -1  # that has them; -1: not yet written


class BoundedLog:
    """Appends events to the current segment; has the methods of EventLog."""

    def __init__(self, folder: Path, rank: int, on_failure: Callable[[OSError], None]) -> None:
        self.segment = 0
        self.preamble: Callable[[], Iterable[str]] = lambda: ()
        """What the next segment begins with, asked for when it begins; set by the recorder."""
        self._folder = folder
        self._rank = rank
        self._on_failure = on_failure
        self._lock = threading.RLock()
        self._left = SEGMENT_BYTES
        for old in folder.glob(f"rank-{rank}.*.jsonl"):  # of an earlier run into the same folder
            old.unlink()
        self._log = self._open(0)

    @property
    def failed(self) -> bool:
        """True once the disk has refused to take more."""
        return self._log.failed

    def write(self, event: Mapping[str, Any]) -> None:
        """Append one event."""
        self.write_text(to_json(event))

    def write_text(self, line: str) -> int:
        """Append one event that the caller has formatted itself; returns the number of the segment that has it."""
        with self._lock:
            self._left -= len(line)
            if self._left < 0 and not self.failed:
                self._begin_next()
            self._log.write_text(line)
            return self.segment

    def close(self) -> None:
        """Give back the disk beyond the last event."""
        with self._lock:
            self._log.close()

    def _begin_next(self) -> None:
        self._left = SEGMENT_BYTES
        full, dropped = self._log, self.segment - 1
        try:
            self._log = self._open(self.segment + 1)
        except OSError as error:
            full.lose(error)
            self._on_failure(error)
            return
        self.segment += 1
        for line in self.preamble():
            self._log.write_text(line)
        full.close()
        with suppress(OSError):
            (self._folder / segment_name(self._rank, dropped)).unlink(missing_ok=True)

    def _open(self, number: int) -> EventLog:
        return EventLog(self._folder / segment_name(self._rank, number), self._on_failure)


class History:
    """The last `keep` calls of each group, as far as a preamble needs them."""

    def __init__(self, log: BoundedLog, keep: int) -> None:
        self._log = log
        self._keep = keep
        self._calls: dict[str, deque[KeptCall]] = {}

    @property
    def segment(self) -> int:
        """Number of the segment that is being filled."""
        return self._log.segment

    def begin(self, group: str, stack: int) -> KeptCall:
        """A call is about to be written."""
        kept = KeptCall(stack)
        self._calls.setdefault(group, deque(maxlen=self._keep)).append(kept)
        return kept

    def carried(self, open_calls: Iterable[KeptCall], taken: int = 0) -> list[KeptCall]:
        """Calls that only the segment has which is dropped now; the newest of each group first if not all fit.

        `taken` of the bytes for them are taken.
        """
        gone = self._log.segment - 1  # older segments than this are no longer kept
        found: dict[int, KeptCall] = {id(one): one for one in open_calls if -1 < one.segment < gone}
        size = taken + sum(len(one.call) for one in found.values())
        queues = [iter([*reversed(calls)]) for calls in list(self._calls.values())]
        while queues:
            for queue in list(queues):
                one = next(queue, None)
                if one is None or size > CARRIED_BYTES:
                    queues.remove(queue)
                elif -1 < one.segment < gone and id(one) not in found:
                    found[id(one)] = one
                    size += len(one.call) + len(one.end)
        for one in found.values():
            one.segment = self._log.segment
        return list(found.values())
