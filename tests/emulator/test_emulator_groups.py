"""Process groups with different backends in one emulation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from joinlab import diagnose, emulate, match
from joinlab.timeline import EndKind


def on_gloo(rank: int, inputs: Any) -> Any:
    group = dist.new_group(backend="gloo")
    tensor = torch.tensor([rank + 1])
    dist.all_reduce(tensor, dist.ReduceOp.BOR, group=group)  # NCCL has no bitwise operations
    return dist.get_backend(group), tensor.item()


def two_kinds(backend: str) -> Any:
    """An all-reduce on rank 0 and a broadcast on rank 1, in a group with this backend."""

    def program(rank: int, inputs: Any) -> Any:
        group = dist.new_group(backend=backend)
        tensor = torch.tensor([5.0 + 2 * rank])
        dist.broadcast(tensor, 1, group=group) if rank else dist.all_reduce(tensor, group=group)
        return tensor.item()

    return program


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_a_group_has_its_own_backend(backend: str) -> None:
    timeline = emulate(on_gloo, (1, 1), backend)
    assert timeline.returns == (("gloo", 3), ("gloo", 3))
    assert timeline.meta.get("group_backends", {}) == ({"1": "gloo"} if backend == "nccl" else {})


def test_a_mismatch_on_gloo_hangs_in_an_nccl_emulation_and_is_proven() -> None:
    timeline = emulate(two_kinds("gloo"), (1, 1), "nccl")
    assert {str(end) for end in timeline.ends} == {"hung (proven)"}
    assert not match(timeline)[0].met
    assert "on gloo calls of different kinds never meet" in str(diagnose(timeline))


def test_a_mismatch_on_nccl_completes_in_a_gloo_emulation() -> None:
    """As the table of documented pairs has it: AR 5 with BC root 1 [7] gives 12 on rank 0 and
    leaves rank 1 alone."""
    timeline = emulate(two_kinds("nccl"), (1, 1), "gloo")
    assert {end.kind for end in timeline.ends} == {EndKind.FINISHED}
    assert timeline.returns == (12.0, 7.0)
    assert match(timeline)[0].met


def channels_last(rank: int, inputs: Any) -> Any:
    tensor = (torch.arange(16.0).reshape(1, 2, 2, 4) * (rank == 0)).to(
        memory_format=torch.channels_last
    )
    dist.broadcast(tensor, 0)
    matrix = torch.arange(6.0).reshape(2, 3).t() * (rank + 1)
    if rank == 0:
        dist.send(matrix, 1)
    else:
        dist.recv(matrix, 0)
    return tensor.sum().item(), matrix.sum().item()


def test_a_line_that_reduces_dense_and_sparse_tensors_tells_them_apart() -> None:
    def program(rank, inputs):
        for tensor in (torch.eye(2), torch.eye(2).to_sparse()):
            dist.all_reduce(tensor)

    assert emulate(program, (0,), "gloo").calls["dtype"].to_list() == ["float32", "sparse float32"]


def test_nccl_takes_channels_last_and_only_warns_of_strided_sends() -> None:
    assert emulate(channels_last, (1, 1), "nccl").returns == ((120.0, 15.0), (120.0, 15.0))


def test_a_tensor_that_is_freed_while_gloo_works_on_it_ends_no_kernel() -> None:
    """What a real process sends then is undefined; the calls still meet."""

    def program(rank: int, inputs: Any) -> None:
        tensor = torch.ones(1000)
        work = dist.all_reduce(tensor, async_op=True)
        tensor.untyped_storage().resize_(0)
        work.wait()

    assert [str(end) for end in emulate(program, (0, 0), "gloo").ends] == ["finished"] * 2
