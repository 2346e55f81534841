"""The static picture: the boxes of the scene, as well-formed XML."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace

from hypothesis import given

from joinlab.cases import CASES
from joinlab.emulator.emulate import emulate
from joinlab.picture.first_screen import first_screen
from joinlab.picture.layout import Across
from joinlab.picture.svg import svg
from joinlab.picture.theme import FILLS
from joinlab.timeline import Ending
from tests.random_timelines import timelines
from tests.timelines import Writer, case_timeline

NS = "{http://www.w3.org/2000/svg}"


def texts(drawn):
    return ["".join(text.itertext()) for text in ET.fromstring(drawn).iter(f"{NS}text")]


@given(timelines())
def test_every_box_is_drawn_in_its_colour_where_it_lies(timeline):
    made = first_screen(timeline)
    found = [
        one.attrib
        for one in ET.fromstring(svg(made)).iter(f"{NS}rect")
        if one.get("class") == "fill"
    ]
    across = Across(made, 980)
    for index, column in enumerate(made.columns):
        for lane, box in column.boxes.items():
            if column.stack:
                continue
            rect = across.box(index, lane)
            here = {
                "x": f"{rect.x:.1f}",
                "y": f"{rect.y:.1f}",
                "height": f"{rect.h:.1f}",
                "fill": FILLS[box.kind],
            }
            assert any(here.items() <= one.items() for one in found)


def test_it_says_what_each_call_is_and_how_each_rank_ended():
    said = texts(svg(first_screen(case_timeline(4, 2)), heading="one of many"))
    assert {
        "anyone left?",
        "barrier",
        "≠",
        "rank 0",
        "2 inputs",
        "✕ waits…",
        "recorded",
        "one of many",
    } <= set(said)
    assert said[0].startswith("Rank 0 called")


def test_a_call_that_a_rank_left_behind_is_pending_and_one_that_it_waits_in_never_ends():
    for case, said in ((2, "left pending"), (3, "never ends")):
        drawn = texts(svg(first_screen(emulate(CASES[case].program, (2, 3)))))
        assert {"left pending", "never ends"} & set(drawn) == {said}


def test_a_call_of_a_rank_that_still_runs_may_end():
    screen = first_screen(emulate(CASES[3].program, (2, 3)))
    running = replace(screen, ends=(("…", "still running", "", ""),) * 2)
    assert {"never ends", "not ended"} & set(texts(svg(running))) == {"not ended"}


def test_nothing_from_a_program_is_taken_for_markup():
    writer = Writer(world_size=1)
    writer.call(0, "all_reduce", "<script>", call_site="</svg>")
    drawn = svg(first_screen(writer.timeline([Ending("killed", text="<b>")])), heading="<i>")
    assert (
        "<script" not in drawn
        and "<b>" not in drawn
        and "<i>" not in drawn
        and drawn.count("</svg>") == 1
    )
