"""Rows of a picture: the kind of each call, which calls share a row, and the order of rows."""

from __future__ import annotations

import pytest
from hypothesis import given

from joinlab.analysis.matching import Matched
from joinlab.cases import DOCUMENTED
from joinlab.picture.first_screen import first_screen
from joinlab.picture.rows import RowKind, kind, plan
from joinlab.timeline import Ending
from tests.random_timelines import timelines
from tests.timelines import Writer, case_timeline, documented_rows

DONE = Ending("finished")


def planned(matched):
    return plan(matched, {})


def rows(timeline):
    return timeline.calls.to_dicts()


@given(timelines())
def test_every_call_is_in_one_step_and_after_those_its_rank_issued_before(timeline):
    calls = rows(timeline)
    drawn = [row for step in planned(Matched(timeline)) for row in step.rows]
    assert len(drawn) == len(calls)
    for rank in range(3):
        of_rank = [row for row in drawn if row["rank"] == rank]
        assert of_rank == [row for row in calls if row["rank"] == rank]


def test_setup_that_went_wrong_is_not_stacked():
    writer = Writer(backend="nccl")
    for rank in (0, 1):
        for root in (0, 0, rank):
            writer.call(rank, "broadcast", "broadcast (DDP construction)", root=root, line=1)
    made = first_screen(writer.timeline([DONE, DONE]))
    assert [(bool(one.stack), one.flag in ("wrong", "apart")) for one in made.columns] == [
        (True, False),
        (False, True),
    ]


@pytest.mark.parametrize("case", DOCUMENTED)
def test_unfolded_rows_are_those_of_the_matching(case):
    timeline = case_timeline(case, backend="nccl", era="1.9")
    ours = [
        {row["rank"]: row["origin"] for row in step.rows} for step in planned(Matched(timeline))
    ]
    assert [(row.get(0), row.get(1)) for row in ours] == [
        row[1:] for row in documented_rows(timeline, setup=True)
    ]


def test_calls_issued_crosswise_get_a_row_each():
    writer = Writer(groups={"0": [0, 1], "other": [0, 1]})
    writer.call(0, "all_reduce", "a", done=False)
    writer.call(0, "all_reduce", "b", group="other", done=False)
    writer.call(1, "all_reduce", "b", group="other", done=False)
    writer.call(1, "all_reduce", "a", done=False)
    timeline = writer.timeline([Ending("hung", proven=True)] * 2)
    assert len(planned(Matched(timeline))) == 3  # one slot whole, the other in two rows
    assert sorted(len(step.rows) for step in planned(Matched(timeline))) == [1, 1, 2]


def test_a_wrong_meeting_says_what_boxes_do_not_show():
    matched = Matched(case_timeline(4, 2, backend="nccl", era="1.9"))
    steps = [step for step in planned(matched) if not matched.slots[step.slot].expected]
    assert len(steps) == 4
    assert (
        steps[0].text == "Met, but should not have: rank 0 with float32[1]; rank 1 with uint8[1]."
    )


def test_a_rank_that_never_came_is_named_once():
    texts = [step.text for step in planned(Matched(case_timeline(4, 2, backend="nccl", era="1.9")))]
    assert [text for text in texts if "Nothing" in text] == [
        "Nothing meets this call: rank 1 never issued one."
    ]


def test_alike_calls_of_other_ranks_are_grouped():
    writer = Writer(world_size=4)
    for rank in range(3):
        writer.call(rank, "all_reduce", "mine", done=False)
    writer.call(3, "all_reduce", "mine", shape=[[2]], done=False)
    (step,) = planned(Matched(writer.timeline([Ending("hung", proven=True)] * 4)))
    assert step.text.endswith(": ranks 0-2 with float32[1]; rank 3 with float32[2].")


def test_a_slot_that_is_taken_apart_names_what_stands_elsewhere():
    writer = Writer(groups={"g": [0, 1], "h": [0, 1]})
    writer.call(0, "all_reduce", group="g")
    writer.call(0, "broadcast", group="h", done=False)
    writer.call(1, "all_reduce", group="h", done=False)
    writer.call(1, "all_reduce", group="g")
    matched = Matched(writer.timeline([Ending("hung", proven=True)] * 2))
    assert {step.text for step in planned(matched) if not matched.slots[step.slot].expected} == {
        "Faces rank 1's all-reduce, but can never meet it.",
        "Faces rank 0's broadcast, but can never meet it.",
    }


def test_calls_that_met_from_different_lines_say_so_once():
    writer = Writer(world_size=3)
    for _ in range(2):
        for rank in range(3):
            writer.call(rank, "broadcast", call_site=f"a/p.py:{4 if rank == 1 else 7}")
    steps = planned(Matched(writer.timeline([DONE] * 3)))
    assert [step.text for step in steps] == [
        "Met from different lines: rank 1 p.py:4; ranks 0, 2 p.py:7.",
        "",
    ]


@pytest.mark.parametrize(
    ("op", "origin", "found"),
    [
        ("all_reduce", "all-reduce (DDP forward() 2)", RowKind.FORWARD),
        ("all_reduce", "all-reduce (DDP backward())", RowKind.BACKWARD),
        ("all_reduce", "all-reduce (join() hook)", RowKind.JOIN),
        ("all_reduce", "all-reduce (_find_common_rank())", RowKind.FINAL),
        ("broadcast", "broadcast (sync final model params)", RowKind.FINAL),
        ("all_reduce", "all-reduce (barrier)", RowKind.BARRIER),
        ("barrier", None, RowKind.BARRIER),
        ("broadcast", "broadcast (DDP bucket rebuild)", RowKind.SETUP),
        ("all_gather", "all-gather (DDP construction)", RowKind.SETUP),
        ("send", "send", RowKind.PAIR),
        ("all_reduce", "all-reduce (notify_join_context())", RowKind.REDUCE),
        ("all_gather", "all-gather", RowKind.COLLECT),
        ("a_new_one", None, RowKind.OTHER),
        ("broadcast", "broadcast (_find_common_rank(), join() hook, buffers)", RowKind.JOIN),
    ],
)
def test_kinds(op, origin, found):
    assert kind({"op": op, "origin": origin}) is found
