"""A record that does not say how ranks ended: who keeps the others waiting, by the graph of who waits for whom."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from joinlab.analysis.strays import Why
from joinlab.analysis.waiting import WaitGraph
from joinlab.story.lines import Line, LineKind
from joinlab.story.scene import Scene
from joinlab.story.words import ENDINGS, Text, listing, s, say, sides, told, who
from joinlab.timeline import FROM_TEXT, EndKind


def find(scene: Scene) -> tuple[Line, ...]:
    """The ranks where the graph ends, unless the clash itself explains them."""
    if not any(end.kind is EndKind.UNKNOWN for end in scene.ends):
        return ()
    graph = scene.graph
    if (first := unclear_first(scene)) is not None:
        named = first.facts.get("ranks", first.facts.get("rank", ()))
        ranks = (named,) if isinstance(named, int) else tuple(named)
        return (Line(LineKind.HEADLINE, first.form, ranks, facts=dict(first.facts)),)
    if not graph.culprits or (scene.parting.first is not None and _shows(scene, graph)):
        return ()
    causes = [Line(LineKind.CAUSE, one.why.form, one.ranks, facts=one.why.facts) for one in graph.culprits]
    culprits = tuple(sorted(graph.ranks)) or graph.culprits[0].ranks
    behind = sorted({rank for culprit in graph.culprits for rank in culprit.waiting})
    waits = bool({one.rank for one in graph.waits} & {*culprits})
    facts = {"sides": [list(culprits), behind], "circle": not graph.ranks, "waits": waits}
    return (Line(LineKind.HEADLINE, "keeps_waiting", culprits, facts=facts), *causes)


def unclear_first(scene: Scene) -> Why | None:
    """What cannot be told apart, where that is the headline: no rank is known to keep others waiting."""
    graph, parting, missing = scene.graph, scene.parting, {*scene.meta.get("missing_ranks", ())}
    if graph.culprits or scene.meta.get("format") == FROM_TEXT:
        return None
    if parting.clash is not None and (not missing or missing & {*parting.slot.absent}):
        return None  # the clash tells more
    return next(iter(graph.unclear), None)


def _shows(scene: Scene, graph: WaitGraph) -> bool:
    """Whether the clash explains the graph: its culprits stand there, and a call there is still open."""
    parting = scene.parting
    if not graph.ranks or len(parting.present) < 2 or parting.odd not in ((), tuple(sorted(graph.ranks))):
        return False
    here = {rank for side in parting.present for rank in parting.ranks(side)}
    stuck = any(parting.call(parting.slot, lane)["completed_ns"] is None for lane in parting.slot.calls)
    return stuck and here >= {*graph.ranks}


# ---------------------------------------------------------------- words


def _words(line: Line) -> Text:
    ranks, behind = sides(line)
    if line.facts["circle"]:
        rest = say(", {} for them", who(behind)) if behind else ""
        return say("{} wait for each other{}.", who(ranks), rest)
    alone = f", and wait{s(ranks)} for no other rank" * (not line.facts["waits"])
    return say("{} " + f"keep{s(ranks)}" + " {} waiting" + alone + ".", who(ranks), who(behind))


def _call(call: Mapping[str, Any]) -> str:
    """A call as the watchdog names it: "collective 5 (all_reduce) of group 73"; of a send or recv, its op."""
    if call["number"] is None:
        return f"a {call['op']} of group {call['group']}"
    op = f" ({call['op']})" if call.get("op") else ""
    return f"collective {call['number']}{op} of group {call['group']}"


def _waits(line: Line) -> Text:
    """Who waits for a rank, and in which call; a rank that waits for it in another call may not be in that group."""
    facts = line.facts
    waiting, elsewhere = facts["waiting"], facts["elsewhere"]
    more = say(", and {} elsewhere", who(elsewhere)) if elsewhere else ""
    verb = f" wait{s(waiting)} for "
    return say("{}" + verb + "{} in {}{}", who(waiting), who((facts["rank"],)), _call(facts["call"]), more)


def _which(ranks: Sequence[int]) -> Text:
    """One of some ranks: "rank 1 or rank 2"."""
    if len(ranks) == 2:
        return say("{} or {}", who(ranks[:1]), who(ranks[1:]))
    return say("one of {}", who(ranks))


_LOOK = "Look at what it did before: it skipped a call, made one more, or has other data."
_LEFT = "it skipped a call, made one more, changed their order, or has other data."
_UNTOLD = "the record does not tell which."


def _odd(line: Line) -> Text:
    facts, rank = line.facts, who((line.facts["rank"],))
    call, most = _call(facts["call"]), who(facts["most"])
    return say("{} issued {} as {}, where {} issued {}. {}", rank, facts["issued"], call, most, facts["usual"], _LOOK)


def _circle(line: Line) -> Text:
    ranks, call = line.facts["ranks"], _call(line.facts["call"])
    first = say("{} wait for each other, first in {}. ", who(ranks), call)
    return (*first, *say("{} went another way than the rest of the job: {}", told(_which(ranks)), _UNTOLD))


def _ended(line: Line) -> Text:
    return say("{}, but it has {}.", _waits(line), ENDINGS[EndKind(line.facts["kind"])].past)


def _stream_stands(line: Line) -> Text:
    stuck, device = ("Its stream stands still in", "GPU") if line.facts["gpu"] else ("It has not completed", "process")
    inside, passed = _call(line.facts["in"]), who(line.facts["passed"])
    said = "{}. {} {}, which {} completed, and it waits for no other rank. Look at its {}."
    return say(said, _waits(line), stuck, inside, passed, device)


def _not_begun(line: Line) -> Text:
    what = "issued the counterpart" if line.facts["call"]["number"] is None else "enqueued that call"
    device = "GPU" if line.facts["gpu"] else "process"
    return say("{}. It {}, but its {} has not begun it. Look at its {}.", _waits(line), what, device, device)


def _behind(line: Line) -> Text:
    reached, device = str(line.facts["reached"]), "GPU" if line.facts["gpu"] else "process"
    said = "{}. It enqueued that call, but it has completed only {}, and it waits for no other rank. Look at its {}."
    return say(said, _waits(line), reached, device)


def _stopped(line: Line) -> Text:
    reached = str(line.facts["reached"])
    return say("{}. It stopped after {}, and it waits for no other rank. Look at its host.", _waits(line), reached)


def _no_counterpart(line: Line) -> Text:
    return say("{}, to which it issued no counterpart, and it waits for no other rank. Look at its host.", _waits(line))


def _parted(line: Line) -> Text:
    said = "{}, and it waits for them elsewhere. It went another way than they: it skipped a call, or made one more."
    return say(said, _waits(line))


def _another_way(line: Line) -> Text:
    rank, against = who((line.facts["rank"],)), who(line.facts["against"])
    has = "have" if len(line.facts["against"]) > 1 else "has"
    said = "{} went another way than {}, which " + has + " the same part in the job, at {}: {}"
    return say(said, rank, against, line.facts["where"], _LEFT)


# ---------------------------------------------------------------- what cannot be told apart


def _one_stands(line: Line) -> Text:
    facts = line.facts
    rank, call, level = facts["rank"], _call(facts["call"]), facts["level"]
    first = say("{} waits for {} in {}. ", who((facts["waiter"],)), who((rank,)), call)
    second = say("{} stands in a call with {}. ", told((who((rank,)),)), who(level))
    return (*first, *second, *say("{} stands still: {}", told(_which(sorted({rank, *level}))), _UNTOLD))


def _one_waits(line: Line) -> Text:
    rank, on = who((line.facts["rank"],)), who(line.facts["on"])
    said = "{} alone waits, in {}, for {}. Either {} stand" + s(line.facts["on"]) + " still, or {} made a call that {} "
    does = "do" if len(line.facts["on"]) > 1 else "does"
    return say(said + does + " not make: {}", rank, _call(line.facts["call"]), on, on, rank, on, _UNTOLD)


def _may_wait(line: Line) -> Text:
    facts = line.facts
    where = f"group {facts['group']}" if facts["group"] else "a send or recv"
    ranks, absent = who(facts["ranks"]), who(facts["absent"])
    return say("{} may wait for {} in {}: there is no record of {}.", ranks, absent, where, absent)


def _other_calls(line: Line) -> Text:
    each = [say("{} {}", who(ranks), op) for ranks, op in line.facts["issued"]]
    wrong = line.facts["wrong"]
    which = say(" {} is wrong: {}", told(_which(wrong)), _UNTOLD) if wrong else ""
    return say("In {} the ranks issued different calls: {}.{}", _call(line.facts["call"]), listing(each, "; "), which)


def _not_complete(line: Line) -> Text:
    call, rank, others = _call(line.facts["call"]), who((line.facts["rank"],)), who(line.facts["others"])
    why = "it stands still, or its record is older than theirs."
    return say("{} is not complete on {} although {} completed it: {}", call, rank, others, why)


def _all_reached(line: Line) -> Text:
    ranks = line.facts["ranks"]
    return say("{} wait{} in calls that all peers have reached.", who(ranks), s(ranks))


def _one_of(line: Line) -> Text:
    which = _which(line.facts["ranks"])
    return say("{} stands still in a call that all its ranks have reached: {}", which, _UNTOLD)


def _none_apart(line: Line) -> Text:
    return say("Every rank got to the same calls, and none completes: the record does not tell the ranks apart.")


WORDS: Mapping[str, Callable[[Line], Text]] = {
    "keeps_waiting": _words,
    "odd_one": _odd,
    "circle_of": _circle,
    "ended": _ended,
    "parted_from": _parted,
    "stream_stands": _stream_stands,
    "not_begun": _not_begun,
    "stream_behind": _behind,
    "stopped": _stopped,
    "no_counterpart": _no_counterpart,
    "another_way": _another_way,
    "one_waits": _one_waits,
    "one_stands": _one_stands,
    "may_wait": _may_wait,
    "other_calls": _other_calls,
    "not_complete": _not_complete,
    "all_reached": _all_reached,
    "one_of": _one_of,
    "none_apart": _none_apart,
}
