"""The evidence: one Timeline, with everything that the finders of a story derive from it, each derived
once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import TypedDict

from joinlab.analysis.exchanges import CallPath, unpaired
from joinlab.analysis.first_difference import FirstDifference, Side
from joinlab.analysis.folding import Folding, fold
from joinlab.analysis.matching import Slot
from joinlab.analysis.meanings import asks_of
from joinlab.analysis.source import SourceTexts
from joinlab.analysis.waiting import WaitGraph, who_waits
from joinlab.analysis.wording import by_key, group_text, number_text
from joinlab.backend.calls import Blocked, Blocker, Key, setting_of
from joinlab.proof import blocked_calls
from joinlab.story.lines import NamedCall, SourceLine
from joinlab.timeline import CallRow, Ending, EndKind, Timeline, backend_of


class AboutSides(TypedDict):
    """Fields of a Line, see there."""

    ranks: tuple[int, ...]
    sides: tuple[tuple[int, ...], ...]
    calls: tuple[NamedCall, ...]


class Evidence:
    """One Timeline. A lane (ranks that did the same) is named by one of its ranks.

    matched  the matched calls of all ranks, since the rule needs every rank's; of a large run, only the decisive ones
    """

    def __init__(self, timeline: Timeline, folding: Folding | None = None) -> None:
        self.timeline, self.meta, self.ends = timeline, timeline.meta, timeline.ends
        self.folding = folding = fold(timeline) if folding is None else folding
        self.difference = FirstDifference(timeline, folding)
        self.sources = SourceTexts.of(timeline)
        self.matched = folding.every
        self.groups, self.slot_of = self.matched.groups, self.matched.slot_of

    # ---------------- naming

    def call(self, row: CallRow) -> NamedCall:
        """A call as the story names it."""
        if len(self.groups) > 1:
            within = group_text(self.meta, row["group"])
        else:
            within = ""
        return NamedCall(
            row["rank"],
            row["group"],
            row["seq"],
            row["number"],
            asks_of(row),
            row["op"],
            row["call_site"] or "",
            within,
            row["peer"],
            (row["tag"] or 0) if backend_of(self.meta, row["group"]) != "nccl" else 0,
            number_text(self.meta, row["group"], row["number"]),
        )

    def line_of(self, row: CallRow, ranks: Sequence[int]) -> SourceLine | None:
        """The line of the program that a call came from; None if it is unknown."""
        lines = self.sources.lines_of(row)
        if not lines:
            if row["call_site"]:
                return SourceLine(row["call_site"], "", tuple(ranks))
            return None
        first, *callers = lines
        return SourceLine(
            first.site,
            first.text,
            tuple(ranks),
            tuple(SourceLine(caller.site, caller.text) for caller in callers),
        )

    def lines_at(self, slot: Slot) -> tuple[SourceLine, ...]:
        """The lines from which the ranks issued the calls of a slot."""
        rows = (self.difference.call(slot, rank) for rank in slot.calls)
        rows_by_line = by_key(
            ((row["call_site"], self.sources.lines_of(row)), row) for row in rows
        ).values()
        lines = (
            self.line_of(line_rows[0], self.difference.ranks(row["rank"] for row in line_rows))
            for line_rows in rows_by_line
        )
        return tuple(line for line in lines if line is not None)

    def sides(self, sides: Iterable[Side]) -> tuple[tuple[int, ...], ...]:
        """The ranks of each of these sides."""
        return tuple(map(self.difference.ranks, sides))

    def about(
        self,
        sides: Iterable[Iterable[int]],
        rows: Iterable[CallRow] = (),
        ranks: Sequence[int] | None = None,
    ) -> AboutSides:
        """The fields of a line about the ranks of each side and these calls; `ranks`: if the line is
        not about all of these."""
        plain = tuple(map(tuple, sides))
        if ranks is None:
            ranks = sorted(set(chain.from_iterable(plain)))
        return {"ranks": tuple(ranks), "sides": plain, "calls": tuple(map(self.call, rows))}

    # ---------------- why calls do not complete

    @cached_property
    def unpaired(self) -> list[tuple[CallPath, CallPath]]:
        """The sends and recvs that one rank issued more often than the other; none where calls are
        left out."""
        if self.meta.get("skipped") or self.matched.is_part:
            return []
        return unpaired(self.timeline)

    @cached_property
    def graph(self) -> WaitGraph:
        """Who waits for whom, over all groups."""
        return who_waits(self.timeline)

    @cached_property
    def mismatch(self) -> Slot | None:
        """The slot in which the ranks part, with the calls of all ranks; None if all calls met."""
        if self.difference.slot_index is None:
            return None
        slot = self.difference.slot
        rank, seq = next(iter(slot.calls.items()))
        return self.slot_of((rank, slot.group, seq))

    def ranks_that(self, ended: Callable[[Ending], bool]) -> list[int]:
        """The ranks whose endings are so.

        evidence.ranks_that(lambda end: end.kind is EndKind.HUNG)
        """
        return [rank for rank, end in enumerate(self.ends) if ended(end)]

    @cached_property
    def gone(self) -> list[int]:
        """The ranks that have ended."""
        return self.ranks_that(lambda end: end.kind not in (EndKind.HUNG, EndKind.UNKNOWN))

    @cached_property
    def blocked(self) -> Mapping[str, Blocked]:
        """What each call lacks, by the rule of its group's backend."""
        # A record without its beginning does not show which ranks took part.
        groups = {}
        for name, ranks in self.groups.items():
            if name not in self.meta.get("skipped", {}):
                groups[name] = ranks
        backend = str(self.meta.get("backend"))
        return blocked_calls(self.matched.calls, groups, backend, self.gone, setting_of(self.meta))

    def awaited(self, rank: int) -> Key | None:
        """The call a rank ended in: the one that its ending names, else the last call that the
        backend failed."""
        end, rows, key = self.ends[rank], self.matched.row_of, self.timeline.ended_in(rank)
        if key is not None:
            return key if key in rows else None
        if end.kind is not EndKind.RAISED:
            return None
        failed = [
            key
            for key, row in rows.items()
            if key[0] == rank and row["error"] and row["error"] in end.text
        ]
        return failed[-1] if failed else None

    @cached_property
    def last(self) -> dict[int, Key]:
        """By rank, the last call that it issued."""
        # rows come in each rank's order of issue
        return {key[0]: key for key in self.matched.row_of}

    def held_by(self, key: Key) -> Key | None:
        """The rank's own earlier call that holds this one up."""
        blockers = self.blocked.get(key[1], {}).get((key[0], key[2]), ())
        for blocker in blockers:
            if blocker.rank == key[0] and blocker.seq is not None:
                return self.key_of(blocker, key[1])
        return None

    @staticmethod
    def key_of(blocker: Blocker, group: str) -> Key:
        """The call that a blocker of a call in `group` names."""
        assert blocker.seq is not None
        return blocker.rank, group if blocker.group is None else blocker.group, blocker.seq
