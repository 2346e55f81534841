"""What NCCL's kernels make of bytes: the lines that a thread loads, and the arithmetic on them.

A line of the LL protocol carries 8 bytes, whole elements of the kernel's type T. A thread that
loads the last line of a tensor loads more than the tensor holds; what it loads then, it scales,
sends and reduces like the rest:

    today, T of 1 or 2 bytes    u8[5]   line 0   b0 b1 b2 b3 | b4 n5 n6 n7      n: the tensor's neighbours in memory,
                                f16[1]           b0 b1 n2 n3 |  0  0  0  0      up to a multiple of 4 bytes
    today, T of 4 bytes         f32[1]           b0 b1 b2 b3 |  p  p  p  p      p: a register that nothing has set
    2.7.8, any T                f32[1]           b0 b1 b2 b3 | n4 n5 n6 n7      always 8 bytes of memory

Only elements that the receiver asked for are stored. So neighbours show where two ranks disagree in
size or dtype.

Neighbours are read from the tensor's storage. What lies beyond the storage, on a GPU some older
data, and the register are the knob `pad`, 32 bits that repeat every 4 bytes.

Sources: v2.29.7-1, src/device/prims_ll.h (DataLoader, LLGenericOp) and src/device/reduce_kernel.h
(Apply_Reduce, FuncPreMulSum, FuncSumPostDiv); v2.7.8-1, src/collectives/device/prims_ll.h (readAL,
LLGenericOp), reduce_kernel.h and common_kernel.h (MULTI). Held to those kernels, compiled for a
CPU, by tests/nccl/test_nccl_kernels.py; not to a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from joinlab.backend.payload import FLOATS, INTEGERS, Bytes, read
from joinlab.nccl.ring import LINE_BYTES
from joinlab.ops import FACTS, Op

_NAN: dict[torch.dtype, int] = {
    torch.float32: 0x7FFFFFFF,
    torch.float16: 0x7FFF,
    torch.bfloat16: 0x7FFF,
}
"""The one NaN that a GPU's arithmetic on these types gives (PTX ISA 8.7, "Floating-Point
Instructions", on NaN).

