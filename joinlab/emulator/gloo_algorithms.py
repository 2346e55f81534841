"""Gloo's algorithms, message by message, and the network that carries the messages.

Each algorithm is a generator. It posts sends and recvs to the `Network`, and yields (buffer, "send" or "recv") where
gloo calls waitSend or waitRecv. The order of posts and waits is that of gloo's sources, so a mismatch ends here as it
does there: it hangs at the same wait, fills the same part of a buffer, or aborts the same process.

    function here   gloo, in third_party/gloo of PyTorch v2.13.0      slot prefix (gloo/types.h)
    _barrier        gloo/barrier.cc barrier(): dissemination          kBarrierSlotPrefix
    _broadcast      gloo/broadcast.cc broadcast(): binomial tree      kBroadcastSlotPrefix
    _all_reduce     gloo/allreduce.cc ring(), the default             kAllreduceSlotPrefix
    _reduce         gloo/reduce.cc reduce(): ring, gather to root     kReduceSlotPrefix
    _all_gather     gloo/allgather.cc allgather(): ring               kAllgatherSlotPrefix
    _gather         gloo/gather.cc gather()                           kGatherSlotPrefix
    _scatter        gloo/scatter.cc scatter()                         kScatterSlotPrefix
    _all_to_all     gloo/alltoall.cc, gloo/alltoallv.cc               kAlltoallSlotPrefix
    Network         gloo/transport/tcp/pair.cc, context.cc and unbound_buffer.cc

Which of them a call of torch.distributed runs, and on what memory, is decided in
torch/csrc/distributed/c10d/ProcessGroupGloo.cpp: see `gloo`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Sequence
from typing import Any, Protocol, assert_never

import numpy as np
import torch

from joinlab.emulator.gloo_jobs import Job
from joinlab.emulator.gloo_sums import combine
from joinlab.emulator.model import EmulatedCall
from joinlab.emulator.payload import Bytes, Part, len_of, read, write
from joinlab.ops import Op
from joinlab.rules import gloo as gloo_rule

MAX_SEGMENT = 1024 * 1024
"""Bytes of the longest message that all_reduce and reduce send.

Source: kMaxSegmentSize in gloo/allreduce.h and gloo/reduce.h, PyTorch v2.13.0.
"""


class Task(Protocol):
    """What an algorithm reads of the task that it carries out: `gloo.Task` answers."""

    call: EmulatedCall
    op: Op
    job: Job
    part: Part
    number: int
    undefined: bool


Waits = Generator[tuple["Buffer", str], None, None]
Slot = tuple[str, int]
"""What a message is sent under: the kind of collective and its number, or ("tag", tag).

