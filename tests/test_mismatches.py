"""Which mismatch is called the first, and what the text about those after it says."""

from __future__ import annotations

import re

import pytest
from drawn import timelines
from hypothesis import given, settings
from timelines import Writer, case_timeline

from joinlab.picture.lanes import lanes
from joinlab.timeline import Ending, Timeline

HUNG = [Ending("hung", proven=False)] * 3
NAMES = {letter: f"all-reduce ({letter})" for letter in "abcd"}


def issued(*ranks: str, group: str = "0", writer: Writer | None = None) -> Writer:
    """A writer in which each rank issues the calls that its letters name."""
    writer = writer or Writer(world_size=len(ranks), backend="nccl")
    for rank, letters in enumerate(ranks):
        for letter in letters:
            writer.call(rank, "all_reduce", NAMES[letter], group=group)
    return writer


def notes(writer: Writer) -> list[str]:
    return [note.line for note in lanes(writer.timeline(HUNG[: writer.world_size])).notes]


def wholes(timeline: Timeline) -> list[str]:
    return [note.whole for note in lanes(timeline).notes]


def test_case_4_says_which_mismatch_is_the_first_and_how_far_the_ranks_are_apart():
    picture = lanes(case_timeline(4, 5, "nccl", "1.9"))
    first, *others, alone = picture.notes
    assert first.line == (
        "≠ First mismatch. Met, but should not have: rank 0 float32[1]; rank 1 uint8[1]. "
        "From here on rank 1 is one call ahead of rank 0: the 3 rows that follow do not match either."
    )
    assert first.whole == first.line
    assert [note.text for note in others] == [f"≠ Still out of step: {n} of 4 that do not match." for n in (2, 3, 4)]
    assert alone.text.replace("\n", " ") == "∅ Nothing meets this call: rank 1 never issued one."


def test_what_differs_in_those_that_follow_can_still_be_read():
    said = wholes(case_timeline(4, 5, "nccl", "1.9"))
    assert all(one.startswith("≠ Met, but should not have") for one in said[1:-1])
    assert any("int64[1]" in one for one in said)


def test_a_single_mismatch_is_said_as_it_is():
    (said,) = notes(issued("abc", "acc"))
    assert said == "≠ Met, but should not have."


def test_ranks_that_came_into_step_again_are_out_of_step_anew():
    first, second, third, fourth = notes(issued("abcabc", "acbacb"))
    assert first.startswith("≠ First mismatch.") and first.endswith("The row that follows does not match either.")
    assert second == "≠ Still out of step: 2 of 2 that do not match."
    assert third.startswith("≠ Met,") and third.endswith("The row that follows does not match either.")
    assert fourth == "≠ Still out of step: 2 of 2 that do not match."


@pytest.mark.parametrize(
    ("ranks", "apart"),
    [
        (("abc", "bcd"), "From here on rank 0 is one call ahead of rank 1: "),
        (("bcd", "abc"), "From here on rank 1 is one call ahead of rank 0: "),
        (("ab", "ba"), ""),  # each belongs with the other's next call
        (("ab", "cd"), ""),
        (
            ("ab", "bc", "bc"),
            "From here on rank 0 is one call ahead of ranks 1, 2: ",
        ),
        (("abc", "bcd", "cda"), ""),  # three that go three ways
        (("ab", "bc", "ad"), ""),  # rank 2 issues something else next
    ],
)
def test_how_far_ranks_are_apart_is_only_said_where_it_can_be_seen(ranks, apart):
    first = notes(issued(*ranks))[0]
    assert ("one call ahead" in first) == bool(apart) and f" {apart}the " in first.replace(" The ", " the ")


def test_the_same_call_with_other_data_is_not_out_of_step():
    writer = Writer(world_size=2, backend="nccl")
    for rank in (0, 1):
        for _ in range(2):
            writer.call(rank, "all_reduce", NAMES["a"], shape=[[rank + 1]])
    assert all(said.startswith("≠ Met, but should not have") for said in notes(writer))


def test_another_group_is_not_of_the_same_stretch():
    writer = Writer(world_size=2, backend="nccl", groups={"0": [0, 1], "1": [0, 1]})
    issued("a", "b", writer=writer)
    issued("a", "b", group="1", writer=writer)
    assert all(said.startswith("≠ Met, but should not have") for said in notes(writer))


@settings(max_examples=60)
@given(timelines())
def test_as_many_follow_as_the_first_ones_say(timeline):
    said = [note.line for note in lanes(timeline).notes]
    told = "\n".join(said)
    promised = [int(number) for number in re.findall(r"[Tt]he (\d+) rows that follow do not", told)]
    promised += [1] * told.count("The row that follows does not")
    assert sum(promised) == told.count("≠ Still out of step")
    assert told.count("≠ First mismatch") <= 1
