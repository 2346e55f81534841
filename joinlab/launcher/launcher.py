"""`launch`: run a program as real processes, one per rank, and record it as a Timeline.

This module checks the arguments, chooses the backend and begins the run. The ranks are forked from
a warm server: forkclient.py is the launcher's end of it, forkserver.py and keeper.py are the other
end, and rank.py is the code of a rank. monitor.py follows the ranks until they end.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil

from joinlab.errors import LaunchError, LaunchInterrupted, ProgramError
from joinlab.interrupts import HeldInterrupts, interruptible
from joinlab.launcher.forkclient import ForkServer, no_temporary_folder, pickled, rank_request
from joinlab.launcher.frames import frame
from joinlab.launcher.monitor import BY_USER, INTERRUPTED, Watch
from joinlab.launcher.spares import SPARES
from joinlab.launcher.terminal import Echo, Listener
from joinlab.ops import counted
from joinlab.program.program import (
    MAX_RANKS,
    Program,
    check_inputs,
    check_program,
    check_seconds,
    check_seed,
    program_name,
)
from joinlab.program.sources import source_of
from joinlab.timeline import Ending, EndKind, Meta, Timeline, timeline_from_rows

FOLDER = "joinlab-"
"""A run's folder is named joinlab-<pid of the launcher>-<random>."""

