"""Small programs that ask gloo one question each, for tests/gloo/test_gloo_agreement.py.

A probe is a function of (rank, size). What it returns, or the error that it raises, is compared between an emulation
and a launch. Probes leave the group usable, so many of them run in one program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

Probe = Callable[[int, int], Any]
DTYPES = (
    "float32", "float64", "float16", "bfloat16", "int8", "uint8", "int16", "int32", "int64", "bool", "complex64",
    "uint16",
)  # fmt: skip
REDUCE_OPS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")


def answers(probes: Sequence[Probe]) -> Callable[[int, Any], list[str]]:
    """A program that runs `probes` one after the other, and returns what each of them found."""

    def program(rank: int, inputs: Any) -> list[str]:
        found = []
        for probe in probes:
            try:
                found.append(f"{probe.__name__}: {probe(rank, dist.get_world_size())!r}")
            except (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError) as error:
                found.append(f"{probe.__name__}: {type(error).__name__} {error}")
        return found

    program.__name__ = "answers"
    return program


def _lists(*tensors: torch.Tensor) -> list[Any]:
    return [tensor.tolist() for tensor in tensors]


# ---------------- what is refused


def all_gather_into_stack(rank: int, size: int) -> Any:
    out = torch.zeros(size, 3)
    dist.all_gather_into_tensor(out, torch.ones(3) * rank)
    return out.tolist()


def all_gather_into_too_short(rank: int, size: int) -> Any:
    out = torch.zeros(size * 3 - 1)
    dist.all_gather_into_tensor(out, torch.ones(3) * rank)
    return out.tolist()


def all_gather_into_of_matrices(rank: int, size: int) -> Any:
    out = torch.zeros(size * 2, 3)
    dist.all_gather_into_tensor(out, torch.ones(2, 3) * rank)
    return out.tolist()


def all_gather_into_another_dtype(rank: int, size: int) -> Any:
    dist.all_gather_into_tensor(torch.zeros(size * 3, dtype=torch.float64), torch.ones(3))


def all_gather_uneven(rank: int, size: int) -> Any:
    dist.all_gather([torch.zeros(1 + place) for place in range(size)], torch.ones(rank + 1))


def all_gather_another_shape(rank: int, size: int) -> Any:
    dist.all_gather([torch.zeros(2, 2) for _ in range(size)], torch.ones(4))


def all_gather_another_dtype(rank: int, size: int) -> Any:
    dist.all_gather([torch.zeros(2, dtype=torch.int64) for _ in range(size)], torch.ones(2))


def all_gather_too_few(rank: int, size: int) -> Any:
    dist.all_gather([torch.zeros(2) for _ in range(size - 1)], torch.ones(2))


def gather_another_shape(rank: int, size: int) -> Any:
    if rank == 0:
        dist.gather(torch.ones(2), [torch.zeros(3) for _ in range(size)], 0)


def gather_too_few(rank: int, size: int) -> Any:
    if rank == 0:
        dist.gather(torch.ones(2), [torch.zeros(2) for _ in range(size + 1)], 0)


def scatter_another_shape(rank: int, size: int) -> Any:
    if rank == 0:
        dist.scatter(torch.zeros(3), [torch.ones(2) for _ in range(size)], 0)


def scatter_too_many(rank: int, size: int) -> Any:
    if rank == 0:
        dist.scatter(torch.zeros(2), [torch.ones(2) for _ in range(size + 1)], 0)


def reduce_scatter_tensor_stack(rank: int, size: int) -> Any:
    try:
        dist.reduce_scatter_tensor(torch.zeros(3), torch.ones(size, 3))
    except RuntimeError as error:
        return str(error).partition("Check failed")[2]


def reduce_scatter_tensor_another_dtype(rank: int, size: int) -> Any:
    try:
        dist.reduce_scatter_tensor(torch.zeros(1), torch.ones(size, dtype=torch.float64))
    except RuntimeError as error:
        return str(error).partition("Check failed")[2]


def reduce_scatter_tensor_another_width(rank: int, size: int) -> Any:
    try:
        dist.reduce_scatter_tensor(torch.zeros(1, 3), torch.ones(size, 2))
    except RuntimeError as error:
        return str(error).partition("Check failed")[2]


def all_to_all_unequal(rank: int, size: int) -> Any:
    ins = [torch.ones(place + 1) * rank for place in range(size)]
    dist.all_to_all([torch.zeros(rank + 1) for _ in range(size)], ins)


def all_to_all_too_few(rank: int, size: int) -> Any:
    dist.all_to_all([torch.zeros(1)], [torch.ones(1)])


def all_to_all_single_indivisible(rank: int, size: int) -> Any:
    dist.all_to_all_single(torch.zeros(size + 1), torch.ones(size + 1))


def all_to_all_single_wrong_splits(rank: int, size: int) -> Any:
    splits = [1] * size
    dist.all_to_all_single(torch.zeros(size + 1), torch.ones(size + 1), splits, splits)


def all_to_all_single_of_unequal_lengths(rank: int, size: int) -> Any:
    dist.all_to_all_single(torch.zeros(2 * size), torch.ones(size))


def all_to_all_single_unequal_own_share(rank: int, size: int) -> Any:
    ins, outs = [1] * size, [1] * size
    outs[rank] = 2
    dist.all_to_all_single(torch.zeros(size + 1), torch.ones(size), outs, ins)


def send_strided(rank: int, size: int) -> Any:
    dist.send(torch.ones(2, 3).t(), (rank + 1) % size)


def recv_strided(rank: int, size: int) -> Any:
    dist.recv(torch.ones(2, 3).t(), (rank - 1) % size)


def send_to_itself(rank: int, size: int) -> Any:
    dist.isend(torch.ones(2), rank)


def recv_from_itself(rank: int, size: int) -> Any:
    dist.irecv(torch.ones(2), rank)


def send_a_negative_tag(rank: int, size: int) -> Any:
    dist.isend(torch.ones(2), (rank + 1) % size, tag=-1)


def bitwise_of_floats(rank: int, size: int) -> Any:
    dist.all_reduce(torch.ones(2), dist.ReduceOp.BAND)


def bitwise_of_floats_waited_for(rank: int, size: int) -> Any:
    work = dist.all_reduce(torch.ones(2), dist.ReduceOp.BXOR, async_op=True)
    return work.wait()


def average_of_integers_waited_for(rank: int, size: int) -> Any:
    work = dist.all_reduce(torch.ones(2, dtype=torch.int64), dist.ReduceOp.AVG, async_op=True)
    return work.wait()


def premultiplied_sum(rank: int, size: int) -> Any:
    dist.all_reduce(torch.ones(2), dist._make_nccl_premul_sum(2.0))


REFUSED: tuple[Probe, ...] = (
    all_gather_into_stack, all_gather_into_too_short, all_gather_into_of_matrices, all_gather_into_another_dtype,
    all_gather_uneven, all_gather_another_shape, all_gather_another_dtype, all_gather_too_few, gather_another_shape,
    gather_too_few, scatter_another_shape, scatter_too_many, reduce_scatter_tensor_stack,
    reduce_scatter_tensor_another_dtype, reduce_scatter_tensor_another_width, all_to_all_unequal, all_to_all_too_few,
    all_to_all_single_indivisible, all_to_all_single_wrong_splits, all_to_all_single_of_unequal_lengths,
    all_to_all_single_unequal_own_share, send_strided, recv_strided, send_to_itself, recv_from_itself,
    send_a_negative_tag, bitwise_of_floats, bitwise_of_floats_waited_for, average_of_integers_waited_for,
    premultiplied_sum,
)  # fmt: skip


# ---------------- dtypes


def _each_dtype(call: Callable[[torch.Tensor, str], Any], reduce_ops: Sequence[str] = ("",)) -> list[str]:
    found = []
    for name in DTYPES:
        for reduce_op in reduce_ops:
            tensor = torch.tensor([1, 0, 1]).to(getattr(torch, name))
            try:
                found.append(f"{name} {reduce_op} {call(tensor, reduce_op)}")
            except (RuntimeError, ValueError, TypeError) as error:
                found.append(f"{name} {reduce_op} {type(error).__name__} {error}")
    return found


def dtypes_of_all_reduce(rank: int, size: int) -> Any:
    def call(tensor: torch.Tensor, reduce_op: str) -> Any:
        dist.all_reduce(tensor, getattr(dist.ReduceOp, reduce_op))
        return tensor.tolist()

    return _each_dtype(call, REDUCE_OPS)


def dtypes_of_reduce(rank: int, size: int) -> Any:
    def call(tensor: torch.Tensor, reduce_op: str) -> Any:
        dist.reduce(tensor, 0, getattr(dist.ReduceOp, reduce_op))
        return tensor.tolist() if rank == 0 else None

    return _each_dtype(call, REDUCE_OPS)


def dtypes_of_reduce_scatter(rank: int, size: int) -> Any:
    def call(tensor: torch.Tensor, reduce_op: str) -> Any:
        dist.reduce_scatter(tensor, [tensor.clone() for _ in range(size)], getattr(dist.ReduceOp, reduce_op))
        return tensor.tolist()

    return _each_dtype(call, REDUCE_OPS)


def dtypes_of_broadcast(rank: int, size: int) -> Any:
    def call(tensor: torch.Tensor, _: str) -> Any:
        dist.broadcast(tensor, 0)
        return tensor.tolist()

    return _each_dtype(call)


def dtypes_of_all_gather(rank: int, size: int) -> Any:
    def call(tensor: torch.Tensor, _: str) -> Any:
        outs = [torch.zeros_like(tensor) for _ in range(size)]
        dist.all_gather(outs, tensor)
        return _lists(*outs)

    return _each_dtype(call)


def dtypes_of_gather(rank: int, size: int) -> Any:
    def call(tensor: torch.Tensor, _: str) -> Any:
        outs = [torch.zeros_like(tensor) for _ in range(size)]
        dist.gather(tensor, outs if rank == 0 else None, 0)
        return _lists(*outs)

    return _each_dtype(call)


def dtypes_of_scatter(rank: int, size: int) -> Any:
    def call(tensor: torch.Tensor, _: str) -> Any:
        out = torch.zeros_like(tensor)
        dist.scatter(out, [tensor] * size if rank == 0 else None, 0)
        return out.tolist()

    return _each_dtype(call)


def dtypes_of_all_to_all(rank: int, size: int) -> Any:
    def call(tensor: torch.Tensor, _: str) -> Any:
        outs = [torch.zeros_like(tensor) for _ in range(size)]
        dist.all_to_all(outs, [tensor] * size)
        return _lists(*outs)

    return _each_dtype(call)


def dtypes_of_send(rank: int, size: int) -> Any:
    def call(tensor: torch.Tensor, _: str) -> Any:
        if rank == 0:
            dist.send(tensor, 1)
        elif rank == 1:
            tensor.zero_()
            dist.recv(tensor, 0)
        return tensor.tolist()

    return _each_dtype(call)


def bytes_of_bools(rank: int, size: int) -> Any:
    """To gloo a bool is a byte, also where it is neither 0 nor 1."""
    found = []
    for name in REDUCE_OPS:
        if name != "AVG":
            bools = torch.tensor([1, 1, 0, 2 + rank], dtype=torch.uint8).view(torch.bool)
            dist.all_reduce(bools, getattr(dist.ReduceOp, name))
            dist.reduce(bools, 1, getattr(dist.ReduceOp, name))
            found.append((name, bools.view(torch.uint8).tolist() if rank == 1 else []))
    return found


BY_DTYPE: tuple[Probe, ...] = (
    bytes_of_bools,
    dtypes_of_all_reduce, dtypes_of_reduce, dtypes_of_reduce_scatter, dtypes_of_broadcast, dtypes_of_all_gather,
    dtypes_of_gather, dtypes_of_scatter, dtypes_of_all_to_all, dtypes_of_send,
)  # fmt: skip


# ---------------- strided tensors


def _strided(rank: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """A base of 24 elements, and views of it that are not contiguous."""
    base = (torch.arange(24) + 10 * rank).to(dtype)
    square = base.view(4, 6)
    return base, {
        "column": square[:, 0],
        "transposed": square.t(),
        "every other": base[1::2],
        "corner": square[1:3, 1:4],
        "expanded": base[:1].expand(3),
        "channels last": base.view(1, 2, 3, 4).permute(0, 3, 1, 2),
    }


def _each_view(rank: int, call: Callable[[torch.Tensor], Any]) -> list[str]:
    found = []
    for dtype in (torch.float32, torch.uint8):
        for name in _strided(rank)[1]:
            base, views = _strided(rank, dtype)
            try:
                result = call(views[name])
                found.append(f"{name} {result} {base.tolist()}")
            except (RuntimeError, ValueError) as error:
                found.append(f"{name} {type(error).__name__} {error} {base.tolist()}")
    return found


def strided_all_reduce(rank: int, size: int) -> Any:
    return _each_view(rank, dist.all_reduce)


def strided_all_reduce_average(rank: int, size: int) -> Any:
    return _each_view(rank, lambda tensor: dist.all_reduce(tensor, dist.ReduceOp.AVG))


def strided_broadcast(rank: int, size: int) -> Any:
    return _each_view(rank, lambda tensor: dist.broadcast(tensor, 0))


def strided_reduce(rank: int, size: int) -> Any:
    return _each_view(rank, lambda tensor: dist.reduce(tensor, 0)) if rank == 0 else _each_view_but_sums(rank)


def _each_view_but_sums(rank: int) -> list[str]:
    _each_view(rank, lambda tensor: dist.reduce(tensor, 0))  # what is left on the others is a half-made sum
    return []


def strided_all_gather(rank: int, size: int) -> Any:
    def call(tensor: torch.Tensor) -> Any:
        outs = [torch.zeros_like(tensor) for _ in range(size)]
        dist.all_gather(outs, tensor)
        return _lists(*outs)

    return _each_view(rank, call)


def strided_all_gather_outputs(rank: int, size: int) -> Any:
    found = []
    for name in ("column", "transposed", "every other", "corner", "channels last"):
        each = [_strided(place) for place in range(size)]
        outs = [views[name] for _, views in each]
        dist.all_gather(outs, torch.ones(outs[0].shape) * rank)
        found.append([base.tolist() for base, _ in each])
    return found


def strided_gather(rank: int, size: int) -> Any:
    def call(tensor: torch.Tensor) -> Any:
        outs = [torch.zeros_like(tensor) for _ in range(size)]
        dist.gather(tensor, outs if rank == 0 else None, 0)
        return _lists(*outs)

    return _each_view(rank, call)


def strided_scatter(rank: int, size: int) -> Any:
    def call(tensor: torch.Tensor) -> Any:
        dist.scatter(tensor, [tensor.clone() + place for place in range(size)] if rank == 0 else None, 0)

    return _each_view(rank, call)


def strided_scatter_inputs(rank: int, size: int) -> Any:
    def call(tensor: torch.Tensor) -> Any:
        out = torch.zeros(tensor.shape, dtype=tensor.dtype)
        dist.scatter(out, [tensor] * size if rank == 0 else None, 0)
        return out.tolist()

    return _each_view(rank, call)


def strided_reduce_scatter(rank: int, size: int) -> Any:
    def call(tensor: torch.Tensor) -> Any:
        out = torch.zeros_like(tensor)
        dist.reduce_scatter(out, [tensor] * size)
        return out.tolist()

    return _each_view(rank, call)


def strided_reduce_scatter_tensor(rank: int, size: int) -> Any:
    wide = torch.arange(6.0 * size).view(3, 2 * size).t()  # (2 * size, 3), one behind the other in memory by columns
    out = torch.zeros(2, 3)
    dist.reduce_scatter_tensor(out, wide + rank)
    other = torch.zeros(3, 2).t()
    dist.reduce_scatter_tensor(other, wide)
    return _lists(out, other)


def strided_all_to_all(rank: int, size: int) -> Any:
    def call(tensor: torch.Tensor) -> Any:
        outs = [torch.zeros_like(tensor) for _ in range(size)]
        dist.all_to_all(outs, [tensor] * size)
        return _lists(*outs)

    return _each_view(rank, call)


def strided_all_to_all_single(rank: int, size: int) -> Any:
    tall = (torch.arange(4.0 * size) + 100 * rank).view(2, 2 * size).t()  # (2 * size, 2)
    out = torch.zeros(2 * size, 2)
    dist.all_to_all_single(out, tall)
    other = torch.zeros(2, 2 * size).t()
    dist.all_to_all_single(other, torch.ones(2 * size, 2) * rank)
    return _lists(out, other)


def strided_all_gather_into(rank: int, size: int) -> Any:
    out = torch.zeros(3, 2 * size).t()
    dist.all_gather_into_tensor(out, (torch.arange(6.0) + 10 * rank).view(3, 2).t())
    return out.tolist()


def strided_coalesced(rank: int, size: int) -> Any:
    base, views = _strided(rank)
    dist.all_reduce_coalesced([views["column"], views["transposed"].clone()])
    return base.tolist()


STRIDED: tuple[Probe, ...] = (
    strided_all_reduce, strided_all_reduce_average, strided_broadcast, strided_reduce, strided_all_gather,
    strided_all_gather_outputs, strided_gather, strided_scatter, strided_scatter_inputs, strided_reduce_scatter,
    strided_reduce_scatter_tensor, strided_all_to_all, strided_all_to_all_single, strided_all_gather_into,
    strided_coalesced,
)  # fmt: skip


# ---------------- uneven and sparse


def reduce_scatter_uneven(rank: int, size: int) -> Any:
    out = torch.zeros(rank + 1)
    dist.reduce_scatter(out, [torch.arange(place + 1.0) + 10 * place + rank for place in range(size)])
    return out.tolist()


def reduce_scatter_another_shape(rank: int, size: int) -> Any:
    out = torch.zeros(3, 2)
    dist.reduce_scatter(out, [torch.ones(2) + rank for _ in range(size)])  # is spread over the rows
    return out.tolist()


def reduce_scatter_that_does_not_fit(rank: int, size: int) -> Any:
    dist.reduce_scatter(torch.zeros(3), [torch.ones(2) for _ in range(size)])


def reduce_scatter_another_dtype(rank: int, size: int) -> Any:
    out = torch.zeros(2, dtype=torch.int64)
    dist.reduce_scatter(out, [torch.ones(2) / 2 for _ in range(size)])
    return out.tolist()


def reduce_scatter_too_few(rank: int, size: int) -> Any:
    dist.reduce_scatter(torch.zeros(2), [torch.ones(2)] * (size - 1))


def all_to_all_single_uneven(rank: int, size: int) -> Any:
    ins = [place + 1 for place in range(size)]
    out = torch.zeros(size * (rank + 1))
    dist.all_to_all_single(out, torch.arange(float(sum(ins))) + 100 * rank, [rank + 1] * size, ins)
    return out.tolist()


def all_to_all_single_rows(rank: int, size: int) -> Any:
    ins = list(range(size))  # nothing for rank 0
    out = torch.zeros(size * rank, 2)
    dist.all_to_all_single(out, torch.ones(sum(ins), 2) * rank, [rank] * size, ins)
    return out.tolist()


def sparse_all_reduce(rank: int, size: int) -> Any:
    tensor = torch.eye(3).to_sparse() * (rank + 1)
    dist.all_reduce(tensor)
    return tensor.is_coalesced(), tensor.to_dense().tolist()


def sparse_of_other_places(rank: int, size: int) -> Any:
    tensor = torch.sparse_coo_tensor([[rank, rank, 4]], torch.tensor([1.0, 2.0, 3.0]), (5,))
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    (result,) = work.result()
    return tensor.is_coalesced(), tensor.to_dense().tolist(), result.to_dense().tolist()


def sparse_with_dense_rows(rank: int, size: int) -> Any:
    tensor = torch.sparse_coo_tensor([[rank]], torch.ones(1, 2) * (rank + 1), (size + 1, 2))
    dist.all_reduce(tensor)
    return tensor.to_dense().tolist()


def sparse_maximum(rank: int, size: int) -> Any:
    dist.all_reduce(torch.eye(2).to_sparse(), dist.ReduceOp.MAX)


def sparse_of_another_shape(rank: int, size: int) -> Any:
    dist.all_reduce(torch.eye(2 + (rank == 0)).to_sparse())


def sparse_empty(rank: int, size: int) -> Any:
    tensor = torch.sparse_coo_tensor(torch.zeros(1, 0, dtype=torch.int64), torch.zeros(0), (3,))
    dist.all_reduce(tensor)
    return tensor.to_dense().tolist()


def sparse_broadcast(rank: int, size: int) -> Any:
    dist.broadcast(torch.eye(2).to_sparse(), 0)


def sparse_all_gather(rank: int, size: int) -> Any:
    dist.all_gather([torch.eye(2).to_sparse()] * size, torch.eye(2).to_sparse())


def sparse_reduce(rank: int, size: int) -> Any:
    dist.reduce(torch.eye(2).to_sparse(), 0)


UNEVEN: tuple[Probe, ...] = (
    reduce_scatter_uneven, reduce_scatter_another_shape, reduce_scatter_that_does_not_fit,
    reduce_scatter_another_dtype, reduce_scatter_too_few, all_to_all_single_uneven, all_to_all_single_rows,
)  # fmt: skip

SPARSE: tuple[Probe, ...] = (
    sparse_all_reduce, sparse_of_other_places, sparse_with_dense_rows, sparse_maximum, sparse_of_another_shape,
    sparse_empty, sparse_broadcast, sparse_all_gather, sparse_reduce,
)  # fmt: skip


# ---------------- Work and futures


def work_of_reduce_scatter(rank: int, size: int) -> Any:
    work = dist.reduce_scatter_tensor(torch.zeros(1), torch.ones(size), async_op=True)
    before = work.is_completed()
    waited = work.wait()
    try:
        future = str(work.get_future().wait())
    except RuntimeError as error:
        future = str(error)
    return before, waited, work.is_completed(), future


def work_of_reduce_scatter_list(rank: int, size: int) -> Any:
    work = dist.reduce_scatter(torch.zeros(1), [torch.ones(1)] * size, async_op=True)
    waited = work.wait()
    try:
        future = str(work.get_future().wait())
    except RuntimeError as error:
        future = str(error)
    return waited, work.is_completed(), future


def future_of_a_barrier(rank: int, size: int) -> Any:
    work = dist.barrier(async_op=True)
    work.wait()
    return work.get_future().wait(), work.is_completed(), work.result()


def future_of_an_open_barrier(rank: int, size: int) -> Any:
    return dist.barrier(async_op=True).get_future().then(lambda future: (future.value(), rank)).wait()


def future_of_a_gather(rank: int, size: int) -> Any:
    outs = [torch.zeros(1) for _ in range(size)] if rank == 0 else None
    work = dist.gather(torch.ones(1), outs, 0, async_op=True)
    work.wait()
    return str(work.get_future().wait()), str(work.result())


def future_of_a_scatter(rank: int, size: int) -> Any:
    ins = [torch.ones(1) for _ in range(size)] if rank == 0 else None
    work = dist.scatter(torch.zeros(1), ins, 0, async_op=True)
    work.wait()
    return str(work.get_future().wait())


def future_of_an_all_gather(rank: int, size: int) -> Any:
    work = dist.all_gather([torch.zeros(1) for _ in range(size)], torch.ones(1), async_op=True)
    work.wait()
    return str(work.get_future().wait())


def future_of_a_coalesced_all_gather(rank: int, size: int) -> Any:
    out = torch.zeros(size)
    work = dist.all_gather_into_tensor(out, torch.ones(1), async_op=True)
    work.wait()
    return str(work.get_future().wait())


def future_of_an_all_to_all(rank: int, size: int) -> Any:
    work = dist.all_to_all_single(torch.zeros(size), torch.ones(size), async_op=True)
    work.wait()
    return str(work.get_future().wait())


def work_of_a_send(rank: int, size: int) -> Any:
    tensor = torch.ones(1) * rank
    work = dist.isend(tensor, 1) if rank == 0 else dist.irecv(tensor, 0) if rank == 1 else None
    if work is None:
        return None
    found: list[Any] = [work.wait(), work.is_completed(), work.is_success()]
    try:
        found.append(str(work.get_future().wait()))
    except RuntimeError as error:
        found.append(str(error))
    return found


def result_too_early(rank: int, size: int) -> Any:
    if rank == 0:
        dist.recv(torch.zeros(1), 1)
    work = dist.all_reduce(torch.ones(1), async_op=True)
    try:
        if rank == 1:
            return str(work.result())
    finally:
        if rank == 1:
            dist.send(torch.ones(1), 0)
        work.wait()


def monitored(rank: int, size: int) -> Any:
    dist.monitored_barrier()
    return "passed"


def collective_after_monitored(rank: int, size: int) -> Any:
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    return tensor.item()


def all_reduces_by_a_coalescing_manager(rank: int, size: int) -> Any:
    one, other = torch.ones(2) * rank, torch.ones(3)
    with distributed_c10d._coalescing_manager(async_ops=True) as manager:
        dist.all_reduce(one)
        dist.all_reduce(other)
    manager.wait()
    return _lists(one, other)


def all_gathers_by_a_coalescing_manager(rank: int, size: int) -> Any:
    outs = torch.zeros(2 * size), torch.zeros(size)
    with distributed_c10d._coalescing_manager():
        dist.all_gather_into_tensor(outs[0], torch.ones(2) * rank)
        dist.all_gather_into_tensor(outs[1], torch.ones(1) * rank)
    return _lists(*outs)


def a_coalescing_manager_for_a_device(rank: int, size: int) -> Any:
    group = dist.new_group()  # of its own: torch coalesces what follows in it, after an error, too
    with distributed_c10d._coalescing_manager(group, torch.device("cpu")):
        dist.all_reduce(torch.ones(1), group=group)


def sends_and_recvs_in_a_batch(rank: int, size: int) -> Any:
    came = torch.zeros(2)
    ops = [
        dist.P2POp(dist.isend, torch.ones(2) * rank, (rank + 1) % size),
        dist.P2POp(dist.irecv, came, (rank - 1) % size),
    ]
    works = dist.batch_isend_irecv(ops)
    for work in works:
        work.wait()
    return len(works), came.tolist()


WORKS: tuple[Probe, ...] = (
    all_reduces_by_a_coalescing_manager, all_gathers_by_a_coalescing_manager, a_coalescing_manager_for_a_device,
    sends_and_recvs_in_a_batch,
    work_of_reduce_scatter, work_of_reduce_scatter_list, future_of_a_barrier, future_of_an_open_barrier,
    future_of_a_gather, future_of_a_scatter, future_of_an_all_gather, future_of_a_coalesced_all_gather,
    future_of_an_all_to_all, work_of_a_send, result_too_early, monitored, collective_after_monitored,
)  # fmt: skip
