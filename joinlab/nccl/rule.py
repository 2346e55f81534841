"""NCCL's matching rule: which of the calls issued so far can never complete.

The calls are run on the ring of `ring.py`. That decides for small messages of up to TUNED_RANKS
ranks on one machine, where NCCL's choice of algorithm is known. Where NCCL's log did not tell the
order of the ranks on the ring, only what holds in every order is claimed. With more ranks or larger
messages the tuner chooses; there only what holds for every algorithm is claimed: as long as all
calls so far fit, a result that needs a rank which issued no such call cannot come. A rank's calls
on one communicator run in order, on one stream: no call behind one that cannot complete can
complete.

A communicator is made by the first call on it, in which its ranks' hosts meet, and so are the
connections of two of them that send and receive: a call waits there, too, for a rank that never
comes.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import partial
from itertools import chain
from math import factorial, prod

from joinlab.backend.calls import Blocked, Blocker, GroupCalls, IssuedCall, contradicted, is_list
from joinlab.nccl.connections import Connections
from joinlab.nccl.ring import (
    BUFFERED_BYTES,
    MOST_ORDERS,
    SMALL_BYTES,
    TUNED_RANKS,
    Ring,
    RingStep,
    Word,
    aligns,
    lines_of,
    most_ll_bytes,
    peer_steps,
    steps,
)
from joinlab.ops import FACTS, Needs, Op, op_of, waits_for

First = dict[int, tuple[int, tuple[Blocker, ...]]]
"""Per rank: index of its first call that cannot complete, and which ranks are the reason."""


def blocked(group: GroupCalls, gone: Collection[int] = ()) -> Blocked:
    """The calls of `group` that can never complete, whatever is done with the calls issued so far.

    gone  ranks whose process has ended. Within one machine NCCL does not notice, and ranks keep waiting for them.

    Empty if the calls contradict the rule (one is known to be complete that could not be): then
    nothing is known.
    """
    if group.failed or len(group.ranks) < 2:
        return {}
    group = group.reached()
    absent = _absent(group)
    running = group.begun()
    if absent and not group.eager:
        first = _unmade(group, absent)
    else:
        first = _first_blocked(running) | _unconnected(group)
    for rank, (index, why) in _replayed(group, running).items():
        if rank not in first or index < first[rank][0]:
            first[rank] = index, why
    blockers: dict[tuple[int, int], tuple[Blocker, ...]] = dict(group.held)
    for rank, (index, why) in first.items():
        lane = group.collectives[rank]
        behind = (Blocker(rank, lane[index].seq),)  # the rank's own stream is held up by that call
        blockers.update(
            {
                (rank, call.seq): behind
                for call in lane[index + 1 :]
                if (rank, call.seq) not in group.held
            }
        )
        blockers[rank, lane[index].seq] = tuple(_held(group, blocker, index) for blocker in why)
    if contradicted(blockers, chain.from_iterable(group.collectives.values())):
        return {}
    return {**blockers, **(_pairs(group, running, absent) if _share(group) else _own_pairs(group))}


def _held(group: GroupCalls, blocker: Blocker, index: int) -> Blocker:
    """For a rank that has issued its call at `index` and yet takes no part: the call that its
    stream waits for."""
    lane = group.collectives[blocker.rank]
    if blocker.seq is None and index < len(lane):
        return next(iter(group.held.get((blocker.rank, lane[index].seq), ())), blocker)
    return blocker


def _absent(group: GroupCalls) -> list[int]:
    """The ranks that have issued no call at all on this group's communicator."""
    present = {rank for rank, lane in group.collectives.items() if lane}
    if _share(group):
        present |= {source for source, _, _ in group.sends} | {
            target for _, target, _ in group.recvs
        }
    return [rank for rank in group.ranks if rank not in present]


def _unmade(group: GroupCalls, absent: Sequence[int]) -> First:
    """A communicator is made in the first call on it, for which every rank waits: until then
    nothing runs on it."""
    why = tuple(Blocker(rank, None) for rank in absent)
    return {rank: (0, why) for rank, lane in group.collectives.items() if lane}


