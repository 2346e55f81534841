"""What PyTorch refuses when it hands gloo a call, before any worker sees it, in PyTorch's own
words.

Sources: the functions of the same names in torch/csrc/distributed/c10d/ProcessGroupGloo.cpp,
assertTypeAndSizesMatch and its siblings in Utils.hpp, PyTorch v2.13.0. What a worker refuses later,
at wait(), is in `collectives`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from joinlab.backend.checks import C_NAMES, check_alike, check_at_root, sizes
from joinlab.backend.model import EmulatedCall
from joinlab.gloo.collectives import SINCE_2_15
from joinlab.ops import FACTS, Op
from joinlab.program.process_group import METHODS, Form, tensors_in


def check(call: EmulatedCall) -> None:
    """Raise what PyTorch raises at once for this call."""
    name, args, size = call.method, call.args, len(call.group.ranks)
    op, form = METHODS[name].op, METHODS[name].form
    # what it calls
    shown_name = "allgather" if op is Op.ALL_GATHER and form is Form.SINGLE else name
    if op in (Op.SEND, Op.RECV):
        _check_pair(call)
        return
    tensors = [tensor for arg in args for tensor in tensors_in(arg)]
    if op is not Op.ALL_REDUCE and any(tensor.is_sparse for tensor in tensors):
        raise NotImplementedError(
            f"Could not run 'c10d::{shown_name}_' with arguments from the 'SparseCPU' backend."
        )
    if FACTS[op].rooted and call.root < 0:
        raise _refused(shown_name, f"invalid root rank: {getattr(args[-1], 'rootRank', call.root)}")
    match op:
        case Op.ALL_REDUCE:
            _check_all_reduce(shown_name, tensors, call.reduce_op)
        case Op.ALL_GATHER if form is Form.COALESCED:
            _check_coalesced_gather(args, size)
        case Op.ALL_GATHER:
            (input,) = tensors_in(args[1])
            outs = tensors_in(args[0])
            if form is Form.SINGLE:
                outs = list(torch.chunk(outs[0], size))
            if len(outs) != size:
                raise _refused(
                    shown_name,
                    f"invalid output tensor list at index 0 (expected length {size}, got {len(outs)})",
                )
            check_alike(partial(_refused, shown_name), outs, input)
        case Op.GATHER | Op.SCATTER if call.group_rank == call.root:
            check_at_root(partial(_refused, shown_name), op, args, size)
        case Op.REDUCE_SCATTER:
            _check_reduce_scatter(name, tensors_in(args[0]), tensors_in(args[1]), call)
        case Op.ALL_TO_ALL if form is Form.LIST:
            outs, ins = tensors_in(args[0]), tensors_in(args[1])
            for side, list_ in (("input", ins), ("output", outs)):
                if len(list_) != size:
                    raise _refused(
                        shown_name,
                        f"{side} tensor list size {len(list_)} does not match world size {size}",
                    )
            check_alike(partial(_refused, shown_name), ins, ins[0])
            check_alike(partial(_refused, shown_name), outs, ins[0])
        case Op.ALL_TO_ALL if not all(tensor.is_contiguous() for tensor in tensors):
            raise ValueError("Tensors must be contiguous")
        case _:
            pass


def _refused(name: str, text: str) -> RuntimeError:
    return RuntimeError(f"ProcessGroupGloo::{name}: {text}")


def _check_pair(call: EmulatedCall) -> None:
    """checkSingleTensor() and checkTag()."""
    (tensor,) = tensors_in(call.args[0])
    if not tensor.is_sparse and not tensor.is_contiguous():
        raise RuntimeError("input tensor has to be contiguous")
    if tensor.is_sparse:
        raise RuntimeError("input tensor has to be dense")
    # UnboundBuffer::recv
    if call.op is Op.RECV and call.row.get("peer") is None and not tensor.numel():
        raise RuntimeError("[enforce fail at unbound_buffer.cc:184] offset < this->size. 0 vs 0")
    if (call.row.get("tag") or 0) < 0:
        raise RuntimeError("Tag must be nonnegative")
    # gloo connects no rank with itself (Context.cc)
    if call.row.get("peer") == call.group.ranks[call.group_rank]:
        raise RuntimeError(
            f"[enforce fail at pair.cc:{809 if SINCE_2_15 else 801}] state_ >= CONNECTED. 1 vs 4."
        )


def _check_all_reduce(name: str, tensors: Sequence[torch.Tensor], reduce_op: str) -> None:
    if any(tensor.layout != tensors[0].layout for tensor in tensors):
        raise _refused(name, "requires tensors with the same layout")
    if tensors[0].is_sparse and reduce_op != "sum":
        raise _refused(
            name,
            "unsupported reduction operation (allreduce of sparse tensors only works with ReduceOp.SUM)",
        )
    if any(tensor.dtype != tensors[0].dtype for tensor in tensors):
        raise _refused(name, "tensors must all have the same type")
    if name == "allreduce":  # it counts from the second on
        check_alike(partial(_refused, name), tensors[1:], tensors[0])


def _check_coalesced_gather(args: Sequence[Any], size: int) -> None:
    ins = tensors_in(args[1])

    def chunked(outs: Any) -> list[torch.Tensor]:
        return [t for out in outs for t in torch.chunk(out, size)]

    if isinstance(args[0][0], torch.Tensor):
        per_input = chunked(args[0])
    else:
        per_input = tensors_in(list(zip(*args[0], strict=True)))
    for index, input in enumerate(ins):
        for out in per_input[index * size : (index + 1) * size]:
            if out.shape != input.shape:
                raise _refused(
                    "allgather_coalesced",
                    f"invalid size of output tensor at index {index} "
                    f"(expected length {sizes(input)}, got {sizes(out)})",
                )


def _check_reduce_scatter(
    name: str, outs: Sequence[torch.Tensor], ins: Sequence[torch.Tensor], call: EmulatedCall
) -> None:
    size = len(call.group.ranks)
    if name == "reduce_scatter":
        if len(ins) != size:
            raise RuntimeError("invalid input tensor list size, must be world size")
        if outs[0].shape != ins[call.group_rank].shape:
            raise _failed(
                2216,
                "outputs[0].sizes().vec() == inputs[0][i].sizes().vec()",
                *(" ".join(map(str, tensor.shape)) for tensor in (outs[0], ins[call.group_rank])),
            )
        return
    for out, input in zip(outs, ins, strict=True):
        if out.dtype != input.dtype:
            raise _failed(
                1536,
                "outputTensors[i].dtype() == inputTensors[i].dtype()",
                *(C_NAMES[t.dtype] for t in (out, input)),
            )
        if out.size(0) * size != input.size(0):
            raise _failed(
                1537,
                "outputShape[0] * worldSize == inputShape[0]",
                out.size(0) * size,
                input.size(0),
            )
        for out_size, in_size in zip(out.shape[1:], input.shape[1:], strict=False):
            if out_size != in_size:
                raise _failed(1539, "outputShape[i] == inputShape[i]", out_size, in_size)


def _failed(line: int, check: str, *sides: object) -> RuntimeError:
    line = _LINES_OF_2_15[line] if SINCE_2_15 else line
    return RuntimeError(
        f"[ProcessGroupGloo.cpp:{line}] Check failed: {check} ({sides[0]} vs. {sides[1]}). \n"
    )


_LINES_OF_2_15 = {2216: 2263, 1536: 1583, 1537: 1584, 1539: 1586}
"""Where PyTorch v2.15.0 has the checks of these lines of v2.13.0."""
