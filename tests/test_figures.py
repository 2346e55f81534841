"""The Plotly figure: what it draws of the lanes, and the traps of Plotly that it keeps out of."""

from __future__ import annotations

import json
import math

import plotly.io as pio
import pytest
from drawn import timelines
from hypothesis import given, settings
from hypothesis import strategies as st
from timelines import Writer, case_timeline

from joinlab.picture.figures import CONFIG, figure, hover
from joinlab.picture.lanes import lanes
from joinlab.picture.rows import RowKind
from joinlab.timeline import Ending, timeline_from_rows

DONE = Ending("finished")


def bars(made, name):
    return next(trace for trace in made.data if trace.type == "bar" and trace.name == name)


def signs_of(made):
    return [trace for trace in made.data if trace.type == "scatter" and trace.mode == "markers+text"]


def leaves(value):
    if isinstance(value, dict):
        for one in value.values():
            yield from leaves(one)
    elif isinstance(value, list):
        for one in value:
            yield from leaves(one)
    else:
        yield value


@settings(max_examples=25)
@given(timelines(), st.sampled_from(["logical", "time"]), st.sampled_from(["columns", "rows"]))
def test_any_timeline_makes_a_figure_of_plain_finite_numbers(timeline, axis, ranks_as):
    made = json.loads(pio.to_json(figure(timeline, axis, ranks_as), engine="json"))
    assert all(math.isfinite(leaf) for leaf in leaves(made) if isinstance(leaf, float))
    for trace in made["data"]:
        if trace["type"] == "bar":
            colors = trace["marker"]["color"]
            assert all(isinstance(color, str) for color in ([colors] if isinstance(colors, str) else colors))


def test_one_bar_trace_a_kind_with_every_box():
    timeline = case_timeline(4, 2)
    made, picture = figure(timeline), lanes(timeline)
    for kind in RowKind:
        boxes = [box for box in picture.boxes if box.kind is kind]
        traces = [trace for trace in made.data if trace.type == "bar" and trace.name == kind.value]
        assert len(traces) == bool(boxes)
        for trace in traces:
            assert sorted(trace.base) == sorted(box.begin for box in boxes)


def test_ranks_stand_side_by_side_and_the_axis_runs_down():
    made = figure(case_timeline(1, 2), setup=True)
    assert made.layout.yaxis.range[0] > made.layout.yaxis.range[1]
    assert made.layout.xaxis.ticktext == ("host", "<b>rank 0</b>", "host", "<b>rank 1</b>")
    backward = bars(made, "DDP backward()")
    assert {math.floor(x) for x in backward.x} == {0, 1} and set(backward.text) == {"backward"}


def test_sideways_the_axis_runs_to_the_right():
    made = figure(case_timeline(1, 2), ranks_as="rows", setup=True)
    assert made.layout.xaxis.range[0] < made.layout.xaxis.range[1]
    assert bars(made, "DDP backward()").orientation == "h"
    assert {math.floor(y) for y in bars(made, "DDP backward()").y} == {0, 1}


