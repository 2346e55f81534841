"""Layout: where things lie across the ranks, and how long texts are broken. All three renderers share it."""

from __future__ import annotations

import re
from textwrap import shorten, wrap

from joinlab.analysis.wording import sign
from joinlab.picture.lanes import Band, Box, Cap, Lane
from joinlab.picture.rows import RowKind

SPAN = (0.02, 0.14)  # where a rank's lanes lie in its column, which is 1 wide
WAIT = (0.145, 0.19)  # spans and waits share the host lane
HOST = (SPAN[0], WAIT[1])
STREAM = (0.21, 0.93)

Corner = tuple[float, float]
"""A place across the ranks and one along the axis."""


def sides(box: Box) -> tuple[float, float]:
    """Where a box lies in the column of its rank, from 0 to 1."""
    low, high = STREAM if box.lane is Lane.STREAM else WAIT if box.kind is RowKind.WAIT else SPAN
    width = (high - low) / box.tracks
    return low + width * box.track, low + width * (box.track + 1)


def outlines(band: Band) -> tuple[tuple[Corner, ...], ...]:
    """The outlines of a band; where lanes that took no part lie between, a stub at either end and a line behind them.

    rank 0 [call]====| lane of rank 1 |====[call] rank 2        = the stubs; the line runs behind rank 1
    """
    left, right = band.a + STREAM[1], band.b + STREAM[0]
    if band.b == band.a + 1:
        return (((left, band.at_a[0]), (right, band.at_b[0]), (right, band.at_b[1]), (left, band.at_a[1])),)
    (from_a, to_a), (from_b, to_b), (begin, end) = band.at_a, band.at_b, (band.a + 1, band.b)
    return (
        ((left, from_a), (begin, from_a), (begin, to_a), (left, to_a)),
        ((end, from_b), (right, from_b), (right, to_b), (end, to_b)),
        ((begin, (from_a + to_a) / 2), (end, (from_b + to_b) / 2)),
    )


def middle(band: Band) -> Corner:
    """Where the sign of inequality stands on a band."""
    return band.a + (STREAM[1] + 1 + HOST[0]) / 2, (sum(band.at_a) + sum(band.at_b)) / 4


def cap_lines(cap: Cap, width: int) -> list[str]:
    """The sign and words of an ending, in at most two lines; the full text of an exception is for the tooltip."""
    text = re.sub(r"\[[^]\s]+\.cc:\d+\] ?", "", cap.text)  # gloo begins with the path of its own source file
    return wrap(shorten(f"{sign(cap.ending)} {text}", 2 * width, placeholder=" …"), width)
