"""Runs that finished and whose calls all met, but that used a call in a way that PyTorch forbids:
without wait() on its Work, with a tensor that was changed before wait() or stands for two, or on a
group that its rank is not in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from math import isfinite
from typing import Any

from joinlab.analysis.matching import Slot
from joinlab.analysis.wording import by_key, good
from joinlab.ops import CallRow, Op, decode_values, flat_values
from joinlab.showing import site_text
from joinlab.story.evidence import Evidence
from joinlab.story.lines import Fix, Headline, Line, Note, RankEnds, SourceLine, form
from joinlab.story.words import Text, as_sentence, every_rank, listing, say
from joinlab.timeline import EndKind


def find(evidence: Evidence) -> tuple[Line, ...]:
    """The headline, and what to do about a Work."""
    if not all(good(end) and end.kind is EndKind.FINISHED for end in evidence.ends):
        return ()
    return (
        _unwaited(evidence)
        or _overwritten(evidence)
        or _outside(evidence)
        or grouped(evidence, unlike=False)
    )


@form
class NotWaited(Headline):
    world: int

    def words(self) -> Text:
        return say(
            "{} finished, but nobody waited for {}'s {}.",
            every_rank(self.world),
            self.ranks,
            self.brief(0),
        )


@form
class WaitForWork(Fix):
    """What to do about a Work."""

    form = "wait"
    site: str | None

    def words(self) -> Text:
        return say(
            "Call wait() on what the call returned{} before its tensor is read.",
            site_text(self.site),
        )


class LeftBehind(Headline):
    """A rank issued a send, did not wait for it, and ended before the peer received it."""

    def words(self) -> Text:
        template = "{} ended before [its|their] {} was received: nobody waited for it."
        return say(template, self.ranks, self.brief(0))

    def bad_ends(self) -> list[RankEnds]:
        """Without what its words say."""
        return [group for group in Headline.bad_ends(self) if not group.pending]


class WaitToEnd(WaitForWork):
    """What to do about the Work of a send."""

    form = "wait_to_end"

    def words(self) -> Text:
        return say("Call wait() on what the call returned{}.", site_text(self.site))


def left_behind(evidence: Evidence) -> tuple[Line, ...]:
    """A send without a counterpart and without a wait(), if the peer was in its recv when the sender
    ended."""
    row = _left(evidence)
    if row is None:
        return ()
    lines = tuple(filter(None, [evidence.line_of(row, [row["rank"]])]))
    return (LeftBehind(lines=lines, **evidence.about([[row["rank"]]], [row])),)


def wait_to_end(evidence: Evidence) -> Iterator[Line]:
    """The advice that goes with `left_behind`."""
    row = _left(evidence)
    if row is not None:
        yield WaitToEnd(row["call_site"], ranks=(row["rank"],))


def _left(evidence: Evidence) -> CallRow | None:
    """The send of `left_behind`."""
    slot = evidence.mismatch
    for rank, row in evidence.matched.calls_of(slot).items() if slot is not None else ():
        peer, waited = row["peer"], row["host_wait_begin_ns"] is not None
        if row["op"] != Op.SEND or peer is None or waited or row["completed_ns"] is not None:
            continue
        key, finished = evidence.awaited(peer), evidence.ends[rank].kind is EndKind.FINISHED
        recv = evidence.matched.row_of[key] if key is not None and finished else None
        if recv is None or recv["op"] != Op.RECV or recv["peer"] != rank:
            continue
        if (recv["group"], recv["tag"]) == (row["group"], row["tag"]):
            return row
    return None


def _unwaited(evidence: Evidence) -> tuple[Line, ...]:
    dropped = evidence.meta.get("unwaited", ())
    rows = [evidence.timeline.call(one["rank"], one["seq"], one["group"]) for one in dropped]
    if not rows:
        return ()
    site = rows[0]["call_site"]
    same = [row for row in rows if row["call_site"] == site]
    ranks = sorted({row["rank"] for row in same})
    lines = tuple(filter(None, [evidence.line_of(rows[0], ranks)]))
    headline = NotWaited(len(evidence.ends), lines=lines, **evidence.about([ranks], same[:1]))
    if evidence.meta.get("fixes_hidden"):
        return (headline,)
    return (headline, WaitForWork(site, ranks=tuple(ranks)))


@form
class Overwritten(Headline):
    """A call that got what the calls that it met did not give. got: the first such value; gave: what
    they were issued with there; in_flight: a tensor was changed before wait()"""

    world: int
    got: object
    gave: Sequence[object]
    in_flight: bool

    def words(self) -> Text:
        return say(
            "{} finished, but {}'s {} got {} where {} gave {}{}.",
            *(every_rank(self.world), self.sides[0], self.noun(0), str(self.got)),
            *(self.sides[1], ", ".join(map(str, self.gave))),
            ": a tensor was changed before wait()" if self.in_flight else "",
        )


class WaitToChange(Fix):
    def words(self) -> Text:
        return say("Call wait() on what isend or irecv returned before its tensor is changed.")


class OwnTensors(Fix):
    def words(self) -> Text:
        return say(
            "Give each call contiguous tensors of its own, each once in a list, and change none "
            "before wait()."
        )


def _overwritten(evidence: Evidence) -> tuple[Line, ...]:
    """The first call that got what the calls that it met were not issued with."""
    for slot in evidence.matched.slots:
        rows = _in_order(evidence, slot) if slot.met and not slot.differs else []
        given_there = list(_given(rows))
        for row in rows[:1] if slot.pair else rows:
            came = flat_values(row["value_out"])
            for got, (givers, gave) in zip(came, given_there, strict=False):
                if _fits(got, gave, row["reduce_op"]):
                    continue
                by_site = {call["call_site"]: call for call in (*givers, row)}
                lines = [evidence.line_of(call, [call["rank"]]) for call in by_site.values()]
                sides = [[row["rank"]], [giver["rank"] for giver in givers]]
                headline = Overwritten(
                    len(evidence.ends),
                    got,
                    gave,
                    slot.pair,
                    lines=tuple(filter(None, lines)),
                    **evidence.about(sides, [row, *givers]),
                )
                if evidence.meta.get("fixes_hidden"):
                    return (headline,)
                return (headline, WaitToChange() if slot.pair else OwnTensors())
    return ()


def _in_order(evidence: Evidence, slot: Slot) -> list[CallRow]:
    """A recv and its send, or the calls of a collective of modelled ranks, by group rank: real ones
    may change a tensor before its values are read."""
    calls = evidence.matched.calls_of(slot)
    if slot.pair:
        return sorted(calls.values(), key=lambda row: row["op"])
    if evidence.meta.get("engine") != "emulated":
        return []
    return [calls[rank] for rank in evidence.meta["groups"][slot.group]]


def _given(rows: Sequence[CallRow]) -> Iterator[tuple[Sequence[CallRow], Sequence[object]]]:
    """For each value that a receiver gets: the calls that gave it, and what they gave."""
    op = rows[0]["op"] if rows else None
    match op:
        case Op.RECV:
            givers = rows[1:]
        case Op.BROADCAST:
            givers = [row for row in rows if row["rank"] == row["root"]]
        case Op.ALL_GATHER | Op.GATHER | Op.ALL_REDUCE:
            givers = rows
        case _:
            return
    tensors = [decode_values(row["value_in"]) or [] for row in givers]
    if op == Op.ALL_REDUCE:
        # A sum of many small floats may stop growing, which is no one's mistake.
        if rows[0]["reduce_op"] in ("sum", "avg") and rows[0]["dtype"] in ("float32", "float64"):
            for gave in zip(*map(chain.from_iterable, tensors), strict=False):
                yield givers, gave
    elif len(givers) == 1 or {*map(len, tensors)} == {1}:
        for giver, values in zip(givers, tensors, strict=True):
            for value in chain(*values):
                yield [giver], [value]


def _fits(got: Any, gave: Sequence[Any], reduce_op: str | None) -> bool:
    """Whether a receiver gets that, within the rounding of a sum, which may also be too large."""
    if reduce_op is None:
        return repr(got) == repr(*gave)  # nan is nan
    whole = len(gave) if reduce_op == "avg" else 1
    return not isfinite(got) or not abs(got * whole - sum(gave)) > 0.05 * sum(map(abs, gave))


@form
class OutsideGroup(Headline):
    """A call for a group that its rank is not in. name: of the function"""

    form = "outside"
    world: int
    name: str

    def words(self) -> Text:
        return say("{} finished, but {}.", every_rank(self.world), _did_nothing(self, self.name))


@form
class DidNothing(Note):
    """Such a call from a line in whose call others wait. name: of the function"""

    name: str

    def words(self) -> Text:
        return say("{}.", as_sentence(_did_nothing(self, self.name)))


def _did_nothing(line: Line, name: str) -> Text:
    template = "{} called {}{} for a group that [it is|they are] not in: it did nothing"
    return say(template, line.ranks, name, site_text(line.lines[0].site))


def _outside(evidence: Evidence) -> tuple[Line, ...]:
    first = next(_outsiders(evidence), None)
    if not first:
        return ()
    name, line = first
    return (OutsideGroup(len(evidence.ends), name, ranks=line.ranks, lines=(line,)),)


def waited_for(evidence: Evidence) -> Iterator[Line]:
    """The ranks that called a group that they are not in from a line in whose call others wait."""
    keys = filter(None, map(evidence.awaited, range(len(evidence.ends))))
    sites = {evidence.matched.row_of[key]["call_site"] for key in keys}
    for name, line in _outsiders(evidence):
        if line.site in sites:
            yield DidNothing(name, ranks=line.ranks, lines=(line,))


def _outsiders(evidence: Evidence) -> Iterator[tuple[str, SourceLine]]:
    """The functions that ranks called for a group that they are not in, with the line."""
    calls = evidence.meta.get("outside", ())
    ranks_of = by_key(((call["name"], call["site"]), call["rank"]) for call in calls)
    for (name, site), ranks in ranks_of.items():
        yield name, SourceLine(site, "", tuple(sorted({*ranks})))


@form
class Grouped(Headline):
    """A group that not all ranks named. members: those that each side named"""

    members: Sequence[Sequence[int]]

    def words(self) -> Text:
        parts: list[Text] = []
        for ranks, members in zip(self.sides, self.members, strict=True):
            called = "" if parts else f" called new_group{site_text(self.lines[0].site)}"
            parts.append(say("{}{} for {}", ranks, called, members))
        return say("{}: every rank has to, alike.", listing(parts))


def grouped(evidence: Evidence, unlike: bool = True) -> tuple[Line, ...]:
    """The first group that not all ranks named: some named other members, or, not `unlike`, they
    did not call new_group."""
    by_name = by_key((item["group"], item) for item in evidence.meta.get("grouped", ()))
    for groupings in () if evidence.meta.get("missing_ranks") else by_name.values():
        members = [item["members"] for item in groupings]
        if unlike == (len(members) > 1) and len(max(members, key=len)) > 1:
            sides, site = [item["ranks"] for item in groupings], groupings[0]["site"]
            lines = (SourceLine(site, "", tuple(sides[0])),)
            return (Grouped(members, lines=lines, **evidence.about(sides)),)
    return ()
