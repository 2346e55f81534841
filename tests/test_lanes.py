"""Which box, where, and what it says."""

from __future__ import annotations

from itertools import pairwise

import pytest
from drawn import timelines
from hypothesis import given, settings
from hypothesis import strategies as st
from timelines import Writer, case_timeline

from joinlab.analysis.meanings import asks
from joinlab.picture.lanes import Box, Lane, lanes
from joinlab.picture.rows import RowKind
from joinlab.timeline import Ending, timeline_from_rows

DONE = Ending("finished")
AXES = st.sampled_from(["logical", "time"])


def numbered(row) -> str:
    return f"{row['group']}, {row['number'] or 'none: it was refused'} (seq {row['seq']})"


def stream(picture, rank=None) -> list[Box]:
    return [box for box in picture.boxes if box.lane is Lane.STREAM and rank in (None, box.rank)]


@settings(max_examples=50)
@given(timelines(), AXES)
def test_every_call_has_one_box_and_is_open_exactly_if_it_never_ended(timeline, axis):
    calls = timeline.calls.to_dicts()
    drawn = stream(lanes(timeline, axis, True))
    boxes = {(dict(box.details)["rank"], dict(box.details)["group, number"]): box for box in drawn}
    assert len(boxes) == len(calls)
    for call in calls:
        box = boxes[str(call["rank"]), numbered(call)]
        assert box.label == asks(call["origin"], call["op"])
        assert dict(box.details)["call"] == (call["origin"] or call["op"])
        assert box.open == (call["completed_ns"] is None and call["error"] is None)
        assert box.failed == (call["error"] is not None)


@settings(max_examples=50)
@given(timelines(), AXES, st.booleans())
def test_nothing_lies_outside_the_picture(timeline, axis, setup):
    picture = lanes(timeline, axis, setup)
    for box in picture.boxes:
        assert picture.begin <= box.begin <= box.end <= picture.end
    for cap in picture.caps:
        assert picture.begin <= cap.at <= picture.end
    assert [cap.rank for cap in picture.caps] == [0, 1, 2]
    assert picture.begin < picture.end


@settings(max_examples=50)
@given(timelines(), AXES)
def test_no_box_hides_another(timeline, axis):
    tracks: dict[tuple[int, Lane, bool, int], list[Box]] = {}
    for box in lanes(timeline, axis, True).boxes:
        assert box.track < box.tracks
        if box.begin < box.end:
            tracks.setdefault((box.rank, box.lane, box.kind is RowKind.WAIT, box.track), []).append(box)
    for boxes in tracks.values():
        for one, other in pairwise(sorted(boxes, key=lambda box: box.begin)):
            assert one.end <= other.begin


@settings(max_examples=50)
@given(timelines())
def test_rows_follow_each_ranks_order_of_issue(timeline):
    picture = lanes(timeline, setup=True)
    for rank in range(3):
        issued = [numbered(row) for row in timeline.calls.to_dicts() if row["rank"] == rank]
        drawn = sorted(stream(picture, rank), key=lambda box: box.begin)
        assert [dict(box.details)["group, number"] for box in drawn] == issued


@settings(max_examples=50)
@given(timelines(), AXES)
def test_bands_end_at_boxes_of_their_slot(timeline, axis):
    picture = lanes(timeline, axis, True)
    edges = {(box.slot, box.rank, box.begin, box.end) for box in stream(picture)}
    for band in picture.bands:
        assert band.a < band.b
        assert (band.slot, band.a, *band.at_a) in edges and (band.slot, band.b, *band.at_b) in edges
        assert band.bad == bool(band.text) and (band.met or band.bad)


def test_time_is_the_recorded_clock():
    writer = Writer(world_size=1)
    writer.call(0, "all_reduce", enqueued_ns=100, started_ns=150, completed_ns=300)
    writer.call(0, "all_reduce", enqueued_ns=400, completed_ns=500, host_wait_begin_ns=420, host_wait_end_ns=480)
    picture = lanes(writer.timeline([DONE]), "time")
    assert [(box.begin, box.end) for box in stream(picture)] == [(150, 300), (400, 500)]
    assert [(box.begin, box.end) for box in picture.boxes if box.kind is RowKind.WAIT][1] == (420, 480)
    assert picture.unit == "ns" and picture.begin == 100


