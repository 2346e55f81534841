"""The Chrome trace: every call is a slice, every meeting a flow that begins and ends inside its slices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_programs import draw, program_of
from timelines import case_timeline

import joinlab
from joinlab.analysis.matching import match
from joinlab.picture.chrome import events


def of_kind(found: list[dict[str, Any]], phase: str) -> list[dict[str, Any]]:
    return [event for event in found if event["ph"] == phase]


def check(timeline: joinlab.Timeline) -> None:
    found = list(events(timeline))
    json.dumps(found, allow_nan=False)
    slices, begins, ends = (of_kind(found, phase) for phase in "Xsf")
    calls = [one for one in slices if "completed" in one.get("args", {})]
    assert len(calls) == timeline.calls.height
    assert sum(not one["args"]["completed"] for one in calls) == timeline.calls["completed_ns"].null_count()
    waits = timeline.calls["host_wait_begin_ns"].drop_nulls().len()
    assert len(slices) == timeline.calls.height + waits + timeline.spans.height
    assert len(begins) == len(ends) == sum(len(slot.calls) - 1 for slot in match(timeline) if slot.met)
    assert [one["id"] for one in begins] == [one["id"] for one in ends] == list(range(1, len(begins) + 1))
    at = {(one["pid"], one["tid"], one["ts"]) for one in calls}
    assert all((one["pid"], one["tid"], one["ts"]) in at for one in (*begins, *ends))


@pytest.mark.parametrize("case", range(1, 7))
@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_every_call_is_a_slice_and_every_meeting_a_flow(case: int, backend: str) -> None:
    check(case_timeline(case, n=2, backend=backend))


@given(st.integers(0, 10_000))
def test_programs_drawn_at_random(seed: int) -> None:
    plan = draw(seed)
    check(joinlab.emulate(program_of(plan), plan.counts, backend=("gloo", "nccl")[seed % 2]))


def test_a_file_names_ranks_and_groups(tmp_path: Path) -> None:
    timeline = case_timeline(4, n=2, backend="nccl")
    file = timeline.to_chrome(tmp_path / "run.json")
    content = json.loads(file.read_text())
    assert file == joinlab.write_chrome(timeline, tmp_path / "run.json")
    names = {
        (one["name"], one["pid"], one["tid"]): one["args"]["name"]
        for one in content["traceEvents"]
        if "name" in one.get("args", {})
    }
    assert names["process_name", 0, 0] == f"rank 0: {timeline.ends[0]}"
    assert names["thread_name", 1, 1] == "group 0"
    assert content["otherData"]["backend"] == "nccl"
