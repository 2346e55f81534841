"""One rank of an emulation, in a thread of its own: it issues calls, waits for them, and models a
process that prints, sleeps and dies.

Its parts have one job each, and know the rank by a weak proxy:

    Futures        futures of its calls
    Reducer        what DDP's C++ code waits for and believes
    InputProgress  inputs, passes, and their time
    Replicas       checksums of the models and optimizers that DDP wraps
    Misuse         Work objects that were never waited for, and calls in groups that the rank is not in

On gloo a wait is the host's. On NCCL most waits are the stream's: the host runs on. Here, though,
tensors lie in the host's memory, and the program computes with them at once; so the thread of the
rank does stop at a stream's wait until the data is there, without its virtual host clock moving. If
it turns out that the data will never be there (every rank waits), the thread is let go, as the real
host never stopped: from then on its stream is `stuck`, nothing that it issues is carried out, and
the next time that its host waits for the stream it waits for ever.

    running --wait--> waiting --call completes--> running
                        |  of_stream, every rank waits: let go
                        +--> running, stuck --host waits--> waiting for ever: a hang
"""

from __future__ import annotations

import signal
import sys
import weakref
from collections.abc import Sequence
from datetime import timedelta
from types import FrameType
from typing import Any, NoReturn, Protocol

from joinlab.backend.clock import ISSUE_NS
from joinlab.backend.model import EmulatedCall, Group, Knobs
from joinlab.backend.turns import ActingRank, HostWait
from joinlab.emulator.futures import Futures
from joinlab.emulator.progress import InputProgress
from joinlab.emulator.rank_state import RankState
from joinlab.emulator.reducer import Reducer
from joinlab.emulator.scheduler import Baton, RankEnded, RankThread, current
from joinlab.errors import LaunchError
from joinlab.ops import CallRow
from joinlab.program.kinds import CallKind, kind_of
from joinlab.program.labels import Stacks
from joinlab.program.log_events import CallIssued, FunctionText, RankBegins, WaitBegins, WaitEnds
from joinlab.program.misuse import Misuse, program_site
from joinlab.program.outcome import versions
from joinlab.program.process_group import (
    METHODS,
    DefaultGroupGone,
    NoSuchRank,
    check_init_process_group,
    values_in,
)
from joinlab.program.replicas import Replicas
from joinlab.recorder.rank_log import RankLog
from joinlab.showing import site_text
from joinlab.timeline import Ending, EndKind

THREADED = 'rank {} {}. An emulation runs one thread per rank. Use joinlab.launch, with backend="gloo" or on GPUs.'
"""Why an emulation cannot go on: the rank, and what its thread does."""

MOST_KINDS = 4096
"""Cache capacity; an emulation that begins with more clears the cache, so that a long session does
not grow."""

KINDS: dict[tuple[str, str, tuple[int, ...]], dict[tuple[object, ...], CallKind]] = {}
"""By backend, name and ranks of a group: the kinds of its calls in all emulations."""
STACKS = Stacks()
"""Where those were issued from. Only one rank of one emulation runs at a time, so nothing here
needs a lock."""


def bound_kinds() -> None:
    """Clear the cache, if it is full."""
    if sum(map(len, KINDS.values())) >= MOST_KINDS:
        forget_calls()


def forget_calls() -> None:
    """Clear the cache."""
    global STACKS
    KINDS.clear()
    STACKS = Stacks()


class Driver(Protocol):
    """The emulation, as a rank sees it: `Emulation` of run.py, which imports this module."""

    knobs: Knobs
    judged: bool
    aborting: list[Host]
    baton: Baton
    printed_lines: list[tuple[int, str]]

    def live(self, rank: int) -> None:
        """The whole life of a rank, in its own thread."""

    def kill(self, host: Host, text: str, calls: Sequence[EmulatedCall] = ()) -> None:
        """End a rank as if its process had been killed, in the first of `calls`."""

    def overtaken(self, call: EmulatedCall) -> None:
        """A rank that was released from its wait would have had to wait for this call after all."""

    def broken(self, text: str) -> LaunchError:
        """What real ranks would do is not modelled, or not known: the emulation returns no
        Timeline."""

    def unmodelled(self, what: object, error: Exception) -> None:
        """The model has failed at `what`: the emulation returns no Timeline."""

    def connect(self, host: Host) -> None:
        """A rank's process is bound to a GPU, so that its groups connect when they are made."""

    def open_group(self, host: Host, name: str, ranks: tuple[int, ...], desc: str | None) -> Any:
        """A further group of a rank."""


