"""Who waits for whom, over all process groups: the graph from which the story of a hung job names
its culprits.

In each group a rank waits in its first incomplete collective for every member that has not reached
it: a member that did not enqueue the call, or whose stream still has an earlier call of the group
before it.

    rank 13 ──▶ rank 12      group 74, collective 20537: rank 12 enqueued 20536
    rank 15 ──▶ rank 14      group 42, collective 42819: rank 14 completed 42805

It also waits for a member whose GPU has not begun the call, if the record says that its own GPU
has.

A rank that others wait for, and that waits for none, is a culprit. All others only wait, so the
record shows no mistake of theirs.

Ranks whose call in a collective has another op or size than the calls of most of its group keep it
from completing, whatever they wait for themselves.

If ranks wait for each other in a circle, or no call has a majority, `outliers` finds the rank that
left the path of its peers. If it finds none, `either` has these ranks: at least one of them is to
blame.

A call that may wait for a rank without a record blames no rank: that one may be the culprit.

If such a rank hangs in a call that its peers have reached but not completed either, the record does
not show which of them is stuck. Then it is no culprit; `unclear` and `either` name the candidates.
Later calls of the same rank and group are ignored, since its stream may never get to them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, product

import polars as pl

from joinlab.analysis import reasons
from joinlab.analysis.outliers import Paths
from joinlab.analysis.reading import read
from joinlab.analysis.reasons import Awaited, CallName, Why
from joinlab.analysis.wording import group_text
from joinlab.backend.calls import elements_of
from joinlab.ops import COUNTERPART, FACTS, NEEDS_ALL, Needs
from joinlab.timeline import EndKind, GroupProgress, Timeline, backend_of, derived

_OPEN = pl.col("completed_ns").is_null() & pl.col("error").is_null()


@dataclass(frozen=True, slots=True)
class OpenCall:
    """A rank's first open call in a group: a collective, or a send or recv.

    number   of the collective in its group, from 1 as the watchdog counts; 0 of a send or recv
    started  the GPU has begun it
    peer     the other rank of a send or recv
    issued   the peer has issued a counterpart; met: it is the peer's first open send or recv
    """

    rank: int
    group: str
    op: str
    number: int
    since_ns: int
    started: bool
    peer: int = -1
    issued: bool = False
    met: bool = False


@dataclass(frozen=True, slots=True)
class Waiting:
    """A rank waits in `call` for `on`.

    enqueued  whether `on` has enqueued the call: then its stream is behind, otherwise its host
    reached   how many collectives of the group `on` has enqueued (completed, where `enqueued`); None for send and recv
    """

    call: OpenCall
    on: int
    enqueued: bool
    reached: int | None

    @property
    def rank(self) -> int:
        return self.call.rank


@dataclass(frozen=True, slots=True)
class Culprit:
    """A rank that keeps others waiting; or several that wait for each other, of which one is to
    blame, or all are.

    waiting  the ranks that wait for them, directly or through others
    why      what the record shows
    """

    ranks: tuple[int, ...]
    waiting: tuple[int, ...]
    why: Why


@dataclass(frozen=True, slots=True)
class WaitGraph:
    """The culprits of a hung job, in the order in which others began to wait for them.

    culprits  what to look at, the one whose peers have waited longest first
    waits     every edge of the graph
    unclear   cases that the record leaves open, and why
    either    ranks of which at least one is a culprit, and the record does not show which
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
class _Disagreement:
    """A collective in which some ranks wait with calls that cannot meet, or that others completed
    with another call.

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
        return tuple(chain.from_iterable(self.forms.values()))

    @property
    def wrong(self) -> dict[int, str]:
        """By rank: the form of its call, if the usual call cannot meet it. Empty without a usual
        call."""
        forms = self.forms.items() if self.usual else ()
        return {rank: form for form, ranks in forms if form != self.usual for rank in ranks}


class _JobFacts:
    """The facts about a job that its Timeline holds.

    unknown   ranks without a record
    members   the others of each group
    enqueued  by group and rank: how many `collectives` it has enqueued
    open      by group and rank: its first open collective; pairs: its first open send or recv
    absent    pairs of a rank and one without a record to which its open send or recv goes
    """

    def __init__(self, timeline: Timeline) -> None:
        reading = read(timeline)
        self.timeline, self.groups, self.ends = timeline, reading.groups, timeline.ends
        self.unknown = set(timeline.meta.get("missing_ranks", ()))
        self.members = {
            name: [rank for rank in ranks if rank not in self.unknown]
            for name, ranks in self.groups.items()
        }
        calls = timeline.calls.drop("stack", "origin", "value_in", "value_out").with_columns(
            member=pl.Series(reading.member)
        )
        pair = pl.Series(reading.paired)
        self.collectives = calls.filter(~pair & calls["number"].is_not_null())
        self.enqueued, self.open = _reached(timeline, self.collectives)
        pending = calls.filter(pair & calls["peer"].is_not_null()).filter(_OPEN)
        self.pairs = _pairs(pending)
        self.absent = sorted(
            {two for two in pending.select("rank", "peer").rows() if two[1] in self.unknown}
        )
        self.mismatches = [*self.find_mismatches()]

    def completed(self, group: str, rank: int) -> int:
        """How many collectives of a group a rank has completed."""
        call = self.open.get((group, rank))
        if call is None:
            return self.enqueued[group, rank]
        return call.number - 1

    def named(self, call: OpenCall | _Disagreement) -> CallName:
        """A call as the watchdog names it."""
        op = call.op if isinstance(call, OpenCall) else ""
        return CallName(op, call.number, group_text(self.timeline.meta, call.group))

    def has_ended(self, rank: int) -> bool:
        return self.ends[rank].kind in (EndKind.FINISHED, EndKind.RAISED, EndKind.KILLED)

    def find_mismatches(self) -> Iterator[_Disagreement]:
        """By group: the calls of the first collective open on some rank, if they cannot all
        meet."""
        least: dict[str, int] = {}
        for call in self.open.values():
            least[call.group] = min(call.number, least.get(call.group, call.number))
        forms: dict[str, dict[str, list[int]]] = {}
        calls = self.collectives.filter(pl.col("number").is_in([*least.values()]))
        names = ("rank", "group", "number", "op", "dtype", "shape")
        for rank, group, number, op, dtype, shape in calls.select(names).iter_rows():
            if least.get(group) == number:
                forms.setdefault(group, {}).setdefault(_form(op, dtype, shape), []).append(rank)
        for group, ranks_by_form in forms.items():
            if len(ranks_by_form) > 1:
                commonest = max(ranks_by_form, key=lambda form: len(ranks_by_form[form]))
                if 2 * len(ranks_by_form[commonest]) > len(self.groups[group]):
                    usual = commonest
                else:
                    usual = ""
                yield _Disagreement(group, least[group], ranks_by_form, usual)

    # ---------------- the edges

    def waits(self) -> Iterator[Waiting]:
        """Every edge of the graph."""
        # most ranks of a group wait for the same ones
        waits_of_call: dict[object, list[tuple[int, bool, int]]] = {}
        for call in self.open.values():
            key = call.group, call.number, call.started
            if key not in waits_of_call:
                waits_of_call[key] = [*self._behind(call)]
            for behind in waits_of_call[key]:
                if behind[0] != call.rank:
                    yield Waiting(call, *behind)
        # The others of a collective wait for the ranks whose call theirs cannot meet; without a
        # usual call, all do.
        for mismatch in self.mismatches:
            for form, ranks in mismatch.forms.items():
                for rank, on in product(
                    ranks if mismatch.usual in ("", form) else (), {*mismatch.here} - {*ranks}
                ):
                    call_here = self.open.get((mismatch.group, rank))
                    if call_here is not None and call_here.number == mismatch.number:
                        yield Waiting(call_here, on, True, mismatch.number - 1)
        for call in self.pairs.values():
            unstarted = call.met and call.started and not self.pairs[call.group, call.peer].started
            if call.peer not in self.unknown and (not call.met or unstarted):
                yield Waiting(call, call.peer, call.issued, None)

    def _behind(self, call: OpenCall) -> Iterator[tuple[int, bool, int]]:
        """The ranks that have not got as far as a collective, whether they have enqueued it, and
        how far they are."""
        for rank in self.members[call.group]:
            enqueued, peer_call = self.enqueued[call.group, rank], self.open.get((call.group, rank))
            if enqueued < call.number:
                yield rank, False, enqueued
            elif peer_call is not None and (peer_call.number, peer_call.started) < (
                call.number,
                call.started,
            ):
                yield rank, True, peer_call.number - 1

    def unrecorded(self) -> Iterator[tuple[int, int]]:
        """Ranks, each with one without a record that it may wait for."""
        yield from self.absent
        for group, ranks in self.members.items():
            furthest = max((self.completed(group, rank) for rank in ranks), default=0)
            for call in (self.open[group, rank] for rank in ranks if (group, rank) in self.open):
                # Where another member completed the call, the absent one has given what is needed
                # for it.
                if call.number == furthest + 1 or call.op not in NEEDS_ALL:
                    for rank_without_record in self.groups[group]:
                        if rank_without_record in self.unknown:
                            yield (call.rank, rank_without_record)

    # ---------------- who stands where

    @cached_property
    def first(self) -> dict[int, OpenCall]:
        """By rank the first of its open calls."""
        calls = [*self.open.values(), *self.pairs.values()]
        calls.sort(key=lambda call: (call.since_ns, call.group, not call.number), reverse=True)
        return {call.rank: call for call in calls}

    def level(self, rank: int) -> set[int]:
        """Ranks that wait in the same first open call as `rank`."""
        call = self.first.get(rank)
        if call is None or not call.number:
            if call is not None and call.met:
                return {call.peer}
            return set()
        peer_calls = (
            self.open.get((call.group, peer)) for peer in self.members[call.group] if peer != rank
        )
        return {
            peer_call.rank
            for peer_call in peer_calls
            if peer_call is not None and peer_call.number == call.number
        }

    def still(self) -> tuple[int, ...]:
        """The ranks of a call that is the first open one of all that take part in it.

        One of them, or what connects them, keeps it from completing. () if there are several such
        calls, or if all ranks take part.
        """
        waits_in = {rank: (call.group, not call.number) for rank, call in self.first.items()}
        calls = {
            (
                waits_in[call.rank],
                self.groups[call.group] if call.number else tuple(sorted((call.rank, call.peer))),
            )
            for call in self.first.values()
        }
        level = []
        for wait, takers in calls:
            if all(waits_in.get(rank) == wait for rank in takers):
                level.append(takers)
        if len(level) == 1 and len(level[0]) < self.timeline.world_size:
            return level[0]
        return ()


@derived
def who_waits(timeline: Timeline) -> WaitGraph:
    """Find the ranks that keep the others of a job waiting, from the Timeline alone.

    who_waits(joinlab.load("dumps/")).ranks         # (12, 14)
    """
    finding = _Finding(_JobFacts(timeline))
    finding.look()
    either = tuple(sorted({tuple(sorted(ranks)) for ranks in finding.either}))
    culprits = tuple(
        culprit
        for _, culprit in sorted(finding.culprits, key=lambda entry: (entry[0], entry[1].ranks))
    )
    return WaitGraph(culprits, finding.waits, (*finding.doubts, *finding.unclear(either)), either)


class _Finding:
    """The culprits of a graph.

    after, before  by rank: those that it waits for, and that wait for it
    """

    def __init__(self, job: _JobFacts) -> None:
        self.job = job
        self.waits = tuple(
            sorted(job.waits(), key=lambda wait: (wait.call.since_ns, wait.rank, wait.on))
        )
        self.after: dict[int, set[int]] = {}
        self.before: dict[int, set[int]] = {}
        for entry in self.waits:
            self.after.setdefault(entry.rank, set()).add(entry.on)
            self.before.setdefault(entry.on, set()).add(entry.rank)
        for rank, absent in job.unrecorded():
            self.after.setdefault(rank, set()).add(absent)
        self.paths = Paths(job.timeline, job.groups, job.enqueued, job.unknown)
        self.culprits: list[tuple[int, Culprit]] = []
        self.doubts: list[Why] = []
        self.either: list[tuple[int, ...]] = []

    def look(self) -> None:
        """Fill in `culprits` (each with the time since which others wait for it), `doubts` and
        `either`."""
        job = self.job
        # the first one counts
        wrong = {rank: mismatch for mismatch in reversed(job.mismatches) for rank in mismatch.wrong}
        open_ = [mismatch for mismatch in job.mismatches if not mismatch.usual]
        split = {rank for mismatch in open_ for rank in mismatch.here}
        explained = job.unknown | wrong.keys() | split
        ends = [end for end in self._ends() if not explained & {*end}]
        outliers = self.paths.outliers(split)
        for ranks in ends:
            if len(self._alone(ranks)) > 1:
                outliers |= self.paths.outliers(ranks)
        self.either += [
            mismatch.here for mismatch in open_ if not outliers.keys() & {*mismatch.here}
        ]
        for rank in sorted({*wrong, *outliers}):
            self._name(
                (rank,), _why_mismatch(job, rank, wrong[rank]) if rank in wrong else outliers[rank]
            )
        one_waits = len({wait.rank for wait in self.waits}) == 1 and not any(
            wait.enqueued for wait in self.waits
        )
        for ranks in ends:
            if not outliers.keys() & {*ranks}:
                self._end(ranks)
        if self.culprits and one_waits:
            self._one_waits()
        if not self.culprits and not self.either and not job.unknown and (still := job.still()):
            self.either.append(still)

    def _end(self, ranks: tuple[int, ...]) -> None:
        """Name a rank, or a circle, where the graph ends; or say which ranks cannot be told apart
        there."""
        circle = self._alone(ranks)
        rank, edges = circle[0], self._edges(circle)
        # A collective tells more than a send or recv.
        first = min(edges, key=lambda edge: (not edge.call.number, edge.call.since_ns, edge.rank))
        if len(circle) > 1:
            self.either.append(circle)
        elif level := self.job.level(rank) - self.after.keys():
            call = self.job.named(first.call)
            self.doubts.append(reasons.OneStands(rank, first.rank, call, sorted(level)))
            self.either.append((rank, *level))
            return
        self._name(circle, _why(self.job, circle, first, edges, parted=ranks != circle))

    def _name(self, circle: tuple[int, ...], why: Why) -> None:
        since = min((edge.call.since_ns for edge in self._edges(circle)), default=0)
        behind = set().union(*(_closure(rank, self.before) for rank in circle)) - {*circle}
        self.culprits.append((since, Culprit(circle, tuple(sorted(behind)), why)))

    def _edges(self, circle: Sequence[int]) -> set[Waiting]:
        inside = {wait for wait in self.waits if wait.on in circle and wait.rank not in circle}
        return inside or {wait for wait in self.waits if wait.on in circle}

    def _one_waits(self) -> None:
        """One rank alone waits, for ranks that wait for none: they stand still, or it made a call
        too many."""
        job, first = self.job, self.waits[0]
        waiter, sinks = first.rank, sorted({wait.on for wait in self.waits})
        outliers = self.paths.outliers({waiter, *sinks})
        if outliers:
            self.culprits = []
            for rank, why in outliers.items():
                self._name((rank,), why)
        elif (
            job.timeline.world_size - len(job.unknown) > 2
            and not job.has_ended(sinks[0])
            and (len(sinks) > 1 or not self.paths.behind(sinks[0], waiter))
        ):
            self.doubts.append(reasons.OneWaits(waiter, job.named(first.call), sinks))
            self.either.append((waiter, *sinks))
            self.culprits = []

    def _alone(self, circle: tuple[int, ...]) -> tuple[int, ...]:
        """Of three ranks or more that wait for each other, the one that parted from the others, if
        there is one.

        All others wait for it in one place, and it waits for all of them in another: they agree,
        and it does not.
        """
        before, after = self.before, self.after
        for rank in circle if len(circle) > 2 else ():
            peers = set(circle) - {rank}
            if peers <= before[rank] & after[rank] and not any(
                before[peer] & peers for peer in peers
            ):
                return (rank,)
        return circle

    def _ends(self) -> Iterator[tuple[int, ...]]:
        """The ends of the graph: ranks that wait for none, and circles that wait for no rank
        outside."""
        reach = {rank: _closure(rank, self.after) for rank in {*self.after, *self.before}}
        visited: set[int] = set()
        for rank in sorted(reach):
            circle = {rank} | {reached for reached in reach[rank] if rank in reach.get(reached, ())}
            if rank not in visited and not reach[rank] - circle:
                visited |= circle
                yield tuple(sorted(circle))

    def unclear(self, either: Sequence[tuple[int, ...]]) -> Iterator[Why]:
        """Cases that the record leaves open."""
        job = self.job
        for rank, missing in job.absent:
            yield reasons.MayWait([rank], [missing], "")
        for group, recorded in job.members.items():
            stuck = [member for member in recorded if (group, member) in job.open]
            absent = job.unknown & {*job.groups[group]}
            if stuck and absent:
                name = group_text(job.timeline.meta, group)
                yield reasons.MayWait(stuck, sorted(absent), name)
        for mismatch in job.mismatches:
            if not mismatch.usual:
                if tuple(sorted(mismatch.here)) in either:
                    wrong = sorted(mismatch.here)
                else:
                    wrong = []
                forms = {form.partition(" ")[0]: ranks for form, ranks in mismatch.forms.items()}
                # the ops alone may differ
                if len(forms) != len(mismatch.forms):
                    forms = {**mismatch.forms}
                issued = [(ranks, form) for form, ranks in forms.items()]
                yield reasons.OtherCalls(job.named(mismatch), issued, wrong)
                return
        waiting = {rank for wait in self.waits for rank in (wait.rank, wait.on)}
        standing = {call.rank for call in job.open.values()} - waiting
        if standing and self.waits:
            yield reasons.AllReached(sorted(standing))
        elif standing and either:
            yield reasons.OneOf(either[0])
        elif standing and not job.unknown:
            yield reasons.NoDifference()


_OpenCalls = dict[tuple[str, int], OpenCall]
"""By group and rank."""


def _reached(
    timeline: Timeline, collectives: pl.DataFrame
) -> tuple[dict[tuple[str, int], int], _OpenCalls]:
    """By group and rank how many collectives it has enqueued, and its first open one.

    From the calls themselves, and, for calls that the record lost, from meta["progress"].
    """
    reading = read(timeline)
    counts = collectives.group_by("member").agg(
        pl.col("number").max(), pl.col("number").first().alias("first")
    )
    heads = {}
    for row in _first(collectives.filter(_OPEN), "member").iter_rows(named=True):
        heads[row["member"]] = row
    progress: Mapping[str, Mapping[int, GroupProgress]] = timeline.meta.get("progress", {})
    reached = {(name, rank): 0 for name, ranks in reading.groups.items() for rank in ranks}
    for group, counted in progress.items():
        reached.update(
            ((group, rank), counts_of_rank["completed"]) for rank, counts_of_rank in counted.items()
        )
    open_calls: _OpenCalls = {}
    whole = timeline.calls["completed_ns"].null_count() < timeline.calls.height
    for member, enqueued, first in counts.iter_rows():
        group, rank = reading.names[member // timeline.world_size], member % timeline.world_size
        reached[group, rank] = enqueued
        head = heads.get(member)
        if head is not None:
            number, lost = head["number"], progress.get(group, {}).get(rank)
            # a ring may have lost calls which had not completed
            if whole and number == first and lost:
                number = min(number, lost["completed"] + 1)
            started = head["started_ns"] is not None
            open_calls[group, rank] = OpenCall(
                rank, group, head["op"], number, head["enqueued_ns"] or 0, started
            )
    return reached, open_calls


def _first(calls: pl.DataFrame, *names: str) -> pl.DataFrame:
    """The first of the calls that are equal in these columns."""
    return calls.unique(names, keep="first", maintain_order=True)


def _form(op: str, dtype: str | None, shape: Sequence[Sequence[int]] | None) -> str:
    """The properties that a collective must share with the calls it meets, in words."""
    facts = FACTS.get(op)
    if shape is None or facts is None or not facts.alike:
        return op
    if facts.pairwise and facts.needs is Needs.EVERYONE:  # an all-to-all may split as it likes
        return op
    count = elements_of(shape)
    return f"{op} of {count} element{'' if count == 1 else 's'}{f' ({dtype})' if dtype else ''}"


def _pairs(pending: pl.DataFrame) -> _OpenCalls:
    """A communicator carries out its sends and recvs in order, so only the first one counts."""
    issued = set(pending.select("group", "rank", "peer", "op").iter_rows())
    open_calls = {}
    names = ("rank", "group", "op", "peer", "enqueued_ns", "started_ns")
    for rank, group, op, peer, since, started in (
        _first(pending, "group", "rank").select(names).iter_rows()
    ):
        both = (group, peer, rank, COUNTERPART[op]) in issued
        open_calls[group, rank] = OpenCall(
            rank, group, op, 0, since or 0, started is not None, peer, both
        )
    for key, call in open_calls.items():
        peer_call = open_calls.get((call.group, call.peer))
        if peer_call is not None and (peer_call.peer, peer_call.op) == (
            call.rank,
            COUNTERPART[call.op],
        ):
            open_calls[key] = replace(call, met=True)
    return open_calls


def _closure(start: int, edges: Mapping[int, set[int]]) -> set[int]:
    reached: set[int] = set()
    todo = [start]
    while todo:
        new = edges.get(todo.pop(), set()) - reached
        reached |= new
        todo += new
    return reached


def _why_mismatch(job: _JobFacts, rank: int, mismatch: _Disagreement) -> Why:
    call, usual = job.named(mismatch), mismatch.usual
    return reasons.UnusualCall(rank, mismatch.wrong[rank], call, mismatch.forms[usual], usual)


def _why(
    job: _JobFacts, circle: Sequence[int], first: Waiting, edges: set[Waiting], parted: bool
) -> Why:
    """Why a rank, or a circle, keeps others waiting. `first`: the wait to report."""
    call, reached = first.call, first.reached
    name, gpu = job.named(call), backend_of(job.timeline.meta, call.group) != "gloo"
    if len(circle) > 1:
        return reasons.CircleOf(circle, name, gpu)
    (rank,) = circle
    key = (call.group, call.number, call.op)
    waiting_here = {
        edge.rank for edge in edges if (edge.call.group, edge.call.number, edge.call.op) == key
    }
    elsewhere = {edge.rank for edge in edges} - waiting_here
    facts = (rank, name, gpu, sorted(waiting_here), sorted(elsewhere), reached)
    if job.has_ended(rank):
        return reasons.Ended(*facts, job.ends[rank].how)
    form: type[Awaited] = reasons.Stopped if call.number else reasons.NoCounterpart
    if parted:
        form = reasons.WaitsElsewhere
    elif first.enqueued:
        form = reasons.NotBegun if reached in (None, call.number - 1) else reasons.StreamBehind
    return form(*facts)
