"""One rank of an emulation: it issues calls, waits for them, and models a process that prints,
sleeps and dies.

Its parts have one job each, and know only those before them:

    Futures     futures of its calls
    ThreadWaits its thread: two clocks, and its waits
    Reducer     what DDP's C++ code waits for and believes
    Progress    inputs, passes, and their time
    Host        all of them; calls are issued here
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
from joinlab.backend.payload import CallPart, parts_of
from joinlab.backend.turns import HostWait
from joinlab.emulator.futures import Futures
from joinlab.emulator.own import Own
from joinlab.emulator.progress import InputProgress
from joinlab.emulator.reducer import Reducer
from joinlab.emulator.scheduler import Baton, RankEnded, current
from joinlab.emulator.waits import ThreadWaits
from joinlab.errors import LaunchError
from joinlab.ops import Op
from joinlab.program.kinds import CallKind, kind_of
from joinlab.program.labels import Stacks
from joinlab.program.log_events import CallIssued, FunctionText, RankBegins
from joinlab.program.misuse import Misuse
from joinlab.program.outcome import versions
from joinlab.program.process_group import METHODS, NoSuchRank, begin, values_in
from joinlab.program.replicas import Replicas
from joinlab.recorder.rank_log import RankLog
from joinlab.timeline import Ending

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


class Orders(Protocol):
    """The emulation's methods for a rank."""

    knobs: Knobs
    judged: bool
    aborting: list[Host]
    baton: Baton
    printed_lines: list[tuple[int, str]]

    def live(self, rank: int) -> None:
        """The whole life of a rank, in its own thread."""

    def kill(self, host: Host, text: str, calls: Sequence[EmulatedCall] = ()) -> None:
        """End a rank as if its process had been killed, in the first of `calls`."""

    def overtaken(self, host: Host, call: EmulatedCall) -> None:
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


