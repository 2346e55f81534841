"""Finds processes, listening sockets and files that a launch has left behind. Every test that
launches uses it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil

from joinlab.launcher import isolated
from joinlab.launcher.forkclient import ForkServer
from joinlab.launcher.spares import SPARES


def rank_processes() -> list[psutil.Process]:
    """Every process below the fork servers of this process: keepers, ranks, and what they started.

    A keeper ends a moment after its run; the time given to it is a bound, not a measure.
    """
    isolated.leave()  # the process of the last call, kept for the next one
    SPARES.close()
    below = []
    for server in ForkServer.running():
        with suppress(psutil.NoSuchProcess):
            below += psutil.Process(server.process.pid).children(recursive=True)
    return psutil.wait_procs(below, timeout=60)[1]


def alive(pids: Iterable[int]) -> list[psutil.Process]:
    """Those of these processes that do not end; the time given to them is a bound, not a
    measure."""
    found = []
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            found.append(psutil.Process(pid))
    _, left = psutil.wait_procs(found, timeout=60)
    return [one for one in left if one.status() != psutil.STATUS_ZOMBIE]


def run_folders(pid: int | None = None) -> list[Path]:
    """Folders of runs that the process `pid` (this one) launched."""
    return sorted(Path(tempfile.gettempdir()).glob(f"joinlab-{pid or os.getpid()}-*"))


def listening() -> list[str]:
    """Listening sockets of this process and everything below it."""
    me = psutil.Process(os.getpid())
    found = []
    for process in (me, *me.children(recursive=True)):
        try:
            found += [
                f"{process.pid} {c.laddr}"
                for c in process.net_connections()
                if c.status == psutil.CONN_LISTEN
            ]
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def assert_nothing_left() -> None:
    """Fail if a run of this process left a process, a port or a file behind."""
    assert rank_processes() == []
    assert listening() == []
    assert run_folders() == []
