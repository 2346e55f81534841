"""Gradients that met from different lines, though nothing hangs: what was averaged may be of two models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from joinlab.program.parting import are_gradients, makes_a_model
from joinlab.story.forms import meeting
from joinlab.story.lines import Line, LineKind
from joinlab.story.scene import Scene
from joinlab.story.words import Text, at_place, listing, say, sides, who


def find(scene: Scene) -> tuple[Line, ...]:
    """The first gradients that met from two lines, of two models, without join(), whose shadows have lines."""
    parting = scene.parting
    if parting.clash is not None or parting.joins:
        return ()
    made = Counter((row["group"], row["rank"]) for row in scene.folding.matched.rows if makes_a_model(row))
    for slot in parting.slots:
        rows = [parting.call(slot, rank) for rank in slot.calls]
        by_line: dict[str, list[int]] = {}
        for row in rows:
            if are_gradients([row]) and row["call_site"]:
                by_line.setdefault(row["call_site"], []).append(row["rank"])
        if len(by_line) > 1 and all(made[slot.group, rank] > 1 for rank in slot.calls):
            present = [tuple(ranks) for ranks in by_line.values()]
            calls = [parting.call(slot, side[0]) for side in present]
            headline = Line(
                LineKind.HEADLINE,
                "other_lines",
                tuple(sorted(rank for side in present for rank in scene.ranks(side))),
                tuple(map(scene.call, calls)),
                facts={"sides": scene.sides(present)},
            )
            return (headline, meeting.met(scene, slot, present, calls))
    return ()


def _words(line: Line) -> Text:
    told = [say("{}'s {}", who(ranks), at_place(line, at)) for at, ranks in enumerate(sides(line))]
    return say("Gradients from different lines were averaged: {}.", listing(told))


WORDS: Mapping[str, Callable[[Line], Text]] = {"other_lines": _words}
