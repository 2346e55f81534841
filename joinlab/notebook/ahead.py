"""Ahead: the pictures of the map's cells go to the page before a slider asks for them.

The page draws a move from what it has, at once, while it tells Python; Python's answer to the move says the same, and
is then not drawn again. A picture is known by everything that it depends on (`Setting.key`), so that one of another
program, engine or knob is never taken for it. A program of the learner's own stays out: any cell may redefine what it
calls. Pictures that travel together share their words: a parcel of 16 takes 25 to 30 kB, where each alone takes 7.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from joinlab.notebook.session import Setting
from joinlab.picture.lane_data import LaneData
from joinlab.timeline import Timeline

PARCEL = 16
"""Pictures that travel together. To pack them keeps the kernel for some 15 ms."""

MOST_BYTES = 250_000
"""Of one map, at most; the page waits for Python at the cells beyond. The cases' maps of 81 cells take less. With
three ranks, say, there is no map, and this limits what is sent to a page that opens later."""


class Ahead:
    """Collects the pictures of one map after another, and sends them in parcels.

    send  called with a parcel: lane data, with {key: run} as "ahead"
    """

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send
        self.clear()

    def clear(self) -> None:
        """Begin with another map."""
        self._sent: list[bytes] = []
        self._begin()

    def _begin(self) -> None:
        self._data, self._held = LaneData(), dict[str, Any]()

    def add(self, setting: Setting, timeline: Timeline) -> None:
        """Add the picture of this setting."""
        self._held[setting.key] = self._data.add(timeline, ranks=False)
        if len(self._held) == PARCEL:
            self.flush()

    def flush(self) -> None:
        """Send the pictures that are not sent yet, if they fit the budget."""
        if not self._held:
            return
        parcel = self._data.packed(ahead=self._held)
        self._begin()
        if self.size + len(parcel) <= MOST_BYTES:
            self._sent.append(parcel)
            self._send(parcel)

    def repeat(self) -> None:
        """Send everything once more: another page is there."""
        for parcel in self._sent:
            self._send(parcel)

    @property
    def size(self) -> int:
        """Bytes that were sent of this map."""
        return sum(map(len, self._sent))