def _unconnected(group: GroupCalls) -> First:
    """The first collective on an eager communicator connects its rings, so its host waits for every
    rank to issue one.

    Since v2.22 (comm->runtimeConn, src/init.cc:1362 of v2.29.7-1). Pairs are connected by the calls
    that need them.
    """
    if not group.eager or (group.version and group.version < (2, 22)):
        return {}
    lanes = {
        rank: [FACTS[call.op].pairwise for call in lane] for rank, lane in group.collectives.items()
    }
    why = tuple(Blocker(rank, None) for rank, lane in lanes.items() if all(lane))
    return {rank: (lane.index(False), why) for rank, lane in lanes.items() if why and not all(lane)}


def _first_blocked(group: GroupCalls) -> First:
    """Calls that need a rank without a call in that slot: true for every choice of NCCL while all
    calls so far fit."""
    first: First = {}
    ranks = group.ranks
    lanes = [group.collectives[rank] for rank in ranks]
    if _share(group):
        sent = {(source, target) for source, target, _ in group.sends}
    else:
        sent = set()
    if not all(map(_fit, zip(*lanes, strict=False))):
        return first
    for k in range(min(map(len, lanes)), max(map(len, lanes))):
        calls = tuple(lane[k] for lane in lanes if k < len(lane))
        missing = [rank for rank, lane in zip(ranks, lanes, strict=True) if k >= len(lane)]
        if not _fit(calls):
            if not first and all(map(_goes_round, calls)):
                why = tuple(Blocker(rank, None) for rank in missing)
                first = {call.rank: (k, why) for call in calls}
            return first
        for call in calls:
            # What a gather or scatter waits for, a send in a batch may bring.
            need = [
                rank
                for rank in _needed(call, missing)
                if not _pairwise(call) or (rank, call.rank) not in sent
            ]
            if need and call.rank not in first:
                first[call.rank] = k, tuple(Blocker(rank, None) for rank in need)
    return first


def _fit(calls: Sequence[IssuedCall]) -> bool:
    """Whether NCCL runs one collective on all ranks: then it completes once all have issued it, and
    leaves no trace."""
    first = calls[0]
    # op, dtype, shape
    if all(call[3:6] == first[3:6] and call.root == first.root for call in calls):
        return True
    if any(call.op != first.op or call.root != first.root for call in calls):
        return False
    if first.op == Op.SCATTER:  # the root has a part for each rank
        sizes = {
            None if call.nbytes is None else Fraction(call.nbytes, len(call.shape or (0,)))
            for call in calls
        }
        return len(sizes - {None}) < 2
    if first.op == Op.GATHER:
        return len({call.nbytes for call in calls} - {None}) < 2
    return first.nbytes is not None and all(call.nbytes == first.nbytes for call in calls)


def _goes_round(call: IssuedCall) -> bool:
    """Whether this call completes on no rank before every rank's data has passed, whatever sizes
    the others have.

    On the ring of n ranks it receives at least n - 1 times, each time from the rank before it, and
    sends once before it receives. So if one rank of the ring does nothing, the rank after it
    receives nothing and sends once, the next one receives once and sends twice, ... and the last
    one receives n - 2 times. On a tree no sum comes down to any rank before all have gone up.
    """
    op = op_of(call.op)
    return (
        op is not None
        and FACTS[op].needs is Needs.EVERYONE
        and FACTS[op].mixes
        and call.elements != 0
    )


def _pairwise(call: IssuedCall) -> bool:
    return call.op in FACTS and FACTS[call.op].pairwise


def _needed(call: IssuedCall, missing: Sequence[int]) -> Sequence[int]:
    """The missing ranks whose data `call` needs with every algorithm of NCCL's."""
    op = op_of(call.op)
    # in an all_to_all ranks may send each other nothing
    if op is None or op is Op.ALL_TO_ALL or call.elements == 0:
        return ()
    root = -1 if call.root is None else call.root
    return [rank for rank in waits_for(op, call.rank, root, missing) if rank in missing]


# ---------------- calls that do not fit: let them run on the ring


