"""The fork server: one process with torch imported, from which runs are forked in milliseconds.

    launcher ── control socket ── fork server            imports torch once, forks one keeper per run
        ├────── run's socket ───────── keeper            forks the ranks, reports and ends them (keeper.py)
        │                                 ├── rank 0 ── its own children
        │                                 └── rank 1
        └────── calls' socket ──────── callee            calls functions, can be killed (isolated.py)

The launcher starts the server on first use and keeps it. It receives each run's socket on the
control socket and passes it to a new keeper.

There are two kinds of server. A `warm` one has made the recorder's patches and run DDP before it
forks, so that what forks from it need not: code, caches and most of the memory that a run touches are
there. It sees no GPU: autograd starts its threads for devices once per process, with the first
backward pass (engine.cpp, a call_once), and a child's first backward pass on a GPU would fail. So ranks
on a machine with GPUs are launched from one that has only imported. Neither kind has a second thread
when it forks; torch has one thread for its operations (a fork of a process that had run a backward
pass with several was seen to hang).

Server and keepers are subreapers (descendants.py), so one SIGKILL cannot leave a process behind: a
keeper whose server is gone ends its run, and the server ends the orphans of a killed keeper. The
server ends when the control socket closes, or when its launcher's process is gone, since another
process may still hold the socket.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import time
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING

from joinlab.interrupts import no_collection
from joinlab.launcher import descendants
from joinlab.launcher.forkclient import CALLS, CHOOSES_GPUS, COUNT, RUN
from joinlab.launcher.frames import frame, receive, send
from joinlab.launcher.isolated import answer
from joinlab.launcher.keeper import Keeper
from joinlab.launcher.memory import collapse_memory

if TYPE_CHECKING:
    from joinlab.recorder.recorder import Recorder

LOOK_S = 0.5
"""How often the server checks whether its launcher still lives, and reaps keepers that have
ended."""

LEAVE_S = 10.0
"""When the server ends, each keeper has this long to end its run; then the server kills the
remaining processes."""


def main(control_fd: int, launcher: int, warm: bool) -> None:
    """Serve until the control socket closes. `control_fd` is inherited from the process
    `launcher`."""
    control = socket.socket(fileno=control_fd)
    try:
        hello, recorder = _prepare(warm)
    except BaseException:
        control.sendall(json.dumps({"error": traceback.format_exc()}).encode() + b"\n")
        return
    descendants.adopt()
    control.sendall(json.dumps(hello).encode() + b"\n")
    Server(control, launcher, recorder, warm).serve()


def _prepare(warm: bool) -> tuple[dict[str, object], Recorder]:
    """Import the modules that ranks need, install the recorder, and return what torch was built
    with."""
    with no_collection():
        import torch
        import torch._dynamo  # DDP's constructor imports it: 800 modules
        import torch.distributed.algorithms.join
        import torch.distributed.optim
        import torch.nn.parallel

        from joinlab.launcher.rehearsal import prepare
        from joinlab.recorder.events import nowhere
        from joinlab.recorder.install import patch
        from joinlab.recorder.recorder import Recorder

    hello = {
        "torch": str(torch.__version__),
        "nccl": torch.distributed.is_nccl_available(),
    }
    if warm:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    torch.set_num_threads(1)
    log = nowhere()
    log.close()  # nothing is recorded before there is a run
    recorder = Recorder(log, 0)
    patch(recorder)
    prepare(recorder, warm)
    gc.collect()
    # so that a garbage collection in a rank does not copy the pages shared with the server
    gc.freeze()
    gc.disable()  # a rank that runs a program enables it
    return hello, recorder


def _refusal(kind: bytes, text: str) -> bytes:
    """The refusal of a request, in the format that its reader expects."""
    if kind == CALLS:
        return f"\n{text}".encode()  # the pid comes first, and there is none
    return frame({"error": text})


def gpus_here() -> dict[str, object]:
    """How many GPUs this process sees, and NCCL's version; None without a GPU."""
    import torch

    gpus = torch.cuda.device_count()
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if gpus else None  # type: ignore[no-untyped-call]
    return {"gpus": gpus, "nccl": nccl}


def _count_gpus(link: socket.socket) -> None:
    """Answer how many GPUs a process with these variables sees, and NCCL's version."""
    chosen = receive(link)
    for name in CHOOSES_GPUS:
        os.environ.pop(name, None)
    os.environ.update(chosen)
    try:
        counted = gpus_here()
    except Exception as error:
        counted = {"error": f"{type(error).__name__}: {error}"}
    send(link, counted)


class Server:
    """Forks a keeper for each run; ends with its launcher."""

    def __init__(
        self, control: socket.socket, launcher: int, recorder: Recorder, warm: bool
    ) -> None:
        self.control = control
        self.launcher = launcher
        self.recorder = recorder
        self.warm = warm
        self.collapsed = not warm
        self.keepers: set[int] = set()
        control.settimeout(LOOK_S)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the launcher handles Ctrl-C

    def serve(self) -> None:
        """Serve until the launcher is gone, then end all processes."""
        try:
            while os.getppid() == self.launcher and self._accept():
                self._reap()
        finally:
            self._leave()

    def _accept(self) -> bool:
        """Wait a while for a request, and begin it; False if the control socket has closed."""
        try:
            data, fds, _, _ = socket.recv_fds(self.control, 1, 1)
        except TimeoutError:
            if not self.collapsed:
                self.collapsed = True
                collapse_memory()
            return True
        except OSError:
            return False
        if not data:
            return False
        for fd in fds:
            link = socket.socket(fileno=fd)
            try:
                pid = os.fork()
            except OSError as error:
                with suppress(OSError):
                    link.sendall(_refusal(data, f"could not start a process: {error}"))
                link.close()
                continue
            if pid == 0:
                self._be_child(link, data)
            self.keepers.add(pid)
            link.close()
        return True

    def _be_child(self, link: socket.socket, kind: bytes) -> None:
        try:
            server = os.getppid()
            self.control.close()
            if kind == RUN:
                Keeper(link, server, self.recorder, self.warm).keep()
            elif kind == COUNT:
                _count_gpus(link)
            else:
                answer(link)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while (reaped := os.waitpid(-1, os.WNOHANG))[0]:
                if reaped[0] in self.keepers:
                    self.keepers.discard(reaped[0])
                    descendants.kill_all(spared=self.keepers)  # its orphans, if it was killed

    def _leave(self) -> None:
        for pid in self.keepers:
            descendants.send(pid, signal.SIGTERM)
        give_up = time.monotonic() + LEAVE_S
        while self.keepers and time.monotonic() < give_up:
            self._reap()
            time.sleep(0.005)
        descendants.kill_all()
