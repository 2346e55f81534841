"""The verdict: what happened, why, where and what to do, as a reader with a hung job wants it.

    Rank 0 asked: anyone left? Rank 1's barrier answered.
    1. Call 28: rank 0's "anyone left?" (cases.py:66) met rank 1's barrier (cases.py:71).
    2. Rank 0 read 0 and concluded that all ranks have joined; rank 1 discarded the value.
    3. Rank 1 waits in "who is last?", call 30 (cases.py:66): rank 0 has finished. No issued call can end this wait.

Everything here is read off the Timeline: which calls met, from which lines, how the ranks ended, and the text of the
program. Where no rule fits, there is no advice. Terminal, page, view, bench and `diagnose` all tell this one story.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from joinlab.analysis.blame import Blame, blame
from joinlab.analysis.conclusions import conclusion
from joinlab.analysis.documented import documented
from joinlab.analysis.folding import Folding, fold
from joinlab.analysis.matching import Matched, Slot, shadows
from joinlab.analysis.reasons import Reasons, worded
from joinlab.analysis.source import SourceText
from joinlab.analysis.wording import (
    asks,
    at_line,
    counts_steps,
    good,
    input_or_step,
    listed,
    plural,
    quoted,
    ranks_text,
    short_site,
    upper,
)
from joinlab.ops import POINT_TO_POINT
from joinlab.timeline import CallRow, Ending, EndKind, Timeline

FURTHEST = 4
"""Two ranks that are up to so many calls apart are still seen to issue the same calls."""


@dataclass(frozen=True, slots=True)
class Ended:
    """Ranks that ended alike: "rank 1", and how it ended."""

    ranks: tuple[int, ...]
    ending: Ending

    @property
    def text(self) -> str:
        """The ending as a chip says it: "rank 1 hangs"."""
        several = len(self.ranks) > 1
        if self.ending.runs:
            return f"{ranks_text(self.ranks)} {'are' if several else 'is'} still running"
        verb = {
            EndKind.FINISHED: "finished",
            EndKind.HUNG: "hang" if several else "hangs",
            EndKind.RAISED: "raised an error",
            EndKind.KILLED: "were killed" if several else "was killed",
            EndKind.UNKNOWN: "have no known ending" if several else "has no known ending",
        }[self.ending.kind]
        return f"{ranks_text(self.ranks)} {verb}{', a call still pending' if self.ending.pending else ''}"


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the program that the verdict rests on.

    ranks  those that were there
    site   "file:line"
    call   what they called there: "anyone left?"
    text   the line itself; "" where the program's text is not known
    seq    the call's number within its group
    """

    ranks: tuple[int, ...]
    site: str
    call: str
    text: str
    seq: int


@dataclass(frozen=True, slots=True)
class Advice:
    """What to change, why, and which notebook of the course explains it."""

    do: str
    reason: str
    notebook: str

    def __str__(self) -> str:
        return f"{self.do} {self.reason}"