REMOVE_S = 5.0
"""Ranks whose keeper was killed end within this time."""
LOOPBACK_S = 1.0
"""A connection over the loopback interface that takes longer than this does not work."""
EMULATION_S = 30.0
"""Real seconds after which the emulation of a launched program is given up."""


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
    backend      "gloo" (CPU) or "nccl" (GPUs); None takes NCCL if there is a GPU for each rank, else gloo;
                 `timeline.meta["backend"]` says which
    seed         seeds torch, numpy and random on every rank: one int for all, one per rank, or None for random ones
    timeout      seconds after which the run is ended; its living ranks are "killed"
    no_progress  seconds without any event after which living ranks are "hung (suspected)", unless one of them computes;
                 a hang that the matching rule proves ends the run at once
    on_output    called with (rank, line) for each line that a rank prints, while it runs; "echo" prints them, None
                 is silent. `timeline.output` keeps the first and the last 2 MB per rank
    progress     show a progress bar if the run takes long; or a function, called now and then with the number of inputs
                 that all ranks together have processed
    stop         a function that is polled, such as the `is_set` of a threading.Event. Once it returns True the run
                 is over: its living ranks are "killed", "stopped on request"
    ways         record which of the program's lines each rank runs, so that the story shows the test where ranks part,
                 with its values; before Python 3.12, training a tiny model then takes up to two thirds longer

    How a rank ends is data: see `timeline.ends` or `joinlab.diagnose(timeline)`. Raises
    ProgramError for an invalid program or argument, LaunchError if the machine cannot run it, and
    LaunchInterrupted, which carries the Timeline so far, if the cell is interrupted. In no case
    does it leave a process, port or file behind. LaunchError also names the line in which a program
    makes a second default group after destroy_process_group(), or sends to a rank that is not in
    the group; `joinlab record` follows a script that does the former.

        timeline = joinlab.launch(joinlab.cases.case_4, inputs=(5, 6))
    """
    check_program(program)
    counts = check_inputs(inputs, MAX_RANKS)
    seeds = check_seed(seed, len(counts))
    check_seconds("timeout", timeout)
    check_seconds("no_progress", no_progress)
    if backend is not None and (
        not isinstance(backend, str) or backend.lower() not in ("gloo", "nccl")
    ):
        raise ProgramError(f'backend= is "gloo", "nccl" or None; got {backend!r}')
    listener = Echo() if on_output == "echo" else on_output
    if listener is not None and not callable(listener):
        raise ProgramError(
            f'on_output= is "echo", None or a function of (rank, line); got {on_output!r}'
        )
    if not callable(progress) and not isinstance(progress, bool):
        raise ProgramError(
            f"progress= is True, False or a function of a number of inputs; got {progress!r}"
        )
    if stop is not None and not callable(stop):
        raise ProgramError(f"stop= is None or a function that says whether to stop; got {stop!r}")
    if find_spec("torch") is None:
        raise LaunchError(
            "joinlab.launch needs torch, which is not installed: pip install 'joinlab[lab]'"
        )
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
        # raised only where the run can be ended; elsewhere files or processes would be left
        with HeldInterrupts():
            timeline = _run(
                sent,
                meta,
                backend and backend.lower(),
                interruptible(listener) if listener else None,
                interruptible(progress) if callable(progress) else progress,
                interruptible(stop) if stop else None,
                timeout,
                no_progress,
                ways,
            )
        timeline.live.rerun = lambda: _emulated(program, meta)
        return timeline
    except LaunchInterrupted:
        raise
    except KeyboardInterrupt:  # before the first rank was started, or after the last one ended
        ends = [Ending(EndKind.KILLED, text=BY_USER)] * len(counts)
        raise LaunchInterrupted(
            INTERRUPTED, timeline or timeline_from_rows([], ends, meta)
        ) from None


def _emulated(program: Program, meta: Meta) -> Timeline:
    """The launched program, emulated."""
    from joinlab.emulator.emulate import emulate

    seeds = [seed for seed in meta["seeds"] if seed is not None]
    return emulate(
        program, meta["inputs"], meta["backend"], seed=seeds or None, timeout=EMULATION_S
    )


def _run(
    sent: bytes,
    meta: Meta,
    backend: str | None,
    listener: Listener | None,
    progress: bool | Callable[[int], None],
    stop: Callable[[], bool] | None,
    timeout: float,
    no_progress: float,
    ways: bool,
) -> Timeline:
    to_any_rank = rank_request(sent, meta["program"])  # first: it checks the current folder
    server = ForkServer.get()
    counts = meta["inputs"]
    machine = server.machine()
    if machine["gpus"]:  # the program may use one, whatever its backend: see forkserver.py
        server = ForkServer.get(warm=False)
    chosen, settings = choose_backend(machine, backend, len(counts))
    host = loopback()
    if chosen == "gloo":
        settings["JOINLAB_GLOO_HOST"] = host
    else:  # so that NCCL says how long each call ran
        settings["TORCH_NCCL_ENABLE_TIMING"] = os.environ.get("TORCH_NCCL_ENABLE_TIMING", "1")
    meta["backend"] = chosen
    meta["transport"] = "sockets" if "NCCL_SOCKET_IFNAME" in settings or chosen == "gloo" else None
    _sweep()
    try:
        folder = Path(tempfile.mkdtemp(prefix=f"{FOLDER}{os.getpid()}-"))
    except OSError as error:
        raise LaunchError(no_temporary_folder(error)) from error
    lock = _hold(folder)
    try:
        try:
            str(folder).encode()
        except UnicodeEncodeError as error:
            why = "its name is not UTF-8, which torch needs to open a file"
            raise LaunchError(no_temporary_folder(OSError(why))) from error
        to_ranks = {
            **to_any_rank,
            "folder": str(folder),
            "inputs": counts,
            "seeds": meta["seeds"],
            "backend": chosen,
            "gpus": machine["gpus"],
            "nccl": machine["nccl"],
            "settings": settings,
            "port": _free_port(),
            "ways": ways,
        }
        request = {
            "ranks": len(counts),
            "folder": str(folder),
            "host": host,
            "to_ranks": frame(to_ranks),
        }
        watch = Watch(server, folder, tuple(counts), meta, listener, progress, stop)
        begun = time.monotonic()
        timeline = watch.follow(request, timeout, no_progress)
        timeline.meta["seconds"] = round(time.monotonic() - begun, 3)
        return timeline
    finally:
        SPARES.prepare(server, len(counts))
        _remove(folder)
        os.close(lock)


def _remove(folder: Path) -> None:
    """Remove a run's folder. If its keeper was killed, ranks may still be writing to it."""
    give_up = time.monotonic() + REMOVE_S
    while folder.exists():
        shutil.rmtree(folder, ignore_errors=True)
        if time.monotonic() > give_up:
            return
        time.sleep(0.001)


