"""A Timeline as a Chrome trace, which Perfetto (https://ui.perfetto.dev) and chrome://tracing open.

The form is the JSON of the "Trace Event Format" (Google, 2016). A rank is a process; its host and
each of its groups are threads of it:

    process "rank 0"    thread "host"       forward, backward, optimizer, and the waits of the host
                        thread "group 0"    one slice per call, from its enqueueing to its completion

Slices of one thread must be nested or disjoint ("duration events" of that format); Perfetto drops
others (its statistic slice_drop_overlapping_complete_event). Calls in flight at the same time
overlap, so a group gets several threads of the same name if needed.

Calls that met are joined by flows: an arrow from each rank's call to the one that was enqueued
next, since a flow that ends before it has begun is dropped, and so is one in a slice without length
(Perfetto, flow_tracker.cc: the statistics flow_end_without_start and flow_no_enclosing_slice). A
call that never completed lasts to the end of the record and says so in its arguments.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl

from joinlab.analysis.matching import Matched, key_of
from joinlab.timeline import CallRow, Timeline

Event = dict[str, Any]
HOST = 0
"""Thread of a rank's host. Its groups are threads from 1 on; further threads for overlaps
follow."""

_PLACE = ("pid", "tid", "ts")
_TOLD = ("seq", "number", "input", "dtype", "shape", "reduce_op", "root", "peer")
_VALUES = ("value_in", "value_out", "call_site", "error")
_TIMES = ("enqueued_ns", "started_ns", "completed_ns", "host_wait_begin_ns", "host_wait_end_ns")


def write_chrome(timeline: Timeline, path: str | os.PathLike[str]) -> Path:
    """Write `timeline` as a Chrome trace; returns its path. Raises OSError where it cannot be
    written.

    joinlab.write_chrome(timeline, "run.json")          # drop it on https://ui.perfetto.dev
    """
    target, meta = Path(path), timeline.meta
    facts = {name: str(meta.get(name)) for name in ("program", "engine", "backend")}
    facts["clock"] = str(meta.get("clock", {}).get("domain"))
    content = {"displayTimeUnit": "ns", "otherData": facts, "traceEvents": list(events(timeline))}
    target.write_text(json.dumps(content, allow_nan=False), encoding="utf-8")
    return target


def events(timeline: Timeline) -> Iterator[Event]:
    """Every event of the trace; `ts` and `dur` are in microseconds."""
    matched = Matched(timeline)
    thread = {group: number for number, group in enumerate(matched.groups, HOST + 1)}
    yield from _names(timeline, thread)
    last = _last_ns(timeline)
    slices = []
    calls: dict[tuple[int, str, int], Event] = {}
    for row in matched.rows:
        slices.append(_call(row, thread[row["group"]], last))
        calls[key_of(row)] = slices[-1]
        begin = row["host_wait_begin_ns"]
        if begin is not None:
            end = row["host_wait_end_ns"]
            slices.append(
                _slice(
                    row["rank"],
                    HOST,
                    f"wait: {row['op']}",
                    "wait",
                    begin,
                    last if end is None else end,
                )
            )
    for span in timeline.rows("spans"):
        end = span["end_ns"]
        slices.append(
            _slice(
                span["rank"],
                HOST,
                span["name"],
                "span",
                span["begin_ns"],
                last if end is None else end,
            )
        )
    yield from _in_threads(slices, {number: f"group {group}" for group, number in thread.items()})
    yield from slices
    number = 0
    for slot in matched.slots:
        ranks = sorted(slot.calls.items()) if slot.met else ()
        together = sorted(
            (calls[rank, slot.group, seq] for rank, seq in ranks),
            key=lambda call: float(call["ts"]),
        )
        for earlier, later in pairwise(together):
            number += 1
            flow = {
                "id": number,
                "name": "met" if slot.expected else "met, and should not have",
                "cat": "met",
            }
            yield {"ph": "s", **flow} | {name: earlier[name] for name in _PLACE}
            yield {"ph": "f", "bp": "e", **flow} | {
                name: later[name] for name in _PLACE
            }  # "e": to the slice around it


def _in_threads(slices: list[Event], names: Mapping[int, str]) -> Iterator[Event]:
    """Move overlapping slices to further threads, and yield the names of these threads.

    thread "group 0"        |---- call 1 ----|     |- call 3 -|
    thread "group 0 (2)"          |---- call 2 ----|
    """
    slices.sort(key=lambda slice_: (slice_["ts"], -slice_["dur"]))  # the outer one first
    ends: dict[
        tuple[int, int], list[list[float]]
    ] = {}  # of the open slices, by thread and further threads of its name
    added: dict[tuple[int, int, int], int] = {}
    for slice_ in slices:
        rank, thread, end = slice_["pid"], slice_["tid"], slice_["ts"] + slice_["dur"]
        lanes = ends.setdefault((rank, thread), [])
        for lane in lanes:
            while lane and lane[-1] <= slice_["ts"]:
                lane.pop()
        index = next(
            (index for index, lane in enumerate(lanes) if not lane or end <= lane[-1]), len(lanes)
        )
        if index == len(lanes):
            lanes.append([])
        lanes[index].append(end)
        if index:
            number = added.get((rank, thread, index))
            if number is None:
                number = added[rank, thread, index] = len(names) + 1 + len(added)
                yield _named(
                    "thread_name", rank, number, f"{names.get(thread, 'host')} ({index + 1})"
                )
            slice_["tid"] = number


def _names(timeline: Timeline, thread: dict[str, int]) -> Iterator[Event]:
    descriptions = timeline.meta.get("group_names", {})
    ranks = timeline.meta.get("groups", {})
    for rank in range(timeline.world_size):
        yield _named("process_name", rank, HOST, f"rank {rank}: {timeline.ends[rank]}")
        yield {"ph": "M", "name": "process_sort_index", "pid": rank, "args": {"sort_index": rank}}
        yield _named("thread_name", rank, HOST, "host")
        for group, number in thread.items():
            if rank in ranks.get(group, ()):
                yield _named(
                    "thread_name",
                    rank,
                    number,
                    f"group {group} {descriptions.get(group, '')}".strip(),
                )


def _named(kind: str, rank: int, thread: int, name: str) -> Event:
    return {"ph": "M", "name": kind, "pid": rank, "tid": thread, "args": {"name": name}}


def _call(row: CallRow, thread: int, last: int) -> Event:
    end = row["completed_ns"]
    begin = row["enqueued_ns"] or 0  # a record may not say
    event = _slice(
        row["rank"],
        thread,
        row["origin"] or row["op"],
        row["op"],
        begin,
        last if end is None else end,
    )
    event["dur"] = max(event["dur"], 0.001)
    args = {name: row[name] for name in (*_TOLD, *_VALUES)}  # type: ignore[literal-required]
    event["args"] = {name: value for name, value in args.items() if value is not None}
    event["args"]["completed"] = end is not None
    return event


def _slice(rank: int, thread: int, name: str, category: str, begin: int, end: int) -> Event:
    duration = max(end - begin, 0) / 1000
    return {
        "ph": "X",
        "pid": rank,
        "tid": thread,
        "name": name,
        "cat": category,
        "ts": begin / 1000,
        "dur": duration,
    }


def _last_ns(timeline: Timeline) -> int:
    latest = timeline.calls.select(pl.max_horizontal(pl.col(name).max() for name in _TIMES)).item()
    ended = timeline.spans.select(
        pl.max_horizontal(pl.col("begin_ns").max(), pl.col("end_ns").max())
    ).item()
    return max(latest or 0, ended or 0)
