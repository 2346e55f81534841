"""Session: what the bench runs, without a widget: emulations that are kept, and one launched run at a time.

A launched run goes on in a thread of its own; `Session.start` returns at once, and what comes of the run is handed to
`ended` in that thread.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from joinlab.emulator.recorded import recorded
from joinlab.notebook.engines import Engine
from joinlab.program.program import Program
from joinlab.timeline import EndKind, Timeline

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
    def program(self) -> Program:
        """The function."""
        return program_of(self.own, self.case)

    @property
    def recorded(self) -> Timeline | None:
        """The emulation that ships with the package, if there is one of this setting. Imports no torch."""
        engine = self.engine
        if self.own is not None or engine.launched or (self.barrier_value, self.pad) != (7, 0):
            return None
        return recorded(self.case, self.counts, engine.backend, engine.era)

    @property
    def key(self) -> str:
        """All that an emulation of a case depends on, as static/ahead.js writes it, too."""
        return ",".join(map(str, (self.case, self.engine.name, self.barrier_value, self.pad, *self.counts)))


def program_of(own: Program | None, case: int) -> Program:
    """The learner's program, or that of a case."""
    if own is not None:
        return own
    from joinlab.cases import CASES  # it takes torch with it

    return CASES[case].program


class Session:
    """Runs settings: emulates them at once, or launches them in a thread.

    timeout  seconds after which a launched run is ended
    cell     how many cells of the notebook had run when it last looked
    running  whether a launched run is under way
    """

    def __init__(self, timeout: float = 300.0) -> None:
        self.timeout = timeout
        self._kept: OrderedDict[Setting, Timeline] = OrderedDict()
        self.cell = _cells_run()
        self.running = False
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    # ---- emulated

    def known(self, setting: Setting) -> Timeline | None:
        """The Timeline of this setting, if it was emulated and still holds.

        What a program of one's own calls may be redefined by any cell, so its Timelines hold until the next one runs.
        Where no notebook says which cell that is, they are not kept.
        """
        if (now := _cells_run()) != self.cell:
            self.cell = now
            self._kept = OrderedDict((one, timeline) for one, timeline in self._kept.items() if one.case)
        return self._kept.get(setting)

    def emulate(self, setting: Setting, again: bool = False) -> Timeline:
        """Emulate this, or take it from what is kept, unless it is to be done `again`."""
        from joinlab.emulator.emulate import emulate  # it takes torch with it

        found = None if again else self.known(setting)
        if found is not None:
            return found
        found = emulate(
            setting.program,
            setting.counts,
            setting.engine.backend,
            era=setting.engine.era,
            barrier_value=setting.barrier_value,
            pad=setting.pad,
            timeout=EMULATION_S,
        )
        cut_off = any(end.kind is EndKind.KILLED for end in found.ends)  # a busy machine does that, too
        if not cut_off and (setting.case or self.cell is not None):
            self._kept[setting] = found
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return found

    # ---- launched

    def start(
        self,
        setting: Setting,
        *,
        on_output: Callable[[int, str], None],
        goes_on: Callable[[int, int], None],
        ended: Callable[[Timeline | BaseException], None],
    ) -> None:
        """Launch this and return.

        on_output  called with (rank, line) for each line that a rank prints
        goes_on    called with (seconds, inputs done) all the time
        ended      called with what came of it: the Timeline, or why there is none
        """

        def work() -> None:
            try:
                found: Timeline | BaseException = self._launch(setting, on_output, goes_on)
            except BaseException as error:  # whatever it is, the bench must come out of it
                found = error
            self.running = False
            ended(found)

        self._stop.clear()
        self.running = True
        self._thread = threading.Thread(target=work, name="joinlab bench", daemon=True)
        self._thread.start()

    def _launch(
        self, setting: Setting, on_output: Callable[[int, str], None], goes_on: Callable[[int, int], None]
    ) -> Timeline:
        from joinlab.launcher.launcher import launch

        began = time.monotonic()
        done = 0

        def asked_to_stop() -> bool:  # the run asks this all the time: a good place to say that it goes on
            goes_on(int(time.monotonic() - began), done)
            return self._stop.is_set()

        def progress(inputs: int) -> None:
            nonlocal done
            done = inputs

        return launch(
            setting.program,
            setting.counts,
            setting.engine.backend,
            timeout=self.timeout,
            on_output=on_output,
            progress=progress,
            stop=asked_to_stop,
        )

    @property
    def stopping(self) -> bool:
        """Whether the launched run was asked to end."""
        return self._stop.is_set()

    def ask_to_stop(self) -> None:
        """Ask the launched run to end, and return."""
        self._stop.set()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the launched run is over and shown, or so long; True if it is."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(seconds)
            return not thread.is_alive()
        return True


def _cells_run() -> int | None:
    """How many cells of the notebook have run; None where there is no notebook."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    found = getattr(shell, "execution_count", None)
    return found if isinstance(found, int) else None
