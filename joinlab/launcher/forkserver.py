"""The fork server: one process with torch imported, from which ranks are forked in milliseconds.

The launcher starts it on first use and keeps it. It does nothing but fork, reap and kill: no torch operation, no
CUDA, no thread before a fork. Two kinds of sockets tie lives together:

- the control socket: its end means that the launcher's process is gone; the server kills every run and exits;
- one socket per run, handed over on the control socket: its end means that the launcher gave the run up.

On a run's socket the launcher sends a request (a line of JSON), later perhaps `kill`; the server answers with
lines {"pid": [...]} and {"rank", "status"} for each rank that ended (status as of os.waitpid).
"""

from __future__ import annotations

import gc
import json
import os
import selectors
import shutil
import signal
import socket
import sys
import traceback
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Run:
    """One run: its socket, and its ranks' processes that are still alive."""

    link: socket.socket
    folder: str = ""
    ranks: dict[int, int] = field(default_factory=dict)  # pid -> rank
    buffer: bytes = b""
    orphaned: bool = False

    def tell(self, message: dict[str, Any]) -> None:
        """Send one line to the launcher, if it is still there."""
        try:
            self.link.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self.orphaned = True

    def kill(self) -> None:
        """End every rank of the run, and whatever it started.

        All are stopped before the first is killed: otherwise those that still live would see a connection close, and
        record an error that nothing but their own end caused.
        """
        for sign in (signal.SIGSTOP, signal.SIGKILL):
            for pid in self.ranks:
                _signal_group(pid, sign)


def main(control_fd: int) -> None:
    """Serve until the control socket ends. `control_fd` is inherited from the launcher."""
    control = socket.socket(fileno=control_fd)
    try:
        hello = _warm_up()
    except BaseException:
        control.sendall(json.dumps({"error": traceback.format_exc()}).encode() + b"\n")
        return
    control.sendall(json.dumps(hello).encode() + b"\n")
    Server(control).serve()


def _warm_up() -> dict[str, Any]:
    """Import whatever a rank will need, so that no rank has to; say what this machine has."""
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # to count GPUs without touching CUDA before a fork
    import torch
    import torch._dynamo  # DDP's constructor imports it: 800 modules
    import torch.distributed.algorithms.join
    import torch.distributed.optim
    import torch.nn.parallel

    import joinlab.launcher.rank

    assert joinlab.launcher.rank
    gpus = torch.cuda.device_count() if torch.distributed.is_nccl_available() else 0
    hello = {
        "torch": torch.__version__,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if gpus else None,  # type: ignore[no-untyped-call]
        "gpus": gpus,
        "gloo": torch.distributed.is_gloo_available(),
    }
    gc.collect()
    gc.freeze()  # what is shared with the forked ranks shall not be touched by their garbage collectors
    return hello


class Server:
    """Forks ranks on request, reports their ends, and outlives neither its launcher nor a given-up run."""

    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.runs: dict[int, Run] = {}  # by the file number of the run's socket
        self.selector = selectors.DefaultSelector()
        self.selector.register(control, selectors.EVENT_READ)
        self.child_pipe, wake = os.pipe()
        for fd in (self.child_pipe, wake):
            os.set_blocking(fd, False)
        self.wake = wake
        signal.set_wakeup_fd(wake)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the launcher's to handle
        self.selector.register(self.child_pipe, selectors.EVENT_READ)

    def serve(self) -> None:
        """Run until the launcher is gone, then leave nothing behind."""
        try:
            while True:
                for key, _ in self.selector.select():
                    if key.fd == self.child_pipe:
                        os.read(self.child_pipe, 4096)
                        self._reap()
                    elif key.fileobj is self.control:
                        if not self._accept():
                            return
                    elif key.fd in self.runs:
                        self._hear(self.runs[key.fd])
        finally:
            for run in list(self.runs.values()):
                run.orphaned = True
                run.kill()
            while any(run.ranks for run in self.runs.values()):
                self._reap(block=True)
            for run in list(self.runs.values()):
                self._forget(run)

    def _accept(self) -> bool:
        try:
            data, fds, _, _ = socket.recv_fds(self.control, 1, 1)
        except OSError:
            return False
        if not data:
            return False
        for fd in fds:
            link = socket.socket(fileno=fd)
            self.runs[link.fileno()] = Run(link)
            self.selector.register(link, selectors.EVENT_READ)
        return True

    def _hear(self, run: Run) -> None:
        try:
            data = run.link.recv(1 << 20)
        except OSError:
            data = b""
        if not data:  # the launcher is done with the run, or gone
            run.orphaned = True
            run.kill()
            self.selector.unregister(run.link)
            if not run.ranks:
                self._forget(run)
            return
        run.buffer += data
        while b"\n" in run.buffer:
            line, run.buffer = run.buffer.split(b"\n", 1)
            if line == b"kill":
                run.kill()
            else:
                self._fork(run, json.loads(line))

    def _fork(self, run: Run, request: dict[str, Any]) -> None:
        run.folder = request["folder"]
        for rank in range(len(request["inputs"])):
            try:
                pid = os.fork()
            except OSError as error:
                run.kill()
                run.tell({"error": f"could not start the process of rank {rank}: {error}"})
                return
            if pid == 0:
                self._be_rank(request, rank)
            run.ranks[pid] = rank
        run.tell({"pids": {rank: pid for pid, rank in run.ranks.items()}})

    def _be_rank(self, request: dict[str, Any], rank: int) -> None:
        try:
            signal.set_wakeup_fd(-1)
            self.selector.close()
            for fd in (self.child_pipe, self.wake):
                os.close(fd)
            for run in self.runs.values():
                run.link.close()
            self.control.close()
            from joinlab.launcher.rank import run_rank

            run_rank(request, rank)
        finally:
            os._exit(1)

    def _reap(self, block: bool = False) -> None:
        for run in list(self.runs.values()):
            for pid in list(run.ranks):
                # First look, then end what the rank itself started, then reap: only so is its number still its own.
                flags = os.WEXITED | os.WNOWAIT | (0 if block else os.WNOHANG)
                if os.waitid(os.P_PID, pid, flags) is None:
                    continue
                _signal_group(pid, signal.SIGKILL)
                _, status = os.waitpid(pid, 0)
                run.tell({"rank": run.ranks.pop(pid), "status": status})
            if run.orphaned and not run.ranks:
                self._forget(run)

    def _forget(self, run: Run) -> None:
        self.runs = {fd: other for fd, other in self.runs.items() if other is not run}
        run.link.close()
        if run.folder:  # the launcher removes it itself unless it died before
            shutil.rmtree(run.folder, ignore_errors=True)


def _signal_group(pid: int, sign: signal.Signals) -> None:
    for kill in (os.killpg, os.kill):  # the group exists once the rank has called setsid
        try:
            kill(pid, sign)
        except (ProcessLookupError, PermissionError):
            continue


if __name__ == "__main__":
    main(int(sys.argv[1]))
