"""Gradients of different inputs were averaged: each rank left out the all-reduce of the other's input, by no_sync()."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from joinlab.analysis.wording import at_input
from joinlab.program.parting import are_gradients
from joinlab.story.forms import meeting
from joinlab.story.lines import Line, LineKind
from joinlab.story.scene import Scene
from joinlab.story.words import Text, listing, say, sides, who


def find(scene: Scene) -> tuple[Line, ...]:
    """The first gradients that met of two inputs, where both ranks ran the backward pass of both."""
    if scene.parting.clash is not None:
        return ()
    ran: dict[int, set[int]] = {}
    for span in scene.timeline.rows("spans"):
        if span["name"] == "backward" and span["input"] is not None:
            ran.setdefault(span["rank"], set()).add(span["input"])
    sent: dict[int, set[int]] = {}
    for row in scene.folding.matched.rows:
        if are_gradients([row]) and row["input"] is not None:
            sent.setdefault(row["rank"], set()).add(row["input"])
    for slot in scene.parting.slots:
        rows = [scene.parting.call(slot, rank) for rank in slot.calls]
        by_input: dict[int, list[int]] = {}
        for row in rows:
            if are_gradients([row]) and row["input"] is not None:
                by_input.setdefault(row["input"], []).append(row["rank"])
        if len(by_input) != 2:
            continue
        (one, mine), (other, theirs) = by_input.items()
        if not all(_left_out(ran, sent, rank, other) for rank in mine):
            continue
        if all(_left_out(ran, sent, rank, one) for rank in theirs):
            present = [tuple(mine), tuple(theirs)]
            calls = [scene.parting.call(slot, side[0]) for side in present]
            headline = Line(
                LineKind.HEADLINE,
                "out_of_phase",
                tuple(sorted(rank for side in present for rank in scene.ranks(side))),
                tuple(map(scene.call, calls)),
                facts={
                    "sides": scene.sides(present),
                    "inputs": [at_input(one, scene.meta), at_input(other, scene.meta)],
                },
            )
            return (headline, meeting.met(scene, slot, present, calls))
    return ()


def _left_out(ran: Mapping[int, set[int]], sent: Mapping[int, set[int]], rank: int, number: int) -> bool:
    """Whether a rank ran the backward pass of an input, and issued no all-reduce for it."""
    return number in ran.get(rank, ()) and number not in sent.get(rank, ())


def _words(line: Line) -> Text:
    told = [say("{}'s of {}", who(ranks), of) for ranks, of in zip(sides(line), line.facts["inputs"], strict=True)]
    return say("Gradients of different inputs were averaged: {}.", listing(told))


WORDS: Mapping[str, Callable[[Line], Text]] = {"out_of_phase": _words}
