"""A list of calls per rank, played on a modelled network: no process, no program, no DDP.

    x, y = torch.ones(1), torch.full((1,), 2.0)
    played = play([[Call("all_reduce", [x])], [Call("all_reduce", [y])]], NcclFabric)
    played.calls[0][0].completed_ns, x.item(), played.ends[0].kind     # (22000, 3.0, "finished")

For whatever asks the network and not the rank: which calls meet, when they complete and with which
bytes, and what becomes of a rank that nothing but its calls decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import assert_never

import torch
import torch.distributed as dist

from joinlab.backend.clock import Costs
from joinlab.backend.model import EmulatedCall, Group, Knobs
from joinlab.backend.payload import memory
from joinlab.errors import JoinlabError, ProgramError
from joinlab.ops import FACTS, CallRow, Needs, Op
from joinlab.program.outcome import text_of
from joinlab.program.process_group import METHODS, Form
from tests.modelled_ranks import MakeFabric, Session, SessionRank

COSTS = Costs((), latency_ns=20_000, bytes_per_second=10e9)
"""Those of `joinlab.emulate`."""

ALL = "0"
"""The group of all ranks."""


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One call of a rank: what a program hands to torch.distributed.

    op         "all_reduce", "barrier", ...: an Op
    ins        the tensors that it reads: one; on each rank one per rank of the group for a reduce_scatter and an
               all_to_all, at the root alone for a scatter
    outs       the tensors that it writes; None: it works in place, or has none. One per rank of the group for an
               all_gather, at the root alone for a gather
    root, peer  global ranks; a recv without a peer takes any source
    reduce_op  "sum", "avg", ..., where it reduces
    method     of ProcessGroup, where another one than the first for the op is meant: "_allgather_base"
    waits      it is waited for at once, as with async_op=False: by the host, or on NCCL by the stream
    args       what the method takes, where these fields cannot say it
    """

    op: str
    ins: Sequence[torch.Tensor] = ()
    outs: Sequence[torch.Tensor] | None = None
    group: str = ALL
    root: int = 0
    peer: int | None = None
    tag: int = 0
    reduce_op: str = "sum"
    method: str = ""
    waits: bool = True
    args: tuple[object, ...] | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """Calls that are issued as one (batch_isend_irecv), and waited for one after the other."""

    calls: Sequence[Call]
    waits: bool = True


@dataclass(frozen=True, slots=True)
class Wait:
    """Work.wait() of earlier calls; `timeout_s` 0: without a limit."""

    calls: Sequence[Call]
    timeout_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Poll:
    """Work.is_completed(), again and again until an earlier call is."""

    call: Call


@dataclass(frozen=True, slots=True)
class Sync:
    """The host waits for its stream: x.item(), x.cpu(), print(x)."""


@dataclass(frozen=True, slots=True)
class Synchronize:
    """torch.cuda.synchronize(): the host waits for all calls on NCCL that it has issued."""


@dataclass(frozen=True, slots=True)
class Destroy:
    """destroy_process_group(): the host waits for what is pending in a group."""

    group: str = ALL


@dataclass(frozen=True, slots=True)
class Sleep:
    """Virtual time passes, and other ranks may act."""

    seconds: float


Step = Call | Batch | Wait | Poll | Sync | Synchronize | Destroy | Sleep
"""What a rank does next."""


@dataclass(frozen=True, slots=True)
class CallResult:
    """What became of one call.

    row   its columns of a Timeline, as far as the network knows them; times are virtual, in ns
    held  the bytes of its output tensors, one after the other: when it completed; at the end, if it is open
    """

    call: Call
    row: CallRow
    held: bytes

    @property
    def completed_ns(self) -> int | None:
        """None: it never did, or failed."""
        return self.row.get("completed_ns")

    @property
    def completed(self) -> bool:
        return self.completed_ns is not None

    @property
    def error(self) -> str | None:
        """What its backend raised for it, type and text."""
        return self.row.get("error")


@dataclass(frozen=True, slots=True)
class RankEnd:
    """How a rank ended, as far as the network alone decides it.

    kind   "finished", "hung" (proven: no rank can go on), "raised" (its backend raised) or "killed" (it aborted)
    call   place in the rank's calls of the first open one that it waited for, or of the one that raised
    text   of the error, or what it waited for
    steps  how many of its steps the host has behind it
    """

    kind: str
    call: int | None
    text: str
    steps: int


