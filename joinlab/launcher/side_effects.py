"""What a launched program does that another run of it would do again: files that it writes, sockets
that it opens, processes that it starts.

After a launch that failed, `diagnose` emulates the program to see where its ranks part and to try
fixes. It does so by itself only if no rank has done any of this, and if the run was short and on
CPUs (judge.py). Python tells audit hooks what it does (sys.addaudithook), but not what C++ does:
so torch.save is watched by itself, and gloo's sockets are not seen, nor meant.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch

from joinlab.program.log_events import SideEffectSeen

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

BY_NAME: Mapping[str, str] = {
    "subprocess.Popen": "started a process",
    "os.system": "started a process",
    "os.exec": "started a process",
    "os.posix_spawn": "started a process",
    "os.remove": "removed a file",
    "os.rename": "renamed a file",
    "os.mkdir": "made a folder",
    "os.rmdir": "removed a folder",
    "os.link": "made a link",
    "os.symlink": "made a link",
    "os.truncate": "cut a file",
    "sqlite3.connect": "opened a database",
}
"""By audit event, what the program did: names of Python's table of audit events. os.fork is not
there: a DataLoader's workers are forked, and what they do stays within them."""

SOCKETS = ("socket.connect", "socket.bind", "socket.sendto")

WATCHED = frozenset(("open", *BY_NAME, *SOCKETS))


class SideEffects:
    """Tells of the first thing that the process does.

    folder  the run's own folder, in which the recorder writes
    take    is given the event, at once, since the rank may hang and be killed
    """

    def __init__(self, folder: str, take: Callable[[SideEffectSeen], None]) -> None:
        self._own = (folder, "/dev/", "/proc/", "/sys/")
        self._take = take
        self._reported = False
        self._process = os.getpid()

    def begin(self) -> None:
        """From now on all that happens is the program's. A hook cannot be removed again."""

        def hear(event: str, arguments: tuple[object, ...]) -> None:
            # A step of DDP has some 20 audit events (id, sys._getframe): each has to leave at once.
            if event in WATCHED:
                self._hear(event, arguments)

        sys.addaudithook(hear)
        open_writer = torch.serialization._open_zipfile_writer  # torch.save writes in C++

        def noted(file: Any) -> object:
            if isinstance(file, (str, os.PathLike)):
                self._tell(f"wrote {os.path.basename(file)}")
            return open_writer(file)

        torch.serialization._open_zipfile_writer = noted  # type: ignore[assignment]

    def _hear(self, event: str, arguments: tuple[object, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            self._tell(self._written(path, flags))
        elif event in BY_NAME:
            self._tell(BY_NAME[event])
        elif isinstance(arguments[1], tuple):
            self._tell("opened a socket")  # to a host: a DataLoader has others

    def _tell(self, what: str) -> None:
        if what and not self._reported and os.getpid() == self._process:  # a fork has the hook, too
            self._reported = True
            self._take(SideEffectSeen(what=what))

    def _written(self, path: object, flags: object) -> str:
        """What is said of a file that is opened for writing; "" for Python's caches, for files of
        the system and the recorder, and for a descriptor, which was opened before."""
        if not isinstance(path, (str, bytes)) or not isinstance(flags, int) or not flags & WRITES:
            return ""
        name = os.fsdecode(path)
        if "__pycache__" in name or name.startswith(self._own):
            return ""
        return f"wrote {os.path.basename(name)}"
