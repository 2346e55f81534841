"""The bytes of tensors, and where a collective moves them when its ranks agree.

Memory is read and written as flat arrays of bytes, as a backend does: without autograd, and
whatever the dtype. Sums are each backend's own: see nccl/kernels.py and gloo/sums.py.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from joinlab.ops import FACTS, POINT_TO_POINT, Needs, Op, OpFacts
from joinlab.program.process_group import METHODS, Form, tensors_in

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

INTEGERS: dict[torch.dtype, Any] = {
    torch.int64: np.int64,
    torch.int32: np.int32,
    torch.int8: np.int8,
    torch.uint8: np.uint8,
    torch.bool: np.uint8,
}
FLOATS: dict[torch.dtype, Any] = {
    torch.float32: np.float32,
    torch.float64: np.float64,
    torch.float16: np.float16,
}
"""What NCCL and gloo both reduce, and NumPy too."""

# not that of torch.Tensor, which makes a rank's host wait for its stream
_numpy = torch._C.TensorBase.numpy


def memory(tensor: torch.Tensor) -> Bytes:
    """The bytes of a tensor: a view that can be written to, or, if it is not contiguous, a copy."""
    if tensor.is_contiguous():
        nbytes = len_of(tensor)
        if not nbytes:
            return np.empty(0, np.uint8)
        # Not Tensor.numpy(), behind which a storage can never again be resized, as FSDP does
        # (tensor_to_numpy in torch/csrc/utils/tensor_numpy.cpp, v2.13.0). This window does not keep
        # the tensor alive: use it at once.
        window: Any = (ctypes.c_ubyte * nbytes).from_address(tensor.data_ptr())
        data: Bytes = np.frombuffer(window, np.uint8)
        return data
    return _numpy(tensor.detach().contiguous().reshape(-1).view(torch.uint8))


def look(tensors: Sequence[torch.Tensor]) -> Bytes:
    """The bytes of all tensors, one after the other, to be read at once: those of one alone are not
    copied."""
    if len(tensors) == 1:
        return memory(tensors[0])
    return read(tensors)


def read(tensors: Sequence[torch.Tensor]) -> Bytes:
    """A copy of the bytes of all tensors, one after the other."""
    if len(tensors) == 1:
        return memory(tensors[0]).copy()
    if tensors:
        return np.concatenate(list(map(memory, tensors)))
    return np.empty(0, np.uint8)


def write(tensors: Sequence[torch.Tensor], data: Bytes) -> None:
    """Fill all tensors, one after the other, as far as `data` goes."""
    offset = 0
    for tensor in tensors:
        size = len_of(tensor)
        part = data[offset : offset + size]
        offset += size
        if tensor.is_contiguous():
            memory(tensor)[: len(part)] = part
        else:
            full = memory(tensor)
            full[: len(part)] = part
            with torch.no_grad():
                tensor.detach().copy_(torch.from_numpy(full).view(tensor.dtype).view(tensor.shape))


def as_it_lies(tensor: torch.Tensor) -> torch.Tensor:
    """The memory that a backend which does not look at strides takes for a tensor's: its first
    element, and as many after it as it has elements. The tensor itself if its storage ends before."""
    bytes_behind = tensor.untyped_storage().nbytes() - tensor.storage_offset() * tensor.itemsize
    if tensor.is_contiguous() or bytes_behind < len_of(tensor):
        return tensor
    return tensor.detach().as_strided((tensor.numel(),), (1,))


@dataclass(slots=True)
class CallPart:
    """One collective of a call (a coalesced call has several): the tensors that this rank puts in
    and gets out."""

    ins: list[torch.Tensor]
    outs: list[torch.Tensor]

    @property
    def dtype(self) -> torch.dtype:
        """Of its elements."""
        return (self.ins or self.outs)[0].dtype

    def nbytes(self) -> int:
        """Bytes of the larger side."""
        return max(sum(map(len_of, self.ins)), sum(map(len_of, self.outs)))


def parts_of(name: str, args: Sequence[Any], size: int, streams: bool) -> list[CallPart]:
    """The collectives that one call of the method `name` in a group of `size` ranks consists of; a
    barrier has none."""
    method = METHODS[name]
    if method.op is Op.BARRIER:
        return []
    if method.ins == method.outs:  # in place: one for each tensor
        return [CallPart([tensor], [tensor]) for tensor in tensors_in(args[0])]
    if method.op in POINT_TO_POINT:
        tensors = list(map(as_it_lies, tensors_in(args[0])))
        if method.op is Op.SEND:
            return [CallPart(tensors, [])]
        return [CallPart([], tensors)]
    single = method.form is Form.SINGLE
    if method.op is Op.ALL_TO_ALL and single:
        if not streams:  # gloo's workers split it, or fail to
            return [CallPart([args[1]], [args[0]])]
        return [CallPart(_split(args[1], args[3], size), _split(args[0], args[2], size))]
    if method.op is Op.ALL_GATHER and single and not streams:
        return [CallPart([args[1]], list(torch.chunk(args[0], size)))]
    outs, ins = args[method.outs or 0], args[method.ins or 0]
    pairs: Sequence[tuple[object, object]]
    if name == "allgather_coalesced":  # one list of outputs per rank
        pairs = list(zip(zip(*outs, strict=True), ins, strict=True))
    elif method.form is Form.COALESCED:
        pairs = list(zip(outs, ins, strict=True))
    else:
        pairs = [(outs, ins)]
    return [CallPart(tensors_in(i), tensors_in(o)) for o, i in pairs]


def _split(tensor: torch.Tensor, rows: Sequence[int] | None, size: int) -> list[torch.Tensor]:
    """The rows of `tensor` that go to, or come from, each rank; evenly many if `rows` is empty."""
    if not rows:
        if tensor.size(0) % size:
            raise ValueError(
                f"Tensor's dim 0 ({tensor.size(0)}) does not divide equally across group size {size}"
            )
        rows = [tensor.size(0) // size] * size
    if len(rows) != size:  # checkSplitSizes in torch/csrc/distributed/c10d/Utils.hpp, v2.13.0
        raise RuntimeError("Number of tensor splits not equal to group size")
    if sum(rows) != tensor.size(0):
        raise RuntimeError("Split sizes doesn't match total dim 0 size")
    return list(torch.split(tensor.detach(), list(rows)))


def agree(op: Op, parts: Sequence[CallPart], root: int) -> bool:
    """Whether the parts of one collective, by group rank, fit together, byte for byte."""
    facts = FACTS[op]
    if facts.reduces:
        nbytes = sum(map(len_of, parts[0].ins))
        return all(
            part.dtype == parts[0].dtype and sum(map(len_of, part.ins)) == nbytes for part in parts
        )
    if not facts.alike or facts.point_to_point:  # a barrier has no bytes
        return True
    ins = [list(map(len_of, part.ins)) for part in parts]
    sources, targets = _sources_and_targets(facts, root, len(parts))
    # even parts may go into one tensor
    as_one = facts.needs is Needs.EVERYONE and not facts.for_each
    for group_rank in targets:
        pieces = [ins[source][group_rank if facts.for_each else 0] for source in sources]
        outs = list(map(len_of, parts[group_rank].outs))
        if outs != pieces and not (as_one and len(set(pieces)) == 1 and sum(outs) == sum(pieces)):
            return False
    return True


def _sources_and_targets(
    facts: OpFacts, root: int, size: int
) -> tuple[Sequence[int], Sequence[int]]:
    """The places that send and those that receive, for an op that does not reduce."""
    root_only, everyone = (root,), range(size)
    return (
        root_only if facts.needs is Needs.FROM_ROOT else everyone,
        root_only if facts.needs is Needs.AT_ROOT else everyone,
    )


def len_of(tensor: torch.Tensor) -> int:
    """Bytes of a tensor."""
    return tensor.numel() * tensor.element_size()


def move(op: Op, parts: Sequence[CallPart], root: int) -> None:
    """Carry out one collective that does not reduce and whose ranks agree; `parts` by group rank."""
    facts = FACTS[op]
    if facts.reduces or facts.point_to_point:
        raise ValueError(f"a {op} does more, or less, than to move bytes between all ranks")
    sources, targets = _sources_and_targets(facts, root, len(parts))
    if facts.for_each:  # all are read before any is written
        sent = [[read([tensor]) for tensor in parts[source].ins] for source in sources]
        for group_rank in targets:
            write(parts[group_rank].outs, np.concatenate([pieces[group_rank] for pieces in sent]))
        return
    if len(sources) == 1:
        whole = look(parts[root].ins)
    else:
        whole = np.concatenate([read(parts[source].ins) for source in sources])
    for group_rank in targets:
        if sources != (group_rank,):
            write(parts[group_rank].outs, whole)
