"""Fixes: an edit of the program's text, and what was seen when it was tried."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from joinlab.story.lines import Line
from joinlab.story.scene import Scene
from joinlab.story.words import Text, say


def find(scene: Scene) -> tuple[Line, ...]:
    """The edits that were tried."""
    return ()


def _words(line: Line) -> Text:
    edit = line.edits[0]
    if edit.tried is None:
        return say("Not tried; {} tries it.", edit.how) if edit.how else say("Not tried.")
    return say(f"Tried: every rank finishes, for {edit.tried.finished} of {edit.tried.counts} counts of inputs.")


WORDS: Mapping[str, Callable[[Line], Text]] = {"edit": _words}