def test_ranks_that_did_the_same_share_a_column():
    writer = Writer(world_size=8)
    for rank in range(8):
        writer.call(rank, "all_reduce", "all-reduce (DDP forward() 1)", line=rank // 7)
    made = figure(writer.timeline([DONE] * 8))
    assert [text for text in made.layout.xaxis.ticktext if text != "host"] == ["<b>ranks 0-6</b>", "<b>rank 7</b>"]
    assert set(bars(made, "DDP forward()").text) == {"forward 1"}
    assert made.layout.width is None  # as wide as the page


def test_still_more_ranks_get_a_wider_figure_that_scrolls():
    ends = [Ending("raised", text=f"error {'x' * rank}") for rank in range(16)]  # no two of them alike
    timeline = timeline_from_rows([], ends, {"backend": "gloo"})
    assert figure(timeline).layout.width > 16 * 100


def test_two_ranks_with_five_inputs_need_no_zooming():
    made = figure(case_timeline(4, 5))
    rows = made.layout.yaxis.range[0] - made.layout.yaxis.range[1]
    drawn = made.layout.height - made.layout.margin.t - made.layout.margin.b
    assert drawn / rows >= 22  # px a row: a label of 11 px fits
    assert made.layout.height < 1000


def test_calls_that_meet_are_joined_and_wrong_ones_are_marked():
    names = [trace.name for trace in figure(case_timeline(4, 2, backend="nccl", era="1.9")).data]
    assert "meet" in names and "met, but should not have" in names
    (signs,) = signs_of(figure(case_timeline(4, 2)))
    assert signs.text == ("≠",) and "can never meet" in signs.customdata[0]
    assert not signs_of(figure(case_timeline(1, 2)))


def test_what_never_completes_is_pale_and_without_an_edge():
    barrier = bars(figure(case_timeline(4, 2)), "barrier")
    width = barrier.marker.line.width
    assert 0 in width and [pale < 1 for pale in barrier.marker.opacity] == [one == 0 for one in width]


def test_the_tooltip_holds_every_detail_and_is_escaped():
    writer = Writer(world_size=1)
    writer.call(0, "all_reduce", "<b>evil</b>", call_site="<img src=x>:1", values=([1.0], [2.0]))
    (box,) = lanes(writer.timeline([DONE])).boxes[:1]
    said = hover(box)
    assert "<b>evil" not in said and "<img" not in said and "&lt;b&gt;evil" in said
    assert all(f"<b>{name}</b>" in said for name, _ in box.details)


def test_nothing_from_a_program_is_taken_for_markup():
    evil = "<script>alert(1)</script>"
    writer = Writer()
    writer.call(0, "all_reduce", evil, done=False)
    writer.call(1, "barrier", evil, done=False)
    timeline = writer.timeline([Ending("raised", text=evil), Ending("killed", text=evil)], program=evil)
    for axis in ("logical", "time"):
        assert "<script" not in pio.to_json(figure(timeline, axis), engine="json").replace("\\u003c", "<")


def test_endings_stand_below_the_lanes():
    timeline = case_timeline(2, 2)
    texts = [note.text for note in figure(timeline).layout.annotations]
    assert "✓ finished" in texts
    (raised,) = [text for text in texts if text.startswith("✕ raised")]
    assert "pair.cc" not in raised and "Connection closed by peer" in raised.replace("<br>", " ")


def test_a_call_left_pending_is_no_clean_ending():
    texts = [note.text for note in figure(case_timeline(2, 2, backend="nccl")).layout.annotations]
    assert "! finished (a call still pending)" in texts


def test_time_has_the_unit_that_fits():
    assert figure(case_timeline(1, 2), axis="time").layout.yaxis.title.text == "recorded time, µs"
    writer = Writer(world_size=1)
    writer.call(0, "all_reduce", enqueued_ns=0, completed_ns=50_000_000)
    made = figure(writer.timeline([DONE], engine="emulated"), axis="time")
    assert made.layout.yaxis.title.text == "modelled time, ms"
    assert bars(made, RowKind.REDUCE.value).y == (50.0,)


def test_a_timeline_without_calls_is_drawn():
    timeline = timeline_from_rows([], [DONE], {"program": "p", "backend": "gloo"})
    for axis in ("logical", "time"):
        for ranks_as in ("columns", "rows"):
            assert "✓ finished" in [note.text for note in figure(timeline, axis, ranks_as).layout.annotations]


def test_setup_is_shown_on_demand():
    assert "DDP's setup" in bars(figure(case_timeline(1, 2)), RowKind.FOLD.value).text
    unfolded = bars(figure(case_timeline(1, 2), setup=True), RowKind.SETUP.value).text
    assert unfolded.count("DDP's setup") == 4


def test_background_is_transparent_and_nothing_offers_a_cloud():
    layout = figure(case_timeline(1, 1)).layout
    assert layout.paper_bgcolor == layout.plot_bgcolor == "rgba(0,0,0,0)"
    assert CONFIG["showSendToCloud"] is False


def test_another_arrangement_is_refused():
    with pytest.raises(ValueError, match="'columns' or 'rows', not 'sideways'"):
        figure(case_timeline(1, 1), ranks_as="sideways")
    with pytest.raises(ValueError, match="'logical' or 'time'"):
        figure(case_timeline(1, 1), axis="clock")
