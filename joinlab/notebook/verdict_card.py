"""The verdict card: how a run ended, why, and how the same case is documented to end."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from joinlab.analysis.verdict import Ended, Verdict, judge
from joinlab.analysis.wording import good, shown, sign
from joinlab.notebook.engines import Engine
from joinlab.timeline import Timeline


def card(timeline: Timeline, documentation: str = "") -> tuple[dict[str, Any], int | None]:
    """What the panel shows: a chip per ending, headline, causes and advice; and the row where the ranks first part.

    card(timeline)[0]["headline"]
    """
    found = judged(timeline)
    told: dict[str, Any] = {
        "ends": [_chip(one) for one in found.endings],
        "headline": shown(found.headline),
        "steps": [shown(step) for step in found.steps],
        "documented": documentation,
    }
    if found.advice is not None:
        told["advice"] = shown(f"{found.advice.do} {found.advice.reason}")
    return told, found.first


@lru_cache(maxsize=128)
def judged(timeline: Timeline) -> Verdict:
    """The verdict on a Timeline: judging takes as long as emulating."""
    return judge(timeline)


def _chip(ended: Ended) -> dict[str, Any]:
    return {"text": shown(ended.text), "sign": sign(ended.ending), "good": good(ended.ending)}


def documented(number: int, counts: Sequence[int], engine: Engine) -> str:
    """How the forum thread documents the ending of a case, and why gloo ends it differently; "" if it does not."""
    from joinlab.cases import DOCUMENTED  # it takes torch with it

    case = DOCUMENTED.get(number)
    if case is None:
        return ""
    told = []
    if len(counts) == 2 and tuple(counts) == (5, 6):
        told.append(("the author saw", case.asker))
    if len(counts) == 2 and counts[1] == counts[0] + 1 and counts[0] in case.answer:
        told.append(("the answer explains", case.answer[counts[0]]))
    if told:
        lines = [f"{who}: rank 0 {ends[0]}; rank 1 {ends[1]}." for who, ends in told]
        text = f"Documented (PyTorch 1.9, NCCL, two GPUs of one machine) {' '.join(lines)}"
    else:
        known = " and ".join(f"({n}, {n + 1})" for n in sorted({*case.answer, 5}))
        text = f"Documented for inputs {known}, not for these."
    return f"{text} {case.gloo}" if engine.backend == "gloo" and case.gloo else text
