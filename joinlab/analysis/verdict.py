"""The verdict: what happened, why, where and what to do, as a reader with a hung job wants it.

    Rank 0 asked: anyone left? Rank 1's barrier answered.
    1. Call 29: rank 0's "anyone left?" (cases.py:66) met rank 1's barrier (cases.py:71).
    2. Rank 0 read 0 and concluded that all ranks have joined; rank 1 discarded the value.
    3. Rank 1 waits in "who is last?", call 31 (cases.py:66): rank 0 has finished. No issued call can end this wait.

Everything here is read off the Timeline: which calls met, from which lines, how the ranks ended, and the text of the
program. Where no rule fits, there is no advice. Terminal, page, view, bench and `diagnose` all tell this one story.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

from joinlab.analysis.advice import Advice, advise
from joinlab.analysis.blame import Blame, blame
from joinlab.analysis.conclusions import conclusion
from joinlab.analysis.documented import documented
from joinlab.analysis.folding import Classes, Folding, fold, rank_lanes
from joinlab.analysis.large import is_large, large
from joinlab.analysis.matching import Matched
from joinlab.analysis.parting import Parting, Shift, Side
from joinlab.analysis.reasons import Reasons, worded
from joinlab.analysis.source import CodeLine, SourceTexts
from joinlab.analysis.wording import (
    asks_of,
    at_input,
    at_line,
    differing_text,
    good,
    listed,
    plural,
    quoted,
    ranks_text,
    tensor,
    upper,
)
from joinlab.timeline import CallRow, Ending, EndKind, Timeline

_BROKEN = (EndKind.RAISED, EndKind.KILLED)


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

    ranks   those that were there
    site    "file:line"
    call    what they called there: "anyone left?"
    text    the line itself; "" where the program's text is not known
    number  the call's within its group; None if it was refused
    via     the lines that led there, the nearest first: the calls of the function that `site` is in
    """

    ranks: tuple[int, ...]
    site: str
    call: str
    text: str
    number: int | None
    via: tuple[CodeLine, ...] = ()


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

    folding  what fold(timeline) or large.tellable(timeline) made of it, if it is at hand
    reasons  Reasons of the whole Timeline, if they are at hand

    print(judge(joinlab.emulate(joinlab.cases.case_4, (5, 6))).headline)
    """
    if reasons is not None:
        return _verdict(timeline, folding, reasons)
    if folding is None and is_large(timeline):
        folding = large(timeline).folding
    lanes = rank_lanes(timeline) if folding is None else (folding.classes, folding.late)
    part = folding is not None and folding.every is not None and folding.every.is_part
    return _judged(timeline, _Lanes(*lanes, part, folding))


@dataclass(frozen=True)
class _Lanes:
    """Which ranks share a lane, and whether only a part of the calls is judged: what a verdict takes from a folding."""

    classes: Classes
    late: tuple[int, ...]
    part: bool
    folding: Folding | None = field(compare=False)


@lru_cache(maxsize=1)  # the bench's panel and its picture ask for the same: 3 ms of a move
def _judged(timeline: Timeline, lanes: _Lanes) -> Verdict:
    return _verdict(timeline, lanes.folding, None)


def _verdict(timeline: Timeline, folding: Folding | None, reasons: Reasons | None) -> Verdict:
    return replace(_Judge(timeline, folding or fold(timeline), reasons).verdict(), then=documented(timeline))


class _Judge:
    """One Timeline, folded. Lanes are named by the rank that stands for them."""

    def __init__(self, timeline: Timeline, folding: Folding, reasons: Reasons | None) -> None:
        self.timeline, self.folding, self.ends = timeline, folding, timeline.ends
        self.parting = Parting(timeline, folding)
        self.sources = SourceTexts.of(timeline)
        self._reasons = reasons

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
        advice = advise(self.parting, self.sources)
        first = self.parting.first
        if first is None:
            return Verdict(self._undivided(), endings, (), fates, advice=advice)
        causes, lines = tuple(self._meeting()), tuple(self._lines(first))
        return Verdict(self._headline(), endings, causes, fates, lines, first, self.parting.odd, advice)

    def _blamed(self, blamed: Blame, endings: tuple[Ended, ...]) -> Verdict:
        """The verdict on a record that does not say how ranks ended: who keeps the others waiting."""
        causes = tuple(culprit.reason for culprit in blamed.culprits)
        fates, first = tuple(self._fates()), self.parting.first
        if first is not None and self._shows(blamed):
            lines, met = tuple(self._lines(first)), tuple(self._meeting())
            said = met if met and self.parting.odd else (*met, *causes)  # the odd one is named in the headline
            advice = advise(self.parting, self.sources)
            return Verdict(self._headline(), endings, said, fates, lines, first, tuple(sorted(blamed.ranks)), advice)
        culprits = sorted(blamed.ranks) or blamed.culprits[0].ranks
        several = len(culprits) > 1
        behind = {rank for culprit in blamed.culprits for rank in culprit.waiting}
        waiting = ranks_text(sorted(behind)) if behind else ""
        if blamed.ranks:
            headline = f"{upper(ranks_text(culprits))} {'keep' if several else 'keeps'} {waiting} waiting"
            if not {one.rank for one in blamed.waits} & {*culprits}:
                headline += f", and {'wait' if several else 'waits'} for no other rank"
        else:
            headline = f"{upper(ranks_text(culprits))} wait for each other{f', {waiting} for them' if waiting else ''}"
        where = {(one.rank, one.group) for one in blamed.waits if one.on in culprits}
        stuck = (
            at
            for at, slot in enumerate(self.parting.slots)
            if any((rank, slot.group) in where for rank in slot.calls)
            and any(self.parting.call(slot, rank)["completed_ns"] is None for rank in slot.calls)
        )
        first = next(stuck, None)
        lines = () if first is None else tuple(self._lines(first))
        return Verdict(f"{headline}.", endings, causes, fates, lines, first, tuple(sorted(blamed.ranks)))

    def _shows(self, blamed: Blame) -> bool:
        """Whether the clash explains the blame: the blamed ranks stand there, and a call there is still open."""
        parting = self.parting
        if not blamed.ranks or len(parting.present) < 2 or parting.odd not in ((), tuple(sorted(blamed.ranks))):
            return False
        here = {rank for side in parting.present for rank in parting.ranks(side)}
        stuck = any(parting.call(parting.slot, lane)["completed_ns"] is None for lane in parting.slot.calls)
        return stuck and here >= {*blamed.ranks}

    # ---------------------------------------------------------------- words

    def _headline(self) -> str:
        parting, slot, name = self.parting, self.parting.slot, self.parting.name
        present = parting.present
        calls = [parting.call(slot, side[0]) for side in present]
        if len(present) > 1 and slot.met:
            for asker, answer in ((0, 1), (1, 0)):
                row = calls[asker]
                if asks_of(row).endswith("?") and row["completed_ns"] is not None and row["value_out"]:
                    return (
                        f"{upper(name(present[asker]))} asked: {asks_of(row)} "
                        f"{upper(name(present[answer]))}'s {quoted(calls[answer])} answered."
                    )
        shift, more = parting.shift, parting.extra
        if shift is not None and len(more) == shift.by:
            return self._one_more(shift, more)
        if parting.circle:
            return self._circle(parting.circle)
        if len(present) > 1:
            differs = parting.differs(slot)
            if not {"op", "origin"} & set(differs) and differs:
                return self._differ(present, calls, differs)
            told = [f"{name(side)} called {quoted(row)}" for side, row in zip(present, calls, strict=True)]
            return f"{upper(told[0])}, where {listed(told[1:])}."
        return self._nothing_meets(present[0], calls[0], parting.absent(slot))

    def _one_more(self, shift: Shift, more: Sequence[CallRow]) -> str:
        ahead, behind = self.parting.name(shift.ahead), self.parting.name(shift.behind)
        words = {asks_of(row) for row in more}
        what = words.pop() if len(words) == 1 else "call"
        count = f"one {what}" if shift.by == 1 else f"{shift.by} calls{f' ({what})' if what != 'call' else ''}"
        if self.parting.odd == self.parting.ranks(shift.behind):
            return f"{upper(behind)} issued {count} fewer than {ahead}."
        return f"{upper(ahead)} issued {count} more than {behind}."

    def _differ(self, present: Sequence[Side], calls: Sequence[CallRow], differs: Sequence[str]) -> str:
        """The headline for calls of one kind with different values; of up to three sides it names them."""
        name = self.parting.name
        if len(present) > 3:
            what = differing_text(differs)
            return f"{upper(name(self.parting.slot.calls))} called {quoted(calls[0])}, but differ in {what}."
        first, *others = [
            (name(side), quoted(row), _given(row, differs)) for side, row in zip(present, calls, strict=True)
        ]
        told = listed([f"{who} with {given}" for who, _, given in others])
        return f"{upper(first[0])} called {first[1]} with {first[2]}, {told}."

    def _circle(self, circle: Sequence[CallRow]) -> str:
        """The headline for ranks that wait for each other, with the call that each waits in."""
        by_call: dict[str, set[int]] = {}
        for row in circle:
            by_call.setdefault(quoted(row), set()).add(row["rank"])
        every = self.parting.name(sorted({row["rank"] for row in circle}))
        each = [f"{self.parting.name(sorted(ranks))} in {call}" for call, ranks in by_call.items()]
        return (
            f"{upper(every)} wait for each other: {listed(each) if len(each) > 1 else f'each in {quoted(circle[0])}'}."
        )

    def _nothing_meets(self, side: Side, row: CallRow, absent: Sequence[int]) -> str:
        if not absent:  # a recv from any rank
            return f"No call meets {self.parting.name(side)}'s {quoted(row)}."
        gone = [rank for rank in absent if self.ends[rank].kind is not EndKind.HUNG]
        which = gone or list(absent)
        several, end = len(which) > 1, self.ends[which[0]]
        did = {
            EndKind.FINISHED: "finished",
            EndKind.RAISED: "raised an error",
            EndKind.KILLED: "were killed" if several else "was killed",
            EndKind.UNKNOWN: "have no more calls on record" if several else "has no more calls on record",
            EndKind.HUNG: "wait elsewhere" if several else "waits elsewhere",
        }[end.kind]
        if _out_of_time(end):
            did = f"{'were' if several else 'was'} still running when the time was over"
        beside = self.parting.ranks(side)
        if not _out_of_time(end) and all(self.ends[rank].kind is EndKind.KILLED for rank in (*which, *beside)):
            # One may have been killed first, and its launcher ended the rest; or one dawdled, and all were ended.
            every = ranks_text(sorted({*which, *beside}))
            return (
                f"{upper(every)} were killed; {ranks_text(which)} had not come to "
                f"{self.parting.name(side)}'s {quoted(row)}."
            )
        return f"{upper(ranks_text(which))} {did}; nothing meets {self.parting.name(side)}'s {quoted(row)}."

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
        if all(_out_of_time(self.ends[rank]) for rank in wrong):
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
        if any(self.ends[rank].kind in _BROKEN and self.ends[rank].call is not None for rank in wrong):
            return f"{upper(said)}."  # it broke within a call, so that one need not have fitted
        return f"{upper(said)}; every call fits its partner."

    def _meeting(self) -> Iterator[str]:
        """What met at the first difference, and what each side made of it."""
        parting, slot, name = self.parting, self.parting.slot, self.parting.name
        shift = parting.shift
        if shift is not None and parting.first != parting.clash:
            row, other = parting.extra[0], parting.collectives(shift.behind[0])[shift.at]
            count = "one call" if shift.by == 1 else f"{shift.by} calls"
            same = "the same from another line"
            if row["call_site"] == other["call_site"]:
                same = f"the same for {at_input(other['input'] or 0, self.timeline.meta)}"
            are = "are" if len(parting.ranks(shift.ahead)) > 1 else "is"
            yield (
                f"{upper(name(shift.ahead))} {are} {count} ahead since call {row['number']}{at_line(row)}, where "
                f"{name(shift.behind)} called {same}."
            )
        if parting.astray:
            on = [
                f"{name(side)} {'are' if len(parting.ranks(side)) > 1 else 'is'} in "
                f"{at_input(row['input'] or 0, self.timeline.meta)}{at_line(row)}"
                for side, row in zip(parting.sides, parting.astray, strict=True)
            ]
            since = parting.astray[0]["number"]
            yield f"Since call {since} the ranks' calls are for different inputs: there {listed(on)}."
        present = parting.present
        calls = [parting.call(slot, side[0]) for side in present]
        if len(present) > 1:
            told = [f"{name(side)}'s {quoted(row)}{at_line(row)}" for side, row in zip(present, calls, strict=True)]
            verb = "met" if slot.met else "can never meet"
            why = "" if slot.met else self.reasons.keeps_apart(slot)
            yield f"Call {calls[0]['number']}: {told[0]} {verb} {listed(told[1:])}{why and ': '}{why}."
            made = [
                (side, text)
                for side, row in zip(present, calls, strict=True)
                if row["completed_ns"] is not None and (text := conclusion(row["origin"], row["value_out"]))
            ]
            if any("concluded" in text for _, text in made):
                yield upper("; ".join(f"{name(side)} {text}" for side, text in made)) + "."

    @cached_property
    def reasons(self) -> Reasons:
        """Why ranks ended so. Where one hangs, the rule needs all ranks' calls; else those of the lanes will do."""
        if self._reasons is not None:
            return self._reasons
        whole = any(end.kind is EndKind.HUNG or end.pending for end in self.ends) and len(self.parting.lanes) < len(
            self.ends
        )
        return Reasons((self.folding.every or Matched(self.timeline)) if whole else self.folding.matched)

    def _fates(self) -> Iterator[Fate]:
        """How the ranks ended, those that went wrong first; the same told once."""
        known = None
        if self.parting.clash is not None:
            slot = self.parting.slot
            rank, seq = next(iter(slot.calls.items()))
            known = self.reasons.slot_of[rank, slot.group, seq]
        told: dict[tuple[str, str], list[int]] = {}
        for lane, ranks in self.parting.lanes.items():
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
        slot = self.parting.slots[row]
        by_line: dict[tuple[str, str, int | None, tuple[CodeLine, ...]], list[int]] = {}
        for rank, seq in slot.calls.items():
            call = self.parting.rows[rank, slot.group, seq]
            key = (call["call_site"] or "", asks_of(call), call["number"], self.sources.lines_of(call))
            by_line.setdefault(key, []).extend(self.parting.lanes[rank])
        for (site, call_, number, lines), ranks in by_line.items():
            yield Line(tuple(sorted(ranks)), site, call_, lines[0].text if lines else "", number, lines[1:])


def _out_of_time(end: Ending) -> bool:
    """Whether joinlab ended a rank because its time was over."""
    return end.kind is EndKind.KILLED and "still running after" in end.text


def _given(row: CallRow, names: Sequence[str]) -> str:
    """What a call gave for each of `names`, see Slot.differs: "float32[2] and root 1"."""
    said = {
        "dtype": tensor(row),
        "shape": tensor(row),
        "reduce_op": row["reduce_op"] or "",
        "root": f"root {row['root']}",
    }
    return " and ".join(dict.fromkeys(said[name] for name in names))
