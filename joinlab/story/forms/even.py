"""Ranks that did not part: every call met its counterpart, or fits the calls so far."""

from __future__ import annotations

from collections.abc import Sequence

from joinlab.analysis.wording import good
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


def cut_short(evidence: Evidence) -> tuple[Line, ...]:
    """The headline of a job that was interrupted, or whose record broke off, while it went on."""
    cut = evidence.meta.get("cut")
    if cut is None or cut["still_ns"] > LONG_STILL_NS:
        return ()
    if any(end.kind in _BROKEN or end.kind is EndKind.HUNG for end in evidence.ends):
        return ()
    if any(slot.differs for slot in evidence.parting.slots):
        return ()
    ranks = [rank for rank, end in enumerate(evidence.ends) if end.text == cut["why"]]
    return (CutShort(len(evidence.ends), "interrupted" in cut["why"], ranks=tuple(ranks)),)


@form
class AllFinished(Even):
    """pending: ranks of which a call is still pending"""

    pending: Sequence[int]

    def words(self) -> Text:
        everyone = every_rank(self.world)
        if self.pending:
            return say("{} finished, but {} left a call pending.", everyone, self.pending)
        return say("{} finished; every call met its counterpart.", everyone)


class AllFitSoFar(Even):
    def words(self) -> Text:
        return say("{}; every call fits so far.", ends(self.ranks, EndKind.UNKNOWN, runs=True))


@form
class SameCalls(Even):
    """Ranks that did not end well. fits: as far as is known every call fits"""

    fits: bool
    out_of_time: bool

    def words(self) -> Text:
        fits = "; every call fits" * self.fits
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
    if {end.kind for end in evidence.ends} == {EndKind.FINISHED}:
        return (AllFinished(world, wrong, ranks=tuple(all_ranks)),)
    if not wrong:
        runs = tuple(rank for rank in all_ranks if evidence.ends[rank].runs)
        return (AllFitSoFar(world, ranks=runs),)
    # The text may have omitted calls; and a call that never ends does not fit, though the place is
    # not known.
    ends_of_wrong = [evidence.ends[rank] for rank in wrong]
    fits = not any(end.kind in _BROKEN or end.proven for end in ends_of_wrong)
    over = all(map(out_of_time, ends_of_wrong))
    return (SameCalls(world, fits, over, ranks=tuple(wrong)),)
