"""One rank of a launched run, from the fork to its end.

It ends like a process of the forum script: when the program returns, the process exits without
notifying its peers. Its output and its record are in files by then.
"""

from __future__ import annotations

import atexit
import json
import os
import random
import signal
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import cloudpickle
import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.optim.optimizer import register_optimizer_step_post_hook

from joinlab.launcher import default_device, descendants
from joinlab.program.log_events import ProgramRaised, ProgramRefused, ProgramReturned
from joinlab.program.outcome import at_exit, text_of, to_plain, traceback_text, versions
from joinlab.program.plain_data import encode
from joinlab.program.process_group import begin
from joinlab.program.program import Inputs, as_torchrun, call_program
from joinlab.program.replicas import Replicas
from joinlab.program.sources import know_cells
from joinlab.recorder.events import PROGRAM, EventLog, log_name, output_name, return_name
from joinlab.recorder.install import install
from joinlab.recorder.nccl_log import NcclLog
from joinlab.recorder.recorder import Recorder
from joinlab.recorder.ways import RecordedWay

STORE = "rendezvous"
CONNECT_S = 20.0
"""A peer that has not connected after this long has died; the program's first collective will
fail."""


def run_rank(request: Mapping[str, Any], rank: int, trouble: int) -> NoReturn:
    """Run as rank `rank` of the run that `request` describes, then exit. Called in a freshly forked
    process.

    The rank reports errors of its setup and of its record on the pipe `trouble`, since files may be
    unusable.
    """
    code = 1

    def complain(what: str, error: BaseException) -> None:
        line = json.dumps(
            {"rank": rank, "trouble": f"{what}: {text_of(error)}"[:3000]}
        )  # below PIPE_BUF: one piece
        os.write(trouble, line.encode() + b"\n")

    try:
        folder = Path(request["folder"])
        try:
            _own_process(folder, rank, request)
            log = EventLog(
                folder / log_name(rank), lambda error: complain("could not go on recording", error)
            )
            recorder = Recorder(log, rank)
            recorder.models = replicas = Replicas(lambda: recorder.issued, at_end=True)
            if request["backend"] == "nccl":
                recorder.nccl_log = NcclLog(folder, rank)
            install(recorder, versions(request["nccl"]))
            register_optimizer_step_post_hook(lambda optimizer, *_: replicas.stepped(optimizer))
        except Exception as error:
            complain("could not be set up", error)
        else:
            program = _load(recorder, folder)
            if program is not None:
                code = _run(recorder, replicas, program, rank, request)
    except BaseException as error:
        complain("could not be ended", error)
    finally:
        _flush()
        os._exit(code)


