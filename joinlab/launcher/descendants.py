"""Ends all descendants of a process, in any group or session.

`adopt` makes this process a subreaper (Linux): a descendant whose parent dies becomes our child
instead of init's. So every descendant stays below us in the process tree, and once we have no child
left, no descendant is left. On other systems only known process groups can be ended.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

import psutil

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
"""From linux/prctl.h."""

SEGMENTS = "segments"
"""File in the run's folder: names of the shared memory segments that ranks have created, one per
line."""

GIVE_UP_S = 10.0
"""A killed process that is still there after this time is stuck in the kernel; waiting longer does
not help."""


def note_shared_memory(path: Path) -> None:
    """Log the name of each segment that Python creates here: if the program is killed, the keeper
    unlinks it."""
    try:
        import _posixshmem  # type: ignore[import-not-found]
    except ImportError:  # this system has none
        return
    shm_open = _posixshmem.shm_open

    def noting(name: str, flags: int, mode: int = 0o777) -> int:
        fd = shm_open(name, flags, mode)
        if flags & os.O_CREAT:
            with suppress(OSError), path.open("a") as file:
                file.write(name.lstrip("/") + "\n")
        return int(fd)

    _posixshmem.shm_open = noting


def adopt() -> None:
    """Become the parent of every orphan below this process."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent() -> None:
    """Make the system kill this process when its parent ends."""
    if sys.platform == "linux":
        parent = os.getppid()
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before the call
            os._exit(1)


def below(root: int, spared: Collection[int] = ()) -> list[int]:
    """Every living process below `root`, except those `spared` and their descendants.

    It reads the process table once, and descends through zombies: a process whose parent ends
    between two reads would appear below neither its old parent nor its new one.
    """
    children: dict[int, list[int]] = {}
    zombies: set[int] = set()
    for process in psutil.process_iter(["ppid", "status"]):
        children.setdefault(process.info["ppid"], []).append(process.pid)
        if process.info["status"] == psutil.STATUS_ZOMBIE:
            zombies.add(process.pid)
    pids = [pid for pid in children.get(root, ()) if pid not in spared]
    for pid in pids:
        pids += children.get(pid, ())
    return [pid for pid in pids if pid not in zombies]


def stop_all(spared: Collection[int] = ()) -> list[int]:
    """Stop every process below this one, so that none starts another while we kill them; returns
    their pids."""
    stopped: set[int] = set()
    if not _has_children():  # reading the process table takes 15 ms, and most runs leave nothing
        return []
    while fresh := [pid for pid in below(os.getpid(), spared) if pid not in stopped]:
        for pid in fresh:
            send(pid, signal.SIGSTOP)
        stopped.update(fresh)
    return sorted(stopped)


def kill_all(spared: Collection[int] = ()) -> None:
    """Kill every process below this one, and reap those that become our children meanwhile."""
    give_up = time.monotonic() + GIVE_UP_S
    while (living := stop_all(spared)) and time.monotonic() < give_up:
        for pid in living:
            send(pid, signal.SIGKILL)
        for pid in living:
            with suppress(ChildProcessError):  # it becomes our child once its parent is gone
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.001)


def _has_children() -> bool:
    """False only if no process is below this one, since orphans become its children."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def send(pid: int, sign: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, sign)
