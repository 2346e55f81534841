"""Gloo's arithmetic: two runs of elements, and sums of sparse tensors.

Source: gloo/math.h (sum, product, min, max) in third_party/gloo of PyTorch v2.13.0, and band, bor,
bxor in torch/csrc/distributed/c10d/ProcessGroupGlooDetail.hpp. In the ring `one` is what the rank
has, `other` what arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from joinlab.backend.payload import FLOATS, INTEGERS, Bytes, len_of, read, write
from joinlab.gloo import messages
from joinlab.gloo.network import Buffer, Network, NetworkPart, Slot, Waits, play

_NUMPY: dict[torch.dtype, object] = {
    **FLOATS,
    **INTEGERS,  # a bool is a byte: two that are true sum up to 2, which is true, too
    # PyTorch gives gloo the real and imaginary parts (at::view_as_real)
    torch.complex64: np.float32,
    torch.complex128: np.float64,
}

_OPS: dict[str, Callable[..., Any]] = {
    "sum": np.add,
    "product": np.multiply,
    # std::min: with a NaN it is not symmetric
    "min": lambda left, right: np.where(right < left, right, left),
    "max": lambda left, right: np.where(left < right, right, left),
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}

_TORCH_OPS: dict[str, Callable[..., torch.Tensor]] = {
    "sum": torch.add,
    "product": torch.mul,
    "min": lambda left, right: torch.where(right < left, right, left),
    "max": lambda left, right: torch.where(left < right, right, left),
}

DTYPES = frozenset({*_NUMPY, torch.bfloat16})
"""What gloo can send: GENERATE_ALL_TYPES in ProcessGroupGlooDetail.hpp, and complex ones where they
are split."""

_numpy = torch._C.TensorBase.numpy


def combine(dtype: torch.dtype, reduce_op: str, first: Bytes, second: Bytes) -> Bytes:
    """Reduce two runs of whole elements of `dtype`; returns the bytes of the result.

    >>> one, other = (np.array(values, np.float32).view(np.uint8) for values in ([1, np.nan], [np.nan, 1]))
    >>> combine(torch.float32, "min", one, other).view(np.float32)
    array([ 1., nan], dtype=float32)
    """
    kind = _NUMPY.get(dtype)
    if kind is not None:
        with np.errstate(all="ignore"):
            return _OPS[reduce_op](first.view(kind), second.view(kind)).view(np.uint8)  # type: ignore[no-any-return]
    left_values, right = (
        torch.from_numpy(np.ascontiguousarray(part)).view(dtype) for part in (first, second)
    )
    return _numpy(_TORCH_OPS[reduce_op](left_values, right).view(torch.uint8))


def summed_sparse(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The sum of coalesced sparse tensors, in the order of the ranks:
    AsyncSparseAllreduceWork::allreduce()."""
    total = tensors[0]
    for tensor in tensors[1:]:
        total = total + tensor
    return total.coalesce()


def all_reduce_sparse(
    network: Network, task: NetworkPart, tensor: torch.Tensor, slot: Slot, me: int, size: int
) -> Waits:
    """Three all-gathers under one slot: what each rank has, the indices, the values. Then everyone
    sums for itself.

    The sizes go first, as 9 int64 (SparseTensorMetadata), since ranks may have different numbers of
    values. Where ranks differ in shape each of them raises. Every rank's tensor is known here, so
    only the waiting is left to model: the contents of these messages are not.

    Source: AsyncSparseAllreduceWork in ProcessGroupGlooDetail.hpp, gloo/allgatherv.cc, PyTorch
    v2.13.0.
    """
    sparse = tensor.detach().coalesce()
    sizes = Buffer(task, np.zeros(_SPARSE_SIZES_BYTES * size, np.uint8), scratch=True)
    header = np.zeros(_SPARSE_SIZES_BYTES // 8, np.int64)
    header[:2] = sparse.sparse_dim(), sparse.dense_dim()
    header[2] = sparse._nnz()
    header[3 : 3 + sparse.dim()] = sparse.shape
    offset = me * _SPARSE_SIZES_BYTES
    sizes.data[offset : offset + _SPARSE_SIZES_BYTES] = header.view(np.uint8)
    yield from play(network, slot, me, messages.all_gather(me, size, _SPARSE_SIZES_BYTES), [sizes])
    headers = sizes.data.view(np.int64).reshape(size, -1)
    if any(
        (header_of_rank[:2] != header[:2]).any() or (header_of_rank[3:] != header[3:]).any()
        for header_of_rank in headers
    ):
        raise ConnectionError("Sparse dimensions do not match")
    counts = [int(header_of_rank[2]) for header_of_rank in headers]
    gathered = []
    # one row for each value
    for part in (sparse.indices().t().contiguous(), sparse.values().contiguous()):
        if part.shape[0]:
            width = len_of(part) // max(1, part.shape[0])
        else:
            width = _row_bytes(part)
        lengths = [count * width for count in counts]
        work = Buffer(task, np.zeros(sum(lengths), np.uint8), scratch=True)
        work.data[sum(lengths[:me]) : sum(lengths[: me + 1])] = read([part])
        yield from _all_gather_v(network, work, slot, me, lengths)
        rows = np.split(work.data, np.cumsum(lengths)[:-1])
        gathered.append(
            [torch.empty((count, *part.shape[1:]), dtype=part.dtype) for count in counts]
        )
        for output, row in zip(gathered[-1], rows, strict=True):
            write([output], row)
    tensors = [
        torch.sparse_coo_tensor(rows.t(), values, sparse.shape)
        for rows, values in zip(*gathered, strict=True)
    ]
    with torch.no_grad():
        tensor.copy_(summed_sparse([output.coalesce() for output in tensors]))


_SPARSE_SIZES_BYTES = 9 * 8
"""SparseTensorMetadata::dim int64 numbers, ProcessGroupGlooDetail.hpp, PyTorch v2.13.0."""


def _row_bytes(part: torch.Tensor) -> int:
    return part.element_size() * int(np.prod(part.shape[1:]))


def _all_gather_v(
    network: Network, work: Buffer, slot: Slot, me: int, lengths: Sequence[int]
) -> Waits:
    """gloo/allgatherv.cc: each rank's share goes around the ring in one piece, and may be of any
    length."""
    size = len(lengths)
    if not sum(lengths):
        return
    starts = [sum(lengths[:group_rank]) for group_rank in range(size)]
    for turn in range(size - 1):
        out, into = (me - turn) % size, (me - turn - 1) % size
        if turn:
            yield work, "send"
            yield work, "recv"
        network.post("send", me, (me + 1) % size, slot, work, starts[out], lengths[out])
        network.post("recv", me, (me - 1) % size, slot, work, starts[into], lengths[into])
    yield work, "send"
    yield work, "recv"
