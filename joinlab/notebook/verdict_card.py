"""The verdict card: how a run ended, why, and how the same case is documented to end."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from joinlab.analysis.large import is_large, large
from joinlab.analysis.verdict import Ended, Verdict, judge
from joinlab.analysis.wording import good, shown, sign
from joinlab.timeline import Timeline


def card(timeline: Timeline) -> tuple[dict[str, Any], int | None]:
    """What the panel shows: a chip per ending, headline, causes and advice; and the row where the ranks first part.

    card(timeline)[0]["headline"]
    """
    found = judged(timeline)
    on = (timeline.meta.get("engine"), timeline.meta.get("backend"))
    told: dict[str, Any] = {
        "ends": [_chip(one) for one in found.endings],
        "headline": shown(found.headline),
        "steps": [shown(step) for step in found.steps],
        "documented": found.then,
        "eras": bool(found.then) and on == ("emulated", "nccl"),
    }
    if found.advice is not None:
        told["advice"] = shown(str(found.advice))
    if found.first is None or not is_large(timeline):
        return told, found.first
    whole = large(timeline)
    return told, whole.folding.numbers(whole.short)[found.first]


@lru_cache(maxsize=128)
def judged(timeline: Timeline) -> Verdict:
    """The verdict on a Timeline: judging takes as long as emulating."""
    return judge(timeline)


def _chip(ended: Ended) -> dict[str, Any]:
    return {"text": shown(ended.text), "sign": sign(ended.ending), "good": good(ended.ending)}
