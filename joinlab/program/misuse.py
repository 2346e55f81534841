"""Calls that a rank uses in a way that PyTorch allows and that its documentation forbids.

    dist.all_reduce(t, async_op=True); t.item()     nobody waits for the Work: t may not be reduced yet
    dist.all_reduce(t, group=pair)                  by a rank outside of pair: it warns, and does nothing
    if rank < 2: dist.new_group([0, 1])             only some ranks call it, or they name other ranks

Nothing hangs and nothing raises, so only the rank itself knows.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any, TypedDict

from joinlab.ops import CallRow
from joinlab.program.labels import calling_frame
from joinlab.program.log_events import CalledOutside, GroupNamed, WorksDropped

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


class Grouping(TypedDict):
    """Ranks that called new_group, in one line and for the same members, where others did not."""

    group: str
    members: list[int]
    ranks: list[int]
    site: str


class Misuse:
    """What one rank has done so far. `take`: takes its events."""

    def __init__(self, take: Callable[[WorksDropped | CalledOutside | GroupNamed], None]) -> None:
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
        site = program_site()
        if site not in self._sites and len(self._sites) < MOST:
            self._sites.add(site)
            self._take(CalledOutside(name=name, site=site))

    def grouped(self, world: Any, ranks: Iterable[int] | None) -> None:
        """The rank has called new_group; `world` is torch's own."""
        members = [*range(world.default_pg.size())] if ranks is None else sorted(ranks)
        self._take(GroupNamed(name=str(world.group_count), ranks=members, site=program_site()))


def program_site() -> str:
    """The line of the program that this thread is in, as "file:line"; "" outside of it."""
    frame = calling_frame(sys._getframe(1))
    if frame is None:
        return ""
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def unlike_groups(named: Mapping[int, Iterable[GroupNamed]]) -> list[Grouping]:
    """Groups that not all ranks named alike; `named`: by rank, what it named."""
    by_name: dict[str, dict[str, Grouping]] = {}
    for rank, groups in named.items():
        for group in groups:
            new = Grouping(group=group.name, members=group.ranks, ranks=[], site=group.site)
            by_members = by_name.setdefault(group.name, {})
            by_members.setdefault(str(group.ranks), new)["ranks"].append(rank)
    groupings = chain.from_iterable(by_members.values() for by_members in by_name.values())
    return [grouping for grouping in groupings if len(grouping["ranks"]) < len(named)]


def unwaited_of(rank: int, calls: Mapping[int, CallRow], dropped: Iterable[int]) -> list[Unwaited]:
    """The calls of a rank whose Works were dropped, by their numbers in its log."""
    rows = (calls[number] for number in dropped if number in calls)
    return [{"rank": rank, "group": row["group"], "seq": row["seq"]} for row in rows]
