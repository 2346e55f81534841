"""Different calls in one place: of another kind, from another origin, or with other data."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from joinlab.analysis.wording import differing_text
from joinlab.story.forms import meeting
from joinlab.story.lines import Line, LineKind
from joinlab.story.scene import Scene
from joinlab.story.words import Text, listing, noun, say, sides, who

FEW = 3
"""So many sides are named with what each gave."""


def find(scene: Scene) -> tuple[Line, ...]:
    """The sides of the clash, where two of them issued a call."""
    parting, slot = scene.parting, scene.parting.slot
    present = parting.present
    if len(present) < 2:
        return ()
    rows = [parting.call(slot, side[0]) for side in present]
    differs = parting.differs(slot)
    data = bool(differs) and not {"op", "origin"} & set(differs)
    facts: dict[str, object] = {"sides": scene.sides(present)}
    if data:
        facts |= {"differs": list(differs), "given": [meeting.given(row, differs) for row in rows]}
    headline = Line(
        LineKind.HEADLINE,
        "other_data" if data else "other_call",
        tuple(sorted(rank for side in present for rank in scene.ranks(side))),
        tuple(map(scene.call, rows)),
        lines=scene.lines_at(slot),
        facts=facts,
    )
    return (headline, *meeting.causes(scene))


def _other_call(line: Line) -> Text:
    told = [say("{} called {}", who(ranks), noun(line, at)) for at, ranks in enumerate(sides(line))]
    return say("{}, where {}.", told[0], listing(told[1:]))


def _other_data(line: Line) -> Text:
    if len(line.calls) > FEW:
        return say(
            "{} called {}, but differ in {}.", who(line.ranks), noun(line, 0), differing_text(line.facts["differs"])
        )
    given = line.facts["given"]
    rest = [say("{} with {}", who(ranks), given[at]) for at, ranks in enumerate(sides(line)) if at]
    return say("{} called {} with {}, {}.", who(sides(line)[0]), noun(line, 0), given[0], listing(rest))


WORDS: Mapping[str, Callable[[Line], Text]] = {"other_call": _other_call, "other_data": _other_data, **meeting.WORDS}
