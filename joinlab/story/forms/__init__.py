"""The forms of a story's lines. A module has the finders of one kind of divergence, and the forms of
line that they make: classes of facts, each with its words.

To add a kind of divergence, add a module to this folder and its finder to the row of the relation
that the ranks' calls have there, which `FirstDifference` gives:

    class Mine(Headline):
        def words(self) -> Text:
            return say("{} wait[s|] in {}.", self.ranks, self.full(0))

    def find(evidence: Evidence) -> tuple[Line, ...]:      # the headline and its causes; () if this did not happen
        sides = ...                                     # the ranks of each side; none: return ()
        return (Mine(**evidence.about(sides, calls)), *meeting.causes(evidence))

Its test is a program in tests/material/unseen, with the facts about it in table.toml. If an edit
fixes it, add a generator of edited texts to `joinlab/story/edits/`, and a sentence about the edit
to DOES of `fix`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from joinlab.analysis.first_difference import Relation
from joinlab.story.evidence import Evidence
from joinlab.story.forms import (
    even,
    kept_waiting,
    mismatch,
    misused,
    pasted,
    silent,
    standing,
    swapped,
)
from joinlab.story.lines import Line

Finder = Callable[[Evidence], tuple[Line, ...]]

FIRST: tuple[Finder, ...] = (
    pasted.find,
    pasted.refused,
    even.cut_short,
    misused.grouped,
    standing.outside_calls,
    kept_waiting.find,
)
"""Finders of what tells more than the relation of the calls."""

BY_RELATION: Mapping[Relation, tuple[Finder, ...]] = {
    Relation.SAME: (
        silent.not_come,
        silent.early,
        swapped.other_key,
        silent.left_over,
        silent.out_of_phase,
        silent.two_models,
        silent.replicas,
        mismatch.circle,
        misused.find,
        even.find,
    ),
    Relation.ORDER: (swapped.other_order,),
    Relation.ANSWER: (mismatch.wrong_answer,),
    Relation.MORE: (mismatch.extra,),
    Relation.CIRCLE: (mismatch.circle,),
    Relation.SPLITS: (silent.splits,),
    Relation.DATA: (mismatch.other_data,),
    Relation.CALL: (mismatch.other_call,),
    Relation.ALONE: (silent.not_come, misused.left_behind, mismatch.alone),
}


def finders(evidence: Evidence) -> Iterator[Finder]:
    """The finders in order; the first that finds something gives the headline and its causes."""
    yield from FIRST
    yield from BY_RELATION[evidence.difference.relation]


def cause_of(evidence: Evidence) -> tuple[Line, ...]:
    return next(filter(None, (find(evidence) for find in finders(evidence))))
