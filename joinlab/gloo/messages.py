"""Which messages each rank of a gloo collective sends and waits for, step by step.

Gloo knows memory and nothing else, so what it posts depends on the rank's group rank, the root and the
sizes alone, never on data. Each function yields a rank's steps in the order of gloo's sources. The
rule (`rule`) plays them on the network to see which calls can complete; the emulator does so with
the bytes that they carry.

    function here   gloo, in third_party/gloo of PyTorch v2.13.0
    barrier         gloo/barrier.cc barrier(): dissemination
    broadcast       gloo/broadcast.cc broadcast(): binomial tree
    all_reduce      gloo/allreduce.cc ring(), the default
    reduce          gloo/reduce.cc reduce(): ring, gather to root
    all_gather      gloo/allgather.cc allgather(): ring
    gather          gloo/gather.cc gather()
    scatter         gloo/scatter.cc scatter()
    all_to_all      gloo/alltoall.cc, gloo/alltoallv.cc

A buffer is a number: WORK is the tensor, ARRIVED what a ring receives before it is summed; a
scatter's root has one for each rank, and all_to_all has WORK to send from and ARRIVED to receive
into.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Literal, NamedTuple, assert_never

from joinlab.ops import Op

Direction = Literal["send", "recv"]

WORK, ARRIVED = 0, 1

MAX_SEGMENT = 1024 * 1024
"""Bytes of the longest message that all_reduce and reduce send.

