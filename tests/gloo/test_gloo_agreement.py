"""Emulated gloo agrees with real processes on refusals, on the memory it uses, and on its Works."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

import joinlab
from joinlab import Timeline, emulate
from joinlab.timeline import EndKind
from tests.agreement import differences, what
from tests.material import gloo_probes as probes
from tests.material.gloo_probes import Probe, answers

pytestmark = pytest.mark.filterwarnings("ignore")
# to import this module takes a rank 0.2 s
cloudpickle.register_pickle_by_value(sys.modules[__name__])

SETS = {
    "refused": probes.REFUSED,
    "by dtype": probes.BY_DTYPE,
    "strided": probes.STRIDED,
    "uneven": probes.UNEVEN,
    "sparse": probes.SPARSE,
    "works": probes.WORKS,
}


def launch(program: Any, ranks: int, no_progress: float = 20.0) -> Timeline:
    return joinlab.launch(
        program, (1,) * ranks, "gloo", no_progress=no_progress, on_output=None, progress=False
    )


def told(timeline: Timeline) -> list[list[str | None]]:
    return [[what(answer) for answer in answered] for answered in timeline.returns]


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("asked", SETS.values(), ids=SETS)
def test_it_answers_as_real_processes_do(asked: Sequence[Probe], ranks: int) -> None:
    launched = launch(answers(asked), ranks)
    assert {end.kind for end in launched.ends} == {EndKind.FINISHED}
    emulated = emulate(answers(asked), (1,) * ranks, "gloo")
    assert {end.kind for end in emulated.ends} == {EndKind.FINISHED}, emulated.ends
    for mine, real in zip(told(emulated), told(launched), strict=True):
        for one, other in zip(mine, real, strict=True):
            assert one == other
    assert differences(emulated, launched) == []


def test_every_probe_is_asked() -> None:
    written = {
        value
        for value in vars(probes).values()
        if getattr(value, "__module__", "") == probes.__name__
    }
    asked = {probe for asked in SETS.values() for probe in asked}
    helpers = {probes.answers}
    assert {
        one.__name__ for one in written - asked - helpers if not one.__name__.startswith("_")
    } == set()


# ---------------- programs of their own


def a_wait_that_times_out_and_a_call_that_does_not(rank: int, inputs: Any) -> Any:
    tensor = torch.ones(1)
    if rank:
        time.sleep(0.5)
        dist.all_reduce(tensor)
        return tensor.item()
    work = dist.all_reduce(tensor, async_op=True)
    with contextlib.suppress(RuntimeError):
        work.wait(timedelta(milliseconds=100))
    late = work.is_completed()
    return late, work.wait(), tensor.item()


def a_wait_that_is_given_up_for_good(rank: int, inputs: Any) -> Any:
    if rank == 0:
        try:
            dist.all_reduce(torch.ones(1), async_op=True).wait(timedelta(milliseconds=100))
        except RuntimeError as error:
            return str(error)
    else:
        time.sleep(0.5)
        dist.all_reduce(torch.ones(1))  # rank 0 has ended


def a_recv_that_times_out_closes_the_connections(rank: int, inputs: Any) -> Any:
    found = []
    if rank:
        time.sleep(0.5)
    for call in (
        lambda: dist.irecv(torch.ones(1), 1).wait(timedelta(milliseconds=100)),
        dist.barrier,
    ):
        if rank == 0:
            found.append(_error_of(call))
    if rank == 0:
        time.sleep(1)
        return found
    return [_error_of(lambda: dist.send(torch.ones(1), 0)), _error_of(dist.barrier)]


def a_late_rank_in_a_monitored_barrier(rank: int, inputs: Any, all_ranks: bool = False) -> Any:
    if rank:
        time.sleep(0.5)
    found = _error_of(
        lambda: dist.monitored_barrier(
            timeout=timedelta(milliseconds=100), wait_all_ranks=all_ranks
        )
    )
    if rank == 0:
        time.sleep(1)  # so that the others meet a closed connection, not an ended process
    return found


def late_ranks_in_a_monitored_barrier(rank: int, inputs: Any) -> Any:
    return a_late_rank_in_a_monitored_barrier(rank, inputs, all_ranks=True)


def the_call_that_raised_is_named(rank: int, inputs: Any) -> Any:
    if rank:
        first, _ = dist.irecv(torch.zeros(1), 0, tag=1), dist.irecv(torch.zeros(1), 0, tag=2)
        first.wait()


def sends_that_nobody_waits_for(rank: int, inputs: Any) -> Any:
    work = (
        dist.isend(torch.ones(1), 1)
        if rank == 0
        else dist.irecv(torch.zeros(1), 0)
        if rank == 1
        else None
    )
    dist.barrier()
    return work is not None and work.is_completed()


def a_reduce_scatter_that_nobody_waits_for(rank: int, inputs: Any) -> Any:
    dist.reduce_scatter_tensor(torch.zeros(1), torch.ones(dist.get_world_size()), async_op=True)
    dist.barrier()


def a_reduce_scatter_has_no_time_limit(rank: int, inputs: Any) -> Any:
    if rank:
        time.sleep(0.4)
    out, ones = torch.zeros(1), torch.ones(2)
    for call in (
        lambda: dist.reduce_scatter_tensor(out, ones, async_op=True),
        lambda: dist.reduce_scatter(out, [torch.ones(1), torch.ones(1)], async_op=True),
    ):
        call().wait(timedelta(milliseconds=100))
    return out.item()


def a_group_is_made_before_one_of_its_ranks_sleeps(rank: int, inputs: Any) -> Any:
    dist.new_group([0, 1])
    work = dist.all_reduce(torch.ones(1), async_op=True)
    if rank:
        time.sleep(0.4)
        return work.is_completed()
    work.wait()


def recv_from_any_when_all_are_gone(rank: int, inputs: Any) -> Any:
    if rank == 0:
        dist.recv(torch.zeros(1))


def embedding(rank: int, inputs: Any) -> Any:
    model = DDP(torch.nn.EmbeddingBag(10, 4, sparse=True))
    for step in range(3):
        model(torch.tensor([[1, 2], [3, rank + step]])).sum().backward()
    return model.module.weight.grad.coalesce().to_dense().tolist()


def ddp_names_its_backend(rank: int, inputs: Any) -> Any:
    model = DDP(torch.nn.Linear(1, 1))
    model(torch.ones(1, 1)).sum().backward()
    return model._get_ddp_logging_data()["backend_name"]


class _EitherLayer(torch.nn.Module):
    """Ranks use one of two layers in turn, so that each step leaves parameters unused that the
    other rank uses."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)])
        self.last = torch.nn.Linear(2, 1)

    def forward(self, data: torch.Tensor, which: int) -> torch.Tensor:
        return self.last(self.layers[which](data))


