"""Parting: where the ranks of a run part, and who did otherwise than most.

row   rank 0      rank 1
  0   forward     forward
  1   backward    backward        where rank 0 issues the same calls as rank 1, only one later, they part in row 1:
  2   forward     barrier    <    rank 1's backward is from another line; `clash` is row 2, `shift.at` is row 1
  3   backward    forward
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from joinlab.analysis.folding import Folding
from joinlab.analysis.matching import Slot, shadows
from joinlab.analysis.wording import ranks_text
from joinlab.ops import POINT_TO_POINT
from joinlab.timeline import CallRow, Timeline

FURTHEST = 4
"""Two ranks that are up to so many calls apart are still seen to issue the same calls."""


@dataclass(frozen=True, slots=True)
class Shift:
    """From the `at`-th collective of a group on, `ahead` has issued `by` calls more than `behind`; all others fit."""

    at: int
    by: int
    ahead: tuple[int, ...]
    behind: tuple[int, ...]


Side = tuple[int, ...]
"""Lanes (by the rank that stands for each) that issued the same call at the first difference, or none."""


class Parting:
    """The first difference of one Timeline, folded. Lanes are named by the rank that stands for them.

    clash  the first row whose calls differ, or that a rank left out, by index of Folding.slots; None: there is none
    """

    def __init__(self, timeline: Timeline, folding: Folding) -> None:
        self.timeline, self.folding = timeline, folding
        self.slots, self.rows = folding.slots, folding.matched.row_of
        self.groups = folding.matched.groups
        self.lanes = folding.lanes
        self.ends = timeline.ends
        self.clash = next((at for at, slot in enumerate(self.slots) if self._parts(slot)), None)

    @property
    def slot(self) -> Slot:
        """The slot of the clash."""
        assert self.clash is not None
        return self.slots[self.clash]

    @property
    def first(self) -> int | None:
        """The row in which the ranks part: where a shift begins, else the clash."""
        return self.clash if self.clash is None or self.shift is None else self._row_of(self.shift)

    def _parts(self, slot: Slot) -> bool:
        """Whether the calls of a slot differ, or some rank that has to take part issued none."""
        if not slot.expected:
            return True
        if slot.refused:
            return False
        if self.is_pair(slot):
            return not slot.met and all(self.call(slot, rank)["completed_ns"] is None for rank in slot.calls)
        return bool(self.absent(slot))

    def absent(self, slot: Slot) -> list[int]:
        """Ranks that have to take part in a slot, and issued no call for it."""
        if self.is_pair(slot):
            peers = {self.call(slot, rank)["peer"] for rank in slot.calls}
            return slot.absent(peer for peer in peers if peer is not None)
        return slot.absent(self.groups[slot.group])

    @cached_property
    def sides(self) -> list[Side]:
        """The lanes at the clash, by what they issued there; those that issued nothing come last."""
        slot, found = self.slot, list[list[int]]()
        for rank in slot.calls:
            for some in found:
                if alike(self.call(slot, some[0]), self.call(slot, rank)):
                    some.append(rank)
                    break
            else:
                found.append([rank])
        if not self.is_pair(slot) and (absent := [rank for rank in self.absent(slot) if rank in self.lanes]):
            found.append(absent)
        return [tuple(some) for some in found]

    @cached_property
    def present(self) -> list[Side]:
        """The sides that issued a call at the clash; the ones that did otherwise than most come first."""
        return sorted(
            (side for side in self.sides if side[0] in self.slot.calls), key=lambda side: side[0] not in self.odd
        )

    @cached_property
    def shift(self) -> Shift | None:
        """Whether one side issues the same calls as the other, only so many earlier, and since when.

        rank 0   a  b  c  d            at = 1, by = 1: from call 1 on, rank 1 has issued one call more,
        rank 1   a  x  b  c  d         if x is from another line than b, or another call
        """
        slot = self.slot
        if (
            len(self.sides) != 2
            or self.is_pair(slot)
            or self.folding.matched.timeline.meta.get("skipped", {}).keys() - {slot.group}
        ):
            return None
        one, other = (self.collectives(side[0]) for side in self.sides)
        at = self.place
        while at > 0 and max(len(one), len(other)) >= at and _other_line(one[at - 1 : at], other[at - 1 : at]):
            at -= 1
        for by in range(1, FURTHEST):
            for (ahead, mine), (behind, theirs) in (
                ((self.sides[1], other), (self.sides[0], one)),
                ((self.sides[0], one), (self.sides[1], other)),
            ):
                pairs = list(zip(mine[at + by :], theirs[at:], strict=False))
                if pairs and all(_same(a, b) for a, b in pairs):
                    return Shift(at, by, ahead, behind)
        return None

    @property
    def place(self) -> int:
        """How many collectives of the clash's group come before it."""
        assert self.clash is not None
        group = self.slot.group
        return sum(1 for before in self.slots[: self.clash] if before.group == group and not self.is_pair(before))

    def collectives(self, rank: int) -> list[CallRow]:
        """The collectives that a rank issued in the clash's group."""
        group = self.slot.group
        return [
            row
            for row in self.folding.matched.rows
            if row["rank"] == rank and row["group"] == group and row["op"] not in POINT_TO_POINT
        ]

    def _row_of(self, shift: Shift) -> int:
        """The row of the slot in which a shift begins."""
        group = self.slot.group
        of_group = [at for at, slot in enumerate(self.slots) if slot.group == group and not self.is_pair(slot)]
        return of_group[shift.at]

    @cached_property
    def extra(self) -> list[CallRow]:
        """The calls that the side that is ahead issued more; none without a shift."""
        if self.shift is None:
            return []
        return self.collectives(self.shift.ahead[0])[self.shift.at : self.shift.at + self.shift.by]

    @cached_property
    def odd(self) -> tuple[int, ...]:
        """All ranks of the smaller side, if most ranks are on the other one."""
        ranks = sorted((self.ranks(side) for side in self.sides), key=len)
        most = len(ranks[-1])
        rest = tuple(sorted(rank for some in ranks[:-1] for rank in some))
        return rest if rest and most > len(rest) else ()

    def is_pair(self, slot: Slot) -> bool:
        """Whether a slot is of sends and recvs."""
        return any(self.rows[rank, slot.group, seq]["op"] in POINT_TO_POINT for rank, seq in slot.calls.items())

    def call(self, slot: Slot, rank: int) -> CallRow:
        """The call of a rank in a slot."""
        return self.rows[rank, slot.group, slot.calls[rank]]

    def ranks(self, side: Iterable[int]) -> tuple[int, ...]:
        """All ranks of some lanes."""
        return tuple(sorted(rank for lane in side for rank in self.lanes[lane]))

    def name(self, side: Iterable[int]) -> str:
        """The same in words: "ranks 0-2"."""
        return ranks_text(self.ranks(side))


def alike(one: CallRow, other: CallRow) -> bool:
    """Whether two calls can be meant for each other, by all but their lines."""
    names = ("op", "dtype", "shape", "reduce_op", "root")
    fit = all(one[name] == other[name] for name in names)  # type: ignore[literal-required]
    return fit and shadows(one["origin"] or "", other["origin"] or "")


def _other_line(one: Sequence[CallRow], other: Sequence[CallRow]) -> bool:
    """Whether two calls that fit were issued in different lines, though they are the same call."""
    if not one or not other or one[0]["origin"] != other[0]["origin"]:
        return False
    return one[0]["call_site"] != other[0]["call_site"]


def _same(one: CallRow, other: CallRow) -> bool:
    """Whether two calls are the same step of the program."""
    return alike(one, other) and not _other_line([one], [other])