Gloo packs the same pair into 64 bits (Slot::build in gloo/types.h); a send or recv of a program uses its tag alone.
"""


class Buffer:
    """Memory that messages are sent from and received into: UnboundBuffer in gloo/transport/tcp/unbound_buffer.cc.

    A wait does not name a message. It takes one completed send (or recv) off the buffer's count, whichever it was:

        recv(0:4)  recv(4:8)         two recvs are posted
        4:8 arrives                  counts["recv"] == 1
        waitRecv()                   returns, though 0:4 has not come

    data       its bytes
    counts     completed messages that no wait has taken yet
    error      set when the connection of one of its messages closes; every later wait raises it
    scratch    gloo allocates it without setting it, so what no message fills is undefined
    undefined  part of it was never filled
    source     place of the sender of the last message that came
    """

    __slots__ = ("at_ns", "counts", "data", "error", "scratch", "source", "task", "undefined")

    def __init__(self, task: Any, data: Bytes, scratch: bool = False) -> None:
        self.task = task
        self.scratch = scratch
        self.data = data
        self.counts = {"send": 0, "recv": 0}
        self.error: str | None = None
        self.source = -1
        self.at_ns = 0
        self.undefined = False

    def completed(self, way: str) -> bool:
        """Take one completed message off the count; False if there is none."""
        if not self.counts[way]:
            return False
        self.counts[way] -= 1
        return True


class _Post:
    """A send or recv that waits for its counterpart: bytes `low` to `high` of a buffer, of the rank at `place`."""

    __slots__ = ("at_ns", "buffer", "high", "low", "place")

    def __init__(self, place: int, buffer: Buffer, low: int, size: int) -> None:
        self.place = place
        self.buffer = buffer
        self.low = low
        self.high = low + size
        self.at_ns = buffer.task.at_ns


class Network:
    """The connections of one group. The k-th send from one place to another under a slot meets the k-th recv.

    Invariant: of the sends and the recvs under one (from, to, slot), one side is always empty, since a post that finds
    its counterpart waiting meets it at once and is never queued. A send completes only when its recv is there: gloo
    announces it (NOTIFY_SEND_READY) and sends the bytes once the receiver has answered (Pair::send in pair.cc).
    Only what a process that aborts still has to send may stand beside a recv: it does not answer any more.
    """

    def __init__(self, size: int) -> None:
        self._sends: dict[tuple[int, int, Slot], deque[_Post]] = {}
        self._recvs: dict[tuple[int, int, Slot], deque[_Post]] = {}
        self._any: dict[tuple[int, Slot], deque[_Post]] = {}
        self._closed: set[int] = set()
        self._cut: set[int] = set()  # places whose process lives on without connections
        self._woken: list[Buffer] = []
        self._aborts: list[tuple[int, str, int]] = []
        self._aborts_at: dict[int, int] = {}  # by place: when its process aborts
        self._size = size

    def send(self, place: int, peer: int, slot: Slot, buffer: Buffer, low: int, size: int) -> None:
        """Post a send. ConnectionError if the peer has ended."""
        self.check(place, peer)
        post = _Post(place, buffer, low, size)
        buffer.task.buffers.append(buffer)
        waiting = self._recvs.get((place, peer, slot)) or self._any.get((peer, slot))
        if waiting:
            self._meet(post, waiting.popleft())
        else:
            self._sends.setdefault((place, peer, slot), deque()).append(post)

    def recv(self, place: int, peer: int, slot: Slot, buffer: Buffer, low: int, size: int) -> None:
        """Post a recv. ConnectionError if the peer has ended."""
        self.check(place, peer)
        post = _Post(place, buffer, low, size)
        buffer.task.buffers.append(buffer)
        waiting = self._sends.get((peer, place, slot))
        if waiting and self._answers(peer, post.at_ns):
            self._meet(waiting.popleft(), post)
        else:
            self._recvs.setdefault((peer, place, slot), deque()).append(post)

    def recv_any(self, place: int, slot: Slot, buffer: Buffer) -> None:
        """Post a recv that takes the first message under `slot`, from any peer (Context::recvFromAny in context.cc)."""
        for peer in range(self._size):
            if self._sends.get((peer, place, slot)) and self._answers(peer, buffer.task.at_ns):
                self.recv(place, peer, slot, buffer, 0, len(buffer.data))
                return
        self._any.setdefault((place, slot), deque()).append(_Post(place, buffer, 0, len(buffer.data)))

    def check(self, place: int, peer: int) -> None:
        """ConnectionError if these two are no longer connected."""
        if place in self._cut:
            raise ConnectionError(CUT_TEXT)
        if peer in self._closed or peer in self._cut:
            raise ConnectionError(closed_text(peer))

    def _answers(self, peer: int, at_ns: int) -> bool:
        """Whether the process at `peer` still sends when it hears of a recv that was posted at `at_ns`."""
        return peer not in self._aborts_at or at_ns < self._aborts_at[peer]

    def _meet(self, send: _Post, recv: _Post) -> None:
        """The bytes go over. The sender's length counts, as in Pair::readBuffer (pair.cc):

        send 4 B, recv 4 B      fits
        send 4 B, recv 8 B      fills the first 4, and both sides take it for complete
        send 8 B, recv 4 B      GLOO_ENFORCE_LE(op.preamble.length, op.nbytes) aborts the receiver's process
        """
        data = send.buffer.data[send.low : send.high]
        at = max(send.at_ns, recv.at_ns)
        room = recv.high - recv.low
        for post, way in ((send, "send"), (recv, "recv")):
            if way == "recv" and len(data) > room:
                text = f"what():  enforce fail: op.preamble.length <= op.nbytes. {len(data)} vs {room}"
                self._aborts.append((recv.place, text, at))
                self._aborts_at.setdefault(recv.place, at)
                continue
            post.buffer.counts[way] += 1
            post.buffer.at_ns = max(post.buffer.at_ns, at)
            self._woken.append(post.buffer)
        if len(data) <= room:
            recv.buffer.data[recv.low : recv.low + len(data)] = data
            recv.buffer.source = send.place
            recv.buffer.undefined |= send.buffer.undefined or (recv.buffer.scratch and len(data) < room)

    def woken(self) -> list[Buffer]:
        """Buffers with news since the last call."""
        found, self._woken = self._woken, []
        return found

    def aborts(self) -> list[tuple[int, str, int]]:
        """Places whose process aborts, what it says, and when."""
        found, self._aborts = self._aborts, []
        return found

    def withdraw(self, buffer: Buffer) -> None:
        """Remove the posts of this buffer: its task has failed, so no wait will take their messages."""
        for posts in (*self._sends.values(), *self._recvs.values(), *self._any.values()):
            for post in [post for post in posts if post.buffer is buffer]:
                posts.remove(post)

    def mute(self, place: int) -> None:
        """Remove the sends of the process at `place`, which is about to end: it answers no receiver any more."""
        for (source, _, _), posts in self._sends.items():
            if source == place:
                posts.clear()

    def close(self, place: int) -> list[Buffer]:
        """The process at `place` has ended. Return the buffers whose posted messages now fail.

        A recv from any peer stays as it is: it is no message of one connection, and so is never told.
        """
        self._closed.add(place)
        return self._drop(place)

    def cut(self, place: int) -> list[Buffer]:
        """The rank at `place` closes its connections, though its process lives on. Return the buffers that fail."""
        self._cut.add(place)
        return self._drop(place)

    def _drop(self, place: int) -> list[Buffer]:
        """The connections of `place` are closed."""
        failed = []
        for table in (self._sends, self._recvs):
            for (source, target, _), posts in table.items():
                if place in (source, target):
                    for post in posts:
                        if post.place != place:
                            post.buffer.error = closed_text(place)
                            failed.append(post.buffer)
                        elif place in self._cut:
                            post.buffer.error = CUT_TEXT
                            failed.append(post.buffer)
                    posts.clear()
        for (target, _), posts in self._any.items():
            if target in self._closed:
                posts.clear()
        return list(dict.fromkeys(failed))


CUT_TEXT = "Application timeout caused pair closure"
"""UnboundBuffer::waitRecv() in gloo/transport/tcp/unbound_buffer.cc: one wait that times out closes all connections."""


def closed_text(place: int) -> str:
    """What gloo says of a peer whose process has ended."""
    return f"Connection closed by peer [rank {place} of the group has ended]"


# ------------------------------------------------------------------------------------------ the algorithms


def segments(nbytes: int, item: int, size: int) -> tuple[int, int]:
    """(number of segments, bytes of one) of an all_reduce of `nbytes`, with `item` bytes per element.

    At least two per rank, and the same number for each. The last ones may be shorter, or empty:

    >>> segments(12, 4, 2)  # float32[3] on 2 ranks: |0..4|4..8|8..12|empty|
    (4, 4)

    Source: numSegments and segmentBytes in ring(), gloo/allreduce.cc, PyTorch v2.13.0.
    """
    longest = item * max(1, MAX_SEGMENT // item)
    number = max(-(-nbytes // longest), size * 2)
    number += -number % size
    each = -(-nbytes // number)
    return number, each + -each % item


def chunk(nbytes: int, item: int, size: int) -> int:
    """Bytes of the chunk of an all_reduce whose sum one rank holds at the end of the first half.

    >>> chunk(12, 4, 2)
    8
    """
    number, each = segments(nbytes, item, size)
    return number // size * each


def program(network: Network, task: Task, size: int) -> Waits:
    """This rank's part of the collective, to be run message by message."""
    call, part = task.call, task.part
    slot = (gloo_rule.kind(Op.ALL_GATHER if task.job.sparse is not None else task.op), task.number)
    me, root = call.place, call.root
    match task.op:
        case Op.BARRIER:
            yield from _barrier(network, task, slot, me, size)
        case Op.ALL_REDUCE if task.job.sparse is not None:
            yield from _all_reduce_sparse(network, task, task.job.sparse, slot, me, size)
        case Op.BROADCAST | Op.ALL_REDUCE | Op.REDUCE:
            work = Buffer(task, read(part.ins))
            if task.op is Op.BROADCAST:
                waits = _broadcast(network, work, slot, me, root, size)
            elif task.op is Op.ALL_REDUCE:
                waits = _all_reduce(network, task, work, slot, me, size)
            else:
                waits = _reduce(network, task, work, slot, me, root, size)
            for wait in waits:  # gloo works in place: what has come is in the tensor even if the call never ends
                write(part.outs, work.data)
                yield wait
            task.undefined = work.undefined
            write(part.outs, work.data)
        case Op.ALL_GATHER:
            own = read(part.ins)
            work = Buffer(task, np.zeros(len(own) * size, np.uint8), scratch=True)
            work.data[me * len(own) : (me + 1) * len(own)] = own
            yield from _all_gather(network, work, slot, me, size)
            task.undefined = work.undefined
            write(part.outs, work.data)
        case Op.GATHER:
            yield from _gather(network, task, slot, me, root, size)
        case Op.SCATTER:
            yield from _scatter(network, task, slot, me, root, size)
        case Op.ALL_TO_ALL:
            yield from _all_to_all(network, task, slot, me, size)
        case Op.REDUCE_SCATTER | Op.SEND | Op.RECV:  # the fabric makes all-reduces of the one, and pairs of the others
            raise ValueError(f"a {task.op} is no algorithm of gloo's collectives")
        case _:
            assert_never(task.op)


