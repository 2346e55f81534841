"""`launch`: run a program as real processes, one a rank, and record it as a Timeline.

Here the request is checked, the backend chosen and the run begun. The ranks are forked from a warm server
(forkclient.py is the launcher's end of it, forkserver.py and keeper.py the other, rank.py what a rank does); monitor.py
follows them to their ends.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil

from joinlab.errors import LaunchError, LaunchInterrupted, ProgramError
from joinlab.interrupts import HeldInterrupts, interruptible
from joinlab.launcher.forkclient import ForkServer, no_temporary_folder, pickled
from joinlab.launcher.monitor import BY_USER, INTERRUPTED, Watch
from joinlab.launcher.terminal import Echo, Listener
from joinlab.program.program import (
    MAX_RANKS,
    Program,
    check_inputs,
    check_program,
    check_seed,
    current_folder,
    program_name,
)
from joinlab.program.sources import source_of, texts_of_cells
from joinlab.recorder.events import PROGRAM
from joinlab.timeline import Ending, EndKind, Meta, Timeline, timeline_from_rows

FOLDER = "joinlab-"
"""A run's folder is named joinlab-<pid of the launcher>-<random>."""


def launch(
    program: Program,
    inputs: Sequence[int] = (5, 6),
    backend: str | None = None,
    *,
    seed: int | Sequence[int] | None = 0,
    timeout: float = 300.0,
    no_progress: float = 30.0,
    ways: bool = False,
    on_output: Listener | str | None = "echo",
    progress: bool | Callable[[int], None] = True,
    stop: Callable[[], bool] | None = None,
) -> Timeline:
    """Run `program(rank, inputs)` in one process per rank and return what happened.

    inputs       one count per rank, 1 to 16 ranks: (5, 6) gives rank 0 five inputs and rank 1 six; 0 is allowed
    backend      "gloo" (CPU) or "nccl" (GPUs); None takes NCCL where the GPUs are there and gloo elsewhere, and
                 `timeline.meta["backend"]` says which
    seed         seeds torch, numpy and random on every rank: one int for all, one per rank, or None for random ones
    timeout      seconds after which a run that still goes on is ended; its living ranks are "killed"
    no_progress  seconds without any event after which living ranks are "hung (suspected)", unless one of them computes;
                 a hang that the matching rule proves ends the run at once
    on_output    called with (rank, line) for each line that a rank prints, while it runs; "echo" prints them, None
                 is silent. `timeline.output` has everything, the middle of more than 4 MB per rank excepted
    progress     show a progress bar if the run takes long; or a function, called now and then with the number of inputs
                 that all ranks together have been through
    stop         a function that is asked all the time, such as the `is_set` of a threading.Event. Once it says True
                 the run is over: its living ranks are "killed", "stopped on request"

    ways         follow which of the program's lines each rank runs, so that the test where they part is told with its
                 values; before Python 3.12 a training of a tiny model then takes up to two thirds longer

    How a rank ends is data: look at `timeline.ends` or `joinlab.diagnose(timeline)`. Raises ProgramError for what
    is no program or no inputs, LaunchError where the machine cannot run it, and LaunchInterrupted, which carries the
    Timeline so far, when the cell is interrupted. No process, port or file is left behind in any case.

        timeline = joinlab.launch(joinlab.cases.case_4, inputs=(5, 6))
    """
    check_program(program)
    counts = check_inputs(inputs, MAX_RANKS)
    seeds = check_seed(seed, len(counts))
    for name, value in (("timeout", timeout), ("no_progress", no_progress)):
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not value > 0:
            raise ProgramError(f"{name}= is a number of seconds above 0; got {value!r}")
    if backend is not None and (not isinstance(backend, str) or backend.lower() not in ("gloo", "nccl")):
        raise ProgramError(f'backend= is "gloo", "nccl" or None; got {backend!r}')
    listener = Echo() if on_output == "echo" else on_output
    if listener is not None and not callable(listener):
        raise ProgramError(f'on_output= is "echo", None or a function of (rank, line); got {on_output!r}')
    if not callable(progress) and not isinstance(progress, bool):
        raise ProgramError(f"progress= is True, False or a function of a number of inputs; got {progress!r}")
    if stop is not None and not callable(stop):
        raise ProgramError(f"stop= is None or a function that says whether to stop; got {stop!r}")
    if find_spec("torch") is None:
        raise LaunchError("joinlab.launch needs torch, which is not installed: pip install 'joinlab[lab]'")
    meta: Meta = {
        "program": program_name(program),
        "engine": "launched",
        "world_size": len(counts),
        "inputs": list(counts),
        "seeds": list(seeds),
        "verdict_ns": None,  # when the ranks that still lived were ended
    }
    timeline = None
    try:
        sent = pickled(program, program_name(program))
        meta["source"] = source_of(program)
        how = Watching(
            interruptible(listener) if listener else None,
            interruptible(progress) if callable(progress) else progress,
            interruptible(stop) if stop else None,
            timeout,
            no_progress,
            ways,
        )
        with HeldInterrupts():  # taken where the run can be ended: one anywhere else would leave files or processes
            timeline = _run(sent, meta, backend and backend.lower(), how)
        return timeline
    except LaunchInterrupted:
        raise
    except KeyboardInterrupt:  # before the first rank was started, or after the last one ended
        ends = [Ending(EndKind.KILLED, text=BY_USER)] * len(counts)
        raise LaunchInterrupted(INTERRUPTED, timeline or timeline_from_rows([], ends, meta)) from None


