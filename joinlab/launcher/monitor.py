"""Watch: follows the ranks of one run until they end, and makes the Timeline of their records.

While the ranks run, this process only reads: the ranks' files (run_files.py), and, after a moment
without an event, the calls that every living rank waits for. If the matching rule shows that none
of those calls can complete, the hang is proven and the run is over (proof.py). If the rule cannot
tell, the run ends after `no_progress` seconds without an event, and the Timeline says "suspected".

The proof is sound although the logs are read one after the other: a rank writes a call down before
it issues it, so a wait that no written event satisfies cannot have been satisfied by an unwritten
one.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from joinlab.backend.calls import setting_of
from joinlab.errors import LaunchError, LaunchInterrupted, ProgramError
from joinlab.interrupts import take_interrupt
from joinlab.launcher.forkclient import ForkServer
from joinlab.launcher.frames import receive, send
from joinlab.launcher.run_files import RunFiles
from joinlab.launcher.spares import SPARES
from joinlab.launcher.terminal import Listener, ProgressBar, ProgressCallback
from joinlab.proof import BlockedThread, prove
from joinlab.recorder.events import now
from joinlab.recorder.rank_log import about_calls, about_ranks, groups_of
from joinlab.recorder.recorded_traces import keep_traces
from joinlab.timeline import CUT, Ending, EndKind, Meta, Timeline, timeline_from_rows

POLL_S = 0.005
STILL_S = 0.03
"""After this long without an event, check whether the ranks can still go on."""
BUSY = 0.05
"""A rank that waits for no call and uses at least this share of a CPU is computing."""
LIMIT_NS = 5_000_000_000
"""A timeout that has not ended its call this long after it passed never will."""
BEGIN_S = 30.0
"""Ranks that have not started after this long never will: the fork server was stopped from
outside."""
ANSWER_S = 10.0
"""Time for the run's keeper to end all processes."""


