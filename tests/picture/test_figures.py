"""The Plotly figure: how it draws the lanes, and the pitfalls of Plotly that it avoids."""

from __future__ import annotations

import json
import math
from pathlib import Path

import plotly.io as pio
import pytest
from hypothesis import given

import joinlab
from joinlab.picture.columns import call_times
from joinlab.picture.details import call_details
from joinlab.picture.figures import CALLS, PROGRAM, _track_rows, figure, hover
from joinlab.picture.lane_data import pack
from joinlab.timeline import Ending
from tests.random_timelines import lane_data, timelines
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


def bars_on(made, lane, track):
    """The bars of a lane's track, as (trace, index, begin, end), in order."""
    top, high = lane + track[0] - 0.01, track[1] + 0.02
    return sorted(
        (
            (trace, index, trace.base[index], trace.base[index] + trace.x[index])
            for trace in made.data
            if trace.type == "bar"
            for index, y in enumerate(trace.y)
            if top < y < top + high
        ),
        key=lambda bar: bar[2],
    )


@given(timelines())
def test_any_timeline_makes_a_figure_of_plain_finite_numbers(timeline):
    made = json.loads(pio.to_json(figure(timeline), engine="json"))
    assert all(math.isfinite(leaf) for leaf in leaves(made) if isinstance(leaf, float))
    for trace in made["data"]:
        if trace["type"] == "bar":
            colors = trace["marker"]["color"]
            assert all(
                isinstance(color, str)
                for color in ([colors] if isinstance(colors, str) else colors)
            )


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_each_call_stands_where_the_clock_had_it(backend):
    timeline = case_timeline(4, 2, backend)
    made = figure(timeline)
    for rank in (0, 1):
        drawn = bars_on(made, rank, CALLS)
        calls = timeline.calls.filter(timeline.calls["rank"] == rank)
        begun, ended, *_ = call_times(calls)
        assert [begin * 1e6 for _, _, begin, _ in drawn] == pytest.approx(sorted(begun.tolist()))
        right = made.layout.xaxis.range[1] * 1e6
        ends = [right if end < 0 else end for end in ended.tolist()]
        assert sorted(end * 1e6 for *_, end in drawn) == pytest.approx(sorted(ends), abs=2)


def test_below_a_ranks_calls_is_its_program_hatched_where_it_waits():
    timeline = joinlab.emulate(joinlab.cases.case_4, (2, 3), "gloo")
    made = figure(timeline)
    waits = {"host waits": "/", "host works": ""}
    for rank in (0, 1):
        drawn = bars_on(made, rank, PROGRAM)
        assert all(trace.marker.pattern.shape == waits[trace.name] for trace, *_ in drawn)
        texts = [trace.customdata[index] for trace, index, *_ in drawn]
        names = [trace.text[index] for trace, index, *_ in drawn if trace.name == "host works"]
        assert set(names) == {"forward", "backward"}  # "forward 2" is a call
        assert sum(text.startswith("<b>backward of input 1</b>: ") for text in texts) == 1
        waited = timeline.calls.filter(timeline.calls["rank"] == rank)["host_wait_begin_ns"]
        assert sum(": " in text and "waits in" in text for text in texts) == waited.count()
    assert "waits in barrier</b>: it never ends" in texts[-1]


def test_calls_in_flight_at_once_lie_below_each_other():
    assert _track_rows([0, 1, 5, 20], [10, 4, 8, 30]) == [(0, 2), (1, 2), (1, 2), (0, 1)]
    assert _track_rows([0, 1, 2, 3, 40], [-1, 5, 6, 7, 50]) == [(row, 4) for row in (0, 1, 2, 3, 1)]
    never = [-1] * 8  # the first, in which the rest is held up, stays in sight
    assert _track_rows([*range(8)], never) == [(min(row, 5), 6) for row in range(8)]


def test_every_call_that_is_pending_is_in_sight_with_its_name():
    writer = Writer(world_size=1)
    for op in ("all_reduce", "all_gather", "broadcast", "barrier"):
        writer.call(0, op, done=False)
    made = figure(writer.timeline([Ending("finished", pending=True, call=0)]))
    drawn = bars_on(made, 0, CALLS)
    texts = sorted(trace.text[index] for trace, index, *_ in drawn)
    assert texts == ["all-gather", "all-reduce", "barrier", "broadcast"]
    assert len({trace.y[index] for trace, index, *_ in drawn}) == 4
    lane = made.layout.height - made.layout.margin.t - 150
    assert all(trace.width[index] * lane > 17 for trace, index, *_ in drawn)  # px


