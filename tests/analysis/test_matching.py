"""Which calls met. test_emulator has the documented traces."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joinlab import emulate, launch
from joinlab.analysis.matching import match
from joinlab.analysis.reading import read
from joinlab.story.judge import diagnose
from joinlab.timeline import Ending, EndKind, Timeline
from tests.timelines import SIZES, Writer, case_timeline

DONE = Ending(EndKind.FINISHED)

BWD = "all-reduce (DDP backward())"


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize(
    ("case", "backend", "met"),
    [
        (1, "gloo", None),
        (6, "nccl", None),
        (2, "nccl", None),
        (4, "gloo", False),
        (4, "nccl", True),
        (5, "gloo", False),
    ],
)
def test_the_first_pair_that_should_not_have_met_is_found(case, backend, met, n):
    wrong = [slot for slot in match(case_timeline(case, n, backend)) if not slot.expected]
    assert [slot.met for slot in wrong[:1]] == ([] if met is None else [met])


@pytest.mark.parametrize(
    ("one", "other", "differs"),
    [
        ({}, {"call_site": "other.py:1"}, ()),
        ({}, {"dtype": "int64"}, ("dtype",)),
        ({"shape": [[2, 3]]}, {"shape": [[6]]}, ()),
        ({"shape": [[2, 3]]}, {"shape": [[7]]}, ("shape",)),
        ({}, {"reduce_op": "max"}, ("reduce_op",)),
        (
            {},
            {"op": "broadcast", "origin": "broadcast", "root": 1, "reduce_op": None},
            ("op", "origin"),
        ),
        ({"op": "broadcast", "root": 0}, {"op": "broadcast", "root": 1}, ("root",)),
        ({"op": "all_gather", "shape": [[1]]}, {"op": "all_gather", "shape": [[2]]}, ()),
        (
            {"op": "gather", "root": 0, "shape": [[1]]},
            {"op": "gather", "root": 0, "shape": [[1], [1]]},
            (),
        ),
        ({"shape": None, "dtype": None}, {"shape": None, "dtype": None}, ()),
        ({}, {"origin": BWD}, ("origin",)),
        ({"op": "something_new"}, {"op": "something_new"}, ()),
    ],
)
def test_what_two_calls_differ_in(one, other, differs):
    writer = Writer(backend="nccl")
    for rank, columns in enumerate((one, other)):
        writer.call(rank, **{"op": "all_reduce", "origin": "all-reduce", **columns})
    (slot,) = match(writer.timeline([DONE, DONE]))
    assert (slot.differs, slot.expected, slot.met) == (differs, not differs, True)


def test_on_gloo_only_one_kind_and_one_root_meet():
    writer = Writer(3)
    for rank, root in enumerate((0, 0, 1)):
        writer.call(rank, "broadcast", root=root)
    for rank, op in enumerate(("all_reduce", "reduce_scatter", "all_reduce")):
        writer.call(rank, op)
    rooted, summed = match(writer.timeline([DONE] * 3))
    assert not rooted.met
    assert rooted.differs == ("root",)
    assert summed.met  # gloo makes an all-reduce of both
    assert summed.differs == ("op", "origin")


def test_a_lonely_call_has_met_nobody_and_differs_from_nobody():
    writer = Writer()
    writer.call(1, "all_reduce")
    (slot,) = match(writer.timeline([DONE, DONE]))
    assert (slot.calls, slot.met, slot.differs, slot.expected) == ({1: 0}, False, (), True)


@pytest.mark.parametrize(
    ("backend", "pairs"),
    [("gloo", [{0: 0, 2: 1}, {0: 1, 2: 0}]), ("nccl", [{0: 0, 2: 0}, {0: 1, 2: 1}])],
)
def test_sends_and_recvs_pair_outside_the_count(backend, pairs):
    """Tags tell messages apart on gloo; NCCL has none."""
    writer = Writer(3, backend)
    for tag in (1, 2):
        writer.call(0, "send", peer=2, tag=tag)
    for tag in (2, 1):
        writer.call(2, "recv", peer=0, tag=tag)
    for rank in range(3):
        writer.call(rank, "all_reduce")
    slots = match(writer.timeline([DONE] * 3))
    assert sorted((slot.calls for slot in slots[:-1]), key=str) == pairs
    assert slots[-1].calls == {0: 2, 1: 0, 2: 2}
    assert all(slot.met and slot.expected for slot in slots)


def test_a_recv_from_any_source_has_a_slot_of_its_own():
    writer = Writer()
    writer.call(0, "send", peer=1)
    writer.call(1, "recv", peer=None)
    assert [slot.met for slot in match(writer.timeline([DONE, DONE]))] == [False, False]


def test_groups_are_matched_apart_and_shown_in_order_of_issue():
    groups = {"0": [0, 1, 2, 3], "odd": [3, 1]}
    writer = Writer(4, groups=groups)
    for rank in (3, 1):
        writer.call(rank, "all_reduce", group="odd", input=4)
    for rank in range(4):
        writer.call(rank, "broadcast", root=0)
    timeline = writer.timeline([DONE] * 4)
    assert [(slot.group, sorted(slot.calls), slot.input) for slot in match(timeline)] == [
        ("0", [0, 1, 2, 3], 4),
        ("odd", [1, 3], 4),
    ][::-1]


def test_a_group_that_meta_does_not_name_is_matched_all_the_same():
    writer = Writer(2, groups={"0": [0]})
    for rank in (0, 1):
        writer.call(rank, "all_reduce")
        writer.call(rank, "all_reduce", group="new")
    assert [(slot.group, sorted(slot.calls)) for slot in match(writer.timeline([DONE] * 2))] == [
        ("0", [0, 1]),
        ("new", [0, 1]),
    ]


def test_a_timeline_without_calls_has_no_patterns():
    reading = read(Writer(2).timeline([DONE] * 2))
    assert [len(numbers) for numbers in reading.patterns] == [0, 0, 0] and reading.count == 0


@given(st.lists(st.sampled_from(["0", "a", "b"]), max_size=10), st.integers(2, 4))
def test_ranks_that_agree_keep_their_order_of_issue(program, size):
    writer = Writer(size, groups={name: list(range(size)) for name in ("0", "a", "b")})
    for rank in range(size):
        for group in program:
            writer.call(rank, "all_reduce", group=group)
    assert [slot.group for slot in match(writer.timeline([DONE] * size))] == program


def lost_beginning() -> Timeline:
    """Rank 1's record begins three calls later than rank 0's; its last call is another one than
    rank 0's."""
    writer = Writer()
    for _ in range(4):
        writer.call(0, "all_reduce")
    writer.call(0, "broadcast", root=0)
    writer.call(1, "all_reduce")
    writer.call(1, "all_reduce", done=False)
    ends = [
        Ending(EndKind.UNKNOWN, call=4, group="0"),
        Ending(EndKind.UNKNOWN, call=1, group="0", text="cut off"),
    ]
    return writer.timeline(ends, backend="nccl", skipped={"0": {0: 10, 1: 13}})


