"""Gloo's matching rule: which of the calls issued so far can never complete.

PyTorch numbers the collectives of a group, all kinds with one counter, and gloo sends every message
under that number and the kind. So the k-th collective of one rank meets the k-th of another only if
both are of the same kind; an all-reduce beside a barrier waits for ever, and so does the barrier.
Every send waits for its receiver. Each kind needs particular peers:

    all_reduce, all_gather, barrier, reduce_scatter     everyone: each result holds something of everyone
    all_to_all                                          everyone, pair by pair
    broadcast     a binomial tree: a rank receives from its parent, then sends to its children
    gather        the root receives from everyone; the others only send to the root
    scatter       the root sends to everyone; the others only receive from the root
    reduce        a ring and then a gather to the root; a small tensor leaves out the ring's unneeded parts

Each is one file of gloo at the commit that torch v2.13.0 pins (third_party/gloo):
gloo/allreduce.cc, allgather.cc, barrier.cc, alltoall.cc, broadcast.cc, gather.cc, scatter.cc and
reduce.cc. The number, the wait of a barrier and the reduce_scatter are of
torch/csrc/distributed/c10d/ProcessGroupGloo.cpp, v2.13.0.

A barrier begins only when all earlier collectives of its rank are complete. PyTorch makes a
reduce_scatter of all-reduces, one for each tensor and each with a number, so the two meet. A send
meets the recv of the same two ranks and the same tag, in order.

Where sizes differ gloo may wait, fill a part, or abort a process: then the messages of all ranks
are played through (`messages`), as if every call that can begin had a thread. If a process would
abort, or a record does not tell the sizes, nothing is claimed. A peer that has ended closes its
connections, which is an error at a rank that has a message to it, not a hang: nothing is claimed of
that rank either. Each rank has a few threads for its collectives; where their number is known, no
collective begins behind as many that are stuck.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import chain
from math import prod

from joinlab.backend.calls import (
    ANY_SOURCE,
    ITEM_BYTES,
    Blocked,
    Blocker,
    GroupCalls,
    IssuedCall,
    contradicted,
)
from joinlab.gloo import messages
from joinlab.gloo.messages import Steps, kind
from joinlab.gloo.network import Buffer, Network, NetworkPart, advance, play
from joinlab.ops import FACTS, Needs, Op, op_of

Slot = dict[int, IssuedCall]
"""The k-th collective of every rank of a group that issued at least k."""


def blocked(group: GroupCalls, gone: Collection[int] = ()) -> Blocked:
    """The calls of `group` that can never complete, whatever is done with the calls issued so far.

    gone  ranks whose process has ended: a rank that waits for one of them gets an error

    Empty if the calls contradict the rule (one is known to be complete that could not be): then
    nothing is known.
    """
    if group.failed or len(group.ranks) < 2:
        return {}
    group, threads = group.reached(), group.setting.threads
    blockers: dict[tuple[int, int], tuple[Blocker, ...]] = {}
    # per rank: its collectives that cannot complete, each of which holds a thread
    stuck: dict[int, list[Blocker]] = {}
    lanes = [
        list(chain.from_iterable(map(_numbered, group.collectives[rank]))) for rank in group.ranks
    ]
    for k in range(_first_open(lanes), max(map(len, lanes), default=0)):
        slot = {
            rank: lane[k] for rank, lane in zip(group.ranks, lanes, strict=True) if k < len(lane)
        }
        if any(call.op == Op.REDUCE_SCATTER and not call.shape for call in slot.values()):
            break  # from here on the counter is not known
        # A rank may already wait in its next call while another's equal call has yet to be refused.
        refused = [_asked(call) for call in slot.values() if call.void]
        # by rank: the stuck call behind which its call waits, and has not begun
        behind: dict[int, Blocker] = {}
        begun: dict[str, Slot] = {}
        for rank, call in slot.items():
            if not call.completed and _asked(call) in refused:
                continue
            earlier = stuck.get(rank, [])
            if earlier and (call.op == Op.BARRIER or (threads and len(earlier) >= threads)):
                behind[rank] = earlier[0]
            else:
                begun.setdefault(kind(call.op, call.dtype), {})[rank] = call
        fresh: dict[int, tuple[Blocker, ...]] = {
            rank: (blocker,) for rank, blocker in behind.items()
        }
        first = {rank: earlier[0] for rank, earlier in stuck.items()}
        for name, calls in begun.items():
            blame = partial(_blame, slot, first if name == Op.BARRIER else behind)
            played = _stuck_in(name, calls, group.ranks, gone, blame)
            if played is None:
                return {}
            fresh |= played
        if any(slot[rank].completed for rank in fresh):
            return {}
        for rank, why in fresh.items():
            blockers[rank, slot[rank].seq] = why
            stuck.setdefault(rank, []).append(Blocker(rank, slot[rank].seq))
    return {**blockers, **_pairs(group, gone)}


def _asked(call: IssuedCall) -> tuple[object, ...]:
    """The properties by which a gloo thread refuses a call; sizes count only where it splits them."""
    sizes = call.shape if call.op == Op.ALL_TO_ALL else None
    return call.op, call.dtype, call.reduce_op, sizes


def _numbered(call: IssuedCall) -> Sequence[IssuedCall]:
    """What takes a number each: a reduce_scatter is an all-reduce of each of its tensors."""
    if call.op != Op.REDUCE_SCATTER or len(call.shape or ()) < 2:
        return (call,)
    return [call._replace(shape=[shape]) for shape in call.shape or ()]


def _first_open(lanes: Sequence[Sequence[IssuedCall]]) -> int:
    """The first slot in which some rank has a call that is not complete: before it nothing can be
    blocked."""
    return min(
        (
            next((k for k, call in enumerate(lane) if not call.completed), len(lane))
            for lane in lanes
        ),
        default=0,
    )


def _blame(slot: Slot, behind: Mapping[int, Blocker], rank: int) -> Blocker:
    """Why `rank` takes no part: the stuck call in front of its own, from `behind`, or its call in
    this slot."""
    return behind.get(rank) or Blocker(rank, slot[rank].seq if rank in slot else None)


def _uneven(calls: Slot) -> bool:
    """Whether calls of one kind would meet with messages of different sizes."""
    if any(call.op in (Op.BARRIER, Op.ALL_TO_ALL) for call in calls.values()):
        return False  # the sizes that an all_to_all receives are not recorded
    sizes = set[tuple[str | None, int | None]]()
    for call in calls.values():
        # the root of a scatter has all parts
        parts = _parts(call) if call.op == Op.SCATTER else [call.nbytes]
        sizes.update((call.dtype, part) for part in parts)
    return len(sizes) > 1


def _stuck_in(
    name: str,
    calls: Slot,
    ranks: Sequence[int],
    gone: Collection[int],
    blame: Callable[[int], Blocker],
) -> dict[int, tuple[Blocker, ...]] | None:
    """By rank, the blockers of those of `calls`, all of one kind, that cannot complete; None: a
    process would abort.

    An abort ends more than this call, so no other claim would stand. Messages decide where sizes
    differ, where a root is missing or not the same, and where a missing rank has ended, as only who
    has a message to it gets an error.
    """
    facts, uneven = FACTS.get(name), _uneven(calls)
    missing = [rank for rank in ranks if rank not in calls]
    lost = any(rank in gone for rank in missing)
    if facts is not None and facts.needs is Needs.EVERYONE and not uneven and not lost:
        why = tuple(map(blame, missing))
        empty = facts.empty_returns
        return {
            rank: why for rank, call in calls.items() if why and not (empty and call.elements == 0)
        }
    roots = {call.root for call in calls.values()}
    rooted = facts is not None and facts.rooted and (missing or len(roots) > 1)
    if not (rooted or uneven or lost):
        return {}
    if any(rank in gone and not call.completed for rank, call in calls.items()):
        return {}  # how far that call came is not known, and who waits for it gets an error
    network = Network(len(ranks))
    parts: dict[int, _RulePart] = {}
    for rank, call in calls.items():
        group_rank = ranks.index(rank)
        steps = _steps(call, group_rank, ranks, not uneven)
        if steps is None:
            return {}
        parts[rank] = _RulePart(network, group_rank, steps, len(ranks))
    network.awake.extend(parts.values())
    while network.awake:
        advance(network.awake.popleft())
    if network.aborts():
        return None
    unanswered = sorted({*network.unanswered()})
    blockers: dict[int, tuple[Blocker, ...]] = {}
    for rank, part in parts.items():
        peers = [ranks[peer] for group_rank, peer in unanswered if group_rank == part.group_rank]
        if part.waits_on is None or any(peer in gone for peer in peers):
            continue
        form = _form(calls[rank])
        differing = [peer for peer in ranks if peer not in calls or _form(calls[peer]) != form]
        live = [peer for peer in differing if peer not in gone]
        blockers[rank] = tuple(map(blame, live or peers))
    return blockers


class _RulePart(NetworkPart):
    """One rank's part of a collective, without its bytes."""

    def __init__(self, network: Network, group_rank: int, steps: Steps, size: int) -> None:
        super().__init__()
        self.group_rank = group_rank
        self.program = play(
            network, ("", 0), group_rank, steps, [Buffer(self) for _ in range(max(2, size))]
        )


