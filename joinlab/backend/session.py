"""Ranks on modelled fabrics, without threads: who acts next, and what happens when none can.

A fabric may wait in the middle of a call: the first call on a communicator returns only when all of
its ranks have come. So what a rank does runs in a greenlet, which can be left there and entered
again. One rank acts at a time until it has to wait. Then it is the turn of the one furthest behind
on its virtual clock (the lower rank, if two are level):

    rank 0   acts ──for_host()──┐                              ┌── acts
                                │                              │
    rank 1                      └─ acts ── submit() ───────────┴── for_host(), or its end
                                              └ the call completes: wake(rank 0)

When no rank can go on, fabrics carry out what needs less than all ranks (`flush`). If that helps
nobody, ranks of which only the stream waits are let go: on a GPU their hosts never stopped. If there
are none of those either, every rank that is left waits for ever, and that is proven.

`play` gives each rank a list of calls.
"""

from __future__ import annotations

import heapq
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol

from greenlet import getcurrent, greenlet

from joinlab.backend.clock import EXIT_NS, ISSUE_NS, POLL_NS
from joinlab.backend.model import EmulatedCall, Fabric, Knobs, Machine, Rank
from joinlab.backend.payload import CallPart, parts_of
from joinlab.errors import LaunchError, ProgramError
from joinlab.ops import POINT_TO_POINT, Op
from joinlab.program.kinds import CallKind, plain_kind
from joinlab.program.log_events import CallDone, CallFailed, CallStarted, Event
from joinlab.program.process_group import METHODS, NoSuchRank, Numbering

NAPS = 1_000
"""After so many sleeps without a call, a rank counts as waiting in a loop for another rank.

Before that it may still issue a call, so no other rank's stream is given up. The number is our own.
"""

WATCHDOG_NS = 600 * 10**9
"""default_pg_nccl_timeout in torch/distributed/constants.py, PyTorch v2.13.0."""


class RankOver(BaseException):
    """Ends what a rank does, wherever it waits: its process is gone."""


class MakeFabric(Protocol):
    """NcclFabric or GlooFabric."""

    backend: str

    def __call__(self, run: Machine, ranks: Sequence[int]) -> Fabric: ...


@dataclass(frozen=True, slots=True)
class End:
    """How a rank ended, as far as the network decides it.

    kind   "finished": it did all that it had to; "hung": it waits for ever, which is proven; "raised": its backend
           raised; "killed": its backend aborted its process
    call   the first open call that it waited for, or the one that raised; None if there is none
    text   of the error, or what else it waited for
    """

    kind: str
    call: EmulatedCall | None = None
    text: str = ""


@dataclass(slots=True)
class HostWait:
    """A wait of a rank: until all of `calls` are done, or for what `why` names.

    of_stream  only the stream waits; the real host would run on
    let_go     no rank can go on, so this one goes on as that host would
    """

    calls: Sequence[EmulatedCall] = ()
    of_stream: bool = False
    why: str = ""
    let_go: bool = False

    @property
    def over(self) -> bool:
        """Whether all its calls are done."""
        return not self.why and all(call.done for call in self.calls)


class RankGroup:
    """A process group as one of its ranks has it: a `Group` of model.py.

    limit_ns     on gloo, the timeout that the program gave it; 0: none
    watchdog_ns  on NCCL, how long a call may take before the watchdog ends the process; 0: not on NCCL
    """

    def __init__(self, rank: int, label: str, ranks: Sequence[int], fabric: Fabric) -> None:
        self.label = label
        self.ranks = tuple(ranks)
        self.place = self.ranks.index(rank)
        self.fabric = fabric
        self.backend = fabric.backend
        self.host_waits = not fabric.streams
        self.numbering = Numbering()
        self.kinds: dict[tuple[object, ...], CallKind] = {}
        self.limit_ns = 0
        self.watchdog_ns = WATCHDOG_NS if fabric.streams else 0

    def set_timeout(self, ns: int) -> None:
        """The program gives it this timeout."""
        self.limit_ns, self.watchdog_ns = (0, ns) if self.fabric.streams else (ns, 0)