@dataclass(frozen=True, slots=True)
class Played:
    """What happened: by rank its issued calls, in their order, and its ending.

    assumes  what the model took for granted
    """

    calls: tuple[tuple[CallResult, ...], ...]
    ends: tuple[RankEnd, ...]
    assumes: str = ""

    @property
    def done(self) -> list[int]:
        """By rank, how many of its calls completed."""
        return [sum(result.completed for result in results) for results in self.calls]

    @property
    def kinds(self) -> list[str]:
        """By rank, the kind of its ending."""
        return [end.kind for end in self.ends]


def play(
    ranks: Sequence[Iterable[Step]],
    fabric: MakeFabric,
    *,
    groups: Mapping[str, Sequence[int]] | None = None,
    fabrics: Mapping[str, MakeFabric] | None = None,
    era: str = "today",
    barrier_value: int = 7,
    pad: int = 0,
    gpu: str = "A100",
    costs: Costs = COSTS,
    bound: bool = False,
    limits_s: Mapping[str, float] | None = None,
) -> Played:
    """Play what each rank does on a modelled network; return what became of every call.

    ranks     per rank its steps; a generator is asked for the next one when the rank comes to it, and may read the
              tensors that it has waited for
    fabric    NcclFabric or GlooFabric: what lies between the ranks
    groups    further process groups, by name: their global ranks. Each rank makes its own first, in this order
    fabrics   of the groups that lie on another fabric
    era, barrier_value, pad, gpu   as in joinlab.emulate
    costs     of a call; an input costs nothing here
    bound     init_process_group(device_id=...): NCCL makes its communicators with their groups
    limits_s  by group: its timeout, which gloo's waits and NCCL's watchdog count

    The calls work on the tensors that they are given, and read what lies behind these in memory where NCCL's kernels
    do. ProgramError: a step that cannot be. LaunchError: what real ranks would do is not modelled.

        >>> from joinlab.nccl.fabric import NcclFabric
        >>> ones = [torch.ones(2), torch.ones(2)]
        >>> played = play([[Call("all_reduce", [one])] for one in ones], NcclFabric)
        >>> played.kinds, played.done, ones[0].tolist()
        (['finished', 'finished'], [1, 1], [2.0, 2.0])
    """
    knobs = Knobs(fabric.backend, era, barrier_value, pad, costs, timeout_s=0.0, gpu=gpu)
    session = Session(knobs, len(ranks))
    members_of = dict(groups or {})
    makers = {name: (fabrics or {}).get(name, fabric) for name in members_of}
    lanes = list(map(_Lane, ranks))

    def act(host: SessionRank) -> None:
        host.open_group(ALL, range(len(ranks)), fabric, bound)
        for name, members in members_of.items():
            if host.rank in members:
                host.open_group(name, members, makers[name], bound)
                if not host.groups[name].fabric.streams:
                    session.meet(host, name)
        for name, seconds in (limits_s or {}).items():
            if name in host.groups:
                host.groups[name].limit(round(seconds * 1e9))
        lanes[host.rank].act(host)

    session.run([act] * len(ranks))
    return Played(
        tuple(tuple(lane.results()) for lane in lanes),
        tuple(lane.ending(host) for lane, host in zip(lanes, session.hosts, strict=True)),
        session.assumes(),
    )