@dataclass(frozen=True, slots=True)
class Watching:
    """How a run is to be watched: arguments of `launch`."""

    listener: Listener | None
    progress: bool | Callable[[int], None]
    stop: Callable[[], bool] | None
    timeout: float
    no_progress: float
    ways: bool


def _run(sent: bytes, meta: Meta, backend: str | None, how: Watching) -> Timeline:
    cwd = current_folder()
    server = ForkServer.get()
    counts = meta["inputs"]
    chosen, settings = choose_backend(server.hello, backend, len(counts))
    if chosen == "gloo":
        settings["JOINLAB_GLOO_HOST"] = loopback()
    meta["backend"] = chosen
    meta["transport"] = "sockets" if "NCCL_SOCKET_IFNAME" in settings or chosen == "gloo" else None
    _sweep()
    try:
        folder = Path(tempfile.mkdtemp(prefix=f"{FOLDER}{os.getpid()}-"))
    except OSError as error:
        raise LaunchError(no_temporary_folder(error)) from error
    held = _hold(folder)
    try:
        try:
            str(folder).encode()
        except UnicodeEncodeError as error:
            why = "its name is no UTF-8, which torch needs to open a file"
            raise LaunchError(no_temporary_folder(OSError(why))) from error
        request = {
            "folder": str(folder),
            "program": meta["program"],
            "inputs": counts,
            "seeds": meta["seeds"],
            "backend": chosen,
            "gpus": server.hello["gpus"],
            "nccl": server.hello["nccl"],
            "settings": settings,
            "environ": dict(os.environ),
            "port": _free_port(),
            "path": [str(entry) for entry in sys.path],  # a Path among them is of no use to Python, but common
            "cwd": cwd,
            "cells": texts_of_cells(sent),
            "ways": how.ways,
        }
        try:
            (folder / PROGRAM).write_bytes(sent)
        except OSError as error:
            raise LaunchError(no_temporary_folder(error)) from error
        watch = Watch(server, folder, tuple(counts), meta, how.listener, how.progress, how.stop)
        return watch.follow(request, how.timeout, how.no_progress)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


def _hold(folder: Path) -> int:
    """A descriptor that locks the folder while this process lives. OSError if another process holds it."""
    import fcntl  # no Windows has it, and none comes here

    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(held)
        raise
    return held


def _sweep() -> None:
    """Remove the folders of runs whose launcher is gone without having done so.

    Two containers may share the folders and not see each other's processes: there the lock tells who lives.
    """
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDER}*-*"):
        pid = folder.name.removeprefix(FOLDER).partition("-")[0]
        if pid.isdigit() and not psutil.pid_exists(int(pid)):
            with suppress(OSError):
                held = _hold(folder)
                shutil.rmtree(folder, ignore_errors=True)  # not ours to remove if it is another user's
                os.close(held)


def loopback() -> str:
    """The address at which ranks on gloo find each other: that of the machine's own interface."""
    error: OSError | None = None
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        try:
            with socket.socket(family) as probe:
                probe.bind((host, 0))
                return host
        except OSError as found:
            error = error or found
    raise LaunchError(
        f"ranks on gloo talk over the loopback interface, and no port of it can be had: {error}. Bring it up (ip link "
        "set lo up), or end processes that hold its ports."
    )


def _free_port() -> str:
    """A port that no one uses now: what a rank is given as MASTER_PORT. Its default group does not need it."""
    with socket.socket() as probe, suppress(OSError):
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])
    return "29500"


def choose_backend(machine: dict[str, Any], backend: str | None, ranks: int) -> tuple[str, dict[str, str]]:
    """The backend to use, and the environment variables that its ranks need.

    `machine` is what the fork server said of itself: {"gpus", "nccl", "gloo"}. NCCL takes one GPU a rank, or one GPU
    that two ranks share. Raises LaunchError where the machine cannot do what was asked.
    """
    gpus = int(machine["gpus"])
    enough = gpus >= max(ranks, 2) or (gpus == 1 and ranks <= 2) or (gpus >= 1 and ranks == 1)
    if backend is None:
        backend = "nccl" if enough else "gloo"
    if backend == "gloo":
        return "gloo", {}
    if not gpus:
        raise LaunchError(
            'backend="nccl" needs an NVIDIA GPU, and PyTorch sees none here. Use backend="gloo", which runs on the CPU.'
        )
    if not enough:
        raise LaunchError(
            f'backend="nccl" was asked to run {ranks} ranks on {gpus} GPU{"s" * (gpus > 1)}. It takes one GPU a rank, '
            'or two ranks on a single GPU. Ask for fewer ranks, or use backend="gloo".'
        )
    return "nccl", _sharing(machine["nccl"]) if gpus < ranks else {}


def _sharing(nccl: str) -> dict[str, str]:
    """What makes NCCL accept two ranks on one GPU, which it refuses by itself."""
    if tuple(int(part) for part in nccl.split(".")[:3]) >= (2, 30, 3):
        return {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}
    # Each rank claims to be another host (rank.py adds its number), so that they talk over loopback sockets.
    return {"JOINLAB_NCCL_HOSTS": "1", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}
