"""For records without endings: which ranks keep the others waiting, by the graph of who waits for
whom."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from joinlab.analysis.outliers import Why
from joinlab.analysis.waiting import WaitGraph
from joinlab.story.evidence import Evidence
from joinlab.story.lines import Line, LineKind
from joinlab.story.words import ENDINGS, Part, Text, listing, say, sides, told, who
from joinlab.timeline import FROM_TEXT, EndKind


def find(scene: Evidence) -> tuple[Line, ...]:
    """The ranks where the graph ends, unless the clash itself explains them."""
    if not any(end.kind is EndKind.UNKNOWN for end in scene.ends):
        return ()
    graph = scene.graph
    first = unclear_first(scene)
    if first is not None:
        named = first.facts.get("ranks", first.facts.get("rank", ()))
        ranks = (named,) if isinstance(named, int) else tuple(named)
        return (Line(LineKind.HEADLINE, first.form, ranks, facts=dict(first.facts)),)
    if not graph.culprits or (scene.parting.first is not None and _shows(scene, graph)):
        return ()
    causes = [
        Line(LineKind.CAUSE, culprit.why.form, culprit.ranks, facts=culprit.why.facts)
        for culprit in graph.culprits
    ]
    culprits = tuple(sorted(graph.ranks)) or graph.culprits[0].ranks
    behind = sorted({rank for culprit in graph.culprits for rank in culprit.waiting})
    waits = bool({wait.rank for wait in graph.waits} & {*culprits})
    facts = {"sides": [list(culprits), behind], "circle": not graph.ranks, "waits": waits}
    return (Line(LineKind.HEADLINE, "keeps_waiting", culprits, facts=facts), *causes)


def unclear_first(scene: Evidence) -> Why | None:
    """The headline if the record does not show which rank keeps the others waiting."""
    graph, parting, missing = scene.graph, scene.parting, {*scene.meta.get("missing_ranks", ())}
    if graph.culprits or scene.meta.get("format") == FROM_TEXT:
        return None
    if parting.clash is not None and (not missing or missing & {*parting.slot.absent}):
        return None  # the clash tells more
    return next(iter(graph.unclear), None)


def _shows(scene: Evidence, graph: WaitGraph) -> bool:
    """Whether the clash explains the graph: the graph's culprits are in it, and one of its calls is
    still open."""
    parting = scene.parting
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


# ---------------------------------------------------------------- words

_UNTOLD = "the record does not show which."

SENTENCES: Mapping[str, str] = {
    "odd_one": "{rank} issued {issued} as {call}, where {most} issued {usual}. Look at what it did before: it skipped "
    "a call, made one more, or has other data.",
    "circle_of": "{ranks} wait for each other, first in {call}. {Which} took a different path from the rest "
    "of the job: " + _UNTOLD,
    "ended": "{waits}, but it has {past}.",
    "parted_from": "{waits}, and it waits for them elsewhere. It took a different path: it skipped a call, or "
    "made one more.",
    "not_begun": "{waits}. It {enqueued}, but its {device} has not begun it. Look at its {device}.",
    "stream_behind": "{waits}. It enqueued that call, but it has completed only {reached}, and it waits for no other "
    "rank. Look at its {device}.",
    "stopped": "{waits}. It stopped after {reached}, and it waits for no other rank. Look at its host.",
    "no_counterpart": "{waits}, to which it issued no counterpart, and it waits for no other rank. Look at its host.",
    "another_way": "{rank} took a different path from {against}, which [has|have] the same part in the job, at "
    "{where}: it skipped a call, made one more, changed their order, or has other data.",
    "one_stands": "{waiter} waits for {rank} in {call}. {Rank} is in a call with {level}. {Which} has stalled: "
    + _UNTOLD,
    "one_waits": "{rank} alone waits, in {call}, for {on}. Either {on} [has|have] stalled, or {rank} made a call that "
    "{on} [does|do] not make: " + _UNTOLD,
    "may_wait": "{ranks} may wait for {absent} in {group}: there is no record of {absent}.",
    "other_calls": "In {call} the ranks issued different calls: {each}.{wrong}",
    "all_reached": "{ranks} wait[s|] in calls that all peers have reached.",
    "one_of": "{Which} has stalled in a call that all its ranks have reached: " + _UNTOLD,
    "none_apart": "Every rank got to the same calls, and none completes: the record does not tell the ranks apart.",
}
"""By form, what the record shows, and what it leaves open."""


def _keeps(line: Line) -> Text:
    ranks, behind = sides(line)
    if line.facts["circle"]:
        return say(
            "{} wait for each other{}.", ranks, say(", {} for them", behind) if behind else ""
        )
    if not behind:
        return say("{} wait[s|], and no other rank does.", ranks)
    ending = f", and wait{'s' * (len(ranks) == 1)} for no other rank" * (not line.facts["waits"])
    return say("{} keep[s|] {} waiting{}.", ranks, behind, ending)


def _words(line: Line) -> Text:
    facts: Mapping[str, Any] = line.facts
    parts: dict[str, Part] = {}
    for name, fact in facts.items():
        parts[name] = _call(fact) if name == "call" else (fact,) if type(fact) is int else fact
    parts |= {
        "device": "GPU" if facts.get("gpu") else "process",
        "reached": str(facts.get("reached")),
    }
    match line.form:
        case "circle_of" | "one_of":
            parts["Which"] = told(_which(facts["ranks"]))
        case "one_stands":
            parts["Rank"] = told((who((facts["rank"],)),))
            parts["Which"] = told(_which(sorted({facts["rank"], *facts["level"]})))
        case "ended":
            parts["past"] = ENDINGS[EndKind(facts["kind"])].past
        case "not_begun":
            parts["enqueued"] = (
                "enqueued that call" if facts["call"]["number"] else "issued the counterpart"
            )
        case "may_wait":
            parts["group"] = f"group {facts['group']}" if facts["group"] else "a send or recv"
        case "other_calls":
            parts["each"] = listing(
                [say("{} {}", ranks, op) for ranks, op in facts["issued"]], "; "
            )
            parts["wrong"] = (
                say(" {} is wrong: " + _UNTOLD, told(_which(facts["wrong"])))
                if facts["wrong"]
                else ""
            )
    if "waiting" in facts:
        parts["waits"] = _waits(facts)
    return say(SENTENCES[line.form], **parts)


def _call(call: Mapping[str, object]) -> str:
    """A call as the watchdog names it: "collective 5 (all_reduce) of group 73"; of a send or recv,
    its op."""
    if not call["number"]:
        return f"a {call['op']} of group {call['group']}"
    op = f" ({call['op']})" if call.get("op") else ""
    return f"collective {call['number']}{op} of group {call['group']}"


def _waits(facts: Mapping[str, Any]) -> Text:
    """Who waits for a rank, and in which call; a rank that waits for it in another call may not be
    in that group."""
    elsewhere = say(", and {} elsewhere", facts["elsewhere"]) if facts["elsewhere"] else ""
    return say(
        "{} wait[s|] for {} in {}{}",
        facts["waiting"],
        (facts["rank"],),
        _call(facts["call"]),
        elsewhere,
    )


def _which(ranks: Sequence[int]) -> Text:
    """One of some ranks: "rank 1 or rank 2"."""
    if len(ranks) == 2:
        return say("{} or {}", ranks[:1], ranks[1:])
    return say("one of {}", ranks)


WORDS: Mapping[str, Callable[[Line], Text]] = {
    "keeps_waiting": _keeps,
    **dict.fromkeys(SENTENCES, _words),
}