def _replayed(group: GroupCalls, running: GroupCalls) -> First:
    """The calls that stay blocked on the ring for every order of the ranks, in old NCCL and new.

    running  the group without the calls that are held; their hosts meet all the same

    The record does not say in which of these orders it ran. Those in which a call does not
    complete that is known to be complete are out; what every other order leaves blocked is blocked.
    """
    if not group.setting.one_node or len(group.ranks) > TUNED_RANKS:
        return {}
    lanes = [running.collectives[rank] for rank in group.ranks]
    start = next(
        (k for k, calls in enumerate(zip(*lanes, strict=False)) if not _fit(calls)),
        min(map(len, lanes)),
    )
    remaining = {rank: running.collectives[rank][start:] for rank in group.ranks}
    if not any(remaining.values()):
        return {}
    shared = _share(group) and not all(call.completed for call in group.of_pairs())
    if shared and any(_pairwise(call) for lane in remaining.values() for call in lane):
        return {}  # issued as a batch, sends and recvs use the same connections
    if shared:
        met = {rank: len(lane) for rank, lane in remaining.items()}
    else:
        met = _connected(group, start)
    reached = {rank: lane[: met[rank]] for rank, lane in remaining.items()}
    replays = []
    for order in _orders(group, remaining):
        for align in aligns(group.version):
            replays.append(_replay(group, order, reached, align))
    possible = []
    for done in replays:
        if done is None:
            return {}
        if not any(call.completed for rank in remaining for call in remaining[rank][done[rank] :]):
            possible.append(done)
    if not possible:
        return {}
    furthest = {rank: max(done[rank] for done in possible) for rank in remaining}
    stuck = {}
    for rank, index in furthest.items():
        if index < len(remaining[rank]):
            stuck[rank] = start + index, _culprits(rank, index, remaining, furthest)
    return stuck


def _share(group: GroupCalls) -> bool:
    """Whether sends and recvs may run on the group's communicator: a batch does, and any where it
    is eager.

    Others have a communicator for each two ranks (pointToPoint in ProcessGroupNCCL.cpp, PyTorch
    v2.13.0).
    """
    return group.eager or not group.uncoalesced


def _orders(
    group: GroupCalls, remaining: Mapping[int, Sequence[IssuedCall]]
) -> Iterator[tuple[int, ...]]:
    """The ranks by position on the ring, in every order that can make a difference; none if they are
    too many.

    NCCL counts positions from the group's first rank on (setupChannel in src/init.cc, v2.29.7-1), and
    takes the order that the machine's connections suggest. Ranks that issued the same, and are no
    call's root, can swap.
    """
    ranks = group.ranks
    if group.ring:
        first = group.ring.index(ranks[0])
        yield *group.ring[first:], *group.ring[:first]
        return
    roots = {call.root for lane in remaining.values() for call in lane}
    kinds: dict[object, list[int]] = {}
    for rank in ranks[1:]:
        looks = [
            (call.op, call.dtype, repr(call.shape), call.root, call.completed)
            for call in remaining[rank]
        ]
        kinds.setdefault((rank if rank in roots else None, *looks), []).append(rank)
    orders = factorial(len(ranks) - 1)
    for interchangeable in kinds.values():
        orders //= factorial(len(interchangeable))
    if orders > MOST_ORDERS:
        return
    for pattern in _arrangements(list(map(len, kinds.values()))):
        iterators = list(map(iter, kinds.values()))
        yield ranks[0], *(next(iterators[kind]) for kind in pattern)


def _arrangements(counts: list[int]) -> Iterator[tuple[int, ...]]:
    """All sequences in which `i` comes counts[i] times.

    >>> list(_arrangements([1, 2]))
    [(0, 1, 1), (1, 0, 1), (1, 1, 0)]
    """
    if not any(counts):
        yield ()
    for kind, count in enumerate(counts):
        if count:
            fewer = [*counts[:kind], count - 1, *counts[kind + 1 :]]
            for tail in _arrangements(fewer):
                yield (kind, *tail)