def test_a_call_that_failed_ends_where_the_host_was_let_go():
    writer = Writer(world_size=1)
    writer.call(0, "all_reduce", done=False, error="gone", enqueued_ns=5, host_wait_begin_ns=6, host_wait_end_ns=90)
    (box,) = stream(lanes(writer.timeline([Ending("raised", text="gone")]), "time"))
    assert (box.begin, box.end, box.open, box.failed) == (5, 90, False, True)


def test_a_wait_on_the_host_is_apart_from_the_call():
    writer = Writer(world_size=1)
    writer.call(0, "all_reduce", waits=False)
    writer.call(0, "all_reduce", waits=True)
    waits = [box for box in lanes(writer.timeline([DONE])).boxes if box.kind is RowKind.WAIT]
    assert [(box.lane, dict(box.details)["group, number"]) for box in waits] == [(Lane.HOST, "0, 2 (seq 1)")]


def test_a_wait_for_ever_runs_to_where_the_lane_stops():
    picture = lanes(case_timeline(4, 2))
    waits = [box for box in picture.boxes if box.kind is RowKind.WAIT and box.open]
    assert [(box.rank, box.end) for box in waits] == [(cap.rank, cap.at) for cap in picture.caps]
    assert [cap.text for cap in picture.caps] == ["hung (proven)"] * 2


def test_case_4_on_gloo_shows_one_pair_that_can_never_meet():
    picture = lanes(case_timeline(4, 2))
    (band,) = [band for band in picture.bands if band.bad]
    assert not band.met
    assert [box.label for box in stream(picture) if box.bad] == ["anyone left?", "barrier"]
    (note,) = picture.notes
    assert note.bad and note.rank is None and note.text.startswith("≠ Face each other, but can never meet")


def test_case_4_on_nccl_shows_every_wrong_meeting_and_who_came_alone():
    picture = lanes(case_timeline(4, 2, backend="nccl", era="1.9"))
    assert [band.met for band in picture.bands if band.bad] == [True] * 4
    assert [note.rank for note in picture.notes] == [None] * 4 + [0]


def test_only_calls_that_differ_are_joined_by_a_bad_band():
    writer = Writer(world_size=4)
    for rank in range(3):
        writer.call(rank, "all_reduce", done=False)
    writer.call(3, "barrier", done=False)
    picture = lanes(writer.timeline([Ending("hung", proven=True)] * 4))
    assert [(band.a, band.b, band.bad) for band in picture.bands] == [(0, 1, False), (1, 2, False), (2, 3, True)]


@pytest.mark.parametrize("axis", ["logical", "time"])
def test_what_matched_is_folded_unless_asked_for(axis):
    timeline = case_timeline(1, 2)
    first = stream(lanes(timeline, axis), 0)[0]
    assert first.label == "DDP's setup" + ", earlier (not to scale)" * (axis == "time")
    assert dict(first.details)["folded"] == "DDP's setup: 2 calls, all matched"
    assert dict(first.details)["calls"].splitlines()[0] == "call 1: all-gather (DDP construction), int64[1]"
    assert len(stream(lanes(timeline, axis, setup=True))) == timeline.calls.height


def test_a_fold_keeps_the_waits_of_its_calls():
    picture = lanes(case_timeline(2, 2, backend="nccl"))
    waits = [box for box in picture.boxes if box.kind is RowKind.WAIT and box.rank == 0]
    assert [box.label for box in waits] == ["waits for 2 calls of these", "waits for broadcast (DDP bucket rebuild)"]


def test_rounds_that_matched_are_one_row():
    picture = lanes(case_timeline(4, 5, "nccl"))
    assert [box.label for box in stream(picture, 0)] == [
        "DDP's setup",
        "5 × forward, backward, barrier, and bucket rebuild",
        "anyone left?",
        "sync gradients?",
        "shadow gradient",
        "anyone left?",
        "who is last?",
        "final parameters",
    ]
    assert [group.label for group in picture.groups][1] == "inputs[0] to [4]"


def test_ranks_that_did_the_same_share_a_lane():
    writer = Writer(world_size=8)
    for rank in range(8):
        for number in range(5):
            writer.call(rank, "all_reduce", input=number, line=1)
        writer.call(rank, "barrier" if rank == 5 else "all_reduce", done=False, line=2)
    picture = lanes(writer.timeline([Ending("hung", call=5, group="0", proven=True)] * 8))
    assert picture.lanes == ("ranks 0-4, 6, 7", "rank 5")
    assert {box.rank for box in picture.boxes} == {0, 1} and [cap.rank for cap in picture.caps] == [0, 1]
    (note,) = picture.notes
    assert note.line == "≠ Face each other, but can never meet."


