"""The splits of an all-to-all: recorded alike by both runners, and compared pair by pair."""

from typing import Any

import pytest
import torch
import torch.distributed as dist

import joinlab
from joinlab.analysis.folding import fold
from joinlab.analysis.matching import match
from joinlab.analysis.reading import read

SENT = ([1, 3, 1], [2, 2, 1], [1, 1, 1])
"""By rank: what it sends to each."""


def exchange(rank: int, inputs: Any) -> None:
    """Each rank expects what it sends: 0 sends 1 a 3, and 1 expects 2 of it; all sums fit."""
    sizes = SENT[rank]
    dist.all_to_all_single(torch.zeros(sum(sizes)), torch.ones(sum(sizes)), sizes, sizes)


def fitting(rank: int, inputs: Any) -> None:
    sizes, given = SENT[rank], [sent[rank] for sent in SENT]
    dist.all_to_all_single(torch.zeros(sum(given)), torch.ones(sum(sizes)), given, sizes)
    dist.all_to_all([torch.zeros(5) for _ in SENT], [torch.ones(5) for _ in SENT])
    dist.all_to_all_single(torch.zeros(3, 2), torch.ones(3, 2))


def test_a_call_says_its_splits_in_elements_emulated_and_launched() -> None:
    recorded = [[[1, 3, 1], [1, 2, 1]], [[5], [5]], [[2], [2]]]
    for run in (
        joinlab.emulate(fitting, (1, 1, 1), "nccl"),
        joinlab.launch(fitting, (1, 1, 1), progress=False, on_output=None),
    ):
        assert run.raise_for_ending().calls.filter(rank=0)["splits"].to_list() == recorded
        assert not any(read(run).misfit[0]) and all(slot.expected for slot in match(run))


def test_parts_that_do_not_fit_are_named_though_their_sums_fit() -> None:
    run = joinlab.emulate(exchange, (1, 1, 1), "nccl")
    story = joinlab.diagnose(run)
    assert "do not fit: rank 0 sends 3 to rank 1, which expects 2." in story.sentence
    assert "Also, rank 1 sends 2 to rank 0, which expects 3." in str(story)
    (slot,) = match(run)
    assert slot.differs == ("splits",) and slot.met


def test_calls_of_one_place_change_their_splits() -> None:
    def routed(rank: int, inputs: Any) -> None:
        for turn, sizes in enumerate(([2, 2], [1, 3])):  # of one line, with tensors of one size
            given = [sizes[rank]] * 2
            dist.all_to_all_single(torch.zeros(sum(given)), torch.ones(4), given, sizes)
            assert turn < 2

    run = joinlab.emulate(routed, (1, 1), "nccl").raise_for_ending()
    sent = run.calls.filter(rank=0)["splits"].list.get(0).to_list()
    assert sent == [[2], [1, 3]] and all(slot.expected for slot in match(run))


@pytest.mark.parametrize("world", [8, 80])
def test_of_many_ranks_those_whose_parts_do_not_fit_have_their_own_lanes(world: int) -> None:
    def unlike(rank: int, inputs: Any) -> None:
        sizes = [1] * world
        if rank == 3:
            sizes[4:6] = 2, 0
        for _ in range(2):
            dist.all_to_all_single(torch.zeros(world), torch.ones(world), None, sizes)

    run = joinlab.emulate(unlike, (1,) * world, "nccl")
    assert {(3,), (4,), (5,)} <= {*fold(run).classes}
    sentence = joinlab.diagnose(run).sentence
    assert "rank 3 sends 2 to rank 4, which expects 1" in sentence


def test_a_job_whose_rank_never_came_is_no_misfit() -> None:
    def left(rank: int, inputs: Any) -> None:
        if rank:
            dist.all_to_all_single(torch.zeros(3), torch.ones(3), None, [1, 1, 1])

    run = joinlab.emulate(left, (1, 1, 1), "nccl")
    assert not any(read(run).misfit[0])
    assert "nothing meets" in joinlab.diagnose(run).sentence
