"""What moves: the bytes of tensors, how they are summed, and what a collective does when its ranks agree.

Memory is read and written as flat arrays of bytes, as a backend does: without autograd, and whatever the dtype.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, assert_never

import numpy as np
import torch

from joinlab.ops import FACTS, Needs, Op, encode_values

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

_NUMPY = {
    torch.float32: np.float32,
    torch.float64: np.float64,
    torch.float16: np.float16,
    torch.int64: np.int64,
    torch.int32: np.int32,
    torch.int16: np.int16,
    torch.int8: np.int8,
    torch.uint8: np.uint8,
    torch.bool: np.uint8,  # backends know no bool
    torch.complex64: np.complex64,
    torch.complex128: np.complex128,
}

_NUMPY_OPS: dict[str, Callable[..., Any]] = {
    "sum": np.add,
    "avg": np.add,
    "product": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}

_TORCH_OPS: dict[str, Callable[..., torch.Tensor]] = {
    "sum": torch.add,
    "avg": torch.add,
    "product": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
}


_numpy = torch._C.TensorBase.numpy  # not those of torch.Tensor, which make a rank's host wait for its stream
_tolist = torch._C.TensorBase.tolist


def values(tensors: Sequence[torch.Tensor]) -> str | None:
    """The elements of each tensor as the text of value_in and value_out; None if they cannot be read (sparse ones)."""
    try:
        return encode_values([_tolist(t if t.dim() == 1 else t.reshape(-1)) for t in tensors])
    except Exception:
        return None


def elements(tensor: torch.Tensor) -> list[Any]:
    """The elements of a tensor, flat."""
    found: list[Any] = _tolist(tensor.reshape(-1))
    return found


def memory(tensor: torch.Tensor) -> Bytes:
    """The bytes of a tensor: a view that can be written to, or, if it is not contiguous, a copy."""
    if tensor.is_contiguous():
        nbytes = len_of(tensor)
        if not nbytes:
            return np.empty(0, np.uint8)
        # Not Tensor.numpy(), behind which a storage can never again be resized, as FSDP does (tensor_to_numpy in
        # torch/csrc/utils/tensor_numpy.cpp, v2.13.0). This window does not keep the tensor alive: use it at once.
        window: Any = (ctypes.c_ubyte * nbytes).from_address(tensor.data_ptr())
        found: Bytes = np.frombuffer(window, np.uint8)
        return found
    return _numpy(tensor.detach().reshape(-1).view(torch.uint8))


def look(tensors: Sequence[torch.Tensor]) -> Bytes:
    """The bytes of all tensors, one after the other, to be read at once: those of one alone are not copied."""
    return memory(tensors[0]) if len(tensors) == 1 else read(tensors)


def read(tensors: Sequence[torch.Tensor]) -> Bytes:
    """A copy of the bytes of all tensors, one after the other."""
    if len(tensors) == 1:
        return memory(tensors[0]).copy()
    return np.concatenate([memory(tensor) for tensor in tensors]) if tensors else np.empty(0, np.uint8)


def write(tensors: Sequence[torch.Tensor], data: Bytes) -> None:
    """Fill all tensors, one after the other, as far as `data` goes."""
    at = 0
    for tensor in tensors:
        size = len_of(tensor)
        part = data[at : at + size]
        at += size
        if tensor.is_contiguous():
            memory(tensor)[: len(part)] = part
        else:
            full = memory(tensor)
            full[: len(part)] = part
            with torch.no_grad():
                tensor.detach().copy_(torch.from_numpy(full).view(tensor.dtype).view(tensor.shape))


def combine(dtype: torch.dtype, reduce_op: str, one: Bytes, other: Bytes) -> Bytes:
    """Reduce two runs of elements of `dtype`; what is left over at the end of a line is not touched."""
    numpy_type = _NUMPY.get(dtype)
    if numpy_type is not None:
        with np.errstate(all="ignore"):
            return _NUMPY_OPS[reduce_op](one.view(numpy_type), other.view(numpy_type)).view(np.uint8)  # type: ignore[no-any-return]
    left, right = (torch.from_numpy(np.ascontiguousarray(part)).view(dtype) for part in (one, other))
    return _numpy(_TORCH_OPS[reduce_op](left, right).view(torch.uint8))


def divide(dtype: torch.dtype, data: Bytes, size: int, by_factor: bool = False) -> Bytes:
    """Every element divided by `size`, as AVG does it: gloo divides, NCCL multiplies floats by 1 / size."""
    tensor = torch.from_numpy(np.ascontiguousarray(data)).view(dtype)
    if dtype.is_floating_point or dtype.is_complex:
        divided = tensor * (1 / size) if by_factor else tensor / size
    else:
        divided = torch.div(tensor, size, rounding_mode="trunc")
    return _numpy(divided.to(dtype).view(torch.uint8))


@dataclass(slots=True)
class Part:
    """One collective of a call (a coalesced call has several): the tensors that this rank puts in and gets out."""

    ins: list[torch.Tensor]
    outs: list[torch.Tensor]

    @property
    def dtype(self) -> torch.dtype:
        """Of its elements."""
        return (self.ins or self.outs)[0].dtype

    def nbytes(self) -> int:
        """Bytes of the larger side."""
        return max(sum(map(len_of, self.ins)), sum(map(len_of, self.outs)))


@dataclass(frozen=True, slots=True)
class Summing:
    """How a backend sums: the order of the ranks, and what AVG means.

    order         order(chunk, size): the places, first to last, in which that chunk is summed
    chunk_bytes   chunk_bytes(nbytes, item bytes, size): how many bytes are summed in one and the same order
    scales_first  AVG scales what each rank puts in (NCCL), not the sum (gloo)
    """

    order: Callable[[int, int], Sequence[int]]
    chunk_bytes: Callable[[int, int, int], int]
    scales_first: bool

    def total(self, dtype: torch.dtype, reduce_op: str, each: Sequence[Bytes]) -> Bytes:
        """The reduction over all ranks' bytes, chunk by chunk."""
        size, nbytes = len(each), len(each[0])
        chunk = self.chunk_bytes(nbytes, dtype.itemsize, size)
        if nbytes <= chunk or size == 2:  # one chunk, or an order that makes no difference
            return self.chunk(dtype, reduce_op, each, 0)
        pieces = [
            self.chunk(dtype, reduce_op, [data[at : at + chunk] for data in each], index % size)
            for index, at in enumerate(range(0, nbytes, chunk))
        ]
        return np.concatenate(pieces)

    def chunk(self, dtype: torch.dtype, reduce_op: str, each: Sequence[Bytes], index: int) -> Bytes:
        """The reduction of chunk `index`."""
        size = len(each)
        first = self.scales_first and (dtype.is_floating_point or dtype.is_complex)
        if reduce_op == "avg" and first:
            each = [divide(dtype, data, size, by_factor=True) for data in each]
        order = self.order(index, size)
        total = each[order[0]]
        for place in order[1:]:
            total = combine(dtype, reduce_op, each[place], total)
        if reduce_op == "avg" and not first:
            total = divide(dtype, total, size)
        return total


