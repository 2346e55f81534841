"""The engines follow PyTorch's source in corner cases: groups, futures, lists of tensors, undefined
memory."""

from __future__ import annotations

import time
import warnings
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel as DDP

from joinlab import cases, emulate, launch
from joinlab.errors import LaunchError
from tests.agreement import GONE

BACKENDS = pytest.mark.parametrize("backend", ["gloo", "nccl"])


@BACKENDS
def test_a_rank_outside_a_group_that_calls_a_rooted_collective_is_warned_and_goes_on(backend):
    def program(rank, inputs):
        warnings.simplefilter("always")
        group = dist.new_group([1, 0])
        tensor = torch.ones(1) * rank
        dist.broadcast(tensor, src=1, group=group)
        dist.barrier()
        return tensor.item()

    with pytest.warns(
        UserWarning,
        match="Running broadcast on global rank 2 which does not belong to the given group",
    ):
        assert emulate(program, (1, 1, 1), backend).returns == (1.0, 1.0, 2.0)


@BACKENDS
def test_groups_that_only_their_members_make_are_refused_where_their_names_are_the_same(backend):
    def program(rank, inputs, **options):
        group = dist.new_group([0, 3] if rank in (0, 3) else [1, 2], **options)
        tensor = torch.ones(1) * (rank + 1)
        dist.all_reduce(tensor, group=group)
        return tensor.item()

    with pytest.raises(
        LaunchError,
        match=r"different groups '1'.*\(test_source_truths\.py:\d+\).*use_local_synchronization=True",
    ):
        emulate(program, (1,) * 4, backend)
    local = emulate(
        lambda rank, inputs: program(rank, inputs, use_local_synchronization=True),
        (1,) * 4,
        backend,
    )
    assert local.returns == (5.0,) * 4
    alone = emulate(
        lambda rank, inputs: dist.get_world_size(dist.new_group([rank])), (1,) * 3, backend
    )
    assert alone.returns == (1,) * 3  # it connects to nobody
    assert emulate(cases.case_1, (1, 2), backend).returns == (1, 2)


def test_a_future_of_a_gather_on_nccl_holds_one_tensor():
    """PyTorch's quantization hooks read it so."""

    def program(rank, inputs):
        outs = [torch.zeros(2), torch.zeros(2)]
        found = dist.all_gather(outs, torch.ones(2) * (rank + 1), async_op=True).get_future().wait()
        return [one.tolist() for one in found]

    assert emulate(program, (1, 1)).returns == ([[[1.0, 1.0], [2.0, 2.0]]],) * 2
    expected = launch(program, (1, 1), "gloo").returns
    assert emulate(program, (1, 1), "gloo").returns == expected == ([[1.0, 1.0], [2.0, 2.0]],) * 2


def test_an_all_reduce_of_several_tensors_is_refused_as_by_the_backends():
    def program(rank, inputs):
        dist.group.WORLD.allreduce([torch.ones(2), torch.ones(3)]).wait()

    on_gloo, on_nccl = (
        emulate(program, (1, 1), backend).ends[0].text for backend in ("gloo", "nccl")
    )
    assert on_gloo == launch(program, (1, 1), "gloo").ends[0].text
    assert on_gloo.endswith("invalid tensor size at index 0 (expected (2), got (3))")
    assert on_nccl.startswith("ValueError: Expecting one tensor only but got multiple.")


def sharded(rank, inputs):
    FullyShardedDataParallel(torch.nn.Linear(1, 1))


def compressed(rank, inputs):
    DDP(torch.nn.Linear(1, 1)).register_comm_hook(None, bf16_compress_hook)


def by_number(rank, inputs):
    return torch.device(rank)


HAS_CUDA = pytest.mark.skipif(
    torch.version.cuda is not None, reason="a torch built with CUDA does so without a GPU"
)


@pytest.mark.parametrize(
    "program", [sharded, *(pytest.param(one, marks=HAS_CUDA) for one in (compressed, by_number))]
)
def test_what_asks_for_a_gpu_that_only_real_nccl_has_is_no_error_of_the_program(program):
    with pytest.raises(LaunchError, match="cannot be known without a GPU"):
        emulate(program, (1, 1))
    assert emulate(cases.case_1, (1, 2)).returns == (1, 2)


