"""One rank, in a process of its own: from the fork to its end.

A rank may be forked before there is a run for it. While it waits it rehearses: it runs the first
case by itself, which touches the memory that a run will write to. The copies of those pages are what
makes the first run of a forked process slow.

It ends like a process of the forum script: when the program returns, the process exits without
notifying its peers. Its output and its record are in files by then.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import random
import select
import signal
import socket
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import cloudpickle
import numpy as np
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore
from torch.distributed import distributed_c10d as c10d

from joinlab.launcher import default_device, descendants
from joinlab.launcher.frames import receive
from joinlab.launcher.rehearsal import rehearse
from joinlab.launcher.side_effects import SideEffects
from joinlab.program.log_events import ProgramRaised, ProgramRefused, ProgramReturned
from joinlab.program.misuse import program_site
from joinlab.program.outcome import at_exit, text_of, to_plain, traceback_text, versions
from joinlab.program.plain_data import encode
from joinlab.program.process_group import DefaultGroupGone, NoSuchRank, check_init_process_group
from joinlab.program.program import Inputs, as_torchrun, call_program
from joinlab.program.replicas import Replicas
from joinlab.program.sources import know_cells
from joinlab.recorder.events import EventLog, log_name, output_name, return_name
from joinlab.recorder.nccl_log import NcclLog
from joinlab.recorder.recorded_traces import RecordedTrace
from joinlab.recorder.recorder import Recorder
from joinlab.showing import site_text

STORE = "address of the store"
CONNECT_S = 20.0
"""A peer that has not connected after this long has died; the program's first collective will
fail."""
IDLE_S = 0.03
"""A rank that waits so long for its run rehearses it."""


class RankProcess:
    """The process of one rank, and what it was given before the fork.

    link    to the keeper: a run's request comes there
    trouble  a pipe for errors of the setup and of the record, since files may be unusable
    """

    def __init__(
        self,
        recorder: Recorder,
        rank: int,
        link: socket.socket,
        trouble: int,
    ) -> None:
        self.recorder = recorder
        self.rank = rank
        self.link = link
        self.trouble = trouble

    def live(self, warm: bool) -> NoReturn:
        """Wait for a run, run its program, and exit. Called in a freshly forked process.

        warm  the server has run a backward pass, so this process may
        """
        code = 1
        try:
            os.setsid()  # a process group of its own, which the keeper can end
            descendants.die_with_parent()
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            if warm and not select.select([self.link], [], [], IDLE_S)[0]:
                self._warm_up()
            code = self._run(receive(self.link))
        except EOFError:  # there is no run for it
            code = 0
        except BaseException as error:
            self.complain(f"could not be ended: {text_of(error)}")
        finally:
            flush()
            os._exit(code)

    def _warm_up(self) -> None:
        rehearse(self.recorder)
        gc.collect()
        gc.freeze()

    def complain(self, what: str) -> None:
        """Tell the launcher that this rank could not run, or can no longer record."""
        text = what[:3000]  # below PIPE_BUF: one piece
        os.write(self.trouble, json.dumps({"rank": self.rank, "trouble": text}).encode() + b"\n")

    def call_beyond(self, name: str, error: Exception) -> None:
        """Report a call of the program that joinlab cannot follow."""
        self.complain(f"calls {name}{site_text(program_site())}: {error}")

    def cannot_record(self, error: Exception) -> None:
        """Its log can take no further event."""
        if isinstance(error, NoSuchRank):
            self.call_beyond("send or recv", error)
        else:
            self.complain(f"could not go on recording: {text_of(error)}")

    def _run(self, request: Mapping[str, object]) -> int:
        try:
            self._become(request)
            run = RankRun(self, request)
        except Exception as error:
            self.complain(f"could not be set up: {text_of(error)}")
            return 1
        gc.enable()
        try:
            program = cloudpickle.loads(request["program"])
            find_classes()
        except BaseException as error:
            self.recorder.log.write(ProgramRefused(text=f"{type(error).__name__}: {error}"))
            return 1
        return run.go(program)

    def _become(self, request: Mapping[str, Any]) -> None:
        """Take the environment and working directory of the caller's process."""
        os.environ.clear()
        os.environ.update(request["environ"])
        os.environ.update(request.get("settings", {}))
        if os.environ.pop("JOINLAB_NCCL_HOSTS", None):
            os.environ["NCCL_HOSTID"] = f"joinlab-{self.rank}"
        port = request["environ"].get("MASTER_PORT") or request["port"]
        os.environ.update(as_torchrun(self.rank, len(request["inputs"]), port))
        sys.path[:] = request["path"]
        sys.argv[:] = [request["name"]]
        os.chdir(request["cwd"])
        know_cells(request["cells"])
        atexit._clear()
        torch.set_num_threads(1)  # ranks share the machine; torchrun does the same


