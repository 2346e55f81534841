"""Which rank left the common path? Compares each rank's calls, over all its groups, with its
peers'.

If several ranks wait for each other in a circle, or if calls at one place differ, any of the ranks
may be wrong. The rank to blame is the one whose calls differ from its peers', the ranks with the
same part in the job. Peers issue the same calls in the same order, each in its own groups; one may
only be further than another:

    rank 2    tensor 7   data 3   all 3      peers
    rank 0    tensor 7   data 3              fits rank 2: it is not as far
    rank 1    tensor 7   all 3               fits neither: it left out data 3"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import NamedTuple

import polars as pl

from joinlab.analysis.reasons import OtherPath, Why
from joinlab.analysis.wording import group_text
from joinlab.backend.calls import elements_of
from joinlab.ops import FACTS, POINT_TO_POINT, Op
from joinlab.timeline import Timeline

WINDOW = 600
"""Number of last calls compared per rank: several steps of most jobs."""

MOST_CALLS = 100_000
"""Most calls to read of all ranks together, which takes about a second; but at least LEAST_CALLS
per rank."""

LEAST_CALLS = 60

MOST_PEERS = 16
"""Number of peers to compare a rank with; more seldom change the outcome."""

Role = tuple[object, ...]
Position = tuple[Role, bool, int]
"""A group's role, whether the call is a send or recv, and its number: among the group's
collectives, else its seq."""


class _PathCall(NamedTuple):
    """The `at`-th call of a path. `form`: what peers' calls have in common, its kind, line and
    elements."""

    at: int
    group: str
    form: tuple[str, str, int | None]


class _Path(NamedTuple):
    """The last calls of a rank, in its order of issue.

    reach  by role and whether sends and recvs are meant: the number that its next call will have
    """

    calls: dict[Position, _PathCall]
    reach: dict[tuple[Role, bool], int]

    def lacks(self, position: Position) -> bool:
        """Whether the rank has not come to a call."""
        return position[2] >= self.reach.get(position[:2], 1 << 60)


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
        self._fit: dict[frozenset[int], bool] = {}

    def outliers(self, suspects: Collection[int]) -> dict[int, Why]:
        """The one among `suspects` that left the common path, with the evidence; {} if
        undecided."""
        recorded = sorted(set(suspects) - self.unknown)
        if len(recorded) < 2:
            return {}
        peers = {rank: self._peers(rank, recorded) for rank in recorded}
        self._read({*recorded, *chain.from_iterable(peers.values())})
        evidence_of = {rank: self._evidence(rank, peers[rank]) for rank in recorded}
        reasons = {rank: evidence for rank, evidence in evidence_of.items() if evidence}
        # Of a rank and its only peer either may be wrong: this one, where the other suspects do as
        # their peers do.
        lone = [rank for rank in reasons if len(peers[rank]) == 1]
        if len(reasons) != 1 or (
            lone and (not all(peers.values()) or {*recorded} & {*peers[lone[0]]})
        ):
            return {}
        return reasons

    def behind(self, rank: int, culprit: int) -> bool:
        """Whether a peer of `rank`, not `culprit`, has issued a call in some role that `rank` has not
        come to."""
        peers = [peer for peer in self._peers(rank, ()) if peer != culprit]
        self._read({rank, *peers})
        reach = self._known[rank].reach
        return any(
            self._known[peer].reach.get(role, 0) > count
            for peer in peers
            for role, count in reach.items()
        )

    # ---------------- peers

    @cached_property
    def _roles(self) -> dict[int, dict[str, Role]]:
        """By rank and group, the role of the group: groups whose ranks are equally far apart have
        the same role.

        The n-th of a rank's groups of one shape has another role than the first.
        """
        descriptions = self.timeline.meta.get("group_names", {})
        shared = [descriptions.get(name, "") for name in self.groups]
        roles: dict[int, dict[str, Role]] = {}
        counts: dict[tuple[object, ...], int] = {}
        for name, ranks in self.groups.items():
            word = descriptions.get(name, "")
            shape = (
                tuple(rank - ranks[0] for rank in ranks),
                word if shared.count(word) > 1 else "",
            )
            for rank in ranks:
                nth = counts[rank, shape] = counts.get((rank, shape), -1) + 1
                roles.setdefault(rank, {})[name] = (*shape, nth)
        return roles

    @cached_property
    def _parts(self) -> dict[int, object]:
        """By rank its part in the job: the roles of its groups, and its place in those that send
        and receive.

        Each stage of a pipeline issues its own calls.
        """
        calls = self.timeline.calls
        pairs = set(calls.filter(pl.col("op").is_in([*POINT_TO_POINT]))["group"].unique())
        stages = set()
        for names in self._roles.values():
            stages |= {role for name, role in names.items() if name in pairs}
        roles: dict[int, object] = {}
        for rank, names in sorted(self._roles.items()):
            if rank not in self.unknown:
                roles[rank] = frozenset(
                    (role, self.groups[name].index(rank) if role in stages else None)
                    for name, role in names.items()
                )
        return roles

    def _peers(self, rank: int, suspects: Collection[int]) -> list[int]:
        """Up to MOST_PEERS ranks with the same part in the job: suspects first, then those that
        follow `rank`."""
        peers = []
        for peer, part in self._parts.items():
            if part == self._parts.get(rank) and peer != rank:
                peers.append(peer)
        return sorted(peers, key=lambda candidate: (candidate not in suspects, candidate < rank))[
            :MOST_PEERS
        ]

    # ---------------- paths

    def _read(self, ranks: set[int]) -> None:
        todo = sorted(ranks - self._known.keys())
        calls = (
            self.timeline.calls.filter(pl.col("rank").is_in(todo), pl.col("number").is_not_null())
            .group_by("rank", maintain_order=True)
            .tail(min(WINDOW, max(MOST_CALLS // max(len(todo), 1), LEAST_CALLS)))
        )
        of_rank = calls.partition_by("rank", as_dict=True)
        names = ("group", "seq", "op", "dtype", "shape", "peer", "call_site", "root", "number")
        for rank in todo:
            roles, rows = self._roles.get(rank, {}), of_rank.get((rank,), calls.clear())
            path = _Path(
                {}, {(role, False): self.reached[name, rank] for name, role in roles.items()}
            )
            # with completed calls: none is left out
            whole = rows["completed_ns"].null_count() < rows.height
            for group, seq, op, dtype, shape, peer, line, root, number in rows.select(
                names
            ).iter_rows():
                role, pair = roles.get(group, (group,)), op in POINT_TO_POINT
                fields = FACTS[op].alike if op in FACTS else ()
                kind = f"{op} {dtype}" + (
                    f" {root}" if "root" in fields and root is not None else ""
                )
                if pair:
                    kind += f" {peer - rank}" if peer is not None else ""
                    if whole:
                        path.reach[role, True] = seq + 1
                if "shape" in fields or op in _SIZED:
                    elements = elements_of(shape)
                else:
                    elements = None
                call = _PathCall(len(path.calls), group, (kind, line or "", elements))
                path.calls[role, pair, seq if pair else number - 1] = call
            self._known[rank] = path

    def _evidence(self, rank: int, peers: Sequence[int]) -> Why | None:
        """Evidence that the path of a rank fits those of few peers, while theirs fit each other."""
        against = [peer for peer in peers if not self._fits(rank, peer)]
        model = max(
            against,
            key=lambda peer: sum(self._fits(peer, member) for member in against),
            default=rank,
        )
        against = [peer for peer in against if self._fits(peer, model)]
        if 2 * len(against) <= len(peers):
            return None
        call = _difference(self._known[rank], self._known[model])
        assert call is not None
        return OtherPath(rank, sorted(against), self._named(call))

    def _fits(self, rank: int, peer: int) -> bool:
        key = frozenset((rank, peer))
        if key not in self._fit:
            self._fit[key] = _difference(self._known[min(key)], self._known[max(key)]) is None
        return self._fit[key]

    def _named(self, call: _PathCall) -> str:
        op, line = call.form[0].partition(" ")[0], f" ({call.form[1]})" if call.form[1] else ""
        return f"{op}{line} of group {group_text(self.timeline.meta, call.group)}"


_SIZED = (Op.ALL_GATHER, Op.REDUCE_SCATTER)


def _difference(path: _Path, peer_path: _Path) -> _PathCall | None:
    """The first of my calls that shows that neither path is the beginning of the other; None if one
    is.

    Compared in roles that both have. A call older than the other's record counts as issued there,
    without its place.
    """
    left_out = min(
        (call.at for position, call in peer_path.calls.items() if path.lacks(position)),
        default=1 << 60,
    )
    order, extra = -1, None
    for position, call in path.calls.items():
        counterpart = peer_path.calls.get(position)
        if counterpart is None:
            extra = extra or (call if peer_path.lacks(position) else None)
        elif extra or counterpart.form != call.form or not order <= counterpart.at < left_out:
            return extra or call
        else:
            order = counterpart.at
    ahead = []
    for role in path.reach.keys() & peer_path.reach.keys():
        ahead.append(path.reach[role] - peer_path.reach[role])
    if not path.calls or max(ahead, default=0) <= 0 or min(ahead) >= 0:
        return None
    return extra or [*path.calls.values()][-1]
