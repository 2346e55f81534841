"""The Plotly figure: how it draws the lanes, and the pitfalls of Plotly that it avoids."""

from __future__ import annotations

import json
import math

import plotly.io as pio
from hypothesis import given, settings
from hypothesis import strategies as st

from joinlab.picture.details import call_details
from joinlab.picture.figures import CONFIG, figure, hover
from joinlab.picture.rows import RowKind
from joinlab.picture.scene import scene
from joinlab.timeline import Ending, timeline_from_rows
from tests.drawn import timelines
from tests.timelines import Writer, case_timeline

DONE = Ending("finished")


def bars(made, name):
    return next(trace for trace in made.data if trace.type == "bar" and trace.name == name)


def signs_of(made):
    return [
        trace for trace in made.data if trace.type == "scatter" and trace.mode == "markers+text"
    ]


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
@given(timelines(), st.booleans())
def test_any_timeline_makes_a_figure_of_plain_finite_numbers(timeline, setup):
    made = json.loads(pio.to_json(figure(timeline, setup), engine="json"))
    assert all(math.isfinite(leaf) for leaf in leaves(made) if isinstance(leaf, float))
    for trace in made["data"]:
        if trace["type"] == "bar":
            colors = trace["marker"]["color"]
            assert all(
                isinstance(color, str)
                for color in ([colors] if isinstance(colors, str) else colors)
            )


def test_one_bar_trace_a_kind_with_every_box():
    timeline = case_timeline(4, 2)
    made, boxes = figure(timeline), [box for one in scene(timeline).columns for box in one.drawn]
    for kind in RowKind:
        traces = [trace for trace in made.data if trace.type == "bar" and trace.name == kind.value]
        assert sum(len(trace.base) for trace in traces) == sum(box.kind is kind for box in boxes)


def test_ranks_stand_side_by_side_and_the_axis_runs_down():
    made = figure(case_timeline(1, 2), setup=True)
    assert made.layout.yaxis.range[0] > made.layout.yaxis.range[1]
    assert [text[:13] for text in made.layout.xaxis.ticktext] == ["<b>rank 0</b>", "<b>rank 1</b>"]
    backward = bars(made, "DDP backward()")
    assert {math.floor(x) for x in backward.x} == {0, 1} and set(backward.text) == {"backward"}


def test_still_more_ranks_get_a_wider_figure_that_scrolls():
    ends = [
        Ending("raised", text=f"error {'x' * rank}") for rank in range(16)
    ]  # no two of them alike
    timeline = timeline_from_rows([], ends, {"backend": "gloo"})
    assert figure(timeline, setup=True).layout.width > 16 * 100


def test_two_ranks_with_five_inputs_need_no_zooming():
    assert figure(case_timeline(4, 5)).layout.height < 1000


def test_calls_that_should_not_meet_are_marked():
    (signs,) = signs_of(figure(case_timeline(4, 2)))
    assert signs.text == ("≠",) and "can never meet" in signs.customdata[0]
    assert not signs_of(figure(case_timeline(1, 2)))


def test_what_never_completes_is_pale():
    barrier = bars(figure(case_timeline(4, 2)), "barrier")
    assert barrier.marker.opacity == (0.45,) and barrier.marker.line.width == (
        2.5,
    )  # and it met what it should not


def test_the_tooltip_holds_every_detail_and_is_escaped():
    writer = Writer(world_size=1)
    writer.call(0, "all_reduce", "<b>evil</b>", call_site="<img src=x>:1", values=([1.0], [2.0]))
    (row,) = writer.timeline([DONE]).rows("calls")
    said = hover(row)
    assert "<b>evil" not in said and "<img" not in said and "&lt;b&gt;evil" in said
    assert all(f"<b>{name}</b>" in said for name, _ in call_details(row, True))


def test_nothing_from_a_program_is_taken_for_markup():
    evil = "<script>alert(1)</script>"
    writer = Writer()
    writer.call(0, "all_reduce", evil, done=False)
    writer.call(1, "barrier", evil, done=False)
    timeline = writer.timeline(
        [Ending("raised", text=evil), Ending("killed", text=evil)], program=evil
    )
    assert "<script" not in pio.to_json(figure(timeline), engine="json").replace("\\u003c", "<")


def test_endings_stand_at_the_lanes():
    names = figure(case_timeline(2, 2)).layout.xaxis.ticktext
    assert "✓ finished" in names[0] and "✕ raised" in names[1]
    assert (
        "! finished (a call still<br>pending)"
        in figure(case_timeline(2, 2, backend="nccl")).layout.xaxis.ticktext[1]
    )


def test_background_is_transparent_and_nothing_offers_a_cloud():
    layout = figure(case_timeline(1, 1)).layout
    assert layout.paper_bgcolor == layout.plot_bgcolor == "rgba(0,0,0,0)"
    assert CONFIG["showSendToCloud"] is False
