"""The bench's map of endings: the sweep over both ranks' inputs, one emulation at a time while the kernel is idle.

Of another number of ranks there is no map. What is computed then is where a slider may go next: one input more or less
of any rank, and once one has moved, of that rank.

The emulator takes over torch.distributed for the whole process while it runs, so the map is computed in the kernel's
own thread, between the messages that it gets: a slider waits for one emulation (20 to 30 ms) at most.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from joinlab.errors import JoinlabError
from joinlab.notebook.ahead import MOST_BYTES, Ahead
from joinlab.notebook.board import MAX_INPUTS
from joinlab.notebook.session import Session, Setting
from joinlab.notebook.sweep import COUNTS, KINDS, Overall, overall_of
from joinlab.notebook.view import packed
from joinlab.timeline import EndKind

SLOW_S, TRIES = 0.15, 3
"""A program is slow if TRIES emulations on end each take more CPU seconds. The cells with the fewest inputs come first
then, and the kernel rests as long as each has taken: a slider waits for one emulation at most, and
half the time for none.
"""

MOST_S = 60.0
"""CPU seconds spent on the map of a slow program; cells not computed by then stay open."""

REST = "joinlab.sweep(program) computes the rest."

EVERY_S = 0.2
"""How often what is new goes to the browser."""

REST_S = 0.005
"""Between two emulations: time in which the kernel reads the messages that came."""

PAUSE_S = 0.3
"""After a move: the next one, where several follow each other, waits for no emulation of the map."""


class EndingMap:
    """The map of one setting after another.

    session  emulates, and keeps what it emulated: what is on the map, a slider shows at once
    show     called with what the browser is to be told of it; {} for no map
    ahead    sends the browser the pictures of what is on the map
    """

    def __init__(self, session: Session, show: Callable[[dict[str, Any]], None], ahead: Ahead) -> None:
        self._session = session
        self._show = show
        self._ahead = ahead
        self._base: Setting | None = None
        self._cell: int | None = None
        self._here: tuple[int, ...] = ()
        self._left: list[tuple[int, ...]] = []
        self._cells: dict[str, int] = {}  # by counts: how it ends there
        self._timer: asyncio.TimerHandle | None = None
        self._told = 0.0
        self._long = 0  # emulations on end that took long
        self._slow = False
        self._spent = self._took = 0.0  # CPU seconds of all emulations, and of the last one
        self.watched = False

    def follow(self, setting: Setting | None) -> None:
        """Compute the map around this setting, if it is not the map there is; None: no map.

        Nothing is computed until somebody watches, and outside an event loop `finish` computes it.
        """
        if setting is None:
            self.stop()
            self._base = None
            self._show({})
            return
        base = replace(setting, counts=(0,) * len(setting.counts))
        cell = None if setting.case else self._session.cell  # any cell may redefine what a program of one's own calls
        if (base, cell) != (self._base, self._cell):
            self._base, self._cell, self._cells = base, cell, {}
            self._ahead.clear()
            self._long, self._slow, self._spent, self._took = 0, False, 0.0, 0.0
            self._left = _nearest_first(setting.counts) if self._is_map else _neighbours(setting.counts)
            self._tell("")
        elif not self._is_map and not self._slow:
            if self._ahead.size > MOST_BYTES // 2:
                self._ahead.clear()
            near = _neighbours(setting.counts, self._here)
            self._left = [counts for counts in near if _key(counts) not in self._cells]
        self._here = setting.counts
        if self.watched:
            self._pause()
            self._schedule(PAUSE_S)

    @property
    def _is_map(self) -> bool:
        return self._base is not None and len(self._base.counts) == 2

    def watch(self) -> None:
        """From now on somebody sees it."""
        self.watched = True
        if self._base is not None:
            self._tell("")
            self._ahead.repeat()
            self._schedule()

    def finish(self) -> None:
        """Compute what is left of it now."""
        while self._left:
            if not self._step():
                return
        self._tell("")

    def give_up(self) -> None:
        """Compute no more of it, and say so: somebody pressed Stop."""
        if self._left:
            self._give_up(f"Stopped at {self._progress}: {REST}")

    def stop(self) -> None:
        """Compute no more of it."""
        self._left = []
        self._pause()

    def _pause(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self, rest: float = REST_S) -> None:
        if self._timer is None and self._left:
            try:
                loop = asyncio.get_running_loop()
            except RuntimeError:  # no loop runs here: nothing goes on in the background
                return
            self._timer = loop.call_later(max(rest, self._took if self._slow else 0.0), self._tick)

    def _tick(self) -> None:
        self._timer = None
        if self._left and self._step():
            if time.monotonic() - self._told > EVERY_S or self._slow or not self._left:
                self._tell("")
            self._schedule()

    def _step(self) -> bool:
        """Emulate the next cell; False if there can be no map."""
        assert self._base is not None
        setting = replace(self._base, counts=self._left.pop(0))
        began = time.process_time()  # of all threads: what other processes do does not make a program slow
        try:
            timeline = self._session.emulate(setting)
        except (JoinlabError, KeyboardInterrupt) as error:
            return self._give_up(f"No map: {str(error) or 'interrupted'}"[:160])
        if any(end.kind is EndKind.KILLED for end in timeline.ends):  # how it ends is not known
            return self._give_up(f"This program is slow: {REST}")
        self._cells[_key(setting.counts)] = list(Overall).index(overall_of(timeline))
        self._took = time.process_time() - began
        self._spent += self._took
        self._long = self._long + 1 if self._took > SLOW_S else 0
        if self._long == TRIES and not self._slow:
            self._slow = True
            if not self._is_map:  # the sliders need the time
                self._left = []
            self._left.sort(key=lambda cell: (sum(cell), cell))
        if self._slow and self._left and self._spent > MOST_S:
            return self._give_up(f"This program is slow, so its map ends at {self._progress}: {REST}")
        if setting.case:
            self._ahead.add(setting, timeline)
        else:  # what the bench shows of it: going there is the way to Python and back, and the drawing
            packed(timeline, False)
        if not self._left or not self._is_map:
            self._ahead.flush()
        return True

    def _give_up(self, note: str) -> bool:
        self.stop()
        self._ahead.flush()
        self._tell(note)
        return False

    def _tell(self, note: str) -> None:
        self._told = time.monotonic()
        if not self._is_map:
            self._show({})
            return
        left = self._progress if self._left else ""
        told: dict[str, Any] = {"most": COUNTS[-1], "kinds": KINDS, "cells": dict(self._cells), "note": note or left}
        self._show(told | ({"stop": True} if self._slow and self._left else {}))

    @property
    def _progress(self) -> str:
        return f"{len(self._cells)} of {len(COUNTS) ** 2}"


def _key(counts: tuple[int, ...]) -> str:
    return ",".join(map(str, counts))


def _neighbours(here: tuple[int, ...], before: tuple[int, ...] = ()) -> list[tuple[int, ...]]:
    """Where one step of a slider leads; after a move from `before`, that of the same slider, and two steps onward.

    >>> _neighbours((2, 3, 3), (2, 2, 3))
    [(2, 4, 3), (2, 2, 3), (2, 5, 3)]
    """
    steps = [(rank, step) for step in (1, -1) for rank in range(len(here))]
    moved = [(rank, new - old) for rank, (new, old) in enumerate(zip(here, before, strict=False)) if new != old]
    if len(moved) == 1:
        rank, way = moved[0][0], 1 if moved[0][1] > 0 else -1
        steps = [(rank, way), (rank, -way), (rank, 2 * way)]
    found = [(*here[:rank], here[rank] + step, *here[rank + 1 :]) for rank, step in steps]
    return [counts for counts in found if min(counts) >= 0 and max(counts) <= MAX_INPUTS]


def _nearest_first(here: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Every cell, those around the sliders first: these are wanted next."""
    cells: list[tuple[int, ...]] = [(one, other) for one in COUNTS for other in COUNTS]
    return sorted(cells, key=lambda cell: (abs(cell[0] - here[0]) + abs(cell[1] - here[1]), cell))
