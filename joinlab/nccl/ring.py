"""The ring that NCCL's collectives run on: the steps of each, and how far they get.

NCCL checks nothing. On one communicator the k-th collective of one rank meets the k-th of the
other, whatever their kinds, dtypes, sizes and operations are. Every collective is a fixed list of
steps around a ring: in a step a rank receives from the rank before it, sends to the rank after it,
or both. The message between two neighbours lies in a FIFO of NCCL_STEPS cells, a step a cell, and
the step numbers live as long as the communicator. So two collectives that do not fit may still both
complete, with nonsense; or one completes and the other waits for a step that no rank will take; or
both complete and leave the numbers askew, so that the next call, though right on both ranks, hangs.

For small messages on two ranks NCCL takes the LL protocol: a step carries lines of LINE_BYTES
bytes, each with its own flag, and a receiver waits for the lines that *it* expects. A step may
carry no line at all (a chunk of the ring that lies beyond the end of a small tensor): it is
counted, but no receiver waits for it.

`Ring` is that model. The emulator runs it with the bytes that the lines carry (`motion`); the rule
(`rule`) runs it without them, to see which of the calls that were issued can complete.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple, Protocol, assert_never

from joinlab.ops import Op, op_of

NCCL_STEPS = 8
"""Places of a FIFO: a send must wait once this many steps are unread (NCCL v2.29.7-1,
src/include/device.h)."""

LINE_BYTES = 8
"""Bytes of data in one LL line: data1 and data2 of ncclLLFifoLine (NCCL v2.29.7-1,
src/include/device.h)."""

WARP_LINES = 32
"""Lines that the threads of one warp move: a thread has one at a time (LLGenericOp in prims_ll.h,
WARP_SIZE)."""

SMALL_BYTES = 16 * 1024
"""From this size on, all shares together, a message of two ranks runs on a second channel, with
FIFOs of its own.

topoGetAlgoInfo (src/enqueue.cc, v2.29.7-1) takes nc channels only where nBytes >= nc * nt *
threadThreshold, here 2 * NCCL_LL_MAX_NTHREADS (512) * NCCL_LL_THREAD_THRESHOLD (8) * 2 ranks; more
ranks have a higher bound. One round of LL holds twice as much: NCCL_LL_LINES_PER_THREAD (8) * 512 *
LINE_BYTES (src/include/device.h).
"""


class Gpu(NamedTuple):
    """What the kind of GPU decides.

    ll_bytes     up to about here two ranks of one node take LL for an all-reduce; above, LL128 or Simple
    warps_apart  the threads of a warp make progress apart, as since Volta
    """

    ll_bytes: int
    warps_apart: bool = True


GPUS: Mapping[str, Gpu] = {
    "P100": Gpu(512 * 1024, warps_apart=False),
    "V100": Gpu(512 * 1024),
    "A100": Gpu(1024 * 1024),
    "H100": Gpu(2 * 1024 * 1024),
}
"""By kind. ll_bytes are our own bounds, to one digit: where the tuner switches depends on the
bandwidth of the links.

`most_ll_bytes` with its llMaxBws, 39 (Volta, and Pascal, which has no row), 87.7 (Ampere) and 141
(Hopper), is 577, 1,298 and 2,087 kB; on links of more than twice that bandwidth the true bound is
somewhat lower.
"""


def most_ll_bytes(op: Op, size: int) -> float:
    """No machine sends a larger message by the LL protocol on a ring of `size` ranks of one node,
    if it may use Simple.

    The tuner takes the least of lat + nBytes / (1000 * bw), in us and GB/s (ncclTopoGetAlgoTime).
    Of a ring on NVLink LL has lat = 6.6 + 0.6 nsteps and bw = min(ll_bandwidth, busBw / 2) * size /
    nsteps, Simple has 8.4 + 3.4 nsteps and busBw * size / nsteps. The two are equal at most at the
    nBytes below, which is where busBw is 2 * ll_bandwidth. On PCI, with 1.0 and 5.7 a step, links
    are so slow that the bound is lower (ncclTunerConstantsDefaults and ncclTopoTuneModel in
    src/graph/tuning.cc, v2.29.7-1).

    >>> round(most_ll_bytes(Op.ALL_REDUCE, 2)), round(most_ll_bytes(Op.ALL_GATHER, 16))
    (4173600, 26350080)
    """
    ll_bandwidth = 282.0  # llMaxBws of Blackwell, the largest there is
    steps = {
        Op.ALL_REDUCE: 2 * (size - 1),
        Op.ALL_GATHER: size - 1,
        Op.REDUCE_SCATTER: size - 1,
    }.get(op, size)
    return (8.4 - 6.6 + (3.4 - 0.6) * steps) * size / steps * 2 * ll_bandwidth * 1000


ALIGNS: Mapping[str, int] = {"today": 16, "1.9": 512}
"""A rank's part of an all_reduce is a multiple of this many bytes, by era: NCCL 2.29.7, and 2.7.8
with PyTorch 1.9.

