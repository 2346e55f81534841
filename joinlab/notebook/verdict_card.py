"""The verdict card: how a run ended, why, and how the same case is documented to end."""

from __future__ import annotations

from typing import Any

from joinlab.analysis.folding import fold
from joinlab.analysis.wording import good, shown, sign
from joinlab.story.judge import story_of
from joinlab.story.scene import Scene
from joinlab.story.story import Story
from joinlab.timeline import Timeline, derived


def card(timeline: Timeline) -> tuple[dict[str, Any], int | None]:
    """What the panel shows: a chip per ending, headline and causes; and the row where the ranks first part.

    card(timeline)[0]["headline"]
    """
    story, first = judged(timeline)
    on = (timeline.meta.get("engine"), timeline.meta.get("backend"))
    told: dict[str, Any] = {
        "ends": [
            {"text": shown(text), "sign": sign(end), "good": good(end)} for text, end in story.chips(timeline.ends)
        ],
        "headline": shown(story.sentence),
        "steps": [shown(step) for step in story.steps],
        "documented": story.documented,
        "eras": bool(story.documented) and on == ("emulated", "nccl"),
    }
    return told, None if first is None else fold(timeline).numbers[first]


@derived
def judged(timeline: Timeline) -> tuple[Story, int | None]:
    """The story of a Timeline, and the row where its ranks first part: judging takes as long as emulating."""
    scene = Scene(timeline)
    return story_of(scene), scene.parting.first
