"""The keeper of one run: forks its ranks, and ends them.

It may be forked before there is a run: then it forks ranks ahead, which wait (rank.py). Over the
run's socket it gets, as frames:

    {"ahead": n}                           fork n ranks now; the run comes later
    {"ranks", "folder", "host", "to_ranks"}
                                           a run: how many ranks, where its files are, the address of its
                                           store, and the frame that each rank gets (rank.py)
    "kill"                                 end the ranks

The launcher closes the socket to give up the run. The keeper answers

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
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joinlab.launcher import descendants
from joinlab.launcher.frames import receive, send
from joinlab.launcher.rank import RankProcess, serve_store
from joinlab.recorder.recorder import Recorder

LOOK_S = 0.2
"""How often the keeper checks whether the fork server still lives."""

SHARED_MEMORY = Path("/dev/shm")


@dataclass(slots=True)
class Child:
    """A rank's process, from the keeper's side."""

    rank: int
    pid: int
    link: socket.socket


class Keeper:
    """One run: its socket, and its ranks' processes that have not ended."""

    def __init__(
        self,
        link: socket.socket,
        server: int,
        recorder: Recorder,
        warm: bool,
    ) -> None:
        self.link = link
        self.server = server
        self.recorder = recorder
        self.warm = warm
        self.folder = ""
        self.ranks = 0  # of the run; 0: there is none yet
        self.children: list[Child] = []
        self.living: dict[int, Child] = {}  # by pid
        self.segments: set[str] = set()
        self.over = False
        self.store: object = None
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
                    self.handle(key.fd)
                self.reap()
        finally:
            self.end_everything()
            if self.folder:  # if the launcher is gone, it cannot remove it
                shutil.rmtree(self.folder, ignore_errors=True)

    def kill(self) -> None:
        """Kill every rank's process group.

        All are stopped before the first is killed: a living rank would see a killed peer's
        connection close, and would record an error that only this kill has caused.
        """
        for sign in (signal.SIGSTOP, signal.SIGKILL):
            for pid in self.living:
                _signal_group(pid, sign)

    def _terminated(self, *_: object) -> None:
        self.over = True

    def handle(self, fd: int) -> None:
        if fd == self.child_pipe:
            os.read(self.child_pipe, 4096)
        elif fd == self.trouble_pipe:
            self._forward_trouble()
        else:
            self._hear()

    def _hear(self) -> None:
        try:
            message = receive(self.link)
        except (EOFError, OSError):
            self.over = True
            return
        if message == "kill":
            self.kill()
        elif "ahead" in message:
            self._fork(message["ahead"])
        else:
            self._start(message)

    # ---------------- the ranks

    def _start(self, request: Mapping[str, Any]) -> None:
        self.folder = request["folder"]
        ranks = request["ranks"]
        if not self._fork(ranks):
            return
        self.ranks = ranks
        # not before: a forked process would wait at its exit for the server's thread
        try:
            self.store = serve_store(request["host"], Path(self.folder))
        except Exception as error:
            self.kill()
            self.tell({"error": f"could not serve the ranks' store: {error}"})
            return
        for child in self.children[ranks:]:  # they were forked ahead, and end now
            child.link.close()
        for child in self.children[:ranks]:
            with suppress(OSError):  # it has been killed meanwhile
                child.link.sendall(request["to_ranks"])
        self.tell({"pids": {child.rank: child.pid for child in self.children[:ranks]}})

    def _fork(self, ranks: int) -> bool:
        """See that there are so many ranks; False if the machine does not give them."""
        for rank in range(ranks):
            if rank < len(self.children) and self.children[rank].pid in self.living:
                continue  # it was forked ahead
            try:
                ours, rank_end = socket.socketpair()
                pid = os.fork()
            except OSError as error:
                self.kill()
                self.tell({"error": f"could not start the process of rank {rank}: {error}"})
                return False
            if pid == 0:
                ours.close()
                self._be_rank(rank, rank_end)
            rank_end.close()
            child = Child(rank, pid, ours)
            self.children[rank:] = [child]
            self.living[pid] = child
        return True

    def _be_rank(self, rank: int, link: socket.socket) -> None:
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self.selector.close()
            for fd in (self.child_pipe, self.wake, self.trouble_pipe):
                os.close(fd)
            self.link.close()
            for child in self.children:
                child.link.close()
            RankProcess(self.recorder, rank, link, self.trouble).live(self.warm)
        finally:
            os._exit(1)

    def _forward_trouble(self) -> None:
        with suppress(BlockingIOError):
            for line in os.read(self.trouble_pipe, 1 << 16).splitlines():
                self.tell(json.loads(line))

    def tell(self, message: object) -> None:
        try:
            send(self.link, message)
        except OSError:
            self.over = True

    def reap(self) -> None:
        for pid in list(self.living):
            # End the rank's process group before reaping the rank: until then no other process can
            # get its pid.
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
                continue
            self._forward_trouble()  # written before it ended
            _signal_group(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            child = self.living.pop(pid)
            if not self.living:
                self.end_everything()
            if child.rank < self.ranks:  # not one that was forked ahead in vain
                self.tell({"rank": child.rank, "status": status})
        with suppress(ChildProcessError):  # reap an orphan of a rank that has ended
            orphan = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT | os.WNOHANG)
            if self.living and orphan is not None and orphan.si_pid not in self.living:
                os.waitpid(orphan.si_pid, os.WNOHANG)

    def end_everything(self) -> None:
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
