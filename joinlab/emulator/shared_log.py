"""The log of an emulated rank, in memory that its process shares with its keeper.

The rank appends, as a launched one does to its file; with each message it says how far it has come,
and the keeper takes the text up to there. What a rank has written before it was killed is in that
memory, too.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable

from joinlab.recorder.events import LOGS, EventLog

LOG_BYTES = 1 << 20
"""Room for the events that the keeper has not taken yet. Pages that no one writes to take none."""


def shared_memory() -> mmap.mmap:
    """Memory that a process shares with those that it forks."""
    return mmap.mmap(-1, LOG_BYTES)


class SharedLog(EventLog):
    """Appends events to shared memory; a zero byte follows the last one."""

    __slots__ = ("empty",)

    def __init__(
        self, memory: mmap.mmap, on_failure: Callable[[Exception], None] = lambda error: None
    ) -> None:
        self._lock = threading.RLock()
        self._on_failure = on_failure
        self.failed = False
        self.segment = 0
        self.empty: Callable[[], None] = lambda: None
        """Has the keeper take all that is written."""
        self._fd = -1
        memory.seek(0)
        self._go_on_in(memory)
        LOGS.add(self)

    @property
    def end(self) -> int:
        """Bytes written since it was empty."""
        return self._map.tell()

    def close(self) -> None:
        """Events after this are lost."""
        self.stop()

    def _make_room(self, size: int) -> bool:
        if size >= LOG_BYTES:
            return False  # the event is lost, not the log
        self.empty()
        self._map.seek(0)
        self._map.write(bytes(LOG_BYTES))
        self._map.seek(0)
        return True


class LogReader:
    """The keeper's view of a rank's log."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self._taken = 0

    def take(self, end: int) -> str:
        """The events up to there that were not taken yet."""
        text = self._memory[self._taken : end].decode()
        self._taken = end
        return text

    def take_rest(self) -> str:
        """All events that are left of a rank whose process has ended; without one that it was just
        writing."""
        end = self._memory.find(b"\0", self._taken)
        text = self.take(end if end >= 0 else LOG_BYTES)
        return text[: text.rfind("\n") + 1]

    def restart(self) -> None:
        """The rank begins anew at the first byte."""
        self._taken = 0