today  alignUp(divUp(remCount, nranks), 16/sizeof(T)) in runRing (NCCL v2.22.3-1 and v2.29.7-1, src/device/all_reduce.h)
1.9    minChunkSize = nthreads * sizeof(uint64_t), with 64 threads (NCCL v2.7.8-1, src/collectives/device/all_reduce.h)
"""


def aligns(version: tuple[int, ...]) -> tuple[int, ...]:
    """Which of ALIGNS this version of NCCL may have: of versions in between, and where it is not
    known, both.

    >>> aligns((2, 29, 7)), aligns((2, 7, 8)), aligns(())
    ((16,), (512,), (16, 512))
    """
    if version >= (2, 22):
        return (ALIGNS["today"],)
    if version == (2, 7, 8):
        return (ALIGNS["1.9"],)
    return (*ALIGNS.values(),)


BUFFERED_BYTES = NCCL_STEPS * 128 * 1024
"""Up to this size every machine buffers what one rank sends another, so that the sender needs no
recv to go on.

That is one channel of chunks of NCCL_P2P_PCI_CHUNKSIZE; NVLink has chunks four times as long, and a
machine has up to 64 channels for two ranks (computeBuffSizes in src/init.cc, addP2pToPlan in
src/enqueue.cc, v2.29.7-1). So whether a larger send waits for its recv depends on the machine. NCCL
allows it to, and the emulator lets it.
"""

TUNED_RANKS = 16
"""Up to this many ranks of one node, NCCL's tuner takes a ring and LL for small messages.

