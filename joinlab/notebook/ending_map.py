"""The bench's map of endings: the sweep over both ranks' inputs, one emulation at a time while the kernel is idle.

Of another number of ranks there is no map. What is computed then is where a slider may go next: one input more or less
of any rank, and once one has moved, of that rank.

The pictures of what was computed go to the page before a slider asks for them, in parcels, since pictures that travel
together share their words: 16 take 25 to 30 kB, where each alone takes 7. The page draws a move from what it has at
once, while it tells Python; Python's answer says the same, and is then not drawn again. A picture is known by
everything that it depends on (`Setting.key`). A program of the learner's own stays out: any cell may redefine what it
calls.

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
from joinlab.notebook.settings import MAX_INPUTS, Emulations, Setting
from joinlab.notebook.sweep import COUNTS, KINDS, Overall, overall_of
from joinlab.notebook.view import packed
from joinlab.picture.lane_data import LaneData
from joinlab.timeline import EndKind

SLOW_S, TRIES = 0.15, 3
"""A program is slow if TRIES emulations on end each take more CPU seconds: the kernel then computes no map of it."""

SLOW = "This program is slow: joinlab.sweep(program) computes its map."

EVERY_S = 0.2
"""How often what is new goes to the browser."""

REST_S = 0.005
"""Between two emulations: time in which the kernel reads the messages that came."""

PAUSE_S = 0.3
"""After a move: the next one, where several follow each other, waits for no emulation of the map."""

PARCEL = 16
"""Pictures that travel together. To pack them keeps the kernel for some 15 ms."""

MOST_BYTES = 250_000
"""Of one map, at most; the page waits for Python at the cells beyond. The cases' maps of 81 cells take less. With
three ranks, say, there is no map, and this limits what is sent to a page that opens later."""


class EndingMap:
    """The map of one setting after another.

    emulations  what is on the map, a slider shows at once
    show        called with what the browser is to be told of it; {} for no map
    send        called with a parcel: lane data, with {key: run} as "ahead"
    """

    def __init__(
        self, emulations: Emulations, show: Callable[[dict[str, Any]], None], send: Callable[[bytes], None]
    ) -> None:
        self._emulations, self._show, self._send = emulations, show, send
        self._base: Setting | None = None
        self._cell: int | None = None
        self._here: tuple[int, ...] = ()
        self._timer: asyncio.TimerHandle | None = None
        self._told = 0.0
        self.watched = False
        self._begin()

    def _begin(self) -> None:
        self.left: list[tuple[int, ...]] = []
        self.cells: dict[str, int] = {}  # by counts: how it ends there
        self.sent: list[bytes] = []
        self._long = 0  # emulations on end that took long
        self._collect()

    def _collect(self) -> None:
        self._data, self._held = LaneData(), dict[str, Any]()

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
        cell = None if setting.case else self._emulations.cell  # any cell may redefine what one's own program calls
        if (base, cell) != (self._base, self._cell):
            self._base, self._cell = base, cell
            self._begin()
            self.left = _nearest_first(setting.counts) if self._is_map else _neighbours(setting.counts)
            self._tell("")
        elif not self._is_map and self._long < TRIES:
            if self.size > MOST_BYTES // 2:
                self.sent = []
            near = _neighbours(setting.counts, self._here)
            self.left = [counts for counts in near if _key(counts) not in self.cells]
        self._here = setting.counts
        if self.watched:
            self._pause()
            self._schedule(PAUSE_S)

    @property
    def _is_map(self) -> bool:
        return self._base is not None and len(self._base.counts) == 2

    @property
    def size(self) -> int:
        """Bytes that were sent of this map."""
        return sum(map(len, self.sent))

    def watch(self) -> None:
        """From now on somebody sees it; another page gets everything once more."""
        self.watched = True
        if self._base is not None:
            self._tell("")
            for parcel in self.sent:
                self._send(parcel)
            self._schedule()

    def finish(self) -> None:
        """Compute what is left of it now."""
        while self.left:
            self._step()

    def stop(self) -> None:
        """Compute no more of it."""
        self.left = []
        self._pause()

    def _pause(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self, rest: float = REST_S) -> None:
        if self._timer is None and self.left:
            try:
                self._timer = asyncio.get_running_loop().call_later(rest, self._tick)
            except RuntimeError:  # no loop runs here: nothing goes on in the background
                return

    def _tick(self) -> None:
        self._timer = None
        if self.left:
            self._step()
            self._schedule()

    def _step(self) -> None:
        """Emulate the next cell; where that cannot be, or takes too long, there is no more of the map."""
        assert self._base is not None
        setting = replace(self._base, counts=self.left.pop(0))
        began = time.process_time()  # of all threads: what other processes do does not make a program slow
        try:
            timeline = self._emulations.emulate(setting)
        except (JoinlabError, KeyboardInterrupt) as error:
            return self._give_up(f"No map: {str(error) or 'interrupted'}"[:160])
        if any(end.kind is EndKind.KILLED for end in timeline.ends):  # how it ends is not known
            return self._give_up(SLOW)
        self.cells[_key(setting.counts)] = list(Overall).index(overall_of(timeline))
        slow = not setting.case and time.process_time() - began > SLOW_S  # a case is slow on a busy machine only
        self._long = self._long + 1 if slow else 0
        if self._long == TRIES:
            return self._give_up(SLOW)
        if setting.case:
            self._held[setting.key] = self._data.add(timeline, ranks=False)
        else:  # what the bench shows of it: going there is the way to Python and back, and the drawing
            packed(timeline, False)
        if len(self._held) == PARCEL or not self.left or not self._is_map:
            self._flush()
        if not self.left or time.monotonic() - self._told > EVERY_S:
            self._tell("")

    def _flush(self) -> None:
        """Send the pictures that are not sent yet, if they fit the budget."""
        if not self._held:
            return
        parcel = self._data.packed(ahead=self._held)
        self._collect()
        if self.size + len(parcel) <= MOST_BYTES:
            self.sent.append(parcel)
            self._send(parcel)

    def _give_up(self, note: str) -> None:
        self.stop()
        self._flush()
        self._tell(note)

    def _tell(self, note: str) -> None:
        self._told = time.monotonic()
        left = f"{len(self.cells)} of {len(COUNTS) ** 2}" if self.left else ""
        told = {"most": COUNTS[-1], "kinds": KINDS, "cells": dict(self.cells), "note": note or left}
        self._show(told if self._is_map else {})


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
