"""Which rank left the common path? Compares each rank's calls, over all its groups, with its peers' and its own past.

In a circle of waiting several ranks wait for each other, and where calls in one place differ, either side may be
wrong. The rank to blame is the one that departs from what it did before, or from what ranks with the same part in the
job do. Peers issue the same calls in the same order, each in its own groups; one may only be further than another:

    rank 2    tensor 7   data 3   all 3      peers
    rank 0    tensor 7   data 3              fits rank 2: it is not as far
    rank 1    tensor 7   all 3               fits neither: it left out data 3

A rank without peers is compared with its own past: a training loop repeats its calls, and a missing one breaks the
order.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from joinlab.analysis.wording import group_text
from joinlab.ops import FACTS, POINT_TO_POINT, Op
from joinlab.rules.calls import elements_of
from joinlab.timeline import Timeline

WINDOW = 600
"""How many of a rank's last calls are looked at: several steps of most jobs."""

MOST_CALLS = 100_000
"""How many calls of all ranks together are read, about a second's worth; at least LEAST_CALLS of each rank."""

LEAST_CALLS = 60

MOST_PEERS = 16
"""How many peers a rank is compared with; more seldom change the outcome."""

Role = tuple[object, ...]
Place = tuple[Role, bool, int]
"""A group's role, whether the call is a send or recv, and its number: among the group's collectives, else its seq."""


class Why(NamedTuple):
    """What a record shows of some ranks: which words it gets (story/forms/kept_waiting.py), and what they need."""

    form: str
    facts: Mapping[str, Any]


class Stray(NamedTuple):
    """A rank that left the common path, and what shows it."""

    rank: int
    why: Why


@dataclass(frozen=True, slots=True)
class _Call:
    """One call of a path. Peers issue one `kind`; its line, and still more its elements, may differ without a fault."""

    place: Place
    group: str
    kind: str
    line: str
    elements: int | None
    peer: int | None

    def form(self, level: int) -> tuple[object, ...]:
        """What is compared: the kind alone, at level 1 the line too, at level 2 the elements too."""
        return (self.kind, self.line, self.elements)[: level + 1]

    @property
    def words(self) -> str:
        return f"{self.kind.partition(' ')[0]}{f' ({self.line})' if self.line else ''}"


@dataclass(frozen=True, slots=True)
class _Path:
    """The last calls of a rank, in its order of issue.

    whole  calls that completed are in it, so that none is left out
    reach  by role and whether sends and recvs are meant: the number that its next call will have
    """

    rank: int
    calls: tuple[_Call, ...]
    whole: bool
    reach: Mapping[tuple[Role, bool], int]
    at: Mapping[Place, int]


