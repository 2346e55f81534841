"""Kinds of calls: the facts that all calls from one place with tensors of one form have in common.

A program issues few kinds of calls, each many times, so a kind is described once and kept: in a
recorded rank as long as its process group, in emulations for the next one, too. A slider's move
runs the same program again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from joinlab.ops import MAX_VALUES, POINT_TO_POINT, Op
from joinlab.program.labels import Stacks, from_reducer, issued_in_backward, label
from joinlab.program.process_group import METHODS, Method, dtype_of, options_key, options_of

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
    event         fields that the events of all its calls share, see recorder/events.py
    stack         number of its stack
    root          place of its root in the group; -1 without one
    nbytes        bytes of the larger side
    small         all its tensors together have at most MAX_VALUES elements: its values are kept
    host_waits    a wait for it blocks the host, not only the stream
    syncs_host    torch reads its result on the host, as soon as it has waited for it
    waited_at_once  the host waits for it as soon as it is issued
    blocks        the host may wait inside the call, before there is a Work: NCCL's synchronous barrier, since PyTorch
                  2.8 (ProcessGroupNCCL::barrier synchronizes the current stream)
    in_backward   it was issued inside a backward pass
    by_reducer    DDP's Reducer issues it, or a comm hook of torch, and waits for it at the end of the backward pass
    direct        the Reducer issues it itself, so that no Python code ever sees its Work
    text          the recorder's: `event` as JSON without the braces, and
    segment       of the log that has its stack; -1: none yet
    accepted      the emulator's: eras whose NCCL takes all calls of this kind, if their tensors are contiguous
    """

    op: Op
    event: dict[str, Any]
    stack: int = -1
    root: int = -1
    nbytes: int = 0
    small: bool = False
    host_waits: bool = True
    syncs_host: bool = False
    waited_at_once: bool = False
    blocks: bool = False
    in_backward: bool = False
    by_reducer: bool = False
    direct: bool = False
    text: str = ""
    segment: int = -1
    accepted: set[str] = field(default_factory=set)
    collective: bool = field(init=False)
    of_join_hook: bool = field(init=False)
    bucket: bool = field(init=False)
    """Whether it reduces gradients."""
    rebuilds: bool = field(init=False)
    """Whether it tells the Reducer which parameters belong to which bucket."""
    look: tuple[Any, ...] = field(init=False)
    """A key that is equal for calls of two ranks that fit."""

    def __post_init__(self) -> None:
        event, origin = self.event, self.event["o"] or ""
        self.collective = self.op not in POINT_TO_POINT
        self.of_join_hook = origin.endswith("(join() hook)")
        self.bucket = origin == "all-reduce (DDP backward())"
        self.rebuilds = _REBUILD in origin
        shape = tuple(map(tuple, event["sh"]))
        self.look = (self.op, event.get("root"), event.get("reduce_op"), event["d"], shape)


class Group(Protocol):
    """The facts of a process group that its kinds depend on; `kinds` caches them.

    backend     "gloo" or "nccl"
    host_waits  Work.wait() makes the host wait, not only the stream
    """

    label: str
    backend: str
    host_waits: bool
    kinds: dict[tuple[Any, ...], CallKind]

    @property
    def ranks(self) -> Sequence[int]: ...


def kind_of(
    group: Group,
    stacks: Stacks,
    stack: int,
    method: Method,
    args: tuple[Any, ...],
    ins: Sequence[torch.Tensor],
    outs: Sequence[torch.Tensor],
) -> CallKind:
    """The kind of a call of `method`, issued from a stack of `stacks`, with these tensors."""
    asynchronous = bool(getattr(args[-1], "asyncOp", True)) if args else True
    looks = tuple([(t.shape, t.dtype, t.layout) for t in (ins if ins is outs else (*ins, *outs))])
    key = stack, method, asynchronous, len(ins), looks, options_key(method.op, args)
    found = group.kinds.get(key)
    if found is not None:
        return found
    frames, op, nccl, tensors = (
        stacks.frames[stack],
        method.op,
        group.backend == "nccl",
        ins or outs,
    )
    dtype, shape = dtype_of(tensors), [list(tensor.shape) for tensor in tensors]
    origin = label(op, frames, asynchronous=asynchronous, dtype=dtype, all_reduce_barrier=nccl)
    options = options_of(op, group.ranks, args)
    host_waits = group.host_waits or op is Op.BARRIER
    if (
        nccl and op is Op.BARRIER
    ):  # ProcessGroupNCCL::barrier is an all-reduce of one number, below the seam
        op, options, dtype, shape = (
            Op.ALL_REDUCE,
            {"reduce_op": "sum"},
            dtype or "float32",
            shape or [[1]],
        )
    root, functions = options.get("root"), {one.function for one in frames}
    found = group.kinds[key] = CallKind(
        op=op,
        event={
            "st": stack,
            "g": group.label,
            "op": op.value,
            "o": origin,
            "d": dtype,
            "sh": shape,
            **{name: value for name, value in options.items() if value is not None},
        },
        stack=stack,
        root=group.ranks.index(root) if root in group.ranks else -1,
        nbytes=max(sum(t.numel() * t.element_size() for t in side) for side in (ins, outs)),
        small=sum(t.numel() for t in (ins if ins is outs else (*ins, *outs))) <= MAX_VALUES,
        host_waits=host_waits,
        # _verify_param_shape_across_processes of DDP reads the others' values
        syncs_host=any(words in origin for words in _SYNCS_HOST)
        or "_verify_param_shape_across_processes" in functions,
        waited_at_once=not asynchronous and host_waits,
        blocks=nccl and method.op is Op.BARRIER and not asynchronous,
        in_backward="_engine_run_backward" in functions,
        by_reducer=from_reducer(frames),
        direct=method is ALL_REDUCE and issued_in_backward(frames),
    )
    return found
