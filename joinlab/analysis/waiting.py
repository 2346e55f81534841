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
path of its peers. Where that decides nothing, too, one of them is to blame, and `either` holds them.

A call that may wait for a rank without a record blames no one: that rank may be the culprit.

Where such a rank stands in a call that its peers have reached but not completed either, the record does not tell which
of them is the one that stands still. Then it is no culprit; `unclear` and `either` say who it may be.
A later call of the same rank and group proves nothing, since its stream may never get there; it is not looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Any

import polars as pl

from joinlab.analysis.reading import read
from joinlab.analysis.strays import Paths, Why
from joinlab.analysis.wording import group_text
from joinlab.backend.calls import elements_of
from joinlab.ops import FACTS, Op
from joinlab.timeline import EndKind, Progress, Timeline, backend_of, derived

_PAIRS = (Op.SEND.value, Op.RECV.value)
_OTHER = dict(zip(_PAIRS, reversed(_PAIRS), strict=True))
_OPEN = pl.col("completed_ns").is_null() & pl.col("error").is_null()
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
    waits     every edge of the graph
    unclear   what cannot be told apart, and why
    either    ranks of which at least one is a culprit, and the record does not tell which
    """

    culprits: tuple[Culprit, ...]
    waits: tuple[Waiting, ...] = field(repr=False, default=())
    unclear: tuple[Why, ...] = ()
    either: tuple[tuple[int, ...], ...] = ()

    @property
    def ranks(self) -> tuple[int, ...]:
        """Every rank that is named alone, in the order of `culprits`."""
        return tuple(culprit.ranks[0] for culprit in self.culprits if len(culprit.ranks) == 1)


@dataclass(frozen=True, slots=True)
class _Place:
    """How far one rank has got in the collectives of a group; `op` and the rest are of the first that is open."""

    enqueued: int
    completed: int
    op: str = ""
    since_ns: int = 0
    started: bool = False  # the GPU has begun it

    @property
    def waits(self) -> bool:
        return self.enqueued > self.completed


@dataclass(frozen=True, slots=True)
class _Pair:
    """A rank's first send or recv in a group that is open; `met`: the peer's first one is its counterpart."""

    peer: int
    op: str
    since_ns: int
    started: bool
    issued: bool  # the peer has issued a counterpart
    met: bool = False


@dataclass(frozen=True, slots=True)
class _Odd:
    """A collective in which ranks stand with calls that cannot meet, or that others completed with another call.

    number  of the collective in its group
    forms   by form of the call, the ranks that issued it
    usual   the form that most of the group issued; "" without one
    """

    group: str
    number: int
    forms: Mapping[str, Sequence[int]]
    usual: str

    @property
    def here(self) -> tuple[int, ...]:
        """The ranks that issued it."""
        return tuple(rank for ranks in self.forms.values() for rank in ranks)

    @property
    def wrong(self) -> dict[int, str]:
        """By rank whose call that of most cannot meet, its form; none without a usual one."""
        others = self.forms.items() if self.usual else ()
        return {rank: form for form, ranks in others if form != self.usual for rank in ranks}


class _Job:
    """The facts about a job that its Timeline holds.

    unknown  ranks without a record
    members  the others of each group
    places   by group and rank, from the `collectives` that took a number
    pairs    the same, of the sends and recvs that are not complete
    absent   pairs of a rank and one without a record to which its open send or recv goes
    """

    def __init__(self, timeline: Timeline) -> None:
        found = read(timeline)
        self.timeline, self.groups, self.ends = timeline, found.groups, timeline.ends
        self.unknown = set(timeline.meta.get("missing_ranks", ()))
        self.members = {name: [one for one in of if one not in self.unknown] for name, of in self.groups.items()}
        calls = timeline.calls.drop("stack", "origin", "value_in", "value_out").with_columns(
            place=pl.Series(found.place)
        )
        pair = pl.Series(found.paired)
        self.collectives = calls.filter(~pair & calls["number"].is_not_null())
        self.places = _places(timeline, self.collectives)
        pending = calls.filter(pair & calls["peer"].is_not_null()).filter(_OPEN)
        self.pairs = _pairs(pending)
        self.absent = sorted({two for two in pending.select("rank", "peer").rows() if two[1] in self.unknown})
        self.odds = [*self._odd()]

    def call(self, group: str, number: int | None, op: str = "") -> dict[str, Any]:
        """A call as plain data."""
        return {"op": op, "number": number, "group": group_text(self.timeline.meta, group)}

    def has_ended(self, rank: int) -> bool:
        return self.ends[rank].kind in (EndKind.FINISHED, EndKind.RAISED, EndKind.KILLED)

    def _odd(self) -> Iterator[_Odd]:
        """In each group the calls of the first collective that is open on some rank, where they cannot all meet."""
        least: dict[str, int] = {}
        for (group, rank), one in self.places.items():
            if one.waits and rank not in self.unknown:
                least[group] = min(one.completed + 1, least.get(group, one.completed + 1))
        forms: dict[str, dict[str, list[int]]] = {}
        calls = self.collectives.filter(pl.col("number").is_in([*least.values()]))
        names = ("rank", "group", "number", "op", "dtype", "shape")
        for rank, group, number, op, dtype, shape in calls.select(names).iter_rows():
            if least.get(group) == number:
                forms.setdefault(group, {}).setdefault(_form(op, dtype, shape), []).append(rank)
        for group, those in forms.items():
            if len(those) > 1:
                most = max(those, key=lambda form: len(those[form]))
                usual = most if 2 * len(those[most]) > len(self.groups[group]) else ""
                yield _Odd(group, least[group], those, usual)

    # ---------------------------------------------------------------- the edges

    def waits(self) -> Iterator[Waiting]:
        """Every edge of the graph."""
        for group, ranks in self.members.items():
            held: dict[object, list[tuple[int, bool]]] = {}  # most ranks of a group wait for the same ones
            for rank in ranks:
                mine = self.places[group, rank]
                if mine.waits:
                    if (mine.completed, mine.started) not in held:
                        held[mine.completed, mine.started] = [*self._behind(group, mine)]
                    for on, enqueued in held[mine.completed, mine.started]:
                        if on != rank:
                            theirs = self.places[group, on]
                            reached = theirs.completed if enqueued else theirs.enqueued
                            number = mine.completed + 1
                            yield Waiting(rank, on, group, mine.op, number, enqueued, reached, mine.since_ns)
        # The others of a collective wait for the ranks whose call theirs cannot meet; without a usual call, all do.
        for odd in self.odds:
            for form, alike in odd.forms.items():
                standing = [rank for rank in alike if self.places[odd.group, rank].completed < odd.number]
                for rank, on in product(standing if odd.usual in ("", form) else (), {*odd.here} - {*alike}):
                    mine = self.places[odd.group, rank]
                    yield Waiting(rank, on, odd.group, mine.op, odd.number, True, odd.number - 1, mine.since_ns)
        for (group, rank), pair in self.pairs.items():
            unstarted = pair.met and pair.started and not self.pairs[group, pair.peer].started
            if pair.peer not in self.unknown and (not pair.met or unstarted):
                yield Waiting(rank, pair.peer, group, pair.op, None, pair.issued, None, pair.since_ns)

    def _behind(self, group: str, mine: _Place) -> Iterator[tuple[int, bool]]:
        """The ranks that have not got as far as one that waits at `mine`, and whether they have enqueued the call."""
        for rank in self.members[group]:
            theirs = self.places[group, rank]
            unstarted = theirs.completed == mine.completed and mine.started and not theirs.started
            if theirs.enqueued <= mine.completed:
                yield rank, False
            elif theirs.completed < mine.completed or unstarted:
                yield rank, True

    def unrecorded(self) -> Iterator[tuple[int, int]]:
        """Ranks, each with one without a record that it may wait for."""
        yield from self.absent
        for group, known in self.members.items():
            furthest = max((self.places[group, rank].completed for rank in known), default=0)
            for rank in known:
                mine = self.places[group, rank]
                # Where another member completed the call, the absent one has given what is needed for it.
                if mine.waits and (mine.completed == furthest or mine.op not in _NEEDS_ALL):
                    yield from ((rank, one) for one in self.groups[group] if one in self.unknown)

    # ---------------------------------------------------------------- who stands where

    @cached_property
    def first(self) -> dict[int, tuple[str, bool]]:
        """By rank the first of its open calls: its group, and whether it is a send or recv."""
        calls = [(pair.since_ns, group, True, rank) for (group, rank), pair in self.pairs.items()]
        calls += [(one.since_ns, group, False, rank) for (group, rank), one in self.places.items() if one.waits]
        return {rank: (group, pair) for _, group, pair, rank in sorted(calls, reverse=True)}

    def level(self, rank: int) -> set[int]:
        """Ranks that stand with `rank` in its first open call."""
        group, is_pair = self.first.get(rank, ("", False))
        if is_pair:
            pair = self.pairs[group, rank]
            return {pair.peer} if pair.met else set()
        here = {other: self.places[group, other] for other in self.members.get(group, ())}
        mine = here.pop(rank, None)
        return {other for other, one in here.items() if mine and one.waits and one.completed == mine.completed}

    def still(self) -> tuple[int, ...]:
        """The ranks of a call that is the first open one of all that take part in it.

        One of them, or what connects them, keeps it from completing. () if there are several such calls, or if all
        ranks take part.
        """
        calls = {
            (call, tuple(sorted((rank, self.pairs[call[0], rank].peer))) if call[1] else self.groups[call[0]])
            for rank, call in self.first.items()
        }
        level = [takers for call, takers in calls if all(self.first.get(rank) == call for rank in takers)]
        return level[0] if len(level) == 1 and len(level[0]) < self.timeline.world_size else ()


@derived
def who_waits(timeline: Timeline) -> WaitGraph:
    """Name the ranks that keep the others of a job waiting, from the Timeline alone.

    who_waits(joinlab.load("dumps/")).ranks         # (12, 14)
    """
    found = _Finding(_Job(timeline))
    found.look()
    either = tuple(sorted({tuple(sorted(one)) for one in found.either}))
    culprits = tuple(culprit for _, culprit in sorted(found.culprits, key=lambda one: (one[0], one[1].ranks)))
    return WaitGraph(culprits, found.waits, (*found.doubts, *found.unclear(either)), either)


class _Finding:
    """The culprits of a graph.

    after, before  by rank: those that it waits for, and that wait for it
    """

    def __init__(self, job: _Job) -> None:
        self.job = job
        self.waits = tuple(sorted(job.waits(), key=lambda one: (one.since_ns, one.rank, one.on)))
        self.after: dict[int, set[int]] = {}
        self.before: dict[int, set[int]] = {}
        for one in self.waits:
            self.after.setdefault(one.rank, set()).add(one.on)
            self.before.setdefault(one.on, set()).add(one.rank)
        for rank, absent in job.unrecorded():
            self.after.setdefault(rank, set()).add(absent)
        reached = {place: one.enqueued for place, one in job.places.items()}
        self.paths = Paths(job.timeline, job.groups, reached, job.unknown)
        self.culprits: list[tuple[int, Culprit]] = []
        self.doubts: list[Why] = []
        self.either: list[tuple[int, ...]] = []

    def look(self) -> None:
        """Fill in `culprits` (each with the time since which others wait for it), `doubts` and `either`."""
        job = self.job
        wrong = {rank: odd for odd in reversed(job.odds) for rank in odd.wrong}  # the first one counts
        open_ = [odd for odd in job.odds if not odd.usual]
        split = {rank for odd in open_ for rank in odd.here}
        told = job.unknown | wrong.keys() | split
        ends = [one for one in self._ends() if not told & {*one}]
        strayed = self.paths.strays(split)
        for ranks in ends:
            if len(self._alone(ranks)) > 1:
                strayed |= self.paths.strays(ranks)
        self.either += [odd.here for odd in open_ if not strayed.keys() & {*odd.here}]
        for rank in sorted({*wrong, *strayed}):
            self._name((rank,), _why_odd(job, rank, wrong[rank]) if rank in wrong else strayed[rank])
        one_waits = len({one.rank for one in self.waits}) == 1 and not any(one.enqueued for one in self.waits)
        for ranks in ends:
            if not strayed.keys() & {*ranks}:
                self._end(ranks)
        if self.culprits and one_waits:
            self._one_waits()
        if not self.culprits and not self.either and not job.unknown and (still := job.still()):
            self.either.append(still)

    def _end(self, ranks: tuple[int, ...]) -> None:
        """Name a rank, or a circle, where the graph ends; or say which ranks cannot be told apart there."""
        circle = self._alone(ranks)
        rank, edges = circle[0], self._edges(circle)
        first = min(edges, key=lambda one: (one.number is None, one.since_ns, one.rank))  # a collective tells more
        if len(circle) > 1:
            self.either.append(circle)
        elif level := self.job.level(rank) - self.after.keys():
            call = self.job.call(first.group, first.number, first.op)
            facts = {"rank": rank, "waiter": first.rank, "call": call, "level": sorted(level)}
            self.doubts.append(Why("one_stands", facts))
            self.either.append((rank, *level))
            return
        self._name(circle, _why(self.job, circle, first, edges, parted=ranks != circle))

    def _name(self, circle: tuple[int, ...], why: Why) -> None:
        since = min((one.since_ns for one in self._edges(circle)), default=0)
        behind = set().union(*(_closure(rank, self.before) for rank in circle)) - {*circle}
        self.culprits.append((since, Culprit(circle, tuple(sorted(behind)), why)))

    def _edges(self, circle: Sequence[int]) -> set[Waiting]:
        inside = {one for one in self.waits if one.on in circle and one.rank not in circle}
        return inside or {one for one in self.waits if one.on in circle}

    def _one_waits(self) -> None:
        """One rank alone waits, for ranks that wait for none: they stand still, or it made a call too many."""
        job, first = self.job, self.waits[0]
        waiter, sinks = first.rank, sorted({one.on for one in self.waits})
        if strays := self.paths.strays({waiter, *sinks}):
            self.culprits = []
            for rank, why in strays.items():
                self._name((rank,), why)
        elif (
            job.timeline.world_size - len(job.unknown) > 2
            and not job.has_ended(sinks[0])
            and (len(sinks) > 1 or not self.paths.behind(sinks[0], waiter))
        ):
            call = job.call(first.group, first.number, first.op)
            self.doubts.append(Why("one_waits", {"rank": waiter, "call": call, "on": sinks}))
            self.either.append((waiter, *sinks))
            self.culprits = []

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

    def _ends(self) -> Iterator[tuple[int, ...]]:
        """Where the graph ends: ranks that wait for none, and circles that wait for none outside."""
        reach = {rank: _closure(rank, self.after) for rank in {*self.after, *self.before}}
        seen: set[int] = set()
        for rank in sorted(reach):
            circle = {rank} | {other for other in reach[rank] if rank in reach.get(other, ())}
            if rank not in seen and not reach[rank] - circle:
                seen |= circle
                yield tuple(sorted(circle))

    def unclear(self, either: Sequence[tuple[int, ...]]) -> Iterator[Why]:
        """What the record does not tell apart."""
        job = self.job
        for rank, one in job.absent:
            yield Why("may_wait", {"ranks": [rank], "absent": [one], "group": ""})
        for group, known in job.members.items():
            stuck, absent = [one for one in known if job.places[group, one].waits], job.unknown & {*job.groups[group]}
            if stuck and absent:
                name = group_text(job.timeline.meta, group)
                yield Why("may_wait", {"ranks": stuck, "absent": sorted(absent), "group": name})
        for odd in job.odds:
            if not odd.usual:
                wrong = sorted(odd.here) if tuple(sorted(odd.here)) in either else []
                forms = {form.partition(" ")[0]: ranks for form, ranks in odd.forms.items()}
                forms = forms if len(forms) == len(odd.forms) else {**odd.forms}  # the op alone may tell them apart
                issued = [[[*ranks], form] for form, ranks in forms.items()]
                call = job.call(odd.group, odd.number)
                yield Why("other_calls", {"call": call, "issued": issued, "wrong": wrong})
                return
        told = {rank for one in self.waits for rank in (one.rank, one.on)}
        standing = {rank for (_, rank), place in job.places.items() if place.waits} - told
        if standing and self.waits:
            yield Why("all_reached", {"ranks": sorted(standing)})
        elif standing and either:
            yield Why("one_of", {"ranks": [*either[0]]})
        elif standing and not job.unknown:
            yield Why("none_apart", {})


def _places(timeline: Timeline, collectives: pl.DataFrame) -> dict[tuple[str, int], _Place]:
    """By group and rank: from the calls themselves, and, for calls that the record lost, from meta["progress"]."""
    reading = read(timeline)
    counts = collectives.group_by("place").agg(pl.col("number").max(), pl.col("number").first().alias("first"))
    heads = {row["place"]: row for row in _first(collectives.filter(_OPEN), "place").iter_rows(named=True)}
    progress: Mapping[str, Mapping[int, Progress]] = timeline.meta.get("progress", {})
    places = {(name, rank): _Place(0, 0) for name, ranks in reading.groups.items() for rank in ranks}
    for group, counted in progress.items():
        for rank, one in counted.items():
            places[group, rank] = _Place(one["completed"], one["completed"])  # what is open stands in the rows
    whole = timeline.calls["completed_ns"].null_count() < timeline.calls.height
    for place, enqueued, first in counts.iter_rows():
        group, rank = reading.names[place // timeline.world_size], place % timeline.world_size
        if (head := heads.get(place)) is None:
            places[group, rank] = _Place(enqueued, enqueued)
            continue
        completed, lost = head["number"] - 1, progress.get(group, {}).get(rank)
        if whole and head["number"] == first and lost:  # a ring may have lost calls which had not completed
            completed = min(completed, lost["completed"])
        started = head["started_ns"] is not None
        places[group, rank] = _Place(enqueued, completed, head["op"], head["enqueued_ns"] or 0, started)
    return places


def _first(calls: pl.DataFrame, *names: str) -> pl.DataFrame:
    """Of calls that are alike in these columns the first."""
    return calls.unique(names, keep="first", maintain_order=True)


def _form(op: str, dtype: str | None, shape: Sequence[Sequence[int]] | None) -> str:
    """What a collective must have in common with the calls that it is to meet, in words."""
    alike = FACTS[op].alike if op in FACTS else ()
    if shape is None or op == Op.BARRIER or not ("shape" in alike or op == Op.ALL_GATHER):
        return op  # all-to-all may split as it likes
    count = elements_of(shape)
    return f"{op} of {count} element{'' if count == 1 else 's'}{f' ({dtype})' if dtype else ''}"


def _pairs(pending: pl.DataFrame) -> dict[tuple[str, int], _Pair]:
    """By group and rank. A communicator carries out its sends and recvs in order, so only the first one counts."""
    issued = set(pending.select("group", "rank", "peer", "op").iter_rows())
    found = {}
    for group, rank, peer, op, since, started in (
        _first(pending, "group", "rank")
        .select("group", "rank", "peer", "op", "enqueued_ns", pl.col("started_ns").is_not_null())
        .iter_rows()
    ):
        found[group, rank] = _Pair(peer, op, since or 0, started, (group, peer, rank, _OTHER[op]) in issued)
    for (group, rank), one in found.items():
        theirs = found.get((group, one.peer))
        if theirs is not None and (theirs.peer, theirs.op) == (rank, _OTHER[one.op]):
            found[group, rank] = replace(one, met=True)
    return found


def _closure(start: int, edges: Mapping[int, set[int]]) -> set[int]:
    found: set[int] = set()
    todo = [start]
    while todo:
        new = edges.get(todo.pop(), set()) - found
        found |= new
        todo += new
    return found


def _why_odd(job: _Job, rank: int, odd: _Odd) -> Why:
    call, most = job.call(odd.group, odd.number), [*odd.forms[odd.usual]]
    return Why("odd_one", {"rank": rank, "issued": odd.wrong[rank], "call": call, "most": most, "usual": odd.usual})


def _why(
    job: _Job,
    circle: Sequence[int],
    first: Waiting,
    edges: set[Waiting],
    parted: bool,
) -> Why:
    """Why a rank, or a circle, keeps others waiting. `first`: the wait that is told."""
    call = job.call(first.group, first.number, first.op)
    facts: dict[str, Any] = {"call": call, "gpu": backend_of(job.timeline.meta, first.group) != "gloo"}
    if len(circle) > 1:
        return Why("circle_of", facts | {"ranks": list(circle)})
    (rank,) = circle
    here = {one.rank for one in edges if (one.group, one.number, one.op) == (first.group, first.number, first.op)}
    others = {one.rank for one in edges} - here
    facts |= {"rank": rank, "waiting": sorted(here), "elsewhere": sorted(others), "reached": first.reached}
    if job.has_ended(rank):
        return Why("ended", facts | {"kind": job.ends[rank].kind.value})
    if parted:
        return Why("parted_from", facts)
    if first.enqueued:
        begun = first.number is not None and first.reached != first.number - 1
        return Why("stream_behind" if begun else "not_begun", facts)
    return Why("no_counterpart" if first.number is None else "stopped", facts)
