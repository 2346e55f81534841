"""Repeats a failed emulation, to see which lines its ranks ran, or with an edited program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from joinlab.backend.model import Knobs
from joinlab.emulator.run import Emulation
from joinlab.emulator.scheduler import current
from joinlab.errors import LaunchError, ProgramError
from joinlab.program.program import Program
from joinlab.program.traces import MAX_STEPS, Trace, Window, traced_by
from joinlab.timeline import Timeline


@dataclass(frozen=True)
class Rerun:
    """The arguments of an emulation, to run it again."""

    program: Program
    counts: Sequence[int]
    seeds: Sequence[int | None]
    knobs: Knobs

    def run(self, program: Program, counts: Sequence[int], timeout_s: float) -> Timeline:
        """Emulate an edited program with these counts and the settings of the run."""
        knobs = replace(self.knobs, timeout_s=min(timeout_s, self.knobs.timeout_s))
        return Emulation(program, counts, self.seeds, knobs).go()

    def traces(
        self, timeline: Timeline, windows: Mapping[int, Window]
    ) -> Mapping[int, Trace] | str:
        """The traces of these ranks in a second run: {} if that run differs; a text that says why it
        is impossible."""
        if current() is not None:
            return {}
        tracer = traced_by()
        if tracer:
            return f"{tracer} already traces this program"
        emulation = Emulation(self.program, self.counts, self.seeds, self.knobs)
        most = max(MAX_STEPS // len(windows), 1000)
        traces = emulation.traces = {
            rank: Trace(emulation.hosts[rank].calls.__len__, window, most)
            for rank, window in windows.items()
        }
        try:
            second = emulation.go()
        except (LaunchError, ProgramError):
            return {}
        if second.ends == timeline.ends and second.calls.equals(timeline.calls):
            return traces
        return {}