@dataclass
class Watch:
    """One run, from its first process to its Timeline, which gets `meta`. Other arguments as for
    `joinlab.launch`."""

    server: ForkServer
    folder: Path
    counts: tuple[int, ...]
    meta: Meta
    listener: Listener | None
    progress: bool | Callable[[int], None] = False
    stop: Callable[[], bool] | None = None
    origin_ns: int = field(default_factory=now)

    def __post_init__(self) -> None:
        self.files = RunFiles(self.folder, len(self.counts), self.origin_ns, self.listener)
        self.logs = self.files.logs
        self.pids: dict[int, int] = {}  # by rank, once they are started
        self.statuses: dict[int, int] = {}  # by rank, once its process has ended
        self.verdict: dict[int, Ending] = {}
        self.cut_short = ""  # why joinlab ended the run, if it did
        self.late: set[int] = set()  # ranks whose program, but not their process, had ended by then

    def follow(self, request: dict[str, object], timeout: float, no_progress: float) -> Timeline:
        """Begin the run, watch until every rank has ended or was ended, and return the Timeline."""
        link = SPARES.begin(self.server, request)
        bar = self._bar()
        try:
            self._watch(link, bar, timeout, no_progress)
            return self._timeline()
        except KeyboardInterrupt:
            self._judge(EndKind.KILLED, BY_USER)
            with suppress(OSError):
                self._end(link)
            raise LaunchInterrupted(INTERRUPTED, self._timeline()) from None
        except ConnectionError as error:
            # the keeper died with data unread, or before it read "kill"
            raise LaunchError(DIED) from error
        finally:
            link.close()  # the keeper now ends whatever still lives
            if bar is not None:
                bar.close()
            self.files.close()

    def _watch(
        self, link: socket.socket, bar: ProgressBar | None, timeout: float, no_progress: float
    ) -> None:
        began = moved = time.monotonic()
        # time of the last attempt at a proof; CPU time used by then (-1: none since an event)
        asked, used = 0.0, -1.0
        while len(self.statuses) < len(self.counts):
            take_interrupt()
            heard = self._hear(link, POLL_S)
            instant = time.monotonic()
            if self.files.look() or heard:
                moved, used = instant, -1.0
                if bar is not None and bar.due(instant):
                    self.files.take_in(set(self.verdict))
                    bar.show(sum(log.inputs_done for log in self.logs))
            elif instant - moved >= STILL_S and asked < moved:
                self.files.take_in(set(self.verdict))  # once: both look at the same events
                if self._limited(instant - began, timeout):
                    moved = instant
                else:
                    self._prove()
                    asked, used = instant, self._working()
            if not self.pids and instant - began > min(timeout, BEGIN_S):
                self._judge(EndKind.KILLED, f"not started within {min(timeout, BEGIN_S):g} s")
            elif instant - moved > no_progress:
                if used >= 0 and self._working() - used > BUSY * no_progress:
                    moved, used = instant, self._working()
                else:
                    text = f"nothing happened for {no_progress:g} s (no_progress={no_progress:g})"
                    self._judge(EndKind.HUNG, text, proven=False)
            if not self.cut_short and instant - began > timeout:
                self._judge(EndKind.KILLED, f"{CUT}: still running after timeout={timeout:g} s")
            if not self.cut_short and self.stop is not None and self.stop():
                self._judge(EndKind.KILLED, "stopped on request")
            if self.cut_short:
                self._end(link)

    def _bar(self) -> ProgressBar | None:
        if callable(self.progress):
            return ProgressCallback(self.progress)
        if self.progress:
            return ProgressBar(sum(self.counts), self.meta["program"])
        return None

    # ---------------- the keeper

    def _hear(self, link: socket.socket, patience: float) -> bool:
        """Read the keeper's messages, waiting up to `patience` seconds; True if there were any."""
        if not select.select([link], [], [], patience)[0]:
            return False
        try:
            message = receive(link)
        except EOFError:
            raise LaunchError(DIED) from None
        if "error" in message:
            raise LaunchError(
                f"{message['error']}. {len(self.counts)} ranks may be too many for this machine; try fewer."
            )
        if "trouble" in message:
            raise LaunchError(f"rank {message['rank']} {message['trouble']}")
        if "pids" in message:
            self.pids = message["pids"]
        else:
            self.statuses[message["rank"]] = message["status"]
        return True

    def _end(self, link: socket.socket) -> None:
        """Make the keeper kill all living processes, and wait up to ANSWER_S until they are
        gone."""
        send(link, "kill")
        give_up = time.monotonic() + ANSWER_S
        while (remaining_s := give_up - time.monotonic()) > 0:
            self._hear(link, remaining_s)
            if len(self.statuses) == len(self.counts):
                return
        self.server.close(kill=True)
        raise LaunchError(
            f"the process that ranks are forked from did not answer for {ANSWER_S:g} s, so it was killed; call launch "
            "again"
        )

    # ---------------- verdicts

    def _gone(self) -> set[int]:
        """Ranks whose program is over."""
        return {
            log.rank for log in self.logs if log.returned or log.raised or log.rank in self.statuses
        }

    def _working(self) -> float:
        """CPU seconds used so far by ranks that do not wait for a call, and by their
        descendants."""
        self.files.take_in(set(self.verdict))
        seconds = 0.0
        for rank, pid in self.pids.items():
            log = self.logs[rank]
            if rank not in self.statuses and not log.standing():
                with suppress(psutil.Error):
                    process = psutil.Process(pid)
                    for member in (process, *process.children(recursive=True)):
                        user, system, of_children, system_of_children, *_ = member.cpu_times()
                        seconds += user + system + of_children + system_of_children
        return seconds

    def _limited(self, elapsed: float, timeout: float) -> bool:
        """Whether a rank on gloo waits for a call that its group's own timeout will end within this
        run.

        gloo counts the timeout from when it begins the call: at issue, or once an earlier call has
        ended.
        """
        end_ns = now() - self.origin_ns + (timeout - elapsed) * 1e9  # may be infinite
        now_ns = now() - self.origin_ns
        for log in self.logs:
            for ids in log.waits.values() if log.rank not in self._gone() else ():
                for call in (log.calls[id] for id in ids):
                    group = log.groups.get(call["group"])
                    if group is None or group.backend != "gloo" or not group.timeout_ns:
                        continue
                    over = (call["host_wait_begin_ns"] or 0) + group.timeout_ns
                    if now_ns < over + LIMIT_NS and over < end_ns:
                        return True
        return False

    def _prove(self) -> None:
        """Judge the ranks hung if the matching rule shows that no living rank's wait can end."""
        gone = self._gone()
        waits: list[BlockedThread] = []
        for log in self.logs:
            if log.rank in gone:
                continue
            standing = log.standing()
            if not standing:
                return
            waits += [BlockedThread(log.rank, calls, inside) for calls, inside in standing]
        calls = [call for log in self.logs for call in log.calls.values()]
        meta = {**self.meta, **about_ranks(self.logs, self.meta["backend"])}
        if (
            prove(calls, groups_of(self.logs), self.meta["backend"], waits, gone, setting_of(meta))
            is not None
        ):
            self._judge(EndKind.HUNG, "the matching rule proves a hang", proven=True)

    def _judge(self, kind: EndKind, why: str, *, proven: bool | None = None) -> None:
        """Give an ending to every rank whose program still runs, and mark the run as over."""
        self.files.take_in(set(self.verdict))
        self.meta["verdict_ns"] = now() - self.origin_ns
        self.cut_short = why
        gone = self._gone()
        # A proof comes 30 ms after the last event; on a busy machine a process takes longer than
        # that to end.
        self.late = set() if proven else gone - set(self.statuses)
        for log in self.logs:
            if log.rank not in gone:
                text = "; ".join(filter(None, (log.over, "" if proven else why)))
                self.verdict[log.rank] = Ending.at(kind, log.awaited(), text, proven=proven)

    # ---------------- the Timeline

    def _timeline(self) -> Timeline:
        self.files.take_in(set(self.verdict))
        self.files.finish()
        self._check_beginnings()
        host = next((log.begin.host for log in self.logs if log.begin.host), "?")
        groups = groups_of(self.logs) or {"0": list(range(len(self.counts)))}
        meta: Meta = {
            **self.meta,
            **about_ranks(self.logs, self.meta["backend"]),
            "groups": groups,
            "clock": {
                "domain": "monotonic",
                "origin_ns": self.origin_ns,
                "hosts": {host: 0},
            },
        }
        meta.update(about_calls(self.logs, meta.get("source"), groups))  # type: ignore[typeddict-item]
        timeline = timeline_from_rows(
            calls=[call for log in self.logs for call in log.calls.values()],
            spans=[span for log in self.logs for span in log.spans.values()],
            ends=[
                self.verdict.get(rank)
                or self.files.ending(
                    rank, self.statuses.get(rank, 0), self.cut_short if rank in self.late else ""
                )
                for rank in range(len(self.logs))
            ],
            meta=meta,
            returns=[self.files.returned(log.rank) for log in self.logs],
            output=[output.text() for output in self.files.output],
        )
        return keep_traces(timeline, {log.rank: log.trace for log in self.logs})

    def _check_beginnings(self) -> None:
        """Raise if a rank never ran its program, since that is not an ending of the program."""
        for log in self.logs:
            if log.refused is not None:
                raise ProgramError(
                    f"{self.meta['program']} could not be loaded in its process: {log.refused}. Make whatever it uses "
                    "importable there, or define it beside the program."
                )
        unconnected = [
            (log.rank, log.raised.text)
            for log in self.logs
            if log.raised is not None and log.raised.connected is False
        ]
        killed = any(
            os.WIFSIGNALED(status)
            for rank, status in self.statuses.items()
            if rank not in self.verdict
        )
        # A killed peer explains a failed connection.
        if unconnected and not killed and self.cut_short != BY_USER:
            rank, error = unconnected[0]
            text = f"rank {rank} could not connect to its peers: {error}"
            raise LaunchError(text.partition("\n")[0])


BY_USER = "interrupted by the user"
DIED = "the process that ranks are forked from died during the run; call launch again"
INTERRUPTED = (
    "the run was interrupted; the `timeline` of this exception has what was recorded (sys.last_value.timeline in a "
    "notebook)"
)
