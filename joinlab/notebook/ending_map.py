"""The bench's map of endings: how a case ends with each pair of inputs, one cell at a time while
the kernel is idle.

The map sends the pictures of its cells to the page before a slider asks for them. They travel in
parcels, because pictures in one message share their words: 16 take 4 to 5 kB, and one alone 1.2 to
2. The page draws a move at once from the pictures it has, and tells Python; Python's answer is the
same picture, so the page does not draw it again. The key of a picture (`BenchSetting.key`) has
everything that it depends on. A picture has no calls: Python sends them on request.

The map is computed in the kernel's main thread, between messages, so a slider waits for one cell at
most. It covers the cases only: another cell of the notebook may redefine what your own program
calls. `joinlab.sweep` maps your program.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from itertools import product

from joinlab.errors import JoinlabError
from joinlab.notebook.settings import BenchSetting, Emulations
from joinlab.notebook.sweep import COUNTS, Overall, drawn_map, overall_of
from joinlab.picture.lane_data import LaneData

REST_S = 0.005
"""Pause between two cells, in which the kernel reads its messages."""

PAUSE_S = 0.3
"""Pause after a move, so that the next one of a series need not wait for a cell of the map."""

FIRST, PARCEL = 5, 16
"""Pictures per parcel: first the shown one and its neighbours, which a reader asks for next."""


class EndingMap:
    """The map of one setting after another, each of a case and two ranks.

    emulations  the bench's cache, so that a slider shows a mapped run at once
    show        called with the map's state for the browser; {} for no map
    send        called with a parcel: lane data, with {key: run} as "ahead"
    """

    def __init__(
        self,
        emulations: Emulations,
        show: Callable[[dict[str, object]], None],
        send: Callable[[bytes], None],
    ) -> None:
        self._emulations, self._show, self._send = emulations, show, send
        self._base: BenchSetting | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.watched = False
        self._begin()

    def _begin(self) -> None:
        self.left: list[tuple[int, ...]] = []
        self.cells: dict[tuple[int, ...], Overall] = {}  # by counts
        self.sent: list[bytes] = []
        self._collect()

    def _collect(self) -> None:
        self._data, self._held = LaneData(), dict[str, object]()

    def follow(self, setting: BenchSetting | None) -> None:
        """Begin the map around this setting, unless it is the current one; None: no map.

        Cells are computed in an event loop, once somebody watches.
        """
        self._pause()
        before = self._base
        self._base = setting and replace(setting, counts=(0, 0))
        if setting is None:
            self._show({})
        elif before != self._base:
            self._begin()
            self.left = _nearest_first(setting.counts)
            self._tell()
        if self.watched:
            self._schedule(PAUSE_S)

    def watch(self) -> None:
        """A page shows the map: send it every cell so far, and compute the others."""
        self.watched = True
        if self._base is not None:
            self._tell()
            for parcel in self.sent:
                self._send(parcel)
            self._schedule()

    def stop(self) -> None:
        """Compute no further cell."""
        self.left = []
        self._pause()

    def _pause(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self, pause_s: float = REST_S) -> None:
        loop = event_loop()
        if loop is not None and self._timer is None and self.left and self._base is not None:
            self._timer = loop.call_later(pause_s, self._step)

    def _step(self) -> None:
        """Compute the next cell; an error ends the map."""
        assert self._base is not None
        self._timer = None
        setting = replace(self._base, counts=self.left.pop(0))
        try:
            timeline = self._emulations.emulate(setting)
        except (JoinlabError, KeyboardInterrupt) as error:
            self.left = []
            return self._tell(f"No map: {str(error) or 'interrupted'}"[:160])
        self.cells[setting.counts] = overall_of(timeline)
        self._held[setting.key] = self._data.add(timeline, share_lanes=False, calls=False)
        if len(self._held) == (PARCEL if self.sent else FIRST) or not self.left:
            self.sent.append(self._data.packed(ahead=self._held))
            self._collect()
            self._send(self.sent[-1])
            self._tell()
        self._schedule()

    def _tell(self, note: str = "") -> None:
        if self.left:
            note = f"{len(self.cells)} of {len(COUNTS) ** 2}"
        self._show({**drawn_map(COUNTS[-1], self.cells), "note": note})


def event_loop() -> asyncio.AbstractEventLoop | None:
    """The loop that runs here, as in a notebook's kernel; None in a script, which has no background."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _nearest_first(center: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Every cell, those nearest to the sliders first, since a reader asks for them next."""
    return sorted(
        product(COUNTS, repeat=2),
        key=lambda cell: (abs(cell[0] - center[0]) + abs(cell[1] - center[1]), cell),
    )
