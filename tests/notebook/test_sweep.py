"""The map of endings: each cell agrees with an emulation of those counts."""

from __future__ import annotations

import base64
import re
from html import unescape

import pytest

import joinlab
from joinlab import cases
from joinlab.errors import ProgramError
from joinlab.notebook.sweep import Overall, pairs, sweep
from tests.random_timelines import lane_data
from tests.timelines import same_timelines


@pytest.fixture(scope="module")
def found():
    return sweep(cases.case_4, range(3), backend="nccl")


def test_case_4_hangs_off_the_diagonal(found):
    assert {counts: how is Overall.HANGS for counts, how in found.overall.items()} == {
        (x, y): x != y for x in range(3) for y in range(3)
    }
    assert found.hangs[0] == (0, 1) and (2, 2) not in found.hangs


def test_every_cell_is_an_emulation_of_its_own(found):
    for counts, timeline in found.timelines.items():
        assert same_timelines(timeline, joinlab.emulate(cases.case_4, counts, "nccl"))


def test_a_run_that_finishes_by_luck_is_no_run_that_finishes():
    lucky = sweep(cases.case_4, [(2, 5)], era="1.9")
    assert [str(end) for end in lucky.timelines[2, 5].ends] == ["finished", "finished"]
    assert lucky.overall == {(2, 5): Overall.LUCK}


def test_the_worst_ending_is_the_overall_one():
    def program(rank, inputs):
        if len(inputs) == 2:
            raise RuntimeError("two")

    assert set(sweep(program, [(1,), (2,), (1, 2)]).overall.values()) == {
        Overall.FINISHES,
        Overall.RAISES,
    }


def test_it_shows_its_map_by_itself(found):
    assert repr(found).splitlines() == [
        "<Sweep of 'case_4': 3 x all ranks finish, 6 x a rank hangs>",
        "  2  ✕  ✕  ·",
        "  1  ✕  ·  ✕",
        "  0  ·  ✕  ✕",
        "     0  1  2   inputs: rank 0 across, rank 1 upward",
    ]
    page = unescape(found._repr_html_())
    packed = base64.b64decode(re.search(r'id="data">(.*?)</script>', page)[1])
    positions = lane_data(packed)[0]["positions"]
    kinds = [kind["sign"] for kind in positions["map"]["kinds"]]
    assert {
        counts: kinds[kind]
        for counts, kind in positions["map"]["cells"].items()
        if counts[0] == "0"
    } == {
        "0,0": "·",
        "0,1": "✕",
        "0,2": "✕",
    }
    assert positions["start"][2] == [0, 1]  # it starts where it hangs


def test_any_number_of_ranks_can_be_asked_and_two_have_a_map():
    three = sweep(cases.case_1, [(1, 1, 2)])
    assert list(three.overall) == [(1, 1, 2)]
    assert (
        three._repr_html_() is None and repr(three) == "<Sweep of 'case_1': 1 x all ranks finish>"
    )


@pytest.mark.parametrize(
    ("counts", "message"), [(7, "counts="), ([(1, -1)], "0 inputs"), (["56"], "inputs=")]
)
def test_counts_that_are_none_are_refused(counts, message):
    with pytest.raises(ProgramError, match=message):
        pairs(counts)


def test_the_run_that_a_map_begins_with_has_its_fix():
    found = sweep(cases.case_4, range(3))
    assert found._repr_html_() and found.timelines[found.hangs[0]].live.mended
