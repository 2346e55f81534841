"""Ranks on the modelled NCCL: when their hosts wait for their streams, and what their Timelines say.

What the network does with their calls is in test_nccl_fabric.py.
"""

from __future__ import annotations

import math

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from joinlab import diagnose, emulate
from joinlab.backend.clock import ISSUE_NS
from joinlab.errors import LaunchError
from joinlab.gloo.fabric import GlooFabric
from joinlab.nccl.fabric import NcclFabric


def test_the_host_runs_on_behind_an_all_reduce_and_waits_at_item():
    def runs_on(rank, inputs):
        dist.all_reduce(torch.ones(1))
        if rank == 0:
            x = torch.ones(1)
            dist.all_reduce(x)
            print("on")
            return None if inputs.__len__() else x.item()

    goes, waits = emulate(runs_on, (1, 0)), emulate(runs_on, (0, 0))
    assert (str(goes.ends[0]), goes.output[0]) == ("finished (a call still pending)", "on\n")
    assert (str(waits.ends[0]), waits.ends[0].call, waits.output[0]) == ("hung (proven)", 1, "on\n")


@pytest.mark.parametrize(
    "sync",
    [
        lambda x: x.item(), lambda x: x.cpu(), lambda x: x.tolist(), lambda x: x.numpy(), lambda x: bool(x),
        lambda x: float(x), lambda x: str(x), lambda x: f"{x}", lambda x: torch.cuda.synchronize(),
        lambda x: torch.equal(x, x), lambda x: dist.barrier(), lambda x: dist.destroy_process_group(),
    ],
)  # fmt: skip
def test_what_makes_the_host_wait_for_the_stream(sync):
    def program(rank, inputs):
        dist.all_reduce(torch.ones(1))
        if rank == 0:
            x = torch.ones(1)
            dist.all_reduce(x)
            sync(x)

    assert emulate(program, (0, 0)).ends[0].kind == "hung"


def test_a_host_that_stays_inside_a_call_waits_there_and_one_that_leaves_it_does_not():
    def sends_first(rank, inputs):
        ways = [(dist.send, (rank + 1) % 3), (dist.recv, (rank - 1) % 3)]
        for call, peer in ways[:: 1 if rank < len(inputs) else -1]:
            call(torch.ones(4), peer)

    hangs = emulate(sends_first, (3, 3, 3)).calls
    assert hangs["op"].to_list() == ["send"] * 3
    assert (hangs["host_wait_begin_ns"] > hangs["enqueued_ns"]).all()
    goes = emulate(sends_first, (1, 1, 1)).calls
    assert goes["completed_ns"].null_count() == goes["host_wait_begin_ns"].drop_nulls().len() == 0


def test_a_batch_waits_for_none_of_its_own():
    def around(rank, inputs):
        mine, theirs = torch.full((2_500_000,), float(rank)), torch.zeros(2_500_000)
        ops = [dist.P2POp(dist.irecv, theirs, 1 - rank), dist.P2POp(dist.isend, mine, 1 - rank)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        return theirs.sum().item()

    assert emulate(around, (0, 0)).returns == (2_500_000, 0.0)


def test_values_that_are_not_known_are_not_shown():
    def program(rank, inputs):
        dist.all_reduce(torch.ones(1))
        if rank == 0:
            x = torch.ones(1)
            dist.all_reduce(x)  # rank 1 never comes
            dist.all_reduce(x)  # of a value that is never computed

    rows = emulate(program, (0, 0)).calls.filter(rank=0).rows(named=True)
    assert [row["value_in"] for row in rows] == ["[[1.0]]", "[[1.0]]", None]
    assert [row["value_out"] for row in rows] == ["[[2.0]]", None, None]
    assert math.isfinite(rows[0]["completed_ns"])


def test_buckets_of_25_mb_meet_each_other_but_no_small_call():
    def program(rank, inputs):
        # one bucket of 25 MiB
        model = DistributedDataParallel(torch.nn.Linear(2048, 3200, bias=False))
        for _ in inputs:
            model(torch.ones(1, 2048)).sum().backward()
            torch.zeros(1).item()
        dist.all_reduce(torch.ones(1))
        torch.zeros(1).item()

    even, odd = emulate(program, (1, 1)), emulate(program, (1, 2))
    assert [str(end) for end in even.ends] == ["finished", "finished"]
    assert [end.kind for end in odd.ends] == ["hung", "hung"]


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_a_fault_of_the_model_ends_the_run_at_once_and_is_never_the_programs_own(
    backend, monkeypatch
):
    went_on = []

    def program(rank, inputs):
        try:
            dist.all_reduce(torch.ones(1))
        except Exception as error:
            went_on.append(error)
        while rank == 0:
            pass  # it would never end by itself

    def fault(*args):
        raise KeyError("no such thing")

    for fabric in (NcclFabric, GlooFabric):
        monkeypatch.setattr(fabric, "submit", fault)
    with pytest.raises(
        LaunchError, match=r"joinlab could not model <all_reduce 0 of rank 0 in '0'> \(KeyError"
    ):
        emulate(program, (0, 0), backend)
    assert went_on == []


def test_a_bound_device_makes_the_communicator_with_its_group_and_the_first_collective_its_rings():
    """init_process_group(device_id=...): a broadcast's root then needs no other rank to be done,
    but for the rings."""

    def program(rank, inputs):
        dist.init_process_group(
            "nccl", **({"device_id": torch.device("cuda", rank)} if len(inputs) else {})
        )
        group = dist.new_group([0, 1])
        for one in (None, group) if len(inputs) > 1 else ():
            dist.all_reduce(torch.ones(1), group=one)
        if rank == 0:
            for one in (None, group):
                dist.broadcast(torch.ones(1), 0, group=one, async_op=True)
            torch.cuda.synchronize()

    eager, first, lazy = (emulate(program, counts) for counts in ((2, 2), (1, 1), (0, 0)))
    assert [str(end) for end in eager.ends] == ["finished", "finished"]
    assert (
        eager.meta["eager_groups"] == sorted(eager.meta["groups"])
        and len(eager.meta["eager_groups"]) == 2
    )
    assert first.ends[0].proven and "its rings are not connected" in first.ends[0].text
    assert first.calls["host_wait_begin_ns"].to_list() == [ISSUE_NS]  # it blocks inside the call
    assert lazy.ends[0].proven and "eager_groups" not in lazy.meta
    apart = emulate(program, (1, 0))
    assert apart.ends[0].proven and "init_process_group(device_id=...)" in apart.ends[0].text


def test_what_the_model_assumes_and_what_crossed_is_said():
    def both_send_first(rank, inputs):
        came = torch.zeros(1)
        for work in [dist.isend(torch.ones(1), 1 - rank), dist.irecv(came, 1 - rank)]:
            work.wait()
        return came.item()

    apart = emulate(both_send_first, (0, 0))
    assert "both send, or both receive" in apart.meta["emulation"]["assumes"]
    assert "wait for each other" in str(diagnose(apart))
    many = emulate(lambda rank, inputs: dist.all_reduce(torch.ones(1)), (0,) * 17)
    assert "one node" in many.meta["emulation"]["assumes"]
