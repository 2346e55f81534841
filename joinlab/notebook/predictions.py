"""Predictions: what a learner says of each rank before the run is shown, and how much of it was right."""

from __future__ import annotations

from dataclasses import dataclass

from joinlab.timeline import Ending, EndKind

WORDS = ("finishes", "hangs", "raises")
"""What can be said of a rank. One that the backend aborts counts as one that raises: an error ended it."""

STOPPED = ("stopped on request", "interrupted by the user", "ended by joinlab")
"""Endings that we brought about begin with these words: no prediction is right or wrong about them."""


@dataclass(frozen=True, slots=True)
class Score:
    """What was said of one run, and how it ended: one word of WORDS a rank; `ended` is None where we ended the rank."""

    said: tuple[str, ...]
    ended: tuple[str | None, ...]

    @property
    def right(self) -> tuple[bool, ...]:
        """Per rank, whether what was said came true."""
        return tuple(said == ended for said, ended in zip(self.said, self.ended, strict=True))


def word(ending: Ending) -> str | None:
    """An ending as one of WORDS; None if it is our doing.

    >>> word(Ending("hung", proven=True)), word(Ending("finished", pending=True)), word(Ending("killed"))
    ('hangs', 'finishes', 'raises')
    """
    if ending.kind is EndKind.KILLED and ending.text.startswith(STOPPED):
        return None
    return {EndKind.FINISHED: "finishes", EndKind.HUNG: "hangs"}.get(ending.kind, "raises")