@dataclass(frozen=True, slots=True)
class Fate:
    """How ranks ended, and why: `text` is one sentence of all of them. `ended`: in a word or two, "hung (proven)"."""

    ranks: tuple[int, ...]
    ended: str
    text: str
    good: bool

    @property
    def who(self) -> str:
        """The ranks: "ranks 0-4, 6"."""
        return ranks_text(self.ranks)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What happened, why, where, what to do.

    headline  one sentence
    endings   the ranks by how they ended
    causes    what met, or did not, where the ranks part, and what they made of it
    fates     every rank: how it ended, and why
    lines     the lines of the first difference
    first     that row, by index of Folding.slots; None: the ranks never part
    odd       the ranks that did otherwise than most; () where no side is in the minority
    advice    None where no rule fits
    then      how the forum thread documents this end, and why it may differ; "" for what it does not have
    """

    headline: str
    endings: tuple[Ended, ...]
    causes: tuple[str, ...] = ()
    fates: tuple[Fate, ...] = ()
    lines: tuple[Line, ...] = ()
    first: int | None = None
    odd: tuple[int, ...] = ()
    advice: Advice | None = None
    then: str = ""

    @property
    def steps(self) -> tuple[str, ...]:
        """The chain of causes in at most three short sentences; () where all went well."""
        return (*self.causes, *(fate.text for fate in self.fates if not fate.good))[:3]


def judge(timeline: Timeline, folding: Folding | None = None, reasons: Reasons | None = None) -> Verdict:
    """Say what happened in a run.

    folding  what fold(timeline) made of it, if it is at hand
    reasons  Reasons of the whole Timeline, if they are at hand

    print(judge(joinlab.emulate(joinlab.cases.case_4, (5, 6))).headline)
    """
    return replace(_Judge(timeline, folding or fold(timeline), reasons).verdict(), then=documented(timeline))


@dataclass(frozen=True, slots=True)
class _Shift:
    """From the `at`-th collective of a group on, `ahead` has issued `by` calls more than `behind`; all others fit."""

    at: int
    by: int
    ahead: tuple[int, ...]
    behind: tuple[int, ...]


Side = tuple[int, ...]
"""Lanes (by the rank that stands for each) that issued the same call at the first difference, or none."""


class _Judge:
    """One Timeline, folded. Lanes are named by the rank that stands for them."""

    def __init__(self, timeline: Timeline, folding: Folding, reasons: Reasons | None) -> None:
        self.timeline, self.folding = timeline, folding
        self.slots, self.rows = folding.slots, folding.matched.row_of
        self.groups = folding.matched.groups
        self.lanes = folding.lanes
        self.ends = timeline.ends
        self.source = SourceText.of(timeline)
        self._reasons = reasons
        self.clash = next((at for at, slot in enumerate(self.slots) if self._parts(slot)), None)

    def verdict(self) -> Verdict:
        ended: dict[tuple[object, ...], list[int]] = {}
        for rank, end in enumerate(self.ends):
            ended.setdefault((end.kind, end.pending, end.runs), []).append(rank)
        endings = tuple(Ended(tuple(ranks), self.ends[ranks[0]]) for ranks in ended.values())
        if any(end.kind is EndKind.UNKNOWN for end in self.ends):
            blamed = blame(self.timeline)
            if blamed.culprits:
                return self._blamed(blamed, endings)
        fates = tuple(self._fates())
        if self.clash is None:
            return Verdict(self._undivided(), endings, (), fates, advice=self._advice())
        first = self.clash if self.shift is None else self._row_of(self.shift)
        causes, lines = tuple(self._meeting()), tuple(self._lines(first))
        return Verdict(self._headline(), endings, causes, fates, lines, first, self._odd(), self._advice())

    def _blamed(self, blamed: Blame, endings: tuple[Ended, ...]) -> Verdict:
        """The verdict on a record that does not say how ranks ended: who keeps the others waiting."""
        several = len(blamed.ranks) > 1
        waiting = {rank for culprit in blamed.culprits for rank in culprit.waiting}
        headline = (
            f"{upper(ranks_text(sorted(blamed.ranks)))} {'keep' if several else 'keeps'} {ranks_text(sorted(waiting))} "
            f"waiting, and {'wait' if several else 'waits'} for no other rank."
        )
        causes = tuple(culprit.reason for culprit in blamed.culprits)
        where = {(one.rank, one.group) for one in blamed.waits if one.on in blamed.ranks}
        stuck = (
            at
            for at, slot in enumerate(self.slots)
            if any((rank, slot.group) in where for rank in slot.calls)
            and any(self._call(slot, rank)["completed_ns"] is None for rank in slot.calls)
        )
        first = next(stuck, None)
        lines = () if first is None else tuple(self._lines(first))
        return Verdict(headline, endings, causes, tuple(self._fates()), lines, first, tuple(sorted(blamed.ranks)))

    # ---------------------------------------------------------------- where they part

    def _parts(self, slot: Slot) -> bool:
        """Whether the calls of a slot differ, or some rank that has to take part issued none."""
        if not slot.expected:
            return True
        if slot.refused:
            return False
        if self._pair(slot):
            return not slot.met and all(self._call(slot, rank)["completed_ns"] is None for rank in slot.calls)
        return bool(self._absent(slot))

    def _absent(self, slot: Slot) -> list[int]:
        """Ranks that have to take part in a slot, and issued no call for it."""
        if self._pair(slot):
            peers = {self._call(slot, rank)["peer"] for rank in slot.calls}
            return slot.absent(peer for peer in peers if peer is not None)
        return slot.absent(self.groups[slot.group])

    @cached_property
    def sides(self) -> list[Side]:
        """The lanes at the first clash, by what they issued there; those that issued nothing come last."""
        assert self.clash is not None
        slot, found = self.slots[self.clash], list[list[int]]()
        for rank in slot.calls:
            for some in found:
                if self._alike(self._call(slot, some[0]), self._call(slot, rank)):
                    some.append(rank)
                    break
            else:
                found.append([rank])
        if not self._pair(slot) and (absent := [rank for rank in self._absent(slot) if rank in self.lanes]):
            found.append(absent)
        return [tuple(some) for some in found]

    @cached_property
    def shift(self) -> _Shift | None:
        """Whether one side issues the same calls as the other, only so many earlier, and since when.

        rank 0   a  b  c  d            at = 1, by = 1: from call 1 on, rank 1 has issued one call more,
        rank 1   a  x  b  c  d         if x is from another line than b, or another call
        """
        assert self.clash is not None
        slot = self.slots[self.clash]
        if (
            len(self.sides) != 2
            or self._pair(slot)
            or self.folding.matched.timeline.meta.get("skipped", {}).keys() - {slot.group}
        ):
            return None
        one, other = (self._collectives(side[0], slot.group) for side in self.sides)
        at = sum(1 for before in self.slots[: self.clash] if before.group == slot.group and not self._pair(before))
        while at > 0 and max(len(one), len(other)) >= at and self._other_line(one[at - 1 : at], other[at - 1 : at]):
            at -= 1
        for by in range(1, FURTHEST):
            for (ahead, mine), (behind, theirs) in (
                ((self.sides[1], other), (self.sides[0], one)),
                ((self.sides[0], one), (self.sides[1], other)),
            ):
                pairs = list(zip(mine[at + by :], theirs[at:], strict=False))
                if pairs and all(self._same(a, b) for a, b in pairs):
                    return _Shift(at, by, ahead, behind)
        return None

    def _collectives(self, rank: int, group: str) -> list[CallRow]:
        return [
            row
            for row in self.folding.matched.rows
            if row["rank"] == rank and row["group"] == group and row["op"] not in POINT_TO_POINT
        ]

    def _other_line(self, one: Sequence[CallRow], other: Sequence[CallRow]) -> bool:
        """Whether two calls that fit were issued in different lines, though they are the same call."""
        if not one or not other or one[0]["origin"] != other[0]["origin"]:
            return False
        return one[0]["call_site"] != other[0]["call_site"]

    def _same(self, one: CallRow, other: CallRow) -> bool:
        """Whether two calls are the same step of the program."""
        return self._alike(one, other) and not self._other_line([one], [other])

    def _alike(self, one: CallRow, other: CallRow) -> bool:
        names = ("op", "dtype", "shape", "reduce_op", "root")
        fit = all(one[name] == other[name] for name in names)  # type: ignore[literal-required]
        return fit and shadows(one["origin"] or "", other["origin"] or "")

    def _row_of(self, shift: _Shift) -> int:
        """The row of the slot in which a shift begins."""
        assert self.clash is not None
        group = self.slots[self.clash].group
        of_group = [at for at, slot in enumerate(self.slots) if slot.group == group and not self._pair(slot)]
        return of_group[shift.at]

    def _odd(self) -> tuple[int, ...]:
        """All ranks of the smaller side, if most ranks are on the other one."""
        ranks = sorted((self._ranks(side) for side in self.sides), key=len)
        most = len(ranks[-1])
        rest = tuple(sorted(rank for some in ranks[:-1] for rank in some))
        return rest if rest and most > len(rest) else ()

    # ---------------------------------------------------------------- words

    def _pair(self, slot: Slot) -> bool:
        return any(self.rows[rank, slot.group, seq]["op"] in POINT_TO_POINT for rank, seq in slot.calls.items())

    def _call(self, slot: Slot, rank: int) -> CallRow:
        return self.rows[rank, slot.group, slot.calls[rank]]

    def _ranks(self, side: Side) -> tuple[int, ...]:
        return tuple(sorted(rank for lane in side for rank in self.lanes[lane]))

    def _name(self, side: Side) -> str:
        return ranks_text(self._ranks(side))

    def _asks(self, row: CallRow) -> str:
        return asks(row["origin"], row["op"])

    def _present(self, slot: Slot) -> list[Side]:
        """The sides that issued a call in a slot; the ones that did otherwise than most come first."""
        odd = self._odd()
        return sorted((side for side in self.sides if side[0] in slot.calls), key=lambda side: side[0] not in odd)

    def _headline(self) -> str:
        assert self.clash is not None
        slot = self.slots[self.clash]
        present = self._present(slot)
        calls = [self._call(slot, side[0]) for side in present]
        if len(present) > 1 and slot.met:
            for asker, answer in ((0, 1), (1, 0)):
                row = calls[asker]
                if self._asks(row).endswith("?") and row["completed_ns"] is not None and row["value_out"]:
                    return (
                        f"{upper(self._name(present[asker]))} asked: {self._asks(row)} "
                        f"{upper(self._name(present[answer]))}'s {quoted(calls[answer])} answered."
                    )
        if self.shift is not None and len(self._extra(self.shift)) == self.shift.by:
            more = self._extra(self.shift)
            what = self._asks(more[0]) if len({self._asks(row) for row in more}) == 1 else "call"
            count = "one" if self.shift.by == 1 else str(self.shift.by)
            ahead, behind = self._name(self.shift.ahead), self._name(self.shift.behind)
            return f"{upper(ahead)} issued {count} {what} more than {behind}."
        if len(present) > 1:
            if slot.differs and not {"op", "origin"} & set(slot.differs):
                what = listed([{"reduce_op": "reduce operation"}.get(name, name) for name in slot.differs])
                return f"{upper(self._name(tuple(slot.calls)))} called {quoted(calls[0])}, but differ in {what}."
            told = [f"{self._name(side)} called {quoted(row)}" for side, row in zip(present, calls, strict=True)]
            return f"{upper(told[0])}, where {listed(told[1:])}."
        return self._nothing_meets(present[0], calls[0], self._absent(slot))

    def _extra(self, shift: _Shift) -> list[CallRow]:
        """The calls that the side that is ahead issued more."""
        assert self.clash is not None
        mine = self._collectives(shift.ahead[0], self.slots[self.clash].group)
        return mine[shift.at : shift.at + shift.by]

    def _nothing_meets(self, side: Side, row: CallRow, absent: Sequence[int]) -> str:
        if not absent:  # a recv from any rank
            return f"No call meets {self._name(side)}'s {quoted(row)}."
        gone = [rank for rank in absent if self.ends[rank].kind is not EndKind.HUNG]
        which = gone or list(absent)
        end = self.ends[which[0]]
        did = {
            EndKind.FINISHED: "finished",
            EndKind.RAISED: "raised an error",
            EndKind.KILLED: "was killed" if len(which) == 1 else "were killed",
            EndKind.UNKNOWN: "has no more calls on record" if len(which) == 1 else "have no more calls on record",
            EndKind.HUNG: "waits elsewhere" if len(which) == 1 else "wait elsewhere",
        }[end.kind]
        return f"{upper(ranks_text(which))} {did}; nothing meets {self._name(side)}'s {quoted(row)}."

    def _undivided(self) -> str:
        count = len(self.ends)
        who = "The one rank" if count == 1 else "Both ranks" if count == 2 else f"All {count} ranks"
        kinds = {end.kind for end in self.ends}
        if kinds == {EndKind.FINISHED}:
            pending = [rank for rank, end in enumerate(self.ends) if end.pending]
            left = f", but {ranks_text(pending)} left a call pending" if pending else ""
            return f"{who} finished{left}; every call met its partner."
        wrong = [rank for rank, end in enumerate(self.ends) if not good(end)]
        if not wrong:
            runs = tuple(rank for rank, end in enumerate(self.ends) if end.runs)
            return f"{upper(Ended(runs, self.ends[runs[0]]).text)}; every call fits its partner so far."
        if all("still running after" in self.ends[rank].text for rank in wrong):
            was = "was" if len(wrong) == 1 else "were"
            return (
                f"{upper(ranks_text(wrong))} {was} still running when the time was over; every call fits its partner."
            )
        alike = len({self.ends[rank].kind for rank in wrong}) == 1
        said = (
            Ended(tuple(wrong), self.ends[wrong[0]]).text
            if alike
            else f"{who} issued the same calls, and did not finish"
        )
        return f"{upper(said)}; every call fits its partner."

    def _meeting(self) -> Iterator[str]:
        """What met at the first difference, and what each side made of it."""
        assert self.clash is not None
        slot = self.slots[self.clash]
        if self.shift is not None and self._row_of(self.shift) != self.clash:
            row = self._extra(self.shift)[0]
            count = "one call" if self.shift.by == 1 else f"{self.shift.by} calls"
            yield (
                f"{upper(self._name(self.shift.ahead))} is {count} ahead since call {row['seq']}{at_line(row)}, where "
                f"{self._name(self.shift.behind)} called the same from another line."
            )
        present = self._present(slot)
        calls = [self._call(slot, side[0]) for side in present]
        if len(present) > 1:
            told = [
                f"{self._name(side)}'s {quoted(row)}{at_line(row)}" for side, row in zip(present, calls, strict=True)
            ]
            verb = "met" if slot.met else "can never meet"
            why = "" if slot.met else self.reasons.keeps_apart(slot)
            yield f"Call {calls[0]['seq']}: {told[0]} {verb} {listed(told[1:])}{why and ': '}{why}."
            made = [
                (side, text)
                for side, row in zip(present, calls, strict=True)
                if row["completed_ns"] is not None and (text := conclusion(row["origin"], row["value_out"]))
            ]
            if any("concluded" in text for _, text in made):
                yield upper("; ".join(f"{self._name(side)} {text}" for side, text in made)) + "."

    @cached_property
    def reasons(self) -> Reasons:
        """Why ranks ended so. Where one hangs, the rule needs all ranks' calls; else those of the lanes will do."""
        if self._reasons is not None:
            return self._reasons
        whole = any(end.kind is EndKind.HUNG or end.pending for end in self.ends) and len(self.lanes) < len(self.ends)
        return Reasons(Matched(self.timeline) if whole else self.folding.matched)

    def _fates(self) -> Iterator[Fate]:
        """How the ranks ended, those that went wrong first; the same told once."""
        known = None
        if self.clash is not None:
            slot = self.slots[self.clash]
            rank, seq = next(iter(slot.calls.items()))
            known = self.reasons.slot_of[rank, slot.group, seq]
        told: dict[tuple[str, str], list[int]] = {}
        for lane, ranks in self.lanes.items():
            said = self.reasons.told(lane, known)
            told.setdefault((worded(self.ends[lane]), said), []).extend(ranks)
        fates = [
            Fate(
                tuple(sorted(ranks)),
                ended,
                f"{upper(ranks_text(ranks))} {plural(said) if len(ranks) > 1 else said}",
                good(self.ends[ranks[0]]) and not self.ends[ranks[0]].runs,
            )
            for (ended, said), ranks in told.items()
        ]
        yield from sorted(fates, key=lambda fate: (fate.good, fate.ranks))

    def _lines(self, row: int) -> Iterator[Line]:
        slot = self.slots[row]
        by_line: dict[tuple[str, str, int], list[int]] = {}
        for rank, seq in slot.calls.items():
            call = self.rows[rank, slot.group, seq]
            by_line.setdefault((call["call_site"] or "", self._asks(call), seq), []).extend(self.lanes[rank])
        for (site, call_, seq), ranks in by_line.items():
            yield Line(tuple(sorted(ranks)), site, call_, self.source.at(site), seq)

    # ---------------------------------------------------------------- advice

    def _advice(self) -> Advice | None:
        """The first rule that fits."""
        rules: tuple[Callable[[], Advice | None], ...] = (
            self._own_call_under_join,
            self._uneven_without_join,
            self._sync_differs,
            self._unused_in_one_rank,
            self._under_a_rank_test,
            self._left_early,
            self._data_differs,
            self._order_differs,
            self._ended_too_early,
        )
        return next((advice for rule in rules if (advice := rule())), None)

    def _own_call_under_join(self) -> Advice | None:
        if self.clash is None:
            return None
        slot = self.slots[self.clash]
        calls = [self._call(slot, rank) for rank in slot.calls]
        joined = [row for row in calls if "(join() " in (row["origin"] or "")]
        own = [row for row in calls if (row["origin"] or row["op"]).partition(" (")[2] in ("", "barrier)")]
        if not joined or not own:
            return None
        what = self._asks(own[0])
        return Advice(
            f"Move the {what} behind the with block of join().",
            f"join() repeats DDP's calls for a rank that has run out of inputs, never yours: "
            f"the {what}{at_line(own[0])} has no partner there.",
            "05_why_case_4_hangs.ipynb",
        )

    def _uneven_without_join(self) -> Advice | None:
        counts, by_step = self._counts(), counts_steps(self.timeline.meta)
        if self.clash is None or (not by_step and (len(counts) != len(self.ends) or len(set(counts)) < 2)):
            return None
        if any("join()" in (row["origin"] or "") for row in self.folding.matched.rows):
            return None
        slot = self.slots[self.clash]
        seen = [row["input"] for rank in slot.calls if (row := self._call(slot, rank))["input"] is not None]
        out = [rank for rank, count in enumerate(counts) if seen and count <= max(seen)]
        if by_step and all("DDP" in (self._call(slot, rank)["origin"] or "") for rank in slot.calls):
            reached = {span["rank"] for span in self.timeline.rows("spans") if seen and span["input"] == max(seen)}
            over = {rank for rank, end in enumerate(self.ends) if end.kind is EndKind.FINISHED}
            out = [rank for rank in self._absent(slot) if seen and rank in over - reached]
        if not out or any(rank in slot.calls and self._call(slot, rank)["input"] is not None for rank in out):
            return None
        has = "has" if len(out) == 1 else "have"
        what = input_or_step(self.timeline.meta)
        return Advice(
            "Wrap the loop in model.join(), or give every rank the same number of inputs: drop_last=True, or the "
            "minimum of all ranks' counts.",
            f"{upper(ranks_text(out))} {has} no {what} {max(seen)}, and DDP's calls need every rank.",
            "04_six_cases.ipynb",
        )

    def _counts(self) -> list[int]:
        """How many inputs each rank has; none where the calls are numbered by steps, which may be more or fewer."""
        return [] if counts_steps(self.timeline.meta) else self.timeline.meta.get("inputs") or []

    def _under_a_rank_test(self) -> Advice | None:
        if self.clash is None or self._pair(self.slots[self.clash]):
            return None
        row = self.clash if self.shift is None else self._row_of(self.shift)
        slot, odd = self.slots[row], self._odd()
        for rank in sorted(slot.calls, key=lambda rank: rank not in odd):
            site = self._call(slot, rank)["call_site"] or ""
            number = self.source.line(site)
            if number and (test := _rank_test(self.source.text, number - self.source.first_line + 1)):
                what = f"{self._asks(self._call(slot, rank))} ({short_site(site)})"
                return Advice(
                    f"Take the {what} out of the branch on `{test}`, or let every rank issue it.",
                    "A collective needs every rank of its group, in the same order.",
                    "08_order.ipynb",
                )
        return None

    def _left_early(self) -> Advice | None:
        if self.clash is None:
            return None
        slot = self.slots[self.clash]
        gone = [rank for rank in self._absent(slot) if self.ends[rank].kind in (EndKind.RAISED, EndKind.FINISHED)]
        raised = [rank for rank in gone if self.ends[rank].kind is EndKind.RAISED]
        counts = self._counts()
        inputs: dict[int, int] = {}
        for row in self.folding.matched.rows:
            if row["input"] is not None:
                inputs[row["rank"]] = max(inputs.get(row["rank"], -1), row["input"])
        early = [rank for rank in gone if rank in inputs and rank < len(counts) and inputs[rank] + 1 < counts[rank]]
        if not raised and not early:
            return None
        which = raised or early
        did = "raised an error" if raised else f"left its loop after input {inputs[early[0]]} of {counts[early[0]]}"
        return Advice(
            "Let all ranks stop together: all-reduce a flag before each step, and leave the loop if any rank set it.",
            f"{upper(ranks_text(which))} {did}; the others wait for its next call.",
            "06_join_options.ipynb",
        )

    def _data_differs(self) -> Advice | None:
        differs = set() if self.clash is None else set(self.slots[self.clash].differs)
        if not differs or differs & {"op", "origin"}:
            return None
        names = {"shape": "size", "reduce_op": "reduce operation"}
        what = listed([names.get(name, name) for name in self.slots[self.clash or 0].differs])
        return Advice(
            f"Give the call the same {what} on every rank.",
            f"The ranks' calls met with different {what}.",
            "02_collectives.ipynb",
        )

    def _order_differs(self) -> Advice | None:
        if self.clash is None or len(self.sides) != 2 or self._pair(self.slots[self.clash]):
            return None
        slot = self.slots[self.clash]
        if any(side[0] not in slot.calls for side in self.sides):
            return None
        at = sum(1 for before in self.slots[: self.clash] if before.group == slot.group and not self._pair(before))
        one, other = (self._collectives(side[0], slot.group)[at : at + 2] for side in self.sides)
        if len(one) < 2 or len(other) < 2 or not (self._alike(one[0], other[1]) and self._alike(one[1], other[0])):
            return None
        return Advice(
            f"Issue {quoted(one[0])} and {quoted(one[1])} in the same order on every rank.",
            "Calls meet by the order in which each rank issues them, not by what they are.",
            "08_order.ipynb",
        )

    def _sync_differs(self) -> Advice | None:
        backward = "DDP backward()"
        if self.clash is None or "no_sync" not in self.source.text:
            return None
        slot = self.slots[self.clash]
        has = [rank for rank in slot.calls if backward in (self._call(slot, rank)["origin"] or "")]
        if not has or len(has) == len(slot.calls):
            return None
        return Advice(
            "Enter no_sync() on every rank, or on none, for the same input.",
            "Within no_sync() a backward pass issues no all-reduce; the other ranks' all-reduce meets another call.",
            "03_ddp_inside.ipynb",
        )

    def _unused_in_one_rank(self) -> Advice | None:
        """A rank says so, or it ran a backward pass of the same input and issued fewer all-reduces in it."""
        if self.clash is None:
            return None
        slot = self.slots[self.clash]
        which = [rank for rank in self.lanes if "not used in producing loss" in self.ends[rank].text]
        at = {
            self._call(slot, rank)["input"]: rank
            for rank in slot.calls
            if "DDP backward()" in (self._call(slot, rank)["origin"] or "")
        }
        if not which and at:
            ran = {(span["rank"], span["input"]) for span in self.timeline.rows("spans") if span["name"] == "backward"}
            which = [
                rank
                for rank in self.lanes
                if rank not in at.values() and any((rank, input) in ran for input in at.keys() - {None})
            ]
        if not which:
            return None
        return Advice(
            "Use every parameter in every rank's loss, or pass find_unused_parameters=True to DDP on all ranks.",
            f"{upper(self._name(tuple(which)))} left parameters out: DDP all-reduces a bucket only when each of its "
            "parameters has a gradient.",
            "03_ddp_inside.ipynb",
        )

    def _ended_too_early(self) -> Advice | None:
        pending = [rank for rank, end in enumerate(self.ends) if end.pending]
        if not pending:
            return None
        return Advice(
            "Wait for the last call before the program returns: torch.cuda.synchronize(), or the call's wait().",
            f"{upper(ranks_text(pending))} returned while a call was still pending, so its result was never read.",
            "04_six_cases.ipynb",
        )


def _rank_test(text: str, line: int) -> str:
    """The innermost test of a rank under which a line stands: "rank == 0"; "" if there is none, or no telling.

    >>> _rank_test("def f(rank):\\n    if rank == 0:\\n        g()\\n", 3)
    'rank == 0'
    """
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return ""
    found = ""
    for node in ast.walk(tree):  # outer ones come first
        if isinstance(node, ast.If) and node.body[0].lineno <= line <= (node.end_lineno or 0):
            names = {getattr(one, "id", getattr(one, "attr", "")) for one in ast.walk(node.test)}
            found = ast.unparse(node.test) if {"rank", "get_rank", "local_rank"} & names else found
    return found
