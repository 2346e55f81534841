"""Launches on real NCCL: two GPUs, or one shared by two ranks. Skipped without a GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
import torch.distributed as dist

import joinlab
from joinlab import cases

pytestmark = pytest.mark.gpu

DOCUMENTED = json.loads((Path(__file__).parent.parent / "data" / "six_cases.json").read_text())["cases"]


def labels(timeline: joinlab.Timeline, rank: int) -> list[str]:
    origins = timeline.calls.filter(pl.col("rank") == rank)["origin"].to_list()
    return [o for o in origins if "DDP construction" not in o and "DDP bucket rebuild" not in o]


@pytest.mark.parametrize("case", [1, 6])
def test_the_cases_that_finish_are_recorded_as_documented(case: int) -> None:
    timeline = joinlab.launch(cases.CASES[case].program, (2, 3), "nccl", on_output=None)
    assert [str(end) for end in timeline.ends] == ["finished", "finished"]
    trace = DOCUMENTED[case - 1]["answer"]["trace"]
    for rank in (0, 1):
        assert labels(timeline, rank) == [row[f"r{rank}"] for row in trace]
    assert timeline.calls["completed_ns"].null_count() == 0
    asked = timeline.calls.filter(
        pl.col("origin") == "all-reduce (join() _get_num_nonjoined_procs())", pl.col("rank") == 0
    )
    assert asked["value_out"].to_list() == ["[[1.0]]", "[[0.0]]"]


@pytest.mark.parametrize("case", [2, 3, 4, 5])
def test_the_other_cases_end_and_keep_what_was_recorded(case: int) -> None:
    timeline = joinlab.launch(cases.CASES[case].program, (2, 3), "nccl", on_output=None, no_progress=20)
    trace = DOCUMENTED[case - 1]["answer"]
    rows = (trace[-1] if isinstance(trace, list) else trace)["trace"]
    for rank in (0, 1):
        documented = [row[f"r{rank}"] for row in rows if row[f"r{rank}"] is not None]
        found = labels(timeline, rank)
        assert found[: min(len(found), len(documented), 7)] == documented[: min(len(found), len(documented), 7)]
        assert found


def test_the_host_does_not_wait_for_an_all_reduce_but_for_item_and_barrier() -> None:
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
    assert timeline.calls.filter(pl.col("origin") == "all-reduce (barrier)")["op"].to_list() == ["all_reduce"] * 2


def test_batched_send_and_receive_do_not_deadlock_under_the_recorder() -> None:
    def program(rank: int, inputs: Any) -> float:
        x, y = torch.full((1 << 20,), float(rank)), torch.zeros(1 << 20)
        ops = [dist.P2POp(dist.isend, x, 1 - rank), dist.P2POp(dist.irecv, y, 1 - rank)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        return float(y[0])

    assert joinlab.launch(program, (1, 1), "nccl", on_output=None).raise_for_ending().returns == (1.0, 0.0)


def test_the_record_tells_what_the_rule_needs_to_know_of_nccl() -> None:
    """The ring is told by the first rank of a group of three and more."""

    def program(rank: int, inputs: Any) -> None:
        dist.all_reduce(torch.ones(1))
        torch.cuda.synchronize()

    ranks = min(max(torch.cuda.device_count(), 2), 8)
    timeline = joinlab.launch(program, (1,) * ranks, "nccl", on_output=None)
    told = timeline.meta["nccl"]
    assert told["coalesced"] == []
    assert told.get("warps_apart", True) == (torch.cuda.get_device_capability()[0] >= 7)
    assert [sorted(ring) for ring in told["rings"].values()] == [list(range(ranks))] * (ranks > 2)
