"""The judge makes the Story of a Timeline. Terminal, page, view, bench, `watch` and `diagnose` all
show this one.

It reads off the Timeline which calls met, from which lines, how the ranks ended and who waits for
whom. Each kind of divergence has a module in `joinlab.story.forms`.
"""

from __future__ import annotations

from dataclasses import replace

from joinlab.analysis.folding import Folding
from joinlab.analysis.wording import by_key, good
from joinlab.errors import LaunchError, ProgramError
from joinlab.story.differences import divergence_of, has_keys
from joinlab.story.evidence import Evidence
from joinlab.story.forms import cause_of, divergence, even, fates, fix, notes, standing
from joinlab.story.lines import EndingLine, Headline, Line, RankEnds
from joinlab.story.story import Story
from joinlab.timeline import EndKind, Timeline, TraceSource, expect_timeline

SHORT_S = 10.0
"""A launch that took longer is not emulated unasked."""

_OVERRUN = "op.preamble.length <= op.nbytes"
"""Gloo's own words for aborting a process that is sent more than its call has room for; what else
killed a rank may do more harm in an emulation."""

_PROVENANCE = {"emulated": "modelled", "launched": "recorded", "recorded": "recorded"}
# of a bench that launches
_PROVENANCE |= {"not run yet": "not run yet", "running": "running"}


def diagnose(timeline: Timeline, folding: Folding | None = None, fix: bool = True) -> Story:
    """Say what happened in a run, and how each rank ended and why.

    folding  fold(timeline), or another folding of it
    fix      False: neither look for a fix nor say one, for a learner who is to find it

    The first call for a failed run that this process emulated emulates it again, for a few seconds
    at most: to see where its ranks' traces diverge, and to try fixes. So does the first call for one that
    it launched on gloo, unless that took more than 10 s or did something that a second run would
    do again (meta["side_effects"]); the story then says that it was emulated. Raises ProgramError
    for anything but a Timeline.

        story = joinlab.diagnose(timeline)
        print(story)
        story.ranks[1].proven               # True: the rule shows that its call can never complete
    """
    expect_timeline(timeline, "diagnose")
    return story_of(with_findings(Evidence(timeline if fix else without_fixes(timeline), folding)))


def without_fixes(timeline: Timeline) -> Timeline:
    """The same run, of which story and picture say what went wrong, and not how to mend it."""
    copy = replace(timeline, meta={**timeline.meta, "fixes_hidden": True})
    copy.live.traces, copy.live.rerun = timeline.live.traces, timeline.live.rerun
    return copy


def with_findings(evidence: Evidence) -> Evidence:
    """The evidence with where the traces diverge and what fixes it, which the first call finds and
    stores in the Timeline's meta."""
    timeline = evidence.timeline
    traces, timeline.live.traces = timeline.live.traces, None
    if traces is not None:
        evidence = _follow(evidence, traces)
    if _is_emulated_unasked(timeline):
        _look_at_emulation(timeline)
        evidence = Evidence(timeline, evidence.folding)
    return evidence


def _follow(evidence: Evidence, source: TraceSource) -> Evidence:
    """The evidence with where the traces diverge; find, emulated, what mends the run."""
    timeline = evidence.timeline
    divergence = divergence_of(evidence, cause_of(evidence)[0], source)
    if divergence is not None:
        timeline.meta["parting"] = divergence
        evidence = Evidence(timeline, evidence.folding)
    if timeline.meta.get("engine") == "emulated" and not timeline.meta.get("fixes_hidden"):
        from joinlab.story import fixes  # needs torch, which reading a file does not

        fixes.find_fixes(evidence, source)
    return evidence


def _is_emulated_unasked(timeline: Timeline) -> bool:
    """Whether this is a launch of which an emulation may say more, since it failed, selects data by keys,
    or ends with replicas that differ, and whose program may simply be run again: without GPUs, short,
    without side effects, and without a rank that may be in an endless loop."""
    meta = timeline.meta
    return (
        timeline.live.rerun is not None
        and meta["engine"] == "launched"
        and meta["backend"] == "gloo"
        and meta["seconds"] <= SHORT_S
        and not meta.get("side_effects")
        and (not all(map(good, timeline.ends)) or has_keys(timeline) or "replicas" in meta)
        and all(_OVERRUN in end.text for end in timeline.ends if end.kind is EndKind.KILLED)
        and all(end.proven for end in timeline.ends if end.kind is EndKind.HUNG)
    )


