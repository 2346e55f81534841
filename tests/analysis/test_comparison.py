"""Two Timelines on one axis: which rows align, where the runs part, and the sentence about it."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from joinlab.analysis.comparison import Comparison, _aligned, compare
from joinlab.analysis.matching import match
from joinlab.cases import case_4
from joinlab.emulator.emulate import emulate
from joinlab.timeline import Ending, Timeline
from tests.random_timelines import timelines
from tests.timelines import Writer, case_timeline

HUNG = Ending("hung", proven=False)
FINISHED = Ending("finished")


def parts_at(comparison: Comparison, timeline: Timeline, side: str = "left") -> dict[int, str]:
    """The labels of the calls in the row where they part."""
    assert comparison.first_difference is not None
    at = getattr(comparison.rows[comparison.first_difference], side)
    slot = match(timeline)[at]
    return {
        rank: timeline.call(rank, seq, slot.group)["origin"] for rank, seq in slot.calls.items()
    }


# ---- properties


@given(timelines())
def test_a_timeline_does_not_part_from_itself(timeline):
    found = compare(timeline, timeline)
    assert found.first_difference is None
    assert list(found.rows) == [(at, at) for at in range(len(match(timeline)))]
    assert found.sentence == "Both runs issue the same calls, and each call ends alike."


@given(timelines(), timelines())
def test_every_slot_is_in_one_row_in_its_own_order(left, right):
    found = compare(left, right)
    assert [row.left for row in found.rows if row.left is not None] == list(range(len(match(left))))
    assert [row.right for row in found.rows if row.right is not None] == list(
        range(len(match(right)))
    )
    for row in found.rows:
        assert (row.left, row.right) != (None, None)


@given(timelines(), timelines())
def test_they_part_at_the_same_place_seen_from_either_side(left, right):
    one, other = compare(left, right), compare(right, left)
    assert one.first_difference == other.first_difference
    if one.first_difference is not None:
        assert one.sentence.startswith("They part ")
        assert all(row.left == row.right for row in one.rows[: one.first_difference])


KEYS = st.lists(st.tuples(st.integers(-1, 2), st.sampled_from("ab")), max_size=9)


@given(KEYS, KEYS)
def test_equal_beginnings_align_and_equal_rows_never_cross(left, right):
    pairs = list(_aligned(left, right))
    for side in (0, 1):
        shown = [pair[side] for pair in pairs if pair[side] is not None]
        assert shown == list(range(len((left, right)[side])))
    same = 0
    while same < min(len(left), len(right)) and left[same] == right[same]:
        assert pairs[same] == (same, same)
        same += 1


# ---- the places that teach


def test_case_4_of_1_9_and_of_today_part_after_what_rank_0_read():
    old, today = (case_timeline(4, 5, backend="nccl", era=era) for era in ("1.9", "today"))
    found = compare(old, today)
    assert parts_at(found, old)[0] == "all-reduce (join() check bwd grad sync)"
    assert parts_at(found, today, "right")[0] == "all-reduce (_find_common_rank())"
    named = compare(*(emulate(case_4, (5, 6), era=era) for era in ("1.9", "today"))).sentence
    assert (
        named.startswith("They part at call 29: rank 0 reads ")
        and "_get_num_nonjoined" not in named
    )
    assert "(not all have joined) with 1.9, and 0 (all ranks have joined) with today." in named


def test_a_barrier_more_leaves_a_row_empty_and_nothing_else():
    without, having = case_timeline(1, 2, backend="nccl"), case_timeline(6, 2, backend="nccl")
    found = compare(without, having)
    alone = [row for row in found.rows if None in row]
    assert len(alone) == 1 and alone[0].left is None
    assert parts_at(found, having, "right") == dict.fromkeys((0, 1), "all-reduce (barrier)")
    assert "at call 18: with case_1 ranks 0, 1 issue no more calls; with case_6" in found.sentence


def test_a_barrier_is_one_on_nccl_and_on_gloo_though_it_is_no_all_reduce_there():
    found = compare(case_timeline(4, 2, backend="nccl"), case_timeline(4, 2))
    assert found.first_difference is not None
    assert found.sentence == (
        "They part at call 17: with nccl rank 0's \"anyone left?\" and rank 1's barrier complete, "
        "with gloo they never complete."
    )


def test_more_inputs_part_where_the_fewer_end_and_meet_again():
    found = compare(case_timeline(1, 5), case_timeline(1, 2))
    assert (
        found.first_difference is not None
        and "They part at call 12: with inputs (5, 6) rank 0 issues" in found.sentence
    )
    last = found.rows[-1]
    assert None not in last


def pair(**columns):
    """A Timeline of two ranks with one all-reduce."""
    writer = Writer()
    for rank in (0, 1):
        writer.call(rank, "all_reduce", **columns)
    return writer.timeline([FINISHED] * 2)


def test_values_can_differ_without_a_parting():
    found = compare(pair(), pair(dtype="int64"))
    assert found.first_difference is None
    assert (
        "What is carried differs at call 1: rank 0's all-reduce is float32[1], sum"
        in found.sentence
    )


def test_a_call_that_fails_parts_from_one_that_completes():
    found = compare(pair(), pair(done=False, error="RuntimeError: no"))
    assert (
        found.first_difference == 0
        and "ranks 0, 1's all-reduce complete, with the second they fail." in found.sentence
    )


def test_different_endings_after_the_same_calls_are_reported():
    timeline = pair()
    found = compare(timeline, replace(timeline, ends=(FINISHED, HUNG)))
    assert found.first_difference is None and found.sentence.endswith(
        "; only how the ranks end differs."
    )


def test_a_rank_s_next_call_is_named_where_its_calls_are_in_other_rows():
    sends = Writer(), Writer()
    for first, writer in enumerate(sends):
        ways = [(0, "send", 1), (1, "recv", 0)], [(1, "send", 0), (0, "recv", 1)]
        for rank, op, peer in (*ways[first], *ways[1 - first]):
            writer.call(rank, op, peer=peer)
    found = compare(*(writer.timeline([FINISHED] * 2) for writer in sends))
    assert "with the first rank 0 issues send to rank 1, rank 1 issues recv from rank 0" in (
        found.sentence
    )
    assert "with the second rank 0 issues recv from rank 1, rank 1 issues send" in found.sentence


def test_different_world_sizes_are_reported():
    writer = Writer(world_size=1)
    writer.call(0, "all_reduce")
    found = compare(pair(), writer.timeline([FINISHED]))
    assert (
        "with the first rank 1 issues all-reduce; with the second rank 1 issues no more calls"
        in found.sentence
    )
