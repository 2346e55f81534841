"""A question that was answered by a call that is no answer: "anyone left?" met a barrier."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from joinlab.story.forms import meeting
from joinlab.story.lines import Line, LineKind
from joinlab.story.scene import Scene
from joinlab.story.words import Text, noun, say, sides, told, who


def find(scene: Scene) -> tuple[Line, ...]:
    """Two calls that met, of which one asks and has read the other's value."""
    parting, slot = scene.parting, scene.parting.slot
    present = parting.present
    if len(present) < 2 or not slot.met:
        return ()
    for asker, answer in ((0, 1), (1, 0)):
        asked, answered = (parting.call(slot, present[at][0]) for at in (asker, answer))
        calls = scene.call(asked), scene.call(answered)
        if calls[0].name.endswith("?") and asked["completed_ns"] is not None and asked["value_out"]:
            both = [present[asker], present[answer]]
            headline = Line(
                LineKind.HEADLINE,
                "wrong_answer",
                tuple(sorted(rank for side in both for rank in scene.ranks(side))),
                calls,
                lines=scene.lines_at(slot),
                values=(meeting.value_of(scene, present[asker], asked),),
                facts={"sides": scene.sides(both)},
            )
            return (headline, *meeting.causes(scene))
    return ()


def _words(line: Line) -> Text:
    asker, answer = sides(line)[:2]
    return say(
        "{} asked: {} {}'s {} answered.", who(asker), noun(line, 0, quote=False), told((who(answer),)), noun(line, 1)
    )


WORDS: Mapping[str, Callable[[Line], Text]] = {"wrong_answer": _words}
