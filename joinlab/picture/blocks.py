"""Blocks: on the clock, calls too short to be seen are told with their neighbours, as "412 calls, all matched".

The figure's counterpart of static/detail.js: what is under LEAST px is gathered with neighbours less than LEAST px
away; what went wrong stays by itself. Of a large Timeline all calls are gathered but those that tell the story.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np
import polars as pl

from joinlab.analysis.matching import wrong
from joinlab.analysis.reading import read
from joinlab.picture.columns import call_times
from joinlab.picture.lanes import Box, Lane, Lanes
from joinlab.picture.rows import RowKind
from joinlab.timeline import Timeline

LEAST = 3
"""px: what is shorter is drawn with its neighbours."""

FEW = 600
"""So many boxes are drawn one by one, however short."""


def gathered(picture: Lanes, per_px: float) -> Lanes:
    """The same picture of the clock, what is short made blocks. `per_px`: ns of a px."""
    if len(picture.boxes) <= FEW:
        return picture
    lanes: dict[tuple[int, Lane, bool], list[Box]] = {}
    for box in picture.boxes:
        lanes.setdefault((box.rank, box.lane, box.kind is RowKind.WAIT), []).append(box)
    least, boxes, hidden = LEAST * per_px, list[Box](), set[tuple[int | None, int]]()
    for of_lane in lanes.values():
        run: list[Box] = []
        until = 0.0
        for box in sorted(of_lane, key=lambda box: box.begin):
            if box.open or box.bad or box.failed:
                boxes.append(box)
                continue
            short = box.end - box.begin < least
            if run and (not short or box.begin - until >= least):
                boxes += _block(run)
                hidden |= {(one.slot, one.rank) for one in run if len(run) > 1 and one.lane is Lane.STREAM}
                run = []
            if short:
                run.append(box)
                until = max(until, box.end)
            else:
                boxes.append(box)
        boxes += _block(run)
        hidden |= {(one.slot, one.rank) for one in run if len(run) > 1 and one.lane is Lane.STREAM}
    bands = tuple(
        band for band in picture.bands if band.bad or hidden.isdisjoint({(band.slot, band.a), (band.slot, band.b)})
    )
    return replace(picture, boxes=tuple(boxes), bands=bands)


def _block(run: list[Box]) -> list[Box]:
    if len(run) < 2:
        return run
    first, end = run[0], max(box.end for box in run)
    if first.lane is Lane.STREAM:
        return [_told(first.rank, first.begin, end, len(run), first.slot)]
    what = f"{first.short}, {len(run):,} times"
    details = (("host", what), ("rank", str(first.rank)))
    return [first._replace(end=end, label=what, track=0, tracks=1, details=details)]


def _told(lane: int, begin: float, end: float, count: int, slot: int | None, wrong: int = 0) -> Box:
    label = f"{count:,} calls, {f'{wrong:,} of them wrong' if wrong else 'all matched'}"
    short, details = f"{count:,} calls", (("calls", label),)
    return Box(lane, Lane.STREAM, RowKind.FOLD, begin, end, label, short, bad=wrong > 0, details=details, slot=slot)


def with_the_rest(picture: Lanes, timeline: Timeline, per_px: float) -> Lanes:
    """The clock of the calls that tell the story of a large run, and blocks for the others. `per_px`: ns of a px."""
    return replace(picture, boxes=(*_rest(picture, timeline, LEAST * per_px), *picture.boxes))


def _rest(picture: Lanes, timeline: Timeline, least: float) -> Iterator[Box]:
    calls, found, bad = timeline.calls, read(timeline), wrong(timeline)
    kept = np.zeros(found.count, bool)
    kept[found.told] = True
    ranks = calls["rank"].to_numpy()
    for lane, (rank, *_) in enumerate(picture.ranks):
        mine = (ranks == rank) & ~kept[found.slot]
        begun, ended, *_ = call_times(calls.filter(pl.Series(mine)))
        order = np.argsort(begun, kind="stable")
        begun, ended, slot = begun[order], np.maximum(ended, begun)[order], found.slot[mine][order]
        apart = np.flatnonzero(begun[1:] - np.maximum.accumulate(ended)[:-1] >= least) + 1
        for first, behind in pairwise([0, *apart.tolist(), len(begun)]):
            if behind > first:
                end = float(ended[first:behind].max())
                count = int(bad[slot[first:behind]].sum())
                yield _told(lane, float(begun[first]), end, behind - first, int(slot[first]), count)
