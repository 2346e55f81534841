"""What PyTorch's NCCL backend refuses when it is handed a call, today and in PyTorch 1.9.

Sources: torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp (check_gpu_single_tensor, getNcclReduceOp,
recvAnysource, gather, scatter, allgather, reduce_scatter, alltoall, _allgather_base,
_reduce_scatter_base) and NCCLUtils.cpp (ncclDataType, getNcclDataType), v2.13.0;
ProcessGroupNCCL.cpp (ncclDataType, gather, scatter, flatten_for_scatter_gather), v1.9.0.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from joinlab.backend.checks import check_at_root
from joinlab.backend.model import EmulatedCall
from joinlab.ops import FACTS, Op
from joinlab.program.process_group import METHODS, Form, tensors_in

_THEN = frozenset(
    (
        *(torch.int8, torch.uint8, torch.bool, torch.int32, torch.int64),
        *(torch.float16, torch.float32, torch.float64),
    )
)
DTYPES = {"1.9": _THEN, "today": _THEN | {torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2}}
"""By era: the dtypes that NCCL has a type for."""

_NAMES = {
    torch.int16: "Short",
    torch.uint16: "UInt16",
    torch.uint32: "UInt32",
    torch.uint64: "UInt64",
    torch.complex32: "ComplexHalf",
    torch.complex64: "ComplexFloat",
    torch.complex128: "ComplexDouble",
    torch.bfloat16: "BFloat16",
    torch.float8_e4m3fn: "Float8_e4m3fn",
    torch.float8_e5m2: "Float8_e5m2",
}
"""How PyTorch's messages call a dtype (c10/core/ScalarType.h)."""


_VIEWED = (Op.ALL_REDUCE, Op.REDUCE, Op.BROADCAST)
"""Ops for which the backend takes a complex tensor for one of real numbers (at::view_as_real),
today."""


def check(call: EmulatedCall, era: str) -> None:
    """Raise what the backend raises for such a call; where it takes complex tensors for real ones,
    do so, too."""
    if era in call.kind.accepted:  # looked at once per kind: 5 us a call
        _check_memory(call)
        return
    if era == "1.9" and call.op in (Op.GATHER, Op.SCATTER):
        raise RuntimeError(f"ProcessGroupNCCL does not support {call.op}")
    if call.op is Op.RECV and call.row.get("peer") is None:
        raise RuntimeError("ProcessGroupNCCL does not support recvAnysource")
    if era == "today":
        _check_sizes(call)
    elif call.op is not Op.ALL_TO_ALL and not _lists_for_all(call, as_one=False):
        raise RuntimeError(
            "Tensor list input to scatter/gather must match number of collective participants"
        )
    # ArgsCheck in NCCL's src/misc/argcheck.cc, v2.7.8-1 and v2.29.7-1
    if FACTS[call.op].rooted and call.root < 0:
        raise dist.DistBackendError(
            f"NCCL error in: ProcessGroupNCCL.cpp, invalid argument (run with NCCL_DEBUG=WARN for details): "
            f"{call.op} : invalid root {call.row.get('root')} (root should be in the 0..{len(call.group.ranks)} range)"
        )
    _check_memory(call)
    if era == "today" and call.op in _VIEWED:
        _view_as_real(call)
    if FACTS[call.op].reduces:
        _check_reduce_op(call, era)
    for part in call.parts:
        for tensor in (*part.ins, *part.outs):
            if tensor.dtype not in DTYPES[era]:
                name = _NAMES.get(tensor.dtype, str(tensor.dtype)[6:])
                raise TypeError(
                    f"Input tensor data type is not supported for NCCL process group: {name}"
                )
    if not any(part.dtype.is_complex for part in call.parts):
        call.kind.accepted.add(era)


def refuse_short_memory(calls: Sequence[EmulatedCall]) -> None:
    """Refuse to model a send or recv that goes beyond the memory of its tensor, as of an expanded one."""
    for call in calls:
        for part in call.parts if FACTS[call.op].point_to_point else ():
            if not all(map(_is_dense, (*part.ins, *part.outs))):
                raise NotImplementedError(
                    "its tensor is not contiguous, which PyTorch only warns of: NCCL goes on behind its first element, "
                    "and beyond its memory"
                )


def refuse_lists(calls: Sequence[EmulatedCall]) -> None:
    """Refuse to model these calls, of all ranks of a group, if one lists tensors for more ranks, or
    for fewer: today no line of PyTorch looks, and NCCL goes beyond the list's memory."""
    ops = {call.op for call in calls}
    if len(ops) == 1 and ops <= _LISTING and not all(map(_lists_for_all, calls)):
        raise NotImplementedError(
            f"its list has more or fewer tensors than the group's {len(calls)} ranks, which PyTorch does not check: "
            "NCCL reads or writes beyond the memory of the list"
        )


