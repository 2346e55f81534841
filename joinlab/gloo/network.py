"""The network that carries gloo's messages, and what each message does to memory.

Which messages a collective posts, and where it waits, is told in messages.py, from gloo's sources. Here they
have bytes: `program` is a generator that posts sends and recvs to the `Network`, and yields (buffer, "send" or "recv")
where gloo calls waitSend or waitRecv. So a mismatch ends here as it does there: it hangs at the same wait, fills the
same part of a buffer, or aborts the same process.

    Network         gloo/transport/tcp/pair.cc, context.cc and unbound_buffer.cc, in third_party/gloo of PyTorch v2.13.0

Which of them a call of torch.distributed runs, and on what memory, is decided in
torch/csrc/distributed/c10d/ProcessGroupGloo.cpp: see `gloo`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from typing import Any, Protocol, assert_never

import numpy as np
import torch

from joinlab.backend.model import EmulatedCall
from joinlab.backend.payload import Bytes, Part, len_of, read, write
from joinlab.gloo import messages
from joinlab.gloo.jobs import Job
from joinlab.gloo.messages import ARRIVED, WORK, Post, Steps, Sum, Wait
from joinlab.gloo.sums import combine
from joinlab.ops import Op


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


def chunk(nbytes: int, item: int, size: int) -> int:
    """Bytes of the chunk of an all_reduce whose sum one rank holds at the end of the first half.

    >>> chunk(12, 4, 2)
    8
    """
    number, each = messages.segments(nbytes, item, size)
    return number // size * each


def program(network: Network, task: Task, size: int) -> Waits:
    """This rank's part of the collective, to be run message by message."""
    call, part = task.call, task.part
    slot = (messages.kind(Op.ALL_GATHER if task.job.sparse is not None else task.op), task.number)
    me, root = call.place, call.root

    def play(steps: Steps, *buffers: Buffer) -> Waits:
        return _play(network, task, slot, me, steps, buffers)

    match task.op:
        case Op.BARRIER:
            yield from play(messages.barrier(me, size), Buffer(task, np.empty(0, np.uint8)))
        case Op.ALL_REDUCE if task.job.sparse is not None:
            yield from _all_reduce_sparse(network, task, task.job.sparse, slot, me, size)
        case Op.BROADCAST | Op.ALL_REDUCE | Op.REDUCE:
            work = Buffer(task, read(part.ins))
            nbytes, item = len(work.data), part.dtype.itemsize
            each = 0
            if task.op is Op.BROADCAST:
                steps = messages.broadcast(me, size, root, nbytes)
            elif task.op is Op.ALL_REDUCE:
                steps = messages.all_reduce(me, size, nbytes, item)
                _, each = messages.segments(nbytes, item, size)
            else:
                steps = messages.reduce(me, size, root, nbytes, item)
                _, each = messages.reduce_segments(nbytes, item, size)
            arrived = Buffer(task, np.zeros(each * 2, np.uint8), scratch=True)
            for wait in play(steps, work, arrived):  # gloo works in place: received data is already in the tensor
                write(part.outs, work.data)  # even if the call never ends
                yield wait
            task.undefined = work.undefined
            write(part.outs, work.data)
        case Op.ALL_GATHER:
            own = read(part.ins)
            work = Buffer(task, np.zeros(len(own) * size, np.uint8), scratch=True)
            work.data[me * len(own) : (me + 1) * len(own)] = own
            yield from play(messages.all_gather(me, size, len(own)), work)
            task.undefined = work.undefined
            write(part.outs, work.data)
        case Op.GATHER:
            own = read(part.ins)
            steps = messages.gather(me, size, root, len(own))
            if me != root:
                yield from play(steps, Buffer(task, own))
                return
            work = Buffer(task, np.tile(own, size), scratch=True)
            yield from play(steps, work)
            task.undefined = work.undefined
            write(part.outs, work.data)
        case Op.SCATTER if me != root:
            work = Buffer(task, read(part.outs))
            yield from play(messages.scatter(me, size, root, [len(work.data)]), work)
            write(part.outs, work.data)
        case Op.SCATTER:
            each_buffer = [Buffer(task, read([tensor])) for tensor in part.ins]
            lengths = [len(buffer.data) for buffer in each_buffer]
            for wait in play(messages.scatter(me, size, root, lengths), *each_buffer):
                write(part.outs, each_buffer[me].data)
                yield wait
        case Op.ALL_TO_ALL:
            sent, came = Buffer(task, read(part.ins)), Buffer(task, read(part.outs))
            lengths, room = ([len_of(tensor) for tensor in side] for side in (part.ins, part.outs))
            mine = sent.data[sum(lengths[:me]) :][: min(lengths[me], room[me])]
            came.data[sum(room[:me]) :][: len(mine)] = mine
            write(part.outs, came.data)  # in place: a rank's own share is there even if the call fails
            for wait in play(messages.all_to_all(me, size, lengths, room), sent, came):
                write(part.outs, came.data)
                yield wait
            write(part.outs, came.data)
        case Op.REDUCE_SCATTER | Op.SEND | Op.RECV:  # the fabric makes all-reduces of the one, and pairs of the others
            raise ValueError(f"a {task.op} is no algorithm of gloo's collectives")
        case _:
            assert_never(task.op)


def _play(network: Network, task: Task, slot: Slot, me: int, steps: Steps, buffers: Sequence[Buffer]) -> Waits:
    """Carry out a rank's steps with the bytes of its buffers."""
    for step in steps:
        match step:
            case Wait():
                yield buffers[step.buffer], step.way
            case Post():
                post = network.send if step.way == "send" else network.recv
                post(me, step.peer, slot, buffers[step.buffer], step.low, step.size)
            case Sum():
                work, arrived = buffers[WORK], buffers[ARRIVED]
                work.undefined |= arrived.undefined
                own, came = work.data[step.low : step.low + step.size], arrived.data[step.at : step.at + step.size]
                own[:] = combine(task.part.dtype, task.job.reduce_op, own, came)
            case _:
                assert_never(step)


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
    yield from _play(network, task, slot, me, messages.all_gather(me, size, _SPARSE_SIZES_BYTES), [sizes])
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
