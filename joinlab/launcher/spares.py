"""Runs forked ahead: keepers with ranks that wait, so that the next run begins without a fork.

While it waits, a rank has rehearsed the first case (rank.py), and takes some 7 MB of its own. One run
waits, for as many ranks as the last one had.
"""

from __future__ import annotations

import os
import socket
import threading
from contextlib import suppress

from joinlab.errors import LaunchError
from joinlab.launcher.forkclient import ForkServer
from joinlab.launcher.frames import send

MOST_RANKS = 16
"""More ranks are forked on demand."""


class Spares:
    """The runs that wait."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[tuple[ForkServer, socket.socket]] = []

    def begin(self, server: ForkServer, request: dict[str, object]) -> socket.socket:
        """Begin a run, on one that waits if there is any; returns its socket."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for owner, link in waiting:
            if owner is server:
                with suppress(OSError):  # its keeper is gone
                    send(link, request)
                    return link
            link.close()
        return server.open(request)

    def prepare(self, server: ForkServer, ranks: int) -> None:
        """Let a run wait for so many ranks."""
        if ranks > MOST_RANKS:
            return
        with self._lock:
            if not self._waiting:
                with suppress(LaunchError):  # the next run will say what is wrong
                    link = server.open({"ahead": ranks})
                    self._waiting.append((server, link))

    def close(self) -> None:
        """End the runs that wait."""
        with self._lock:
            for _, link in self._waiting:
                link.close()
            self._waiting = []

    def forget(self) -> None:
        """In a forked child of the launcher: another thread may hold the lock for ever."""
        self._lock = threading.Lock()
        self._waiting = []


SPARES = Spares()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=SPARES.forget)