def _others(me: int, size: int) -> Iterable[int]:
    return [peer for peer in range(size) if peer != me]


def _gather(network: Network, task: Task, slot: Slot, me: int, root: int, size: int) -> Waits:
    """Everyone sends to the root, which waits for as many messages as it has peers."""
    part = task.part
    mine = Buffer(task, read(part.ins))
    if me != root:
        network.send(me, root, slot, mine, 0, len(mine.data))
        yield mine, "send"
        return
    work = Buffer(task, np.tile(mine.data, size), scratch=True)
    for peer in _others(me, size):  # each at its own place, of the root's length, whatever the peer sends
        network.recv(me, peer, slot, work, peer * len(mine.data), len(mine.data))
    for _ in _others(me, size):
        yield work, "recv"
    task.undefined = work.undefined
    write(part.outs, work.data)


def _scatter(network: Network, task: Task, slot: Slot, me: int, root: int, size: int) -> Waits:
    """The root sends to everyone from one buffer per peer, and waits for all to have gone."""
    part = task.part
    if me != root:
        work = Buffer(task, read(part.outs))
        network.recv(me, root, slot, work, 0, len(work.data))
        yield work, "recv"
        write(part.outs, work.data)
        return
    each = [Buffer(task, read([tensor])) for tensor in part.ins]
    for peer in _others(me, size):
        network.send(me, peer, slot, each[peer], 0, len(each[peer].data))
    write(part.outs, each[me].data)
    for peer in _others(me, size):
        yield each[peer], "send"


