"""Hears SIGINT in a recorded process, also while its main thread waits in C++, where Python runs no
handler: the signal's number arrives in a pipe, which a thread reads.
"""

from __future__ import annotations

import _thread
import os
import select
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache

from joinlab.recorder.events import file_of


class Interrupts:
    """The SIGINTs that this process receives.

    listeners  are called at each
    """

    def __init__(self) -> None:
        self.listeners: list[Callable[[], object]] = []
        self._came = False
        self._lock = threading.Lock()
        self._reads, self._pipe = -1, file_of(-1)
        if threading.current_thread() is not threading.main_thread():
            return
        self._reads, self._writes = os.pipe()
        self._pipe = file_of(self._reads)
        os.set_blocking(self._reads, False)
        os.set_blocking(self._writes, False)
        before = signal.set_wakeup_fd(self._writes, warn_on_full_buffer=False)
        if before >= 0:  # the program's own
            signal.set_wakeup_fd(before)
            return
        os.register_at_fork(after_in_child=self._leave_to_parent)
        begun = _thread.allocate_lock()
        begun.acquire()
        # A bare thread: one that threading lists counts as the program's. Wait until it runs, since
        # Python counts it only then, and a later change of the count would look like a thread of the
        # program.
        _thread.start_new_thread(self._hear, (begun,))
        begun.acquire()

    def came(self) -> bool:
        """Whether a SIGINT has come."""
        with self._lock, suppress(OSError):  # the pipe is empty
            if file_of(self._reads) == self._pipe and signal.SIGINT in os.read(self._reads, 4096):
                self._came = True
                for listener in self.listeners:
                    listener()
        return self._came

    def _hear(self, begun: _thread.LockType) -> None:
        begun.release()
        with suppress(OSError, ValueError):  # the program has closed all files
            while file_of(self._reads) == self._pipe:
                select.select([self._reads], [], [])
                self.came()

    def _leave_to_parent(self) -> None:
        """In a forked child, such as a DataLoader's worker, which shares the pipe."""
        self._lock = threading.Lock()  # another thread of the parent may hold it
        self._reads = -1
        before = signal.set_wakeup_fd(-1)
        if before != self._writes:  # the program's own
            signal.set_wakeup_fd(before)


@cache
def of_process() -> Interrupts:
    """Those of this process, from the first call on."""
    return Interrupts()
