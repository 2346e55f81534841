"""The column `input` of a program with its own DataLoader counts backward passes, equally in both
engines."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import joinlab
from joinlab.analysis.folding import Fold, fold_rows
from joinlab.analysis.matching import Matched
from joinlab.picture.details import call_details
from joinlab.picture.figures import figure
from joinlab.program.steps import BY_BACKWARD, Steps
from joinlab.timeline import Timeline


def loader(rank: int) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.ones(5 + rank, 1)))


def own_loader(rank: int, inputs: Any) -> None:
    """Rank 1 has one batch more. Each step: the backward pass, its optimizer, and the mean of the
    losses."""
    model = DDP(torch.nn.Linear(1, 1))
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    dist.barrier()
    with model.join():
        for (batch,) in loader(rank):
            model(batch).sum().backward()
            sgd.step()
    dist.barrier()


def uneven(rank: int, inputs: Any) -> None:
    model = DDP(torch.nn.Linear(1, 1))
    for (batch,) in loader(rank):
        model(batch).sum().backward()
        dist.all_reduce(torch.zeros(1))  # the mean of the losses


def uneven_inputs(rank: int, inputs: Any) -> None:
    """The same over `inputs`."""
    model = DDP(torch.nn.Linear(1, 1))
    for batch in inputs:
        model(batch).sum().backward()
        dist.all_reduce(torch.zeros(1))


def accumulating(rank: int, inputs: Any) -> None:
    """Two backward passes per update; in each a second one within it, of a checkpoint."""
    model = DDP(torch.nn.Linear(1, 1))
    for first in (True, False):
        with torch.autograd.graph.save_on_cpu() if first else model.no_sync():
            hidden = model(torch.ones(1, 1))
            checkpoint(torch.square, hidden, use_reentrant=True).sum().backward()
    dist.barrier()


def mixed(rank: int, inputs: Any) -> None:
    """Rank 0 iterates over its inputs, rank 1 over its own data."""
    model = DDP(torch.nn.Linear(1, 1))
    for batch in inputs if rank == 0 else [torch.ones(1)] * 2:
        model(batch).sum().backward()


def columns(timeline: Timeline) -> list[tuple[Any, ...]]:
    calls = timeline.calls.select("rank", "group", "seq", "origin", "input").rows()
    return [*calls, *timeline.spans.select("rank", "name", "input").rows()]


@pytest.fixture(scope="module")
def run() -> Timeline:
    return joinlab.emulate(own_loader, inputs=(1, 1), backend="gloo")


def test_a_launched_run_has_the_numbers_of_the_emulated_one(run: Timeline) -> None:
    launched = joinlab.launch(own_loader, inputs=(1, 1), backend="gloo")
    assert launched.meta["input_column"] == run.meta["input_column"] == BY_BACKWARD
    assert columns(launched) == columns(run)
    assert launched.spans["call_site"].str.contains("test_step_numbers.py:").all()
    assert launched.spans.filter(launched.spans["end_ns"] < launched.spans["begin_ns"]).is_empty()


def test_each_step_holds_a_forward_a_backward_pass_and_an_optimizer(run: Timeline) -> None:
    for rank in (0, 1):
        spans = [
            row[1:] for row in run.spans.select("rank", "name", "input").rows() if row[0] == rank
        ]
        assert spans == [
            (name, step)
            for step in range(5 + rank)
            for name in ("forward", "backward", "optimizer")
        ]


def test_what_comes_before_the_first_step_and_what_join_makes_belong_to_none(run: Timeline) -> None:
    of = {rank: [row for row in run.calls.to_dicts() if row["rank"] == rank] for rank in (0, 1)}
    for rank, rows in of.items():
        outside = [row["origin"] for row in rows if row["input"] is None]
        assert outside[:2] == ["all-gather (DDP construction)", "broadcast (DDP construction)"]
        # it has run out, and repeats rank 1's calls
        assert ("all-reduce (join() hook)" in outside) == (rank == 0)
    assert {row["input"] for row in of[1] if "backward" in row["origin"]} == set(range(6))


def test_pictures_say_step(run: Timeline) -> None:
    call = next(row for row in run.calls.to_dicts() if row["input"] == 2)
    assert ("step", "step 2") in call_details(call, False, run.meta)
    assert "<b>step</b> step 2" in figure(run).to_json().encode().decode("unicode_escape")


def test_rounds_are_folded_as_those_of_inputs_are() -> None:
    parts = fold_rows(Matched(joinlab.emulate(uneven, inputs=(0, 0))))
    assert parts == fold_rows(Matched(joinlab.emulate(uneven_inputs, inputs=(5, 6))))
    assert any(isinstance(part, Fold) and part.times == 4 for part in parts)


def test_every_backward_pass_is_a_step_and_one_within_another_is_none() -> None:
    run = joinlab.emulate(accumulating, inputs=(0, 0))
    assert [row["input"] for row in run.rows("spans") if row["name"] == "forward"] == [0, 1] * 2
    assert {row["input"] for row in run.rows("calls") if "backward" in (row["origin"] or "")} == {0}


def test_a_rank_that_iterates_over_its_inputs_makes_the_column_say_inputs() -> None:
    run = joinlab.emulate(mixed, inputs=(2, 2))
    assert "input_column" not in run.meta
    assert {row["input"] for row in run.rows("calls") if row["rank"] == 1} == {None}
    assert {row["input"] for row in run.rows("calls") if row["rank"] == 0} == {None, 0, 1}


def test_two_backward_passes_of_one_forward_are_two_steps_and_two_forwards_of_one_backward_are_one() -> (
    None
):
    steps = Steps()
    seen = []
    for event in ("forward", "backward", "backward", "forward", "forward", "backward", "forward"):
        if event == "forward":
            steps.begin_forward()
        else:
            steps.begin_backward()
            steps.end_backward()
        seen.append(steps.now)
    assert seen == [0, 0, 1, 2, 2, 2, 3]
    steps.mark()
    steps.begin_forward()
    assert steps.now is None


def all_but_the_last_unsynchronised(rank: int, inputs: Any) -> None:
    """What the course's exercise on accumulation asks for: slices, and the last input by its
    index."""
    model = DDP(torch.nn.Linear(1, 1))
    with model.no_sync():
        for batch in inputs[:-1]:
            model(batch).backward()
    model(inputs[-1]).backward()


def backwards_by_two(rank: int, inputs: Any) -> None:
    for batch in inputs[::-1][::2]:
        assert batch.shape == (1,)
        dist.all_reduce(batch)


def by_index(rank: int, inputs: Any) -> None:
    model = DDP(torch.nn.Linear(1, 1))
    for i in range(len(inputs)):
        model(inputs[i]).backward()
    dist.barrier()


def test_a_slice_of_the_inputs_is_a_list_of_those_and_marks_them() -> None:
    timeline = joinlab.emulate(backwards_by_two, (5, 5), "gloo").raise_for_ending()
    assert timeline.calls["input"].to_list() == [4, 2, 0] * 2
    timeline = joinlab.emulate(all_but_the_last_unsynchronised, (4, 4), "gloo").raise_for_ending()
    forwards = [
        span["input"]
        for span in timeline.rows("spans")
        if (span["rank"], span["name"]) == (0, "forward")
    ]
    assert forwards == [0, 1, 2, None]


def test_a_loop_by_index_has_the_numbers_of_its_backward_passes() -> None:
    timeline = joinlab.emulate(by_index, (3, 3), "gloo").raise_for_ending()
    reduced = [
        row["input"] for row in timeline.rows("calls") if "DDP backward()" in (row["origin"] or "")
    ]
    assert reduced == [0, 1, 2] * 2 and timeline.meta["input_column"] == BY_BACKWARD
