"""NCCL's matching rule: which of the calls issued so far can never complete.

NCCL checks nothing. On one communicator the k-th collective of one rank meets the k-th of the other, whatever kind,
dtype, size or operation each of them thinks it is. Every collective is a fixed list of steps around a ring: in a
step a rank receives from the rank before it, sends to the rank after it, or both. The message between two
neighbours lies in a FIFO of NCCL_STEPS places, a step a place, and the step numbers live as long as the
communicator. So two collectives that do not fit may still both complete, with nonsense; or one completes and the
other waits for a step that no rank will take; or both complete and leave the numbers askew, so that the next call,
though right on both ranks, hangs.

For small messages on two ranks NCCL takes the LL protocol: a step carries lines of LINE_BYTES bytes, each with its
own flag, and a receiver waits for the lines that *it* expects. A step may carry no line at all (a chunk of the ring
that lies beyond the end of a small tensor): it is counted, but no receiver waits for it.

`Ring` is that model. It decides for two ranks and small messages, where NCCL's choice of algorithm is known. With
more ranks or larger messages the choice is the tuner's; there only what every algorithm shares is claimed: as long
as all calls so far fit, a result that needs a rank which issued no such call cannot come. A rank's calls on one
communicator run in order, on one stream: behind a call that cannot complete, none can.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, assert_never

from joinlab.ops import FACTS, Needs, Op, op_of
from joinlab.rules.calls import Blocked, Blocker, GroupCalls, IssuedCall

NCCL_STEPS = 8
"""Places of a FIFO: a send must wait once this many steps are unread (NCCL v2.29.7-1, src/include/device.h)."""

LINE_BYTES = 8
"""Bytes of data in one LL line: data1 and data2 of ncclLLFifoLine (NCCL v2.29.7-1, src/include/device.h)."""

WARP_LINES = 32
"""Lines that the threads of one warp move: a thread has one at a time (LLGenericOp in prims_ll.h, WARP_SIZE)."""

SMALL_BYTES = 16 * 1024
"""Below this a message runs on one channel, in one round of LL: the ring model decides what two ranks do.

Our bound, on the safe side of NCCL_LL_THREAD_THRESHOLD, by which a message gets its channels and threads (NCCL
v2.29.7-1, src/include/comm.h and src/graph/tuning.cc).
"""

LL_BYTES: Mapping[str, int] = {"V100": 512 * 1024, "A100": 1024 * 1024, "H100": 2 * 1024 * 1024}
"""By GPU kind: up to about here two ranks of one node take LL; above, LL128 or Simple, whose buffers are others.

Rounded from the times that the tuner compares, with its bandwidths llMaxBws (NCCL v2.29.7-1, src/graph/tuning.cc).
"""

ALIGNS = (16, 512)
"""A rank's part of an all_reduce is a multiple of this many bytes: today, and in PyTorch 1.9.

