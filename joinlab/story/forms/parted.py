"""The test where the ranks' ways part, and the values in it, as meta["ways"] has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from joinlab.story.lines import Line
from joinlab.story.scene import Scene
from joinlab.story.words import Text


def find(scene: Scene) -> tuple[Line, ...]:
    """The parting; () where the ways are not known."""
    return ()


WORDS: Mapping[str, Callable[[Line], Text]] = {}