An all-reduce takes 6.6 + 0.6 * 2 (n - 1) us on it, 0.2 us more on a tree and 25 us with NVLS, which
17 ranks exceed (ncclTunerConstantsDefaults and ncclTopoTuneModel in src/graph/tuning.cc,
v2.29.7-1).
"""

MOST_ORDERS = 120
"""Orders of the ranks on a ring that are tried, at most: all of 6 ranks that all differ, or of 16
of which 2 do."""


class RingStep(NamedTuple):
    """One step: lines to receive and lines to send. None: it does not; 0: it does, without a line.

    `peer` is None on the ring: the step receives from the rank before it and sends to the one after
    it. A position there is the other side of a connection between the two alone, as gather, scatter
    and all_to_all use them.

    flags    the LL protocol: the receiver waits for its lines' flags; else for the sender's counter
    drained  it only waits until all that was sent to the peer is received
    crossed  the connection was made with the wrong end (see `mirrors`): what is sent goes nowhere, and nothing comes
    """

    recv: int | None
    send: int | None
    peer: int | None = None
    flags: bool = True
    drained: bool = False
    crossed: bool = False


def lines_of(nbytes: int) -> int:
    """How many LL lines a message takes."""
    return -(-nbytes // LINE_BYTES)


@lru_cache(1024)  # a program issues the same few calls again and again
def steps(
    op: str, position: int, size: int, root: int, nbytes: int, align: int = 16
) -> tuple[RingStep, ...] | None:
    """The steps of one collective at `position` (0 to size - 1) of the ring; None for an op that is
    not run on the ring.

    root    position of the root
    nbytes  bytes of the tensor; of one rank's part for all_gather and reduce_scatter
    align   a rank's part of an all_reduce is a multiple of this: 16 since NCCL 2.27, 512 in 2.7.8

    >>> [(step.recv, step.send) for step in steps("broadcast", 1, 2, 0, 8)]
    [(1, None)]
    """
    kind = op_of(op)
    if kind is None:
        return None
    if size < 2 or nbytes == 0:
        return ()
    lines = lines_of(nbytes)
    last, both = (position + 1) % size, RingStep(lines, lines)
    match kind:
        case Op.ALL_REDUCE | Op.BARRIER:
            return _all_reduce(position, size, nbytes, align)
        case Op.BROADCAST:
            if position == root:
                return (RingStep(None, lines),)
            if last == root:
                return (RingStep(lines, None),)
            return (both,)
        case Op.REDUCE:
            if position == root:
                return (RingStep(lines, None),)
            if position == (root + 1) % size:
                return (RingStep(None, lines),)
            return (both,)
        case Op.ALL_GATHER | Op.REDUCE_SCATTER:
            return (RingStep(None, lines), *(size - 2) * (both,), RingStep(lines, None))
        case Op.GATHER | Op.SCATTER | Op.ALL_TO_ALL | Op.SEND | Op.RECV:
            return None
        case _:
            assert_never(kind)


def chunk_bytes(nbytes: int, size: int, align: int = 16) -> int:
    """Bytes of one rank's part of an all_reduce: a small tensor is the first part alone."""
    chunk = -(-nbytes // size)
    return chunk + -chunk % align


def part_bytes(op: Op, nbytes: int, size: int, align: int = 16) -> int:
    """Bytes of the tensor that go around the ring as one."""
    match op:
        case Op.ALL_REDUCE | Op.BARRIER:
            return chunk_bytes(nbytes, size, align)
        case Op.REDUCE_SCATTER:
            return nbytes // size
        case (
            Op.BROADCAST
            | Op.REDUCE
            | Op.ALL_GATHER
            | Op.GATHER
            | Op.SCATTER
            | Op.ALL_TO_ALL
            | Op.SEND
            | Op.RECV
        ):
            return nbytes
        case _:
            assert_never(op)


def carries(op: Op, position: int, size: int, root: int, step: int) -> tuple[int, bool, bool]:
    """What a step of `steps` moves: which chunk, whether it reduces what comes in, and whether the
    rank keeps it.

    The rank at position p of n, by step; a chunk's number is taken modulo n:

        all_reduce      0: send p-1    1 to n-2: reduce and send p-1-step    n-1: reduce, keep and send p
                        n to 2n-3: keep and send p-1-step                    2n-2: keep p+1
        reduce_scatter  0: send p-1    1 to n-2: reduce and send p-1-step    n-1: reduce and keep p
        all_gather      0: keep and send p    1 to n-2: keep and send p-step    n-1: keep p+1

    Sources: runRing in src/device/all_reduce.h, reduce_scatter.h and all_gather.h, v2.29.7-1.
    """
    match op:
        case Op.ALL_REDUCE:
            return (position - 1 - step) % size, 1 <= step < size, step >= size - 1
        case Op.REDUCE_SCATTER:
            return (position - 1 - step) % size, step >= 1, step == size - 1
        case Op.ALL_GATHER:
            return (position - step) % size, False, True
        case Op.REDUCE:
            return 0, position != (root + 1) % size, position == root
        case Op.BROADCAST:
            return 0, False, position != root
        case Op.GATHER | Op.SCATTER | Op.ALL_TO_ALL | Op.BARRIER | Op.SEND | Op.RECV:
            raise ValueError(f"a {op} does not run on the ring")
        case _:
            assert_never(op)


def _all_reduce(position: int, size: int, nbytes: int, align: int) -> tuple[RingStep, ...]:
    """A chunk for each rank goes once around the ring to be summed, and once more to be handed
    out."""
    chunk = chunk_bytes(nbytes, size, align)

    def lines(index: int) -> int:
        return lines_of(min(chunk, max(0, nbytes - index % size * chunk)))

    turns = 2 * size - 2
    sends = [lines(position - 1 - turn) for turn in range(turns)]
    recvs = [lines(position - 2 - turn) for turn in range(turns)]
    return (
        RingStep(None, sends[0]),
        *(RingStep(*pair) for pair in zip(recvs, sends[1:], strict=False)),
        RingStep(recvs[-1], None),
    )


def peer_steps(
    op: Op, position: int, size: int, root: int, out: Sequence[int], into: Sequence[int]
) -> tuple[RingStep, ...]:
    """The steps of a gather, scatter or all_to_all, of which NCCL makes sends and recvs.

    out, into  bytes that would go to, and come from, each position

    Sends first, then recvs: NCCL runs them side by side, and buffers small sends.
    """
    peers = [(position + turn) % size for turn in range(1, size)]
    to_all = op is Op.ALL_TO_ALL or (op is Op.SCATTER and position == root)
    from_all = op is Op.ALL_TO_ALL or (op is Op.GATHER and position == root)
    if to_all:
        targets = peers
    elif op is Op.GATHER and position != root:
        targets = [root]
    else:
        targets = []
    if from_all:
        sources = peers
    elif op is Op.SCATTER and position != root:
        sources = [root]
    else:
        sources = []
    sends = [RingStep(None, lines_of(out[peer]), peer) for peer in targets if out[peer]]
    return (*sends, *(RingStep(lines_of(into[peer]), None, peer) for peer in sources if into[peer]))


Word = tuple[int, int, int, int]
"""(from, to, distance, round): what one host tells another to connect the two."""


def words(
    position: int, size: int, sends: Collection[int], recvs: Collection[int]
) -> Iterator[list[tuple[Word, Word]]]:
    """What a host tells, and then hears, at each distance, to connect to these positions.

    Rings are connected when the communicator is made. Pairs are not: the first gather, scatter,
    all_to_all or batch of sends and recvs that needs a pair sets it up. For one distance after the
    other, a host tells the rank so far behind it, from which it receives, and the rank so far
    ahead, to which it sends, and waits until it has heard the same:

        3 ranks, gather to 0    distance 1    rank 2 tells 0 and hears it    rank 0 tells 2 and hears it
                                distance 2    rank 1 tells 0 and hears it    rank 0 tells 1 and hears it

    If rank 2 never comes, rank 0 stands at distance 1, so rank 1 does not hear from it either. All
    this is inside the call: a rank that waits so does not reach its next one, and the watchdog sees
    nothing, since no work is enqueued.

    Source: ncclTransportP2pSetup in src/transport.cc, called by ncclGroupCommPreconnect in
    src/group.cc, v2.29.7-1; the second round is its last loop. Modelled, not measured: no GPU was
    at hand.
    """
    for turn in (0, 1):
        for distance in range(1, size):
            ahead, behind = (position + distance) % size, (position - distance) % size
            peers = [behind] if behind in recvs else []
            if ahead in sends and ahead not in peers:
                peers.append(ahead)
            if peers:
                yield [
                    ((position, peer, distance, turn), (peer, position, distance, turn))
                    for peer in peers
                ]


def mirrors(
    size: int,
    position: int,
    peer: int,
    directions: Collection[bool],
    peer_directions: Collection[bool],
) -> bool:
    """Whether two ranks that meet to connect tell each other of the two ends of the same
    connections.

    directions       of each connection that the rank sets up in this meeting with the peer: whether it sends on it
    peer_directions  the same of the peer's

    Two ranks that are half the ring apart tell all in one message, and neither looks whether it is
    about the same:

        rank 0 sends, then receives     tells where it sends from      takes what it hears for where rank 1 receives
        rank 1 sends, then receives     tells where it sends from      takes what it hears for where rank 0 receives

    No data comes, whatever its size. So two ranks which both send first, or both receive, hang (or
    NCCL fails) though small messages are buffered, unless a batch issues the two as one.

    Source: `sendPeer == recvPeer` in ncclTransportP2pSetup, src/transport.cc, v2.29.7-1; v2.7.8-1
    does so as well. Seen by others: NVIDIA/nccl#479 (both ranks stand still), #2057 (an error over
    sockets), #2407 (why).
    """
    half_apart = 2 * ((peer - position) % size) == size
    if not half_apart:
        return True
    return {not sends for sends in directions} == {*peer_directions}


class Transfer(Protocol):
    """Callbacks for the lines that a call's steps move. The rule itself needs none; an emulation
    does."""

    def take(
        self, step: int, first: int, last: int, source: Transfer | None, source_step: int
    ) -> None:
        """In its `step`, lines `first` to `last` (excluded) can go on.

        They have arrived from the step `source_step` of `source`; None: they are this rank's own.
        """


@dataclass(slots=True)
class _Edge:
    """A FIFO from one position to another, for as long as the communicator lives."""

    sent: list[int] = field(default_factory=list)  # lines of every step ever sent
    # whether that step was one of the LL protocol
    flagged: list[bool] = field(default_factory=list)
    # whose step that was, and which
    senders: list[tuple[Transfer | None, int]] = field(default_factory=list)
    received: int = 0  # steps ever received


@dataclass(slots=True)
class _RingPosition:
    todo: deque[tuple[RingStep, Transfer | None, int]] = field(default_factory=deque)
    # how many steps of `todo` and before each issued call ends at
    ends: deque[int] = field(default_factory=deque)
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

    `done[position]` counts the calls that complete, given all that was issued so far.

    warps_apart  False: the threads of a warp wait for each other, as before Volta. A thread spins on its line's flag
                 (readLL in prims_ll.h), so none of the warp's lines goes on before all have come
    """

    def __init__(self, size: int, warps_apart: bool = True) -> None:
        self._together = 1 if warps_apart else WARP_LINES
        self._positions = [_RingPosition() for _ in range(size)]
        self._edges: dict[tuple[int, int, bool, str], _Edge] = {}
        self.unsure = False
        """Large messages of calls that do not fit have met: how far they get depends on chunks."""

    def issue(
        self, position: int, steps: Sequence[RingStep], transfer: Transfer | None = None
    ) -> None:
        """The rank of `position` enqueues a call; then everything runs as far as it can."""
        state = self._positions[position]
        state.todo.extend((step, transfer, index) for index, step in enumerate(steps))
        state.steps_issued += len(steps)
        state.ends.append(state.steps_issued)
        self._run(position)

    def halt(self, position: int) -> None:
        """The rank of `position` takes no further step; what it has sent stays where it is."""
        self._positions[position].todo.clear()
        self._positions[position].ends.clear()

    @property
    def done(self) -> list[int]:
        """Per position: how many of its calls are complete."""
        return [position.calls_done for position in self._positions]

    @property
    def at_rest(self) -> bool:
        """Whether no step is under way and every step sent was received, so that later calls see no
        trace."""
        return not any(position.todo for position in self._positions) and all(
            len(edge.sent) == edge.received for edge in self._edges.values()
        )

    def _run(self, position: int) -> None:
        awake = deque([position])
        while awake:
            awake.extend(self._advance(awake.popleft()))

    def _edge(self, source: int, target: int, on_ring: bool, end: str) -> _Edge:
        key = (source, target, on_ring, end)
        edge = self._edges.get(key)
        if edge is None:
            edge = self._edges[key] = _Edge()
        return edge

    def _advance(self, index: int) -> set[int]:
        """Take the steps of one position for as long as it can; returns the positions that this may
        affect."""
        size = len(self._positions)
        state = self._positions[index]
        awake: set[int] = set()
        while True:
            while state.ends and state.ends[0] <= state.steps_done:
                state.ends.popleft()
                state.calls_done += 1
            if not state.todo:
                return awake
            step, transfer, number = state.todo[0]
            recv, send, peer, flags = step[:4]
            source = (index - 1) % size if peer is None else peer
            target = (index + 1) % size if peer is None else peer
            # a crossed edge: sent data does not reach the receiver
            ends = ("to", "from") if step.crossed else ("", "")
            into = self._edge(source, index, peer is None, ends[0])
            out = self._edge(index, target, peer is None, ends[1])
            if step.drained and len(out.sent) > out.received:
                return awake
            if send is not None and not state.begun:
                if len(out.sent) - out.received >= NCCL_STEPS:
                    return awake  # the FIFO is full
                out.sent.append(0)
                out.flagged.append(flags)
                out.senders.append((transfer, number))
                state.begun = True
                awake.add(target)
            arrived = 0
            sender: tuple[Transfer | None, int] = (None, 0)
            if recv and not flags and not all(into.flagged[into.received :]):
                self.unsure = True  # counters of other large messages count for this one, too
            if recv and into.received < len(into.sent) and flags is into.flagged[into.received]:
                arrived = min(recv, into.sent[into.received])
                arrived -= arrived % self._together if arrived < recv else 0
                sender = into.senders[into.received]
            ready = arrived if recv else send or 0
            if transfer is not None and ready > state.taken:
                transfer.take(number, state.taken, ready, *sender)
            state.taken = max(state.taken, ready)
            if send is not None:
                # Each line has a thread of its own: what has arrived goes out, even if the rest
                # never comes.
                lines = send if recv is None else min(send, arrived)
                if lines > out.sent[-1]:
                    out.sent[-1] = lines
                    awake.add(target)
            if recv and arrived < recv:
                return awake  # the rest is still to come, if ever
            state.todo.popleft()
            if recv is not None:
                into.received += 1
                awake.add(source)
            state.steps_done += 1
            state.begun = False
            state.taken = 0