def _barrier(network: Network, task: Task, slot: Slot, me: int, size: int) -> Waits:
    """In round r every rank hears from the one 2^r before it, and tells the one 2^r after it.

        5 ranks, rank 0:    round 0 hears 4 (which is all it knows), tells 1
                            round 1 hears 3 (which has heard 2), tells 2
                            round 2 hears 1 (which has heard 0 and 4), tells 4

    After ceil(log2(size)) rounds it has heard, through others, of every rank.
    """
    nothing = Buffer(task, np.empty(0, np.uint8))
    far = 1
    while far < size:
        network.recv(me, (me - far) % size, slot, nothing, 0, 0)
        network.send(me, (me + far) % size, slot, nothing, 0, 0)
        yield nothing, "recv"
        yield nothing, "send"
        far *= 2


def _broadcast(network: Network, work: Buffer, slot: Slot, me: int, root: int, size: int) -> Waits:
    """A binomial tree over `mine`, the rank's distance from the root: round r doubles the number of those who have it.

        root 0, 6 ranks:    round 0   0 -> 1
                            round 1   0 -> 2, 1 -> 3
                            round 2   0 -> 4, 1 -> 5      (2 -> 6 and 3 -> 7 do not exist)

    Each rank receives once, in the round of its highest bit, before it sends anything. Its sends are waited for at the
    end: a root, too, stays until its children have taken the data. `mask` keeps those out who do not have it yet.
    """
    mine, rounds = (me - root) % size, (size - 1).bit_length()
    mask = (1 << rounds) - 1
    sent = 0
    for bit in range(rounds):
        mask ^= 1 << bit
        peer = mine ^ (1 << bit)
        if mine & mask or peer >= size:
            continue
        if mine & (1 << bit):
            network.recv(me, (peer + root) % size, slot, work, 0, len(work.data))
            yield work, "recv"
        else:
            network.send(me, (peer + root) % size, slot, work, 0, len(work.data))
            sent += 1
    for _ in range(sent):
        yield work, "send"