@dataclass(slots=True)
class _Lane:
    """The steps of one rank, and what it has issued so far."""

    steps: Iterable[Step]
    done: int = 0  # of its steps
    raised: RankEnd | None = None
    issued: list[tuple[Call, EmulatedCall]] = field(default_factory=list)
    _held: dict[int, bytes] = field(default_factory=dict)  # by id of a call that completed

    def act(self, host: SessionRank) -> None:
        """Do all steps; then wait for its calls in flight on gloo, as the end of a process does."""
        host.on_done = self._hold
        step: Step | None = None
        try:
            for step in self.steps:
                self._do(host, step)
                self.done += 1
        except JoinlabError:
            raise
        except Exception as error:
            self.raised = self._raised(step, text_of(error))
        host.drain()

    def results(self) -> list[CallResult]:
        """What became of each of its calls."""
        results = []
        for step, call in self.issued:
            if call.id in self._held:
                content = self._held[call.id]
            else:
                content = _bytes(call.tensors_out)
            results.append(CallResult(step, call.row, content))
        return results

    def ending(self, host: SessionRank) -> RankEnd:
        """How the rank ended."""
        end = host.ending
        assert end is not None
        if self.raised is not None and end.kind == "finished":
            return self.raised
        if end.call is None or end.call.id < 0:
            call_id = None
        else:
            call_id = end.call.id
        return RankEnd(end.kind, call_id, end.text, self.done)

    def _do(self, host: SessionRank, step: Step) -> None:
        match step:
            case Call():
                self._issue(host, [step], step.waits)
            case Batch():
                self._issue(host, step.calls, step.waits, batched=True)
            case Wait():
                host.wait(self._issued(step.calls), round(step.timeout_s * 1e9))
            case Poll():
                while not host.poll(self._issued([step.call])):
                    pass
            case Sync():
                host.sync()
            case Synchronize():
                host.synchronize()
            case Destroy():
                host.flush(_group(host, step.group))
            case Sleep():
                host.sleep(step.seconds)
            case _ as never:
                assert_never(never)

    def _issue(
        self, host: SessionRank, steps: Sequence[Call], waits: bool, batched: bool = False
    ) -> None:
        group = _group(host, steps[0].group)
        calls = []
        for step in steps:
            name = method_of(step)
            call = host.describe(group, name, arguments(step, name, group.ranks), batched=batched)
            self.issued.append((step, call))
            host.check(call)
            calls.append(call)
        host.submit(group, calls)
        if waits:
            host.wait(calls)

    def _issued(self, steps: Sequence[Call]) -> list[EmulatedCall]:
        made = {id(step): call for step, call in self.issued}
        missing = [step.op for step in steps if id(step) not in made]
        if missing:
            raise ProgramError(f"this rank has not issued the {missing[0]} that it waits for")
        return [made[id(step)] for step in steps]

    def _hold(self, call: EmulatedCall) -> None:
        self._held[call.id] = _bytes(call.tensors_out)

    def _raised(self, step: Step | None, text: str) -> RankEnd:
        """Its backend raised: in the last call that this step is about and that failed."""
        calls: Sequence[Call] = ()
        if isinstance(step, Call):
            calls = [step]
        elif isinstance(step, (Batch, Wait)):
            calls = step.calls
        failed = [(asked in calls, call.id) for asked, call in self.issued if call.row.get("error")]
        return RankEnd("raised", max(failed)[1] if failed else None, text, self.done)


def method_of(call: Call) -> str:
    """The method of ProcessGroup that a call means."""
    if call.method:
        is_known, name = call.method in METHODS and METHODS[call.method].op == call.op, call.method
    elif call.op == Op.RECV and call.peer is None:
        return "recv_anysource"
    else:
        names = [name for name, method in METHODS.items() if method.op == call.op]
        is_known, name = bool(names), names[0] if names else call.op
    if not is_known:
        raise ProgramError(f"there is no call {call.op!r} by a method {name!r} of ProcessGroup")
    return name


def arguments(call: Call, name: str, ranks: Sequence[int]) -> tuple[object, ...]:
    """What torch.distributed hands the method `name` for a call in a group of these ranks."""
    if call.args is not None:
        return call.args
    method = METHODS[name]
    facts, single = FACTS[method.op], method.form is Form.SINGLE
    ins, outs = list(call.ins), list(call.outs or ())
    if facts.point_to_point:
        if call.peer is None:
            to = []
        else:
            to = [ranks.index(call.peer) if call.peer in ranks else -1]
        return (ins or outs, *to, call.tag)
    options = SimpleNamespace(
        rootRank=ranks.index(call.root) if call.root in ranks else call.root,
        reduceOp=getattr(dist.ReduceOp, call.reduce_op.upper()),
        asyncOp=not call.waits,
    )
    if method.ins is None:
        return (options,)
    if method.ins == method.outs:
        return ins, options
    if single:
        splits: list[list[int]] = [[], []] if method.op is Op.ALL_TO_ALL else []
        return (outs[0], ins[0], *splits, options)
    # The side with a part per rank is in a list for each device, of which a rank has one; an all_to_all has two such
    # sides, and no such list.
    sends_parts = facts.for_each
    takes_parts = facts.needs in (Needs.EVERYONE, Needs.AT_ROOT) and not facts.reduces
    nested: object = [outs if takes_parts else ins] if (outs if takes_parts else ins) else []
    if method.form is Form.COALESCED or sends_parts == takes_parts:
        return outs, ins, options
    if takes_parts:
        return (nested, ins, options)
    return (outs, nested, options)


def _group(host: SessionRank, name: str) -> Group:
    if name not in host.groups:
        raise ProgramError(f"rank {host.rank} is not in a group {name!r}")
    return host.groups[name]


def _bytes(tensors: Sequence[torch.Tensor]) -> bytes:
    return b"".join(memory(tensor).tobytes() for tensor in tensors)
