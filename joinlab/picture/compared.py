"""Two runs as two pictures on one axis: column i of one is above column i of the other.

A column that only one run has leaves a gap in the other:

    1.9    [5 inputs] [anyone left?] [sync gradients?]
    today  [5 inputs] [anyone left?] [who is last?] [broadcast]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from joinlab.analysis.comparison import Comparison, compare, distinct_names
from joinlab.picture.first_screen import first_screen
from joinlab.picture.layout import SIZES, behind
from joinlab.picture.screen import Column, FirstScreen, ScreenPiece
from joinlab.timeline import Timeline


def compared(first: Timeline, second: Timeline) -> tuple[Both, str]:
    """Two runs on one axis, each headed by how it ended, and the difference in words."""
    comparison = compare(first, second)
    both = first_screen(first, share_lanes=False), first_screen(second, share_lanes=False)
    spans = [_spans(screen, comparison, side) for side, screen in enumerate(both)]
    pairs = list(_pairs(*spans))
    if comparison.first_difference is not None:
        both = _difference_marked(both, spans, comparison.first_difference)
    left, right = (
        _on_one_axis(both, side, pairs, name)
        for side, name in enumerate(distinct_names(first, second))
    )
    least = max(behind(left), behind(right))
    return (replace(left, least=least), replace(right, least=least)), comparison.sentence


Both = tuple[FirstScreen, FirstScreen]
Span = tuple[float, float]
Pair = tuple[int | None, int | None]


def _spans(screen: FirstScreen, comparison: Comparison, side: int) -> list[Span]:
    """By column: its first and last row on the common axis; for a missing call, the position just
    before it."""
    row_of = {row[side]: index for index, row in enumerate(comparison.rows)}
    spans = []
    for column in screen.columns:
        before = 0.5 if column.missing else 0
        spans.append((row_of[column.slot] - before, row_of[column.until] - before))
    return spans


def _pairs(first: Sequence[Span], second: Sequence[Span]) -> Iterator[Pair]:
    """Columns that share a position: those with rows in common, in the order of both runs."""
    i = j = 0
    while i < len(first) or j < len(second):
        takes_left = j == len(second) or (i < len(first) and first[i][0] <= second[j][1])
        takes_right = i == len(first) or (j < len(second) and second[j][0] <= first[i][1])
        yield i if takes_left else None, j if takes_right else None
        i, j = i + takes_left, j + takes_right


def _difference_marked(both: Both, spans: Sequence[Sequence[Span]], first_difference: int) -> Both:
    """Both, where they part within stacks: each stack says so, and how many calls it holds."""
    marked = []
    for screen, columns in zip(both, spans, strict=True):
        index = sum(first <= first_difference for first, _ in columns) - 1
        if index < 0 or not screen.columns[index].stack:
            return both
        column = screen.columns[index]
        count = column.until - column.slot + 1
        stack = replace(column, stack=f"{count} calls", remark="part here", flag="wrong")
        before, after = screen.columns[:index], screen.columns[index + 1 :]
        marked.append(replace(screen, columns=(*before, stack, *after)))
    return marked[0], marked[1]


def _on_one_axis(both: Both, side: int, pairs: Sequence[Pair], name: str) -> FirstScreen:
    """The first screen of one side, with a column for each slot of both."""
    screen, position = both[side], {pair[side]: index for index, pair in enumerate(pairs)}
    headline = [ScreenPiece(f"{name}: ")]
    for piece in screen.headline:
        if piece.tone == "good":  # only that all finished, not what met
            piece = piece._replace(text=piece.text.partition(";")[0].rstrip(".") + ".")
        if piece.tone:
            headline.append(piece)
    return replace(
        screen,
        headline=tuple(headline),
        columns=tuple(_column(both, side, pair) for pair in pairs),
        focus=None if screen.focus is None else position[screen.focus],
        meant=tuple(
            (position[a], lane_a, position[b], lane_b) for a, lane_a, b, lane_b in screen.meant
        ),
        readings=tuple(
            reading._replace(column=position[reading.column]) for reading in screen.readings
        ),
    )


def _column(both: Both, side: int, pair: Pair) -> Column:
    """The column of one side at a position, as large as that of the other; an empty one without."""
    columns = []
    for screen, index in zip(both, pair, strict=True):
        if index is not None:
            columns.append(screen.columns[index])
    largest = max(columns, key=lambda column: SIZES["row"][column.size])
    far, index = any(column.far for column in columns), pair[side]
    column = Column(-1, -1, (), {}) if index is None else both[side].columns[index]
    return replace(column, size=largest.size, far=far)
