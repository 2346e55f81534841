"""Ranks that did not part: every call met its counterpart, or fits the calls so far."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from joinlab.analysis.meanings import FAMILY, MEANINGS, parts
from joinlab.analysis.wording import good
from joinlab.ops import counted
from joinlab.story.evidence import Evidence
from joinlab.story.forms.mismatch import out_of_time
from joinlab.story.lines import Headline, Line, form
from joinlab.story.words import Text, ends, every_rank, listing, say
from joinlab.timeline import EndKind

_BROKEN = (EndKind.RAISED, EndKind.KILLED)


LONG_STILL_NS = 5_000_000_000
"""A job that was interrupted after so long without an event may have hung."""


@form
class Even(Headline):
    """Ranks that did not part. world: how many there are"""

    says_ends = True
    world: int


@form
class CutShort(Even):
    interrupted: bool

    def words(self) -> Text:
        if self.interrupted:
            return say("{} [was|were] interrupted; until then every call fits.", self.ranks)
        its = "their record" if len(self.ranks) > 1 else "its record"
        return say(
            "{} [was|were] running when {} broke off; until then every call fits.", self.ranks, its
        )


@form
class NothingRecorded(Even):
    """did: how they ended"""

    did: str

    def words(self) -> Text:
        return say(f"{{}} {self.did}; no call was recorded.", self.ranks)


def cut_short(evidence: Evidence) -> tuple[Line, ...]:
    """The headline of a job that was interrupted, or whose record broke off, while it went on."""
    cut = evidence.meta.get("cut")
    if cut is None or cut["still_ns"] > LONG_STILL_NS:
        return ()
    if any(end.kind in _BROKEN or end.kind is EndKind.HUNG for end in evidence.ends):
        return ()
    if any(slot.differs for slot in evidence.difference.slots):
        return ()
    ranks = evidence.ranks_that(lambda end: end.text == cut["why"])
    interrupted = "interrupted" in cut["why"]
    if interrupted and evidence.timeline.calls.is_empty():
        return (NothingRecorded(len(evidence.ends), "[was|were] interrupted", ranks=tuple(ranks)),)
    return (CutShort(len(evidence.ends), interrupted, ranks=tuple(ranks)),)


@form
class AllFinished(Even):
    """pending: ranks of which a call is still pending; shadows: calls that `joined` ranks issued in
    join() and that met other calls, of the ranks `active`
    """

    pending: Sequence[int]
    shadows: int
    joined: Sequence[int]
    active: Sequence[int]

    def words(self) -> Text:
        everyone = every_rank(self.world)
        if self.pending:
            return say("{} finished, but {} left a call pending.", everyone, self.pending)
        met = "{} finished; every call met its counterpart"
        if not self.shadows:
            return say(met + ".", everyone)
        count = counted(self.shadows, "shadow call")
        did = ": in join(), {} issued {} to match calls of {}."
        return say(met + did, everyone, self.joined, count, self.active)


class AllFitSoFar(Even):
    def words(self) -> Text:
        return say("{}; every call fits so far.", ends(self.ranks, EndKind.UNKNOWN, runs=True))


@form
class SameCalls(Even):
    """Ranks that did not end well. fits: as far as is known every call fits"""

    fits: bool
    out_of_time: bool

    def words(self) -> Text:
        fits = "; every call fits" if self.fits else ""
        if self.out_of_time:
            return say("{} [was|were] still running when the time was up{}.", self.ranks, fits)
        bad = [group for group in self.ends if not group.good]
        texts = [ends(group.ranks, group.kind, group.pending) for group in bad]
        return say("{}{}.", listing(texts, "; "), fits)


def find(evidence: Evidence) -> tuple[Line, ...]:
    """The headline, if every call has its partner."""
    world = len(evidence.ends)
    all_ranks = range(world)
    wrong = [rank for rank in all_ranks if not good(evidence.ends[rank])]
    empty = evidence.timeline.calls.is_empty() and evidence.meta.get("engine") == "recorded"
    if {end.kind for end in evidence.ends} == {EndKind.FINISHED}:
        if empty:
            return (NothingRecorded(world, "finished", ranks=tuple(all_ranks)),)
        shadows = _shadows(evidence.timeline.calls)
        return (AllFinished(world, wrong, *shadows, ranks=tuple(all_ranks)),)
    if not wrong:
        runs = tuple(rank for rank in all_ranks if evidence.ends[rank].runs)
        if empty:
            return (NothingRecorded(world, "[is|are] still running", ranks=runs),)
        return (AllFitSoFar(world, ranks=runs),)
    # The text may have omitted calls; and a call that never ends does not fit, though the place is
    # not known.
    ends_of_wrong = [evidence.ends[rank] for rank in wrong]
    fits = not (empty or any(end.kind in _BROKEN or end.proven for end in ends_of_wrong))
    over = all(map(out_of_time, ends_of_wrong))
    return (SameCalls(world, fits, over, ranks=tuple(wrong)),)


def _shadows(calls: pl.DataFrame) -> tuple[int, list[int], list[int]]:
    """How many calls shadowed other ones, the ranks that issued them, and the ranks whose calls
    they met, if every call met its counterpart. From the columns, since a large run has rows of
    some slots only."""
    sources = {label: parts(label)[1] for label in calls["origin"].drop_nulls().unique()}
    labels = [label for label, source in sources.items() if source in FAMILY]
    shadows = [label for label in labels if MEANINGS[sources[label]].shadows]
    is_shadow, rank = pl.col("origin").is_in(shadows), pl.col("rank")
    issued = calls.filter(pl.col("origin").is_in(labels)).drop_nulls("number")
    slots = issued.group_by("group", "number").agg(
        joined=rank.filter(is_shadow), active=rank.filter(~is_shadow)
    )
    met = slots.filter(pl.col("joined").list.len() > 0, pl.col("active").list.len() > 0)
    joined, active = (
        met[name].explode().unique().sort().to_list() for name in ("joined", "active")
    )
    return int(met["joined"].list.len().sum()), joined, active
