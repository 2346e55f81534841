"""Kinds of calls: the facts that all calls from one place with tensors of one form have in common.

A program issues few kinds of calls, each many times, so a kind is described once and kept: in a
recorded rank as long as its process group, in emulations for the next one, too. A slider's move
runs the same program again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from joinlab.ops import FACTS, MAX_VALUES, POINT_TO_POINT, Needs, Op
from joinlab.program.labels import Stacks, from_reducer, issued_in_backward, label
from joinlab.program.process_group import (
    METHODS,
    Method,
    Numbering,
    dtype_of,
    options_key,
    options_of,
    splits_of,
)

ALL_REDUCE = METHODS["allreduce"]

_REBUILD = "DDP bucket rebuild"
_SYNCS_HOST = (_REBUILD, "DDP forward() 1")
"""Labels of calls that torch follows with a blocking copy to the host as soon as it has waited for
them.

torch/csrc/distributed/c10d/reducer.cpp, v2.13.0: Reducer::sync_bucket_indices copies the broadcast
indices to the CPU; Reducer::set_divide_factor reads what the all-reduce of forward() summed, the
number of ranks that have not joined.
"""


@dataclass(slots=True, eq=False)
class CallKind:
    """One kind of call.

    op            what the backend runs: NCCL's barrier is an all-reduce
    facts         the fields of CallIssued that all its calls share
    stack         number of its stack
    root          rank of its root in the group; -1 without one
    nbytes        bytes of the larger side
    small         all its tensors together have at most MAX_VALUES elements: its values are kept
    host_waits    a wait for it blocks the host, not only the stream
    syncs_host    torch reads its result on the host, as soon as it has waited for it
    waited_at_once  the host waits for it as soon as it is issued
    on_stream     it runs on the current stream: on NCCL with async_op=False, since PyTorch 2.8
    blocks        the host may wait inside the call, before there is a Work: NCCL's synchronous barrier, since PyTorch
                  2.8 (ProcessGroupNCCL::barrier synchronizes the current stream)
    in_backward   it was issued inside a backward pass
    by_reducer    DDP's Reducer issues it, or a comm hook of torch, and waits for it at the end of the backward pass
    direct        the Reducer issues it itself, so that no Python code ever sees its Work
    entered       the recorder's: a call of this kind has returned, so that NCCL has connected what it needs
    text          the recorder's: `facts` as the text of an event's fields
    segment       of the log that has its stack; -1: none yet
    bucket        it reduces gradients
    awaits        the program itself gets a Work of it, which stands for data
    rebuilds      it tells the Reducer which parameters belong to which bucket
    accepted      the emulator's: eras whose NCCL takes all calls of this kind, if their tensors are contiguous
    """

    op: Op
    facts: dict[str, Any]
    stack: int = -1
    root: int = -1
    nbytes: int = 0
    small: bool = False
    host_waits: bool = True
    syncs_host: bool = False
    waited_at_once: bool = False
    on_stream: bool = False
    blocks: bool = False
    in_backward: bool = False
    by_reducer: bool = False
    direct: bool = False
    entered: bool = False
    text: str = ""
    segment: int = -1
    accepted: set[str] = field(default_factory=set)
    of_join_hook: bool = False
    bucket: bool = False
    awaits: bool = False
    rebuilds: bool = False
    collective: bool = field(init=False)
    look: tuple[object, ...] = field(init=False)
    """A key that is equal for calls of two ranks that fit."""

    def __post_init__(self) -> None:
        facts = self.facts
        self.collective = self.op not in POINT_TO_POINT
        shape = tuple(map(tuple, facts["shape"]))
        self.look = (self.op, facts.get("root"), facts.get("reduce_op"), facts["dtype"], shape)

    def awaited_at(self, group_rank: int) -> bool:
        """Whether this rank of the group gets something that it has to wait for."""
        if FACTS[self.op].needs is Needs.AT_ROOT:
            return self.awaits and self.root == group_rank
        return self.awaits and not (self.op is Op.BROADCAST and self.root == group_rank)


class GroupFacts:
    """A process group of a rank, as far as the kinds of its calls depend on it.

    label       its name in the Timeline
    backend     "gloo" or "nccl"
    ranks       its global ranks, by group rank
    host_waits  Work.wait() makes the host wait (gloo, or NCCL with TORCH_NCCL_BLOCKING_WAIT=1), not only the stream
    kinds       a cache
    limit_ns    its timeout
    """

    def __init__(
        self,
        label: str,
        backend: str,
        ranks: Sequence[int],
        host_waits: bool,
        numbering: Numbering | None = None,
    ) -> None:
        self.label = label
        self.backend = backend
        self.ranks = tuple(ranks)
        self.host_waits = host_waits
        self.kinds: dict[tuple[object, ...], CallKind] = {}
        self.numbering = numbering or Numbering()
        self.limit_ns = 0


def kind_of(
    group: GroupFacts,
    stacks: Stacks,
    stack: int,
    method: Method,
    args: tuple[object, ...],
    ins: Sequence[torch.Tensor],
    outs: Sequence[torch.Tensor],
) -> CallKind:
    """The kind of a call of `method`, issued from a stack of `stacks`, with these tensors."""
    asynchronous = not args or bool(getattr(args[-1], "asyncOp", True))
    looks = tuple([(t.shape, t.dtype, t.layout) for t in (ins if ins is outs else (*ins, *outs))])
    key = stack, method, asynchronous, len(ins), looks, options_key(method.op, args)
    kind = group.kinds.get(key)
    if kind is not None:
        return kind
    frames = stacks.frames[stack]
    functions = {frame.function for frame in frames}
    kind = plain_kind(group, method, args, ins, outs)
    kind.facts["stack"] = kind.stack = stack
    origin = kind.facts["origin"] = label(
        method.op,
        frames,
        asynchronous=asynchronous,
        dtype=dtype_of(ins or outs),
        all_reduce_barrier=group.backend == "nccl",
    )
    # _verify_param_shape_across_processes of DDP reads the others' values
    kind.syncs_host = (
        any(text in origin for text in _SYNCS_HOST)
        or "_verify_param_shape_across_processes" in functions
    )
    kind.waited_at_once = not asynchronous and kind.host_waits
    kind.on_stream = group.backend == "nccl" and not asynchronous
    kind.blocks = kind.on_stream and method.op is Op.BARRIER
    kind.in_backward = "_engine_run_backward" in functions
    kind.by_reducer = from_reducer(frames)
    kind.direct = method is ALL_REDUCE and issued_in_backward(frames)
    writes = method.op not in (Op.SEND, Op.BARRIER)
    kind.awaits = asynchronous and writes and "(" not in origin
    kind.of_join_hook = origin.endswith("(join() hook)")
    kind.bucket = origin == "all-reduce (DDP backward())"
    kind.rebuilds = _REBUILD in origin
    group.kinds[key] = kind  # last: an exception in between leaves no half of it
    return kind


def plain_kind(
    group: GroupFacts,
    method: Method,
    args: tuple[object, ...],
    ins: Sequence[torch.Tensor],
    outs: Sequence[torch.Tensor],
) -> CallKind:
    """What the network has to know of a call, wherever it was issued from."""
    op, tensors = method.op, ins or outs
    dtype, shape = dtype_of(tensors), [list(tensor.shape) for tensor in tensors]
    options: dict[str, object] = {**options_of(op, group.ranks, args)}
    if op is Op.ALL_TO_ALL:
        options["splits"] = splits_of(method, args, len(group.ranks))
    host_waits = group.host_waits or op is Op.BARRIER
    if group.backend == "nccl" and op is Op.BARRIER:
        # ProcessGroupNCCL::barrier is an all-reduce of one number, below the seam
        op, options = Op.ALL_REDUCE, {"reduce_op": "sum"}
        dtype, shape = dtype or "float32", shape or [[1]]
    root = options.get("root")
    return CallKind(
        op=op,
        facts={
            "stack": -1,
            "group": group.label,
            "op": op.value,
            "origin": None,
            "dtype": dtype,
            "shape": shape,
            **{name: value for name, value in options.items() if value is not None},
        },
        root=group.ranks.index(root) if root in group.ranks else -1,
        nbytes=max(sum(t.numel() * t.element_size() for t in side) for side in (ins, outs)),
        small=sum(t.numel() for t in (ins if ins is outs else (*ins, *outs))) <= MAX_VALUES,
        host_waits=host_waits,
    )
