"""The bench's engines and settings, each of which selects one run, and a cache of their emulations."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from joinlab.emulator.shipped_runs import is_of_this_torch, shipped_run, ships, torch_is_loaded
from joinlab.errors import LaunchError, ProgramError
from joinlab.program.program import Program, check_inputs, program_name
from joinlab.showing import running_shell
from joinlab.timeline import EndKind, Timeline

MAX_RANKS = 8
MAX_INPUTS = 20

KEPT = 512
"""Cache capacity in Timelines: six maps of 81 and some more. A case's Timeline takes about 40
kB."""

EMULATION_S = 5.0
"""Seconds after which an emulation that still computes is ended, since the notebook waits for
it."""


class Engine(NamedTuple):
    """One way to run a program.

    name      what Python calls it, "emulated nccl 1.9"
    label     what the bench says
    backend   as `emulate` and `launch` take it
    launched  real processes; else threads on a modelled fabric
    era       as `emulate` takes it
    """

    name: str
    label: str
    backend: str
    launched: bool = False
    era: str = "today"


ENGINES: Mapping[str, Engine] = {
    engine.name: engine
    for engine in (
        Engine("emulated nccl", "NCCL today", "nccl"),
        Engine("emulated nccl 1.9", "NCCL 1.9", "nccl", era="1.9"),
        Engine("emulated gloo", "gloo", "gloo"),
        Engine("launched gloo", "▶ really, on gloo", "gloo", launched=True),
        Engine("launched nccl", "▶ really, on NCCL", "nccl", launched=True),
    )
}
"""By name."""


def knobs(engine: Engine, case: int) -> tuple[str, ...]:
    """The knobs that change how a case ends; for a program of the learner's own (0), all knobs of the
    engine."""
    if engine.launched or engine.backend != "nccl":
        return ()
    from joinlab.cases import ALL_KNOBS, CASES  # imports torch

    return (CASES[case].knobs if case else ALL_KNOBS)[engine.era]


def missing(engine: Engine, ranks: int) -> str:
    """Why this machine cannot run that many ranks on this engine; "" if it can."""
    if not engine.launched:
        return ""
    if not hasattr(os, "fork"):
        return "This system cannot fork processes (Linux, macOS, and Windows with WSL can). The emulated ones work."
    from joinlab.launcher.forkserver import gpus_here
    from joinlab.launcher.launcher import choose_backend

    try:
        choose_backend(gpus_here(), engine.backend, ranks)
    except LaunchError as error:
        return str(error)
    return ""


@dataclass(frozen=True, slots=True)
class BenchSetting:
    """A run that the bench can show.

    own_program    the learner's program; None for a case
    case           its number; 0 for a program of the learner's own
    counts         inputs per rank
    engine         the engine that it runs on
    barrier_value  the 4-byte word whose lowest byte PyTorch 1.9's barrier all-reduces
    pad            the upper half of an NCCL line that holds 4 bytes
    """

    own_program: Program | None
    case: int
    counts: tuple[int, ...]
    engine: Engine
    barrier_value: int = 7
    pad: int = 0

    @property
    def shipped_run(self) -> Timeline | None:
        """The emulation that ships with the package, if it is of the installed PyTorch. Imports no
        torch.

        Until torch is loaded, an emulation of another version is returned, too.
        """
        if not self.ships:
            return None
        return shipped_run(self.case, self.counts, self.engine.backend, self.engine.era)

    @property
    def ships(self) -> bool:
        """Whether there is one. Asked at each move of a slider, so nothing is read for it."""
        engine = self.engine
        if (
            self.own_program is not None
            or engine.launched
            or (self.barrier_value, self.pad) != (7, 0)
        ):
            return False
        return ships(self.case, self.counts, engine.backend, engine.era, torch_is_loaded())

    @property
    def key(self) -> str:
        """Everything that an emulation of a case depends on; static/board.js writes the same
        key."""
        return ",".join(
            map(str, (self.case, self.engine.name, self.barrier_value, self.pad, *self.counts))
        )

    @property
    def name(self) -> str:
        return f"case_{self.case}" if self.own_program is None else program_name(self.own_program)

    @property
    def program(self) -> Program:
        if self.own_program is not None:
            return self.own_program
        from joinlab.cases import CASES  # imports torch

        return CASES[self.case].program


def check_counts(counts: object) -> tuple[int, ...]:
    """The counts as a tuple. Raises ProgramError if the bench cannot show them."""
    checked = check_inputs(counts, MAX_RANKS)
    if max(checked) > MAX_INPUTS:
        raise ProgramError(
            f"a rank of the bench can have at most {MAX_INPUTS} inputs; got {checked}"
        )
    return checked


class Emulations:
    """A cache of Timelines by setting: those that ship with the package, and emulations."""

    def __init__(self) -> None:
        self.kept: dict[BenchSetting, Timeline] = {}
        self.cell = _cells_run()

    def emulate(self, setting: BenchSetting) -> Timeline:
        """The Timeline of a setting: from the cache, from the package, or emulated.

        Any cell may redefine functions that a learner's program calls, so Timelines of such a
        program are dropped when the next cell runs; outside a notebook they are not cached.
        """
        cell = _cells_run()
        if cell != self.cell:
            self.cell = cell
            self.kept = {key: run for key, run in self.kept.items() if key.case}
        timeline = self.kept.get(setting)
        if timeline is not None:
            return timeline
        timeline = setting.shipped_run
        if timeline is None:
            timeline = self._emulated(setting)
        else:
            timeline.live.rerun = partial(self._emulated, setting)
        # one that was cut off perhaps was so only because the machine was busy
        cut_off = any(end.kind is EndKind.KILLED for end in timeline.ends)
        if not cut_off and is_of_this_torch(timeline) and (setting.case or cell is not None):
            self.kept[setting] = timeline
            if len(self.kept) > KEPT:
                self.kept.pop(next(iter(self.kept)))
        return timeline

    def _emulated(self, setting: BenchSetting) -> Timeline:
        from joinlab.emulator.emulate import emulate  # imports torch

        return emulate(
            setting.program,
            setting.counts,
            setting.engine.backend,
            era=setting.engine.era,
            barrier_value=setting.barrier_value,
            pad=setting.pad,
            timeout=EMULATION_S,
        )


def _cells_run() -> int | None:
    """How many cells of the notebook have run; None outside a notebook."""
    count = getattr(running_shell(), "execution_count", None)
    return count if isinstance(count, int) else None