def test_up_to_four_ranks_keep_their_lanes():
    writer = Writer(world_size=4)
    for rank in range(4):
        writer.call(rank, "barrier")
    assert lanes(writer.timeline([DONE] * 4)).lanes == ("rank 0", "rank 1", "rank 2", "rank 3")


def test_groups_are_the_inputs():
    picture = lanes(case_timeline(4, 2))
    assert [group.label for group in picture.groups] == [
        "before the first input",
        "inputs[0] and inputs[1]",
        "inputs[2]",
    ]
    every = lanes(case_timeline(4, 2), setup=True).groups
    assert [group.label for group in every] == ["before the first input", *(f"inputs[{i}]" for i in range(3))]
    assert all(one.end == other.begin for one, other in pairwise(picture.groups))
    on_the_clock = lanes(case_timeline(4, 2), "time").groups
    assert [(group.rank, group.label) for group in on_the_clock] == [
        *((0, f"inputs[{i}]") for i in range(2)),
        *((1, f"inputs[{i}]") for i in range(3)),
    ]


def test_a_span_covers_the_calls_issued_in_it():
    rows = [{"rank": 0, "group": "0", "seq": i, "op": "all_reduce", "enqueued_ns": 10 * i} for i in range(4)]
    rows = [row | {"completed_ns": row["enqueued_ns"] + 1, "dtype": "float32", "shape": [[1]]} for row in rows]
    spans = [
        {"rank": 0, "name": "forward", "begin_ns": 10, "end_ns": 21},
        {"rank": 0, "name": "optimizer", "begin_ns": 21, "end_ns": 29},
        {"rank": 0, "name": "backward", "begin_ns": 30, "end_ns": None},
    ]
    timeline = timeline_from_rows(rows, [Ending("killed")], {"backend": "gloo"}, spans)
    picture = lanes(timeline, setup=True)
    calls = stream(picture)
    found = {box.label: box for box in picture.boxes if box.kind is RowKind.SPAN}
    assert (found["forward"].begin, found["forward"].end) == (calls[1].begin, calls[2].end)
    assert found["backward"].open and found["backward"].end == picture.caps[0].at
    assert "optimizer" not in found  # it issued no call: it has no place in an order of calls
    assert {box.label for box in lanes(timeline, "time").boxes if box.kind is RowKind.SPAN} == {*found, "optimizer"}


def test_a_call_at_the_moment_between_two_spans_is_of_the_second():
    rows = [{"rank": 0, "group": "0", "seq": i, "op": "all_reduce", "enqueued_ns": 10 * i} for i in range(3)]
    rows = [row | {"completed_ns": row["enqueued_ns"] + 1, "dtype": "float32", "shape": [[1]]} for row in rows]
    spans = [
        {"rank": 0, "name": "backward", "begin_ns": 0, "end_ns": 10},
        {"rank": 0, "name": "forward", "begin_ns": 10, "end_ns": 20},
        {"rank": 0, "name": "optimizer", "begin_ns": 20, "end_ns": 20},
    ]
    picture = lanes(timeline_from_rows(rows, [DONE], {"backend": "nccl"}, spans), setup=True)
    found = {box.label: (box.begin, box.end) for box in picture.boxes if box.kind is RowKind.SPAN}
    assert [found[name] for name in ("backward", "forward", "optimizer")] == [
        (box.begin, box.end) for box in stream(picture)
    ]


@pytest.mark.parametrize("axis", ["logical", "time"])
def test_a_timeline_without_calls_says_so(axis):
    picture = lanes(timeline_from_rows([], [DONE, Ending("killed", text="SIGKILL")], {"backend": "gloo"}), axis)
    assert picture.boxes == () and [note.text for note in picture.notes] == ["No call was recorded."]
    assert [cap.text for cap in picture.caps] == ["finished", "killed: SIGKILL"]


def test_another_axis_is_refused():
    with pytest.raises(ValueError, match="'logical' or 'time', not 'row'"):
        lanes(case_timeline(1, 1), "row")


def test_the_same_timeline_gives_the_same_lanes():
    assert lanes(case_timeline(4, 5)) == lanes(case_timeline(4, 5))
