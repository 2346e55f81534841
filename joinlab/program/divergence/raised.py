"""Exceptions on the way from a test to the next call, and what became of them."""

from __future__ import annotations

import linecache
from collections.abc import Sequence
from itertools import takewhile

from joinlab.program.branches import guards_around
from joinlab.program.divergence import Branch, Test
from joinlab.program.divergence.fork import index_of
from joinlab.program.traces import TraceStep


def erred_at(steps: Sequence[TraceStep]) -> TraceStep | None:
    """Where the exception was raised that ended a trace; None if none did."""
    raised = None
    for step in takewhile(lambda step: step.event in ("raise", "return"), reversed(steps)):
        if step.event == "raise":
            raised = step
    return raised


def raised_behind(rank: int, steps: Sequence[TraceStep], test: TraceStep) -> Test | None:
    """The first exception that a rank raised on its way from a test to its next call, unless it
    ended the rank."""
    after = list(
        takewhile(lambda step: step.issued == test.issued, steps[index_of(test, steps) + 1 :])
    )
    raised = (index for index, step in enumerate(after) if step.event == "raise")
    first = next(
        (index for index in raised if index and after[index].values[0][1] != "StopIteration"), None
    )
    if first is None:
        fate = None
    else:
        fate = _fate(after[first], after[first + 1 :], len(after) < len(steps))
    if first is None or fate is None:
        return None
    step = after[first]
    kind = str(step.values[0][1])
    ending, line, location = fate
    side: Branch = {
        "ranks": [rank],
        "how": ending,
        "line": line,
        "text": f"{kind} {location}".strip(),
        "issued": step.issued,
    }
    text = linecache.getline(step.file, step.line).strip()
    return {"file": step.file, "line": step.line, "text": text, "values": [], "sides": [side]}


def _fate(
    raised: TraceStep, after: Sequence[TraceStep], goes_on: bool
) -> tuple[str, int, str] | None:
    """What became of an exception: how, the line, and where that is; None if it ended the rank.

    It is in flight in `finally`, in `__exit__` and in a generator that `with` resumes, however many
    lines they run. A function that it leaves is followed by a "raise" in its caller, unless a
    `return` in `finally` swallowed it. `goes_on`: the rank issues a call behind these steps.
    """
    current, passed, handler = raised, raised.line, None
    for step in after:
        if step.depth > current.depth:
            continue
        if step.event == "call" and handler is None:  # from outside the program, as atexit does
            return None
        if handler is not None and (step.depth < current.depth or step.line not in handler):
            return "caught", handler.start, ""
        text = linecache.getline(step.file, step.line).strip()
        if step.event == "raise" or (handler is not None and text.startswith("raise")):
            current, passed, handler = step, step.line, None  # a bare `raise` is no event
            continue
        if step.depth < current.depth:
            return "swallowed", passed, ""
        if step.event != "line" or handler is not None:
            continue
        guards = guards_around(current.file, current.line)
        inside = (lines for guard in guards for lines in guard.handlers if step.line in lines[1:])
        handler = next(inside, None)
        if handler is not None:
            if text.startswith("raise"):
                current, handler = step, None
        elif any(step.line in lines for guard in guards for lines in guard.cleanup):
            passed = step.line
        else:
            return "swallowed", passed, ""
    if handler is not None:
        return "caught", handler.start, ""
    last = after[-1] if after else raised
    if not goes_on or last.event != "line" or last is current:
        return None
    return "in flight", last.line, "finally" if last.depth == current.depth else last.function
