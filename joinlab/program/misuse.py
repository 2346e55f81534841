"""Calls that a rank uses in a way that PyTorch allows and that its documentation forbids.

    dist.all_reduce(t, async_op=True); t.item()     nobody waits for the Work: t may not be reduced yet
    dist.all_reduce(t, group=pair)                  by a rank outside of pair: it warns, and does nothing

Nothing hangs and nothing raises, so only the rank itself knows.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypedDict

from joinlab.ops import CallRow
from joinlab.program.labels import kind_of
from joinlab.program.log_events import CalledOutside, WorksDropped

MOST = 4
"""Most calls of a rank that its log names."""


class Unwaited(TypedDict):
    """A call whose Work nobody waited for."""

    rank: int
    group: str
    seq: int


class Outside(TypedDict):
    """A call of a rank that is not in the call's group, under the name of its function."""

    rank: int
    name: str
    site: str


class Misuse:
    """What one rank has done so far. `take`: takes its events."""

    def __init__(self, take: Callable[[WorksDropped | CalledOutside], None]) -> None:
        self._take = take
        self._open: dict[int, None] = {}
        self._sites: set[str] = set()

    def returned(self, call: int) -> None:
        """The program has a Work of this call."""
        self._open[call] = None

    def asked(self, calls: Iterable[int]) -> None:
        """It has waited for these, or asked whether they are complete."""
        for call in calls:
            self._open.pop(call, None)

    def all_asked(self) -> None:
        """It has waited for all that it had issued."""
        self._open.clear()

    def ended(self) -> None:
        """The program has returned."""
        if self._open:
            self._take(WorksDropped(calls=[*self._open][:MOST]))

    def outside(self, name: str) -> None:
        """A call of a group that the rank is not in."""
        frame: Any = sys._getframe(1)
        while frame is not None and kind_of(frame.f_code.co_filename) != "program":
            frame = frame.f_back
        if frame is None:
            site = ""
        else:
            site = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        if site not in self._sites and len(self._sites) < MOST:
            self._sites.add(site)
            self._take(CalledOutside(name=name, site=site))


def unwaited_of(rank: int, calls: Mapping[int, CallRow], dropped: Iterable[int]) -> list[Unwaited]:
    """The calls of a rank whose Works were dropped, by their numbers in its log."""
    rows = (calls[number] for number in dropped if number in calls)
    return [{"rank": rank, "group": row["group"], "seq": row["seq"]} for row in rows]
