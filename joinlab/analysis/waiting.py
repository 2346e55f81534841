"""Who waits for whom, over all process groups: the graph from which the story of a hung job names its culprits.

Each rank has, in each group, a first collective that is not complete. It waits there for every member that has not
got as far: one that did not enqueue the call, or whose stream still has an earlier call of the group before it.

    rank 13 ──▶ rank 12      group 74, collective 20537: rank 12 enqueued 20536
    rank 15 ──▶ rank 14      group 42, collective 42819: rank 14 completed 42805

It also waits for a member whose GPU has not begun the call, where its own has and the record says so.

A rank for which others wait, and which waits for none, keeps the job from going on. All others are innocent as far as
the record shows: they wait.

Ranks that stand in one collective with calls that cannot meet, because most of its group issued another op or size
there, keep it from completing, whatever they wait for themselves.

Where ranks wait for each other in a circle, and where no call is that of most, `strays` tells which of them left the
path of its peers, or its own. Where that decides nothing, too, one of them is to blame, and `either` holds them.

A call that may wait for a rank without a record blames no one: that rank may be the culprit.

Where such a rank stands in a call that its peers have reached but not completed either, the record does not tell which
of them is the one that stands still. Then it is no culprit; `unclear` and `either` say who it may be.
A later call of the same rank and group proves nothing, since its stream may never get there; it is not looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import polars as pl

from joinlab.analysis.strays import Paths, Why
from joinlab.analysis.wording import group_text
from joinlab.ops import FACTS, Op
from joinlab.rules.calls import elements_of
from joinlab.timeline import EndKind, Progress, Timeline, backend_of, derived

_PAIRS = (Op.SEND.value, Op.RECV.value)
_NEEDS_ALL = (Op.ALL_REDUCE, Op.ALL_GATHER, Op.REDUCE_SCATTER, Op.ALL_TO_ALL, Op.BARRIER)
"""Collectives that no rank completes without data from every other."""


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
    """A rank that keeps others waiting; or several that wait for each other, of which one is to blame, or all are.

    waiting  the ranks that wait for them, directly or through others
    why      what the record shows
    """

    ranks: tuple[int, ...]
    waiting: tuple[int, ...]
    why: Why


@dataclass(frozen=True, slots=True)
class WaitGraph:
    """Who keeps a job from going on, in the order in which it began.

    culprits  what to look at, the one whose peers have waited longest first
    innocent  ranks that wait for others
    waits     every edge of the graph
    unclear   what cannot be told apart, and why
    either    ranks of which at least one is a culprit, and the record does not tell which
    """

    culprits: tuple[Culprit, ...]
    innocent: tuple[int, ...]
    waits: tuple[Waiting, ...] = field(repr=False, default=())
    unclear: tuple[Why, ...] = ()
    either: tuple[tuple[int, ...], ...] = ()

    @property
    def ranks(self) -> tuple[int, ...]:
        """Every rank that is named alone, in the order of `culprits`."""
        return tuple(culprit.ranks[0] for culprit in self.culprits if len(culprit.ranks) == 1)


@dataclass(frozen=True, slots=True)
class _Place:
    """How far one rank has got in one group; `number` and the rest are those of its first incomplete collective."""

    enqueued: int
    completed: int
    op: str = ""
    since_ns: int = 0
    form: str = ""  # of that collective: what must be alike on all members
    started: bool = False  # the GPU has begun it

    @property
    def waits(self) -> bool:
        return self.enqueued > self.completed


@dataclass(frozen=True, slots=True)
class _Job:
    """The facts about a job that its Timeline holds.

    unknown  ranks without a record
    pending  sends and recvs that are not complete
    """

    timeline: Timeline
    groups: Mapping[str, Sequence[int]]
    places: Mapping[tuple[str, int], _Place]
    unknown: set[int]
    pending: pl.DataFrame
    heads: Mapping[tuple[str, int], _Head]

    @classmethod
    def of(cls, timeline: Timeline) -> _Job:
        groups = {str(name): tuple(ranks) for name, ranks in timeline.meta.get("groups", {}).items()}
        pending = _pending_pairs(timeline)
        unknown = set(timeline.meta.get("missing_ranks", ()))
        return cls(timeline, groups, _places(timeline, groups), unknown, pending, _heads(pending))

    def name(self, group: str) -> str:
        return group_text(self.timeline.meta, group)

    def known(self, ranks: Iterable[int]) -> list[int]:
        return [rank for rank in ranks if rank not in self.unknown]

    @property
    def reached(self) -> dict[tuple[str, int], int]:
        return {place: one.enqueued for place, one in self.places.items()}


@derived
def who_waits(timeline: Timeline) -> WaitGraph:
    """Name the ranks that keep the others of a job waiting, from the Timeline alone.

    who_waits(joinlab.load("dumps/")).ranks         # (12, 14)
    """
    job = _Job.of(timeline)
    odds = _odd(job)
    waits = tuple(
        sorted(
            [*_collectives(job), *_held_up(job, odds), *_pairs(job)],
            key=lambda one: (one.since_ns, one.rank, one.on),
        )
    )
    found = _Finding(job, waits, odds)
    found.look()
    sets = tuple(sorted({tuple(sorted(one)) for one in found.either}))
    named = {rank for _, culprit in found.culprits for rank in culprit.ranks} | {rank for one in sets for rank in one}
    return WaitGraph(
        tuple(culprit for _, culprit in sorted(found.culprits, key=lambda one: (one[0], one[1].ranks))),
        tuple(sorted(set(found.after) - named)),
        waits,
        (*found.doubts, *_unclear(job, waits, odds, sets)),
        sets,
    )


class _Finding:
    """The culprits of a graph.

    after, before  by rank: those that it waits for, and that wait for it
    """

    def __init__(self, job: _Job, waits: Sequence[Waiting], odds: Sequence[_Odd]) -> None:
        self.job, self.waits, self.odds = job, waits, odds
        self.after: dict[int, set[int]] = {}
        self.before: dict[int, set[int]] = {}
        for one in waits:
            self.after.setdefault(one.rank, set()).add(one.on)
            self.before.setdefault(one.on, set()).add(one.rank)
        for rank, absent in _unrecorded(job):
            self.after.setdefault(rank, set()).add(absent)
        self.paths = Paths(job.timeline, job.groups, job.reached, job.unknown)
        self.culprits: list[tuple[int, Culprit]] = []
        self.doubts: list[Why] = []
        self.either: list[tuple[int, ...]] = []

    def look(self) -> None:
        """Fill in `culprits` (each with the time since which others wait for it), `doubts` and `either`."""
        wrong = {rank: odd for odd in reversed(self.odds) for rank in odd.wrong}  # the first one counts
        open_ = [odd for odd in self.odds if not odd.usual]
        split = {rank for odd in open_ for rank in odd.here}
        told = self.job.unknown | wrong.keys() | split
        ends = [one for one in _ends_of(self.after, self.before) if not told & {*one}]
        strays = self.paths.strays(split)
        strays += [stray for ranks in ends if len(self._alone(ranks)) > 1 for stray in self.paths.strays(ranks)]
        strayed = {stray.rank: stray.why for stray in strays if stray.rank not in wrong}
        self.either += [tuple(odd.here) for odd in open_ if not strayed.keys() & {*odd.here}]
        for rank in sorted({*wrong, *strayed}):
            self._name((rank,), strayed.get(rank) or _why_odd(self.job, rank, wrong[rank]))
        one_waits = len({one.rank for one in self.waits}) == 1 and not any(one.enqueued for one in self.waits)
        for ranks in ends:
            if not strayed.keys() & {*ranks}:
                one_waits &= not self._end(ranks)
        if self.culprits and one_waits:
            self._one_waits()
        if not self.culprits and not self.either and not self.job.unknown and (still := _still(self.job)):
            self.either.append(still)

    def _end(self, ranks: tuple[int, ...]) -> bool:
        """Name a rank, or a circle, where the graph ends. Whether its stream is known to stand still."""
        circle = self._alone(ranks)
        edges = self._edges(circle)
        first = min(edges, key=lambda one: (one.number is None, one.since_ns, one.rank))  # a collective tells more
        stands = _stands(self.job, circle[0])
        if len(circle) > 1:
            self.either.append(circle)
        elif not stands and (level := _level(self.job, circle[0]) - set(self.after)):
            self.doubts.append(_doubt(self.job, circle[0], level, first))
            self.either.append((circle[0], *level))
            return False
        self._name(circle, _why(self.job, circle, first, edges, stands, parted=ranks != circle))
        return stands is not None

    def _name(self, circle: tuple[int, ...], why: Why) -> None:
        since = min((one.since_ns for one in self._edges(circle)), default=0)
        self.culprits.append((since, Culprit(circle, self._behind(circle), why)))

    def _edges(self, circle: Sequence[int]) -> set[Waiting]:
        inside = {one for one in self.waits if one.on in circle and one.rank not in circle}
        return inside or {one for one in self.waits if one.on in circle}

    def _one_waits(self) -> None:
        """One rank alone waits, for ranks that wait for none: they stand still, or it made a call too many."""
        waiter, sinks = self.waits[0].rank, sorted({one.on for one in self.waits})
        strays = self.paths.strays({waiter, *sinks})
        if strays:
            self.culprits = []
            self._name((strays[0].rank,), strays[0].why)
        elif len(sinks) > 1 or (_in_line(self.job, sinks[0], waiter) and not self.paths.behind(sinks[0], waiter)):
            self.doubts.append(_doubt_of_one(self.job, self.waits))
            self.either.append((waiter, *sinks))
            self.culprits = []
        elif self.job.timeline.world_size - len(self.job.unknown) > 2 and not _has_ended(self.job, sinks[0]):
            self.doubts.append(Why("one_waits", {"rank": waiter, "on": sinks[0]}))

    def _alone(self, circle: tuple[int, ...]) -> tuple[int, ...]:
        """Of three ranks or more that wait for each other, the one that parted from the others, if there is one.

        All others wait for it in one place, and it waits for all of them in another: they agree, and it does not.
        """
        before, after = self.before, self.after
        for rank in circle if len(circle) > 2 else ():
            others = set(circle) - {rank}
            if others <= before[rank] & after[rank] and not any(before[one] & others for one in others):
                return (rank,)
        return circle

    def _behind(self, circle: Sequence[int]) -> tuple[int, ...]:
        return tuple(sorted(set().union(*(_closure(rank, self.before) for rank in circle)) - set(circle)))


def _places(timeline: Timeline, groups: Mapping[str, Sequence[int]]) -> dict[tuple[str, int], _Place]:
    """By group and rank: from the calls themselves, and, for calls that the record lost, from meta["progress"]."""
    open_ = pl.col("completed_ns").is_null() & pl.col("error").is_null()
    found = (
        timeline.calls.filter(~pl.col("op").is_in(_PAIRS), pl.col("number").is_not_null())
        .group_by("group", "rank", maintain_order=True)
        .agg(
            pl.col("number").max().alias("enqueued"),
            pl.col("number").filter(open_).first().alias("number"),
            pl.col("number").first().alias("first"),
            open_.any().alias("waits"),
            pl.col("op").filter(open_).first().alias("op"),
            pl.col("enqueued_ns").filter(open_).first().alias("since"),
            pl.col("dtype").filter(open_).first().alias("dtype"),
            pl.col("shape").filter(open_).first().alias("shape"),
            pl.col("started_ns").filter(open_).first().is_not_null().alias("started"),
        )
    )
    places = {}
    progress: Mapping[str, Mapping[int, Progress]] = timeline.meta.get("progress", {})
    whole = timeline.calls["completed_ns"].null_count() < timeline.calls.height
    for group, counts in progress.items():
        for rank, counted in counts.items():
            places[group, rank] = _Place(counted["completed"], counted["completed"])  # what is open stands in the rows
    for group, rank, enqueued, number, first, waits, op, since, dtype, shape, started in found.iter_rows():
        completed = number - 1 if waits else enqueued
        form = _form(op, dtype, shape) if waits else ""
        lost = progress.get(group, {}).get(rank)
        if whole and waits and number == first and lost and lost["completed"] < completed:
            completed, form = lost["completed"], ""  # a ring that lost calls which had not completed
        places[group, rank] = _Place(enqueued, completed, op or "", since or 0, form, started)
    for group, ranks in groups.items():
        for rank in ranks:
            places.setdefault((group, rank), _Place(0, 0))
    return places


def _form(op: str, dtype: str | None, shape: Sequence[Sequence[int]] | None) -> str:
    """What a collective must have in common with the calls that it is to meet, in words."""
    alike = FACTS[op].alike if op in FACTS else ()
    if shape is None or op == Op.BARRIER or not ("shape" in alike or op == Op.ALL_GATHER):
        return op  # all-to-all may split as it likes
    count = elements_of(shape)
    return f"{op} of {count} element{'' if count == 1 else 's'}{f' ({dtype})' if dtype else ''}"


@dataclass(frozen=True, slots=True)
class _Odd:
    """A collective in which ranks stand with calls that cannot meet, or that others completed with another call.

    least  how many collectives of the group are complete on the ranks that stand there
    forms  by form of the call, the ranks that issued it
    usual  the form that most of the group issued; "" without one
    """

    group: str
    least: int
    forms: Mapping[str, Sequence[int]]
    usual: str

    @property
    def here(self) -> list[int]:
        """The ranks that issued it."""
        return [rank for ranks in self.forms.values() for rank in ranks]

    @property
    def wrong(self) -> list[int]:
        """The ranks whose call that of most cannot meet; none without a usual one."""
        return (
            [rank for form, ranks in self.forms.items() if form != self.usual for rank in ranks] if self.usual else []
        )


def _odd(job: _Job) -> list[_Odd]:
    found = []
    for group, ranks in job.groups.items():
        here = {rank: job.places[group, rank] for rank in ranks if rank not in job.unknown}
        least = min((one.completed for one in here.values()), default=0)
        forms: dict[str, list[int]] = {}
        for rank, one in here.items():
            if one.waits and one.form and one.completed == least:
                forms.setdefault(one.form, []).append(rank)
        passed = [rank for rank, one in here.items() if one.completed > least]
        for rank, form in _forms_at(job, group, least, passed) if forms and passed else ():
            forms.setdefault(form, []).append(rank)
        if len(forms) > 1:
            most = max(forms, key=lambda form: len(forms[form]))
            found.append(_Odd(group, least, forms, most if 2 * len(forms[most]) > len(ranks) else ""))
    return found


def _forms_at(job: _Job, group: str, place: int, ranks: Sequence[int]) -> Iterator[tuple[int, str]]:
    """The call that each of `ranks` issued after `place` collectives of a group, as far as the record holds it."""
    calls = job.timeline.calls.filter(
        pl.col("group") == group,
        pl.col("rank").is_in(list(ranks)),
        ~pl.col("op").is_in(_PAIRS),
        pl.col("number") == place + 1,
    )
    for rank, op, dtype, shape in calls.select("rank", "op", "dtype", "shape").iter_rows():
        yield rank, _form(op, dtype, shape)


def _held_up(job: _Job, odds: Sequence[_Odd]) -> Iterator[Waiting]:
    """The others of a collective wait for the ranks whose call theirs cannot meet; without a usual call, all do."""
    for odd in odds:
        for form, ranks in odd.forms.items():
            if odd.usual in ("", form):
                others = [other for one, some in odd.forms.items() if one != form for other in some]
                for rank, other in product(ranks, others):
                    mine = job.places[odd.group, rank]
                    if mine.completed > odd.least:
                        continue  # it has completed this call
                    yield Waiting(rank, other, odd.group, mine.op, odd.least + 1, True, odd.least, mine.since_ns)


def _why_odd(job: _Job, rank: int, odd: _Odd) -> Why:
    mine = next(form for form, ranks in odd.forms.items() if rank in ranks)
    call = {"number": odd.least + 1, "group": job.name(odd.group)}
    most = list(odd.forms[odd.usual])
    return Why("odd_one", {"rank": rank, "issued": mine, "call": call, "most": most, "usual": odd.usual})


def _unrecorded(job: _Job) -> Iterator[tuple[int, int]]:
    """Ranks, each with one without a record that it may wait for."""
    for group, ranks in job.groups.items():
        furthest = max((job.places[group, rank].completed for rank in ranks if rank not in job.unknown), default=0)
        for rank in ranks:
            mine = job.places[group, rank]
            # Where another member completed the call, the absent one has given what is needed for it.
            if rank not in job.unknown and mine.waits and (mine.completed == furthest or mine.op not in _NEEDS_ALL):
                yield from ((rank, absent) for absent in ranks if absent in job.unknown)
    if job.unknown:
        yield from job.pending.filter(pl.col("peer").is_in(list(job.unknown))).select("rank", "peer").rows()


def _collectives(job: _Job) -> Iterator[Waiting]:
    for group, ranks in job.groups.items():
        known = job.known(ranks)
        held: dict[tuple[int, bool], list[tuple[int, bool]]] = {}  # most ranks of a group wait for the same ones
        for rank in known:
            mine = job.places[group, rank]
            if not mine.waits:
                continue
            if (mine.completed, mine.started) not in held:
                held[mine.completed, mine.started] = list(_behind(mine, {one: job.places[group, one] for one in known}))
            for other, enqueued in held[mine.completed, mine.started]:
                if other != rank:
                    theirs = job.places[group, other]
                    reached = theirs.completed if enqueued else theirs.enqueued
                    yield Waiting(rank, other, group, mine.op, mine.completed + 1, enqueued, reached, mine.since_ns)


def _behind(mine: _Place, places: Mapping[int, _Place]) -> Iterator[tuple[int, bool]]:
    """The ranks that have not got as far as one that waits at `mine`, and whether they have enqueued the call."""
    for rank, theirs in places.items():
        unstarted = theirs.completed == mine.completed and mine.started and not theirs.started
        if theirs.enqueued <= mine.completed:
            yield rank, False
        elif theirs.completed < mine.completed or unstarted:
            yield rank, True


@dataclass(frozen=True, slots=True)
class _Head:
    """A rank's first send or recv in a group that is not complete; `met`: the peer's first one is its counterpart."""

    peer: int
    op: str
    since_ns: int
    started: bool
    issued: bool  # the peer has issued a counterpart
    met: bool = False


def _heads(pending: pl.DataFrame) -> dict[tuple[str, int], _Head]:
    """By group and rank. A communicator carries out its sends and recvs in order, so only the first one counts."""
    counts = {tuple(key) for *key, _ in pending.group_by("group", "rank", "peer", "op").len().iter_rows()}
    first = pending.group_by("group", "rank", maintain_order=True).first()
    found = {}
    for group, rank, peer, op, since, started in first.select(
        "group", "rank", "peer", "op", "enqueued_ns", pl.col("started_ns").is_not_null()
    ).iter_rows():
        found[group, rank] = _Head(peer, op, since, started, (group, peer, rank, _OTHER[op]) in counts)
    for (group, rank), one in found.items():
        theirs = found.get((group, one.peer))
        if theirs is not None and (theirs.peer, theirs.op) == (rank, _OTHER[one.op]):
            found[group, rank] = replace(one, met=True)
    return found


_OTHER = {Op.SEND.value: Op.RECV.value, Op.RECV.value: Op.SEND.value}


def _pairs(job: _Job) -> Iterator[Waiting]:
    """A send or recv that is not complete, where the peer has no such call to meet it, or has others before it."""
    for (group, rank), one in job.heads.items():
        unstarted = one.met and one.started and not job.heads[group, one.peer].started
        if one.peer not in job.unknown and (not one.met or unstarted):
            yield Waiting(rank, one.peer, group, one.op, None, one.issued, None, one.since_ns)


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


def _has_ended(job: _Job, rank: int) -> bool:
    return job.timeline.ends[rank].kind in (EndKind.FINISHED, EndKind.RAISED, EndKind.KILLED)


def _call(job: _Job, one: Waiting) -> dict[str, Any]:
    """The call in which a rank waits, as plain data."""
    return {"op": one.op, "number": one.number, "group": job.name(one.group)}


def _why(
    job: _Job,
    circle: Sequence[int],
    first: Waiting,
    edges: set[Waiting],
    stands: tuple[str, int, tuple[int, ...]] | None,
    parted: bool,
) -> Why:
    """Why a rank, or a circle, keeps others waiting. `first`: the wait that is told."""
    facts: dict[str, Any] = {"call": _call(job, first), "gpu": backend_of(job.timeline.meta, first.group) != "gloo"}
    if len(circle) > 1:
        return Why("circle_of", facts | {"ranks": list(circle)})
    (rank,) = circle
    here = {one.rank for one in edges if (one.group, one.number, one.op) == (first.group, first.number, first.op)}
    others = {one.rank for one in edges} - here
    facts |= {"rank": rank, "waiting": sorted(here), "elsewhere": sorted(others), "reached": first.reached}
    if _has_ended(job, rank):
        return Why("ended", facts | {"kind": job.timeline.ends[rank].kind.value})
    if parted:
        return Why("parted_from", facts)
    if stands:
        group, number, passed = stands
        facts |= {"in": {"number": number, "group": job.name(group)}, "passed": list(passed)}
        return Why("stream_stands", facts)
    if first.number is None:
        return Why("not_begun" if first.enqueued else "no_counterpart", facts)
    if first.enqueued:
        return Why("not_begun" if first.reached == first.number - 1 else "stream_behind", facts)
    return Why("stopped", facts)


def _level(job: _Job, rank: int) -> set[int]:
    """Ranks that stand with `rank` in its first open call, which all that take part have reached and none completed."""
    calls = [(one.since_ns, {one.peer}) for (_, of), one in job.heads.items() if of == rank and one.met]
    for group, ranks in job.groups.items():
        mine = job.places.get((group, rank))
        if rank in ranks and mine is not None and mine.waits:
            places = {other: job.places[group, other] for other in job.known(ranks)}
            here = {other for other, one in places.items() if one.waits and one.completed == mine.completed}
            calls += [(mine.since_ns, here - {rank})]
    return min(calls, key=lambda call: call[0], default=(0, set()))[1]


def _still(job: _Job) -> tuple[int, ...]:
    """The ranks of a call that is the first open one of all that take part in it.

    One of them, or what connects them, keeps it from completing. () if there are several such calls, or if all
    ranks take part.
    """
    heads = {rank: (one.since_ns, group, True) for (group, rank), one in job.heads.items()}
    for (group, rank), place in job.places.items():
        if place.waits:
            heads[rank] = min(heads.get(rank, (place.since_ns, group, False)), (place.since_ns, group, False))
    calls = {
        (group, pair, tuple(sorted((rank, job.heads[group, rank].peer) if pair else job.groups[group])))
        for rank, (_, group, pair) in heads.items()
    }
    level = [
        ranks
        for group, pair, ranks in calls
        if {heads[one][1:] if one in heads else None for one in ranks} == {(group, pair)}
    ]
    everyone = len(level) == 1 and len(level[0]) == job.timeline.world_size
    return level[0] if len(level) == 1 and not everyone else ()


def _doubt(job: _Job, rank: int, level: set[int], first: Waiting) -> Why:
    return Why("one_stands", {"rank": rank, "waiter": first.rank, "call": _call(job, first), "level": sorted(level)})


def _in_line(job: _Job, rank: int, waiter: int) -> bool:
    """Whether `rank` has got as far as all who share a group with it, but for `waiter`: it is not behind."""
    shared = [
        (job.places[group, rank].enqueued, {job.places[group, other].enqueued for other in job.known(ranks)})
        for group, ranks in job.groups.items()
        if rank in ranks and {*ranks} - job.unknown - {rank, waiter}
    ]
    return any(mine for mine, _ in shared) and all(theirs == {mine} for mine, theirs in shared)


def _doubt_of_one(job: _Job, waits: Sequence[Waiting]) -> Why:
    """Where one rank waits for several that wait for none."""
    on = sorted({one.on for one in waits})
    return Why("one_waits_for_all", {"rank": waits[0].rank, "call": _call(job, waits[0]), "on": on})


def _stands(job: _Job, rank: int) -> tuple[str, int, tuple[int, ...]] | None:
    """A collective that `rank` has not completed although others did: its group, number, and those others.

    They could complete it only with what `rank` sent, so its own stream, not a peer, is what keeps it.
    """
    for group, ranks in job.groups.items():
        mine = job.places.get((group, rank))
        if rank not in ranks or mine is None or not mine.waits or mine.op not in _NEEDS_ALL:
            continue
        others = tuple(other for other in ranks if job.places[group, other].completed > mine.completed)
        if others:
            return group, mine.completed + 1, others
    return None


def _unclear(
    job: _Job, waits: Sequence[Waiting], odds: Sequence[_Odd], either: Sequence[tuple[int, ...]]
) -> Iterator[Why]:
    blocked, waited = {one.rank for one in waits}, {one.on for one in waits}
    for rank, absent in sorted({*job.pending.select("rank", "peer").rows()}) if job.unknown else ():
        if absent in job.unknown:
            yield Why("may_wait", {"ranks": [rank], "absent": [absent], "group": ""})
    for group, ranks in job.groups.items():
        stuck = [rank for rank in ranks if job.places[group, rank].waits and rank not in job.unknown]
        absent = sorted(job.unknown & set(ranks))
        if stuck and absent:
            yield Why("may_wait", {"ranks": stuck, "absent": absent, "group": job.name(group)})
        odd = next((odd for odd in odds if odd.group == group), None)
        last = {job.places[group, rank].completed for rank in stuck}
        ops: dict[str, list[int]] = {}
        for rank in stuck:
            if job.places[group, rank].form:  # else the record lost the call
                ops.setdefault(job.places[group, rank].form, []).append(rank)
        if odd is not None and not odd.usual:
            last, ops = {odd.least}, {form: [*ranks] for form, ranks in odd.forms.items()}
        if len({form.partition(" ")[0] for form in ops}) == len(ops):  # the op alone tells them apart
            ops = {form.partition(" ")[0]: those for form, those in ops.items()}
        named = odd is not None and odd.usual
        if len(last) == 1 and len(ops) > 1 and not named:
            here = sorted(rank for those in ops.values() for rank in those)
            call = {"number": last.pop() + 1, "group": job.name(group)}
            issued = [[list(those), op] for op, those in ops.items()]
            yield Why("other_calls", {"call": call, "issued": issued, "wrong": here if tuple(here) in either else []})
            return
    alone = {rank: _stands(job, rank) for _, rank in job.places if rank not in waited and rank not in blocked}
    for rank, stands in alone.items():
        if stands:
            group, number, others = stands
            call = {"number": number, "group": job.name(group)}
            yield Why("not_complete", {"rank": rank, "call": call, "others": list(others)})
    standing = {rank for (_, rank), place in job.places.items() if place.waits} - blocked - waited
    standing -= {rank for rank, stands in alone.items() if stands}
    if standing and waits:
        yield Why("all_reached", {"ranks": sorted(standing)})
    elif standing and either:
        yield Why("one_of", {"ranks": list(either[0])})
    elif standing:
        yield Why("none_apart", {})
