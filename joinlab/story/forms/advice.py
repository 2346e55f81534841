"""Advice for a recorded job, which is not run again: what follows from the relation of its ranks'
calls, and where to look."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from joinlab.analysis.first_difference import Relation
from joinlab.analysis.meanings import averages_gradients, is_own
from joinlab.analysis.wording import by_key, differing_text
from joinlab.backend.calls import is_peer_gone
from joinlab.showing import short_site
from joinlab.story.evidence import Evidence
from joinlab.story.forms import divergence, even, meeting, mismatch, pasted, standing
from joinlab.story.forms.fates import has_lost_peer, is_timeout
from joinlab.story.lines import Fix, Line, SourceLine, form
from joinlab.story.words import Text, code, listing, say
from joinlab.timeline import FROM_TEXT, LOST, NO_END, EndKind


def find(evidence: Evidence, over: bool) -> tuple[Line, ...]:
    """One line at most; () where nothing follows. While it is not over, other calls may follow, and
    only where ranks stand is known."""
    if evidence.meta.get("format") == FROM_TEXT:
        return tuple(_recording(evidence))
    if evidence.meta.get("engine") != "recorded":
        return ()
    stood = tuple(_where(evidence))
    if over:
        return (*stood, *_at_test(evidence), *_what_leads(evidence))[:1]
    return stood


class RecordIt(Fix):
    def words(self) -> Text:
        return say(
            "Recorded with {}, the job can name the line where {} stood.",
            code("joinlab record"),
            self.ranks,
        )


def _recording(evidence: Evidence) -> Iterator[Line]:
    """How to learn more of ranks of which a text tells a call, or that they did not come, but no line."""
    headline, *_ = pasted.find(evidence)
    if isinstance(headline, pasted.TextCalls) and not evidence.meta.get("stood"):
        yield RecordIt(ranks=tuple(headline.sides[-1]))


class Unused(Fix):
    def words(self) -> Text:
        return say(
            "{}'s error names a cure: {} looks for parameters that a backward pass leaves out.",
            self.ranks,
            code("DDP(..., find_unused_parameters=True)"),
        )


def unused(evidence: Evidence) -> Iterator[Line]:
    """The cure that DDP's own error names."""
    name = "find_unused_parameters"
    ranks = tuple(evidence.ranks_that(lambda end: name in end.text))
    if ranks:
        yield Unused(ranks=ranks)


@form
class SamePath(Fix):
    """join: whether join() could shadow all calls of the loop"""

    join: bool

    def words(self) -> Text:
        return say(
            "Let all ranks go the same way at {}, or issue the same calls on each.", self.test()
        )

    def test(self) -> Text:
        """The test at which the traces diverge."""
        test = self.lines[0]
        return say("{} ({})", code(divergence.quoted(test.text)), short_site(test.site))


class SameRounds(SamePath):
    def words(self) -> Text:
        join = say(", or wrap it in {}", code("with model.join():")) if self.join else ()
        return say("Give every rank as many rounds of {}{}.", self.test(), join)


def _at_test(evidence: Evidence) -> Iterator[Line]:
    """The test at which the ranks' traces diverge, where they were recorded; not where a rank died
    behind it, before its peers."""
    if _killed(evidence) and any(is_peer_gone(end.text) for end in evidence.ends):
        return
    for line in divergence.find(evidence):
        if isinstance(line, divergence.AtDivergence):
            is_loop = line.lines[0].text.startswith(("for ", "while "))
            is_loop &= all(side["how"] not in ("raise", "call", "resume") for side in line.went)
            form = SameRounds if is_loop else SamePath
            yield form(is_loop and _can_join(evidence), ranks=line.ranks, lines=line.lines)


def _can_join(evidence: Evidence) -> bool:
    """Whether every rank made DDP's calls alone from its first backward pass to its last, so that
    join() can shadow all of them."""
    between: dict[int, bool] = {}
    for row in evidence.matched.rows:
        rank = row["rank"]
        if averages_gradients(row):
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
    ways     whether the traces of the ranks were recorded, too
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
        return say(
            "Exchange the sizes first: what a rank sends another is what that one has to expect "
            "in {}.",
            self.brief(0),
        )


