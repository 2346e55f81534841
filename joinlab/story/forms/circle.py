"""Ranks that wait for each other in a circle, each in a call that the next one left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from joinlab.ops import POINT_TO_POINT
from joinlab.story.forms import meeting
from joinlab.story.lines import Line, LineKind
from joinlab.story.scene import Scene
from joinlab.story.words import Text, full, listing, say, sides, who
from joinlab.timeline import CallRow


def find(scene: Scene) -> tuple[Line, ...]:
    """The circle, where there is one."""
    circle = scene.parting.circle or _crossed(scene)
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
        tuple(
            first[ranks[0]] if len(ranks) == 1 else replace(first[ranks[0]], peer=None) for ranks in by_call.values()
        ),
        facts={"sides": some},
    )
    return (headline, *(meeting.causes(scene) if scene.parting.circle else ()))


def _crossed(scene: Scene) -> tuple[CallRow, ...]:
    """Sends and recvs that ranks left pending: each stands before the one that the next rank waits for."""
    waits: dict[int, CallRow] = {}
    for rank, end in enumerate(scene.ends):
        key = scene.awaited(rank) if end.pending and scene.parting.clash is None else None
        if key is not None and (row := scene.matched.row_of[key])["op"] in POINT_TO_POINT:
            slot, peer = scene.slot_of[key], row["peer"]
            if peer in slot.calls and scene.parting.call(slot, peer)["started_ns"] is None:
                waits[rank] = row
    path: list[int] = []
    at = next(iter(waits), None)
    while at in waits and at not in path:
        path.append(at)
        at = waits[at]["peer"]
    return tuple(waits[rank] for rank in path[path.index(at) :]) if at in path else ()


def _words(line: Line) -> Text:
    each = [say("{} in {}", who(ranks), full(line, at)) for at, ranks in enumerate(sides(line))]
    if len(each) == 1:
        return say("{} wait for each other, each in {}.", who(line.ranks), full(line, 0))
    return say("{} wait for each other: {}.", who(line.ranks), listing(each))


WORDS: Mapping[str, Callable[[Line], Text]] = {"circle": _words}
