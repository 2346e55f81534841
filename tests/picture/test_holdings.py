"""joinlab.who_holds: its table agrees with the Timeline, in words and colours."""

from __future__ import annotations

import re

import pytest

import joinlab
from joinlab import scenarios
from joinlab.picture.holdings import MAX_CHIPS
from joinlab.picture.tables import Table
from joinlab.timeline import Ending, EndKind, Timeline, timeline_from_rows


def lines(table: Table) -> list[str]:
    """Its call, and what each rank holds before and after, in words."""
    told = [table.columns[0]]
    for name, *cells in table.rows:
        holdings = (f"rank {rank}: {cell}" for rank, cell in enumerate(cells))
        told.append(f"{name!s:6}  " + ";  ".join(holdings))
    return told


def held(name: str, backend: str = "nccl") -> list[str]:
    run = joinlab.emulate(getattr(scenarios, name), (1, 1, 1), backend=backend)
    return lines(joinlab.who_holds(run))


OWN = "before  rank 0: [10 11];  rank 1: [20 21];  rank 2: [30 31]"
LISTS = "before  rank 0: [10] [11] [12];  rank 1: [20] [21] [22];  rank 2: [30] [31] [32]"
TABLES = {
    "broadcast": ["broadcast from rank 1", OWN, "after   rank 0: [20 21];  rank 1: [20 21];  rank 2: [20 21]"],
    "reduce": ["reduce (sum) to rank 1", OWN, "after   rank 0: as before;  rank 1: [60 63];  rank 2: as before"],
    "all_reduce": ["all-reduce (sum)", OWN, "after   rank 0: [60 63];  rank 1: [60 63];  rank 2: [60 63]"],
    "gather": [
        "gather to rank 0", OWN, "after   rank 0: [10 11] [20 21] [30 31];  rank 1: as before;  rank 2: as before"
    ],
    "all_gather": ["all-gather", OWN, "after   " + ";  ".join(f"rank {r}: [10 11] [20 21] [30 31]" for r in range(3))],
    "scatter": [
        "scatter from rank 0",
        "before  rank 0: [10] [11] [12];  rank 1: nothing to give;  rank 2: nothing to give",
        "after   rank 0: [10];  rank 1: [11];  rank 2: [12]",
    ],
    "reduce_scatter": ["reduce-scatter (sum)", LISTS, "after   rank 0: [60];  rank 1: [63];  rank 2: [66]"],
    "all_to_all": [
        "all-to-all", LISTS, "after   rank 0: [10] [20] [30];  rank 1: [11] [21] [31];  rank 2: [12] [22] [32]"
    ],
    "send_and_recv": [
        "send on rank 0 and recv on rank 1",
        "before  rank 0: [10 11];  rank 1: nothing to give;  rank 2: takes no part",
        "after   rank 0: as before;  rank 1: [10 11];  rank 2: takes no part",
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
def test_before_and_after(name):
    title, before, after = TABLES[name]
    assert held(name) == [title, before, after]


def test_a_gloo_barrier_holds_nothing():
    assert held("barrier", "gloo")[0] == "barrier"
    assert "no tensor" in held("barrier", "gloo")[1]


def test_what_gloo_leaves_on_the_other_ranks_of_a_reduce_is_shown():
    assert "rank 0: [60 63]" in held("reduce", "gloo")[2]


def html(timeline: Timeline) -> str:
    return joinlab.who_holds(timeline)._repr_html_()


def test_a_chip_that_travelled_says_where_from():
    text = html(joinlab.emulate(scenarios.broadcast, (1, 1, 1)))
    assert "{" not in text  # no style is left to be filled in
    _, after = text.split(">after<")
    assert re.findall(r'title="([^"]*)"', after) == ["from rank 1"] * 6
    assert 'scope="col"' in text
    assert 'scope="row"' in text


def test_a_sum_comes_from_no_single_rank():
    _, after = html(joinlab.emulate(scenarios.all_reduce, (1, 1, 1))).split(">after<")
    assert set(re.findall(r'title="([^"]*)"', after)) == {"computed from several ranks"}


def made(
    value_in: str | None, value_out: str | None, done: bool = True, op: str = "all_gather"
) -> Timeline:
    row = {"group": "0", "seq": 0, "op": op, "origin": op, "shape": [[1]], "enqueued_ns": 0}
    row |= {"value_in": value_in, "value_out": value_out, "completed_ns": 1 if done else None}
    ends = [Ending(EndKind.FINISHED)] * 2
    return timeline_from_rows(
        [{"rank": rank, **row} for rank in range(2)], ends, {"backend": "nccl"}
    )


def test_what_two_ranks_held_alike_is_claimed_for_neither():
    assert "from rank" not in html(made("[[1.0]]", "[[1.0],[1.0]]")).split(">after<")[1]


def test_incomplete_and_too_large_values_are_labelled():
    assert (
        "rank 0: never completed" in lines(joinlab.who_holds(made("[[1.0]]", None, done=False)))[2]
    )
    assert "before  rank 0: too large to show" in lines(joinlab.who_holds(made(None, None)))[1]


def test_many_values_are_cut():
    values = ",".join(map(str, range(100)))
    assert (
        html(made(f"[[{values}]]", None)).split(">after<")[0].count("<span title") == 2 * MAX_CHIPS
    )


def test_an_unknown_slot_is_refused():
    with pytest.raises(IndexError, match="1 slots, so there is no slot 1"):
        joinlab.who_holds(made("[[1.0]]", "[[1.0]]"), 1)
    assert joinlab.who_holds(made("[[1.0]]", "[[1.0]]"), -1).columns[0] == "all-gather"


def test_text_from_a_program_cannot_become_markup():
    assert "<b>" not in html(made("[[1.0]]", "[[1.0]]", op="<b>"))


def test_anything_but_a_timeline_is_refused_in_a_sentence():
    with pytest.raises(joinlab.ProgramError, match=r"takes a Timeline.* got 'all_gather'"):
        joinlab.who_holds("all_gather")
