"""Documented: how the forum thread says that a run of one of its cases ends, beside how it ended here."""

from __future__ import annotations

import re

from joinlab.analysis.source import SourceTexts
from joinlab.documentation import DOCUMENTED
from joinlab.timeline import EndKind, Timeline

IN_A_TRACE = {
    EndKind.FINISHED: "finishes",
    EndKind.HUNG: "hangs",
    EndKind.RAISED: "raises",
    EndKind.KILLED: "is killed",
    EndKind.UNKNOWN: "unknown",
}
"""Endings in the words of the documented traces."""


def _end(then: str) -> str:
    """An ending of the thread; of case 4 with 2 inputs its two reports differ, and the record has both in note form."""
    return "finishes in one report, and raises an error in the other" if ";" in then else then


def documented(timeline: Timeline) -> str:
    """How the thread documents the end of this run, and why this one ended otherwise; "" for what it does not have.

    documented(joinlab.emulate(joinlab.cases.case_1))       # "As documented, on NCCL with PyTorch 1.9."
    """
    number = re.fullmatch(r"case_([1-6])", str(timeline.meta.get("program")))
    if timeline.calls.is_empty():  # not run yet: this would give its end away
        return ""
    text = SourceTexts.of(timeline).program
    if number is None or (text and text.name not in ("cases.py", "the program")):
        return ""
    case, gloo = DOCUMENTED[int(number[1])], timeline.meta.get("backend") == "gloo"
    then = case.ends(timeline.meta.get("inputs") or ())
    here = tuple(IN_A_TRACE[end.kind] for end in timeline.ends)
    if then is None:
        return case.gloo if gloo and set(here) != {"finishes"} else ""
    if here == then:
        return "As documented, on NCCL with PyTorch 1.9."
    said = f"Documented, on NCCL with PyTorch 1.9: rank 0 {then[0]}; rank 1 {_end(then[1])}."
    if gloo:
        return f"{said} {case.gloo}".rstrip()
    if case.join and case.barrier and (timeline.meta.get("emulation") or {}).get("era") == "today":
        return f"{said} Its barrier all-reduced a byte that nobody set; today's is a float zero."
    if case.barrier and here == ("hangs", "hangs") and "emulation" in timeline.meta:
        return f"{said} In the model the broadcast that rebuilds DDP's buckets meets the barrier; no GPU has run it."
    return said
