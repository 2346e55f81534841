"""Ranks that wait for each other in a circle, each in a call that the next one left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from joinlab.story.forms import meeting
from joinlab.story.lines import Line, LineKind
from joinlab.story.scene import Scene
from joinlab.story.words import Text, full, listing, say, sides, who


def find(scene: Scene) -> tuple[Line, ...]:
    """The circle, where there is one."""
    circle = scene.parting.circle
    if not circle:
        return ()
    by_call: dict[tuple[object, ...], list[int]] = {}
    calls = [scene.call(row) for row in circle]
    for call in calls:
        by_call.setdefault((call.name, call.number, call.group, call.site), []).append(call.rank)
    first = {call.rank: call for call in calls}
    some = [sorted({rank for lane in ranks for rank in scene.ranks((lane,))}) for ranks in by_call.values()]
    headline = Line(
        LineKind.HEADLINE,
        "circle",
        tuple(sorted({rank for ranks in some for rank in ranks})),
        tuple(first[ranks[0]] for ranks in by_call.values()),
        facts={"sides": some},
    )
    return (headline, *meeting.causes(scene))


def _words(line: Line) -> Text:
    each = [say("{} in {}", who(ranks), full(line, at)) for at, ranks in enumerate(sides(line))]
    if len(each) == 1:
        return say("{} wait for each other, each in {}.", who(line.ranks), full(line, 0))
    return say("{} wait for each other: {}.", who(line.ranks), listing(each))


WORDS: Mapping[str, Callable[[Line], Text]] = {"circle": _words}
