"""Two runs as two pictures on one axis: column i of one is above column i of the other.

A column that only one run has leaves a gap in the other:

    1.9    [5 inputs] [anyone left?] [sync gradients?]
    today  [5 inputs] [anyone left?] [who is last?] [broadcast]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from joinlab.analysis.comparison import Comparison, compare, distinct_names
from joinlab.picture.first_screen import Column, FirstScreen, ScreenPiece, first_screen
from joinlab.picture.places import SIZES, behind
from joinlab.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Compared:
    """Two scenes, each headed by how it differs from the other.

    sentence  the difference in words
    behind    px past the last call for how the ranks ended, of both
    """

    scenes: tuple[FirstScreen, FirstScreen]
    sentence: str
    behind: int


def compared(first: Timeline, second: Timeline) -> Compared:
    """Two runs on one axis."""
    comparison, both = (
        compare(first, second),
        (first_screen(first, ranks=False), first_screen(second, ranks=False)),
    )
    left, right = (
        _spans(screen, comparison, side)
        for screen, side in zip(both, ("left", "right"), strict=True)
    )
    pairs = _pairs(left, right)
    if comparison.parting is not None:
        both = _parting_marked(both, (left, right), comparison.parting)
    names = distinct_names(first, second)
    made = [_laid(both, side, pairs, name) for side, name in enumerate(names)]
    return Compared((made[0], made[1]), comparison.sentence, max(map(behind, made)))


Span = tuple[float, float]
Pair = tuple[int | None, int | None]


def _spans(screen: FirstScreen, comparison: Comparison, side: str) -> list[Span]:
    """By column: its first and last row on the common axis; for a missing call, the place just
    before it."""
    slots = [getattr(row_compared, side) for row_compared in comparison.rows]
    row = {slot: index for index, slot in enumerate(slots) if slot is not None}
    return [
        (row[column.slot] - bool(column.missing) / 2, row[column.until] - bool(column.missing) / 2)
        for column in screen.columns
    ]


def _pairs(first: Sequence[Span], second: Sequence[Span]) -> list[Pair]:
    """Columns that share a place: those with rows in common, in the order of both runs."""
    pairs: list[Pair] = []
    i = j = 0
    while i < len(first) or j < len(second):
        ours = j == len(second) or (i < len(first) and first[i][0] <= second[j][1])
        takes_right = i == len(first) or (j < len(second) and second[j][0] <= first[i][1])
        pairs.append((i if ours else None, j if takes_right else None))
        i, j = i + ours, j + takes_right
    return pairs


def _parting_marked(
    both: tuple[FirstScreen, FirstScreen], spans: tuple[list[Span], list[Span]], parting: int
) -> tuple[FirstScreen, FirstScreen]:
    """Both, where they part within stacks: each stack says so, and how many calls it holds."""
    marked = []
    for screen, columns in zip(both, spans, strict=True):
        index = sum(first <= parting for first, _ in columns) - 1
        column = screen.columns[index]
        if index < 0 or not column.stack:
            return both
        count = column.until - column.slot + 1
        stack = replace(column, stack=f"{count} calls", said="part here", flag="wrong")
        before, after = screen.columns[:index], screen.columns[index + 1 :]
        marked.append(replace(screen, columns=(*before, stack, *after)))
    return marked[0], marked[1]


def _laid(
    both: tuple[FirstScreen, FirstScreen], side: int, pairs: Sequence[Pair], name: str
) -> FirstScreen:
    """The first screen of one side, with a column for each slot, as long as the longer of the two."""
    screen = both[side]
    column_of = {pair[side]: index for index, pair in enumerate(pairs)}
    columns = [_column(both, side, pair) for pair in pairs]
    ends = []
    for piece in screen.headline:
        if piece.tone == "good":  # only that all finished, not what met
            piece = replace(piece, text=piece.text.partition(";")[0].rstrip(".") + ".")
        if piece.tone:
            ends.append(piece)
    return replace(
        screen,
        headline=(ScreenPiece(f"{name}: "), *ends),
        columns=tuple(columns),
        focus=None if screen.focus is None else column_of[screen.focus],
        meant=tuple(
            (column_of[a], lane, column_of[b], other_lane)
            for a, lane, b, other_lane in screen.meant
        ),
        readings=tuple(
            replace(reading, column=column_of[reading.column]) for reading in screen.readings
        ),
    )


def _column(both: tuple[FirstScreen, FirstScreen], side: int, pair: Pair) -> Column:
    candidates = []
    for screen, index in zip(both, pair, strict=True):
        candidates.append(None if index is None else screen.columns[index])
    columns = [column for column in candidates if column is not None]
    size = max((column.size for column in columns), key=lambda size: SIZES["row"][size])
    far = any(column.far for column in columns)
    own = candidates[side]
    if own is not None:
        return replace(own, size=size, far=far)
    return Column(-1, -1, "", [None] * len(both[side].ranks), size=size, far=far)
