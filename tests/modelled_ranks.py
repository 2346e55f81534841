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

from joinlab.backend.clock import ISSUE_NS
from joinlab.backend.machine import Machine, overtaken, unmodelled
from joinlab.backend.model import EmulatedCall, Fabric, Group, Knobs
from joinlab.backend.turns import ActingRank, RankTurn, Turns
from joinlab.errors import LaunchError, ProgramError
from joinlab.program.kinds import plain_kind
from joinlab.program.log_events import CallDone, CallFailed, CallStarted, Event
from joinlab.program.process_group import METHODS, NoSuchRank


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


class SessionRank(ActingRank):
    """A rank, and what it issues.

    on_done  called when one of its calls has completed, with its outputs written
    """

    ending: End | None

    def __init__(self, session: Session, rank: int) -> None:
        super().__init__(RankTurn(rank), session.turns)
        self.session: Session = weakref.proxy(session)
        self.groups: dict[str, Group] = {}
        self.body: greenlet | None = None
        self.on_done: Callable[[EmulatedCall], None] = lambda call: None

    def pause(self, until: int | None = None) -> None:
        """Let the others act; RankOver if it is doomed."""
        wait, self.standing = self.standing, None
        if self.turn.doomed:
            ending = self.ending
            if ending is not None and ending.call is None and wait is not None and wait.calls:
                self.ending = replace(ending, call=wait.calls[0])
            raise RankOver
        self.standing = wait
        self._turns.wait_until(self.turn, until)
        self.session.main.switch()
        self.turn.until = None
        if self.turn.doomed:
            raise RankOver

    # ---------------- asked by fabrics

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

    def overtaken(self, call: EmulatedCall) -> None:
        raise overtaken(call)

    def killed(self, text: str, calls: Sequence[EmulatedCall] = ()) -> None:
        self.ending = End("killed", next(iter(calls or self.awaited), None), text)

    # ---------------- issuing

    def open_group(
        self, label: str, ranks: Sequence[int], make: MakeFabric, bound: bool = False
    ) -> Group:
        """Make a group with a name that all of its ranks use. On gloo they wait for each other.

        bound  a GPU is bound to the process, so that NCCL connects the ranks at once
        """
        group = self.groups[label] = self.session.group(self.rank, label, ranks, make)
        if bound:
            group.fabric.connect(group.group_rank, self, self.now)
        return group

    def describe(
        self, group: Group, name: str, args: tuple[object, ...], batched: bool = False
    ) -> EmulatedCall:
        """A call of the method `name` of ProcessGroup, which it hands to its backend now."""
        ins, outs, parts = group.memory(name, args, self.session.knobs)
        try:
            kind = plain_kind(group, METHODS[name], args, ins, outs)
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
        self.enter(call)
        return call

    def check(self, call: EmulatedCall) -> None:
        """Raise what its backend refuses at once."""
        try:
            call.group.fabric.check(call)
        except Exception as error:
            call.refuse(error)
            raise

    def submit(self, group: Group, calls: Sequence[EmulatedCall]) -> None:
        """Hand calls to their fabric that are issued as one."""
        self.begin_issue()
        if self.session.aborting:
            self.yield_if_ready()
        try:
            group.fabric.submit(calls)
        except LaunchError:
            raise
        except Exception as error:  # what a backend refuses, `check` has refused
            raise unmodelled(calls[0], error) from error


class Session(Machine):
    """The ranks of one run, and the fabrics between them."""

    hosts: list[SessionRank]

    def __init__(self, knobs: Knobs, size: int) -> None:
        session = weakref.proxy(self)
        turns = Turns(lambda final: session.stalled(final), lambda: session.listen())
        super().__init__(knobs, turns)
        self.hosts = [SessionRank(self, rank) for rank in range(size)]
        turns.ranks = [host.turn for host in self.hosts]

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
                    host.gone = host.turn.over = True
                    host.body.throw(RankOver)
                host.body = None

    def group(self, rank: int, label: str, ranks: Sequence[int], make: MakeFabric) -> Group:
        """A rank's end of a group, whose fabric is made by the first one that asks."""
        if label not in self.fabrics:
            self.ranks_of[label] = tuple(ranks)
            self.fabrics[label] = make(weakref.proxy(self), self.ranks_of[label])
        return Group(rank, label, ranks, self.fabrics[label])

    def listen(self) -> None:
        """Called before a rank gets its turn: where ranks act elsewhere, wait for them here."""

    def stalled(self, final: bool) -> None:
        """No rank can go on (`final`), or all wait but one that keeps asking: see who can after
        all."""
        try:
            if self.flush():
                return
        except LaunchError:
            raise
        except Exception as error:
            raise unmodelled("the calls that the ranks wait for", error) from error
        living = [host for host in self.hosts if not host.gone]
        let_go = [host for host in living if host.let_go()]
        if let_go or not final:
            return
        for host in living:
            why = host.standing.why if host.standing is not None else ""
            host.ending = End("hung", next(iter(host.awaited), None), why)

    def _live(self, host: SessionRank, body: Callable[[SessionRank], None]) -> None:
        try:
            host.wake()
            self.main.switch()
            body(host)
            if host.turn.doomed:
                raise RankOver
            host.ending = host.ending or End("finished")
            self.close_process(host)
        except RankOver:
            if host.gone:
                return
            if host in self.aborting:
                self.finish_abort(host)
        host.gone = host.turn.over = True
        self.leave_groups(host)
