"""A rank that did not come to monitored_barrier, which says so itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from joinlab.story.lines import Line, LineKind
from joinlab.story.scene import Scene
from joinlab.story.words import Text, say, who
from joinlab.timeline import EndKind

_MISSING = re.compile(
    r"Ranks? ([\d, ]+) failed to pass monitoredBarrier"
)  # ProcessGroupGloo::monitoredBarrier, v2.13.0


def find(scene: Scene) -> tuple[Line, ...]:
    """The ranks that rank 0's error names."""
    if scene.parting.clash is not None:
        return ()
    for end in scene.ends:
        if end.kind is EndKind.RAISED and (found := _MISSING.search(end.text)):
            missing = tuple(int(rank) for rank in found[1].replace(",", " ").split())
            if all(rank < len(scene.ends) for rank in missing):
                return (Line(LineKind.HEADLINE, "not_come", missing),)
    return ()


WORDS: Mapping[str, Callable[[Line], Text]] = {
    "not_come": lambda line: say("{} did not come to monitored_barrier.", who(line.ranks)),
}
