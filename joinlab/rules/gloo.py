"""Gloo's matching rule: which of the calls issued so far can never complete.

PyTorch numbers the collectives of a group, all kinds with one counter, and gloo sends every message under that
number and the kind. So the k-th collective of one rank meets the k-th of another only if both are of the same kind;
an all-reduce beside a barrier waits for ever, and so does the barrier. Every send waits for its receiver. Each kind
needs particular peers:

    all_reduce, all_gather, barrier, reduce_scatter     everyone: each result holds something of everyone
    all_to_all                                          everyone, pair by pair
    broadcast     a binomial tree: a rank receives from its parent, then sends to its children
    gather        the root receives from everyone; the others only send to the root
    scatter       the root sends to everyone; the others only receive from the root
    reduce        a ring and then a gather to the root; a small tensor leaves out the ring's unneeded parts

Each is one file of gloo at the commit that torch v2.13.0 pins (third_party/gloo): gloo/allreduce.cc, allgather.cc,
barrier.cc, alltoall.cc, broadcast.cc, gather.cc, scatter.cc and reduce.cc. The number, the wait of a barrier and the
reduce_scatter are of torch/csrc/distributed/c10d/ProcessGroupGloo.cpp, v2.13.0.

A barrier begins only when all earlier collectives of its rank are complete. PyTorch makes a reduce_scatter of
all-reduces, one for each tensor and each with a number, so the two meet. A send meets the recv of the same two ranks
and the same tag, in order.

"Can never complete" is claimed only where no size, no dtype and no number of helper threads could make it untrue.
Where sizes differ gloo may wait, fill a part, or abort the process: nothing is claimed. A peer that has ended closes
its connections, which is an error at the waiting rank, not a hang: nothing is claimed either.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import chain
from typing import assert_never

from joinlab.ops import FACTS, Op, op_of
from joinlab.rules.calls import ANY_SOURCE, Blocked, Blocker, GroupCalls, IssuedCall

Slot = dict[int, IssuedCall]
"""The k-th collective of every rank of a group that issued at least k."""


def kind(op: str) -> str:
    """What gloo makes of an op: calls of different kinds never meet.

    >>> kind("reduce_scatter"), kind("barrier")
    ('all_reduce', 'barrier')
    """
    return str(Op.ALL_REDUCE if op == Op.REDUCE_SCATTER else op)


def blocked(group: GroupCalls, gone: Collection[int] = ()) -> Blocked:
    """The calls of `group` that can never complete, whatever is done with the calls issued so far.

    gone  ranks whose process has ended: a rank that waits for one of them gets an error

    Empty if the calls contradict the rule (one is known to be complete that could not be): then nothing is known.
    """
    if group.failed or len(group.ranks) < 2:
        return {}
    group = group.reached()
    found: dict[tuple[int, int], tuple[Blocker, ...]] = {}
    stuck: dict[int, Blocker] = {}  # per rank: its first collective that cannot complete; a barrier waits behind it
    lanes = [list(chain.from_iterable(map(_numbered, group.collectives[rank]))) for rank in group.ranks]
    for k in range(_first_open(lanes), max((len(lane) for lane in lanes), default=0)):
        slot = {rank: lane[k] for rank, lane in zip(group.ranks, lanes, strict=True) if k < len(lane)}
        if any(call.op == Op.REDUCE_SCATTER and not call.shape for call in slot.values()):
            break  # from here on the counter is not known
        fresh = {}
        for rank in slot:
            why = _missing(rank, slot, group.ranks, stuck)
            if why and not any(blocker.rank in gone for blocker in why):
                fresh[rank] = why
        for rank, why in fresh.items():
            found[rank, slot[rank].seq] = why
            stuck.setdefault(rank, Blocker(rank, slot[rank].seq))
        if any(slot[rank].completed for rank in fresh):
            return {}
    return {**found, **_pairs(group, gone)}


def _numbered(call: IssuedCall) -> Sequence[IssuedCall]:
    """What takes a number each: a reduce_scatter is an all-reduce of each of its tensors."""
    if call.op != Op.REDUCE_SCATTER or len(call.shape or ()) < 2:
        return (call,)
    return [call._replace(shape=[shape]) for shape in call.shape or ()]


def _first_open(lanes: Sequence[Sequence[IssuedCall]]) -> int:
    """The first slot in which some rank has a call that is not complete: before it nothing can be blocked."""
    return min((next((k for k, call in enumerate(lane) if not call.completed), len(lane)) for lane in lanes), default=0)


def _missing(rank: int, slot: Slot, ranks: Sequence[int], stuck: dict[int, Blocker]) -> tuple[Blocker, ...]:
    """The ranks that the call of `rank` in `slot` waits for in vain; () if it may complete."""
    call = slot[rank]
    op = op_of(call.op)
    if op is None or (FACTS[op].empty_returns and call.elements == 0):
        return ()
    if op is Op.BARRIER and rank in stuck:
        return (stuck[rank],)
    there = {other for other, its in slot.items() if kind(its.op) == kind(call.op)}
    if op is Op.BARRIER:
        there -= stuck.keys()
    elif FACTS[op].mixes and len({(kind(slot[r].op), slot[r].nbytes) for r in there}) > 1:
        return ()  # sizes differ: with more than two ranks, others may make up for the one that is missing
    need = _needed(op, rank, slot, there, ranks)
    return tuple(_blame(other, slot, stuck if op is Op.BARRIER else {}) for other in ranks if other in need)


def _blame(other: int, slot: Slot, stuck: dict[int, Blocker]) -> Blocker:
    return stuck.get(other) or Blocker(other, slot[other].seq if other in slot else None)


def _needed(op: Op, rank: int, slot: Slot, there: set[int], ranks: Sequence[int]) -> set[int]:
    """The peers whose absence from `there`, or whose different root, keeps the call of `rank` from completing."""
    call = slot[rank]
    others = set(ranks) - {rank}
    agree = {other for other in there if slot[other].root == call.root}
    if FACTS[op].rooted and any(slot[other].root is None for other in there):
        return set()  # a root that was not recorded may be the right one
    match op:
        case Op.ALL_REDUCE | Op.ALL_GATHER | Op.REDUCE_SCATTER | Op.BARRIER | Op.ALL_TO_ALL:
            return others - there
        case Op.GATHER | Op.SCATTER:
            return (others if rank == call.root else {root for root in ranks if root == call.root}) - agree
        case Op.BROADCAST:
            return _broadcast_needs(call, rank, slot, there, ranks)
        case Op.REDUCE:
            place = ranks.index(rank)
            below = ranks[place - 1 : place] if place else ()
            return (others if rank == call.root else {*ranks[place + 1 :], *below}) - there
        case Op.SEND | Op.RECV:
            return set()  # no collective: see _pairs
        case _:
            assert_never(op)


def _broadcast_needs(call: IssuedCall, rank: int, slot: Slot, there: set[int], ranks: Sequence[int]) -> set[int]:
    """The first peer on the way from the root that did not issue this broadcast, or the children that did not."""

    def receives(child: int) -> bool:  # does it expect its data from `rank`?
        return child in there and _parent(child, slot[child].root, ranks) == rank

    at, seen = rank, {rank}
    while (parent := _parent(at, slot[at].root, ranks)) is not None:
        if parent not in there or at not in _children(parent, slot[parent].root, ranks):
            return {parent}
        if parent in seen:
            return {parent}  # each waits for the other
        seen.add(parent)
        at = parent
    return {child for child in _children(rank, call.root, ranks) if not receives(child)}


def _parent(rank: int, root: int | None, ranks: Sequence[int]) -> int | None:
    """The rank that `rank` receives a broadcast from: its place after the root, less that place's highest bit."""
    if root not in ranks or rank == root:
        return None
    start = ranks.index(root)
    place = (ranks.index(rank) - start) % len(ranks)
    return ranks[(place - (1 << place.bit_length() - 1) + start) % len(ranks)]


