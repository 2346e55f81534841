"""Again: an emulation that went wrong is run once more, to see which lines its ranks ran before they parted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from joinlab.emulator.model import Knobs
from joinlab.emulator.run import Emulation
from joinlab.emulator.scheduler import current
from joinlab.errors import LaunchError, ProgramError
from joinlab.program.parting import Parting, differing, parting_of
from joinlab.program.program import Program
from joinlab.program.steps import BY_BACKWARD
from joinlab.program.ways import MAX_STEPS, Way, traced_by
from joinlab.timeline import EndKind, Timeline

MAX_RANKS = 64
"""Of more ranks some of each side are followed."""


class Again:
    """What an emulation was made of; `again(timeline)` is where its ranks' ways part, None where that is not known."""

    def __init__(self, program: Program, counts: Sequence[int], seeds: Sequence[int | None], knobs: Knobs) -> None:
        self.program, self.counts, self.seeds, self.knobs = program, tuple(counts), seeds, knobs

    def run(self, program: Program, counts: Sequence[int], timeout_s: float) -> Timeline:
        """Emulate a program that was edited, with these counts and all else as in the run."""
        knobs = replace(self.knobs, timeout_s=min(timeout_s, self.knobs.timeout_s))
        return Emulation(program, counts, self.seeds, knobs).go()

    def __call__(self, timeline: Timeline) -> Parting | None:
        failed = any(end.kind is not EndKind.FINISHED or end.pending for end in timeline.ends)
        by_input = timeline.meta.get("input_column") != BY_BACKWARD
        differ = differing(timeline.rows("calls"), timeline.meta["groups"], failed, by_input)
        if differ is None or current() is not None:
            return None
        if tracer := traced_by():
            return {"tests": [], "why": f"{tracer} already traces this program"}
        each = max(1, MAX_RANKS // len(differ.sides))
        ranks = [rank for side in differ.sides for rank in side[:each]][:MAX_RANKS]
        emulation = Emulation(self.program, self.counts, self.seeds, self.knobs)
        most = max(MAX_STEPS // len(ranks), 1000)
        ways = emulation.ways = {
            rank: Way(lambda calls=emulation.hosts[rank].calls: len(calls), differ.windows[rank], most)  # type: ignore[misc]
            for rank in ranks
        }
        try:
            second = emulation.go()
        except (LaunchError, ProgramError):
            return None
        if second.ends != timeline.ends or not second.calls.equals(timeline.calls):
            return None
        return parting_of(differ, ways)