class WhatLeads(OfCalls):
    def words(self) -> Text:
        parts = []
        groups = {call.group for call in self.calls}
        named = self.full if len(groups) > 1 else self.brief
        for index, ranks in enumerate(self.sides):
            parts.append(say("{} to {}", ranks, named(index)))
        if len(parts) == 1 and self.absent and not self.pair:
            parts.append(say("not {}", self.absent))
        if self.pair:
            rule = _IN_TURN
        else:
            rule = "All ranks have to issue the same calls in one order."
        return say("{} Look at what leads {}.{}", rule, listing(parts), _hint(self.ways))


@form
class LookAtOutput(Fix):
    """memory: whether they may have been killed for lack of it"""

    memory: bool

    def words(self) -> Text:
        memory = ", and whether [its host|their hosts] ran out of memory" if self.memory else ""
        return say("Look at the last output of {}" + memory + ".", self.ranks)


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


def _killed(evidence: Evidence) -> list[int]:
    """The ranks that are gone without an ending, and without a call where the ranks part; or with one,
    if those without had lost their connection."""
    slot, ends = evidence.mismatch, evidence.ends
    ranks: Iterable[int] = slot.absent if slot else ()
    if slot and slot.absent and all(has_lost_peer(ends[rank]) for rank in slot.absent):
        ranks = slot.calls
    return [rank for rank in ranks if ends[rank].kind is EndKind.KILLED]


def _what_leads(evidence: Evidence) -> Iterator[Line]:
    """The calls at which the ranks part, or that were given unlike data; or the output of a rank that
    died, unless its peers had waited for it until their time was up."""
    slot, ends, ways = evidence.mismatch, evidence.ends, bool(evidence.meta.get("ways"))
    killed = _killed(evidence)
    if slot and any(ends[rank].text == LOST for rank in slot.absent):
        return  # what they did is not known
    if slot is None:
        if any(end.kind is EndKind.HUNG for end in ends):
            yield InTurn(ways)
    elif not killed:
        circle = evidence.difference.circle[:2]
        sides: Sequence[tuple[int, ...]] = evidence.difference.present
        slot, sides = mismatch.since(evidence) or (slot, sides)
        rows = [meeting.row_of(evidence, slot, side) for side in sides]
        form: type[OfCalls] = WhatLeads
        if len({row["call_site"] for row in rows}) == 1:
            form = _BY_RELATION.get(evidence.difference.relation, form)
        fields = evidence.about(evidence.sides(sides), rows)
        if circle:
            fields = evidence.about([[row["rank"]] for row in circle], circle)
        yield form(slot.differs, slot.absent, slot.pair, ways, **fields)
    elif not all(is_timeout(ends[rank].text) for rank in slot.calls):
        memory = all(ends[rank].text == NO_END or "SIGKILL" in ends[rank].text for rank in killed)
        yield LookAtOutput(memory, ranks=tuple(killed))


class LookThere(Fix):
    def words(self) -> Text:
        parts = []
        for line in self.lines:
            parts.append(say("{}, where {} stood", code(short_site(line.site)), line.ranks))
        return say("Look at {}.", listing(parts, ", and at "))


def _where(evidence: Evidence) -> Iterator[Line]:
    """Where ranks stand outside any call; not of a job that went on until it was interrupted, and
    of which no rank waited, nor where all ranks of a job that runs are at one line."""
    stands = [line for line in standing.find(evidence) if isinstance(line, standing.Stands)]
    by_site = by_key((line.lines[0].site, line.ranks[0]) for line in stands)
    runs = len(by_site) == 1 and all(end.runs for end in evidence.ends)
    runs |= bool(evidence.meta.get("missing_ranks"))  # they may wait for those
    if (runs or even.cut_short(evidence)) and standing.all_stand(evidence):
        return
    if by_site:
        lines = tuple(SourceLine(site, "", tuple(ranks)) for site, ranks in by_site.items())
        yield LookThere(lines=lines, **evidence.about(by_site.values()))
