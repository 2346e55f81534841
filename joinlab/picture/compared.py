"""Two runs as two pictures on one axis: column i of one is above column i of the other.

A column that only one run has leaves a gap in the other:

    1.9    [5 inputs] [anyone left?] [sync gradients?]
    today  [5 inputs] [anyone left?] [who is last?] [broadcast]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from joinlab.analysis.comparison import Comparison, compare, told_apart
from joinlab.picture.places import SIZES, behind
from joinlab.picture.scene import Column, Piece, Scene, scene
from joinlab.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Compared:
    """Two scenes, each headed by how it differs from the other.

    sentence  the difference in words
    behind    px past the last call for how the ranks ended, of both
    """

    scenes: tuple[Scene, Scene]
    sentence: str
    behind: int


def compared(one: Timeline, other: Timeline) -> Compared:
    """Two runs on one axis."""
    found, both = compare(one, other), (scene(one, ranks=False), scene(other, ranks=False))
    pairs = _pairs(
        *(_spans(of, found, side) for of, side in zip(both, ("left", "right"), strict=True))
    )
    names = told_apart(one, other)
    made = [_laid(both, side, pairs, name) for side, name in enumerate(names)]
    return Compared((made[0], made[1]), found.sentence, max(map(behind, made)))


Span = tuple[float, float]
Pair = tuple[int | None, int | None]


def _spans(of: Scene, found: Comparison, side: str) -> list[Span]:
    """By column: its first and last row on the common axis; for a missing call, the place just
    before it."""
    row = {
        slot: at for at, one in enumerate(found.rows) if (slot := getattr(one, side)) is not None
    }
    return [
        (row[one.slot] - bool(one.missing) / 2, row[one.until] - bool(one.missing) / 2)
        for one in of.columns
    ]


def _pairs(left: Sequence[Span], right: Sequence[Span]) -> list[Pair]:
    """Columns that share a place: those with rows in common, in the order of both runs."""
    found: list[Pair] = []
    i = j = 0
    while i < len(left) or j < len(right):
        ours = j == len(right) or (i < len(left) and left[i][0] <= right[j][1])
        theirs = i == len(left) or (j < len(right) and right[j][0] <= left[i][1])
        found.append((i if ours else None, j if theirs else None))
        i, j = i + ours, j + theirs
    return found


def _laid(both: tuple[Scene, Scene], side: int, pairs: Sequence[Pair], name: str) -> Scene:
    """The scene of one side, with a column for each place, as long as the longer of the two."""
    mine = both[side]
    at = {pair[side]: place for place, pair in enumerate(pairs)}
    columns = [_column(both, side, pair) for pair in pairs]
    return replace(
        mine,
        headline=(Piece(name),),
        columns=tuple(columns),
        focus=None if mine.focus is None else at[mine.focus],
        meant=tuple((at[a], lane, at[b], other) for a, lane, b, other in mine.meant),
        readings=tuple(replace(one, column=at[one.column]) for one in mine.readings),
    )


def _column(both: tuple[Scene, Scene], side: int, pair: Pair) -> Column:
    found = [None if at is None else of.columns[at] for of, at in zip(both, pair, strict=True)]
    here = [one for one in found if one is not None]
    size = max((one.size for one in here), key=lambda size: SIZES["row"][size])
    far = any(one.far for one in here)
    mine = found[side]
    if mine is not None:
        return replace(mine, size=size, far=far)
    return Column(-1, -1, "", [None] * len(both[side].ranks), size=size, far=far)