class Host(ActingRank):
    """A rank, whose methods are called in its thread while it holds the baton.

    alive      `ending` is None
    closing    `ending` is set: its program is over, but its process still shows to the others
    gone       its process has ended
    died_at    killed while it ran, it next came to wait for these
    """

    turn: RankThread
    ending: Ending | None

    def __init__(self, driver: Driver, rank: int, state: RankState) -> None:
        super().__init__(RankThread(rank, self, lambda: driver.live(rank)), driver.baton.turns)
        self.driver = driver
        self.state = state
        self.closing = ""  # said of it if it still waits once its program is over
        self.died_at: Sequence[EmulatedCall] = ()
        self.log = RankLog(rank)
        self.take = self.log.take
        self.take(RankBegins(rank=rank, time_ns=0, **versions()))
        self._weak: Host = weakref.proxy(self)
        self.futures = Futures()
        self.replicas = Replicas(self.take, self.calls.__len__)
        self.misuse = Misuse(self.take)
        # its process is bound to a GPU, so that its groups connect when they are made
        self.eager = False
        self.asked_timeout: timedelta | None = None  # for the group that it is making now
        self.asked_backend: object = None  # of a group that torch.distributed is making for it
        self._stacks: set[int] = set()  # those that its log has
        # a Work that was collected makes C++ wait for ever; calls know their group weakly
        self._kept: list[object] = []
        self.reducer = Reducer(self._weak, self.futures)
        self.progress = InputProgress(
            self.take, driver.knobs.costs.input_ns[rank], self._weak, self.reducer
        )

    # ---------------- issuing

    def issue(
        self,
        group: Group,
        name: str,
        args: tuple[object, ...],
        coalesced: list[EmulatedCall] | None,
    ) -> EmulatedCall:
        """Record a call, and hand it to the group's fabric or add it to `coalesced`, calls that are
        issued as one."""
        # the program caught RankEnded and goes on, with no rank left to meet
        if self.driver.judged:
            raise RankEnded
        mine = current() is self
        if not mine:
            does = "calls a collective from a thread that its program has started"
            does += site_text(program_site())
            raise self.driver.broken(THREADED.format(self.rank, does))
        try:
            call = self._describe(group, name, args, sys._getframe(2))
        except NoSuchRank as error:
            raise self._beyond(name, error) from None
        call.batched = coalesced is not None
        try:
            group.fabric.check(call)
        except Exception as error:
            call.refuse(error)
            raise
        if coalesced is None:
            self.submit(group, [call])
        else:
            coalesced.append(call)
        return call

    def _beyond(self, name: str, error: Exception) -> LaunchError:
        text = f"rank {self.rank} calls {name}{site_text(program_site())}: {error}"
        return self.driver.broken(text)

    def submit(self, group: Group, calls: Sequence[EmulatedCall]) -> None:
        """Hand calls to the fabric that are issued as one."""
        if calls:
            if self.driver.aborting:
                self.yield_if_ready()
            try:
                group.fabric.submit(calls)
            except Exception as error:
                # no backend raises here: what it refuses, `check` has refused
                self.driver.unmodelled(calls[0], error)
                raise RankEnded from error

    def open_group(self, name: str, ranks: tuple[int, ...], desc: str | None) -> Any:
        """A further group of this rank."""
        return self.driver.open_group(self, name, ranks, desc)

    def keep(self, kept: object) -> None:
        """Keep a Work or a group for as long as the rank lives."""
        self._kept.append(kept)

    def _describe(
        self, group: Group, name: str, args: tuple[object, ...], frame: FrameType
    ) -> EmulatedCall:
        ins, outs, parts = group.memory(name, args, self.driver.knobs)
        method = METHODS[name]
        kind = kind_of(group, STACKS, STACKS.intern(frame), method, args, ins, outs)
        if kind.stack not in self._stacks:
            self._stacks.add(kind.stack)
            self.take(STACKS.events[kind.stack])
            for source in STACKS.sources[kind.stack]:
                self.take(FunctionText.of(source))
        if kind.small and ins and not self.stuck:
            value_in = values_in(ins)
        else:
            value_in = None
        if kind.bucket:
            self.progress.bucket_ready(ins)
        number = len(self.calls)
        self.take(
            CallIssued(
                **kind.facts,
                call=number,
                time_ns=self.now,
                values=value_in,
                streamed=self.begin_issue(),
                seq=group.numbering.next_seq(),
                number=group.numbering.next_number(kind.collective),
                input=self.progress.input,
                step=self.progress.steps.now,
                model=self.replicas.of(group.label) if kind.in_backward else None,
            )
        )
        call = EmulatedCall(
            self._weak, group, kind, number, self.log.calls[number], parts, name, args
        )
        if kind.small:
            call.tensors_in, call.tensors_out = ins, outs
        call.inflight = self.open_calls > 0
        self.work_for(ISSUE_NS)
        self.enter(call)
        if kind.in_backward:
            self.reducer.issued_in_backward(call)
        return call

    # ---------------- waiting

    def pause(self, until: int | None = None) -> None:
        """Hand the baton on, until this rank has been woken and it is its turn again."""
        self.driver.baton.wait(self.turn, until)

    def begins(self, calls: Sequence[EmulatedCall], inside: int | None = None) -> None:
        """Record that the host begins to wait for these, or inside them."""
        awaited = [call.id for call in calls]
        self.take(WaitBegins(calls=awaited, time_ns=self.now, thread=0, threads=1, inside=inside))

    def ends(self, calls: Sequence[EmulatedCall]) -> None:
        """Record that the host is let go. The calls themselves tell that they completed."""
        awaited = [call.id for call in calls]
        self.take(WaitEnds(calls=awaited, still_open=awaited, time_ns=self.now, thread=0))

    def wait_inside(
        self, calls: Sequence[EmulatedCall], why: str, until: int | None = None
    ) -> None:
        """Record the wait, too: a host that never leaves these calls is seen to stand in them, and one
        that waits for no call, as in new_group or in its store, in its line of the program."""
        if not calls:
            why += site_text(program_site())
        self.begins(calls, inside=1)
        super().wait_inside(calls, why, until)
        self.ends(calls)

    def goes_on(self) -> None:
        """Run the callbacks of futures that are there now."""
        self.futures.fulfil()

    def stand_still(self, wait: HostWait, until: int | None = None) -> None:
        """Stop this thread until the wait is over (never, if the stream is stuck before it), or
        until that time."""
        if self.turn.doomed:
            self.died_at = wait.calls
        super().stand_still(wait, until)
        while wait.called:
            wait.called = False
            self.futures.fulfil()
            super().stand_still(wait, until)

    def call_back(self) -> bool:
        """Every rank waits: run callbacks that gloo's own threads would have run by now. False if
        there are none."""
        if self.standing is None or not self.futures.ready:
            return False
        self.standing.called = True
        self.wake()
        return True

    def overtaken(self, call: EmulatedCall) -> None:
        """Its host has computed without this call of its stream, which completes after all."""
        self.driver.overtaken(call)

    def wait(self, calls: Sequence[EmulatedCall], timeout_ns: int = 0) -> None:
        """Work.wait(), for the program or for DDP's Reducer, which then reads what came."""
        super().wait(calls, timeout_ns)
        if calls[0].kind.rebuilds:
            wrong = self.reducer.disbelief(calls[0])
            if wrong:
                reason = f"DDP's Reducer took another call's data for {wrong}; what a process then does is undefined"
                self.driver.kill(self, reason, calls)
                raise RankEnded

    def synchronize(self) -> None:
        """torch.cuda.synchronize(): the host waits for all streams, so for every call on NCCL,
        awaited or not."""
        self.misuse.all_asked()
        super().synchronize()

    def leave_program(self, closing: str) -> None:
        """Its process ends (`closing`): it waits for its collectives on gloo that are in flight."""
        self.closing = closing
        self.drain()

    # ---------------- the process it stands for

    @property
    def awaited_row(self) -> CallRow | None:
        """That of the first open call that it waits for, if possible one whose own data has not moved."""
        recorded = (call for call in self.awaited if call.row["seq"] >= 0)
        call = min(recorded, key=lambda call: call.moved, default=None)
        return None if call is None else call.row

    def killed(self, text: str, calls: Sequence[EmulatedCall] = ()) -> None:
        """Its process is killed, in the first of these calls, or of those that it waits for."""
        row = calls[0].row if calls else self.awaited_row
        self.ending = Ending.at(EndKind.KILLED, row, text)

    def printed(self, text: str) -> None:
        """It wrote to its stdout or stderr."""
        if not self.turn.doomed:
            self.keep_output(text)

    def keep_output(self, text: str) -> None:
        """Keep what it printed, or what is told of how it raised, within bounds."""
        self.state.output.add(text.encode(errors="backslashreplace"))
        if self.state.output.whole:
            self.driver.printed_lines.append((self.rank, text))

    def exit_process(self, status: int) -> NoReturn:
        """os._exit."""
        self.die(
            f"its process ended with exit code {status} before the program returned (os._exit?)"
        )

    def die_of(self, number: int) -> NoReturn:
        """It sent itself a signal."""
        self.die(f"its process was killed by {signal.Signals(number).name}")

    def die(self, text: str) -> NoReturn:
        """End the rank here and now, as killed."""
        self.driver.kill(self, text)
        raise RankEnded

    def init_process_group(self, *args: object, **kwargs: object) -> None:
        """The group is there already, so a rank's first call says that it knows of it."""
        default_group = self.driver.knobs.backend, self.state.ranks, self.rank
        try:
            check_init_process_group(default_group, self.state.begun, *args, **kwargs)
        except DefaultGroupGone as error:
            raise self._beyond("init_process_group", error) from None
        self.state.begun = True
        if kwargs.get("device_id") is not None:
            self.driver.connect(self)
