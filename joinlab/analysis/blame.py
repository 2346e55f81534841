"""Who keeps whom waiting, over all process groups: the graph from which the verdict on a hung job names its culprits.

Each rank has, in each group, a first collective that is not complete. It waits there for every member that has not
got as far: one that did not enqueue the call, or whose stream still has an earlier call of the group before it.

    rank 13 ──▶ rank 12      group 74, collective 20537: rank 12 enqueued 20536
    rank 15 ──▶ rank 14      group 42, collective 42819: rank 14 completed 42805

A rank for which others wait, and which waits for none, keeps the job from going on. Ranks that wait for each other in
a circle do so together. All others are innocent as far as the record shows: they wait.

Ranks that stand in one collective with calls that cannot meet, because most of its group issued another op or size
there, keep it from completing, whatever they wait for themselves. Of two ranks the record does not tell which is wrong.

A call that may wait for a rank without a record blames no one: that rank may be the culprit.

Where such a rank stands in a call that its peers have reached but not completed either, the record does not tell which
of them is the one that stands still. Then it is not blamed; `unclear` says who it may be.
A later call of the same rank and group proves nothing, since its stream may never get there; it is not looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

import polars as pl

from joinlab.analysis.wording import group_text, ranks_text, upper
from joinlab.ops import Op
from joinlab.rules.calls import elements_of
from joinlab.timeline import EndKind, Timeline

_PAIRS = (Op.SEND.value, Op.RECV.value)
_NEEDS_ALL = (Op.ALL_REDUCE, Op.ALL_GATHER, Op.REDUCE_SCATTER, Op.ALL_TO_ALL, Op.BARRIER)
"""Collectives that no rank completes without data from every other."""

_ENDED = {
    EndKind.FINISHED: "its program has finished",
    EndKind.RAISED: "it has raised an error",
    EndKind.KILLED: "its process was ended",
}


@dataclass(frozen=True, slots=True)
class Waiting:
    """`rank` waits in a call of `group` for `on`, since `since_ns`.

    number    of the collective in its group, from 1 as the watchdog counts; None for a send or recv
    op        of the call
    enqueued  whether `on` has enqueued the call: then its stream is behind, otherwise its host
    reached   how many collectives of the group `on` has enqueued (completed, where `enqueued`); None for send and recv
    """

    rank: int
    on: int
    group: str
    op: str
    number: int | None
    enqueued: bool
    reached: int | None
    since_ns: int


@dataclass(frozen=True, slots=True)
class Culprit:
    """Ranks that keep others waiting and wait for no other: mostly one, several where they wait for each other.

    waiting  the ranks that wait for them, directly or through others
    reason   one sentence: what the record shows
    """

    ranks: tuple[int, ...]
    waiting: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Blame:
    """Who keeps a job from going on, in the order in which it began. `str` says it in sentences.

    culprits  what to look at, the one whose peers have waited longest first
    innocent  ranks that wait for others
    waits     every edge of the graph
    unclear   sentences about what cannot be told apart, and why
    """

    culprits: tuple[Culprit, ...]
    innocent: tuple[int, ...]
    waits: tuple[Waiting, ...] = field(repr=False, default=())
    unclear: tuple[str, ...] = ()

    @property
    def ranks(self) -> tuple[int, ...]:
        """Every culprit rank, in the order of `culprits`."""
        return tuple(rank for culprit in self.culprits for rank in culprit.ranks)

    def __str__(self) -> str:
        lines = [culprit.reason for culprit in self.culprits]
        if self.culprits and self.innocent:
            plural = "s" if len(self.innocent) == 1 else ""
            lines.append(
                f"{upper(ranks_text(self.innocent))} wait{plural} for them and did nothing wrong that the record shows."
            )
        return "\n".join([*lines, *self.unclear]) or "No rank keeps another waiting."


@dataclass(frozen=True, slots=True)
class _Place:
    """How far one rank has got in one group; `number` and the rest are those of its first incomplete collective."""

    enqueued: int
    completed: int
    op: str = ""
    since_ns: int = 0
    form: str = ""  # of that collective: what must be alike on all members

    @property
    def waits(self) -> bool:
        return self.enqueued > self.completed


def blame(timeline: Timeline) -> Blame:
    """Name the ranks that keep the others of a job waiting, from the Timeline alone.

    joinlab.blame(joinlab.load("dumps/")).ranks         # (12, 14)
    """
    groups = {str(name): tuple(ranks) for name, ranks in timeline.meta.get("groups", {}).items()}
    places = _places(timeline, groups)
    unknown = set(timeline.meta.get("missing_ranks", ()))
    odds = _odd(groups, places, unknown)
    pending = _pending_pairs(timeline)
    waits = tuple(
        sorted(
            [*_collectives(groups, places, unknown), *_held_up(places, odds), *_pairs(pending, unknown)],
            key=lambda one: (one.since_ns, one.rank, one.on),
        )
    )
    after: dict[int, set[int]] = {}
    before: dict[int, set[int]] = {}
    for one in waits:
        after.setdefault(one.rank, set()).add(one.on)
        before.setdefault(one.on, set()).add(one.rank)
    for rank, absent in _unrecorded(pending, groups, places, unknown):
        after.setdefault(rank, set()).add(absent)
    culprits = []
    doubts = []
    wrong = {rank: odd for odd in reversed(odds) for rank in odd.wrong}  # the first one counts
    split = {rank for odd in odds if not odd.usual for rank in odd.here}
    ends = [one for one in _ends_of(after, before) if not (unknown | wrong.keys() | split) & {*one}]
    for ranks in [*((rank,) for rank in sorted(wrong)), *ends]:
        circle = _alone(ranks, after, before)
        inside = {one for one in waits if one.on in circle and one.rank not in circle}
        edges = inside or {one for one in waits if one.on in circle}
        if circle[0] in wrong:
            reason = _reason_of_odd(timeline, circle[0], wrong[circle[0]])
        else:
            first = min(edges, key=lambda one: (one.number is None, one.since_ns, one.rank))  # a collective tells more
            stands = _stands(circle[0], groups, places)
            level = set() if stands or len(circle) > 1 else _level(circle[0], groups, places, unknown) - set(after)
            if level:
                doubts.append(_doubt(timeline, circle[0], level, first))
                continue
            reason = _reason(timeline, circle, first, edges, stands, parted=ranks != circle)
        since = min(one.since_ns for one in edges)
        culprits.append((since, Culprit(circle, _behind(circle, before), reason)))
    if culprits and len({one.rank for one in waits}) == 1 and not any(one.enqueued for one in waits):
        if len(culprits) > 1:
            doubts.append(_doubt_of_one(timeline, waits))
            culprits = []
        elif timeline.world_size - len(unknown) > 2:
            doubts.append(
                f"Only rank {waits[0].rank} waits. If rank {waits[0].on} does not stand still, "
                f"then rank {waits[0].rank} made a call that rank {waits[0].on} does not make."
            )
    named = {rank for _, culprit in culprits for rank in culprit.ranks}
    return Blame(
        tuple(culprit for _, culprit in sorted(culprits, key=lambda one: (one[0], one[1].ranks))),
        tuple(sorted(set(after) - named)),
        waits,
        (*doubts, *_unclear(timeline, groups, places, unknown, waits, odds, pending)),
    )


def _places(timeline: Timeline, groups: Mapping[str, Sequence[int]]) -> dict[tuple[str, int], _Place]:
    """By group and rank: from the calls themselves, and, for calls that the record lost, from meta["progress"]."""
    skipped = timeline.meta.get("skipped", {})
    open_ = pl.col("completed_ns").is_null() & pl.col("error").is_null()
    found = (
        timeline.calls.filter(~pl.col("op").is_in(_PAIRS))
        .group_by("group", "rank", maintain_order=True)
        .agg(
            pl.len().alias("count"),
            open_.arg_max().alias("first"),
            open_.any().alias("waits"),
            pl.col("op").filter(open_).first().alias("op"),
            pl.col("enqueued_ns").filter(open_).first().alias("since"),
            pl.col("dtype").filter(open_).first().alias("dtype"),
            pl.col("shape").filter(open_).first().alias("shape"),
        )
    )
    places = {}
    for group, counts in timeline.meta.get("progress", {}).items():
        for rank, counted in counts.items():
            places[group, rank] = _Place(counted["completed"], counted["completed"])  # what is open stands in the rows
    for group, rank, count, first, waits, op, since, dtype, shape in found.iter_rows():
        before = skipped.get(group, {}).get(rank, 0)
        enqueued = before + count
        completed = before + first if waits else enqueued
        places[group, rank] = _Place(
            enqueued, completed, op or "", since or 0, _form(op, dtype, shape) if waits else ""
        )
    for group, ranks in groups.items():
        for rank in ranks:
            places.setdefault((group, rank), _Place(0, 0))
    return places


def _form(op: str, dtype: str | None, shape: Sequence[Sequence[int]] | None) -> str:
    """What a collective must have in common with the calls that it is to meet, in words."""
    if op not in _NEEDS_ALL or op in (Op.BARRIER, Op.ALL_TO_ALL) or shape is None:  # all-to-all may split as it likes
        return op
    return f"{op} of {elements_of(shape)} elements{f' ({dtype})' if dtype else ''}"


@dataclass(frozen=True, slots=True)
class _Odd:
    """A collective in which ranks stand with calls that cannot meet.

    least  how many collectives of the group are complete there
    forms  by form of the call, the ranks that issued it
    usual  the form that most of the group issued; "" without one
    """

    group: str
    least: int
    forms: Mapping[str, Sequence[int]]
    usual: str

    @property
    def here(self) -> list[int]:
        """The ranks that stand in it."""
        return [rank for ranks in self.forms.values() for rank in ranks]

    @property
    def wrong(self) -> list[int]:
        """The ranks whose call that of most cannot meet; none without a usual one."""
        return (
            [rank for form, ranks in self.forms.items() if form != self.usual for rank in ranks] if self.usual else []
        )


def _odd(
    groups: Mapping[str, Sequence[int]], places: Mapping[tuple[str, int], _Place], unknown: set[int]
) -> list[_Odd]:
    found = []
    for group, ranks in groups.items():
        here = {rank: places[group, rank] for rank in ranks if rank not in unknown}
        least = min((one.completed for one in here.values()), default=0)
        forms: dict[str, list[int]] = {}
        for rank, one in here.items():
            if one.waits and one.completed == least:
                forms.setdefault(one.form, []).append(rank)
        if len(forms) > 1:
            most = max(forms, key=lambda form: len(forms[form]))
            found.append(_Odd(group, least, forms, most if 2 * len(forms[most]) > len(ranks) else ""))
    return found


def _held_up(places: Mapping[tuple[str, int], _Place], odds: Sequence[_Odd]) -> Iterator[Waiting]:
    """The others of a collective wait for the ranks whose call theirs cannot meet; without a usual call, all do."""
    for odd in odds:
        for form, ranks in odd.forms.items():
            if odd.usual in ("", form):
                others = [other for one, some in odd.forms.items() if one != form for other in some]
                for rank, other in product(ranks, others):
                    mine = places[odd.group, rank]
                    yield Waiting(rank, other, odd.group, mine.op, odd.least + 1, True, odd.least, mine.since_ns)


def _reason_of_odd(timeline: Timeline, rank: int, odd: _Odd) -> str:
    mine = next(form for form, ranks in odd.forms.items() if rank in ranks)
    return (
        f"Rank {rank} issued {mine} as collective {odd.least + 1} of group {group_text(timeline.meta, odd.group)}, "
        f"where {ranks_text(odd.forms[odd.usual])} issued {odd.usual}. Look at what it did before: it skipped a call, "
        "made one more, or has other data."
    )


def _unrecorded(
    pending: pl.DataFrame,
    groups: Mapping[str, Sequence[int]],
    places: Mapping[tuple[str, int], _Place],
    unknown: set[int],
) -> Iterator[tuple[int, int]]:
    """Ranks, each with one without a record that it may wait for."""
    for group, ranks in groups.items():
        furthest = max((places[group, rank].completed for rank in ranks if rank not in unknown), default=0)
        for rank in ranks:
            mine = places[group, rank]
            # Where another member completed the call, the absent one has given what is needed for it.
            if rank not in unknown and mine.waits and (mine.completed == furthest or mine.op not in _NEEDS_ALL):
                yield from ((rank, absent) for absent in ranks if absent in unknown)
    if unknown:
        yield from pending.filter(pl.col("peer").is_in(list(unknown))).select("rank", "peer").rows()


def _collectives(
    groups: Mapping[str, Sequence[int]], places: Mapping[tuple[str, int], _Place], unknown: set[int]
) -> Iterator[Waiting]:
    for group, ranks in groups.items():
        for rank in ranks:
            mine = places[group, rank]
            if rank in unknown or not mine.waits:
                continue
            for other in ranks:
                theirs = places[group, other]
                enqueued = theirs.enqueued > mine.completed
                if other == rank or other in unknown or (enqueued and theirs.completed >= mine.completed):
                    continue
                reached = theirs.completed if enqueued else theirs.enqueued
                yield Waiting(rank, other, group, mine.op, mine.completed + 1, enqueued, reached, mine.since_ns)


def _pairs(pending: pl.DataFrame, unknown: set[int]) -> Iterator[Waiting]:
    """A send or recv that is not complete, where the peer has no incomplete call to meet it, or has others before it.

    Only each rank's first one in a group: a communicator carries out its sends and recvs in order.
    """
    counts = {tuple(key): count for *key, count in pending.group_by("group", "rank", "peer", "op").len().iter_rows()}
    first = pending.group_by("group", "rank", maintain_order=True).first()
    heads = {
        (group, rank): (peer, op, since)
        for group, rank, peer, op, since in first.select("group", "rank", "peer", "op", "enqueued_ns").iter_rows()
    }
    for (group, rank), (peer, op, since) in heads.items():
        other = Op.RECV.value if op == Op.SEND else Op.SEND.value
        issued = bool(counts.get((group, peer, rank, other)))
        if peer not in unknown and not (issued and heads[group, peer][:2] == (rank, other)):
            yield Waiting(rank, peer, group, op, None, issued, None, since)


def _pending_pairs(timeline: Timeline) -> pl.DataFrame:
    return timeline.calls.filter(
        pl.col("op").is_in(_PAIRS),
        pl.col("completed_ns").is_null(),
        pl.col("error").is_null(),
        pl.col("peer").is_not_null(),
    )


def _ends_of(after: Mapping[int, set[int]], before: Mapping[int, set[int]]) -> Iterator[tuple[int, ...]]:
    """Ranks where the graph of waiting ends: single ones that wait for none, and circles that wait for none outside."""
    reach = {rank: _closure(rank, after) for rank in {*after, *before}}
    seen: set[int] = set()
    for rank in sorted(reach):
        circle = {rank} | {other for other in reach[rank] if rank in reach.get(other, ())}
        if rank in seen or reach[rank] - circle:
            continue
        seen |= circle
        yield tuple(sorted(circle))


def _closure(start: int, edges: Mapping[int, set[int]]) -> set[int]:
    found: set[int] = set()
    todo = [start]
    while todo:
        new = edges.get(todo.pop(), set()) - found
        found |= new
        todo += new
    return found


def _alone(circle: tuple[int, ...], after: Mapping[int, set[int]], before: Mapping[int, set[int]]) -> tuple[int, ...]:
    """Of three ranks or more that wait for each other, the one that parted from the others, if there is one.

    All others wait for it in one place, and it waits for all of them in another: they agree, and it does not.
    """
    for rank in circle if len(circle) > 2 else ():
        others = set(circle) - {rank}
        if others <= before[rank] & after[rank] and not any(before[one] & others for one in others):
            return (rank,)
    return circle


def _behind(circle: Sequence[int], before: Mapping[int, set[int]]) -> tuple[int, ...]:
    return tuple(sorted(set().union(*(_closure(rank, before) for rank in circle)) - set(circle)))


def _reason(
    timeline: Timeline,
    circle: Sequence[int],
    first: Waiting,
    edges: set[Waiting],
    stands: tuple[str, int, tuple[int, ...]] | None,
    parted: bool,
) -> str:
    where = f"{first.op} of group {group_text(timeline.meta, first.group)}"
    call = (
        where
        if first.number is None
        else f"collective {first.number} ({first.op}) of group {group_text(timeline.meta, first.group)}"
    )
    if len(circle) > 1:
        return f"{upper(ranks_text(circle))} wait for each other, first in {call}."
    (rank,) = circle
    waiting = sorted({one.rank for one in edges})
    who = f"{upper(ranks_text(waiting))} wait{'s' if len(waiting) == 1 else ''} for rank {rank}"
    ended = _ENDED.get(timeline.ends[rank].kind)
    if ended:
        return f"{who} in {call}, but {ended}."
    if parted:
        return (
            f"{who} in {call}, and it waits for them elsewhere. It went another way than they: it skipped a call, "
            "or made one more."
        )
    if stands:
        group, number, others = stands
        return (
            f"{who} in {call}. Its stream stands still in collective {number} of group "
            f"{group_text(timeline.meta, group)}, which {ranks_text(others)} completed, and it waits for no other "
            "rank. Look at its GPU."
        )
    if first.number is None:
        return (
            f"{who} in a {call}, to which it issued no counterpart, and it waits for no other rank. Look at its host."
        )
    if first.enqueued:
        return (
            f"{who} in {call}. It enqueued that call, but it has completed only {first.reached}, and it waits for no "
            "other rank. Look at its GPU."
        )
    return f"{who} in {call}. It stopped after {first.reached}, and it waits for no other rank. Look at its host."


def _level(
    rank: int, groups: Mapping[str, Sequence[int]], places: Mapping[tuple[str, int], _Place], unknown: set[int]
) -> set[int]:
    """Ranks that stand with `rank` in a collective which all of its group have reached and none has completed."""
    found: set[int] = set()
    for group, ranks in groups.items():
        mine = places.get((group, rank))
        if rank in ranks and mine is not None and mine.waits:
            here = [
                other for other in ranks if other not in unknown and places[group, other].completed == mine.completed
            ]
            found |= {other for other in here if places[group, other].waits}
    return found - {rank}


def _doubt(timeline: Timeline, rank: int, level: set[int], first: Waiting) -> str:
    one_of = ", ".join(map(str, sorted(level)))
    return (
        f"Rank {first.rank} waits for rank {rank} in {first.op} of group {group_text(timeline.meta, first.group)}. "
        f"Rank {rank} stands in a call with rank{'' if len(level) == 1 else 's'} {one_of}: "
        "the record does not tell which of them stands still."
    )


def _doubt_of_one(timeline: Timeline, waits: Sequence[Waiting]) -> str:
    """Where one rank waits for several that wait for none."""
    first, others = waits[0], ranks_text(sorted({one.on for one in waits}))
    call = f"{first.op} of group {group_text(timeline.meta, first.group)}"
    return (
        f"Rank {first.rank} alone waits, in {call}, for {others}. "
        "Either they stand still, or it made a call that they do not make: the record does not tell."
    )


def _stands(
    rank: int, groups: Mapping[str, Sequence[int]], places: Mapping[tuple[str, int], _Place]
) -> tuple[str, int, tuple[int, ...]] | None:
    """A collective that `rank` has not completed although others did: its group, number, and those others.

    They could complete it only with what `rank` sent, so its own stream, not a peer, is what keeps it.
    """
    for group, ranks in groups.items():
        mine = places.get((group, rank))
        if rank not in ranks or mine is None or not mine.waits or mine.op not in _NEEDS_ALL:
            continue
        others = tuple(other for other in ranks if places[group, other].completed > mine.completed)
        if others:
            return group, mine.completed + 1, others
    return None


def _unclear(
    timeline: Timeline,
    groups: Mapping[str, Sequence[int]],
    places: Mapping[tuple[str, int], _Place],
    unknown: set[int],
    waits: Sequence[Waiting],
    odds: Sequence[_Odd],
    pending: pl.DataFrame,
) -> Iterator[str]:
    blocked, waited = {one.rank for one in waits}, {one.on for one in waits}
    for rank, absent in sorted({*pending.select("rank", "peer").rows()}) if unknown else ():
        if absent in unknown:
            yield f"Rank {rank} may wait for rank {absent} in a send or recv: there is no record of rank {absent}."
    for group, ranks in groups.items():
        stuck = [rank for rank in ranks if places[group, rank].waits and rank not in unknown]
        absent = sorted(unknown & set(ranks))
        if stuck and absent:
            yield (
                f"{upper(ranks_text(stuck))} may wait for {ranks_text(absent)} in group "
                f"{group_text(timeline.meta, group)}: there is no record of what happened there."
            )
        ops: dict[str, list[int]] = {}
        last = {places[group, rank].completed for rank in stuck}
        named = any(odd.usual for odd in odds if odd.group == group)
        for rank in stuck:
            ops.setdefault(places[group, rank].form, []).append(rank)
        if len({places[group, rank].op for rank in stuck}) == len(ops):  # the op alone tells them apart
            ops = {places[group, those[0]].op: those for those in ops.values()}
        if len(last) == 1 and len(ops) > 1 and not named:
            issued = "; ".join(f"{ranks_text(those)} {op}" for op, those in ops.items())
            call = f"collective {last.pop() + 1} of group {group_text(timeline.meta, group)}"
            yield f"In {call} the ranks issued different calls: {issued}."
            return
    alone = {rank: _stands(rank, groups, places) for _, rank in places if rank not in waited and rank not in blocked}
    for rank, stands in alone.items():
        if stands:
            group, number, others = stands
            yield (
                f"Collective {number} of group {group_text(timeline.meta, group)} is not complete on rank {rank} "
                f"although {ranks_text(others)} completed it: its GPU stands still, or its record is older than theirs."
            )
    standing = {rank for (_, rank), place in places.items() if place.waits} - blocked - waited
    standing -= {rank for rank, stands in alone.items() if stands}
    if standing and waits:
        plural = "s" if len(standing) == 1 else ""
        yield f"{upper(ranks_text(sorted(standing)))} wait{plural} in calls that all peers have reached."
    elif standing:
        yield "Every rank got to the same calls, and none completes: the record does not tell the ranks apart."
