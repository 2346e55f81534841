"""Ranks on modelled fabrics, without threads: who acts next, and what happens when none can.

A fabric may wait in the middle of a call: the first call on a communicator returns only when all of
its ranks have come. So what a rank does runs in a greenlet, which can be left there and entered
again, in the order of turns.py.

When no rank can go on, fabrics carry out what needs less than all ranks (`flush`). If that helps
nobody, ranks of which only the stream waits are let go: on a GPU their hosts never stopped. If there
are none of those either, every rank that is left waits for ever, and that is proven.

`play` gives each rank a list of calls.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from greenlet import getcurrent, greenlet

from joinlab.backend.clock import EXIT_NS, ISSUE_NS
from joinlab.backend.model import EmulatedCall, Fabric, Knobs, Machine, Rank
from joinlab.backend.payload import CallPart, parts_of
from joinlab.backend.turns import HostWait, RankTurn, RankWaits, Turns
from joinlab.errors import LaunchError, ProgramError
from joinlab.ops import Op
from joinlab.program.kinds import CallKind, plain_kind
from joinlab.program.log_events import CallDone, CallFailed, CallStarted, Event
from joinlab.program.process_group import METHODS, NoSuchRank, Numbering

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


class SessionRank(RankWaits[RankTurn]):
    """A rank, and what it issues.

    All methods are called in its turn, but `wake`, `take`, `ended` and `completed`.

    end      how it ended; None: it still acts
    on_done  called when one of its calls has completed, with its outputs written
    """

    def __init__(self, session: Session, rank: int) -> None:
        super().__init__(RankTurn(rank), session.turns)
        self.session: Session = weakref.proxy(session)
        self.rank = rank
        self.end: End | None = None
        self.groups: dict[str, RankGroup] = {}
        self.open_calls = 0
        self.body: greenlet | None = None
        self.on_done: Callable[[EmulatedCall], None] = lambda call: None

    @property
    def gone(self) -> bool:
        """Whether its process has ended."""
        return self.turn.over

    def pause(self, until: int | None = None) -> None:
        """Let the others act; RankOver if it is doomed."""
        wait, self.standing = self.standing, None
        if self.turn.doomed:
            if self.end is not None and self.end.call is None and wait is not None and wait.calls:
                self.end = replace(self.end, call=wait.calls[0])
            raise RankOver
        self.standing = wait
        self._turns.wait_until(self.turn, until)
        self.session.main.switch()
        self.turn.until = None
        if self.turn.doomed:
            raise RankOver

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

    def completed(self, call: EmulatedCall) -> bool:
        """One of its calls is complete, or has failed, which may end its wait."""
        if super().completed(call):
            return True
        raise LaunchError(
            f"rank {self.rank} let another rank go on while its own stream still waited for {call!r}, by other "
            "means than a collective. On a GPU its host would run ahead of its stream there; without one, its "
            'values are not known. Use joinlab.launch, with backend="gloo" or on GPUs.'
        )

    def wait_inside(self, calls: Sequence[EmulatedCall], why: str) -> None:
        """Its host waits inside these calls, not for them: until `wake`."""
        self.stand_still(HostWait(calls, why=why))

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
        self.work_for(ISSUE_NS)
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
        self.issues()
        if self.session.aborting:
            self.yield_if_ready()
        try:
            group.fabric.submit(calls)
        except LaunchError:
            raise
        except Exception as error:  # what a backend refuses, `check` has refused
            raise unmodelled(calls[0], error) from error

    # ------------------------------------------------------------------------------------ waiting

    def wait(self, calls: Sequence[EmulatedCall], timeout_ns: int = 0) -> None:
        """Work.wait(): the host waits, or its stream; raises what the backend raises."""
        if self.within_limit(calls, timeout_ns):
            return
        if timeout_ns or any(call.host_waits for call in calls):
            self.for_host(calls)
        else:
            self.for_stream(calls)


class Session:
    """The ranks of one run, and the fabrics between them: a `Machine` of model.py.

    met_ns    by group on gloo: when the last of its ranks made it
    aborting  ranks whose backend aborts their process, and whose turn has not come since
    """

    def __init__(self, knobs: Knobs, size: int) -> None:
        self.knobs = knobs
        self.costs = knobs.costs
        session = weakref.proxy(self)
        self.turns = Turns[RankTurn](lambda final: session.stalled(final), lambda: session.listen())
        self.hosts = [SessionRank(self, rank) for rank in range(size)]
        self.turns.ranks = [host.turn for host in self.hosts]
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
            host.body = greenlet(self._live)
            host.body.switch(host, body)
        try:
            while (turn := self.turns.next()) is not None:
                following = self.hosts[turn.rank].body
                assert following is not None
                following.switch()
        finally:
            for host in self.hosts:
                if host.body is not None and not host.body.dead:
                    host.turn.over = True
                    host.body.throw(RankOver)
                host.body = None

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
            "killed", _awaited(session_rank), f"its process was killed by SIGABRT: {text}"
        )
        self.aborting.append(session_rank)
        for fabric, place in self._on(session_rank):
            fabric.abort(place, at_ns)
        session_rank.reach(at_ns)
        session_rank.turn.doomed = True
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
        if self.turns.ready:
            return
        living = [host for host in self.hosts if not host.gone]
        let_go = [host for host in living if host.let_go()]
        if let_go or not final:
            return
        for host in living:
            why = host.standing.why if host.standing is not None else ""
            host.end = End("hung", _awaited(host), why)

    # ------------------------------------------------------------------------------------

    def _live(self, host: SessionRank, body: Callable[[SessionRank], None]) -> None:
        try:
            host.wake()
            self.main.switch()
            body(host)
            if host.turn.doomed:
                raise RankOver
            host.end = host.end or End("finished")
            self._close(host)
        except RankOver:
            if host.gone:
                return
            if host in self.aborting:
                self._abort(host)
        host.turn.over = True
        for fabric, place in self._on(host):
            fabric.leave(place)

    def _abort(self, host: SessionRank) -> None:
        """Until its process is gone the others go on, but it no longer answers them."""
        host.turn.doomed = False
        host.yield_if_ready()
        for fabric, place in self._on(host):
            fabric.freeze(place)
        self.aborting.remove(host)
        self._close(host)

    def _close(self, host: SessionRank) -> None:
        """It has done all. Until its process is gone, the others go on as if nothing had
        happened."""
        if not self.knobs.streams:
            host.work_for(EXIT_NS)
            host.yield_if_ready()

    def _on(self, host: SessionRank) -> list[tuple[Fabric, int]]:
        """Its groups' fabrics, and its place in each."""
        return [(group.fabric, group.place) for group in host.groups.values()]


def unmodelled(step: object, error: Exception) -> LaunchError:
    """Carrying out `step` has failed by a fault of the model, not of the program."""
    return LaunchError(
        f"joinlab could not model {step} ({type(error).__name__}: {error}). Use joinlab.launch for this program."
    )


def _awaited(host: SessionRank) -> EmulatedCall | None:
    """The first open call that it waits for."""
    return next(iter(host.awaited), None)
