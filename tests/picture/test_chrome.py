"""The Chrome trace: every call is a slice, and calls that met are joined by a flow that stays
within their slices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

import joinlab
from joinlab.analysis.matching import match
from joinlab.picture.chrome import events
from tests.random_programs import draw, program_of
from tests.timelines import case_timeline


def of_kind(found: list[dict[str, Any]], phase: str) -> list[dict[str, Any]]:
    return [event for event in found if event["ph"] == phase]


def check(timeline: joinlab.Timeline) -> None:
    found = list(events(timeline))
    json.dumps(found, allow_nan=False)
    slices, begins, ends = (of_kind(found, phase) for phase in "Xsf")
    calls = [one for one in slices if "completed" in one.get("args", {})]
    assert len(calls) == timeline.calls.height
    assert (
        sum(not one["args"]["completed"] for one in calls)
        == timeline.calls["completed_ns"].null_count()
    )
    waits = timeline.calls["host_wait_begin_ns"].drop_nulls().len()
    assert len(slices) == timeline.calls.height + waits + timeline.spans.height
    assert (
        len(begins) == len(ends) == sum(len(slot.calls) - 1 for slot in match(timeline) if slot.met)
    )
    assert (
        [one["id"] for one in begins]
        == [one["id"] for one in ends]
        == list(range(1, len(begins) + 1))
    )
    assert bound(found) == len(begins)


def bound(found: list[dict[str, Any]]) -> int:
    """How many flows a reader of the format would draw; each slice must lie in its thread as the
    format wants it.

    Trace Event Format (Google, 2016): times are microseconds; slices of one thread are nested; a
    flow has one event "s" and one "f" of the same id, name and category, and binds to the slices
    around them, "f" because of its bp "e". Perfetto reads in the order of time: it drops an "f"
    before its "s", and a slice is over at its last moment.
    """
    threads: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for one in of_kind(found, "X"):
        assert one["ts"] >= 0 and one["dur"] >= 0
        threads.setdefault((one["pid"], one["tid"]), []).append(one)
    assert threads.keys() <= {
        (one["pid"], one["tid"]) for one in of_kind(found, "M") if one["name"] == "thread_name"
    }
    for those in threads.values():
        open_: list[float] = []
        for one in sorted(those, key=lambda one: (one["ts"], -one["dur"])):
            while open_ and open_[-1] <= one["ts"]:
                open_.pop()
            assert not open_ or one["ts"] + one["dur"] <= open_[-1], one
            open_.append(one["ts"] + one["dur"])
    flows: dict[tuple[Any, ...], list[str]] = {}
    for one in sorted((it for it in found if it["ph"] in "sf"), key=lambda one: float(one["ts"])):
        around = [
            it
            for it in threads[one["pid"], one["tid"]]
            if it["ts"] <= one["ts"] < it["ts"] + it["dur"]
        ]
        assert any("completed" in it["args"] for it in around)
        assert one["ph"] == "s" or one["bp"] == "e"
        flows.setdefault((one["id"], one["name"], one["cat"]), []).append(one["ph"])
    return sum(phases == ["s", "f"] for phases in flows.values())


@pytest.mark.parametrize("case", range(1, 7))
@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_every_call_is_a_slice_and_every_meeting_a_flow(case: int, backend: str) -> None:
    check(case_timeline(case, n=2, backend=backend))


@given(st.integers(0, 10_000))
def test_programs_drawn_at_random(seed: int) -> None:
    plan = draw(seed)
    check(joinlab.emulate(program_of(plan), plan.counts, backend=("gloo", "nccl")[seed % 2]))


def test_calls_in_flight_at_the_same_time_are_on_threads_of_their_own() -> None:
    def program(rank: int, inputs: Any) -> None:
        works = [dist.all_reduce(torch.ones(1 << size), async_op=True) for size in (12, 2, 8)]
        for work in works:
            work.wait()

    timeline = joinlab.emulate(program, (1, 1), backend="nccl")
    check(timeline)
    calls = timeline.calls.filter(pl.col("rank") == 0).sort("seq")
    assert (calls["enqueued_ns"][1:] < calls["completed_ns"][:-1]).all()
    names = [
        one["args"]["name"]
        for one in events(timeline)
        if one["name"] == "thread_name" and one["pid"] == 0
    ]
    assert names == ["host", "group 0", "group 0 (2)", "group 0 (3)"]


def test_a_file_names_ranks_and_groups(tmp_path: Path) -> None:
    timeline = case_timeline(4, n=2, backend="nccl")
    file = joinlab.write_chrome(timeline, tmp_path / "run.json")
    content = json.loads(file.read_text())
    names = {
        (one["name"], one["pid"], one["tid"]): one["args"]["name"]
        for one in content["traceEvents"]
        if "name" in one.get("args", {})
    }
    assert names["process_name", 0, 0] == f"rank 0: {timeline.ends[0]}"
    assert names["thread_name", 1, 1] == "group 0"
    assert content["otherData"]["backend"] == "nccl"