def _own_process(folder: Path, rank: int, request: Mapping[str, Any]) -> None:
    """Give the process its own session, output file, environment and working directory; it dies
    with its keeper."""
    os.setsid()  # a process group of its own, which the keeper can end
    descendants.die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    out = os.open(folder / output_name(rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.close(out)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]
    os.environ.clear()
    os.environ.update(request["environ"])
    os.environ.update(request["settings"])
    if os.environ.pop("JOINLAB_NCCL_HOSTS", None):
        os.environ["NCCL_HOSTID"] = f"joinlab-{rank}"
    port = request["environ"].get("MASTER_PORT") or request["port"]
    os.environ.update(as_torchrun(rank, len(request["inputs"]), port))
    sys.path[:] = request["path"]
    sys.argv[:] = [request["program"]]
    os.chdir(request["cwd"])
    know_cells(request["cells"])
    atexit._clear()
    _note_shared_memory(folder / descendants.SEGMENTS)


def _note_shared_memory(path: Path) -> None:
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


def _load(recorder: Recorder, folder: Path) -> Any:
    try:
        return cloudpickle.loads((folder / PROGRAM).read_bytes())
    except BaseException as error:
        recorder.log.write(ProgramRefused(text=f"{type(error).__name__}: {error}"))
        return None


def _run(
    recorder: Recorder, replicas: Replicas, program: Any, rank: int, request: Mapping[str, Any]
) -> int:
    connected = False
    try:
        _seed(request["seeds"][rank])
        _set_device(rank, request)
        _init_process_group(recorder, rank, request)
        connected = True
        run = partial(
            call_program, program, rank, Inputs(request["inputs"][rank], recorder.mark_input)
        )
        value = (
            RecordedWay(recorder.log, lambda: recorder.issued).follow(run)
            if request["ways"]
            else run()
        )
        threading._shutdown()  # type: ignore[attr-defined]  # wait for its threads, as any script does at its end
    except BaseException as error:
        if isinstance(error, SystemExit) and error.code in (None, 0):
            value = None
        else:
            trace = traceback_text(error)
            print(trace, end="", file=sys.stderr, flush=True)
            if request["backend"] == "nccl" and "invalid device ordinal" in str(error):
                print(_ordinal(request), file=sys.stderr, flush=True)
            text = text_of(error)
            recorder.end_program(at_exit(f"its program has raised {text}"))
            recorder.log.write(ProgramRaised(text=text, traceback=trace, connected=connected))
            return 1
    recorder.end_program(at_exit("its program has returned"))
    kept = Path(request["folder"]) / return_name(rank)
    try:
        _keep(kept, value)
    except OSError as error:  # the disk is full: free the space for the recording
        with suppress(OSError):
            kept.unlink(missing_ok=True)
            print(
                f"joinlab: rank {rank}'s return value could not be kept: {error}",
                file=sys.stderr,
                flush=True,
            )
    _flush()
    replicas.ended()
    held = [[*name, value] for mark in replicas.marks for name, value in mark.held.items()]
    recorder.log.write(ProgramReturned(held=held))
    atexit._run_exitfuncs()
    return 0


def _ordinal(request: Mapping[str, Any]) -> str:
    gpus, ranks = request["gpus"], len(request["inputs"])
    return (
        f"joinlab: the program names a GPU that is not there: this run has {gpus} for {ranks} ranks. joinlab has made "
        "each rank's GPU the default device, so tensors and models need no .to(rank)."
    )


def _seed(seed: int | None) -> None:
    """Seed torch, numpy and random; None: from the system, since forked ranks would otherwise share
    one state."""
    seed = int.from_bytes(os.urandom(4), "little") if seed is None else seed
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def _set_device(rank: int, request: Mapping[str, Any]) -> None:
    torch.set_num_threads(1)  # ranks share the machine; torchrun does the same
    if request["backend"] == "nccl":
        device = torch.device("cuda", rank % request["gpus"])
        torch.cuda.set_device(device)
        default_device.make_default(device)


def _init_process_group(recorder: Recorder, rank: int, request: Mapping[str, Any]) -> None:
    n = len(request["inputs"])
    store = dist.FileStore(str(Path(request["folder"]) / STORE), n)  # type: ignore[attr-defined]
    dist.init_process_group(request["backend"], store=store, rank=rank, world_size=n)
    # Wait for all peers: gloo fails on a rank that is still connecting to one whose program has
    # already ended.
    store.add("connected", 1)
    give_up = time.monotonic() + CONNECT_S
    while store.add("connected", 0) < n and time.monotonic() < give_up:
        time.sleep(0.0005)

    begun: list[bool] = []

    def init_process_group(*args: Any, **kwargs: Any) -> None:
        begin((request["backend"], n, rank), bool(begun), *args, **kwargs)
        begun.append(True)

    c10d.init_process_group = dist.init_process_group = init_process_group


def _keep(path: Path, value: Any) -> None:
    """Write the program's return value as plain data."""
    arrays: dict[str, str] = {}

    def store(npy: bytes) -> str:
        name = str(len(arrays))
        arrays[name] = b64encode(npy).decode("ascii")
        return name

    path.write_text(json.dumps({"value": encode(to_plain(value), store), "arrays": arrays}))


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue
