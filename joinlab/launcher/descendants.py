"""Ends everything that a process has started, whatever group or session it is in.

`adopt` makes this process a subreaper (Linux): a descendant whose parent dies becomes our child, not init's. So every
descendant stays below us in the tree of processes, and once we have no child left, nothing is left. Elsewhere only the
process groups that we know of can be ended.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Collection
from contextlib import suppress

import psutil

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
"""From linux/prctl.h."""

SEGMENTS = "segments"
"""In the run's folder: names of the shared memory segments that ranks have made, one a line."""

GIVE_UP_S = 10.0
"""A killed process that has not ended by then is stuck in the kernel, which waiting cannot change."""


def adopt() -> None:
    """From now on, inherit every orphan below this process."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent() -> None:
    """Have this process killed when its parent ends."""
    if sys.platform == "linux":
        parent = os.getppid()
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended just before
            os._exit(1)


def below(root: int, spared: Collection[int] = ()) -> list[int]:
    """Every living process below `root`, without those `spared` and what is below them.

    All from one look at the table of processes, and through zombies: a process whose parent ends between two looks
    would be seen below neither its old parent nor its new one.
    """
    children: dict[int, list[int]] = {}
    zombies: set[int] = set()
    for process in psutil.process_iter(["ppid", "status"]):
        children.setdefault(process.info["ppid"], []).append(process.pid)
        if process.info["status"] == psutil.STATUS_ZOMBIE:
            zombies.add(process.pid)
    found = [pid for pid in children.get(root, ()) if pid not in spared]
    for pid in found:
        found += children.get(pid, ())
    return [pid for pid in found if pid not in zombies]


def stop_all(spared: Collection[int] = ()) -> list[int]:
    """Stop every process below this one; returns their pids. Stopped, none can start another while we kill them."""
    stopped: set[int] = set()
    if not _has_children():  # a look at all processes takes 15 ms, and most runs leave nothing
        return []
    while fresh := [pid for pid in below(os.getpid(), spared) if pid not in stopped]:
        for pid in fresh:
            send(pid, signal.SIGSTOP)
        stopped.update(fresh)
    return sorted(stopped)


def kill_all(spared: Collection[int] = ()) -> None:
    """Kill every process below this one, and take leave of those that become our children on the way."""
    give_up = time.monotonic() + GIVE_UP_S
    while (living := stop_all(spared)) and time.monotonic() < give_up:
        for pid in living:
            send(pid, signal.SIGKILL)
        for pid in living:
            with suppress(ChildProcessError):  # not our child yet: it will be, once its parent is gone
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.001)


def _has_children() -> bool:
    """False only if no process is below this one: orphans would be its children."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def send(pid: int, sign: signal.Signals) -> None:
    """Signal one process, if it is still there."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, sign)
