"""Predictions: a learner's prediction for each rank before the run is shown, and its score."""

from __future__ import annotations

from typing import NamedTuple

from joinlab.timeline import CUT, ON_REQUEST, Ending, EndKind

WORDS = ("finishes", "hangs", "raises")
"""Possible predictions for a rank. One that the backend aborts counts as one that raises, since an
error ended it."""

STOPPED = (*ON_REQUEST, CUT)
"""Prefixes of endings that joinlab caused; excluded from scoring."""


class Score(NamedTuple):
    """The prediction for one run, and how it ended: one of WORDS per rank; None in `ended`: joinlab
    ended the rank."""

    predicted: tuple[str, ...]
    ended: tuple[str | None, ...]

    @property
    def right(self) -> tuple[bool, ...]:
        """Per rank, whether the prediction came true."""
        return tuple(word == ended for word, ended in zip(self.predicted, self.ended, strict=True))


def word(ending: Ending) -> str | None:
    """An ending as one of WORDS; None if joinlab caused it.

    >>> word(Ending("hung", proven=True)), word(Ending("finished", pending=True)), word(Ending("killed"))
    ('hangs', 'finishes', 'raises')
    """
    if ending.kind is EndKind.KILLED and ending.text.startswith(STOPPED):
        return None
    return {EndKind.FINISHED: "finishes", EndKind.HUNG: "hangs"}.get(ending.kind, "raises")
