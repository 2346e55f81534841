"""The static picture: the same boxes as the lanes, as well-formed XML."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

from drawn import timelines
from hypothesis import given, settings
from hypothesis import strategies as st
from timelines import Writer, case_timeline

from joinlab.cases import case_4
from joinlab.emulator.emulate import emulate
from joinlab.picture.lanes import lanes
from joinlab.picture.layout import outlines
from joinlab.picture.svg import svg
from joinlab.timeline import Ending, timeline_from_rows

NS = "{http://www.w3.org/2000/svg}"


@settings(max_examples=25)
@given(timelines(), st.sampled_from(["logical", "time"]))
def test_every_box_has_its_tooltip_in_well_formed_xml(timeline, axis):
    picture = lanes(timeline, axis)
    drawn = ET.fromstring(svg(picture))
    assert len(drawn.findall(f".//{NS}title")) == len(picture.boxes)


def test_it_says_what_each_call_is_and_how_each_rank_ended():
    drawn = ET.fromstring(svg(lanes(case_timeline(4, 2))))
    texts = [text.text for text in drawn.iter(f"{NS}text")]
    assert "anyone left?" in texts
    assert texts.count("✕ hung (proven)") == 2
    assert "≠" in texts and {"rank 0", "rank 1", "inputs[2]"} <= set(texts)


def test_the_picture_in_the_readme_is_what_is_drawn_today():
    kept = ET.fromstring((Path(__file__).parent.parent / "data" / "case_4.svg").read_text("utf-8"))
    texts = [
        [text.text for text in of.iter(f"{NS}text")]
        for of in (kept, ET.fromstring(svg(lanes(emulate(case_4, (2, 3))))))
    ]
    assert texts[0][1:] == texts[1]  # it has a heading besides


def test_a_mismatch_that_follows_another_stands_back():
    drawn = svg(lanes(case_timeline(4, 2, "nccl", "1.9")))
    assert drawn.count('fill="#FFE8D9"') == 1 and drawn.count("Still out of step") == 3


def test_a_band_of_a_subgroup_stops_at_the_lanes_of_other_ranks():
    writer = Writer(world_size=3, groups={"ends": [0, 2], "all": [0, 1, 2]})
    for rank in (0, 2):
        writer.call(rank, "all_reduce", group="ends")
    for rank in range(3):
        writer.call(rank, "all_reduce", group="all")
    picture = lanes(writer.timeline([Ending("finished")] * 3))
    drawn = [outlines(band) for band in picture.bands]
    assert [len(one) for one in drawn] == [3, 1, 1]
    solid = [{across for across, _ in shape} for shape in drawn[0] if len(shape) > 2]
    assert all(across <= 1 or across >= 2 for sides in solid for across in sides)  # rank 1's lane is from 1 to 2
    assert svg(picture).count("<polyline") == 1


def test_hatchings_are_named_by_the_picture():
    drawn = svg(lanes(case_timeline(4, 2)), name="one")
    assert 'id="one-wait"' in drawn and "url(#one-wait)" in drawn


def test_nothing_from_a_program_is_taken_for_markup():
    writer = Writer(world_size=1)
    writer.call(0, "all_reduce", "<script>", call_site="</svg>")
    drawn = svg(lanes(writer.timeline([Ending("killed", text="<b>")])))
    assert "<script" not in drawn and "<b>" not in drawn and drawn.count("</svg>") == 1


def test_a_timeline_without_calls_is_drawn():
    drawn = svg(lanes(timeline_from_rows([], [Ending("finished")], {"backend": "gloo"})))
    assert "No call was recorded." in [text.text for text in ET.fromstring(drawn).iter(f"{NS}text")]
