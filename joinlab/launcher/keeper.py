"""The keeper of one run: forks its ranks, reports how they end, and ends their descendants.

It exchanges lines with the launcher over the run's socket. The launcher sends a request (JSON) and
perhaps `kill`; it closes the socket to give up the run. The keeper answers

    {"pids": {rank: pid}}                  the ranks are started
    {"trouble": text, "rank": r}           rank r could not be set up, or can no longer record
    {"error": text}                        a rank could not be started
    {"rank": r, "status": s}               a rank's process has ended (status as of os.waitpid)

It sends the last status only after all descendants of the ranks have ended.
"""

from __future__ import annotations

import json
import os
import re
import selectors
import shutil
import signal
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

from joinlab.launcher import descendants

LOOK_S = 0.2
"""How often the keeper checks whether the fork server still lives."""

SHARED_MEMORY = Path("/dev/shm")


class Keeper:
    """One run: its socket, and its ranks' processes that have not ended."""

    def __init__(self, link: socket.socket, server: int) -> None:
        self.link = link
        self.server = server
        self.folder = ""
        self.ranks: dict[int, int] = {}  # pid -> rank
        self.segments: set[str] = set()
        self.incoming = b""
        self.over = False
        descendants.adopt()
        self.child_pipe, self.wake = os.pipe()
        self.trouble_pipe, self.trouble = os.pipe()
        for fd in (self.child_pipe, self.wake, self.trouble_pipe):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(self.wake)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._terminated)
        self.selector = selectors.DefaultSelector()
        for source in (link, self.child_pipe, self.trouble_pipe):
            self.selector.register(source, selectors.EVENT_READ)

    def keep(self) -> None:
        """Follow the run until the launcher closes it, then end its processes and remove its
        folder."""
        try:
            while not self.over and os.getppid() == self.server:
                for key, _ in self.selector.select(LOOK_S):
                    if key.fd == self.child_pipe:
                        os.read(self.child_pipe, 4096)
                    elif key.fd == self.trouble_pipe:
                        self._forward_trouble()
                    else:
                        self._hear()
                self._reap()
        finally:
            self._end_everything()
            if self.folder:  # if the launcher is gone, it cannot remove it
                shutil.rmtree(self.folder, ignore_errors=True)

    def kill(self) -> None:
        """Kill every rank's process group.

        All are stopped before the first is killed: a living rank would see a killed peer's
        connection close, and would record an error that only this kill has caused.
        """
        for sign in (signal.SIGSTOP, signal.SIGKILL):
            for pid in self.ranks:
                _signal_group(pid, sign)

    def _terminated(self, *_: Any) -> None:
        self.over = True

    def _hear(self) -> None:
        try:
            data = self.link.recv(1 << 20)
        except OSError:
            data = b""
        if not data:
            self.over = True
            return
        *lines, self.incoming = (self.incoming + data).split(b"\n")
        for line in lines:
            if line == b"kill":
                self.kill()
            else:
                self._start(json.loads(line))

    def _start(self, request: dict[str, Any]) -> None:
        self.folder = request["folder"]
        for rank in range(len(request["inputs"])):
            try:
                pid = os.fork()
            except OSError as error:
                self.kill()
                self._tell({"error": f"could not start the process of rank {rank}: {error}"})
                return
            if pid == 0:
                self._be_rank(request, rank)
            self.ranks[pid] = rank
        self._tell({"pids": {rank: pid for pid, rank in self.ranks.items()}})

    def _be_rank(self, request: dict[str, Any], rank: int) -> None:
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self.selector.close()
            for fd in (self.child_pipe, self.wake, self.trouble_pipe):
                os.close(fd)
            self.link.close()
            from joinlab.launcher.rank import run_rank

            run_rank(request, rank, self.trouble)
        finally:
            os._exit(1)

    def _forward_trouble(self) -> None:
        with suppress(BlockingIOError):
            for line in os.read(self.trouble_pipe, 1 << 16).splitlines():
                self._tell(json.loads(line))

    def _tell(self, message: dict[str, Any]) -> None:
        try:
            self.link.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self.over = True

    def _reap(self) -> None:
        for pid in list(self.ranks):
            # End the rank's process group before reaping the rank: until then no other process can
            # get its pid.
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
                continue
            self._forward_trouble()  # written before it ended
            _signal_group(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            rank = self.ranks.pop(pid)
            if not self.ranks:
                self._end_everything()
            self._tell({"rank": rank, "status": status})
        with suppress(ChildProcessError):  # reap an orphan of a rank that has ended
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT | os.WNOHANG)
            if self.ranks and found is not None and found.si_pid not in self.ranks:
                os.waitpid(found.si_pid, os.WNOHANG)

    def _end_everything(self) -> None:
        for pid in descendants.stop_all():
            self.segments |= _segments_of(pid)
        self.kill()
        descendants.kill_all()
        if self.folder:
            with suppress(OSError):
                self.segments |= set(
                    (Path(self.folder) / descendants.SEGMENTS).read_text().splitlines()
                )
        for name in self.segments:
            if "/" not in name and name not in ("", ".", ".."):
                with suppress(OSError):
                    (SHARED_MEMORY / name).unlink()
        self.segments.clear()


def _segments_of(pid: int) -> set[str]:
    """Names of the shared memory segments of torch that a process has mapped; they contain its
    pid."""
    with suppress(OSError):
        return set(
            re.findall(rf"{SHARED_MEMORY}/(torch_{pid}_\S+)", Path(f"/proc/{pid}/maps").read_text())
        )
    return set()


def _signal_group(pid: int, sign: signal.Signals) -> None:
    for kill in (os.killpg, os.kill):  # the group exists once the rank has called setsid
        with suppress(ProcessLookupError, PermissionError):
            kill(pid, sign)
