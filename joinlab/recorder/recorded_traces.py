"""Records the trace of a rank, the lines that it runs, step by step into its log, see
program/traces.py.

Users switch it on: `launch(ways=True)`, `record(ways=True)`. Such a log holds values and names of
the program. Between two calls at most MOST_BETWEEN steps are written; a "cut" stands for the rest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from joinlab.program.log_events import TraceStepped
from joinlab.program.traces import Plain, Trace, TraceStep, Window
from joinlab.recorder.events import EventLog

if TYPE_CHECKING:
    from joinlab.timeline import Timeline  # a rank's process must not import polars

MOST_BETWEEN = 1000
MOST_KEPT = 50_000
"""A reader keeps this many of a rank's last steps."""


class RecordedTrace(Trace):
    """Writes the steps of this thread into the rank's log; `issued()` returns the number of calls
    issued so far."""

    def __init__(self, log: EventLog, issued: Callable[[], int]) -> None:
        super().__init__(issued)
        self._log = log
        self._at = -1
        self._written = 0
        # of the previous step, with its tensors' values
        self._late: Sequence[tuple[str, Plain]] = ()

    def take(self, step: TraceStep) -> None:
        """Write a step at once, since it may be the last. The values of its tensors follow with the
        next step."""
        if self._late:
            self._log.write(TraceStepped(values=list(map(list, self._late))))
        self._late = ()
        if step.issued != self._at:
            self._at, self._written = step.issued, 0
        self._written += 1
        if self._written > MOST_BETWEEN:
            return
        unsure = isinstance(step.values, list)
        self._late = step.values if unsure else ()
        event = "cut" if self._written == MOST_BETWEEN else step.event
        values = [] if unsure else list(map(list, step.values))
        self._log.write(
            TraceStepped(step=[event, step.depth, step.file, step.function, step.line, values])
        )


def take_step(steps: deque[TraceStep], event: TraceStepped, issued: int) -> None:
    """Take an event of a log, after `issued` calls. Raises ValueError if it is not a step of a
    way."""
    match event.step, event.values:
        case [str(event_name), int(depth), str(file), str(function), int(line), list(values)], _:
            steps.append(TraceStep(issued, event_name, depth, file, function, line, _pairs(values)))
        case _, list(values) if steps:
            steps[-1] = steps[-1]._replace(values=_pairs(values))
        case _:
            raise ValueError("no step of a trace")


def _pairs(values: list[Any]) -> tuple[tuple[str, Plain], ...]:
    pairs = tuple((name, value) for name, value in values)
    if not all(
        isinstance(name, str) and isinstance(value, (str, int, float, type(None)))
        for name, value in pairs
    ):
        raise ValueError("a value of another form")
    return pairs


class KeptTraces:
    """Recorded traces, by rank."""

    def __init__(self, steps: Mapping[int, deque[TraceStep]]) -> None:
        self.steps = steps

    def traces(self, _: Timeline, windows: Mapping[int, Window]) -> Mapping[int, Trace] | str:
        """The traces of these ranks, each within its window."""
        traces = {
            rank: Trace.of(self.steps[rank], window)
            for rank, window in windows.items()
            if self.steps.get(rank)
        }
        for rank, trace in traces.items():
            trace.dropped = len(self.steps[rank]) == MOST_KEPT
        return traces


def keep_traces(timeline: Timeline, traces: Mapping[int, deque[TraceStep]]) -> Timeline:
    """Attach these traces to a Timeline, so that its story can find where they diverge; return the
    Timeline."""
    if any(traces.values()):
        timeline.live.traces = KeptTraces(traces)
    return timeline
