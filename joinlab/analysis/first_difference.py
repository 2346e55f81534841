"""Where the ranks of a run part, and which ranks did something else than most.

row   rank 0      rank 1
  0   forward     forward
  1   backward    backward        where rank 0 issues the same calls as rank 1, only one later, they part in row 1:
  2   forward     barrier    <    rank 1's backward is from another line; `slot_index` is 2, `lead.at` is 1
  3   backward    forward
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import chain, permutations
from typing import NamedTuple

import polars as pl

from joinlab.analysis.alignment import Identity, Misalignment, align, identity_of
from joinlab.analysis.folding import Folding
from joinlab.analysis.matching import Slot, differences, key_of
from joinlab.analysis.meanings import asks_of, is_setup
from joinlab.program.branches import statement_at
from joinlab.timeline import CallRow, EndKind, Timeline


@dataclass(frozen=True, slots=True)
class Lead:
    """From the `at`-th collective of a group on, `ahead` has issued `by` calls more than `behind`;
    all others fit."""

    at: int
    by: int
    ahead: tuple[int, ...]
    behind: tuple[int, ...]


class Turned(NamedTuple):
    """Two calls that one lane issued as `first` and `second`, and the largest lane in another order.

    a lane             a  b        first          is meant for largest_second
    the largest lane   b  a        largest_first  is meant for second
    """

    first: CallRow
    second: CallRow
    largest_first: CallRow
    largest_second: CallRow


class ExtraCounts(NamedTuple):
    """Calls that one side issued more often than the other.

    ahead, behind  how many of them a rank of either side issued in all
    calls          one per line; one without a line where those of all lines are counted
    """

    ahead: int
    behind: int
    calls: list[CallRow]


class Relation(StrEnum):
    """What the calls of the ranks are to each other at the first difference."""

    SAME = "same"  # there is none
    ORDER = "order"  # the same calls, in another order
    ANSWER = "answer"  # a question, and another call that answered it
    MORE = "more"  # the same calls, of which one side issued some more
    CIRCLE = "circle"  # each left out the call that another one waits for
    SPLITS = "splits"  # the same call, of which a part between two ranks does not fit
    DATA = "data"  # the same call with other data
    CALL = "call"  # other calls
    ALONE = "alone"  # a call that nothing meets


Side = tuple[int, ...]
"""Lanes, each named by one of its ranks, that issued the same call at the first difference, or no
call."""


class FirstDifference:
    """The first difference of one Timeline, folded. Lanes are named by the rank that stands for
    them.

    slot_index  of the first row whose calls differ, or that a rank left out, in Folding.slots; None: there is none.
                Where ranks left it out because they hang in another such row, it is that row
    circle      the calls, one per rank, of ranks that each left out the call that another of them waits for
    """

    def __init__(self, timeline: Timeline, folding: Folding) -> None:
        self.timeline = timeline
        self.meta = timeline.meta
        self.ends = timeline.ends
        self.folding = folding
        self.slots, self.lanes = folding.slots, folding.lanes
        self.circle: tuple[CallRow, ...] = ()
        self.slot_index = next(
            (index for index, slot in enumerate(self.slots) if self._parts(slot)), None
        )
        if self.slot_index is not None:
            self.slot_index = self._cause_of(self.slot_index)

    @cached_property
    def relation(self) -> Relation:
        if self.turned:
            return Relation.ORDER
        if self.slot_index is None:
            return Relation.SAME
        if self.answered:
            return Relation.ANSWER
        if self.counts:
            return Relation.MORE
        if self.circle:
            return Relation.CIRCLE
        if "splits" in self.slot.differs:
            return Relation.SPLITS
        if len(self.present) < 2:
            return Relation.ALONE
        other = not self.slot.differs or {"op", "origin"} & {*self.slot.differs}
        return Relation.CALL if other else Relation.DATA

    @property
    def slot(self) -> Slot:
        assert self.slot_index is not None
        return self.slots[self.slot_index]

    @property
    def first(self) -> int | None:
        """The row in which the ranks part: where a lead begins; else `slot_index`."""
        if self.slot_index is None or self.lead is None:
            return self.slot_index
        return self.row_of(self.collectives(self.lead.behind[0])[self.lead.at])

    # ---------------- slots

    def call(self, slot: Slot, rank: int) -> CallRow:
        """The call of a rank in a slot."""
        return self.folding.matched.row_of[rank, slot.group, slot.calls[rank]]

    def row_of(self, call: CallRow) -> int:
        """The row that a call is in."""
        return self.folding.matched.index_of[key_of(call)]

    def _parts(self, slot: Slot) -> bool:
        """Whether the calls of a slot differ, or some rank that has to take part issued none."""
        if slot.differs or slot.refused:
            return bool(slot.differs)
        if slot.pair:
            return not slot.met and all(
                self.call(slot, rank)["completed_ns"] is None for rank in slot.calls
            )
        return bool(slot.absent)

    def _cause_of(self, mismatch: int) -> int:
        """The row that keeps ranks from the mismatch: the ranks absent there hang in a row that others
        left out.

        recv of rank 0        rank 0 waits     rank 1 absent: hangs in the barrier
        barrier               rank 1 waits     rank 0 absent: hangs in its recv, a circle: its first row is the cause
        """
        row_of = self.folding.matched.index_of
        lane_of = {rank: lane for lane, ranks in self.lanes.items() for rank in ranks}
        # each row with the call in which a rank that left it out ended
        path: dict[int, CallRow] = {}
        candidate = mismatch
        while candidate not in path:
            absent = [self.ends[rank] for rank in self.slots[candidate].absent]
            stuck = {EndKind.HUNG, EndKind.RAISED}  # an error may come from a peer that ended
            if (
                self.slots[candidate].differs
                or not absent
                or any(end.kind not in stuck for end in absent)
            ):
                return candidate
            key = self.timeline.ended_in(lane_of[self.slots[candidate].absent[0]])
            if key is None or key not in row_of or not self._parts(self.slots[row_of[key]]):
                return candidate
            path[candidate] = self.folding.matched.row_of[key]
            candidate = row_of[key]
        circle = [*path][[*path].index(candidate) :]
        if any(self.ends[path[row]["rank"]].kind is not EndKind.HUNG for row in circle):
            return mismatch
        self.circle = tuple(path[row] for row in circle)
        return min(circle)

    # ---------------- sides

    @cached_property
    def sides(self) -> list[Side]:
        """The lanes at the mismatch, by what they issued there; those that issued nothing come
        last."""
        slot, grouped = self.slot, list[list[int]]()
        for rank in slot.calls:
            matching = (
                ranks
                for ranks in grouped
                if alike(self.call(slot, ranks[0]), self.call(slot, rank), slot)
            )
            side = next(matching, None)
            if side is not None:
                side.append(rank)
            else:
                grouped.append([rank])
        if not slot.pair and (absent := [rank for rank in slot.absent if rank in self.lanes]):
            grouped.append(absent)
        return list(map(tuple, grouped))

    @cached_property
    def present(self) -> list[Side]:
        """The sides that issued a call at the mismatch; the ones that did otherwise than most come
        first."""
        if self.slot_index is None:
            return []
        issued = (side for side in self.sides if side[0] in self.slot.calls)
        return sorted(issued, key=lambda side: side[0] not in self.outliers)

    @property
    def rows(self) -> list[CallRow]:
        """The call of each of these sides."""
        return [self.call(self.slot, side[0]) for side in self.present]

    @cached_property
    def outliers(self) -> tuple[int, ...]:
        """All ranks of the smaller side, if most ranks are on the other one; () where the ranks do
        not part."""
        if self.slot_index is None:
            return ()
        ranks = sorted(map(self.ranks, self.sides), key=len)
        minority = tuple(sorted(chain.from_iterable(ranks[:-1])))
        if minority and len(ranks[-1]) > len(minority):
            return minority
        return ()

    def ranks(self, side: Iterable[int]) -> tuple[int, ...]:
        """The ranks of these lanes."""
        return tuple(sorted(rank for lane in side for rank in self.lanes[lane]))

    # ---------------- since when

    @cached_property
    def paths(self) -> dict[str, dict[int, list[CallRow]]]:
        """By group and lane: its collectives, without those of DDP's own setup alone."""
        paths: dict[str, dict[int, list[CallRow]]] = {}
        for index, slot in enumerate(self.slots):
            rows = self.folding.matched.calls_of(slot).values()
            setup = index != self.slot_index and all(is_setup(row["origin"] or "") for row in rows)
            for row in () if slot.pair or setup else rows:
                paths.setdefault(slot.group, {}).setdefault(row["rank"], []).append(row)
        return paths

    def collectives(self, rank: int) -> list[CallRow]:
        """The path of a lane in the mismatch's group."""
        return self.paths[self.slot.group].get(rank, [])

    def identity(self, row: CallRow) -> Identity:
        return identity_of(row, self.joins)

    def misaligned(self, group: str, first: int, second: int) -> Misalignment | None:
        """The first misalignment of the paths of two lanes."""
        paths = (self.paths[group].get(lane, ()) for lane in (first, second))
        return align(*(list(map(self.identity, path)) for path in paths))

    @cached_property
    def turned(self) -> Turned | None:
        """The first two calls that a lane issued in another order than the largest one; None if the
        ranks part before, or shadow each other's calls."""
        if self.joins or self.folding.matched.is_part or self.meta.get("skipped"):
            return None
        *lanes, largest = sorted(self.lanes, key=lambda rank: (len(self.lanes[rank]), -rank))
        for group, paths in self.paths.items():
            for lane in lanes:
                misaligned = self.misaligned(group, lane, largest)
                if not misaligned or not misaligned.turned:
                    continue
                path, largest_path = (paths[rank][misaligned.begin :] for rank in (lane, largest))
                first, largest_first = path[0], largest_path[0]
                if self.slot_index is None or self.row_of(first) <= self.slot_index:
                    return Turned(
                        first,
                        self._like(largest_first, path),
                        largest_first,
                        self._like(first, largest_path),
                    )
        return None

    def _like(self, row: CallRow, path: Iterable[CallRow]) -> CallRow:
        """The first identical call of a path."""
        identity = self.identity(row)
        return next(call for call in path if self.identity(call) == identity)

    @cached_property
    def lead(self) -> Lead | None:
        """How many calls one side is ahead of the other, and since when; None if they do not issue
        the same calls.

        rank 0   a  b  c  d            at = 1, by = 1: x is from a place of the program that only rank 1 has there,
        rank 1   a  x  b  c  d         and from then on each of its calls fits rank 0's one before
        """
        elsewhere = {
            *self.meta.get("skipped", {}),
            *(slot.group for slot in self.slots if slot.lost and not slot.pair),
        }
        if len(self.sides) != 2 or self.slot.pair or elsewhere - {self.slot.group}:
            return None
        first, second = self.sides
        misaligned = self.misaligned(self.slot.group, first[0], second[0])
        if misaligned is None or not misaligned.lead:
            return None
        if self.row_of(self.collectives(first[0])[misaligned.begin]) > (self.slot_index or 0):
            return None
        ahead, behind = self.sides if misaligned.lead > 0 else self.sides[::-1]
        hangs = any(self.ends[rank].kind is EndKind.HUNG for rank in self.ranks(behind))
        # it may be that call which is one too many
        if hangs and len(self.collectives(behind[0])) == misaligned.begin + 1:
            return None
        if self._leaves_out(
            *(self.collectives(side[0])[misaligned.begin] for side in (ahead, behind))
        ):
            return None
        return Lead(misaligned.begin, abs(misaligned.lead), ahead, behind)

    def _leaves_out(self, call: CallRow, peers_call: CallRow) -> bool:
        """Whether the statement at which the traces diverge made the peer's call, and not this rank's: it
        left that one out, and did not issue one too many."""
        for test in self.meta.get("parting", {}).get("tests", ())[-1:]:
            statement = statement_at(test["file"], test["line"])
            lines = {f"{test['file']}:{line}" for line in statement.lines} if statement else set()
            made, peers_made = (
                lines.intersection(frame.rpartition(" ")[0] for frame in row["stack"] or ())
                for row in (call, peers_call)
            )
            return bool(peers_made and not made)
        return False

    @cached_property
    def extra(self) -> list[CallRow]:
        """The calls that the side that is ahead issued more; none without a lead."""
        if self.lead is None:
            return []
        return self.collectives(self.lead.ahead[0])[self.lead.at : self.lead.at + self.lead.by]

    @cached_property
    def counts(self) -> ExtraCounts | None:
        """How often either side issued calls like the extra ones; None where that does not show which
        are extra."""
        lead, extra = self.lead, self.extra
        if lead is None or len(extra) != lead.by or len({*map(asks_of, extra)}) > 1:
            return None
        lines = {row["call_site"]: row for row in extra[::-1]}
        there = self._counts(pl.col("call_site").is_in([*lines], nulls_equal=True))
        everywhere = self._counts(pl.lit(True))
        more = everywhere[0] - everywhere[1]
        # Where only one side issues such calls at all, each of them is one too many.
        if there[0] - there[1] == lead.by or (there[1] == 0 and lead.by < there[0] == more):
            return ExtraCounts(*there, [*lines.values()][::-1])
        if more == lead.by:
            return ExtraCounts(*everywhere, [{**extra[0], "call_site": None}])
        return None

    def _counts(self, where: pl.Expr) -> tuple[int, int]:
        """How many calls like the extra ones a rank of either side issued there; 0, 0 where ranks of a
        side differ."""
        row, lead = self.extra[0], self.lead
        assert lead is not None
        calls = self.timeline.calls.filter(
            where, pl.col("origin").eq_missing(row["origin"]), group=row["group"], op=row["op"]
        )
        ahead, behind = (
            {calls.filter(rank=rank).height for rank in side} for side in (lead.ahead, lead.behind)
        )
        if len(ahead) == len(behind) == 1:
            return ahead.pop(), behind.pop()
        return 0, 0

    @cached_property
    def answered(self) -> tuple[Side, ...]:
        """A side that asked a question, and the side whose other call answered it."""
        for both in permutations(self.present[:2], 2) if self.slot.met else ():
            row = self.call(self.slot, both[0][0])
            asked = asks_of(row).endswith("?")
            if asked and row["completed_ns"] is not None and row["value_out"]:
                return both
        return ()

    @cached_property
    def joins(self) -> bool:
        """Whether ranks shadow others' calls: then lines of DDP's calls tell nothing."""
        return any("join()" in (row["origin"] or "") for row in self.folding.matched.rows)


def alike(call: CallRow, other_call: CallRow, slot: Slot) -> bool:
    """Whether two calls can be meant for each other, by all but their lines."""
    if "splits" in slot.differs and call["splits"] != other_call["splits"]:
        return False
    return call["op"] == other_call["op"] and not differences((call, other_call))