_LISTING = frozenset((Op.ALL_GATHER, Op.REDUCE_SCATTER, Op.ALL_TO_ALL))
"""Ops that take a list with a tensor for each rank on all ranks."""


def _lists_for_all(call: EmulatedCall, as_one: bool = True) -> bool:
    """Whether a call's list has a tensor for each rank, or, `as_one` block of memory, the right
    size."""
    if call.op not in _LISTING or METHODS[call.method].form is not Form.LIST:
        return True
    size, sides = len(call.group.ranks), list(map(tensors_in, call.args[:2]))
    if call.op is Op.ALL_TO_ALL:
        return [len(tensors) for tensors in sides] == [size, size]
    listed, (tensor,) = sides if call.op is Op.ALL_GATHER else sides[::-1]
    fits = as_one and sum(map(torch.numel, listed)) == size * tensor.numel()
    return fits or len(listed) == size


def _check_memory(call: EmulatedCall) -> None:
    if not FACTS[call.op].point_to_point:  # those only warn
        for part in call.parts:
            if not all(map(_is_dense, (*part.ins, *part.outs))):
                raise ValueError("Tensors must be contiguous")


def _check_sizes(call: EmulatedCall) -> None:
    size, args, method = len(call.group.ranks), call.args, METHODS[call.method]
    single = method.form is Form.SINGLE
    match call.method:
        case "allreduce" if len(tensors_in(args[0])) > 1:
            raise ValueError(
                "Expecting one tensor only but got multiple. You are probably using multiple devices under one thread. "
                "The support for such usage has been deprecated. For details, please refer to "
                "https://pytorch.org/docs/stable/distributed.html#multi-gpu-collective-functions. "
                "ProcessGroupNCCL continues supporting multi-process and multi-thread modes."
            )
        case "gather" | "scatter":

            def refused(text: str) -> ValueError:
                return ValueError(f"ProcessGroupNCCL::{call.method}: {text}")

            if call.root < 0:
                raise refused(f"invalid root rank: {getattr(args[-1], 'rootRank', call.root)}")
            if call.group_rank == call.root:
                check_at_root(refused, call.op, args, size)
        case _ if method.op is Op.ALL_GATHER and single:
            if args[0].dtype != args[1].dtype:
                raise TypeError("output tensor must have the same type as input tensor")
            if args[1].numel() * size != args[0].numel():
                raise ValueError(
                    "output tensor size must be equal to world_size times input tensor size"
                )
        case _ if method.op is Op.REDUCE_SCATTER and single:
            if args[0].dtype != args[1].dtype:
                raise TypeError("input tensor must be the same type as the output tensor.")
            if args[1].numel() != args[0].numel() * size:
                raise ValueError(
                    "input tensor must be the same size as output size times world size"
                )
        case _:
            pass


def _view_as_real(call: EmulatedCall) -> None:
    if not any(part.dtype.is_complex for part in call.parts):
        return
    if FACTS[call.op].reduces and call.reduce_op not in ("sum", "avg"):
        raise RuntimeError(f"{call.op} does not support{call.reduce_op.upper()}on complex tensors")
    for part in call.parts:
        in_place = part.ins is part.outs
        part.ins = list(map(torch.view_as_real, part.ins))
        if in_place:
            part.outs = part.ins
        else:
            part.outs = list(map(torch.view_as_real, part.outs))


def _check_reduce_op(call: EmulatedCall, era: str) -> None:
    if call.reduce_op in ("band", "bor", "bxor"):
        error = RuntimeError if era == "1.9" else ValueError
        raise error(f"Cannot use ReduceOp.{call.reduce_op.upper()} with NCCL")
    if call.reduce_op in ("avg", "premul_sum") and era == "1.9":
        raise AttributeError(f"PyTorch 1.9 has no ReduceOp.{call.reduce_op.upper()}")
    if call.reduce_op == "premul_sum" and not all(
        part.dtype.is_floating_point for part in call.parts
    ):
        raise TypeError("PreMulSum Data type must be half, float, bfloat16 or double")
    if call.reduce_op == "avg" and any(part.dtype is torch.bool for part in call.parts):
        raise TypeError("Cannot use ReduceOp.AVG with boolean inputs")


def _is_dense(tensor: torch.Tensor) -> bool:
    """Contiguous, or so in a memory format of images (channels_last): it is moved as it lies in
    memory."""
    return (
        tensor.is_contiguous()
        or (tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last))
        or (tensor.dim() == 5 and tensor.is_contiguous(memory_format=torch.channels_last_3d))
    )
