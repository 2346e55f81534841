"""The hand-out: every position of its controls, and the content there."""

from __future__ import annotations

import base64
import re

import pytest

from joinlab.cases import CASES
from joinlab.course.handout import BARRIERS, write_handout
from tests.random_timelines import lane_data


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> str:
    path = write_handout(tmp_path_factory.mktemp("handout") / "cases.html", most=1, progress=False)
    return path.read_text("utf-8")


def data_of(page):
    return lane_data(base64.b64decode(re.search(r'id="data">(.*?)</script>', page)[1]))[0]


def test_every_position_has_its_own_run(page):
    data = data_of(page)
    runs = data["positions"]["runs"]
    assert len(runs) == len(CASES) and {name.partition(":")[0] for name in runs} == {
        f"Case {n}" for n in CASES
    }
    assert {tuple(settings) for settings in runs.values()} == {tuple(BARRIERS.values())}
    numbers = {number for by in runs.values() for at in by.values() for number in at.values()}
    assert numbers == set(range(len(data["runs"])))
    for number, (name, settings) in zip(CASES, runs.items(), strict=True):
        for by_inputs in settings.values():
            for inputs, at in by_inputs.items():
                title = data["runs"][at]["title"]
                assert (
                    title
                    == f"case_{number}, inputs ({inputs.replace(',', ', ')}), emulated on nccl"
                ), name


def test_without_a_barrier_both_eras_look_the_same(page):
    data = data_of(page)
    runs = data["positions"]["runs"]
    for (number, case), settings in zip(CASES.items(), runs.values(), strict=True):
        today, before = (
            [data["runs"][at] for at in by_inputs.values()] for by_inputs in settings.values()
        )
        same = all(
            one["scene"]["columns"] == other["scene"]["columns"]
            for one, other in zip(today, before, strict=True)
        )
        assert same or case.knobs["1.9"], number
        assert not same or number != 4


def test_it_says_that_its_times_are_modelled(page):
    assert "Modelled: PyTorch&#x27;s own code on a modelled nccl" in page


def test_it_opens_on_today_s_barrier(page):
    program, barrier, inputs = data_of(page)["positions"]["start"]
    assert (program, barrier, inputs) == (f"{CASES[4].title}.", BARRIERS["today"], [1, 1])
