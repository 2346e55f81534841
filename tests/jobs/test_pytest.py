"""The pytest plugin: a test whose ranks wait forever fails with the story, and a healthy one
passes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from joinlab.pytest import counts, on_ranks

fails = pytest.fail.Exception


def compute_if_any(rank: int, world_size: int, empty: int, always: bool) -> None:
    """weecology/DeepForest#1407: a metric is computed only where the rank has seen something."""
    dist.init_process_group("nccl", rank=rank, world_size=world_size)
    seen = [] if rank == empty else [1.0]
    if seen or always:
        dist.all_reduce(torch.tensor(sum(seen)))
    dist.barrier()


def decode(rank: int, inputs: Any, together: bool) -> int:
    """deepspeedai/DeepSpeed#8262: each rank decodes until its own text ends, and every step gathers
    weights."""
    steps = torch.tensor(len(inputs))
    if together:
        dist.all_reduce(steps, op=dist.ReduceOp.MAX)
    for _ in range(int(steps)):
        dist.all_reduce(torch.ones(4))
    dist.barrier()
    return int(steps)


def save(rank: int, world_size: int, everyone: bool) -> float:
    """speechbrain/speechbrain#2401: rank 0 alone saves, and saving communicates."""
    if everyone or rank == 0:
        dist.broadcast(torch.ones(1), 0)
    total = torch.ones(1)
    dist.all_reduce(total)
    return total.item()


@pytest.mark.parametrize("empty", range(2))
def test_a_branch_on_local_state_fails_whichever_rank_takes_it(empty: int) -> None:
    with pytest.raises(
        fails, match=rf"Rank {1 - empty} issued one all-reduce .* more than rank {empty}"
    ):
        on_ranks(2)(compute_if_any, empty, False)
    on_ranks(2)(compute_if_any, empty, True)


@pytest.mark.parametrize("inputs", counts(2, upto=2))
def test_uneven_counts_of_inputs(inputs: tuple[int, ...]) -> None:
    if len(set(inputs)) > 1:
        with pytest.raises(fails, match=r"all-reduce.*\n.*(?s:.*)hangs in "):
            on_ranks(inputs=inputs)(decode, False)
    assert on_ranks(inputs=inputs)(decode, True).returns == (max(inputs),) * 2


@pytest.mark.parametrize("launch", [False, True])
def test_emulated_and_launched_say_the_same(launch: bool) -> None:
    run = on_ranks(2, "gloo", launch=launch)
    with pytest.raises(
        fails, match=r"rank 0's broadcast \(test_pytest\.py:\d+\) can never meet rank 1's"
    ) as failed:
        run(save, False)
    text = str(failed.value)
    assert "AT     if everyone or rank == 0" in text and text.count(", emulated;") == launch
    assert run(save, True).returns == (2.0, 2.0)


def test_an_assertion_of_a_rank_fails_the_test() -> None:
    def worker(rank: int, world_size: int) -> None:
        assert rank == 0, "not the first"

    with pytest.raises(fails, match="Rank 1 raised AssertionError: not the first"):
        on_ranks(2, "gloo")(worker)


def test_a_number_of_ranks_or_their_inputs_must_be_given() -> None:
    for given in ({}, {"size": 2, "inputs": (1, 1)}):
        with pytest.raises(
            TypeError, match="give a number of ranks, or a count of inputs for each"
        ):
            on_ranks(**given)


def test_the_fixture_is_there_once_asked_for_and_loads_no_torch(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import sys\n\ndef test(ranks):\n    assert 'torch' not in sys.modules\n"
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:nbmake",
        "test_it.py",
    ]
    without, asked = (
        subprocess.run([*command, *more], cwd=tmp_path, capture_output=True, text=True)
        for more in ((), ("-p", "joinlab.pytest"))
    )
    assert "fixture 'ranks' not found" in without.stdout
    assert asked.returncode == 0, asked.stdout