def _culprits(
    rank: int, index: int, lanes: Mapping[int, Sequence[IssuedCall]], done: Mapping[int, int]
) -> tuple[Blocker, ...]:
    """Ranks whose call at `index` is missing or does not fit; if all fit, the calls at which other
    ranks are stuck."""
    call = lanes[rank][index]
    peers = [peer for peer in lanes if peer != rank]
    opposite = {peer: lanes[peer][index] for peer in peers if index < len(lanes[peer])}
    differing = [
        peer
        for peer in peers
        if len(lanes) == 2 or peer not in opposite or not _fit((call, opposite[peer]))
    ]
    if differing:
        return tuple(
            Blocker(peer, opposite[peer].seq if peer in opposite else None) for peer in differing
        )
    stuck = [peer for peer in peers if done[peer] < len(lanes[peer])]
    return tuple(Blocker(peer, lanes[peer][done[peer]].seq) for peer in stuck)


def _replay(
    group: GroupCalls, order: Sequence[int], lanes: Mapping[int, Sequence[IssuedCall]], align: int
) -> dict[int, int] | None:
    """How many calls of each rank complete if the ranks stand so on the ring; None if that cannot
    be told."""
    ring = Ring(len(order), group.setting.warps_apart)
    issued = [0] * len(order)
    for position, rank in enumerate(order):
        for call in lanes[rank]:
            call_steps = _steps_of(group, call, position, order, align)
            if call_steps is None:
                break
            ring.issue(position, call_steps)
            issued[position] += 1
    done = ring.done
    if ring.unsure or any(done[p] == issued[p] < len(lanes[rank]) for p, rank in enumerate(order)):
        # one gets as far as a call that the ring cannot tell of: it may yet help the others
        return None
    return dict(zip(order, done, strict=True))


def _steps_of(
    group: GroupCalls, call: IssuedCall, position: int, order: Sequence[int], align: int
) -> tuple[RingStep, ...] | None:
    """The steps of a call; None if the record, or the size of the message, does not tell them."""
    nbytes = 4 if call.op == Op.BARRIER else call.nbytes
    if nbytes is None:
        return None
    size, op = len(order), op_of(call.op)
    if op is None or (FACTS[op].rooted and call.root not in order):
        return None
    root = order.index(call.root) if call.root in order else 0
    total = nbytes * size if op is Op.ALL_GATHER else nbytes
    large = total > most_ll_bytes(op, size)  # in between it is not known
    if not large and total >= SMALL_BYTES:
        return None
    if FACTS[op].pairwise:
        if large:
            return None
        return _steps_to_peers(call, op, position, size, root)
    parts = call.shape or ()
    if len(parts) > 1:
        listed = op is Op.REDUCE_SCATTER and (
            len(parts) == size if group.uncoalesced else is_list(call, size)
        )
        # of unequal parts NCCL makes a reduce for each
        if not listed or len(set(map(prod, parts))) > 1:
            return None  # collectives that are issued as one may have channels of their own
    ring_steps = steps(
        op, position, size, root, nbytes // size if op is Op.REDUCE_SCATTER else nbytes, align
    )
    # A large call has more steps than these. That matters to other large ones alone, see
    # Ring.unsure: a receiver of LL stands at the first of them for ever, since no flag comes.
    if large:
        return tuple(step._replace(flags=False) for step in ring_steps or ())
    return ring_steps or ()


def _steps_to_peers(
    call: IssuedCall, op: Op, position: int, size: int, root: int
) -> tuple[RingStep, ...] | None:
    """The steps of a gather, scatter or all_to_all, whose record holds what the rank puts in, or
    else what it gets."""
    nbytes = call.nbytes or 0
    if op is Op.ALL_TO_ALL and (
        len(call.shape or ()) != size or len(set(map(repr, call.shape or ()))) > 1
    ):
        return None  # how much goes to whom is not recorded
    if op is Op.ALL_TO_ALL or (op is Op.SCATTER and position == root):
        nbytes //= size
    return peer_steps(op, position, size, root, [nbytes] * size, [nbytes] * size)