class SessionRank:
    """A rank as a host and its stream: two clocks in virtual ns, every kind of wait, and its calls.

    All methods are called in its turn, but `wake`, `take`, `ended` and `completed`.

    stuck   its stream waits for ever, while its host has run on: nothing that it issues is carried out
    end     how it ended; None: it still acts
    gone    its process has ended
    on_done  called when one of its calls has completed, with its outputs written
    """

    def __init__(self, session: Session, rank: int) -> None:
        self.session: Session = weakref.proxy(session)
        self.rank = rank
        self.now = 0
        self.stream_ns = 0
        self.stuck = False
        self.doomed = False
        self.gone = False
        self.end: End | None = None
        self.standing: HostWait | None = None
        self.groups: dict[str, RankGroup] = {}
        self.calls: list[EmulatedCall] = []
        self.open_calls = 0
        self.turn: greenlet | None = None
        self.queued = False  # it can go on, and waits for its turn
        self.until: int | None = None  # when its wait ends by itself
        self.on_done: Callable[[EmulatedCall], None] = lambda call: None
        self._naps = 0  # how often it has slept since its last call
        self._streamed: dict[EmulatedCall, None] = {}  # its stream has been made to wait for these

    # --------------------------------------------------------------------------- asked by fabrics

    def take(self, event: Event) -> None:
        """Write what happened to a call into its row; those below 0 are none of the program's, as
        in monitored_barrier."""
        match event:
            case CallStarted() if event.call >= 0:
                self.calls[event.call].row["started_ns"] = event.time_ns
            case CallDone() if event.call >= 0:
                self.calls[event.call].row["completed_ns"] = event.time_ns
                self.on_done(self.calls[event.call])
            case CallFailed() if event.call >= 0:
                self.calls[event.call].row["error"] = event.text

    def ended(self, call: EmulatedCall) -> None:
        """One of its calls is no longer open."""
        self.open_calls -= 1

    def completed(self, call: EmulatedCall) -> None:
        """One of its calls is complete, or has failed, which may end its wait."""
        if self.stuck and call in self._streamed:
            raise LaunchError(
                f"rank {self.rank} let another rank go on while its own stream still waited for {call!r}, by other "
                "means than a collective. On a GPU its host would run ahead of its stream there; without one, its "
                'values are not known. Use joinlab.launch, with backend="gloo" or on GPUs.'
            )
        wait = self.standing
        if wait is not None and wait.calls and all(waited.done for waited in wait.calls):
            self.wake()

    def wake(self) -> None:
        """Let it have a turn."""
        if not self.queued and not self.gone:
            self.queued = True
            heapq.heappush(self.session.ready, (self.now, self.rank))

    def wait_inside(self, calls: Sequence[EmulatedCall], why: str) -> None:
        """Its host waits inside these calls, not for them: until `wake`."""
        self._stand(HostWait(calls, why=why))

    def reach(self, ns: int) -> None:
        """Its host has come to this time, if it was not there yet."""
        self.now = max(self.now, ns)

    # ------------------------------------------------------------------------------------ issuing

    def open_group(
        self, label: str, ranks: Sequence[int], make: MakeFabric, bound: bool = False
    ) -> RankGroup:
        """Make a group with a name that all of its ranks use. On gloo they wait for each other.

        bound  a GPU is bound to the process, so that NCCL connects the ranks at once
        """
        group = self.groups[label] = self.session.group(self.rank, label, ranks, make)
        if bound:
            group.fabric.connect(group.place, self, self.now)
        return group

    def meet(self, label: str) -> None:
        """Wait until all ranks of a group have made it."""
        group, hosts = self.groups[label], self.session.hosts
        made = [hosts[rank] for rank in group.ranks if label in hosts[rank].groups]
        if len(made) < len(group.ranks):
            self.wait_inside((), f"for the other ranks of group {label!r} to make it too")
        else:
            for host in made:
                if host.rank != self.rank:
                    host.wake()
            self.session.met_ns[label] = max(host.now for host in made)
        self.reach(self.session.met_ns[label])  # the last one may have gone on since

    def describe(
        self, group: RankGroup, name: str, args: tuple[object, ...], batched: bool = False
    ) -> EmulatedCall:
        """A call of the method `name` of ProcessGroup, which it hands to its backend now."""
        method, streams = METHODS[name], group.fabric.streams
        if method.op is Op.BARRIER and streams:
            ins = outs = [self.session.knobs.barrier_element()]
            parts = [CallPart(ins, outs)]
        else:
            ins, outs = method.tensors(args)
            parts = parts_of(name, args, len(group.ranks), streams)
        try:
            kind = plain_kind(group, method, args, ins, outs)
        except NoSuchRank as error:
            raise ProgramError(f"rank {self.rank} calls {name}: {error}") from None
        numbering, facts = group.numbering, kind.facts
        self.now += ISSUE_NS
        call = EmulatedCall(
            weakref.proxy(self),
            group,
            kind,
            len(self.calls),
            {
                "rank": self.rank,
                "group": group.label,
                "seq": numbering.next_seq(),
                "number": numbering.next_number(kind.collective),
                "op": kind.op.value,
                "dtype": facts["dtype"],
                "shape": facts["shape"],
                "reduce_op": facts.get("reduce_op"),
                "root": facts.get("root"),
                "peer": facts.get("peer"),
                "tag": facts.get("tag"),
                "splits": facts.get("splits"),
                "value_in": None,
                "enqueued_ns": self.now,
            },
            parts,
            name,
            args,
            batched=batched,
            tensors_in=ins,
            tensors_out=outs,
        )
        call.small = False
        if streams:
            call.ready_ns = max(self.now, self.stream_ns)
        else:
            call.ready_ns = self.now
        self.open_calls += 1
        self.calls.append(call)
        return call

    def check(self, call: EmulatedCall) -> None:
        """Raise what its backend refuses at once."""
        try:
            call.group.fabric.check(call)
        except Exception as error:
            call.refuse(error)
            raise

    def submit(self, group: RankGroup, calls: Sequence[EmulatedCall]) -> None:
        """Hand calls to their fabric that are issued as one."""
        self._naps = 0
        if self.session.aborting:
            self.yield_if_ready()
        try:
            group.fabric.submit(calls)
        except LaunchError:
            raise
        except Exception as error:  # what a backend refuses, `check` has refused
            raise unmodelled(calls[0], error) from error

    # ------------------------------------------------------------------------------------ waiting

    def for_host(self, calls: Sequence[EmulatedCall]) -> None:
        """Make the host wait until all of `calls` are complete; raises the backend's error."""
        late = [
            call
            for call in calls
            if not (call.done and call.error is None and call.ended_ns <= self.now)
        ]
        streams = bool(late) and late[0].group.fabric.streams
        if streams:  # it waits for the stream, and so for all that this was made to wait for
            late += [call for call in self._streamed if not call.done and call not in late]
        if late:
            self._stand(HostWait(late))
            until = max(call.ended_ns for call in late)
            self.reach(until)
            if streams:
                self.stream_ns = max(self.stream_ns, until)
        for call in late:
            if call.error is not None:
                raise RuntimeError(call.error)
        for call in calls:
            call.settle()

    def wait(self, calls: Sequence[EmulatedCall], timeout_ns: int = 0) -> None:
        """Work.wait(): the host waits, or its stream; raises what the backend raises.

        A LambdaWork takes no time limit (reduce_scatter, ProcessGroupGloo.cpp, PyTorch v2.13.0).
        """
        group = calls[0].group
        limited = group.fabric.streams or calls[0].op is not Op.REDUCE_SCATTER
        if timeout_ns and limited:
            for call in calls:
                self._for_host_until(call, self.now, timeout_ns, group.fabric.timed_out)
        elif group.limit_ns:
            timed_out = group.fabric.group_timed_out
            for call in calls:
                self._for_host_until(call, call.ready_ns, group.limit_ns, timed_out)
        elif timeout_ns or any(call.host_waits for call in calls):
            self.for_host(calls)
        else:
            self.for_stream(calls)

    def _for_host_until(
        self,
        call: EmulatedCall,
        since: int,
        limit_ns: int,
        timed_out: Callable[[EmulatedCall, int], RuntimeError],
    ) -> None:
        until = since + limit_ns
        if not call.done:
            self._stand(HostWait([call]), until)
        if not (call.done and call.ended_ns <= until):
            call.group.fabric.flush()  # what needs no other rank is done by now
        if call.done and call.ended_ns <= until:
            self.for_host([call])
            return
        self.reach(until)
        error = timed_out(call, limit_ns // 10**6)
        call.expire(error)
        raise error

    def for_stream(self, calls: Sequence[EmulatedCall]) -> None:
        """The stream waits until all of `calls` are complete."""
        late = [call for call in calls if not call.done]
        if (late or self.doomed) and not self.stuck:
            self._stand(HostWait(late, of_stream=True))
        for call in calls:
            self._streamed[call] = None
            if call.done:
                self.stream_ns = max(self.stream_ns, call.ended_ns)

    def sync(self) -> None:
        """The host waits for its stream: .item(), .cpu(), print(tensor)."""
        late = [call for call in self._streamed if not (call.done and call.ended_ns <= self.now)]
        self._streamed = {}
        if late:
            self.for_host(late)
        self.reach(self.stream_ns)

    def synchronize(self) -> None:
        """torch.cuda.synchronize(): the host waits for all its streams, so for each call on NCCL."""
        self._for_all(
            call
            for call in self.calls
            if call.group.fabric.streams
            and not (call.done and (call.error is not None or call.ended_ns <= self.now))
        )
        self.sync()

    def flush(self, group: RankGroup) -> None:
        """destroy_process_group: the host waits for all that is pending in the group."""
        if group.fabric.streams:
            calls = [call for call in self.calls if call.group.label == group.label]
            self._for_all(call for call in calls if call.error is None)
        else:
            self.drain(group)

    def drain(self, group: RankGroup | None = None) -> None:
        """Wait for the collectives on gloo that are in flight (of `group`).

        A group's destructor waits for its worker threads: when it is destroyed, or when the process
        ends.
        """
        for call in self.calls:
            in_group = group is None or call.group.label == group.label
            worker = call.op not in POINT_TO_POINT and not call.group.fabric.streams
            if in_group and worker and not call.settled and not call.expired:
                with suppress(RuntimeError):  # the destructor tells no one that it has failed
                    self.for_host([call])

    def poll(self, calls: Sequence[EmulatedCall]) -> bool:
        """Work.is_completed(). Asking takes time, so that a rank that keeps asking lets the others
        come."""
        if all(
            call.done and (call.error is not None or call.ended_ns <= self.now) for call in calls
        ):
            return True
        if all(call.done for call in calls):
            self.reach(max(call.ended_ns for call in calls))
        else:
            self.now += POLL_NS
            if not self.stuck:
                self._yield_turn(asks=True)
        return False

    def sleep(self, ns: int) -> None:
        """time.sleep: virtual time passes, and others may act."""
        self.now += ns
        self._naps += 1
        self._yield_turn(asks=self._naps > NAPS)

    def yield_if_ready(self) -> None:
        """Let the others act, where any can."""
        if self.session.ready:
            self._yield_turn(asks=False)

    @property
    def awaited(self) -> EmulatedCall | None:
        """The first open call that it waits for."""
        calls = () if self.standing is None else self.standing.calls
        return next((call for call in calls if not call.done), None)

    def let_go(self) -> bool:
        """No rank can go on: go on if only the stream waits. False if the host does, too."""
        wait = self.standing
        if wait is None or not wait.of_stream or self.stuck:
            return False
        wait.let_go = True
        self.wake()
        return True

    def _for_all(self, calls: Any) -> None:
        late = list(calls)
        if late:
            self.for_host(late)

    def _stand(self, wait: HostWait, until: int | None = None) -> None:
        """Wait until it is over, or until that time, or, if the stream waits before it, for ever."""
        if self.doomed:
            if self.end is not None and self.end.call is None and wait.calls:
                self.end = replace(self.end, call=wait.calls[0])
            raise RankOver
        if wait.over:
            return
        self.standing = wait
        self._hand_over(until)
        self.standing = None
        if wait.let_go:
            self.stuck = True

    def _yield_turn(self, asks: bool) -> None:
        """Let every rank that can go on and is not ahead act first.

        One that `asks` in a loop never waits, so others may have to be let go here.
        """
        if asks and not self.session.ready:
            self.session.stalled(final=False)
        self.wake()
        self._hand_over()

    def _hand_over(self, until: int | None = None) -> None:
        if self.doomed:
            raise RankOver
        self.until = until
        if until is not None:
            heapq.heappush(self.session.timers, (until, self.rank))
        self.session.main.switch()
        self.until = None
        if self.doomed:
            raise RankOver


class Session:
    """The ranks of one run, and the fabrics between them: a `Machine` of model.py.

    ready     a heap of (virtual clock, rank): those that can go on
    timers    a heap of (virtual time, rank): waits that end by themselves
    met_ns    by group on gloo: when the last of its ranks made it
    aborting  ranks whose backend aborts their process, and whose turn has not come since
    """

    def __init__(self, knobs: Knobs, size: int) -> None:
        self.knobs = knobs
        self.costs = knobs.costs
        self.hosts = [SessionRank(self, rank) for rank in range(size)]
        self.ready: list[tuple[int, int]] = []
        self.timers: list[tuple[int, int]] = []
        self.aborting: list[SessionRank] = []
        self.fabrics: dict[str, Fabric] = {}
        self.met_ns: dict[str, int] = {}
        self.ranks_of: dict[str, tuple[int, ...]] = {}

    def run(self, bodies: Sequence[Callable[[SessionRank], None]]) -> None:
        """Let each rank do what its body does, until all have ended or none can go on.

        A body raises what its backend raises. LaunchError: the model cannot tell what real ranks
        would do.
        """
        self.main = getcurrent()
        for host, body in zip(self.hosts, bodies, strict=True):
            host.turn = greenlet(self._live)
            host.turn.switch(host, body)
        try:
            while (host_next := self._next()) is not None:
                assert host_next.turn is not None
                host_next.turn.switch()
        finally:
            for host in self.hosts:
                if host.turn is not None and not host.turn.dead:
                    host.gone = True
                    host.turn.throw(RankOver)
                host.turn = None

    def group(self, rank: int, label: str, ranks: Sequence[int], make: MakeFabric) -> RankGroup:
        """A rank's end of a group, whose fabric is made by the first one that asks."""
        if label not in self.fabrics:
            self.ranks_of[label] = tuple(ranks)
            self.fabrics[label] = make(weakref.proxy(self), self.ranks_of[label])
        return RankGroup(rank, label, ranks, self.fabrics[label])

    def listen(self) -> None:
        """Called before a rank gets its turn: where ranks act elsewhere, wait for them here."""

    def abort_rank(self, host: Rank, text: str, at_ns: int) -> None:
        """Its backend aborts its process at that time. Ranks whose clocks are behind act first
        (`SessionRank.submit`).

        rank 0   sends 8 B to rank 1 at 5
        rank 1   issues recv(2) at 5, and recv(0) of 4 B at 7: it aborts at 7
        rank 2   sends to rank 1 at 6, and has its turn after rank 1: its message still comes
        """
        session_rank = self.hosts[host.rank]
        if session_rank.gone or session_rank.end is not None:
            return
        session_rank.end = End(
            "killed", session_rank.awaited, f"its process was killed by SIGABRT: {text}"
        )
        self.aborting.append(session_rank)
        for fabric, place in self._on(session_rank):
            fabric.abort(place, at_ns)
        session_rank.reach(at_ns)
        session_rank.doomed = True
        if session_rank.standing is not None:
            session_rank.wake()

    def stalled(self, final: bool) -> None:
        """No rank can go on (`final`), or all wait but one that keeps asking: see who can after
        all."""
        for fabric in self.fabrics.values():
            try:
                fabric.flush()
            except LaunchError:
                raise
            except Exception as error:
                raise unmodelled("the calls that the ranks wait for", error) from error
        if self.ready:
            return
        living = [host for host in self.hosts if not host.gone]
        let_go = [host for host in living if host.let_go()]
        if let_go or not final:
            return
        for host in living:
            why = host.standing.why if host.standing is not None else ""
            host.end = End("hung", host.awaited, why)

    # ------------------------------------------------------------------------------------

    def _live(self, host: SessionRank, body: Callable[[SessionRank], None]) -> None:
        try:
            host.wake()
            self.main.switch()
            body(host)
            if host.doomed:
                raise RankOver
            host.end = host.end or End("finished")
            self._close(host)
        except RankOver:
            if host.gone:
                return
            if host in self.aborting:
                self._abort(host)
        host.gone = True
        for fabric, place in self._on(host):
            fabric.leave(place)

    def _abort(self, host: SessionRank) -> None:
        """Until its process is gone the others go on, but it no longer answers them."""
        host.doomed = False
        host.yield_if_ready()
        for fabric, place in self._on(host):
            fabric.freeze(place)
        self.aborting.remove(host)
        self._close(host)

    def _close(self, host: SessionRank) -> None:
        """It has done all. Until its process is gone, the others go on as if nothing had
        happened."""
        if not self.knobs.streams:
            host.now += EXIT_NS
            host.yield_if_ready()

    def _on(self, host: SessionRank) -> list[tuple[Fabric, int]]:
        """Its groups' fabrics, and its place in each."""
        return [(group.fabric, group.place) for group in host.groups.values()]

    def _next(self) -> SessionRank | None:
        """The rank that can go on and is furthest behind; None if all are over, or wait for ever."""
        while True:
            self.listen()
            timed_out = self._timer_due()
            if timed_out is not None:
                return timed_out
            if not self.ready:
                self.stalled(final=True)
                if not self.ready:
                    return None
            if not self.ready:
                continue
            host = self.hosts[heapq.heappop(self.ready)[1]]
            host.queued = False
            if not host.gone:
                return host

    def _timer_due(self) -> SessionRank | None:
        """The rank whose wait with a time limit ends before any that can go on has its turn; its
        clock is set to then.

        Ranks that are not there yet may hold messages back that others do not need: `stalled` lets
        those go first.
        """
        while self.timers:
            until, rank = self.timers[0]
            host = self.hosts[rank]
            if host.gone or host.queued or host.until != until:  # it has been woken meanwhile
                heapq.heappop(self.timers)
            elif self.ready and self.ready[0][0] <= until:
                return None
            else:
                self.stalled(final=False)
                if not host.queued and not (self.ready and self.ready[0][0] <= until):
                    heapq.heappop(self.timers)
                    host.reach(until)
                    return host
        return None


def unmodelled(step: object, error: Exception) -> LaunchError:
    """Carrying out `step` has failed by a fault of the model, not of the program."""
    return LaunchError(
        f"joinlab could not model {step} ({type(error).__name__}: {error}). Use joinlab.launch for this program."
    )
