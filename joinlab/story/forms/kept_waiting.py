"""For records without endings: which ranks keep the others waiting, by the graph of who waits for
whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from joinlab.analysis.reasons import CallName, OtherCalls, Why
from joinlab.analysis.waiting import WaitGraph
from joinlab.story.evidence import Evidence
from joinlab.story.lines import Headline, Line, LineKind, form, form_of
from joinlab.story.words import ENDINGS, Part, Text, as_sentence, listing, say, who
from joinlab.timeline import FROM_TEXT, EndKind


@form
class KeepsWaiting(Headline):
    """Ranks, the first side, for which those of the second wait.

    circle  whether they wait for each other
    waits   whether they wait at all
    """

    says_ends = True
    circle: bool
    waits: bool

    def words(self) -> Text:
        ranks, behind = self.sides
        if self.circle:
            for_them = say(", {} for them", behind) if behind else ""
            return say("{} wait for each other{}.", ranks, for_them)
        if not behind:
            return say("{} wait[s|], and no other rank does.", ranks)
        if self.waits:
            return say("{} keep[s|] {} waiting.", ranks, behind)
        waits = "waits" if len(ranks) == 1 else "wait"
        return say("{} keep[s|] {} waiting, and {} for no other rank.", ranks, behind, waits)


@form
class Shows(Headline):
    """What the record shows, or leaves open: as headline, cause or note."""

    says_ends = True
    inner = "why"
    why: Why

    @property
    def form(self) -> str:
        return form_of(self.why)

    def words(self) -> Text:
        why = self.why
        parts = {fact.name: _part(getattr(why, fact.name)) for fact in fields(why)}
        if isinstance(why, OtherCalls):
            issued = [say("{} {}", ranks, op) for ranks, op in why.issued]
            parts["issued"] = listing(issued, "; ")
        subject, either = as_sentence((who(why.about),)), as_sentence(_which(why.either))
        return say(why.text, **{**parts, "about": why.about, "About": subject, "Either": either})


def _part(fact: CallName | int | str | Sequence[int] | None) -> Part:
    """A fact of a reason as a part of its sentence."""
    match fact:
        case str() if fact in ENDINGS:
            return ENDINGS[fact].past
        case CallName() | None:
            return str(fact)
        case int():
            return (fact,)
    return fact


def _which(ranks: Sequence[int]) -> Text:
    """One of some ranks: "rank 1 or rank 2"."""
    if len(ranks) == 2:
        return say("{} or {}", ranks[:1], ranks[1:])
    return say("one of {}", ranks)


def find(evidence: Evidence) -> tuple[Line, ...]:
    """The ranks where the graph ends, unless the mismatch itself explains them."""
    if not any(end.kind is EndKind.UNKNOWN for end in evidence.ends):
        return ()
    graph = evidence.graph
    first = unclear_first(evidence)
    if first is not None:
        return (Shows(first, ranks=first.about),)
    if not graph.culprits or (evidence.difference.first is not None and _shows(evidence, graph)):
        return ()
    causes = [
        Shows(culprit.why, ranks=culprit.ranks, kind=LineKind.CAUSE) for culprit in graph.culprits
    ]
    culprits = tuple(sorted(graph.ranks)) or graph.culprits[0].ranks
    behind = sorted({rank for culprit in graph.culprits for rank in culprit.waiting})
    waits = bool({wait.rank for wait in graph.waits} & {*culprits})
    sides = evidence.about([culprits, behind], ranks=culprits)
    return (KeepsWaiting(not graph.ranks, waits, **sides), *causes)


def unclear_first(evidence: Evidence) -> Why | None:
    """The headline if the record does not show which rank keeps the others waiting."""
    graph = evidence.graph
    difference = evidence.difference
    missing = {*evidence.meta.get("missing_ranks", ())}
    if graph.culprits or evidence.meta.get("format") == FROM_TEXT:
        return None
    if difference.slot_index is not None and (not missing or missing & {*difference.slot.absent}):
        return None  # the mismatch tells more
    return next(iter(graph.unclear), None)


def _shows(evidence: Evidence, graph: WaitGraph) -> bool:
    """Whether the mismatch explains the graph: the graph's culprits are in it, and one of its calls is
    still open."""
    difference = evidence.difference
    if (
        not graph.ranks
        or len(difference.present) < 2
        or difference.outliers not in ((), tuple(sorted(graph.ranks)))
    ):
        return False
    shown_ranks = set[int]()
    for side in difference.present:
        shown_ranks.update(difference.ranks(side))
    stuck = any(
        difference.call(difference.slot, lane)["completed_ns"] is None
        for lane in difference.slot.calls
    )
    return stuck and shown_ranks >= {*graph.ranks}
