"""For records without endings: which ranks keep the others waiting, by the graph of who waits for
whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from joinlab.analysis.reasons import (
    AllReached,
    AnotherWay,
    Awaited,
    CallName,
    CircleOf,
    Ended,
    MayWait,
    NoCounterpart,
    NoneApart,
    NotBegun,
    OddOne,
    OneOf,
    OneStands,
    OneWaits,
    OtherCalls,
    PartedFrom,
    Stopped,
    StreamBehind,
    Why,
)
from joinlab.analysis.waiting import WaitGraph
from joinlab.story.evidence import Evidence
from joinlab.story.lines import Headline, Line, LineKind, form, form_of
from joinlab.story.words import ENDINGS, Text, listing, say, told, who
from joinlab.timeline import FROM_TEXT, EndKind

_UNTOLD = "the record does not show which."


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
        ending = f", and wait{'s' * (len(ranks) == 1)} for no other rank" * (not self.waits)
        return say("{} keep[s|] {} waiting{}.", ranks, behind, ending)


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
        match why:
            case OddOne():
                return say(
                    "{} issued {} as {}, where {} issued {}. Look at what it did before: it "
                    "skipped a call, made one more, or has other data.",
                    why.about,
                    why.issued,
                    _call(why.call),
                    why.most,
                    why.usual,
                )
            case AnotherWay():
                return say(
                    "{} took a different path from {}, which [has|have] the same part in the job, "
                    "at {}: it skipped a call, made one more, changed their order, or has other "
                    "data.",
                    why.about,
                    why.against,
                    why.where,
                )
            case CircleOf():
                return say(
                    "{} wait for each other, first in {}. {} took a different path from the rest "
                    "of the job: " + _UNTOLD,
                    why.ranks,
                    _call(why.call),
                    told(_which(why.ranks)),
                )
            case OneStands():
                return say(
                    "{} waits for {} in {}. {} is in a call with {}. {} has stalled: " + _UNTOLD,
                    (why.waiter,),
                    why.about,
                    _call(why.call),
                    told((who(why.about),)),
                    why.level,
                    told(_which(sorted({why.rank, *why.level}))),
                )
            case OneWaits():
                return say(
                    "{rank} alone waits, in {call}, for {on}. Either {on} [has|have] stalled, or "
                    "{rank} made a call that {on} [does|do] not make: " + _UNTOLD,
                    rank=why.about,
                    call=_call(why.call),
                    on=why.on,
                )
            case MayWait():
                return say(
                    "{} may wait for {absent} in {}: there is no record of {absent}.",
                    why.ranks,
                    f"group {why.group}" if why.group else "a send or recv",
                    absent=why.absent,
                )
            case OtherCalls():
                issued = [say("{} {}", ranks, op) for ranks, op in why.issued]
                wrong = say(" {} is wrong: " + _UNTOLD, told(_which(why.wrong)))
                return say(
                    "In {} the ranks issued different calls: {}.{}",
                    _call(why.call),
                    listing(issued, "; "),
                    wrong if why.wrong else "",
                )
            case AllReached():
                return say("{} wait[s|] in calls that all peers have reached.", why.ranks)
            case OneOf():
                template = "{} has stalled in a call that all its ranks have reached: "
                return say(template + _UNTOLD, told(_which(why.ranks)))
            case NoneApart():
                return say(
                    "Every rank got to the same calls, and none completes: the record does not "
                    "tell the ranks apart."
                )
            case Awaited():
                return say(
                    "{}" + _HOLDS[type(why)],
                    _waits(why),
                    past=ENDINGS[why.kind].past if isinstance(why, Ended) else "",
                    enqueued="enqueued that call" if why.call.number else "issued the counterpart",
                    reached=str(why.reached),
                    device="GPU" if why.gpu else "process",
                )
        raise AssertionError(why)


_HOLDS: Mapping[type[Awaited], str] = {
    Ended: ", but it has {past}.",
    PartedFrom: ", and it waits for them elsewhere. It took a different path: it skipped a call, or "
    "made one more.",
    NotBegun: ". It {enqueued}, but its {device} has not begun it. Look at its {device}.",
    StreamBehind: ". It enqueued that call, but it has completed only {reached}, and it waits for no "
    "other rank. Look at its {device}.",
    Stopped: ". It stopped after {reached}, and it waits for no other rank. Look at its host.",
    NoCounterpart: ", to which it issued no counterpart, and it waits for no other rank. Look at its "
    "host.",
}
"""What keeps a rank from a call in which others wait for it."""


def _waits(why: Awaited) -> Text:
    """Who waits for a rank, and in which call; a rank that waits for it in another call may not be
    in that group."""
    elsewhere = say(", and {} elsewhere", why.elsewhere) if why.elsewhere else ""
    return say("{} wait[s|] for {} in {}{}", why.waiting, why.about, _call(why.call), elsewhere)


def _call(call: CallName) -> str:
    """A call as the watchdog names it: "collective 5 (all_reduce) of group 73"; of a send or recv,
    its op."""
    if not call.number:
        return f"a {call.op} of group {call.group}"
    op = f" ({call.op})" if call.op else ""
    return f"collective {call.number}{op} of group {call.group}"


def _which(ranks: Sequence[int]) -> Text:
    """One of some ranks: "rank 1 or rank 2"."""
    if len(ranks) == 2:
        return say("{} or {}", ranks[:1], ranks[1:])
    return say("one of {}", ranks)


def find(evidence: Evidence) -> tuple[Line, ...]:
    """The ranks where the graph ends, unless the clash itself explains them."""
    if not any(end.kind is EndKind.UNKNOWN for end in evidence.ends):
        return ()
    graph = evidence.graph
    first = unclear_first(evidence)
    if first is not None:
        return (Shows(first, ranks=first.about),)
    if not graph.culprits or (evidence.parting.first is not None and _shows(evidence, graph)):
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
    graph, parting, missing = (
        evidence.graph,
        evidence.parting,
        {*evidence.meta.get("missing_ranks", ())},
    )
    if graph.culprits or evidence.meta.get("format") == FROM_TEXT:
        return None
    if parting.clash is not None and (not missing or missing & {*parting.slot.absent}):
        return None  # the clash tells more
    return next(iter(graph.unclear), None)


def _shows(evidence: Evidence, graph: WaitGraph) -> bool:
    """Whether the clash explains the graph: the graph's culprits are in it, and one of its calls is
    still open."""
    parting = evidence.parting
    if (
        not graph.ranks
        or len(parting.present) < 2
        or parting.odd not in ((), tuple(sorted(graph.ranks)))
    ):
        return False
    shown_ranks = set[int]()
    for side in parting.present:
        shown_ranks.update(parting.ranks(side))
    stuck = any(
        parting.call(parting.slot, lane)["completed_ns"] is None for lane in parting.slot.calls
    )
    return stuck and shown_ranks >= {*graph.ranks}
