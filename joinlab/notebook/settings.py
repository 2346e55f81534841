"""Settings: what the bench is asked to run, and the emulations of them that are kept."""

from __future__ import annotations

import sys
from collections import OrderedDict
from dataclasses import dataclass

from joinlab.emulator.recorded import is_of_this_torch, recorded, torch_is_loaded
from joinlab.errors import ProgramError
from joinlab.notebook.engines import Engine
from joinlab.program.program import Program, check_inputs
from joinlab.timeline import EndKind, Timeline

MAX_RANKS = 8
MAX_INPUTS = 20

KEPT = 512
"""Timelines that are kept, at most: six maps of 81 and some. One of a case takes about 40 kB."""

EMULATION_S = 5.0
"""Seconds after which a program that still computes under the emulator is ended: the notebook waits for it."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What is to be run.

    own            the learner's program; None for a case
    case           its number; 0 for a program of the learner's own
    counts         inputs per rank
    engine         on what
    barrier_value  the 4-byte word whose lowest byte PyTorch 1.9's barrier all-reduces
    pad            the upper half of an NCCL line that holds 4 bytes
    """

    own: Program | None
    case: int
    counts: tuple[int, ...]
    engine: Engine
    barrier_value: int = 7
    pad: int = 0

    @property
    def recorded(self) -> Timeline | None:
        """The emulation that ships, if there is one of this setting and of the installed PyTorch. Imports no torch.

        While torch is being loaded, that of another version is better than none.
        """
        engine = self.engine
        if self.own is not None or engine.launched or (self.barrier_value, self.pad) != (7, 0):
            return None
        found = recorded(self.case, self.counts, engine.backend, engine.era)
        return found if found is None or not torch_is_loaded() or is_of_this_torch(found) else None

    @property
    def key(self) -> str:
        """All that an emulation of a case depends on, as static/ahead.js writes it, too."""
        return ",".join(map(str, (self.case, self.engine.name, self.barrier_value, self.pad, *self.counts)))

    @property
    def program(self) -> Program:
        """The function."""
        if self.own is not None:
            return self.own
        from joinlab.cases import CASES  # it takes torch with it

        return CASES[self.case].program


def check_counts(counts: object) -> tuple[int, ...]:
    """Counts that the bench can show; ProgramError for any others."""
    found = check_inputs(counts, MAX_RANKS)
    if max(found) > MAX_INPUTS:
        raise ProgramError(f"a rank of the bench can have at most {MAX_INPUTS} inputs; got {found}")
    return found


class Emulations:
    """A cache of Timelines by setting: those that ship with the package, and emulations.

    cell  how many cells of the notebook had run when it last looked
    """

    def __init__(self) -> None:
        self.kept: OrderedDict[Setting, Timeline] = OrderedDict()
        self.cell = _cells_run()

    def emulate(self, setting: Setting) -> Timeline:
        """Emulate this, or take it from what ships or is kept.

        What a program of one's own calls may be redefined by any cell, so its Timelines hold until the next one runs.
        Where no notebook says which cell that is, they are not kept.
        """
        if (now := _cells_run()) != self.cell:
            self.cell = now
            self.kept = OrderedDict((one, timeline) for one, timeline in self.kept.items() if one.case)
        if (found := self.kept.get(setting)) is not None:
            return found
        found = setting.recorded or self._emulated(setting)
        cut_off = any(end.kind is EndKind.KILLED for end in found.ends)  # a busy machine does that, too
        if not cut_off and is_of_this_torch(found) and (setting.case or self.cell is not None):
            self.kept[setting] = found
            if len(self.kept) > KEPT:
                self.kept.popitem(last=False)
        return found

    def _emulated(self, setting: Setting) -> Timeline:
        from joinlab.emulator.emulate import emulate  # it takes torch with it

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
    """How many cells of the notebook have run; None where there is no notebook."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    found = getattr(shell, "execution_count", None)
    return found if isinstance(found, int) else None