today  alignUp(divUp(remCount, nranks), 16/sizeof(T)) in runRing (NCCL v2.22.3-1 and v2.29.7-1, src/device/all_reduce.h)
1.9    minChunkSize = nthreads * sizeof(uint64_t), with 64 threads (NCCL v2.7.8-1, src/collectives/device/all_reduce.h)
"""


class Step(NamedTuple):
    """One step: lines to receive and lines to send. None: it does not; 0: it does, without a line.

    `peer` is None on the ring: the step receives from the rank before it and sends to the one after it. A place there
    is the other side of a connection between the two alone, as gather, scatter and all_to_all use them.
    """

    recv: int | None
    send: int | None
    peer: int | None = None
    flags: bool = True  # the LL protocol: the receiver waits for its lines' flags; else for the sender's counter


def lines_of(nbytes: int) -> int:
    """How many LL lines a message takes."""
    return -(-nbytes // LINE_BYTES)


def steps(op: str, place: int, size: int, root: int, nbytes: int, align: int = 16) -> tuple[Step, ...] | None:
    """The steps of one collective at `place` (0 to size - 1) of the ring; None for an op that is not run on the ring.

    root    place of the root
    nbytes  bytes of the tensor; of one rank's part for all_gather and reduce_scatter
    align   a rank's part of an all_reduce is a multiple of this: 16 since NCCL 2.27, 512 in 2.7.8

    >>> steps("broadcast", 1, 2, 0, 8)
    (Step(recv=1, send=None, peer=None, flags=True),)
    """
    known = op_of(op)
    if known is None:
        return None
    if size < 2 or nbytes == 0:
        return ()
    lines = lines_of(nbytes)
    last, both = (place + 1) % size, Step(lines, lines)
    match known:
        case Op.ALL_REDUCE | Op.BARRIER:
            return _all_reduce(place, size, nbytes, align)
        case Op.BROADCAST:
            return (Step(None, lines),) if place == root else (Step(lines, None),) if last == root else (both,)
        case Op.REDUCE:
            return (
                (Step(lines, None),)
                if place == root
                else (Step(None, lines),)
                if place == (root + 1) % size
                else (both,)
            )
        case Op.ALL_GATHER | Op.REDUCE_SCATTER:
            return (Step(None, lines), *(size - 2) * (both,), Step(lines, None))
        case Op.GATHER | Op.SCATTER | Op.ALL_TO_ALL | Op.SEND | Op.RECV:
            return None
        case _:
            assert_never(known)


def chunk_bytes(nbytes: int, size: int, align: int = 16) -> int:
    """Bytes of one rank's part of an all_reduce: a small tensor is the first part alone."""
    chunk = -(-nbytes // size)
    return chunk + -chunk % align


def _all_reduce(place: int, size: int, nbytes: int, align: int) -> tuple[Step, ...]:
    """A chunk for each rank goes once around the ring to be summed, and once more to be handed out."""
    chunk = chunk_bytes(nbytes, size, align)

    def lines(index: int) -> int:
        return lines_of(min(chunk, max(0, nbytes - index % size * chunk)))

    turns = 2 * size - 2
    sends = [lines(place - 1 - turn) for turn in range(turns)]
    recvs = [lines(place - 2 - turn) for turn in range(turns)]
    return (Step(None, sends[0]), *(Step(*pair) for pair in zip(recvs, sends[1:], strict=False)), Step(recvs[-1], None))


class Transfer(Protocol):
    """What one call does with the lines that its steps move. The rule alone needs none; an emulation does."""

    def take(self, step: int, first: int, last: int, source: Transfer | None, source_step: int) -> None:
        """In its `step`, lines `first` to `last` (excluded) can go on.

        They have arrived from the step `source_step` of `source`; None: they are this rank's own.
        """


@dataclass(slots=True)
class _Edge:
    """A FIFO from one place to another, for as long as the communicator lives."""

    sent: list[int] = field(default_factory=list)  # lines of every step ever sent
    flagged: list[bool] = field(default_factory=list)  # whether that step was one of the LL protocol
    senders: list[tuple[Transfer | None, int]] = field(default_factory=list)  # whose step that was, and which
    received: int = 0  # steps ever received


@dataclass(slots=True)
class _Place:
    todo: deque[tuple[Step, Transfer | None, int]] = field(default_factory=deque)
    ends: deque[int] = field(default_factory=deque)  # how many steps of `todo` and before each issued call ends at
    begun: bool = False  # the step at hand has already sent what it can
    taken: int = 0  # lines of the step at hand that have gone on
    steps_done: int = 0
    steps_issued: int = 0
    calls_done: int = 0


class Ring:
    """One communicator: FIFOs between neighbours, with counters that live as long as it does.

        ring = Ring(2)
        ring.issue(0, steps("all_reduce", 0, 2, 0, 4))
        ring.issue(1, steps("broadcast", 1, 2, 1, 8))
        ring.done                           # [1, 1]: both complete, though they do not fit

    `done[place]` counts the calls that complete, given all that was issued so far.

    independent_threads  False: the threads of a warp wait for each other, as before Volta. A thread spins on its line's
                         flag (readLL in prims_ll.h), so none of the warp's lines goes on before all have come
    """

    def __init__(self, size: int, independent_threads: bool = True) -> None:
        self._together = 1 if independent_threads else WARP_LINES
        self._places = [_Place() for _ in range(size)]
        self._edges: dict[tuple[int, int, bool], _Edge] = {}
        self.unsure = False
        """Large messages of calls that do not fit have met: how far they get depends on chunks."""

    def issue(self, place: int, steps: Sequence[Step], transfer: Transfer | None = None) -> None:
        """The rank at `place` enqueues a call; then everything runs as far as it can."""
        at = self._places[place]
        at.todo.extend((step, transfer, index) for index, step in enumerate(steps))
        at.steps_issued += len(steps)
        at.ends.append(at.steps_issued)
        self._run(place)

    @property
    def done(self) -> list[int]:
        """Per place: how many of its calls are complete."""
        return [place.calls_done for place in self._places]

    @property
    def at_rest(self) -> bool:
        """Whether nothing is under way and every step sent was received: what comes next finds no trace."""
        return not any(place.todo for place in self._places) and all(
            len(edge.sent) == edge.received for edge in self._edges.values()
        )

    def _run(self, place: int) -> None:
        awake = deque([place])
        while awake:
            awake.extend(self._advance(awake.popleft()))

    def _edge(self, source: int, target: int, on_ring: bool) -> _Edge:
        key = (source, target, on_ring)
        edge = self._edges.get(key)
        if edge is None:
            edge = self._edges[key] = _Edge()
        return edge

    def _advance(self, index: int) -> set[int]:
        """Take the steps of one place for as long as it can; returns the places that may see a difference."""
        size = len(self._places)
        here = self._places[index]
        awake: set[int] = set()
        while True:
            while here.ends and here.ends[0] <= here.steps_done:
                here.ends.popleft()
                here.calls_done += 1
            if not here.todo:
                return awake
            (recv, send, peer, flags), transfer, number = here.todo[0]
            on_ring = peer is None
            source = (index - 1) % size if peer is None else peer
            target = (index + 1) % size if peer is None else peer
            into, out = self._edge(source, index, on_ring), self._edge(index, target, on_ring)
            if send is not None and not here.begun:
                if len(out.sent) - out.received >= NCCL_STEPS:
                    return awake  # the FIFO is full
                out.sent.append(0)
                out.flagged.append(flags)
                out.senders.append((transfer, number))
                here.begun = True
                awake.add(target)
            arrived = 0
            sender: tuple[Transfer | None, int] = (None, 0)
            if recv and not flags and True in map(False.__eq__, into.flagged[into.received :]):
                self.unsure = True  # counters of other large messages count for this one, too
            if recv and into.received < len(into.sent) and flags is into.flagged[into.received]:
                arrived = min(recv, into.sent[into.received])
                arrived -= arrived % self._together if arrived < recv else 0
                sender = into.senders[into.received]
            ready = arrived if recv else send or 0
            if transfer is not None and ready > here.taken:
                transfer.take(number, here.taken, ready, *sender)
            here.taken = max(here.taken, ready)
            if send is not None:
                # Each line has a thread of its own: what has arrived goes out, even if the rest never comes.
                lines = send if recv is None else min(send, arrived)
                if lines > out.sent[-1]:
                    out.sent[-1] = lines
                    awake.add(target)
            if recv and arrived < recv:
                return awake  # the rest is still to come, if ever
            here.todo.popleft()
            if recv is not None:
                into.received += 1
                awake.add(source)
            here.steps_done += 1
            here.begun = False
            here.taken = 0


First = dict[int, tuple[int, tuple[Blocker, ...]]]
"""Per rank: place of its first call that cannot complete, and which ranks are the reason."""


def blocked(group: GroupCalls, gone: Collection[int] = ()) -> Blocked:
    """The calls of `group` that can never complete, whatever is done with the calls issued so far.

    gone  ranks whose process has ended. Within one machine NCCL does not notice, and ranks keep waiting for them.

    Empty if the calls contradict the rule (one is known to be complete that could not be): then nothing is known.
    """
    if group.failed or len(group.ranks) < 2:
        return {}
    lanes = [group.collectives[rank] for rank in group.ranks]
    absent = _absent(group)
    first = _unmade(group, absent) if absent else _first_blocked(group.ranks, lanes)
    found: dict[tuple[int, int], tuple[Blocker, ...]] = {}
    for rank, (index, why) in first.items():
        lane = group.collectives[rank]
        behind = (Blocker(rank, lane[index].seq),)  # the rank's own stream is held up by that call
        found.update({(rank, call.seq): behind for call in lane[index + 1 :]})
        found[rank, lane[index].seq] = why
    if any((call.rank, call.seq) in found for lane in lanes for call in lane if call.completed):
        return {}
    return {**found, **_recvs(group, absent)}


def _absent(group: GroupCalls) -> list[int]:
    """The ranks that have issued no call at all in this group."""
    there = {rank for rank, lane in group.collectives.items() if lane}
    there |= {source for source, _, _ in group.sends} | {target for _, target, _ in group.recvs}
    return [rank for rank in group.ranks if rank not in there]


def _unmade(group: GroupCalls, absent: Sequence[int]) -> First:
    """A communicator is made in the first call on it, for which every rank waits: until then nothing runs on it."""
    why = tuple(Blocker(rank, None) for rank in absent)
    return {rank: (0, why) for rank, lane in group.collectives.items() if lane}


def _first_blocked(ranks: Sequence[int], lanes: Sequence[Sequence[IssuedCall]]) -> First:
    first: First = {}
    common = min(len(lane) for lane in lanes)
    for k, calls in enumerate(zip(*lanes, strict=False)):
        if not _fit(calls):
            return _replay_all(ranks, lanes, k) if len(ranks) == 2 else first
    for k in range(common, max(len(lane) for lane in lanes)):
        calls = tuple(lane[k] for lane in lanes if k < len(lane))
        missing = [rank for rank, lane in zip(ranks, lanes, strict=True) if k >= len(lane)]
        if not _fit(calls):
            if not first and all(map(_goes_round, calls)):
                why = tuple(Blocker(rank, None) for rank in missing)
                first = {call.rank: (k, why) for call in calls}
            return first
        for call in calls:
            need = _needed(call, missing)
            if need and call.rank not in first:
                first[call.rank] = k, tuple(Blocker(rank, None) for rank in need)
    return first


def _fit(calls: Sequence[IssuedCall]) -> bool:
    """Whether NCCL runs the same thing on all: then it completes once all have issued it, and leaves no trace."""
    one = calls[0]
    if all(call[3:6] == one[3:6] and call.root == one.root for call in calls):  # op, dtype, shape
        return True
    if any(call.op != one.op or call.root != one.root for call in calls):
        return False
    facts = FACTS.get(one.op)
    if facts is not None and facts.rooted and facts.pairwise:
        return True  # the root of a gather or scatter holds the tensors of all
    return one.nbytes is not None and all(call.nbytes == one.nbytes for call in calls)


def _goes_round(call: IssuedCall) -> bool:
    """Whether this call completes on no rank before every rank's data has passed, whatever sizes the others have.

    On the ring of n ranks it receives at least n - 1 times, each time from the rank before it, and sends once before
    it receives. So if one rank of the ring does nothing, the rank after it receives nothing and sends once, the next
    one receives once and sends twice, ... and the last one receives n - 2 times. On a tree no sum comes down
    to any rank before all have gone up.
    """
    op = op_of(call.op)
    return op is not None and FACTS[op].needs is Needs.EVERYONE and FACTS[op].mixes and call.elements != 0


def _needed(call: IssuedCall, missing: Sequence[int]) -> Sequence[int]:
    """Which of the missing ranks' data `call` cannot do without, whatever algorithm NCCL takes."""
    if call.elements == 0:
        return ()
    op = op_of(call.op)
    if op is None or op is Op.ALL_TO_ALL:  # ranks may send each other nothing
        return ()
    match FACTS[op].needs:
        case Needs.EVERYONE:
            return missing
        case Needs.AT_ROOT:
            return missing if call.rank == call.root else ()
        case Needs.FROM_ROOT:
            return (call.root,) if call.root is not None and call.root in missing else ()
        case Needs.PEER:
            return ()
        case _ as never:
            assert_never(never)


def _replay_all(ranks: Sequence[int], lanes: Sequence[Sequence[IssuedCall]], start: int) -> First:
    """What stays blocked in old NCCL and new."""
    today, before = (_replay(ranks, lanes, start, align) for align in ALIGNS)
    return {rank: today[rank] for rank in today if before.get(rank) == today[rank]}


def _replay(ranks: Sequence[int], lanes: Sequence[Sequence[IssuedCall]], start: int, align: int) -> First:
    """Two ranks, whose calls no longer fit from `start` on: let them run on the ring."""
    ring = Ring(2)
    known = [0, 0]
    for place, lane in enumerate(lanes):
        for call in lane[start:]:
            small = _steps_of(call, place, ranks, align)
            if small is None:
                break
            ring.issue(place, small)
            known[place] += 1
    done = ring.done
    if ring.unsure:
        return {}
    if any(done[place] == known[place] < len(lane) - start for place, lane in enumerate(lanes)):
        return {}  # one gets as far as a call that the ring cannot tell of: it may yet help the other
    first: First = {}
    for place, (rank, lane) in enumerate(zip(ranks, lanes, strict=True)):
        at = start + done[place]
        if at < len(lane):
            other = lanes[1 - place]
            first[rank] = at, (Blocker(ranks[1 - place], other[at].seq if at < len(other) else None),)
    return first


def _steps_of(call: IssuedCall, place: int, ranks: Sequence[int], align: int) -> tuple[Step, ...] | None:
    nbytes = 4 if call.op == Op.BARRIER else call.nbytes
    if nbytes is None:
        return None
    if call.op == Op.REDUCE_SCATTER:
        nbytes //= len(ranks)  # the call's tensors are the parts of all ranks
    large = nbytes > max(LL_BYTES.values())  # beyond what any GPU kind sends by LL; in between it is not known
    if (not large and nbytes >= SMALL_BYTES) or (call.op in {Op.BROADCAST, Op.REDUCE} and call.root not in ranks):
        return None
    root = ranks.index(call.root) if call.root in ranks else 0
    found = steps(call.op, place, len(ranks), root, nbytes, align)
    # A large call has more steps than these. That matters to other large ones alone, see Ring.unsure: a receiver of LL
    # stands at the first of them for ever, since no flag comes.
    return found if found is None or not large else tuple([step._replace(flags=False) for step in found])


def _recvs(group: GroupCalls, absent: Sequence[int]) -> Blocked:
    """Recvs without a send. A send is claimed only to a rank that is `absent`: otherwise NCCL may buffer it."""
    sends: dict[tuple[int, int], int] = {}
    recvs: dict[tuple[int, int], list[IssuedCall]] = {}
    for (source, target, _), calls in group.sends.items():
        sends[source, target] = sends.get((source, target), 0) + len(calls)
    for (source, target, _), calls in group.recvs.items():
        recvs.setdefault((source, target), []).extend(calls)
    found: dict[tuple[int, int], tuple[Blocker, ...]] = {}
    for (source, target), calls in recvs.items():
        calls.sort(key=lambda call: call.seq)
        waiting = calls[sends.get((source, target), 0) :]
        found.update({(target, call.seq): (Blocker(source, None),) for call in waiting if call.elements != 0})
    for (source, target, _), calls in group.sends.items():
        if target in absent:  # their communicator is not made
            found.update({(source, call.seq): (Blocker(target, None),) for call in calls if call.elements != 0})
    return (
        {}
        if any(
            call.completed and (call.rank, call.seq) in found
            for one in (*recvs.values(), *group.sends.values())
            for call in one
        )
        else found
    )
