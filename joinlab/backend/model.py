"""The types that all parts of an emulation share: its knobs, a call of a rank, its group, what a
fabric does, and what a rank is to both.

The other files of the emulator import this one; it imports none of them. At run time references
point down, too:

    Emulation -> Host -> EmulatedGroup -> Fabric -> EmulatedCall -> tensors

References that point up (of a call to its group and host, of a host or a fabric to the emulation)
are weak. So an emulation has no cycle of references, and it is freed when `emulate` returns, not
when the garbage collector comes.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from joinlab.backend.clock import Costs
from joinlab.backend.payload import CallPart, parts_of
from joinlab.ops import CallRow, Op
from joinlab.program.kinds import CallKind, GroupFacts
from joinlab.program.log_events import CallDone, CallFailed, CallStarted, Event, ValuesRead
from joinlab.program.outcome import text_of
from joinlab.program.process_group import METHODS, values_in

WATCHDOG_NS = 600 * 10**9
"""default_pg_nccl_timeout in torch/distributed/constants.py, PyTorch v2.13.0."""


@dataclass(frozen=True, slots=True)
class Knobs:
    """The arguments of `joinlab.emulate` that fabrics and hosts read."""

    backend: str
    era: str
    barrier_value: int
    pad: int
    costs: Costs
    timeout_s: float
    gpu: str = "A100"

    @property
    def streams(self) -> bool:
        """Whether calls of the default group run on a stream, so that Work.wait() does not make the
        host wait."""
        return self.backend == "nccl"

    def barrier_element(self) -> torch.Tensor:
        """What NCCL's barrier all-reduces: a float zero today, and in 1.9 one byte that no one had
        set."""
        if self.era == "1.9":
            word = torch.tensor([self.barrier_value], dtype=torch.uint32)
            # its neighbours belong to it: a kernel of wider elements reads them
            return word.view(torch.uint8)[:1]
        return torch.zeros(1, dtype=torch.float32)


class Rank(Protocol):
    """A rank, as its calls and fabrics see it.

    A fabric calls these while a rank issues a call or ends, be it this rank or another one; only
    `wait_inside` may hand the turn to another rank. What is behind it (a thread, a greenlet, a
    process) is the driver's business.
    """

    rank: int

    @property
    def gone(self) -> bool:
        """Whether its process has ended."""

    @property
    def stuck(self) -> bool:
        """Whether its stream waits for ever, while its host has run on."""

    @property
    def take(self) -> Callable[[Event], None]:
        """Takes an event of the rank."""

    def ended(self, call: EmulatedCall) -> None:
        """One of its calls is no longer open."""

    def completed(self, call: EmulatedCall) -> object:
        """One of its calls is complete, or has failed."""

    def wake(self) -> None:
        """It may go on: what it waited for inside a call is there."""

    def wait_inside(self, calls: Sequence[EmulatedCall], why: str) -> None:
        """Its host waits inside these calls, not for them: until `wake`."""

    def reach(self, ns: int) -> None:
        """Its host has come to this time, if it was not there yet."""


class Group(GroupFacts):
    """A process group as one of its ranks has it.

    limit_ns     on gloo, the timeout that the program gave it, which passes in virtual time; 0: none
    watchdog_ns  on NCCL, how long a call may take before the watchdog ends the process; 0: not on NCCL
    """

    def __init__(self, rank: int, label: str, ranks: Sequence[int], fabric: Fabric) -> None:
        super().__init__(label, fabric.backend, ranks, not fabric.streams)
        self.group_rank = self.ranks.index(rank)
        self.fabric = fabric
        self.watchdog_ns = WATCHDOG_NS if fabric.streams else 0

    def limit(self, ns: int) -> None:
        """The program gives it this timeout."""
        self.limit_ns, self.watchdog_ns = (0, ns) if self.fabric.streams else (ns, 0)

    def memory(
        self, name: str, args: tuple[object, ...], knobs: Knobs
    ) -> tuple[list[torch.Tensor], list[torch.Tensor], list[CallPart]]:
        """The tensors that a call of the method `name` of ProcessGroup reads and writes, and the
        collectives that it consists of. NCCL makes its barrier of an all-reduce."""
        method, streams = METHODS[name], self.fabric.streams
        if method.op is Op.BARRIER and streams:
            element = [knobs.barrier_element()]
            return element, element, [CallPart(element, element)]
        ins, outs = method.tensors(args)
        return ins, outs, parts_of(name, args, len(self.ranks), streams)


class Fabric:
    """The network between the ranks of one group: it decides which calls meet, and carries them
    out.

    backend  "gloo" or "nccl"
    streams  Work.wait() makes a stream wait instead of the host
    """

    backend: str
    streams: bool

    def connect(self, group_rank: int, host: Rank, now: int) -> None:
        """The rank of `group_rank` has made the group with a GPU bound to its process: on NCCL it
        connects to the others now, and waits for them."""

    def check(self, call: EmulatedCall) -> None:
        """Raise what this backend raises at once for such a call."""
        raise NotImplementedError

    def submit(self, calls: Sequence[EmulatedCall]) -> None:
        """A rank has issued these calls, as one; carry out what can be."""
        raise NotImplementedError

    def flush(self) -> None:
        """No rank can go on: carry out what needs less than all ranks."""

    def leave(self, group_rank: int) -> None:
        """The process of the rank of `group_rank` has ended."""

    def abort(self, group_rank: int, at_ns: int) -> None:
        """The process of `group_rank` aborts at that time; `freeze` follows when its clock is there."""

    def freeze(self, group_rank: int) -> None:
        """The process of `group_rank` is about to end: it carries out nothing any more."""

    def assumes(self) -> list[str]:
        """What the model took for granted: notes beside a Timeline."""
        return []

    def timed_out(self, call: EmulatedCall, ms: int) -> RuntimeError:
        """The host stops waiting for `call` after `ms` milliseconds: what the backend does, and
        raises."""
        raise NotImplementedError

    def group_timed_out(self, call: EmulatedCall, ms: int) -> RuntimeError:
        """The same, after the timeout that the program gave the group."""
        raise NotImplementedError


@dataclass(slots=True, eq=False)
class EmulatedCall:
    """One call of one rank, from its issue to its end. `row` is its row of the Timeline; times are
    virtual, in ns.

    issued -> begin() -> complete() -> settle()     its output is written, then its row says so
           -> refuse() or fail()                    the backend raises: at once, or later
    """

    host: Rank
    group: Group  # held weakly: its host keeps it
    kind: CallKind
    id: int  # in the rank's events
    row: CallRow
    parts: list[CallPart]
    method: str = ""  # of ProcessGroup, and what the program gave it
    args: tuple[Any, ...] = ()
    done: bool = False
    error: str | None = None
    future: Any = None
    batched: bool = False  # it is one of those that are issued together, be it the only one
    moved: bool = False  # its own data has moved, though other calls of its batch may still wait
    # the host has given up waiting for it, so its end is not written down any more
    expired: bool = False
    # it was issued behind a call that was still open: its input may not have been there
    inflight: bool = False
    # whole, as the program gave them; parts may be pieces of them
    tensors_in: Sequence[torch.Tensor] = ()
    tensors_out: Sequence[torch.Tensor] = ()
    ready_ns: int = 0  # when the backend can begin with it
    ended_ns: int = 0  # when it completed or failed, once it is done
    source_group_rank: int = -1
    # the rest of it, if it completes only when waited for
    when_waited: Callable[[], None] | None = None
    op: Op = field(init=False)
    look: tuple[object, ...] = field(init=False)
    root: int = field(init=False)
    reduce_op: str = field(init=False)
    host_waits: bool = field(init=False)
    small: bool = field(init=False)
    group_rank: int = field(init=False)

    def __post_init__(self) -> None:
        kind, self.group_rank = self.kind, self.group.group_rank
        self.group = weakref.proxy(self.group)
        self.op, self.look, self.root, self.small = kind.op, kind.look, kind.root, kind.small
        self.reduce_op = kind.facts.get("reduce_op") or "sum"
        self.host_waits = kind.host_waits or kind.syncs_host

    def nbytes(self) -> int:
        """Bytes that it moves, for the clock."""
        return self.kind.nbytes

    @property
    def settled(self) -> bool:
        """Whether its row says that it completed, or failed."""
        return self.row.get("completed_ns") is not None or bool(self.row.get("error"))

    def begin(self, at_ns: int) -> None:
        """The backend begins to carry it out; its input is there."""
        if self.inflight and self.small and self.row["value_in"] is not None:
            values = values_in(self.tensors_in)
            self.host.take(ValuesRead(call=self.id, column="value_in", values=values))
        if self.group.fabric.streams:
            self.host.take(CallStarted(call=self.id, time_ns=at_ns))

    def complete(self, at_ns: int) -> None:
        """It completed; its output is written."""
        if self.done:
            return
        self._end()
        self.ended_ns = at_ns
        if self.when_waited is None:
            self.settle()
        self.host.completed(self)

    def settle(self) -> None:
        """Write down that it completed, and what came out."""
        if self.when_waited is not None:
            finish, self.when_waited = self.when_waited, None
            try:
                finish()
            except RuntimeError as error:
                self.error = str(error)
                self._fail(text_of(error))
                raise
        elif self.row.get("completed_ns") is not None:
            return
        if self.expired:
            return
        if self.small and self.tensors_out:
            values = values_in(self.tensors_out)
        else:
            values = None
        self.host.take(CallDone(call=self.id, time_ns=self.ended_ns, values=values))

    def fail(self, text: str, at_ns: int) -> None:
        """The backend raises instead of completing it."""
        if self.done or self.host.gone:
            return
        self._end()
        self.ended_ns = max(self.ready_ns, at_ns)
        if self.when_waited is not None:  # which is when it finds out

            def late() -> None:
                raise RuntimeError(text)

            self.when_waited = late
        else:
            self.error = text
            if not self.expired:
                self._fail(f"RuntimeError: {text}")
        self.host.completed(self)

    def expire(self, error: RuntimeError) -> None:
        """The host has given up waiting for it; its row says so, whatever comes later."""
        self.expired = True
        self._fail(text_of(error))

    def refuse(self, error: Exception) -> None:
        """The backend refused the call when it was handed over, so the call takes no number in its
        group."""
        self._end()
        self.group.numbering.take_back(self.kind.collective)
        self._fail(text_of(error), refused=1)

    def _fail(self, text: str, refused: int | None = None) -> None:
        self.host.take(CallFailed(call=self.id, text=text, refused=refused))

    def _end(self) -> None:
        self.done = True
        self.host.ended(self)

    def __repr__(self) -> str:
        return f"<{self.op} {self.row['seq']} of rank {self.host.rank} in {self.group.label!r}>"
