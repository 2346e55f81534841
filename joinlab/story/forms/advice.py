"""Advice for a recorded job, which is not run again: what follows from the relation of its ranks'
calls, and where to look."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from operator import attrgetter

from joinlab.analysis.first_difference import Relation
from joinlab.analysis.meanings import is_own
from joinlab.analysis.wording import differing_text, short_site
from joinlab.program.divergence import are_gradients
from joinlab.story.evidence import Evidence
from joinlab.story.forms import meeting, parted, standing
from joinlab.story.lines import Fix, Line, form
from joinlab.story.words import Text, code, listing, say
from joinlab.timeline import EndKind


def find(evidence: Evidence, over: bool) -> tuple[Line, ...]:
    """One line at most; () where nothing follows. While it is not over, other calls may follow, and
    only where ranks stand is known."""
    if evidence.meta.get("engine") != "recorded":
        return ()
    lines: Iterator[Line] = _where(evidence)
    if over:
        lines = chain(lines, _at_test(evidence), _what_leads(evidence))
    return tuple(islice(lines, 1))


class Unused(Fix):
    def words(self) -> Text:
        return say(
            "{}'s error names a cure: {} looks for parameters that a backward pass leaves out.",
            self.ranks,
            code("DDP(..., find_unused_parameters=True)"),
        )


def unused(evidence: Evidence) -> Iterator[Line]:
    """The cure that DDP's own error names."""
    ranks: list[int] = []
    for rank, end in enumerate(evidence.ends):
        if "find_unused_parameters" in end.text:
            ranks.append(rank)
    if ranks:
        yield Unused(ranks=tuple(ranks))


@form
class SameWay(Fix):
    """join: whether join() could shadow all calls of the loop"""

    join: bool

    def words(self) -> Text:
        return say(
            "Let all ranks go the same way at {}, or issue the same calls on each.", self.test()
        )

    def test(self) -> Text:
        """The test at which the ways part."""
        test = self.lines[0]
        return say("{} ({})", code(parted.quoted(test.text)), short_site(test.site))


class SameRounds(SameWay):
    def words(self) -> Text:
        join = say(", or wrap it in {}", code("with model.join():")) if self.join else ()
        return say("Give every rank as many rounds of {}{}.", self.test(), join)


def _at_test(evidence: Evidence) -> Iterator[Line]:
    """The test at which the ranks' ways part, where they were recorded."""
    for line in parted.find(evidence):
        if isinstance(line, parted.Parted):
            is_loop = line.lines[0].text.startswith(("for ", "while "))
            is_loop &= all(side["how"] not in ("raise", "call") for side in line.went)
            form = SameRounds if is_loop else SameWay
            yield form(is_loop and _can_join(evidence), ranks=line.ranks, lines=line.lines)


def _can_join(evidence: Evidence) -> bool:
    """Whether every rank made DDP's calls alone from its first backward pass to its last, so that
    join() can shadow all of them."""
    between: dict[int, bool] = {}
    for row in evidence.matched.rows:
        rank = row["rank"]
        if are_gradients([row]):
            if between.get(rank):
                return False
            between[rank] = False
        elif rank in between and is_own(row["origin"] or ""):
            between[rank] = True
    return len(between) == len(evidence.ends)


@form
class OfCalls(Fix):
    """Advice about the calls at which the ranks part.

    differs  their properties that do
    absent   the ranks that issued none
    pair     whether they are a send and a recv
    ways     whether the ways of the ranks were recorded, too
    """

    differs: Sequence[str]
    absent: Sequence[int]
    pair: bool
    ways: bool


class SameData(OfCalls):
    def words(self) -> Text:
        differs = differing_text(self.differs)
        return say("Let all ranks give {} the same {}.", self.brief(0), differs)


class ExchangeSizes(OfCalls):
    def words(self) -> Text:
        template = (
            "Exchange the sizes first: what a rank sends another is what that one has to expect"
        )
        return say(template + " in {}.", self.brief(0))


class WhatLeads(OfCalls):
    def words(self) -> Text:
        parts = []
        for index, ranks in enumerate(self.sides):
            parts.append(say("{} to {}", ranks, self.brief(index)))
        if len(parts) == 1 and self.absent and not self.pair:
            parts.append(say("not {}", self.absent))
        if self.pair:
            rule = _IN_TURN
        else:
            rule = "All ranks have to issue the same calls in one order."
        return say("{} Look at what leads {}.{}", rule, listing(parts), _hint(self.ways))


class LookAtOutput(Fix):
    def words(self) -> Text:
        return say(
            "Look at the last output of {}, and whether [its host|their hosts] ran out of memory.",
            self.ranks,
        )


@form
class InTurn(Fix):
    ways: bool

    def words(self) -> Text:
        return say("{}{}", _IN_TURN, _hint(self.ways))


_IN_TURN = "Each send needs a recv that its peer issues before it waits for another call."


def _hint(ways: bool) -> Text:
    """How to see more, unless that was done."""
    if ways:
        return ()
    return say(" Recorded with {}, the job can name the branch.", code("joinlab record --ways"))


_BY_RELATION: Mapping[Relation, type[OfCalls]] = {
    Relation.DATA: SameData,
    Relation.SPLITS: ExchangeSizes,
}


def _what_leads(evidence: Evidence) -> Iterator[Line]:
    """The calls at which the ranks part, or that were given unlike data."""
    slot, present = evidence.mismatch, evidence.difference.present
    if slot:
        kinds = {evidence.ends[rank].kind for rank in slot.absent}
    else:
        kinds = set()
    if slot is not None and EndKind.KILLED not in kinds:
        rows = [meeting.row_of(evidence, slot, side) for side in present]
        form = _BY_RELATION.get(evidence.difference.relation, WhatLeads)
        yield form(
            slot.differs,
            slot.absent,
            slot.pair,
            _has_traces(evidence),
            **evidence.about(evidence.sides(present), rows),
        )
    elif slot is not None and kinds == {EndKind.KILLED}:
        yield LookAtOutput(ranks=tuple(slot.absent))
    elif slot is None and EndKind.HUNG in map(attrgetter("kind"), evidence.ends):
        yield InTurn(_has_traces(evidence))


def _has_traces(evidence: Evidence) -> bool:
    """Whether the ways of its ranks were recorded, too."""
    return bool(evidence.meta.get("ways"))


class LookThere(Fix):
    def words(self) -> Text:
        return say("Look at {}, where {} stood.", code(short_site(self.lines[0].site)), self.ranks)


def _where(evidence: Evidence) -> Iterator[Line]:
    """Where ranks stand outside any call."""
    for line in standing.find(evidence):
        if isinstance(line, standing.Stands):
            yield LookThere(ranks=line.ranks, lines=line.lines[:1])
