"""The forms of a story's lines. A module has the finders of one kind of parting, and the forms of
line that they make: classes of facts, each with its words.

To add a kind of parting, add a module to this folder and to `finders`, at its place in the order:

    class Mine(Headline):
        def words(self) -> Text:
            return say("{} wait[s|] in {}.", self.ranks, self.full(0))

    def find(evidence: Evidence) -> tuple[Line, ...]:      # the headline and its causes; () if this did not happen
        sides = ...                                     # the ranks of each side; none: return ()
        return (Mine(**evidence.about(sides, calls)), *meeting.causes(evidence))

Its test is a program in tests/material/unseen, with the facts about it in table.toml. If an edit
fixes it, add a generator of edited texts to `joinlab/story/fixes.py`, and a sentence about the edit
to DOES of `fix`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

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


def finders(evidence: Evidence) -> Iterator[Finder]:
    """The finders in order; the first that finds something gives the headline and its causes."""
    yield from (
        pasted.find,
        even.cut_short,
        misused.grouped,
        standing.apart,
        kept_waiting.find,
    )
    yield from () if evidence.parting.clash is not None else silent.FIRST
    yield swapped.find
    yield from (
        mismatch.FINDERS
        if evidence.parting.clash is not None
        else (*silent.FINDERS, mismatch.circle, misused.find, even.find)
    )


def cause_of(evidence: Evidence) -> tuple[Line, ...]:
    return next(filter(None, (find(evidence) for find in finders(evidence))))