def _ring(
    network: Network, task: Task, work: Buffer, slot: Slot, me: int, size: int, plan: tuple[int, int], turns: int
) -> Waits:
    """Segments go from rank to rank - 1 and are summed on the way, two of them in flight; `turns` of them are posted.

    With 3 ranks and chunks A, B, C (each of `per_rank` segments), rank 0 sums like this:

        it sends    B0  B1  C0' C1'      of the chunk of rank + 1, then what it has just summed (')
        it sums         C0  C1  A0  A1   what rank 1 sends; at the end A holds everyone's sum

    A turn waits for the message that was posted two turns before, so `arrived` needs room for two segments. A segment
    that lies behind the end of the data is neither sent nor waited for: both sides leave it out if their sizes agree,
    and where they differ one side may wait for a segment that the other one never sends.
    """
    number, each = plan
    total, per_rank = len(work.data), number // size
    if not each:
        return  # nothing to sum
    arrived = Buffer(task, np.zeros(each * 2, np.uint8), scratch=True)

    def spans(turn: int) -> tuple[int, int, int, int]:  # where from, how many bytes, where to, how many bytes
        out = ((me + 1) * per_rank + turn) * each % (number * each)
        into = ((me + 2) * per_rank + turn) * each % (number * each)
        return out, min(each, total - out), into, min(each, total - into)

    for turn in range(turns + 2):
        if turn >= 2:
            _, sent, into, came = spans(turn - 2)
            if came > 0:
                yield arrived, "recv"
                at = turn % 2 * each
                own = work.data[into : into + came]
                work.undefined |= arrived.undefined
                own[:] = combine(task.part.dtype, task.job.reduce_op, own, arrived.data[at : at + came])
            if sent > 0:
                yield work, "send"
        if turn < turns:
            out, sent, _, came = spans(turn)
            if came > 0:
                network.recv(me, (me + 1) % size, slot, arrived, turn % 2 * each, came)
            if sent > 0:
                network.send(me, (me - 1) % size, slot, work, out, sent)