Source: kMaxSegmentSize in gloo/allreduce.h and gloo/reduce.h, PyTorch v2.13.0.
"""


class Post(NamedTuple):
    """Post a message: `size` bytes from `low` on of a buffer, to or from the rank of group rank
    `peer`."""

    direction: Direction
    peer: int
    buffer: int
    low: int
    size: int


class MessageWait(NamedTuple):
    """Wait until one more message of a buffer has gone, or come, whichever it is (waitSend and
    waitRecv)."""

    direction: Direction
    buffer: int


class Sum(NamedTuple):
    """Add `size` bytes of ARRIVED, from `at` on, to those of WORK from `low` on."""

    at: int
    low: int
    size: int


Steps = Iterator[Post | MessageWait | Sum]


def kind(op: str, dtype: str | None = None) -> str:
    """What gloo makes of an op: calls of different kinds never meet. A sparse all_reduce is
    all-gathers.

    >>> kind("reduce_scatter"), kind("barrier"), kind("all_reduce", "sparse float32")
    ('all_reduce', 'barrier', 'all_gather')
    """
    if op == Op.ALL_REDUCE and (dtype or "").startswith("sparse"):
        return str(Op.ALL_GATHER)
    return str(Op.ALL_REDUCE if op == Op.REDUCE_SCATTER else op)


def of(
    op: Op,
    me: int,
    size: int,
    root: int,
    lengths: Sequence[int],
    item: int,
    into: Sequence[int] = (),
) -> Steps:
    """The messages of a collective of group rank `me`.

    lengths  bytes of each tensor that the rank puts in, or, in a scatter but for its root, of the one that it gets
    item     bytes of an element
    into     of an all_to_all, bytes of each tensor that the rank gets
    """
    nbytes = sum(lengths)
    match op:
        case Op.BARRIER:
            return barrier(me, size)
        case Op.ALL_REDUCE | Op.REDUCE_SCATTER:
            return all_reduce(me, size, nbytes, item)
        case Op.REDUCE:
            return reduce(me, size, root, nbytes, item)
        case Op.ALL_GATHER:
            return all_gather(me, size, nbytes)
        case Op.BROADCAST:
            return broadcast(me, size, root, nbytes)
        case Op.GATHER:
            return gather(me, size, root, nbytes)
        case Op.SCATTER:
            return scatter(me, size, root, lengths)
        case Op.ALL_TO_ALL:
            return all_to_all(me, size, lengths, into)
        case Op.SEND | Op.RECV:
            raise ValueError(f"{op} is no collective")
        case _:
            assert_never(op)


def segments(nbytes: int, item: int, size: int) -> tuple[int, int]:
    """(number of segments, bytes of one) of an all_reduce of `nbytes`, with `item` bytes per
    element.

    At least two per rank, and the same number for each. The last ones may be shorter, or empty:

    >>> segments(12, 4, 2)  # float32[3] on 2 ranks: |0..4|4..8|8..12|empty|
    (4, 4)

    Source: numSegments and segmentBytes in ring(), gloo/allreduce.cc, PyTorch v2.13.0.
    """
    longest = item * max(1, MAX_SEGMENT // item)
    number = max(-(-nbytes // longest), size * 2)
    number += -number % size
    nbytes_each = -(-nbytes // number)
    return number, nbytes_each + -nbytes_each % item


def barrier(me: int, size: int) -> Steps:
    """In round r every rank hears from the one 2^r before it, and tells the one 2^r after it.

        5 ranks, rank 0:    round 0 hears 4 (which is all it knows), tells 1
                            round 1 hears 3 (which has heard 2), tells 2
                            round 2 hears 1 (which has heard 0 and 4), tells 4

    After ceil(log2(size)) rounds it has heard, through others, of every rank.
    """
    far = 1
    while far < size:
        yield Post("recv", (me - far) % size, WORK, 0, 0)
        yield Post("send", (me + far) % size, WORK, 0, 0)
        yield MessageWait("recv", WORK)
        yield MessageWait("send", WORK)
        far *= 2


def broadcast(me: int, size: int, root: int, nbytes: int) -> Steps:
    """A binomial tree over `distance`, the rank's distance from the root: round r doubles the number of
    those who have it.

        root 0, 6 ranks:    round 0   0 -> 1
                            round 1   0 -> 2, 1 -> 3
                            round 2   0 -> 4, 1 -> 5      (2 -> 6 and 3 -> 7 do not exist)

    Each rank receives once, in the round of its highest bit, before it sends anything. Its sends
    are waited for at the end: a root, too, stays until its children have taken the data. `mask`
    keeps those out who do not have it yet.
    """
    distance, rounds = (me - root) % size, (size - 1).bit_length()
    mask = (1 << rounds) - 1
    sent = 0
    for bit in range(rounds):
        mask ^= 1 << bit
        peer = distance ^ (1 << bit)
        if distance & mask or peer >= size:
            continue
        if distance & (1 << bit):
            yield Post("recv", (peer + root) % size, WORK, 0, nbytes)
            yield MessageWait("recv", WORK)
        else:
            yield Post("send", (peer + root) % size, WORK, 0, nbytes)
            sent += 1
    for _ in range(sent):
        yield MessageWait("send", WORK)


def gather(me: int, size: int, root: int, nbytes: int) -> Steps:
    """Everyone sends to the root, which waits for as many messages as it has peers.

    Each has a place of its own at the root, of the root's length, whatever the peer sends.
    """
    if me != root:
        yield Post("send", root, WORK, 0, nbytes)
        yield MessageWait("send", WORK)
        return
    for peer in _others(me, size):
        yield Post("recv", peer, WORK, peer * nbytes, nbytes)
    for _ in _others(me, size):
        yield MessageWait("recv", WORK)


def scatter(me: int, size: int, root: int, lengths: Sequence[int]) -> Steps:
    """The root sends to everyone from one buffer per peer, and waits for all to have gone.

    lengths  at the root, bytes for each rank; elsewhere, bytes of the one tensor
    """
    if me != root:
        yield Post("recv", root, WORK, 0, lengths[0])
        yield MessageWait("recv", WORK)
        return
    for peer in _others(me, size):
        yield Post("send", peer, peer, 0, lengths[peer])
    for peer in _others(me, size):
        yield MessageWait("send", peer)


def all_reduce(me: int, size: int, nbytes: int, item: int) -> Steps:
    """The ring sums each chunk (`_ring`), and a second trip hands the sums out.

    After the first trip rank r holds the sum of chunk r. On the second it sends that on to rank -
    1, then what it has received itself. The sums arrive in place, in WORK, so this trip needs no
    scratch memory.
    """
    plan = segments(nbytes, item, size)
    turns = plan[0] - plan[0] // size
    yield from _ring(me, size, nbytes, plan, turns)

    arrival, departure = MessageWait("recv", WORK), MessageWait("send", WORK)
    for _, before, now in _turns(me, turns, size, nbytes, plan):
        if before.came > 0:
            yield arrival
        if before.sent > 0:
            yield departure
        if now.came > 0:
            yield Post("recv", (me + 1) % size, WORK, now.into, now.came)
        if now.sent > 0:
            yield Post("send", (me - 1) % size, WORK, now.out, now.sent)


def reduce(me: int, size: int, root: int, nbytes: int, item: int) -> Steps:
    """The ring of `all_reduce`, then every rank sends its summed chunk to the root.

    Its ring differs in two ways: segments are rounded otherwise, and `number - 2` turns are posted.
    With two segments per rank that is as many as an all_reduce posts; with more, sums are forwarded
    that no rank needs. A rank whose chunk is empty, since the tensor is too small, sends nothing to
    the root.
    """
    number, segment = reduce_segments(nbytes, item, size)
    yield from _ring(me, size, nbytes, (number, segment), number - 2)
    whole = number // size * segment
    if me == root:
        expected = 0
        for peer in _others(me, size):
            length = min(whole, nbytes - peer * whole)
            if length > 0:
                yield Post("recv", peer, WORK, peer * whole, length)
                expected += 1
        for _ in range(expected):
            yield MessageWait("recv", WORK)
    else:
        length = min(whole, nbytes - me * whole)
        if length > 0:
            yield Post("send", root, WORK, me * whole, length)
            yield MessageWait("send", WORK)


def reduce_segments(nbytes: int, item: int, size: int) -> tuple[int, int]:
    """As `segments`, for a reduce: numSegments and segmentBytes in reduce(), gloo/reduce.cc,
    PyTorch v2.13.0."""
    segment = min(-(-nbytes // (size * 2)), item * (MAX_SEGMENT // item))
    segment += -segment % item
    number = max(-(-nbytes // segment), size * 2)
    return number + -number % size, segment


def _ring(me: int, size: int, nbytes: int, plan: tuple[int, int], turns: int) -> Steps:
    """Segments go from rank to rank - 1 and are summed on the way, two of them in flight; `turns`
    of them are posted.

    With 3 ranks and chunks A, B, C (each of `per_rank` segments), rank 0 sums like this:

        it sends    B0  B1  C0' C1'      of the chunk of rank + 1, then what it has just summed (')
        it sums         C0  C1  A0  A1   what rank 1 sends; at the end A holds everyone's sum

    A turn waits for the message that was posted two turns before, so ARRIVED needs room for two
    segments. A segment that lies behind the end of the data is neither sent nor waited for: both
    sides leave it out if their sizes agree, and where they differ one side may wait for a segment
    that the other one never sends.
    """
    segment = plan[1]
    if not segment:
        return  # nothing to sum

    arrival, departure = MessageWait("recv", ARRIVED), MessageWait("send", WORK)
    for turn, before, now in _turns(me + 1, turns, size, nbytes, plan):
        offset = turn % 2 * segment
        if before.came > 0:
            yield arrival
            yield Sum(offset, before.into, before.came)
        if before.sent > 0:
            yield departure
        if now.came > 0:
            yield Post("recv", (me + 1) % size, ARRIVED, offset, now.came)
        if now.sent > 0:
            yield Post("send", (me - 1) % size, WORK, now.out, now.sent)


class _Move(NamedTuple):
    """What moves in a turn: `sent` bytes go from `out` on, `came` bytes come to `into`; below 1:
    none."""

    out: int
    sent: int
    into: int
    came: int


_NOTHING = _Move(0, 0, 0, 0)


def _turns(
    chunk: int, turns: int, size: int, nbytes: int, plan: tuple[int, int]
) -> Iterator[tuple[int, _Move, _Move]]:
    """Each turn in which something moves: what was posted two turns before, and what is posted now.

    A turn sends a segment of this chunk, or of those after it, and receives one of the next chunk.
    """
    number, segment = plan
    ahead = number // size
    earlier = last = _NOTHING
    for turn in range(turns + 2):
        out = (chunk * ahead + turn) % number * segment
        into = ((chunk + 1) * ahead + turn) % number * segment
        moves = turn < turns and (out < nbytes or into < nbytes)
        if moves:
            now = _Move(out, min(segment, nbytes - out), into, min(segment, nbytes - into))
        else:
            now = _NOTHING
        if moves or earlier is not _NOTHING:
            yield turn, earlier, now
        earlier, last = last, now


def all_gather(me: int, size: int, share: int) -> Steps:
    """Each rank's share, of `share` bytes, goes around in two halves: while one half travels, the
    other is passed on.

        rank 1 of 3, shares a b c:    sends b0 b1 a0 a1, receives a0 a1 c0 c1

    A share of one byte has an empty first half. It is sent all the same: an empty message
    completes, too.
    """
    whole = share * size
    halves = ((0, share // 2), (share // 2, share - share // 2))
    for turn in range((size - 1) * 2):
        out = size + me - turn // 2
        low, length = halves[turn % 2]
        if turn >= 2:
            yield MessageWait("send", WORK)
            yield MessageWait("recv", WORK)
        yield Post("send", (me + 1) % size, WORK, (out * share + low) % whole, length)
        yield Post("recv", (me - 1) % size, WORK, ((out - 1) * share + low) % whole, length)
    for _ in range(2):
        yield MessageWait("send", WORK)
        yield MessageWait("recv", WORK)


def all_to_all(me: int, size: int, out: Sequence[int], into: Sequence[int]) -> Steps:
    """Everyone posts all sends and recvs at once, nearest rank first, and then waits for as many as
    it posted.

    out, into  bytes that go to, and come from, each rank
    """
    out_at, into_at = ([0, *accumulate(lengths)] for lengths in (out, into))
    for turn in range(1, size):
        target, source = (me + turn) % size, (me - turn) % size
        yield Post("send", target, WORK, out_at[target], out[target])
        yield Post("recv", source, ARRIVED, into_at[source], into[source])
    for _ in range(1, size):
        yield MessageWait("send", WORK)
        yield MessageWait("recv", ARRIVED)


def _others(me: int, size: int) -> list[int]:
    """Everyone's group rank but mine, in the order of the group."""
    return [group_rank for group_rank in range(size) if group_rank != me]