def test_a_run_without_a_length_has_the_same_axis_in_both_pictures():
    writer = Writer()
    for rank in (0, 1):
        writer.call(rank, "barrier", done=False, waits=False, enqueued_ns=0)
    run = writer.timeline([Ending("hung", call=0, proven=True)] * 2)
    data, _ = lane_data(pack(run))
    (raw,) = data["runs"]
    assert raw["columns"]["end"] == figure(run).layout.xaxis.range[1] == 180  # ns


def test_the_axis_has_a_unit_and_says_whether_times_were_modelled():
    modelled = joinlab.emulate(joinlab.cases.case_1, (1, 2))
    assert figure(modelled).layout.xaxis.title.text == "ms, modelled"
    assert figure(case_timeline(1, 2)).layout.xaxis.title.text == "ms, recorded"


def test_a_call_that_failed_does_not_run_on():
    writer = Writer(world_size=1)
    writer.call(0, "all_reduce", "mine", done=False, error="RuntimeError: gone")
    made = figure(writer.timeline([DONE]))
    ((trace, index, _begin, end),) = bars_on(made, 0, CALLS)
    assert end < made.layout.xaxis.range[1] and trace.marker.opacity[index] == 1.0
    assert trace.marker.line.width[index] == 2.5


def test_ranks_that_did_the_same_share_a_lane():
    made = figure(joinlab.emulate(joinlab.cases.case_4, (2,) * 7 + (3,)))
    assert [text.split("<br>")[0] for text in made.layout.yaxis.ticktext] == [
        "<b>ranks 0-6</b>",
        "<b>rank 7</b>",
    ]


def test_the_title_is_the_headline_and_below_it_stands_what_was_run():
    made = figure(case_timeline(4, 2)).layout.title
    assert (
        made.text.endswith("rank 1 called barrier. Both ranks hang.")
        and "inputs (2, 3)" in made.subtitle.text
    )


def test_above_the_lanes_stand_the_lines_where_ranks_part_and_the_edit_that_was_tried():
    made = figure(joinlab.emulate(joinlab.cases.case_4, (2, 3))).layout
    _, *lines = made.title.subtitle.text.split("<br>")
    assert [line.partition(" ")[2] for line in lines if "◂" in line] == [
        "with model.join(): ◂ rank 0",
        "for input in inputs: ◂ ranks 0, 1",
        "- dist.barrier() ◂ rank 1",
    ]
    assert lines[-1] == "Tried: both finish." and "+ dist.barrier()" in lines
    assert (made.title.y, made.title.yanchor) == (1, "top")
    assert made.margin.t - figure(case_timeline(1, 2)).layout.margin.t == 16 * len(lines)


def test_calls_that_should_not_meet_are_marked():
    (signs,) = signs_of(figure(case_timeline(4, 2)))
    names, sign = signs.text
    assert names.strip() == "<b>anyone left? ≠ barrier</b>" and sign == "≠"
    assert "can never meet" in signs.customdata[0]
    assert not signs_of(figure(case_timeline(1, 2)))


def test_what_never_completes_is_pale():
    barrier = bars(figure(case_timeline(4, 2)), "barrier")
    assert barrier.marker.opacity[-1] == 0.55 and barrier.marker.line.width[-1] == 2.5
    assert set(barrier.marker.opacity[:-1]) == {1.0}


def test_the_tooltip_holds_every_detail_and_is_escaped():
    writer = Writer(world_size=1)
    writer.call(0, "all_reduce", "<b>evil</b>", call_site="<img src=x>:1", values=([1.0], [2.0]))
    (row,) = writer.timeline([DONE]).rows("calls")
    said = hover(row, {})
    assert "<b>evil" not in said and "<img" not in said and "&lt;b&gt;evil" in said
    assert all(f"<b>{name}</b>" in said for name, _ in call_details(row, True, {}))


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
    names = figure(case_timeline(2, 2)).layout.yaxis.ticktext
    assert "✓ finished" in names[0] and "✕ raises<br>RuntimeError" in names[1]
    pending = figure(case_timeline(2, 2, backend="nccl")).layout.yaxis.ticktext[1]
    assert pending.endswith("✓ finished<br>call pending")


def test_background_is_transparent():
    layout = figure(case_timeline(1, 1)).layout
    assert layout.paper_bgcolor == layout.plot_bgcolor == "rgba(0,0,0,0)"


def test_the_axis_of_a_log_that_tells_no_times_has_no_numbers():
    log = Path(__file__).parents[1] / "material" / "logs" / "watchdog_2_4.log"
    axis = figure(joinlab.load(log)).layout.xaxis
    assert axis.title.text == "no times on record" and not axis.showticklabels