def _connected(group: GroupCalls, start: int) -> dict[int, int]:
    """How many calls of each rank, from `start` on, got past the meeting of hosts that connects
    pairs.

    A host that stands there issues nothing more. If the record has more calls of it, it did not
    stand: all got past. Sends and recvs may have been a batch, and then have connected their ranks
    before.
    """
    ranks = group.ranks
    position_of = {rank: position for position, rank in enumerate(ranks)}
    connections, lanes = Connections(len(ranks)), group.collectives
    if _share(group):
        members = position_of.keys()
        connections.made |= {
            (position_of[source], position_of[to], True)
            for source, to, _ in group.sends
            if {source, to} <= members
        }
        connections.made |= {
            (position_of[to], position_of[source], False)
            for source, to, _ in group.recvs
            if {source, to} <= members
        }
    met = dict.fromkeys(ranks, 0)

    def host(rank: int) -> Iterator[Word]:
        for index, call in enumerate(lanes[rank]):
            op = op_of(call.op)
            if op is not None and FACTS[op].pairwise and call.root in (None, *ranks):
                met[rank] = index
                root = 0 if call.root is None else position_of[call.root]
                peer_steps_of_call = _steps_to_peers(call, op, position_of[rank], len(ranks), root)
                yield from connections.make(position_of[rank], peer_steps_of_call or ())
        met[rank] = len(lanes[rank])

    _meet(connections, map(host, ranks))
    whole = {rank: len(lanes[rank]) for rank in ranks}
    # More than one call behind its stand, or a stand that earlier calls got past: this host went on.
    if any(
        met[rank] < whole[rank] - 1 or met[rank] < start
        for rank in ranks
        if met[rank] < whole[rank]
    ):
        met = whole
    return {rank: met[rank] - start for rank in ranks}


# ---------------- sends and recvs


def _pairs(group: GroupCalls, running: GroupCalls, absent: Sequence[int]) -> Blocked:
    """Recvs without a send, and sends to a rank that never met the sender: until then the two are
    not connected.

    running  the group without the calls that are held, which do connect the two

    NCCL knows no tags. A gather, scatter or all_to_all of the other rank may have connected the
    two, or feed a recv: then nothing is claimed.
    """
    sent = Counter(
        (source, target) for (source, target, _), calls in running.sends.items() for _ in calls
    )
    recvs: dict[tuple[int, int], list[IssuedCall]] = {}
    for (source, target, _), calls in group.recvs.items():
        recvs.setdefault((source, target), []).extend(calls)
    stuck: list[tuple[IssuedCall, int]] = []
    for (source, target), calls in recvs.items():
        calls.sort(key=lambda call: call.seq)
        stuck += [(call, source) for call in calls[sent[source, target] :]]
    back = {(target, source) for source, target, _ in group.sends}
    for (source, target, _), calls in group.sends.items():
        if target in absent or not {(source, target)} & (back | recvs.keys()):
            stuck += [(call, target) for call in calls]
    blockers = {
        (call.rank, call.seq): (Blocker(peer, None),)
        for call, peer in stuck
        if call.elements != 0 and call.rank not in _partners(group, peer, sends=call.op == Op.RECV)
    }
    if contradicted(blockers, group.of_pairs()):
        return {}
    return blockers


def _partners(group: GroupCalls, rank: int, sends: bool) -> Collection[int]:
    """The ranks that a gather, scatter or all_to_all of `rank` may send to; without `sends`,
    exchange anything with.

    A call that all ranks have completed feeds no recv: its messages met each other, or as many
    others.
    """
    ranks, lanes = group.ranks, group.collectives.values()
    partners: set[int] = set()
    for index, call in enumerate(group.collectives.get(rank, ())):
        if sends and all(index < len(lane) and lane[index].completed for lane in lanes):
            continue
        op = op_of(call.op)
        if op is None or (FACTS[op].pairwise and FACTS[op].rooted and call.root not in ranks):
            return ranks
        if FACTS[op].pairwise:
            root = ranks.index(call.root) if call.root in ranks else 0
            steps_of_it = _steps_to_peers(call, op, ranks.index(rank), len(ranks), root)
            if steps_of_it is None:
                return ranks
            for step in steps_of_it:
                if step.peer is not None and (step.send or not sends):
                    partners.add(ranks[step.peer])
    return partners