float64 keeps the payload of an operand instead.
"""


@dataclass(frozen=True, slots=True)
class Kernels:
    """The kernels of one version of NCCL.

    old  2.7.8, as with PyTorch 1.9, instead of 2.29.7
    pad  32 bits: what no one has set
    """

    old: bool
    pad: int

    def element(self, op: Op, dtype: torch.dtype) -> torch.dtype:
        """The type T of the kernel: what does not reduce is moved as bytes (ncclInt8;
        src/enqueue.cc, taskAppend)."""
        if FACTS[op].reduces:
            return dtype
        return torch.uint8

    # ---------------- loading

    def memory(self, tensors: Sequence[torch.Tensor]) -> Memory:
        """What a kernel finds at these tensors, and behind them.

        Several tensors are one in a buffer of the backend's own (newLikeFlat in
        ProcessGroupNCCL.cpp): its neighbours are unknown.
        """
        data = read(tensors)
        if len(tensors) != 1:
            return Memory(data, np.empty(0, np.uint8), 0, self.pad)
        tensor = tensors[0].detach()
        begin = int(tensor.storage_offset()) * tensor.element_size()
        storage = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
        end = begin + len(data)
        return Memory(data, read([storage[end : end + LINE_BYTES]]), begin, self.pad)

    def load(self, memory: Memory, offset: int, nbytes: int, dtype: torch.dtype) -> Bytes:
        """`nbytes` from byte `offset` on, as whole lines of elements of `dtype`."""
        tail = nbytes % LINE_BYTES
        if not tail:
            return memory.take(offset, nbytes)
        whole = nbytes - tail
        address = (memory.address + offset + whole) % 4
        if self.old:
            loaded = LINE_BYTES
        elif dtype.itemsize <= 2:  # words of 4 bytes are loaded, as many as the elements lie in
            loaded = min(LINE_BYTES, -(-(address + tail) // 4) * 4 - address)
        else:
            loaded = tail
        line = np.zeros(LINE_BYTES, np.uint8)
        line[:loaded] = memory.take(offset + whole, loaded)
        if dtype.itemsize == 4 and not self.old:
            line[4:] = np.frombuffer(self.pad.to_bytes(4, "little"), np.uint8)
        return np.concatenate([memory.take(offset, whole), line])

    # ---------------- arithmetic

    def scale(self, dtype: torch.dtype, factor: float | None, data: Bytes) -> Bytes:
        """AVG and PREMUL_SUM of floats scale what each rank puts in, in their dtype (FuncPreMulSum,
        hostToDevRedOp)."""
        if factor is None or dtype in INTEGERS:
            return data
        scale = torch.tensor(
            [factor], dtype=torch.float64 if dtype is torch.float64 else torch.float32
        ).to(dtype)
        return self._floats(dtype, "product", data, np.resize(read([scale]), len(data)))

    def reduce(self, dtype: torch.dtype, reduce_op: str, incoming: Bytes, local: Bytes) -> Bytes:
        """What has come in, and this rank's own, element by element; both are whole elements."""
        if dtype in INTEGERS:
            first, second = incoming.view(INTEGERS[dtype]), local.view(INTEGERS[dtype])
            with np.errstate(all="ignore"):
                return _bytes(_INTEGER_OPS[reduce_op](first, second))
        return self._floats(dtype, reduce_op, incoming, local)

    def finish(self, dtype: torch.dtype, reduce_op: str, data: Bytes, size: int) -> Bytes:
        """AVG of integers divides the whole sum, towards zero, before it goes on
        (FuncSumPostDiv)."""
        if reduce_op != "avg" or dtype not in INTEGERS:
            return data
        negative, bits = data.view(INTEGERS[dtype]) < 0, data.view(f"u{dtype.itemsize}")
        # divides the absolute value, which is unsigned
        quotient = np.where(negative, -bits, bits) // bits.dtype.type(size)
        return _bytes(np.where(negative, -quotient, quotient))

    def chain(
        self,
        dtype: torch.dtype,
        reduce_op: str,
        shares: Sequence[Bytes],
        order: Sequence[int],
        factors: Sequence[float | None],
    ) -> Bytes:
        """The reduction of a chunk that goes through the ranks of `order`; `shares` and `factors` by
        group rank."""
        size, kind = len(shares), FLOATS.get(dtype)
        # in one go, 10 us less a call; only a NaN needs the way below
        if reduce_op == "sum" and kind is not None:
            with np.errstate(all="ignore"):
                floats = shares[order[0]].view(kind)
                for group_rank in order[1:]:
                    floats = floats + shares[group_rank].view(kind)
            if not np.isnan(floats).any():
                return _bytes(floats)
        total = self.scale(dtype, factors[order[0]], shares[order[0]])
        for group_rank in order[1:]:
            total = self.reduce(
                dtype, reduce_op, total, self.scale(dtype, factors[group_rank], shares[group_rank])
            )
        return self.finish(dtype, reduce_op, total, size)

    def _floats(self, dtype: torch.dtype, reduce_op: str, incoming: Bytes, local: Bytes) -> Bytes:
        """Computed in float32 where the dtype is smaller: one rounding of an exact result, as the
        hardware's."""
        if dtype is torch.bfloat16:
            first, second = map(_from_bfloat16, (incoming, local))
        else:
            first, second = incoming.view(FLOATS[dtype]), local.view(FLOATS[dtype])
        with np.errstate(all="ignore"):
            match reduce_op:
                case "sum" | "avg" | "premul_sum":
                    result = first + second
                case "product":
                    result = first * second
                # (x < y) ? ... : ..., which takes a NaN as it comes
                case _ if self.old and dtype.itemsize >= 4:
                    less = first < second
                    if reduce_op == "min":
                        result = np.where(less, first, second)
                    else:
                        result = np.where(less, second, first)
                    return _bytes(result)
                case _:
                    result = _extreme(first, second, reduce_op == "min")
        nans = np.isnan(result)
        if dtype is torch.bfloat16:
            result = _to_bfloat16(result)
        if nans.any():
            if dtype is torch.float64:
                result = np.where(nans, _quiet(first, second), result)
            else:
                result.view(f"u{dtype.itemsize}")[nans] = _NAN[dtype]
        return _bytes(result)


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of a tensor, those that follow it in its storage, and then `pad`, again and again.

    address  of its first byte, as far as alignment goes: an allocation begins at a multiple of 512
    """

    own: Bytes
    behind: Bytes
    address: int
    pad: int

    def take(self, offset: int, nbytes: int) -> Bytes:
        """`nbytes` from byte `offset` of the tensor on."""
        if offset + nbytes <= len(self.own):
            return self.own[offset : offset + nbytes]
        present = np.concatenate([self.own, self.behind])[offset : offset + nbytes]
        beyond = []
        for group_rank in range(offset + len(present), offset + nbytes):
            beyond.append(self.pad >> 8 * ((self.address + group_rank) % 4) & 0xFF)
        return np.concatenate([present, np.array(beyond, np.uint8)])


_INTEGER_OPS: dict[str, Any] = {
    "sum": np.add,
    "avg": np.add,
    "product": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}


def _bytes(values: Any) -> Bytes:
    data: Bytes = values.view(np.uint8)
    return data


def _extreme(first: Any, second: Any, least: bool) -> object:
    """fmin or fmax: a number rather than a NaN, and -0 is less than +0 (PTX ISA, `min` and
    `max`)."""
    result = np.fmin(first, second) if least else np.fmax(first, second)
    zeros = (first == 0) & (second == 0)
    if zeros.any():
        if least:
            negative = np.signbit(first) | np.signbit(second)
        else:
            negative = np.signbit(first) & np.signbit(second)
        result = np.where(
            zeros,
            np.copysign(np.zeros_like(result), np.where(negative, -1, 1).astype(result.dtype)),
            result,
        )
    return result


def _quiet(first: Any, second: Any) -> Any:
    """The NaN of float64 arithmetic: the first operand's, quiet, if it is one; else the second's;
    else a fresh one."""
    quiet = np.uint64(0x0008000000000000)
    result = np.where(
        np.isnan(first), first.view(np.uint64) | quiet, second.view(np.uint64) | quiet
    )
    fresh = np.uint64(0xFFF8000000000000)
    return np.where(np.isnan(first) | np.isnan(second), result, fresh).view(np.float64)


def _from_bfloat16(data: Bytes) -> Any:
    return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def _to_bfloat16(values: Any) -> object:
    """Rounded to the nearest, ties to even. A NaN comes out as any NaN, or worse: the caller sets
    it."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