def summed(dtype: torch.dtype, reduce_op: str, each: Sequence[Bytes]) -> Bytes:
    """What an all_reduce of ranks that agree gives: `each` by place.

    Chunk c is summed as the ring does it: it begins with what rank c - 1 has and goes from rank to rank - 1, so that
    rank c adds its own last. With 2 ranks the order makes no difference to a sum, but it does to min and max with a
    NaN, and so it is kept.
    """
    size, nbytes = len(each), len(each[0])
    whole = chunk(nbytes, dtype.itemsize, size)
    if size == 2 and reduce_op in ("sum", "product"):
        whole = nbytes  # one numpy call instead of two for the small tensors that most programs send
    pieces = []
    for index, at in enumerate(range(0, nbytes, max(1, whole))):
        total = each[(index - 1) % size][at : at + whole]
        for turn in range(1, size):
            total = combine(dtype, reduce_op, each[(index - 1 - turn) % size][at : at + whole], total)
        pieces.append(total)
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def summed_sparse(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The sum of coalesced sparse tensors, in the order of the ranks: AsyncSparseAllreduceWork::allreduce()."""
    total = tensors[0]
    for tensor in tensors[1:]:
        total = total + tensor
    return total.coalesce()


def _all_reduce(network: Network, task: Task, work: Buffer, slot: Slot, me: int, size: int) -> Waits:
    """The ring sums each chunk (`_ring`), and a second trip hands the sums out.

    After the first trip rank r holds the sum of chunk r. On the second it sends that on to rank - 1, then what it has
    received itself. The sums arrive in place, in `work`, so this trip needs no scratch memory.
    """
    total = len(work.data)
    number, each = segments(total, task.part.dtype.itemsize, size)
    per_rank = number // size
    turns = number - per_rank
    yield from _ring(network, task, work, slot, me, size, (number, each), turns)

    def spans(turn: int) -> tuple[int, int, int, int]:
        out = (me * per_rank + turn) * each % (number * each)
        into = ((me + 1) * per_rank + turn) * each % (number * each)
        return out, min(each, total - out), into, min(each, total - into)

    for turn in range(turns + 2):
        if turn >= 2:
            _, sent, _, came = spans(turn - 2)
            if came > 0:
                yield work, "recv"
            if sent > 0:
                yield work, "send"
        if turn < turns:
            out, sent, into, came = spans(turn)
            if came > 0:
                network.recv(me, (me + 1) % size, slot, work, into, came)
            if sent > 0:
                network.send(me, (me - 1) % size, slot, work, out, sent)


def _all_reduce_sparse(network: Network, task: Task, tensor: torch.Tensor, slot: Slot, me: int, size: int) -> Waits:
    """Three all-gathers under one slot: what each rank has, the indices, the values. Then everyone sums for itself.

    The sizes go first, as 9 int64 (SparseTensorMetadata), since ranks may have different numbers of values. Where ranks
    differ in shape each of them raises. Every rank's tensor is known here, so only the waiting is left to model: the
    contents of these messages are not.

    Source: AsyncSparseAllreduceWork in ProcessGroupGlooDetail.hpp, gloo/allgatherv.cc, PyTorch v2.13.0.
    """
    mine = tensor.detach().coalesce()
    sizes = Buffer(task, np.zeros(_SPARSE_SIZES_BYTES * size, np.uint8), scratch=True)
    header = np.zeros(_SPARSE_SIZES_BYTES // 8, np.int64)
    header[:2] = mine.sparse_dim(), mine.dense_dim()
    header[2] = mine._nnz()
    header[3 : 3 + mine.dim()] = mine.shape
    at = me * _SPARSE_SIZES_BYTES
    sizes.data[at : at + _SPARSE_SIZES_BYTES] = header.view(np.uint8)
    yield from _all_gather(network, sizes, slot, me, size)
    headers = sizes.data.view(np.int64).reshape(size, -1)
    if any((other[:2] != header[:2]).any() or (other[3:] != header[3:]).any() for other in headers):
        raise ConnectionError("Sparse dimensions do not match")
    counts = [int(other[2]) for other in headers]
    found = []
    for part in (mine.indices().t().contiguous(), mine.values().contiguous()):  # one row for each value
        width = len_of(part) // max(1, part.shape[0]) if part.shape[0] else _row_bytes(part)
        lengths = [count * width for count in counts]
        work = Buffer(task, np.zeros(sum(lengths), np.uint8), scratch=True)
        work.data[sum(lengths[:me]) : sum(lengths[: me + 1])] = read([part])
        yield from _all_gather_v(network, work, slot, me, lengths)
        rows = np.split(work.data, np.cumsum(lengths)[:-1])
        found.append([torch.from_numpy(row.copy()).view(part.dtype).view(-1, *part.shape[1:]) for row in rows])
    each = [torch.sparse_coo_tensor(rows.t(), values, mine.shape) for rows, values in zip(*found, strict=True)]
    with torch.no_grad():
        tensor.copy_(summed_sparse([one.coalesce() for one in each]))


_SPARSE_SIZES_BYTES = 9 * 8
"""SparseTensorMetadata::dim int64 numbers, ProcessGroupGlooDetail.hpp, PyTorch v2.13.0."""


def _row_bytes(part: torch.Tensor) -> int:
    return part.element_size() * int(np.prod(part.shape[1:]))


def _all_gather_v(network: Network, work: Buffer, slot: Slot, me: int, lengths: Sequence[int]) -> Waits:
    """gloo/allgatherv.cc: each rank's share goes around the ring in one piece, and may be of any length."""
    size = len(lengths)
    if not sum(lengths):
        return
    starts = [sum(lengths[:place]) for place in range(size)]
    for turn in range(size - 1):
        out, into = (me - turn) % size, (me - turn - 1) % size
        if turn:
            yield work, "send"
            yield work, "recv"
        network.send(me, (me + 1) % size, slot, work, starts[out], lengths[out])
        network.recv(me, (me - 1) % size, slot, work, starts[into], lengths[into])
    yield work, "send"
    yield work, "recv"


def _reduce(network: Network, task: Task, work: Buffer, slot: Slot, me: int, root: int, size: int) -> Waits:
    """The ring of `_all_reduce`, then every rank sends its summed chunk to the root.

    Its ring differs in two ways: segments are rounded otherwise, and `number - 2` turns are posted. With two segments
    per rank that is as many as an all_reduce posts; with more, sums are forwarded that no rank needs. A rank whose
    chunk is empty, since the tensor is too small, sends nothing to the root.
    """
    total, item = len(work.data), task.part.dtype.itemsize
    longest = item * (MAX_SEGMENT // item)
    each = min(-(-total // (size * 2)), longest)
    each += -each % item
    number = max(-(-total // each), size * 2)
    number += -number % size
    per_rank = number // size
    yield from _ring(network, task, work, slot, me, size, (number, each), number - 2)
    whole = per_rank * each
    if me == root:
        expected = 0
        for peer in _others(me, size):
            length = min(whole, total - peer * whole)
            if length > 0:
                network.recv(me, peer, slot, work, peer * whole, length)
                expected += 1
        for _ in range(expected):
            yield work, "recv"
    else:
        length = min(whole, total - me * whole)
        if length > 0:
            network.send(me, root, slot, work, me * whole, length)
            yield work, "send"


def _all_gather(network: Network, work: Buffer, slot: Slot, me: int, size: int) -> Waits:
    """Each rank's share goes around the ring in two halves: while one half travels, the other is passed on.

        rank 1 of 3, shares a b c:    sends b0 b1 a0 a1, receives a0 a1 c0 c1

    A share of one byte has an empty first half. It is sent all the same: an empty message completes, too.
    """
    whole = len(work.data)
    each = whole // size
    halves = ((0, each // 2), (each // 2, each - each // 2))
    for turn in range((size - 1) * 2):
        out = size + me - turn // 2
        low, length = halves[turn % 2]
        if turn >= 2:
            yield work, "send"
            yield work, "recv"
        network.send(me, (me + 1) % size, slot, work, (out * each + low) % whole, length)
        network.recv(me, (me - 1) % size, slot, work, ((out - 1) * each + low) % whole, length)
    for _ in range(2):
        yield work, "send"
        yield work, "recv"


def _all_to_all(network: Network, task: Task, slot: Slot, me: int, size: int) -> Waits:
    """Everyone posts all sends and recvs at once, nearest rank first, and then waits for as many as it posted."""
    ins, outs = task.part.ins, task.part.outs
    sent, came = Buffer(task, read(ins)), Buffer(task, read(outs))
    out_at = np.cumsum([0, *map(len_of, ins)]).tolist()
    in_at = np.cumsum([0, *map(len_of, outs)]).tolist()
    came.data[in_at[me] : in_at[me + 1]] = sent.data[out_at[me] : out_at[me + 1]][: in_at[me + 1] - in_at[me]]
    write(outs, came.data)  # in place: a rank's own share is there even if the call fails
    for turn in range(1, size):
        target, source = (me + turn) % size, (me - turn) % size
        network.send(me, target, slot, sent, out_at[target], out_at[target + 1] - out_at[target])
        network.recv(me, source, slot, came, in_at[source], in_at[source + 1] - in_at[source])
    for _ in range(1, size):
        yield sent, "send"
        write(outs, came.data)
        yield came, "recv"
    write(outs, came.data)
