"""Launches on NCCL: real where there are GPUs (two, or one shared by two ranks), and on the stand-in for
it (tests/standin) everywhere."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import polars as pl
import pytest
import torch
import torch.distributed as dist

import joinlab
from tests.standin.server import standing_in


@pytest.fixture(scope="module", params=["stand-in", pytest.param("real", marks=pytest.mark.gpu)])
def nccl(request: pytest.FixtureRequest) -> Iterator[str]:
    with nullcontext() if request.param == "real" else standing_in():
        yield request.param


def test_the_host_does_not_wait_for_an_all_reduce_but_for_item_and_barrier(nccl: str) -> None:
    def program(rank: int, inputs: Any) -> float:
        x = torch.ones(1)
        dist.all_reduce(x)
        y = torch.full((1,), 2.0)
        dist.all_reduce(y)
        value = y.item()
        dist.barrier()
        return value

    timeline = joinlab.launch(program, (1, 1), "nccl", on_output=None).raise_for_ending()
    assert timeline.returns == (4.0, 4.0)
    assert timeline.calls["completed_ns"].null_count() == 0
    assert timeline.calls["started_ns"].null_count() == 0
    assert timeline.calls.filter(pl.col("started_ns") > pl.col("completed_ns")).is_empty()
    reduced = timeline.calls.filter(pl.col("origin") == "all-reduce")
    assert reduced["value_out"].to_list() == ["[[2.0]]", "[[4.0]]"] * 2
    assert timeline.calls["error"].null_count() == timeline.calls.height
    assert all(not text for text in timeline.output)
    assert (
        timeline.calls.filter(pl.col("origin") == "all-reduce (barrier)")["op"].to_list()
        == ["all_reduce"] * 2
    )


def test_batched_send_and_receive_do_not_deadlock_under_the_recorder(nccl: str) -> None:
    def program(rank: int, inputs: Any) -> float:
        x, y = torch.full((1 << 20,), float(rank)), torch.zeros(1 << 20)
        ops = [dist.P2POp(dist.isend, x, 1 - rank), dist.P2POp(dist.irecv, y, 1 - rank)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        return float(y[0])

    assert joinlab.launch(program, (1, 1), "nccl", on_output=None).raise_for_ending().returns == (
        1.0,
        0.0,
    )


def test_the_record_tells_what_the_rule_needs_to_know_of_nccl(nccl: str) -> None:
    """The ring is told by the first rank of a group of three and more."""

    def program(rank: int, inputs: Any) -> None:
        dist.all_reduce(torch.ones(1))
        torch.cuda.synchronize()

    ranks = 2 if nccl == "stand-in" else min(max(torch.cuda.device_count(), 2), 8)
    timeline = joinlab.launch(program, (1,) * ranks, "nccl", on_output=None)
    told = timeline.meta["nccl"]
    assert told["coalesced"] == []
    if nccl == "real":
        assert told.get("warps_apart", True) == (torch.cuda.get_device_capability()[0] >= 7)
    assert [sorted(ring) for ring in told["rings"].values()] == [list(range(ranks))] * (ranks > 2)


def test_nccl_times_its_calls_unless_the_user_says_otherwise(nccl: str, monkeypatch) -> None:
    def program(rank: int, inputs: Any) -> str | None:
        return os.environ.get("TORCH_NCCL_ENABLE_TIMING")

    monkeypatch.delenv("TORCH_NCCL_ENABLE_TIMING", raising=False)
    assert joinlab.launch(program, (1, 1), "nccl", on_output=None).returns == ("1", "1")
    monkeypatch.setenv("TORCH_NCCL_ENABLE_TIMING", "0")
    assert joinlab.launch(program, (1, 1), "nccl", on_output=None).returns == ("0", "0")
