"""Exchanges: sends and recvs between two ranks, of which one may have issued more than the other."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import polars as pl

from joinlab.analysis.wording import by_key
from joinlab.ops import COUNTERPART, POINT_TO_POINT, CallRow, Op
from joinlab.timeline import Timeline

CallPath = list[tuple[int, CallRow]]
"""Calls of a rank, each with its place among all calls of the rank."""


def paths_of(timeline: Timeline, ranks: Sequence[int], *which: pl.Expr) -> dict[int, CallPath]:
    """The calls of these ranks for which every expression in `which` holds."""
    steps: dict[int, CallPath] = {rank: [] for rank in ranks}
    calls = timeline.calls.filter(pl.col("rank").is_in(ranks))
    calls = calls.with_columns(pl.int_range(pl.len()).over("rank").alias("at")).filter(*which)
    for row in calls.iter_rows(named=True):
        steps[row["rank"]].append((row["at"], row))  # type: ignore[arg-type]  # polars knows no TypedDict
    return steps


def unpaired(timeline: Timeline) -> list[tuple[CallPath, CallPath]]:
    """Per pair of ranks, the sends (or recvs) where one rank issued more than the other its
    counterparts; and those.

    A recv from any rank does not record whose send it took, so sends to a rank with such a recv are
    left out.
    """
    paths = paths_of(timeline, range(timeline.world_size), pl.col("op").is_in([*POINT_TO_POINT]))
    steps = chain.from_iterable(paths.values())
    calls = by_key(
        ((row["group"], row["rank"], row["peer"], row["op"]), (index, row)) for index, row in steps
    )
    both = [
        (path, calls.get((name, peer, rank, COUNTERPART[op]), []))
        for (name, rank, peer, op), path in calls.items()
        if peer is not None and (name, peer, None, Op.RECV.value) not in calls
    ]
    surplus = [(path, counterparts) for path, counterparts in both if len(path) > len(counterparts)]
    return sorted(surplus, key=lambda two: two[0][len(two[1])][1]["enqueued_ns"] or 0)