def _form(call: IssuedCall) -> tuple[object, ...]:
    return call.dtype, call.nbytes


_SENT_AS_THEY_ARE = (
    *("float32", "float64", "float16", "bfloat16"),
    *("int64", "int32", "int8", "uint8", "bool"),
)
_ITEM_BYTES = {name: ITEM_BYTES[name] for name in _SENT_AS_THEY_ARE}
"""Of the dtypes that gloo sends as they are: GENERATE_ALL_TYPES in ProcessGroupGlooDetail.hpp,
PyTorch v2.13.0."""

_SOME_BYTES = 8
"""The size of a message where it is not known, and does not matter."""

_MOST_MESSAGES = 100_000
"""Calls that send more messages than these are not played through; so many take a third of a
second."""


def _parts(call: IssuedCall) -> list[int | None]:
    """The bytes of each of its tensors."""
    item = _ITEM_BYTES.get(call.dtype or "")
    return [None if item is None else item * prod(shape) for shape in call.shape or ()]


def _steps(call: IssuedCall, me: int, ranks: Sequence[int], even: bool) -> Steps | None:
    """The messages of a call of group rank `me`; None if the record does not tell them, or there are too
    many.

    even  the messages of all ranks are of one size: then it does not matter, for a call with a root, if it is not known
    """
    size = len(ranks)
    op = op_of(call.op)
    nbytes = call.nbytes
    item = _ITEM_BYTES.get(call.dtype or "")
    if op is None or (FACTS[op].rooted and call.root not in ranks):
        return None
    if even and FACTS[op].rooted and (nbytes is None or item is None):
        nbytes = item = _SOME_BYTES
    if nbytes is None or item is None:
        return None
    root = ranks.index(call.root) if call.root in ranks else 0
    if 4 * size * (nbytes // messages.MAX_SEGMENT + 2 * size) > _MOST_MESSAGES:
        return None
    facts, lengths = FACTS[op], [nbytes]
    if facts.for_each and not facts.reduces:
        lengths = [length for length in _parts(call) if length is not None] or [_SOME_BYTES]
        lengths = [*lengths[:1]] * size if even else lengths
        if not facts.rooted or (not even and len(lengths) != (size if me == root else 1)):
            return None  # the sizes that an all_to_all receives are not recorded
    if not nbytes and facts.needs is not Needs.FROM_ROOT and not facts.pairwise:
        if facts.reduces:
            return iter(())
        return None
    return messages.of(op, me, size, root, lengths, item)


def _pairs(group: GroupCalls, gone: Collection[int]) -> Blocked:
    """Sends without a recv, and recvs without a send. Calls with a rank that is gone fail: they are
    not blocked."""
    blockers: dict[tuple[int, int], tuple[Blocker, ...]] = {}
    sends, recvs = group.sends, group.recvs
    for (source, target, tag), issued in sends.items():
        # A recv from any source may take a send of each.
        takers = [
            *recvs.get((source, target, tag), ()),
            *recvs.get((ANY_SOURCE, target, tag), ()),
        ]
        for call in () if target in gone else issued[len(takers) :]:
            blockers[source, call.seq] = (Blocker(target, None),)
    for (source, target, tag), issued in recvs.items():
        sources, arrived = [source], len(sends.get((source, target, tag), ()))
        if source == ANY_SOURCE:
            sources = [rank for rank in group.ranks if rank != target]
            if any(sends.get((peer, target, tag)) for peer in sources):
                continue  # which of the recvs takes it is not known
        for call in () if any(peer in gone for peer in sources) else issued[arrived:]:
            blockers[target, call.seq] = tuple(Blocker(peer, None) for peer in sources)
    if contradicted(blockers, group.of_pairs()):
        return {}
    return blockers