class RankRun:
    """One run of a program by this rank: its log, its output and what it returns are files in the
    run's folder."""

    def __init__(self, process: RankProcess, request: Mapping[str, Any]) -> None:
        self.process = process
        self.request = request
        self.rank, self.recorder = process.rank, process.recorder
        self.ranks = len(request["inputs"])
        self._start_recording()
        recorder = self.recorder
        recorder.models = self.replicas = Replicas(
            recorder.log.write, lambda: recorder.issued, at_end=True
        )

    def go(self, program: Any) -> int:
        """Run the program, and record how it ends; returns the exit code."""
        connected = False
        effects = SideEffects(str(self.folder), self.recorder.log.write)
        try:
            _seed(self.request["seeds"][self.rank])
            self._connect()
            connected = True
            inputs = Inputs(self.request["inputs"][self.rank], self.recorder.mark_input)
            effects.begin()
            value = self._follow(partial(call_program, program, self.rank, inputs))
            threading._shutdown()  # type: ignore[attr-defined]  # wait for its threads, as any script does at its end
        except BaseException as error:
            if not (isinstance(error, SystemExit) and error.code in (None, 0)):
                self._raised(error, connected)
                return 1
            value = None
        self.recorder.end_program(at_exit("its program has returned"))
        self._keep(value)
        flush()
        self.replicas.ended()
        self.recorder.misuse.ended()
        self.recorder.log.write(ProgramReturned())
        atexit._run_exitfuncs()
        flush()
        return 0

    def _raised(self, error: BaseException, connected: bool) -> None:
        trace = traceback_text(error)
        self._explain(error)
        print(trace, end="", file=sys.stderr, flush=True)
        text = text_of(error)
        self.recorder.end_program(at_exit(f"its program has raised {text}"))
        self.recorder.log.write(ProgramRaised(text=text, traceback=trace, connected=connected))
        flush()

    def _start_recording(self) -> None:
        self.folder = Path(self.request["folder"])
        out = os.open(
            self.folder / output_name(self.rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600
        )
        redirect(out)
        os.close(out)
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]
        descendants.note_shared_memory(self.folder / descendants.SEGMENTS)

        log = EventLog(self.folder / log_name(self.rank), self.process.cannot_record)
        self.recorder.start(log, self.rank)
        if self.request["backend"] == "nccl":
            self.recorder.nccl_log = NcclLog(self.folder, self.rank)
        self.recorder.begin(versions(self.request["nccl"]))

    def _connect(self) -> None:
        if self.request["backend"] == "nccl":
            device = torch.device("cuda", self.rank % self.request["gpus"])
            torch.cuda.set_device(device)
            default_device.make_default(device)
        host, port = (self.folder / STORE).read_text().split()
        served = TCPStore(host, int(port), timeout=c10d.default_pg_timeout)
        store = c10d.PrefixStore("default_pg", served)
        dist.init_process_group(
            self.request["backend"], store=store, rank=self.rank, world_size=self.ranks
        )
        # Wait for all peers: gloo fails on a rank that is still connecting to one whose program has
        # already ended.
        store.add("connected", 1)
        give_up = time.monotonic() + CONNECT_S
        while store.add("connected", 0) < self.ranks and time.monotonic() < give_up:
            time.sleep(0.0005)
        self._own_group()

    def _explain(self, error: BaseException) -> None:
        """Print what else there is to say of an error that the program raised."""
        if self.request["backend"] == "nccl" and "invalid device ordinal" in str(error):
            print(
                f"joinlab: the program names a GPU that is not there: this run has {self.request['gpus']} for "
                f"{self.ranks} ranks. joinlab has made each rank's GPU the default device, so tensors and models need "
                "no .to(rank).",
                file=sys.stderr,
                flush=True,
            )

    def _follow(self, run: Callable[[], object]) -> object:
        """Run the program, and record which of its lines it runs, if that is asked for."""
        if not self.request["ways"]:
            return run()
        return RecordedTrace(self.recorder.log, lambda: self.recorder.issued).follow(run)

    def _keep(self, value: object) -> None:
        path = self.folder / return_name(self.rank)
        try:
            path.write_text(_plain_text(value))
        except OSError as error:  # the disk is full: free the space for the recording
            with suppress(OSError):
                path.unlink(missing_ok=True)
                print(
                    f"joinlab: rank {self.rank}'s return value could not be kept: {error}",
                    file=sys.stderr,
                    flush=True,
                )

    def _own_group(self) -> None:
        """Let the program's own init_process_group find the group that is there."""
        begun: list[bool] = []

        def init_process_group(*args: object, **kwargs: object) -> None:
            default_group = self.request["backend"], self.ranks, self.rank
            try:
                check_init_process_group(default_group, bool(begun), *args, **kwargs)
            except DefaultGroupGone as error:
                self.process.call_beyond("init_process_group", error)
                raise
            begun.append(True)

        c10d.init_process_group = dist.init_process_group = init_process_group


def serve_store(host: str, folder: Path) -> object:
    """Serve the store of a run whose files are in that folder, to this machine alone.

    As torchrun's, it outlives each rank, and a wait for a key raises a DistStoreError.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.create_server((host, 0), family=family)
    port = listening.getsockname()[1]
    (folder / STORE).write_text(f"{host} {port}")
    return TCPStore(
        host,
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=CONNECT_S),
        master_listen_fd=listening.detach(),
    )


def find_classes() -> None:
    """Let pickle find the classes that were typed into a notebook, which came with the program:
    broadcast_object_list() of one, say. It looks for their names in the module that they name."""
    main = sys.modules["__main__"]
    for kind in list(cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID.values()):
        if kind.__module__ == "__main__" and "." not in kind.__qualname__:
            setattr(main, kind.__name__, kind)


def redirect(output: int) -> None:
    """Let what this process prints go into that file."""
    os.dup2(output, 1)
    os.dup2(output, 2)


def _seed(seed: int | None) -> None:
    """Seed torch, numpy and random; None: from the system, since forked ranks would otherwise share
    one state."""
    if seed is None:
        seed = int.from_bytes(os.urandom(4), "little")
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def _plain_text(value: object) -> str:
    """The program's return value as plain data."""
    arrays: dict[str, str] = {}

    def store(npy: bytes) -> str:
        name = str(len(arrays))
        arrays[name] = b64encode(npy).decode("ascii")
        return name

    return json.dumps({"value": encode(to_plain(value), store), "arrays": arrays})


def flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue
