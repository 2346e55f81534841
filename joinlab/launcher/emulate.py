"""`emulate`: run a program as processes, one per rank, over a modelled NCCL or gloo, without a GPU.

The ranks run as those of `launch` do (rank.py); their process groups hand each call to the run's
keeper, which holds the network (emulation.py). Here are the arguments, and the Timeline.

It is to replace the ranks as threads of emulator/run.py, which joinlab.emulate still uses: its Timelines
are equal (tests/test_processes.py), but a run takes 2.1 to 2.8 times as long.
"""

from __future__ import annotations

import itertools
import os
import pickle
import select
import socket
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from joinlab.errors import LaunchError, LaunchInterrupted, ProgramError
from joinlab.interrupts import LOOK_S, HeldInterrupts, no_collection, take_interrupt
from joinlab.launcher.forkclient import ForkServer, pickled, rank_request
from joinlab.launcher.frames import frame, receive, send
from joinlab.launcher.spares import SPARES
from joinlab.program.program import (
    Program,
    program_name,
)
from joinlab.program.replicas import differing_replicas
from joinlab.program.sources import source_of
from joinlab.recorder.rank_log import RankLog, about_calls, about_ranks
from joinlab.timeline import Emulation as EmulationMeta
from joinlab.timeline import Ending, EndKind, Meta, Timeline, timeline_from_rows

if TYPE_CHECKING:
    from joinlab.backend.model import Knobs
    from joinlab.launcher.emulation import Outcome, RankOutcome

CORES = max(2, len(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else 2
"""So many emulations run side by side where several are asked for."""

ANSWER_S = 10.0
"""Time for the run's keeper to end all processes."""

INTERRUPTED = (
    "the emulation was interrupted; the `timeline` of this exception has what was recorded (sys.last_value.timeline in "
    "a notebook)"
)


@dataclass(frozen=True)
class EmulatedRun:
    """What is emulated: `emulate` with its arguments checked, and each further run of the same."""

    program: Program
    counts: tuple[int, ...]
    seeds: tuple[int | None, ...]
    knobs: Knobs

    def go(self) -> Timeline:
        """Run it and wait for the Timeline. LaunchInterrupted if the user interrupts."""
        server = ForkServer.get()
        link = self.begin(server)
        try:
            outcome = self.wait(link)
        finally:
            link.close()
        modules = sorted({name for rank in outcome.ranks for name in rank.modules})
        SPARES.prepare(server, len(self.counts), modules)
        return self.timeline(outcome)

    def begin(self, server: ForkServer) -> socket.socket:
        """Start it; returns the socket over which the outcome comes."""
        sent = pickled(self.program, program_name(self.program))
        request = frame(
            {
                "engine": "emulated",
                **rank_request(sent, program_name(self.program)),
                "inputs": self.counts,
                "seeds": self.seeds,
                "backend": self.knobs.backend,
                "knobs": self.knobs,
                "port": "29500",
            }
        )
        run = {"ranks": len(self.counts), "folder": "", "knobs": self.knobs, "to_ranks": request}
        return SPARES.begin(server, run)

    def wait(self, link: socket.socket) -> Outcome:
        """What became of it. LaunchInterrupted if the user interrupts."""
        with HeldInterrupts():
            try:
                return _outcome(link)
            except KeyboardInterrupt:
                with suppress(OSError):
                    send(link, "interrupt")
                raise LaunchInterrupted(
                    INTERRUPTED, self.timeline(_outcome(link, ANSWER_S))
                ) from None

    # ------------------------------------------------------------------------------ the Timeline

    def timeline(self, outcome: Outcome) -> Timeline:
        """What became of it. LaunchError if what real ranks would do is not modelled."""
        if outcome.broken:
            raise LaunchError(outcome.broken)
        with no_collection():
            logs = [_log(rank, rank_outcome.log) for rank, rank_outcome in enumerate(outcome.ranks)]
            self._check_beginnings(logs)
            rows = [row for log in logs for row in log.calls.values()]
            timeline = timeline_from_rows(
                calls=rows,
                spans=[span for log in logs for span in log.spans.values()],
                ends=[_ending(log, rank) for log, rank in zip(logs, outcome.ranks, strict=True)],
                meta=self._meta(outcome, logs),
                returns=[_returned(rank) for rank in outcome.ranks],
                output=[rank.output for rank in outcome.ranks],
            )
        return timeline

    def _check_beginnings(self, logs: Sequence[RankLog]) -> None:
        """Raise if a rank never ran its program, since that is not an ending of the program."""
        for log in logs:
            if log.refused is not None:
                raise ProgramError(
                    f"{program_name(self.program)} could not be loaded in its process: {log.refused}. Make whatever it "
                    "uses importable there, or define it beside the program."
                )

    def _meta(self, outcome: Outcome, logs: Sequence[RankLog]) -> Meta:
        knobs = self.knobs
        settings: EmulationMeta = {
            "seconds_per_input": [ns / 1e9 for ns in knobs.costs.input_ns],
            "latency": knobs.costs.latency_ns / 1e9,
            "bytes_per_second": knobs.costs.bytes_per_second,
        }
        if knobs.pad:
            settings["pad"] = knobs.pad
        if knobs.streams:
            settings = {
                "era": knobs.era,
                "barrier_value": knobs.barrier_value,
                "pad": knobs.pad,
                **settings,
            }
            if knobs.gpu != "A100":
                settings["gpu"] = knobs.gpu
            if outcome.assumes:
                settings["assumes"] = " ".join(outcome.assumes)
            if outcome.watched:
                settings["watchdog"] = [
                    {"rank": rank, "after_s": after_s, "text": text}
                    for rank, after_s, text in outcome.watched
                ]
        meta: Meta = {
            "program": program_name(self.program),
            "source": source_of(self.program),
            "engine": "emulated",
            "backend": knobs.backend,
            "world_size": len(self.counts),
            "inputs": list(self.counts),
            "seeds": list(self.seeds),
            "emulation": settings,
            "groups": {name: list(ranks) for name, ranks in outcome.groups.items()},
            "clock": {"domain": "virtual"},
        }
        rows = [row for log in logs for row in log.calls.values()]
        marks = {log.rank: log.marks for log in logs}
        facts = about_ranks(logs, knobs.backend)
        nccl = {name: value for name, value in facts.get("nccl", {}).items() if value}
        values: dict[str, Any] = {
            **facts,
            "nccl": nccl,
            **about_calls(logs, meta["source"]),
            "replicas": differing_replicas(marks, rows, outcome.groups),
        }
        meta.update({name: value for name, value in values.items() if value})  # type: ignore[typeddict-item]
        return meta


def run_all(runs: Iterable[EmulatedRun]) -> Iterator[Timeline]:
    """The Timelines of these runs, in their order. As many run side by side as there are cores."""
    server = ForkServer.get()
    begun: deque[tuple[EmulatedRun, socket.socket]] = deque()
    waiting = iter(runs)
    try:
        while True:
            for run in itertools.islice(waiting, CORES - len(begun)):
                begun.append((run, run.begin(server)))
            if not begun:
                return
            run, link = begun.popleft()
            with link:
                outcome = run.wait(link)
            for following in itertools.islice(waiting, 1):  # before this one is read
                begun.append((following, following.begin(server)))
            yield run.timeline(outcome)
    finally:
        for _, link in begun:
            link.close()


def _outcome(link: socket.socket, patience_s: float = float("inf")) -> Outcome:
    """What the keeper sends at the end of the run."""
    give_up = time.monotonic() + patience_s
    while True:
        take_interrupt()
        if select.select([link], [], [], LOOK_S)[0]:
            try:
                message = receive(link)
            except (EOFError, OSError) as error:
                raise LaunchError(
                    "the process that ranks are forked from died during the emulation; call emulate again"
                ) from error
            if not isinstance(message, dict):
                return message  # type: ignore[no-any-return]
            if "error" in message:
                raise LaunchError(f"{message['error']}. Take fewer ranks.")
            if "trouble" in message:
                raise LaunchError(f"rank {message['rank']} {message['trouble']}")
        elif time.monotonic() > give_up:
            raise LaunchError("the emulation's processes did not answer; call emulate again")


def _log(rank: int, text: str) -> RankLog:
    log = RankLog(rank)
    log.feed(text.encode())
    for call in log.calls.values():
        # a wait for a call that was complete is none: the rank could not know it before it asked
        begin, completed = call.get("host_wait_begin_ns"), call.get("completed_ns")
        if begin is not None and (
            begin == call.get("host_wait_end_ns") or (completed is not None and completed <= begin)
        ):
            call["host_wait_begin_ns"] = call["host_wait_end_ns"] = None
    return log


def _ending(log: RankLog, rank: RankOutcome) -> Ending:
    """How a rank ended."""
    if rank.kind == "finished":
        rows = log.calls.values()
        if log.raised is not None:
            return Ending.raised(rows, log.raised.text)
        return Ending.finished(rows)
    call = None if rank.call is None else log.calls.get(rank.call)
    if rank.kind == "killed":
        return Ending.at(EndKind.KILLED, call or log.awaited(), rank.text)
    why = (
        ""
        if call is not None and not rank.text
        else f"no rank can go on; this one waits {rank.text or 'for a call'}"
    )
    text = "; ".join(filter(None, (log.over, why)))
    return Ending.at(EndKind.HUNG, call, text, proven=True)


def _returned(rank: RankOutcome) -> Any:
    return None if rank.returned is None else pickle.loads(rank.returned)
