"""Folding: rounds that agree appear once, faults are never hidden, and every call can be found
again."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joinlab.analysis.folding import Fold, Folding, Part, fold, rank_lanes
from joinlab.analysis.matching import match
from joinlab.timeline import Ending, Timeline
from tests.random_timelines import timelines
from tests.timelines import Writer, case_timeline

DONE = Ending("finished")


def folds(parts: tuple[Part, ...]) -> list[Fold]:
    return [part for part in parts if isinstance(part, Fold)]


def labels(folding: Folding) -> list[str]:
    return [
        folding.label(part) if isinstance(part, Fold) else f"row {part}" for part in folding.parts
    ]


def rounds(times: int, marked: bool = True) -> Timeline:
    """`times` rounds of calls on two ranks."""
    ops = ("all_reduce", "barrier")
    writer = Writer(2, "nccl")
    for rank in range(2):
        for number in range(times):
            for op in ops:
                writer.call(rank, op, input=number if marked else None, line=ops.index(op))
    return writer.timeline([DONE] * 2)


@st.composite
def looping(draw: st.DrawFn) -> Timeline:
    """Ranks in a loop, of which some break out of it, or issue another call once; rounds may hold
    smaller rounds."""
    ranks = draw(st.integers(1, 4))
    writer = Writer(ranks, draw(st.sampled_from(["gloo", "nccl"])))
    marked = draw(st.booleans())
    pattern = draw(
        st.lists(st.sampled_from(["all_reduce", "barrier", "broadcast"]), min_size=1, max_size=3)
    )
    pattern = pattern * draw(st.integers(1, 3)) + draw(st.sampled_from([[], ["barrier"]]))
    for rank in range(ranks):
        times = draw(st.sampled_from([0, 3, 7, 7, 7, 30]))
        fault = draw(st.none() | st.integers(0, 40))
        issued = 0
        for number in range(times):
            for line, op in enumerate(pattern):
                wrong = issued == fault
                columns = {"root": 0} if op == "broadcast" else {}
                done = not wrong or draw(st.booleans())
                writer.call(
                    rank,
                    op,
                    input=number if marked else None,
                    line=line + 50 * wrong,
                    done=done,
                    error=None,
                    **columns,
                )
                issued += 1
    ends = [draw(st.sampled_from([DONE, Ending("hung", proven=False)])) for _ in range(ranks)]
    return writer.timeline(ends)


ANY = looping() | timelines()


@given(ANY, st.booleans())
def test_unfolding_gives_back_every_call_exactly_once(timeline, share_lanes):
    folding = fold(timeline, share_lanes)
    assert sorted(rank for some in folding.classes for rank in some) == list(
        range(timeline.world_size)
    )
    found = [
        range(part, part + 1) if isinstance(part, int) else range(part.begin, part.end)
        for part in folding.parts
    ]
    assert [row for rows in found for row in rows] == list(range(len(folding.slots)))
    shown = [(rank, slot.group, slot.calls[rank]) for slot in folding.slots for rank in slot.calls]
    first = {some[0] for some in folding.classes}
    calls = timeline.calls.filter(pl.col("rank").is_in(first)).select("rank", "group", "seq").rows()
    assert sorted(shown) == sorted(calls)


@given(ANY, st.booleans())
def test_nothing_abnormal_is_inside_a_fold(timeline, share_lanes):
    folding = fold(timeline, share_lanes)
    last = {row["rank"]: row["seq"] for row in folding.matched.rows if row["group"] == "0"}
    for part in folds(folding.parts):
        for index in range(part.begin, part.end):
            slot = folding.slots[index]
            rows = [*folding.matched.calls_of(slot).values()]
            assert slot.expected and (slot.met or len(folding.matched.groups[slot.group]) == 1)
            assert all(row["completed_ns"] is not None and row["error"] is None for row in rows)
            assert (
                len({row["call_site"] for row in rows if row["origin"] == rows[0]["origin"]}) == 1
            )
            assert set(slot.calls) | set(slot.lost) >= set(folding.matched.groups[slot.group])
            if slot.group == "0" and len(folding.matched.groups) == 1:
                assert all(seq != last[rank] for rank, seq in slot.calls.items())


@given(ANY)
def test_ranks_in_one_lane_did_the_same(timeline):
    names = [
        "op",
        "origin",
        "dtype",
        "shape",
        "reduce_op",
        "call_site",
        "input",
        "error",
        "group",
        "seq",
    ]
    done = pl.col("completed_ns").is_not_null()
    slots = match(timeline)
    odd = {(slot.group, r, s) for slot in slots if not slot.expected for r, s in slot.calls.items()}
    for some in rank_lanes(timeline):
        told = [
            timeline.calls.filter(pl.col("rank") == rank).select(*names, done=done).rows()
            for rank in some
        ]
        ends = [timeline.ends[rank].kind for rank in some]
        assert all(one == told[0] for one in told) and len(set(ends)) == 1
        wrong = [[key[2] for key in sorted(odd) if key[1] == rank] for rank in some]
        assert all(one == wrong[0] for one in wrong)


@pytest.mark.parametrize("marked", [True, False])
def test_rounds_fold_with_and_without_marked_inputs(marked):
    folding = fold(rounds(9, marked=marked))
    # the last call ends the last round
    assert labels(folding) == [
        "8 × all-reduce, barrier",
        "row 16",
        "row 17",
    ]


def test_a_round_that_is_not_repeated_folds_what_repeats_within_it():
    writer = Writer(2, "nccl")
    for rank in range(2):
        for number, op in enumerate(["broadcast", *["all_reduce"] * 4, "barrier"]):
            writer.call(
                rank,
                op,
                input=0,
                line=number if op != "all_reduce" else 1,
                **{"root": 0} if not number else {},
            )
    assert labels(fold(writer.timeline([DONE] * 2))) == ["row 0", "4 × all-reduce", "row 5"]


def test_ranks_that_each_send_to_the_next_are_alike():
    writer = Writer(6)
    for rank in range(6):
        writer.call(rank, "send", peer=(rank + 1) % 6, line=1)
        writer.call(rank, "recv", peer=(rank - 1) % 6, line=2)
    folding = fold(writer.timeline([DONE] * 6))
    assert folding.classes == ((0, 1, 2, 3, 4, 5),)
    assert all(slot.met for slot in folding.slots)


def test_groups_that_did_the_same_are_alike():
    writer = Writer(4, groups={"0": [0, 1, 2, 3], "a": [0, 1], "b": [2, 3]})
    for rank, group in enumerate("aabb"):
        writer.call(rank, "broadcast", group=group, root=rank // 2 * 2, line=1)
        writer.call(rank, "all_reduce", line=2)
    assert fold(writer.timeline([DONE] * 4)).classes == ((0, 1, 2, 3),)


def test_a_group_in_which_something_else_met_is_not_alike():
    writer = Writer(6, "nccl", groups={"0": list(range(6)), "a": [0, 1], "b": [2, 3], "c": [4, 5]})
    for rank, group in enumerate("aabbcc"):
        writer.call(rank, "barrier" if rank == 3 else "all_reduce", group=group, line=1)
    assert fold(writer.timeline([DONE] * 6)).classes == ((0, 1, 4, 5), (2,), (3,))


@pytest.mark.parametrize(
    ("late", "lanes"), [((1, 3), ((0,), (1,), (2,), (3,))), ((), ((0, 1, 2, 3),))]
)
def test_ranks_of_different_groups_share_no_lane_where_their_peers_do_not(late, lanes):
    """Ranks 1 and 3 did the same, each in its group; ranks 0 and 2 wait there for them."""
    writer = Writer(4, groups={"0": [0, 1, 2, 3], "a": [0, 1], "b": [2, 3]})
    for rank, group in enumerate("aabb"):
        writer.call(rank, "all_reduce", group=group, line=1)
        writer.call(rank, "all_reduce", line=3)
        if rank not in late:
            writer.call(rank, "all_reduce", group=group, line=1, done=not late)
    folding = fold(writer.timeline([DONE] * 4))
    assert folding.classes == lanes
    first = {ranks[0] for ranks in lanes}
    assert all({*slot.needs} & first <= {*slot.calls, *slot.absent} for slot in folding.slots)


def test_a_call_met_from_another_line_is_never_folded():
    writer = Writer(2)
    for rank in range(2):
        for number in range(9):
            writer.call(rank, "barrier", input=number, line=7 if (rank, number) == (1, 4) else 3)
    parts = fold(writer.timeline([DONE] * 2)).parts
    assert 4 in parts and [part.times for part in folds(parts) if len(part) > 2] == [4, 3]


def test_case_4_is_left_with_what_went_wrong():
    assert labels(fold(case_timeline(4, 5, "nccl"))) == [
        "DDP's setup",
        "5 × forward, backward, barrier, and bucket rebuild",
        *[f"row {row}" for row in range(25, 31)],
    ]
