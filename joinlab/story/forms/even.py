"""Ranks that did not part: every call met its counterpart, or fits the calls so far."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from joinlab.analysis.wording import good
from joinlab.story.evidence import Evidence
from joinlab.story.forms.mismatch import out_of_time
from joinlab.story.lines import Line, LineKind
from joinlab.story.words import Text, ends, every_rank, listing, say
from joinlab.timeline import EndKind

_BROKEN = (EndKind.RAISED, EndKind.KILLED)


LONG_STILL_NS = 5_000_000_000
"""A job that was interrupted after so long without an event may have hung."""


def cut_short(scene: Evidence) -> tuple[Line, ...]:
    """The headline of a job that was interrupted, or whose record broke off, while it went on."""
    cut = scene.meta.get("cut")
    if cut is None or cut["still_ns"] > LONG_STILL_NS:
        return ()
    if any(end.kind in _BROKEN or end.kind is EndKind.HUNG for end in scene.ends):
        return ()
    if any(slot.differs for slot in scene.parting.slots):
        return ()
    ranks = [rank for rank, end in enumerate(scene.ends) if end.text == cut["why"]]
    facts = {"interrupted": "interrupted" in cut["why"]}
    return (Line(LineKind.HEADLINE, "cut_short", tuple(ranks), facts=facts),)


def find(scene: Evidence) -> tuple[Line, ...]:
    """The headline, if every call has its partner."""
    all_ranks = range(len(scene.ends))
    wrong = [rank for rank in all_ranks if not good(scene.ends[rank])]
    facts: dict[str, object] = {"world": len(scene.ends)}
    if {end.kind for end in scene.ends} == {EndKind.FINISHED}:
        facts["pending"] = wrong
        return (Line(LineKind.HEADLINE, "all_finished", tuple(all_ranks), facts=facts),)
    if not wrong:
        runs = tuple(rank for rank in all_ranks if scene.ends[rank].runs)
        return (Line(LineKind.HEADLINE, "all_fit_so_far", runs, facts=facts),)
    # The text may have omitted calls; and a call that never ends does not fit, though the place is
    # not known.
    facts["fits"] = not any(
        scene.ends[rank].kind in _BROKEN or scene.ends[rank].proven for rank in wrong
    )
    facts["out_of_time"] = all(out_of_time(scene.ends[rank]) for rank in wrong)
    return (Line(LineKind.HEADLINE, "same_calls", tuple(wrong), facts=facts),)


def _all_finished(line: Line) -> Text:
    pending = line.facts["pending"]
    if pending:
        return say(
            "{} finished, but {} left a call pending.", every_rank(line.facts["world"]), pending
        )
    return say("{} finished; every call met its counterpart.", every_rank(line.facts["world"]))


def _same_calls(line: Line) -> Text:
    fits = "; every call fits" * bool(line.facts["fits"])
    if line.facts["out_of_time"]:
        return say("{} [was|were] still running when the time was up{}.", line.ranks, fits)
    texts = []
    for group in line.facts["ends"]:
        if not group["good"]:
            texts.append(ends(group["ranks"], group["kind"], group["pending"]))
    return say("{}{}.", listing(texts, "; "), fits)


def _cut_short(line: Line) -> Text:
    if line.facts["interrupted"]:
        return say("{} [was|were] interrupted; until then every call fits.", line.ranks)
    its = "their record" if len(line.ranks) > 1 else "its record"
    return say(
        "{} [was|were] running when {} broke off; until then every call fits.", line.ranks, its
    )


WORDS: Mapping[str, Callable[[Line], Text]] = {
    "all_finished": _all_finished,
    "cut_short": _cut_short,
    "all_fit_so_far": lambda line: say(
        "{}; every call fits so far.", ends(line.ranks, EndKind.UNKNOWN, runs=True)
    ),
    "same_calls": _same_calls,
}