class Paths:
    """The paths of a Timeline's ranks, read as they are asked for.

    reached  collectives that each rank has issued, by group and rank
    unknown  ranks without a record
    """

    def __init__(
        self,
        timeline: Timeline,
        groups: Mapping[str, Sequence[int]],
        reached: Mapping[tuple[str, int], int],
        unknown: Collection[int],
    ) -> None:
        self.timeline, self.groups, self.reached = timeline, groups, reached
        self.unknown = set(unknown)
        self._known: dict[int, _Path] = {}
        self._breaks: dict[tuple[int, int], Breaks] = {}  # by rank and level
        self._fit: dict[tuple[int, int, int], bool] = {}  # by two ranks and a level

    def strays(self, suspects: Collection[int]) -> list[Stray]:
        """The ranks among `suspects` that left the common path; [] if nothing decides, or all of them seem to have."""
        known = sorted(set(suspects) - self.unknown)
        if len(known) < 2:
            return []
        suspected = frozenset(known)
        peers = {rank: self._peers(rank, suspected) for rank in known}
        self._read({*known, *(peer for those in peers.values() for peer in those)})
        for level in range(3):
            found = [stray for rank in known if (stray := self._apart(rank, peers[rank], level))]
            if len(found) == 1:
                return found
        for lately in (True, False):
            found = [stray for rank in known if (stray := self._turned(rank, lately))]
            if found:
                return found if len(found) == 1 else []
        return []

    def behind(self, rank: int, other: int) -> bool:
        """Whether a peer of `rank`, not `other`, has issued more calls in some role."""
        peers = [peer for peer in self._peers(rank, ()) if peer != other]
        self._read({rank, *peers})
        mine = self._known[rank].reach
        return any(self._known[peer].reach.get(role, 0) > count for peer in peers for role, count in mine.items())

    # ---------------------------------------------------------------- peers

    @cached_property
    def _roles(self) -> dict[int, dict[str, Role]]:
        """By rank and group, the role of the group: groups whose ranks are equally far apart have the same role.

        The n-th of a rank's groups of one shape has another role than the first.
        """
        words = self.timeline.meta.get("group_names", {})
        shared = [words.get(name, "") for name in self.groups]
        found: dict[int, dict[str, Role]] = {}
        counts: dict[tuple[object, ...], int] = {}
        for name, ranks in self.groups.items():
            word = words.get(name, "")
            shape = (tuple(rank - ranks[0] for rank in ranks), word if shared.count(word) > 1 else "")
            for rank in ranks:
                nth = counts[rank, shape] = counts.get((rank, shape), -1) + 1
                found.setdefault(rank, {})[name] = (*shape, nth)
        return found

    @cached_property
    def _stages(self) -> dict[int, frozenset[tuple[Role, int]]]:
        """By rank, its place in the groups that send and receive: each stage of a pipeline issues its own calls.

        Where calls are lost, a group without a collective may be one of those.
        """
        calls = self.timeline.calls
        pairs = set(calls.filter(pl.col("op").is_in(list(POINT_TO_POINT)))["group"].unique())
        lost = any(any(counts.values()) for counts in self.timeline.meta.get("skipped", {}).values())
        if lost or calls["completed_ns"].null_count() == calls.height:
            pairs |= {name for name, of in self.groups.items() if not any(self.reached[name, rank] for rank in of)}
        roles = {role for names in self._roles.values() for name, role in names.items() if name in pairs}
        return {
            rank: frozenset((role, self.groups[name].index(rank)) for name, role in names.items() if role in roles)
            for rank, names in self._roles.items()
        }

    @cached_property
    def _parts(self) -> dict[object, list[int]]:
        """Ranks with the same part in the job: in groups of the same roles, in the same stage."""
        found: dict[object, list[int]] = {}
        for rank in sorted(self._roles.keys() - self.unknown):
            found.setdefault(self._part(rank), []).append(rank)
        return found

    def _part(self, rank: int) -> object:
        return frozenset(self._roles.get(rank, {}).values()), self._stages.get(rank)

    def _peers(self, rank: int, suspects: Collection[int]) -> list[int]:
        """Up to MOST_PEERS ranks with the same part in the job: suspects first, then those that follow `rank`."""
        alike = self._parts.get(self._part(rank), [])
        later = [other for other in alike if other > rank] + [other for other in alike if other < rank]
        return sorted(later, key=lambda other: other not in suspects)[:MOST_PEERS]

    # ---------------------------------------------------------------- paths

    def _read(self, ranks: set[int]) -> None:
        todo = sorted(ranks - self._known.keys())
        is_pair = pl.col("op").is_in(list(POINT_TO_POINT))
        calls = (
            self.timeline.calls.filter(pl.col("rank").is_in(todo), pl.col("number").is_not_null())
            .with_columns(pair=is_pair)
            .group_by("rank", maintain_order=True)
            .tail(min(WINDOW, max(MOST_CALLS // max(len(todo), 1), LEAST_CALLS)))
        )
        names = ("group", "seq", "op", "dtype", "shape", "peer", "call_site", "root", "completed_ns", "pair", "number")
        for (rank,), rows in calls.partition_by("rank", as_dict=True).items():
            assert isinstance(rank, int)
            roles = self._roles.get(rank, {})
            path = []
            whole = rows["completed_ns"].null_count() < rows.height
            reach = {(role, False): self.reached[name, rank] for name, role in roles.items()}
            for group, seq, op, dtype, shape, peer, line, root, _, pair, number in rows.select(names).iter_rows():
                role = roles.get(group, (group,))
                place = (role, pair, seq if pair else number - 1)
                facts = FACTS.get(op)
                alike = facts.alike if facts else ()
                kind = f"{op} {dtype}" + (f" {root}" if "root" in alike and root is not None else "")
                elements = elements_of(shape) if "shape" in alike or op in _SIZED else None
                if pair:
                    kind += f" {peer - rank}" if peer is not None else ""
                    if whole:
                        reach[role, True] = seq + 1
                path.append(_Call(place, group, kind, line or "", elements, peer))
            at = {call.place: number for number, call in enumerate(path)}
            self._known[rank] = _Path(rank, tuple(path), whole, reach, at)
        for rank in ranks - self._known.keys():
            reach = {(role, False): self.reached[name, rank] for name, role in self._roles.get(rank, {}).items()}
            self._known[rank] = _Path(rank, (), False, reach, {})

    def _apart(self, rank: int, peers: Sequence[int], level: int) -> Stray | None:
        """The rank as a stray, if its path fits those of few peers, while theirs fit each other."""
        mine = self._known[rank]
        against = [peer for peer in peers if not self._fits(rank, peer, level)]
        if 2 * len(against) <= len(peers) or len(against) < 2:
            return None
        model = max(against, key=lambda peer: sum(self._fits(peer, other, level) for other in against))
        against = [peer for peer in against if self._fits(peer, model, level)]
        if 2 * len(against) <= len(peers) or len(against) < 2:
            return None
        call = _difference(mine, self._known[model], level)
        assert call is not None
        where = f"{call.words} of group {group_text(self.timeline.meta, call.group)}"
        return Stray(rank, Why("another_way", {"rank": rank, "against": sorted(against), "where": where}))

    def _fits(self, one: int, other: int, level: int) -> bool:
        key = (min(one, other), max(one, other), level)
        if key not in self._fit:
            self._fit[key] = _difference(self._known[one], self._known[other], level) is None
        return self._fit[key]

    # ---------------------------------------------------------------- the past

    def _turned(self, rank: int, lately: bool) -> Stray | None:
        """The rank as a stray, if it broke the order that it had kept; `lately`: within its last two rounds."""
        calls = self._known[rank].calls
        if not self._known[rank].whole:
            return None
        for level in (1, 2):
            if (rank, level) not in self._breaks:
                self._breaks[rank, level] = _breaks(calls, level)
            at = _last(self._breaks[rank, level], len(calls) if lately else None)
            if at is not None:
                here, (was, expected) = calls[at[0]], (calls[at[0] - 1], calls[at[0] - at[1]])
                facts = {
                    name: f"{one.words} of group {group_text(self.timeline.meta, one.group)}"
                    for name, one in (("was", was), ("expected", expected), ("here", here))
                }
                return Stray(rank, Why("own_order", {"rank": rank, **facts}))
        return None


_SIZED = (Op.ALL_GATHER, Op.REDUCE_SCATTER)


def _difference(mine: _Path, theirs: _Path, level: int) -> _Call | None:
    """The first of my calls that shows that neither path is the beginning of the other; None if one is.

    Compared in roles that both have. A call older than the other's record counts as issued there, without its place.
    """
    shared = mine.reach.keys() & theirs.reach.keys()
    order = -1
    for call in mine.calls:
        other = theirs.at.get(call.place)
        if other is not None:
            if theirs.calls[other].form(level) != call.form(level) or other < order:
                return call
            order = other
    ahead = any(mine.reach[one] > theirs.reach[one] for one in shared)
    behind = any(mine.reach[one] < theirs.reach[one] for one in shared)
    last = mine.calls[-1] if mine.calls else None
    if ahead and behind:
        return _first_beyond(mine, theirs) or last
    if ahead:
        return _late(mine, theirs)
    return last if behind and _late(theirs, mine) else None


def _first_beyond(mine: _Path, theirs: _Path) -> _Call | None:
    return next((call for call in mine.calls if _beyond(call, theirs)), None)


def _beyond(call: _Call, theirs: _Path) -> bool:
    return call.place[2] >= theirs.reach.get(call.place[:2], 1 << 60)


def _late(mine: _Path, theirs: _Path) -> _Call | None:
    """A call that both issued, but that I issued after a call which they did not issue; None without one."""
    further = False
    for call in mine.calls:
        beyond = _beyond(call, theirs)
        if further and not beyond and call.place[:2] in theirs.reach:
            return call
        further |= beyond
    return None


Breaks = Sequence[tuple[int, int]]
"""Places where a repeating sequence stopped repeating, each with its period until then."""


def _last(breaks: Breaks, count: int | None) -> tuple[int, int] | None:
    """The last break; with `count`, the number of calls, only one within the last two rounds."""
    at = [one for one in breaks if count is None or count - one[0] <= 2 * one[1]]
    return at[-1] if at else None


def _breaks(calls: Sequence[_Call], level: int) -> Breaks:
    """Where calls break the order that they had kept.

    a b c  a b c  a b | b c       at 8, of period 3: c was due

    Each place is judged by the period that held longest before it, for a whole round at least, and only where its call
    is of a known kind: a new one begins another part of the program.
    """
    codes: dict[tuple[object, ...], int] = {}
    tokens = np.array(
        [codes.setdefault((call.group, call.peer, *call.form(level)), len(codes)) for call in calls], np.int64
    )
    count = len(tokens)
    best, period = np.zeros(count, np.int64), np.zeros(count, np.int64)  # by place: how long a period held before it
    fits = np.zeros(count, bool)
    places = np.arange(count)
    for one in range(1, count // 2 + 1):
        same = np.zeros(count, bool)
        same[one:] = tokens[one:] == tokens[:-one]
        held = places - np.maximum.accumulate(np.where(~same, places, -1))  # matches up to and with each place
        before = np.concatenate([[0], held[:-1]])
        better = before > best
        best[better], period[better], fits[better] = before[better], one, same[better]
    seen: set[tuple[str, str]] = set()
    known = np.zeros(count, bool)
    for at, call in enumerate(calls):
        kind = (call.group, call.kind.partition(" ")[0])
        known[at] = kind in seen
        seen.add(kind)
    # One call over and over is no order: it may be a part of a longer one.
    broken = np.flatnonzero((best >= period) & (period > 1) & ~fits & known)
    return list(zip(broken.tolist(), period[broken].tolist(), strict=True))