def _children(rank: int, root: int | None, ranks: Sequence[int]) -> list[int]:
    """The ranks that `rank` sends a broadcast on to."""
    return [other for other in ranks if other != rank and _parent(other, root, ranks) == rank]


def _pairs(group: GroupCalls, gone: Collection[int]) -> Blocked:
    """Sends without a recv, and recvs without a send."""
    found: dict[tuple[int, int], tuple[Blocker, ...]] = {}
    for (source, target, tag), sends in group.sends.items():
        takers = len(group.recvs.get((source, target, tag), ())) + len(group.recvs.get((ANY_SOURCE, target, tag), ()))
        if target not in gone:
            found.update({(source, call.seq): (Blocker(target, None),) for call in sends[takers:]})
    for (source, target, tag), recvs in group.recvs.items():
        if source == ANY_SOURCE:
            sources = [rank for rank in group.ranks if rank != target]
            arrived = sum(len(group.sends.get((one, target, tag), ())) for one in sources)
            if not arrived and not set(sources) & set(gone):
                found.update({(target, call.seq): tuple(Blocker(one, None) for one in sources) for call in recvs})
        elif source not in gone:
            arrived = len(group.sends.get((source, target, tag), ()))
            found.update({(target, call.seq): (Blocker(source, None),) for call in recvs[arrived:]})
    calls = (call for lists in (group.sends, group.recvs) for one in lists.values() for call in one)
    return {} if any(call.completed and (call.rank, call.seq) in found for call in calls) else found
