"""What a call consists of: its tensors as parts, and what all calls of its kind have in common.

A program issues few kinds of calls, each many times, so a kind is described once and kept, from one emulation to the
next, too: a slider's move runs the same program again.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import FrameType
from typing import Any

import torch

from joinlab.backend.model import CallKind, Group
from joinlab.backend.payload import Part
from joinlab.ops import MAX_VALUES, POINT_TO_POINT, Op
from joinlab.program.labels import Stacks, call_site, label
from joinlab.program.process_group import METHODS, dtype_of, options_key, options_of, tensors_in
from joinlab.program.steps import is_made_by_join

_REBUILD = "DDP bucket rebuild"

_SYNCS_HOST = (_REBUILD, "DDP forward() 1")
"""Labels of calls that torch follows with a blocking copy to the host as soon as it has waited for them.

torch/csrc/distributed/c10d/reducer.cpp, v2.13.0: Reducer::sync_bucket_indices copies the broadcast indices to the CPU;
Reducer::set_divide_factor reads what the all-reduce of forward() summed, the number of ranks that have not joined.
"""


MOST = 4096
"""Cache capacity; when it is full the cache is cleared, so that a long session does not grow without end."""


class Kinds:
    """A cache: all kinds of calls that were issued, and the stacks they were issued from.

    Only one rank of one emulation runs at a time, so nothing here needs a lock.
    """

    def __init__(self) -> None:
        self._kinds: dict[tuple[Any, ...], CallKind] = {}
        self._stacks = Stacks()

    def of(
        self,
        group: Group,
        name: str,
        args: tuple[Any, ...],
        ins: Sequence[torch.Tensor],
        outs: Sequence[torch.Tensor],
        frame: FrameType,
    ) -> CallKind:
        """The kind of a call of the method `name`, issued by `frame`, with these tensors."""
        if len(self._kinds) >= MOST:
            self._kinds, self._stacks = {}, Stacks()
        stack, _ = self._stacks.intern(frame)
        asynchronous = bool(getattr(args[-1], "asyncOp", False)) if args else False
        looks = tuple([(t.shape, t.dtype, t.layout) for t in (ins if ins is outs else (*ins, *outs))])
        place = group.fabric.streams, group.label, group.ranks
        key = *place, name, stack, asynchronous, len(ins), looks, options_key(METHODS[name].op, args)
        found = self._kinds.get(key)
        if found is None:
            found = self._kinds[key] = self._make(group, name, args, ins, outs, stack, asynchronous)
        return found

    def _make(
        self,
        group: Group,
        name: str,
        args: tuple[Any, ...],
        ins: Sequence[torch.Tensor],
        outs: Sequence[torch.Tensor],
        number: int,
        asynchronous: bool,
    ) -> CallKind:
        frames, streams, asked = self._stacks.frames[number], group.fabric.streams, METHODS[name].op
        op = Op.ALL_REDUCE if asked is Op.BARRIER and streams else asked
        tensors = ins or outs
        dtype = dtype_of(tensors)
        origin = label(asked, frames, asynchronous=asynchronous, dtype=dtype, all_reduce_barrier=streams)
        options = options_of(op, group.ranks, () if op is not asked else args)
        root = options.get("root")
        shape = [list(tensor.shape) for tensor in tensors]
        functions = {one.function for one in frames}
        numel = sum(t.numel() for t in ins) + (0 if ins is outs else sum(t.numel() for t in outs))
        stack = [str(one) for one in reversed(frames)]
        sides = (sum(t.numel() * t.element_size() for t in side) for side in (ins, outs))
        return CallKind(
            op=op,
            columns={
                "rank": -1,
                "seq": -1,
                "group": group.label,
                "op": op.value,
                "origin": origin,
                "dtype": dtype,
                "shape": shape,
                "reduce_op": options.get("reduce_op"),
                "root": root,
                "peer": options.get("peer"),
                "tag": options.get("tag"),
                "call_site": call_site(frames),
                "stack": stack,
            },
            look=(op, root, options.get("reduce_op"), dtype, tuple(map(tuple, shape))),
            root=group.ranks.index(root) if root in group.ranks else -1,
            reduce_op=options.get("reduce_op", "sum"),
            nbytes=max(sides),
            small=numel <= MAX_VALUES,
            host_waits=(
                not streams
                or asked is Op.BARRIER
                or "_verify_param_shape_across_processes" in functions  # DDP reads there what the others have
                or any(words in origin for words in _SYNCS_HOST)
            ),
            in_backward="_engine_run_backward" in functions,
            bucket=origin == "all-reduce (DDP backward())",
            rebuilds=_REBUILD in origin,
            joined=is_made_by_join(stack),
            sources=self._stacks.sources[number],
        )


KINDS = Kinds()
"""Those of all emulations."""


def parts_of(name: str, args: Sequence[Any], size: int, streams: bool) -> list[Part]:
    """The collectives that one call of the method `name` in a group of `size` ranks consists of.

    Not of those whose tensors are input and output: they are one for each tensor.
    """
    method = METHODS[name]
    if method.op is Op.BARRIER:
        return []
    if method.op in POINT_TO_POINT:
        tensors = tensors_in(args[0])
        return [Part(tensors, [])] if method.op is Op.SEND else [Part([], tensors)]
    if name in ("alltoall_base", "all_to_all_single") and not streams:  # gloo's workers split it, or fail to
        return [Part([args[1]], [args[0]])]
    if name in ("_allgather_base", "all_gather_single") and not streams:
        return [Part([args[1]], list(torch.chunk(args[0], size)))]
    if name in ("alltoall_base", "all_to_all_single"):
        return [Part(_split(args[1], args[3], size), _split(args[0], args[2], size))]
    if name == "alltoall":
        return [Part(tensors_in(args[1]), tensors_in(args[0]))]
    outs, ins = args[method.outs or 0], args[method.ins or 0]
    pairs: Sequence[tuple[Any, Any]]
    if name == "allgather_coalesced":  # one list of outputs per rank
        pairs = list(zip(zip(*outs, strict=True), ins, strict=True))
    elif "coalesced" in name:
        pairs = list(zip(outs, ins, strict=True))
    else:
        pairs = [(outs, ins)]
    return [Part(tensors_in(i), tensors_in(o)) for o, i in pairs]


def _split(tensor: torch.Tensor, rows: Sequence[int] | None, size: int) -> list[torch.Tensor]:
    """The rows of `tensor` that go to, or come from, each rank; evenly many if `rows` is empty."""
    if not rows:
        if tensor.size(0) % size:
            raise ValueError(f"Tensor's dim 0 ({tensor.size(0)}) does not divide equally across group size {size}")
        rows = [tensor.size(0) // size] * size
    if len(rows) != size:  # checkSplitSizes in torch/csrc/distributed/c10d/Utils.hpp, v2.13.0
        raise RuntimeError("Number of tensor splits not equal to group size")
    if sum(rows) != tensor.size(0):
        raise RuntimeError("Split sizes doesn't match total dim 0 size")
    return list(torch.split(tensor.detach(), list(rows)))
