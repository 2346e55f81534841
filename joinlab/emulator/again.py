"""Again: an emulation that went wrong is run once more, to see which lines its ranks ran before they parted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from joinlab.backend.model import Knobs
from joinlab.emulator.run import Emulation
from joinlab.emulator.scheduler import current
from joinlab.errors import LaunchError, ProgramError
from joinlab.program.parting import Differing, Parting, differing, has_keys, other_keys, parting_of
from joinlab.program.program import Program
from joinlab.program.ways import ALL, MAX_STEPS, Way, traced_by
from joinlab.timeline import Timeline


def differing_calls(timeline: Timeline) -> Differing | None:
    """The calls of a run where its ranks part."""
    ends = ["pending" if end.pending else end.kind.value for end in timeline.ends]
    return differing(timeline.rows("calls"), timeline.meta, ends)


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
        differ = differing_calls(timeline)
        keyed = differ is None and has_keys(timeline.rows("calls"))
        if (differ is None and not keyed) or current() is not None:
            return None
        if tracer := traced_by():
            return {"tests": [], "why": f"{tracer} already traces this program"}
        sides = differ.sides if differ else [range(len(self.counts))]
        each = MAX_RANKS if sum(map(len, sides)) <= MAX_RANKS else max(1, MAX_RANKS // len(sides))
        ranks = [rank for side in sides for rank in side[:each]][:MAX_RANKS]
        emulation = Emulation(self.program, self.counts, self.seeds, self.knobs)
        most = max(MAX_STEPS // len(ranks), 1000)
        ways = emulation.ways = {
            rank: Way(emulation.hosts[rank].calls.__len__, differ.windows[rank] if differ else ALL, most)
            for rank in ranks
        }
        try:
            second = emulation.go()
        except (LaunchError, ProgramError):
            return None
        if second.ends != timeline.ends or not second.calls.equals(timeline.calls):
            return None
        if differ is not None:
            return parting_of(differ, ways)
        keys = other_keys(timeline.rows("calls"), timeline.meta["groups"], ways)
        return {"tests": [], "keys": keys} if keys else None
