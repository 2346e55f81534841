"""Watch: follows the ranks of one run to their ends, and makes the Timeline of what they recorded.

While the ranks run this process only looks: at what they write (events.py), and, once nothing has been written for a
moment, at what every living rank waits for. If the matching rule shows that none of it can come, that is a proven
hang, and the run is over (proof.py). Where the rule cannot tell, the run ends after `no_progress` seconds without an
event, and the Timeline says "suspected".

The snapshot that a proof is made from is sound although the ranks are read one after the other: a rank writes a call
down before it issues it, so a wait that what is written cannot end, cannot have been ended by what is not.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import time
from base64 import b64decode
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from joinlab._version import __version__
from joinlab.errors import LaunchError, LaunchInterrupted, ProgramError
from joinlab.launcher.terminal import Bar, Listener, Told
from joinlab.program.plain_data import decode
from joinlab.recorder.events import LogTail, log_name, now, output_name, return_name
from joinlab.recorder.rank_log import RankLog
from joinlab.rules.proof import Wait, prove
from joinlab.timeline import CallRow, Ending, EndKind, Meta, Timeline, timeline_from_rows

POLL_S = 0.005
STILL_S = 0.03
"""No event for this long: time to ask whether the ranks can still go on."""


@dataclass
class Watch:
    """One run, from its first process to its Timeline. `meta` is what the Timeline will say of it.

    The other arguments are those of `joinlab.launch`.
    """

    folder: Path
    counts: tuple[int, ...]
    meta: Meta
    listener: Listener | None
    progress: bool | Callable[[int], None] = False
    stop: Callable[[], bool] | None = None
    origin_ns: int = field(default_factory=now)
    statuses: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        ranks = range(len(self.counts))
        self.logs = [RankLog(rank, self.origin_ns) for rank in ranks]
        self.output = [Tail(self.folder / output_name(rank)) for rank in ranks]
        self.events = [LogTail(self.folder / log_name(rank)) for rank in ranks]
        self.unread = [b""] * len(self.counts)  # events read from the files, not yet taken in
        self.lines = [b""] * len(self.counts)  # each rank's last line, as far as it is printed
        self.sizes: tuple[int, ...] = ()
        self.incoming = b""
        self.verdict: dict[int, Ending] = {}

    def follow(self, link: socket.socket, timeout: float, no_progress: float) -> Timeline:
        """Watch until every rank has ended, by itself or by a verdict, and return the Timeline.

        `link` is the run's socket to the fork server; closing it, whatever happens here, ends what still lives.
        """
        began = moved = asked = time.monotonic()
        bar = self._bar()
        try:
            while len(self.statuses) < len(self.counts):
                heard = bool(select.select([link], [], [], POLL_S)[0]) and self._hear(link)
                self._stream_output()
                at = time.monotonic()
                if self._look() or heard:
                    moved = at
                    if bar is not None and bar.due(at):
                        self._take_in()
                        bar.show(sum(log.inputs_done for log in self.logs))
                elif at - moved >= STILL_S and asked < moved:
                    asked = at
                    self._prove()
                if not self.verdict and at - moved > no_progress:
                    text = f"nothing happened for {no_progress:g} s (no_progress={no_progress:g})"
                    self._judge(EndKind.HUNG, text, proven=False)
                if not self.verdict and at - began > timeout:
                    self._judge(EndKind.KILLED, f"ended by joinlab: still running after timeout={timeout:g} s")
                if not self.verdict and self.stop is not None and self.stop():
                    self._judge(EndKind.KILLED, "stopped on request")
                if self.verdict:
                    self._end(link)
            return self._timeline()
        except KeyboardInterrupt:
            self._judge(EndKind.KILLED, "interrupted by the user")
            with suppress(OSError):
                self._end(link)
            raise LaunchInterrupted(
                "the run was interrupted; what was recorded is in the `timeline` of this exception "
                "(sys.last_value.timeline in a notebook)",
                self._timeline(),
            ) from None
        finally:
            if bar is not None:
                bar.close()
            for tail in self.events:
                tail.close()
            link.close()

    def _bar(self) -> Bar | None:
        if callable(self.progress):
            return Told(self.progress)
        return Bar(sum(self.counts), self.meta["program"]) if self.progress else None

    # ---------------------------------------------------------------- looking

    def _hear(self, link: socket.socket) -> bool:
        """Take what the fork server says; True if a rank has ended."""
        data = link.recv(1 << 16)
        if not data:
            raise LaunchError("the process that ranks are forked from died during the run")
        *lines, self.incoming = (self.incoming + data).split(b"\n")
        ended = False
        for message in map(json.loads, lines):
            if "error" in message:
                raise LaunchError(f"{message['error']}. This machine may not bear {len(self.counts)} ranks; try fewer.")
            if "rank" in message:
                self.statuses[message["rank"]] = message["status"]
                ended = True
        return ended

    def _stream_output(self) -> None:
        if self.listener is None:
            return
        for rank, tail in enumerate(self.output):
            *lines, self.lines[rank] = (self.lines[rank] + tail.read()).split(b"\n")
            for line in lines:
                self.listener(rank, line.decode(errors="replace"))

    def _look(self) -> bool:
        """Read what was written; True if any rank has recorded or printed something since the last time."""
        fresh = [tail.read() for tail in self.events]
        self.unread = [old + new for old, new in zip(self.unread, fresh, strict=True)]
        sizes, self.sizes = self.sizes, tuple(tail.size() for tail in self.output)
        return any(fresh) or sizes != self.sizes

    def _take_in(self) -> None:
        self._look()
        for rank, log in enumerate(self.logs):
            if rank not in self.verdict:  # what a judged rank still does, is done to it by our ending its peers
                log.feed(self.unread[rank])
            self.unread[rank] = b""

    # ---------------------------------------------------------------- verdicts

    def _gone(self) -> set[int]:
        return {log.rank for log in self.logs if log.returned or log.raised or log.rank in self.statuses}

    def _prove(self) -> None:
        """Judge the ranks hung if every living one waits for what, by the matching rule, cannot come."""
        self._take_in()
        gone = self._gone()
        waits: list[Wait] = []
        for log in self.logs:
            if log.rank in gone:
                continue
            if not log.waits or len(log.waits) < log.threads:
                return  # some thread of it does not wait: it may go on
            for ids in log.waits.values():
                waits.append(Wait(log.rank, tuple((log.calls[id]["group"], log.calls[id]["seq"]) for id in ids)))
        calls = [call for log in self.logs for call in log.calls.values()]
        if prove(calls, self._groups(), self.meta["backend"], waits, gone, self.meta["transport"]) is not None:
            self._judge(EndKind.HUNG, proven=True)

    def _judge(self, kind: EndKind, text: str = "", *, proven: bool | None = None) -> None:
        """Say how every rank ends that still lives."""
        self._take_in()
        self.meta["verdict_ns"] = now() - self.origin_ns
        gone = self._gone()
        for log in self.logs:
            if log.rank not in gone:
                said = "; ".join(filter(None, (log.over, text)))
                self.verdict[log.rank] = Ending.at(kind, _awaited(log), said, proven=proven)

    def _end(self, link: socket.socket) -> None:
        """Have what still lives killed, and wait until it is gone."""
        link.sendall(b"kill\n")
        while len(self.statuses) < len(self.counts):
            self._hear(link)

    # ---------------------------------------------------------------- the Timeline

    def _groups(self) -> dict[str, list[int]]:
        groups: dict[str, list[int]] = {}
        for log in self.logs:
            for name, group in log.groups.items():
                groups.setdefault(name, group["ranks"])
        return groups

    def _timeline(self) -> Timeline:
        self._take_in()
        self._stream_output()
        for rank, rest in enumerate(self.lines):
            if rest and self.listener is not None:
                self.listener(rank, rest.decode(errors="replace"))
        for log in self.logs:
            if log.refused is not None:
                raise ProgramError(
                    f"{self.meta['program']} could not be opened in its process: {log.refused}. What it refers to has "
                    "to be importable there, or defined beside it."
                )
        begin = next((log.begin for log in self.logs if log.begin), {})
        groups = self._groups() or {"0": list(range(len(self.counts)))}
        meta: Meta = {
            **self.meta,
            "groups": groups,
            "versions": {
                "joinlab": __version__,
                "python": ".".join(map(str, sys.version_info[:3])),
                "torch": begin.get("torch"),
                "nccl": begin.get("nccl"),
            },
            "clock": {"domain": "monotonic", "origin_ns": self.origin_ns, "hosts": {begin.get("host", "?"): 0}},
        }
        return timeline_from_rows(
            calls=[call for log in self.logs for call in log.calls.values()],
            spans=[span for log in self.logs for span in log.spans.values()],
            ends=[self._end_of(log) for log in self.logs],
            meta=meta,
            returns=[self._returned(log.rank) for log in self.logs],
            output=[
                path.read_bytes().decode(errors="replace") if (path := tail.path).exists() else ""
                for tail in self.output
            ],
        )

    def _end_of(self, log: RankLog) -> Ending:
        if log.rank in self.verdict:
            return self.verdict[log.rank]
        if log.returned:
            return Ending.finished(log.calls.values())
        if log.raised is not None:
            return Ending.raised(log.calls.values(), log.raised["x"])
        return Ending.at(EndKind.KILLED, _awaited(log), self._cause(log.rank, self.statuses.get(log.rank, 0)))

    def _cause(self, rank: int, status: int) -> str:
        if not os.WIFSIGNALED(status):
            return f"its process ended with exit code {os.WEXITSTATUS(status)} before the program returned (os._exit?)"
        name = signal.Signals(os.WTERMSIG(status)).name
        path = self.output[rank].path
        tail = path.read_bytes()[-4000:].decode(errors="replace").splitlines() if path.exists() else []
        said = next((line.strip() for line in reversed(tail) if "what():" in line or "terminate called" in line), "")
        return f"its process was killed by {name}" + (f": {said}" if said else "")

    def _returned(self, rank: int) -> Any:
        path = self.folder / return_name(rank)
        if not self.logs[rank].returned or not path.exists():
            return None
        kept = json.loads(path.read_text())
        return decode(kept["value"], lambda name: b64decode(kept["arrays"][name]))


def _awaited(log: RankLog) -> CallRow | None:
    """The call that the rank waits for: the first of those that its (latest) wait needs; None if it waits for none."""
    for ids in reversed(log.waits.values()):
        return next((log.calls[id] for id in ids if log.calls[id].get("completed_ns") is None), log.calls[ids[0]])
    return None


class Tail:
    """Reads what was appended to a file since the last time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._at = 0

    def size(self) -> int:
        """Bytes written so far."""
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0

    def read(self) -> bytes:
        """The new bytes."""
        if self.size() == self._at:
            return b""
        with self.path.open("rb") as file:
            file.seek(self._at)
            data = file.read()
        self._at += len(data)
        return data
