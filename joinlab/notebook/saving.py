"""What the bench's buttons save: the picture, and the Python call that gives the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from joinlab.errors import ProgramError
from joinlab.notebook.stills import drawn
from joinlab.timeline import Timeline


def saved(what: str, timeline: Timeline, case: int) -> dict[str, str]:
    """What the browser saves: {"save", "name", "text"}. A PNG is drawn there, from the text of the SVG.

    what  "PNG", "SVG" or "call"
    case  the number of the case; 0 for a program of one's own
    """
    meta = timeline.meta
    counts = "-".join(map(str, meta["inputs"]))
    name = f"{meta['program']}_{counts}_{meta['engine']}_{meta['backend']}.{what.lower()}"
    if what in ("PNG", "SVG"):
        return {"save": what, "name": name, "text": drawn(timeline)}
    if what == "call":
        return {"save": what, "name": "", "text": call(timeline, case)}
    raise ProgramError(f"a PNG, SVG or call can be saved; got {what!r}")


def call(timeline: Timeline, case: int) -> str:
    """The Python call that gives this run.

    >>> import joinlab
    >>> call(joinlab.emulate(joinlab.cases.case_4, (5, 6)), 4)
    'joinlab.emulate(joinlab.cases.case_4, inputs=(5, 6), backend="nccl")'
    """
    meta = timeline.meta
    program = f"joinlab.cases.case_{case}" if case else str(meta["program"])
    counts = tuple(meta["inputs"])
    emulation: Mapping[str, Any] = {**(meta.get("emulation") or {})}
    known = {"era": "today", "barrier_value": 7, "pad": 0}
    options = "".join(
        f", {name}={emulation[name]!r}".replace("'", '"')
        for name, value in known.items()
        if emulation.get(name, value) != value
    )
    verb = "launch" if meta["engine"] == "launched" else "emulate"
    return f'joinlab.{verb}({program}, inputs={counts}, backend="{meta["backend"]}"{options})'