def _hold(folder: Path) -> int:
    """A descriptor that locks the folder while this process lives. OSError if another process holds
    it."""
    import fcntl  # missing on Windows, where ForkServer has refused already

    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise
    return lock


def _sweep() -> None:
    """Remove the folders of runs whose launcher ended without removing them.

    Two containers may share the folders without seeing each other's processes; the lock shows that
    a launcher lives.
    """
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDER}*-*"):
        pid = folder.name.removeprefix(FOLDER).partition("-")[0]
        if pid.isdigit() and not psutil.pid_exists(int(pid)):
            with suppress(OSError):
                lock = _hold(folder)
                shutil.rmtree(folder, ignore_errors=True)  # another user's folder cannot be removed
                os.close(lock)


def _free_port() -> str:
    """A free port, for the ranks' MASTER_PORT. The default group does not use it."""
    with socket.socket() as probe, suppress(OSError):
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])
    return "29500"


def choose_backend(
    machine: dict[str, Any], backend: str | None, ranks: int
) -> tuple[str, dict[str, str]]:
    """The backend to use, and the environment variables that its ranks need.

    `machine` is {"gpus", "nccl"}, see ForkServer.machine. NCCL takes one GPU per rank. If asked for
    by name, it also takes one GPU shared by two ranks, which it would refuse by itself. Raises
    LaunchError if the machine cannot run the request.
    """
    gpus = int(machine["gpus"])
    enough = gpus >= ranks or (gpus == 1 and ranks == 2)
    if backend is None:
        backend = "nccl" if gpus >= ranks else "gloo"
    if backend == "gloo":
        return "gloo", {}
    if not gpus:
        raise LaunchError(
            'backend="nccl" needs an NVIDIA GPU, and PyTorch sees none here. Use backend="gloo", which runs on the CPU.'
        )
    if not enough:
        raise LaunchError(
            f'backend="nccl" was asked to run {ranks} ranks on {counted(gpus, "GPU")}. It takes one GPU per '
            'rank, or two ranks on a single GPU. Ask for fewer ranks, or use backend="gloo".'
        )
    return "nccl", _sharing(machine["nccl"]) if gpus < ranks else {}


def _sharing(nccl: str) -> dict[str, str]:
    """Environment variables with which NCCL accepts two ranks on one GPU.

    Since 2.30.3 it does if told to (ncclCheckMultiRank in src/graph/topo.cc, v2.30.3-1). Before, it
    compares the GPUs of ranks of one host only, by a hash of NCCL_HOSTID (initTransportsRank in
    src/init.cc and getHostHash in src/misc/utils.cc, v2.29.7-1).
    """
    if tuple(map(int, nccl.split(".")[:3])) >= (2, 30, 3):
        return {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}
    # Each rank claims to be another host (rank.py adds its number), so they connect over loopback
    # sockets.
    sockets = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1", "NCCL_NET": "Socket"}
    return {"JOINLAB_NCCL_HOSTS": "1", **sockets}


def loopback() -> str:
    """The address of the loopback interface, over which ranks connect to their store, and on gloo."""
    error: OSError | None = None
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        try:
            with socket.create_server((host, 0), family=family) as server:
                socket.create_connection(server.getsockname()[:2], LOOPBACK_S).close()
            return host
        except OSError as failure:
            error = error or failure
    raise LaunchError(
        f"ranks connect over the loopback interface, and none of its ports can be used: {error}. Bring it up "
        "(ip link set lo up), or end processes that hold its ports."
    )