def _look_at_emulation(timeline: Timeline) -> None:
    """Emulate a launched program. If it ends as it did with the same calls, what is found there
    holds for the launch: where the traces diverge, and the fixes that were tried."""
    rerun = timeline.live.rerun
    assert rerun is not None
    try:
        emulated = rerun()
    except (LaunchError, ProgramError) as refusal:
        timeline.meta["not_emulated"] = str(refusal)
        return
    timeline.live.rerun = lambda: emulated
    if _outcome(emulated) != _outcome(timeline):
        return
    timeline.live.rerun = None
    emulated.meta["fixes_hidden"] = timeline.meta.get("fixes_hidden", False)
    with_findings(Evidence(emulated))
    if "parting" in emulated.meta and "parting" not in timeline.meta:
        timeline.meta["parting"] = emulated.meta["parting"]
        timeline.meta["parting_emulated"] = True
    if "replicas" in timeline.meta and "replicas" in emulated.meta:
        timeline.meta["replicas"] = {**emulated.meta["replicas"], "emulated": True}
    _take_fixes(timeline, emulated)


def _take_fixes(timeline: Timeline, emulated: Timeline) -> None:
    timeline.meta.setdefault("fixes", emulated.meta.get("fixes", []))
    if emulated.meta.get("fixes_cut"):
        timeline.meta["fixes_cut"] = True
    timeline.live.mended = emulated.live.mended


def _outcome(timeline: Timeline) -> tuple[list[object], list[tuple[object, ...]]]:
    """How the ranks ended, and the calls that they issued, in each group in order. Where a rank
    stood is left out if it was killed: gloo's thread aborts the process while the program's own is
    still on its way into the wait, or in it."""
    columns = ["group", "rank", "seq", "op", "origin", "call_site"]
    ends: list[object] = []
    for end in timeline.ends:
        killed = end.kind is EndKind.KILLED
        ends.append(end.kind if killed else (end.kind, end.call, end.group))
    return ends, timeline.calls.select(columns).sort(columns).rows()


def mend(timeline: Timeline) -> Timeline | None:
    """The run with the fix of its story, emulated; None without one, or where it is hidden. Of a
    launched run it is looked for now, and the story then shows it.

    Raises like `emulate` if the program cannot be emulated.
    """
    if timeline.meta.get("fixes_hidden"):
        return None
    live = timeline.live
    if live.mended is None and live.rerun is not None:
        rerun, live.rerun = live.rerun, None
        emulated = rerun()
        diagnose(emulated)
        _take_fixes(timeline, emulated)
    return live.mended


def tell(timeline: Timeline) -> Story:
    """The story from the Timeline alone, without emulating anything."""
    return story_of(Evidence(timeline))


def story_of(evidence: Evidence) -> Story:
    """The story of this evidence, for callers that need the evidence, too."""
    headline, *causes = cause_of(evidence)
    assert isinstance(headline, Headline)
    failed = set(evidence.timeline.calls.drop_nulls(["error", "number"])["rank"])
    caught = tuple(rank for rank in sorted(failed) if good(evidence.ends[rank]))
    headline = replace(headline, ends=_endings(evidence), caught=caught)
    healthy = isinstance(headline, even.Even) and all(map(good, evidence.ends))
    # ranks that all finished have not parted
    further_forms = (
        *(() if healthy else (divergence,)),
        standing,
        *(() if evidence.meta.get("fixes_hidden") else (fix,)),
        fates,
        notes,
    )
    lines: tuple[Line, ...] = (
        headline,
        *causes,
        *(line for form in further_forms for line in form.find(evidence)),
    )
    names = evidence.meta.get("rank_names")
    if names:
        lines = tuple(replace(line, names=names) for line in lines)
    ranks = tuple(_end(evidence, rank) for rank in range(len(evidence.ends)))
    return Story(lines, ranks, _PROVENANCE.get(str(evidence.meta.get("engine")), "imported"))


def _endings(evidence: Evidence) -> tuple[RankEnds, ...]:
    """How all ranks ended, those that ended alike together."""
    groups = by_key(
        ((end.how, end.pending, end.runs), rank) for rank, end in enumerate(evidence.ends)
    )
    return tuple(
        RankEnds(tuple(ranks), *how, good(evidence.ends[ranks[0]])) for how, ranks in groups.items()
    )


def _end(evidence: Evidence, rank: int) -> EndingLine:
    end, key = evidence.ends[rank], evidence.awaited(rank)
    if key is None:
        call = None
    else:
        call = evidence.call(evidence.matched.row_of[key])
    return EndingLine(rank, end.kind.value, end.proven, end.pending, call, end.text)