def _own_pairs(group: GroupCalls) -> Blocked:
    """Sends and recvs where each pair of ranks has its own communicator, a ring of two positions.

    The first call of each of the two makes it, so a send, too, waits there for the other rank.
    """
    lanes: dict[tuple[int, int], list[IssuedCall]] = {}  # by rank and peer
    for (source, target, _), calls in group.sends.items():
        lanes.setdefault((source, target), []).extend(calls)
    for (source, target, _), calls in group.recvs.items():
        lanes.setdefault((target, source), []).extend(calls)
    blockers: dict[tuple[int, int], tuple[Blocker, ...]] = {}
    for (rank, peer), lane in lanes.items():
        lane.sort(key=lambda call: call.seq)
        opposite = sorted(lanes.get((peer, rank), ()), key=lambda call: call.seq)
        begun, met = (
            [call for call in calls if (call.rank, call.seq) not in group.held]
            for calls in (lane, opposite)
        )
        done = _done_with(group, lane, opposite) if opposite else 0
        if done == len(begun) or any(call.completed for call in begun[done:]):
            continue
        first = begun[done]
        counterparts = [call.seq for call in met if (call.op == Op.SEND) != (first.op == Op.SEND)]
        nth = sum(call.op == first.op for call in begun[:done])
        blockers[rank, first.seq] = (
            Blocker(peer, counterparts[nth] if nth < len(counterparts) else None),
        )
        blockers.update(
            {(rank, call.seq): (Blocker(rank, first.seq),) for call in begun[done + 1 :]}
        )
    return blockers


def _done_with(group: GroupCalls, *lanes: Sequence[IssuedCall]) -> int:
    """How many of the sends and recvs in the first lane that are not held complete, at most, given
    the peer's lane.

    The first send and the first recv of a rank each connect the two: their hosts meet there.
    Whether an empty one does is not known. A host that stands there issues nothing more. If the
    size or protocol of a message is not known, a send counts as long enough for any recv, a recv as
    one line.
    """
    ring, connections, setting = Ring(2, group.setting.warps_apart), Connections(2), group.setting
    calls = [
        [(call, _step(call, 1 - position)) for call in lane] for position, lane in enumerate(lanes)
    ]
    whole = [*map(len, lanes)]
    met = whole.copy()

    def host(position: int) -> Iterator[Word]:
        for index, (_, step) in enumerate(calls[position]):
            met[position] = index
            yield from connections.make(position, [step])
        met[position] = whole[position]

    if all(call.elements for lane in lanes for call in lane):
        _meet(connections, [host(0), host(1)])
    if any(count < many - 1 for count, many in zip(met, whole, strict=True)):
        met = whole
    for position, lane in enumerate(calls):
        for call, step in lane[: met[position]]:
            if (call.rank, call.seq) in group.held:
                continue
            waits = (
                setting.sends_wait and step.send is not None and (call.nbytes or 0) > BUFFERED_BYTES
            )
            # What fits into the buffers is sent at once; a longer message ends when the peer has read it.
            steps = (step, step._replace(send=None, drained=True)) if waits else (step,)
            crossed = (position, 1 - position, step.send is not None) in connections.crossed
            ring.issue(
                position,
                () if call.nbytes == 0 else [part._replace(crossed=crossed) for part in steps],
            )
    return ring.done[0]


def _step(call: IssuedCall, peer: int) -> RingStep:
    """What a send or recv does on the ring."""
    sends, nbytes = call.op == Op.SEND, call.nbytes
    small = nbytes is not None and nbytes <= P2P_LL_BYTES
    if nbytes is not None and small:
        lines = lines_of(nbytes)
    elif sends:
        lines = _MOST_LINES
    else:
        lines = 1
    if sends:
        return RingStep(None, lines, peer)
    return RingStep(lines, None, peer)


def _meet(connections: Connections, hosts: Iterable[Iterator[Word]]) -> None:
    """Run these hosts until each has ended, or waits for one that never tells it."""
    awake = deque(hosts)
    while awake:
        host = awake.popleft()
        word = next(host, None)
        if word is not None:
            connections.waiting[word] = partial(awake.append, host)


P2P_LL_BYTES = 16 * 1024
"""Up to this size *per channel* NCCL sends a message of two ranks by LL: thresholdLL in
addP2pToPlan (src/enqueue.cc, v2.29.7-1). How many channels two ranks have is the machine's: at
least one, so that more is not known.
"""

_MOST_LINES = 1 << 62