def a_builtin_hook_with_unused_parameters(rank: int, inputs: Any) -> Any:
    model = DDP(_EitherLayer(), find_unused_parameters=True, bucket_cap_mb=1e-5)
    model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    for step in range(3):
        model(torch.ones(1, 2) * (rank + 1), (rank + step) % 2).sum().backward()
    return [parameter.grad.tolist() for parameter in model.parameters()]


def _error_of(call: Any) -> str | None:
    try:
        call()
    except RuntimeError as error:
        return what(str(error))
    return None


ALONE = [
    a_wait_that_times_out_and_a_call_that_does_not,
    a_wait_that_is_given_up_for_good,
    a_recv_that_times_out_closes_the_connections,
    a_late_rank_in_a_monitored_barrier,
    late_ranks_in_a_monitored_barrier,
    the_call_that_raised_is_named,
    sends_that_nobody_waits_for,
    a_reduce_scatter_that_nobody_waits_for,
    a_reduce_scatter_has_no_time_limit,
    a_group_is_made_before_one_of_its_ranks_sleeps,
    recv_from_any_when_all_are_gone,
    embedding,
    ddp_names_its_backend,
    a_builtin_hook_with_unused_parameters,
]


@pytest.mark.parametrize("program", ALONE)
def test_it_ends_as_real_processes_do(program: Any) -> None:
    emulated = emulate(program, (1, 1), "gloo")
    sleeps = "sleep" in program.__code__.co_names
    # on a busy machine a rank may be later than it means to be
    for patience in (2.0, 5.0, 10.0) if sleeps else (2.0,):
        launched = launch(program, 2, patience)
        found = differences(emulated, launched)
        if not found and repr(emulated.returns) == repr(launched.returns):
            break
    assert repr(emulated.returns) == repr(launched.returns)
    assert found == []