def test_a_story_claims_nothing_about_calls_that_the_record_lost() -> None:
    said = str(diagnose(lost_beginning()))
    assert "issued no call" not in said
    assert "How it ended is not known: cut off." in said
    assert "rank 1 called all-reduce" in diagnose(lost_beginning()).sentence


def retries(rank: int, inputs: object) -> None:
    """Rank 1 tries what its backend refuses, twice; then every rank does, once."""
    import torch
    import torch.distributed as dist

    def refused() -> None:
        with suppress(ValueError, RuntimeError):
            dist.all_gather(
                [torch.zeros(2)] * 2, torch.ones(1)
            ) if dist.get_backend() == "gloo" else None
            dist.all_reduce(torch.ones(1), dist.ReduceOp.BAND)

    dist.all_reduce(torch.ones(1))
    if rank == 1:
        refused()
        refused()
        with suppress(RuntimeError):
            dist.send(torch.ones(2, 2).t(), 0) if dist.get_backend() == "gloo" else refused()
    dist.all_reduce(torch.ones(2))
    refused()
    dist.barrier()


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_a_refused_call_takes_no_place_in_the_order(backend: str) -> None:
    for timeline in [emulate(retries, (0, 0), backend)] + (
        [launch(retries, (0, 0))] if backend == "gloo" else []
    ):
        assert [str(end) for end in timeline.ends] == ["finished", "finished"]
        slots = match(timeline)
        assert [(len(slot.calls), slot.met) for slot in slots if not slot.refused] == [
            (2, True)
        ] * 3
        assert [tuple(slot.calls) for slot in slots if slot.refused] == [(1,), (1,), (1,), (0, 1)]
        assert all(slot.expected and slot.absent == () for slot in slots)
        assert [slot.refused for slot in slots[:1]] + [slots[-1].refused] == [False, False]
        assert "every call met its counterpart" in diagnose(timeline).sentence
