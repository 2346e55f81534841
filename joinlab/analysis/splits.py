"""Splits: whether the parts that ranks send in an all-to-all are those that their receivers expect.

rank 0   sends 1, 3   expects 2, 2        rank 0's 3 for rank 1 do not fit, as rank 1 expects 2,
rank 1   sends 2, 2   expects 2, 2        nor does what rank 0 keeps; yet each sends 4 and gets 4
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
import numpy.typing as npt
import polars as pl

from joinlab.analysis.hashing import Codes, Numbers
from joinlab.ops import CallRow


def misfits(
    members: Sequence[CallRow], ranks: Sequence[int]
) -> Iterator[tuple[int, int, int, int]]:
    """The parts that do not fit of an all-to-all in a group of these ranks: sender, receiver,
    elements sent and elements expected. None where a call's splits are not known."""
    splits = {row["rank"]: parts for row in members if (parts := row.get("splits"))}
    group_rank = {rank: number for number, rank in enumerate(ranks)}
    for sender, receiver in product(splits, splits) if len(splits) == len(members) else ():
        sent, expected = splits[sender][0], splits[receiver][1]
        counts = (
            sent[group_rank[receiver] % len(sent)],
            expected[group_rank[sender] % len(expected)],
        )
        if counts[0] != counts[1]:
            yield (sender, receiver, *counts)


def misfits_of(
    splits: pl.Series, slot: Numbers, size: Numbers, group_rank: Numbers
) -> tuple[Codes, npt.NDArray[np.bool_]]:
    """By slot a number that tells one misfit from another, 0 without one; and of every call,
    whether it is on either side of one. Of each call: its slot, the size of its group, and the
    place of its rank there."""
    codes, involved = np.zeros(int(slot.max(initial=-1)) + 1, np.uint64), np.zeros(len(slot), bool)
    rows = np.flatnonzero(splits.is_not_null().to_numpy())
    if not len(rows):
        return codes, involved
    rows = rows[np.argsort(slot[rows], kind="stable")]
    recorded = splits.gather(rows)
    sent, expected = (_parts(recorded.list.get(side), size[rows]) for side in (0, 1))
    starts = np.cumsum(size[rows]) - size[rows]
    edges = np.flatnonzero(np.diff(slot[rows], prepend=-1, append=-1))
    for begin, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        members = rows[begin:end]
        peers = starts[begin:end, None] + group_rank[members]
        unlike = sent[peers] != expected[peers].T
        if unlike.any():
            mistake = np.concatenate([sent[peers][unlike], np.flatnonzero(unlike)])
            codes[slot[members[0]]] = 1 + zlib.crc32(mistake.tobytes())
            involved[members] = unlike.any(axis=0) | unlike.any(axis=1)
    return codes, involved


def _parts(side: pl.Series, size: Numbers) -> Numbers:
    """The parts of all calls, one after the other: as many of each as its group has ranks."""
    lengths = side.list.len().to_numpy()
    parts: Numbers = side.explode().to_numpy()
    return np.repeat(parts, np.repeat(np.where(lengths == 1, size, 1), lengths))