def test_a_scaled_sum_scales_what_each_rank_puts_in():
    def program(rank, inputs, dtype=torch.float32):
        value = torch.full((2,), rank + 1, dtype=dtype)
        dist.all_reduce(value, dist._make_nccl_premul_sum(0.5 if rank else 0.25))
        return value.tolist()

    assert emulate(program, (1, 1)).returns == ([1.25, 1.25],) * 2
    refused = emulate(lambda rank, inputs: program(rank, inputs, torch.int32), (1, 1)).ends
    assert {end.text for end in refused} == {
        "TypeError: PreMulSum Data type must be half, float, bfloat16 or double"
    }
    on_gloo = (
        emulate(program, (1, 1), "gloo"),
        launch(program, (1, 1), "gloo", on_output=None, progress=False),
    )
    assert {end.text for found in on_gloo for end in found.ends} == {
        "RuntimeError: Cannot use ReduceOp.PREMUL_SUM with Gloo"
    }


def test_a_groups_own_timeout_ends_a_rank_that_waits_for_one_that_is_merely_late():
    def program(rank, inputs):
        group = dist.new_group([0, 1], timeout=timedelta(seconds=2))
        dist.all_reduce(torch.ones(1), group=group)
        time.sleep(len(inputs) * rank)  # of virtual time
        value = torch.ones(1)
        dist.all_reduce(value, group=group)
        return value.item()

    assert (
        emulate(program, (1, 1)).returns
        == emulate(program, (5, 5), era="1.9").returns
        == (2.0, 2.0)
    )
    waited, late = emulate(program, (5, 5)).ends
    assert (
        waited.kind == "killed"
        and "Timeout(ms)=2000) ran for 2000 milliseconds before timing out" in waited.text
    )
    assert late.kind == "hung"


def test_an_empty_tensor_from_any_source_is_refused():
    def program(rank, inputs):
        dist.recv(torch.ones(0)) if rank else dist.send(torch.ones(0), 1)

    launched = launch(program, (1, 1), "gloo", on_output=None, progress=False)
    for ends in (emulate(program, (1, 1), "gloo").ends, launched.ends):
        assert GONE.search(ends[0].text)
        assert ends[1].text.endswith("offset < this->size. 0 vs 0")


def test_a_barrier_behind_a_call_that_fails_later_raises_that_error():
    """An average of integers fails once its sum is there, and the barrier waits for it.

    Of real ranks the second may still be at the sum when the first has ended, and finds the
    connection closed.
    """

    def program(rank, inputs):
        dist.all_reduce(torch.ones(2, dtype=torch.int32), dist.ReduceOp.AVG, async_op=True)
        dist.barrier()

    launched = launch(program, (1, 1), "gloo", on_output=None, progress=False)
    emulated = emulate(program, (1, 1), "gloo")
    assert [str(end.kind) for end in (*emulated.ends, *launched.ends)] == ["raised"] * 4
    said = [end.text.partition(" can't")[0] for end in (*emulated.ends, *launched.ends)]
    assert said[:2] == ["RuntimeError: result type Float"] * 2 and said[0] in said[2:], said


@pytest.mark.parametrize("counts", [(1, 2), (2, 3), (5, 6)])
def test_case_2_hangs_where_it_destroys_its_group_as_the_tutorials_of_today_do(counts):
    """At one input it hangs anyway: the second forward rebuilds the buckets, for which the host
    waits."""

    def program(rank, inputs):
        cases.case_2(rank, inputs)
        dist.destroy_process_group()

    assert [str(end) for end in emulate(program, counts).ends] == ["finished", "hung (proven)"]
    without = emulate(cases.case_2, counts).ends[1]
    assert str(without) == (
        "hung (proven)" if counts == (1, 2) else "finished (a call still pending)"
    )


@BACKENDS
@pytest.mark.parametrize("peer", [-1, 2])
def test_a_peer_that_no_group_has_is_named(backend, peer):
    """gloo waits for its address until the timeout, or reads beyond its list of connections and
    crashes."""

    def program(rank, inputs):
        dist.send(torch.ones(1), peer)

    told = (
        r"rank 0 calls send \(test_source_truths.py:\d+\): no rank {} is in its group, which has 2"
    )
    with pytest.raises(LaunchError, match=told.format(peer)):
        emulate(program, (1, 1), backend)
    assert emulate(cases.case_1, (1, 2), backend).returns == (1, 2)