class Host:
    """A rank. All methods are called in its thread, while it holds the baton, but `wake`, `ended`
    and `completed`.

    alive      `ending` is None
    closing    `ending` is set: its program is over, but its process still shows to the others
    gone       its process has ended
    """

    def __init__(self, orders: Orders, rank: int, own: Own) -> None:
        self.orders = orders
        self.rank = rank
        self.own = own
        self.ending: Ending | None = None
        self.gone = False
        self.closing = ""  # said of it if it still waits once its program is over
        self.log = RankLog(rank)
        self.take = self.log.take
        self.take(RankBegins(rank=rank, time_ns=0, coalesced=[], **versions()))
        self._weak: Host = weakref.proxy(self)
        self.futures = Futures()
        self.waits = ThreadWaits(rank, self, orders.baton, lambda: orders.live(rank), self.futures)
        self.calls = self.waits.calls
        self.replicas = Replicas(self.take, self.calls.__len__)
        self.misuse = Misuse(self.take)
        self.eager = (
            False  # its process is bound to a GPU, so that its groups connect when they are made
        )
        self.asked_timeout: timedelta | None = None  # for the group that it is making now
        self.asked_backend: object = None  # of a group that torch.distributed is making for it
        self.open_calls = 0  # of them, how many are neither complete nor failed
        self._stacks: set[int] = set()  # those that its log has
        self._kept: list[
            object
        ] = []  # a Work that was collected makes C++ wait for ever; calls know their group weakly
        self.reducer = Reducer(self.waits, self.futures)
        self.progress = InputProgress(
            self.take, orders.knobs.costs.input_ns[rank], self.waits, self.reducer
        )

    # ------------------------------------------------------------------------------------ issuing

    def issue(
        self,
        group: Group,
        name: str,
        args: tuple[object, ...],
        coalesced: list[EmulatedCall] | None,
    ) -> EmulatedCall:
        """Record a call, and hand it to the group's fabric or add it to `coalesced`, calls that are
        issued as one."""
        if (
            self.orders.judged
        ):  # the program caught RankEnded and goes on, with no rank left to meet
            raise RankEnded
        mine = current() is self
        if not mine:
            raise self.orders.broken(
                THREADED.format(
                    self.rank, "calls a collective from a thread that its program has started"
                )
            )
        try:
            call = self._describe(group, name, args, sys._getframe(2))
        except NoSuchRank as error:
            text = f"rank {self.rank} calls {name}: {error}. Real ranks would wait for it in vain, or crash."
            raise self.orders.broken(text) from None
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

    def submit(self, group: Group, calls: Sequence[EmulatedCall]) -> None:
        """Hand calls to the fabric that are issued as one."""
        if calls:
            if self.orders.aborting:
                self.waits.yield_if_ready()
            try:
                group.fabric.submit(calls)
            except (
                Exception
            ) as error:  # no backend raises here: what it refuses, `check` has refused
                self.orders.unmodelled(calls[0], error)
                raise RankEnded from error

    def open_group(self, name: str, ranks: tuple[int, ...], desc: str | None) -> Any:
        """A further group of this rank."""
        return self.orders.open_group(self, name, ranks, desc)

    def keep(self, kept: object) -> None:
        """Keep a Work or a group for as long as the rank lives."""
        self._kept.append(kept)

    def _describe(
        self, group: Group, name: str, args: tuple[object, ...], frame: FrameType
    ) -> EmulatedCall:
        method, streams, waits = METHODS[name], group.fabric.streams, self.waits
        if method.op is Op.BARRIER and streams:  # NCCL makes its barrier of an all-reduce
            ins = outs = [self.orders.knobs.barrier_element()]
            parts = [CallPart(ins, outs)]
        else:
            ins, outs = method.tensors(args)
            parts = parts_of(name, args, len(group.ranks), streams)
        kind = kind_of(group, STACKS, STACKS.intern(frame), method, args, ins, outs)
        if kind.stack not in self._stacks:
            self._stacks.add(kind.stack)
            self.take(STACKS.events[kind.stack])
            for source in STACKS.sources[kind.stack]:
                self.take(FunctionText.of(source))
        if kind.small and ins and not waits.stuck:
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
                time_ns=waits.now,
                values=value_in,
                streamed=waits.issues(),
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
        self.open_calls += 1
        self.calls.append(call)
        waits.work_for(ISSUE_NS)
        if streams:
            call.ready_ns = max(waits.now, waits.stream_ns)
        else:
            call.ready_ns = waits.now
        if kind.in_backward:
            self.reducer.issued_in_backward(call)
        return call

    # ------------------------------------------------------------------------------------ what
    # fabrics ask of it

    @property
    def now(self) -> int:
        """Its virtual clock."""
        return self.waits.now

    def for_host(self, calls: Sequence[EmulatedCall]) -> None:
        """Its host waits for these."""
        self.waits.for_host(calls)

    @property
    def stuck(self) -> bool:
        """Whether its stream waits for ever, while the host has run on."""
        return self.waits.stuck

    def wake(self) -> None:
        """Let its thread go on."""
        self.waits.wake()

    def wait_inside(self, calls: Sequence[EmulatedCall], why: str) -> None:
        """The host waits inside these calls, until `wake`."""
        self.waits.stand_still(HostWait(calls, why=why))

    def reach(self, ns: int) -> None:
        """The host has come to this time, if it was not there yet."""
        self.waits.reach(ns)

    def ended(self, call: EmulatedCall) -> None:
        """One of its calls is no longer open."""
        self.open_calls -= 1

    def completed(self, call: EmulatedCall) -> None:
        """One of its calls is complete, or has failed."""
        if not self.waits.completed(call):
            self.orders.overtaken(self, call)

    # ------------------------------------------------------------------------------------ waiting

    def wait(
        self, calls: Sequence[EmulatedCall], explicit: bool = False, timeout_ns: int = 0
    ) -> None:
        """Work.wait(): the host waits, or its stream; raises what the backend raises."""
        if self.waits.within_limit(calls, timeout_ns):
            return
        self.reducer.wait(calls, explicit)
        if calls[0].kind.rebuilds:
            wrong = self.reducer.disbelief(calls[0])
            if wrong:
                told = f"DDP's Reducer took another call's data for {wrong}; what a process then does is undefined"
                self.orders.kill(self, told, calls)
                raise RankEnded

    def synchronize(self) -> None:
        """torch.cuda.synchronize(): the host waits for all streams, so for every call on NCCL,
        awaited or not."""
        self.misuse.all_asked()
        self.waits.synchronize()

    def drain(self, closing: str) -> None:
        """Its process ends (`closing`): it waits for its collectives on gloo that are in flight."""
        self.closing = closing
        self.waits.drain()

    # ------------------------------------------------------------------------------------ the
    # process it stands for

    def printed(self, text: str) -> None:
        """It wrote to its stdout or stderr."""
        if not self.waits.turn.doomed:
            self.told(text)

    def told(self, text: str) -> None:
        """Keep what it printed, or what is told of how it raised, within bounds."""
        self.own.output.add(text.encode(errors="backslashreplace"))
        if self.own.output.whole:
            self.orders.printed_lines.append((self.rank, text))

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
        self.orders.kill(self, text)
        raise RankEnded

    def init_process_group(self, *args: object, **kwargs: object) -> None:
        """The group is there already, so a rank's first call says that it knows of it."""
        begin(
            (self.orders.knobs.backend, self.own.ranks, self.rank), self.own.begun, *args, **kwargs
        )
        self.own.begun = True
        if kwargs.get("device_id") is not None:
            self.orders.connect(self)
