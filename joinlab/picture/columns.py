"""Columns: every call of a Timeline as numbers, for the script that draws them all.

A million boxes take 200 MB as JSON and 5 MB as columns. What all calls of a kind share (label,
line, dtype, stack) is written once. Times are differences from one call to the next. Each column is
split into byte planes, so that the high bytes, which are mostly 0, compress well. static/columns.js
reads the columns.

    begun       10 25 31 ...     steps 10 15 6, zigzag (0, 1, -1 as 0, 2, 1), in `unit` ns
    late        how long after its host issued it a call began
    input       of the call, from 1; 0: none
    waited      only of calls that a host waited for: from when to when, counted from the call's begin
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from joinlab.analysis.folding import Folding
from joinlab.analysis.hashing import hash_columns
from joinlab.analysis.matching import wrong
from joinlab.analysis.reading import read
from joinlab.analysis.source import CodeLine, SourceTexts
from joinlab.picture.details import Details, call_details
from joinlab.picture.rows import RowKind, kind, label
from joinlab.timeline import CallRow, Timeline

OPEN, BAD, FAILED, QUEUED, WAITS, WAITS_ON = 1, 2, 4, 8, 16, 32
"""Flags of a call, as static/columns.js has them. QUEUED: it never began, since one before it never
ended."""

MARGIN = 0.18  # of the time that the run took: how far what never ends is drawn on
LEAST = 1_000  # ns: of a shorter run, as much

MOST = 2**30  # a step along the axis is at most so many units
UNENDED = 0xFFFFFFFF

SAME = (
    "op",
    "origin",
    "dtype",
    "shape",
    "reduce_op",
    "root",
    "peer",
    "tag",
    "call_site",
    "stack",
    "group",
)
SHARED = ("op", "dtype", "shape", "reduced by", "root", "peer", "tag", "called from", "stack")
"""Names of the details that calls with the same columns SAME have in common. Any other detail belongs
to one call: a code must not have it."""

Column = npt.NDArray[np.int64]


class Code(NamedTuple):
    """The common properties of all calls with the same code.

    lines  of the learner's code that they came from, innermost first
    """

    kind: RowKind
    label: str
    lines: tuple[CodeLine, ...]
    facts: Details


def columns(timeline: Timeline, folding: Folding) -> tuple[dict[str, Any], list[Code], int, bytes]:
    """Description of the columns for the script, the codes of the calls, the clock's beginning, and
    the columns."""
    # Of each lane, its first rank's calls: no copy of the columns where every rank has a lane.
    reading, lanes = read(timeline), [ranks[0] for ranks in folding.classes]
    calls, slot = timeline.calls, reading.slot
    if len(lanes) < timeline.world_size:
        drawn = np.isin(reading.ranks, lanes)
        calls, slot = calls.filter(drawn), slot[drawn]
    spans = timeline.spans.filter(pl.col("rank").is_in(lanes))
    spans = spans.sort("rank", "begin_ns", maintain_order=True)
    lane_of = np.full(timeline.world_size, -1)
    lane_of[lanes] = np.arange(len(lanes))
    lane, span_lane = (lane_of[table["rank"].to_numpy()] for table in (calls, spans))

    # -1 is what never came, or is unknown. Times are counted from the first one that is known.
    begun, ended, waited, let_go, issued = call_times(calls)
    span_from, span_to = (spans[name].fill_null(-1).to_numpy() for name in ("begin_ns", "end_ns"))
    late = np.where(issued < 0, 0, np.maximum(begun - issued, 0))
    parts = (ended, waited, let_go, issued, span_from, span_to)
    times = np.concatenate([begun, *(part[part >= 0] for part in parts)])
    begin, length = (int(times.min()), int(np.ptp(times))) if len(times) else (0, 0)
    until = length + max(length, LEAST) * MARGIN  # what never ends is drawn on to there
    begun, span_from = begun - begin, span_from - begin
    ended, waited, let_go, span_to = (
        np.where(part < 0, -1, part - begin) for part in (ended, waited, let_go, span_to)
    )

    # What each call looks like. It is queued if it never began, on a backend that says when others did.
    failed = calls["error"].is_not_null().to_numpy()
    open_ = (ended < 0) & ~failed
    not_begun = calls["started_ns"].is_null().to_numpy()
    queued = open_ & not_begun & (not not_begun.all())
    waits, waits_on = waited >= 0, (waited >= 0) & (let_go < 0)
    flags = open_ * OPEN + mistaken(timeline, folding)[slot] * BAD + failed * FAILED
    flags += queued * QUEUED + waits * WAITS + waits_on * WAITS_ON

    # When the calls of each lane end, and when its program does.
    stops, over = np.zeros(len(lanes)), np.zeros(len(lanes))
    host = (begun - late, waited, let_go)
    for last, moments in ((stops, (begun, ended, let_go)), (over, host)):
        for part in moments:
            np.maximum.at(last, lane, part)
        np.maximum.at(last, span_lane, span_to)
        last[lane[waits_on]] = last[span_lane[span_to < 0]] = until
    stops[lane[open_]] = until

    # The smallest unit, a power of ten in ns, in which every difference fits into MOST.
    unit = 1
    lengths = (_steps(begun, lane), ended - begun, waited - begun, let_go - waited, late)
    span_lengths = (_steps(span_from, span_lane), span_to - span_from)
    far = max(int(np.abs(part).max(initial=0)) for part in (*lengths, *span_lengths))
    while far // unit > MOST:
        unit *= 10
    at_begun, at_span = begun // unit, span_from // unit
    took = np.where(ended < 0, 0, np.maximum(ended // unit - at_begun, 0))
    texts = SourceTexts.of(timeline)
    code, codes = _codes(calls, texts)
    names: dict[tuple[str, str | None], int] = {}
    span_codes = [names.setdefault(key, len(names)) for key in spans["name", "call_site"].rows()]
    planes = {
        "slot": _zigzag(_steps(slot, lane) - 1),
        "code": code,
        "begun": _zigzag(_steps(at_begun, lane)),
        "took": took,
        "late": late // unit,
        "input": calls["input"].fill_null(-1).to_numpy() + 1,
        "flags": flags,
        "waited": _zigzag((waited // unit - at_begun)[waits]),
        "waits": np.maximum(let_go // unit - waited // unit, 0)[waits],
        "spanBegun": _zigzag(_steps(at_span, span_lane)),
        "spanTook": np.where(span_to < 0, UNENDED, np.maximum(span_to // unit - at_span, 0)),
        "spanInput": spans["input"].fill_null(-1).to_numpy() + 1,
        "spanCode": np.array(span_codes, np.int64),
    }
    written = {name: _plane(column) for name, column in planes.items()}
    data = {
        "planes": [(name, size, len(planes[name])) for name, (size, _) in written.items()],
        "unit": unit,
        "counts": np.bincount(lane, minlength=len(lanes)).tolist(),
        "spans": np.bincount(span_lane, minlength=len(lanes)).tolist(),
        "names": [(name, texts.lines_of({"call_site": site})) for name, site in names],
        "stops": list(map(round, stops.tolist())),
        "over": list(map(round, over.tolist())),
        "end": round(until) if len(times) > len(begun) else 0,  # 0: no time is known
        "rows": reading.count,
    }
    return data, codes, begin, b"".join(column for _, column in written.values())


def mistaken(timeline: Timeline, folding: Folding) -> npt.NDArray[np.bool_]:
    """By slot: whether its calls met, or missed each other, by mistake."""
    if folding.every.is_part:
        return wrong(timeline)
    return np.array([not slot.expected for slot in folding.every.slots], bool)  # judged already


def call_times(calls: pl.DataFrame) -> tuple[Column, ...]:
    """When each call began and ended, when its host's wait began and ended, and when the host issued
    it; -1 if unknown."""
    failed = pl.when(pl.col("error").is_not_null()).then("host_wait_end_ns")
    begun = pl.coalesce("started_ns", "enqueued_ns", "host_wait_begin_ns", "completed_ns")
    times = calls.select(
        begun=begun.fill_null(0),
        ended=pl.coalesce("completed_ns", failed),
        waited="host_wait_begin_ns",
        let_go="host_wait_end_ns",
        issued="enqueued_ns",
    )
    return tuple(part.fill_null(-1).to_numpy() for part in times)


def _codes(calls: pl.DataFrame, texts: SourceTexts) -> tuple[Column, list[Code]]:
    """The code of every call, and all codes."""
    hashed = hash_columns(calls, *SAME)
    distinct = pl.Series(hashed).unique().sort().to_numpy()  # np.unique would sort a million
    code = np.searchsorted(distinct, hashed)
    first = np.zeros(len(distinct), np.int64)
    first[code[::-1]] = np.arange(len(code))[::-1]  # of several, the last that is written stays
    codes: list[Code] = []
    rows: list[CallRow] = calls[first].rows(named=True)  # type: ignore[assignment]  # polars knows no TypedDict
    for row in rows:
        facts = tuple(fact for fact in call_details(row, True, {}) if fact[0] in SHARED)
        code_facts = (("group", str(row["group"])), *facts)
        codes.append(Code(kind(row), label(row), texts.lines_of(row), code_facts))
    return code, codes


def _steps(values: Column, lane: Column) -> Column:
    """Differences between successive values of a lane; the first value stays as it is."""
    if not len(values):
        return values
    steps = np.diff(values, prepend=0)
    first = np.flatnonzero(np.append(True, lane[1:] != lane[:-1]))
    steps[first] = values[first]
    return np.asarray(steps, np.int64)


def _zigzag(values: Column) -> Column:
    return np.where(values < 0, -2 * values - 1, 2 * values)


def _plane(values: Column) -> tuple[int, bytes]:
    """Bytes per value; then the lowest bytes of all values, all second bytes, and so on."""
    size = max((int(values.max(initial=0)).bit_length() + 7) // 8, 1)
    assert size <= 4, "a column holds numbers under 2**32"
    parts = values.astype("<u4").view(np.uint8).reshape(-1, 4)
    return size, b"".join(np.ascontiguousarray(parts[:, byte]).tobytes() for byte in range(size))