def agree(op: Op, parts: Sequence[Part], root: int) -> bool:
    """Whether the parts of one collective, by place, fit together, byte for byte."""
    size = len(parts)
    ins = [[len_of(t) for t in part.ins] for part in parts]
    outs = [[len_of(t) for t in part.outs] for part in parts]
    sums = [sum(one) for one in ins]
    match op:
        case Op.ALL_REDUCE | Op.REDUCE | Op.REDUCE_SCATTER:
            if any(part.dtype != parts[0].dtype for part in parts):
                return False
            return all(one == sums[0] for one in sums)
        case Op.BROADCAST:
            return all(one == sums[0] for one in sums)
        case Op.ALL_GATHER:
            even = all(one == sums[0] for one in sums) and all(sum(one) == size * sums[0] for one in outs)
            return even or all(one == sums for one in outs)
        case Op.GATHER:
            return outs[root] == sums
        case Op.SCATTER:
            return ins[root] == [sum(one) for one in outs]
        case Op.ALL_TO_ALL:
            return all(ins[one][other] == outs[other][one] for one in range(size) for other in range(size))
        case Op.BARRIER | Op.SEND | Op.RECV:
            return True
        case _:
            assert_never(op)


def len_of(tensor: torch.Tensor) -> int:
    """Bytes of a tensor."""
    return tensor.numel() * tensor.element_size()


def run(op: Op, parts: Sequence[Part], root: int, reduce_op: str, summing: Summing) -> None:
    """Carry out one collective whose ranks agree; `parts` by place."""
    size = len(parts)
    match op:
        case Op.ALL_REDUCE:
            total = summing.total(parts[0].dtype, reduce_op, [look(part.ins) for part in parts])
            for part in parts:
                write(part.outs, total)
        case Op.REDUCE:
            write(parts[root].outs, summing.total(parts[0].dtype, reduce_op, [look(part.ins) for part in parts]))
        case Op.REDUCE_SCATTER:
            each = [np.split(read(part.ins), size) for part in parts]
            for place, part in enumerate(parts):
                write(part.outs, summing.chunk(parts[0].dtype, reduce_op, [data[place] for data in each], place))
        case _:
            move(op, parts, root)


def move(op: Op, parts: Sequence[Part], root: int) -> None:
    """Carry out one collective that sums nothing and whose ranks agree; `parts` by place."""
    match op:
        case Op.BROADCAST:
            data = look(parts[root].ins)
            for place, part in enumerate(parts):
                if place != root:
                    write(part.outs, data)
        case Op.ALL_GATHER:
            data = np.concatenate([read(part.ins) for part in parts])
            for part in parts:
                write(part.outs, data)
        case Op.GATHER:
            write(parts[root].outs, np.concatenate([read(part.ins) for part in parts]))
        case Op.SCATTER:
            for part, source in zip(parts, [read([tensor]) for tensor in parts[root].ins], strict=True):
                write(part.outs, source)
        case Op.ALL_TO_ALL:
            sent = [[read([tensor]) for tensor in part.ins] for part in parts]
            for place, part in enumerate(parts):
                for source_place, tensor in enumerate(part.outs):
                    write([tensor], sent[source_place][place])
        case Op.ALL_REDUCE | Op.REDUCE | Op.REDUCE_SCATTER | Op.BARRIER | Op.SEND | Op.RECV:
            raise ValueError(f"a {op} does more, or less, than to move bytes between all ranks")
        case _:
            assert_never(op)


def waits_for(op: Op, place: int, root: int, size: int) -> Sequence[int]:
    """The places without which the result at `place` cannot be, whoever runs it."""
    match FACTS[op].needs:
        case Needs.EVERYONE:
            return range(size)
        case Needs.AT_ROOT:
            return range(size) if place == root else (place,)
        case Needs.FROM_ROOT:
            return (root,)
        case Needs.PEER:
            return (place,)
        case _ as never:
            assert_never(never)
