"""A log of bounded size, for jobs that run for days: segments, of which the last two are kept.

Each segment is a file of events (events.py), rank-<rank>.<number>.jsonl. When one is full the next one begins with what
a reader of the last two needs to know, its preamble: who the rank is, its groups, the calls that are still open, and
those of the last `keep` calls of every group that only the dropped segment has. So a group that is seldom used keeps
its calls although a busy one fills the log:

    rank-0.7.jsonl    dropped       group "1", calls 40 to 55       (the last that it issued)
    rank-0.8.jsonl    kept          group "0", calls 90,000 to 99,000
    rank-0.9.jsonl    being filled  preamble with calls 40 to 55 of group "1"; group "0" from 99,001

They are read back from the dropped segment, and only where a group needs it: the text of the last 2,000 calls, kept in
memory for that, made each call touch memory that was in no cache any more.

Invariant: a segment that has the end of a call has the call before it, since each preamble repeats the open calls.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from joinlab.recorder.events import EventLog, cut, to_json

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


class BoundedLog(EventLog):
    """Appends events to the current segment."""

    __slots__ = ("_folder", "_rank", "preamble")

    def __init__(self, folder: Path, rank: int, on_failure: Callable[[OSError], None]) -> None:
        self.preamble: Callable[[], Iterable[str]] = lambda: ()
        """What the next segment begins with, asked for when it begins; set by the recorder."""
        self._folder = folder
        self._rank = rank
        super().__init__(self._path(0), on_failure, SEGMENT_BYTES)

    @property
    def dropped(self) -> Path:
        """The segment that is dropped when the current one begins; there may be none."""
        return self._path(self.segment - 2)

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
            self.dropped.unlink(missing_ok=True)
        return size <= len(self._map) - len(preamble) or self._grow(self._seal(), size)


@dataclass(slots=True)
class EndedCall:
    """A call of a segment, and the lines that tell what became of it."""

    stack: int
    call: str
    ends: list[str] = field(default_factory=list)


def last_calls(segment: Path, wanted: Mapping[str, int], taken: int = 0) -> list[EndedCall]:
    """The last calls that ended within `segment`, of each group as many as are wanted; none if it cannot be read.

    If not all fit into CARRIED_BYTES, of which so many are `taken`, the newest of each group do. What was still open at
    its end is in the next one.
    """
    if not wanted:
        return []
    try:
        text = segment.read_text("utf-8", "replace")
    except OSError:
        return []
    calls: dict[str, dict[int, EndedCall]] = {group: {} for group in wanted}
    of_id: dict[int, EndedCall] = {}
    groups = "|".join(re.escape(to_json(group)) for group in wanted)
    for found in re.finditer(rf'^\{{"e":"call","id":(\d+),"st":(\d+),"g":({groups}),.*$', text, re.M):
        id = int(found[1])
        calls[json.loads(found[3])][id] = of_id[id] = EndedCall(int(found[2]), found[0] + "\n")
    for found in re.finditer(r'^\{"e":"(?:done|fail|value)","id":(\d+),.*$', text, re.M):
        if one := of_id.get(int(found[1])):
            one.ends.append(found[0] + "\n")
    for found in re.finditer(r'^\{"e":"wake",.*$', text, re.M):
        wake = json.loads(found[0])
        for id, values in zip(wake["id"], wake.get("v") or [None] * len(wake["id"]), strict=True):
            if (one := of_id.get(id)) and not one.ends:
                end = {"e": "done", "id": id, "t": wake["t"], **({} if values is None else {"v": values})}
                one.ends.append(to_json(end) + "\n")
    queues = [
        iter([one for _, one in sorted(calls[group].items(), reverse=True) if one.ends][:number])
        for group, number in wanted.items()
    ]
    carried: list[EndedCall] = []
    size = taken
    while queues:
        for queue in list(queues):
            one = next(queue, None)
            if one is None or size > CARRIED_BYTES:
                queues.remove(queue)
            else:
                carried.append(one)
                size += len(one.call) + sum(map(len, one.ends))
    return carried[::-1]
