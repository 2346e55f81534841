"""What all calls of one kind have in common, worked out once: a program issues few kinds of calls, each many times.

It is kept from one emulation to the next, since a slider's move runs the same program again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

from joinlab.ops import MAX_VALUES, CallRow, Op
from joinlab.program.labels import Frame, Stacks, call_site, label
from joinlab.program.process_group import METHODS, dtype_of, options_key, options_of

if TYPE_CHECKING:
    from joinlab.emulator.group import EmulatedGroup

_REBUILD = "DDP bucket rebuild"

_SYNCS_HOST = (_REBUILD, "DDP forward() 1")
"""Calls that C++ follows with a blocking copy to the host as soon as it has waited for them, by their label."""


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """One kind of call, by what it is, where it stands, and what its tensors look like.

    op           what the backend runs: NCCL's barrier is an all-reduce
    columns      its row in a Timeline, of which each call replaces what is its own (rank, seq, values, times)
    look         equal for calls of two ranks that fit together
    root         place of its root in the group; -1 without one
    nbytes       bytes of the larger side, for the clock
    small        its values are kept
    host_waits   the host waits for it, not only the stream
    in_backward  it was issued inside a backward pass; a `bucket` is one of gradients
    rebuilds     it tells the Reducer which parameters belong to which bucket
    """

    op: Op
    columns: CallRow
    look: tuple[Any, ...]
    root: int
    reduce_op: str
    nbytes: int
    small: bool
    host_waits: bool
    in_backward: bool
    bucket: bool
    rebuilds: bool


MOST = 4096
"""So many kinds are kept; the next one makes all be forgotten, so that a long session does not grow without end."""


class Kinds:
    """All kinds of calls that were issued on one backend, and the stacks they were issued from.

    Only one rank of one emulation runs at a time, so nothing here needs a lock.
    """

    def __init__(self, streams: bool) -> None:
        self._streams = streams  # on NCCL a barrier is an all-reduce, and waits are those of streams
        self._forget()

    def _forget(self) -> None:
        self._kinds: dict[tuple[Any, ...], Kind] = {}
        self._stacks = Stacks()

    def of(
        self,
        group: EmulatedGroup,
        name: str,
        args: Sequence[Any],
        ins: Sequence[torch.Tensor],
        outs: Sequence[torch.Tensor],
        frame: FrameType,
    ) -> Kind:
        """The kind of a call of the method `name`, issued by `frame`, with these tensors."""
        if len(self._kinds) >= MOST:
            self._forget()
        method = METHODS[name]
        stack, _ = self._stacks.intern(frame)
        asynchronous = bool(getattr(args[-1], "asyncOp", False)) if args else False
        same = ins is outs
        looks = tuple([(tensor.shape, tensor.dtype) for tensor in (ins if same else (*ins, *outs))])
        key = (
            group.label,
            group.ranks,
            name,
            stack,
            asynchronous,
            len(ins),
            looks,
            options_key(method.op, tuple(args)),
        )
        found = self._kinds.get(key)
        if found is None:
            frames = self._stacks.frames[stack]
            found = self._kinds[key] = self._make(group, name, args, ins, outs, frames, asynchronous)
        return found

    def _make(
        self,
        group: EmulatedGroup,
        name: str,
        args: Sequence[Any],
        ins: Sequence[torch.Tensor],
        outs: Sequence[torch.Tensor],
        frames: tuple[Frame, ...],  # where it was issued, innermost first
        asynchronous: bool,
    ) -> Kind:
        asked = METHODS[name].op
        op = Op.ALL_REDUCE if asked is Op.BARRIER and self._streams else asked
        tensors = ins or outs
        dtype = dtype_of(tensors)
        origin = label(asked, frames, asynchronous=asynchronous, dtype=dtype, all_reduce_barrier=self._streams)
        options = options_of(op, group.ranks, () if op is not asked else tuple(args))
        root = options.get("root")
        shape = [list(tensor.shape) for tensor in tensors]
        functions = {one.function for one in frames}
        numel = sum(t.numel() for t in ins) + (0 if ins is outs else sum(t.numel() for t in outs))
        sides = (sum(t.numel() * t.element_size() for t in side) for side in (ins, outs))
        return Kind(
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
                "stack": [str(one) for one in reversed(frames)],
            },
            look=(op, root, options.get("reduce_op"), dtype, tuple(map(tuple, shape))),
            root=group.ranks.index(root) if root in group.ranks else -1,
            reduce_op=options.get("reduce_op", "sum"),
            nbytes=max(sides),
            small=numel <= MAX_VALUES,
            host_waits=(
                not self._streams
                or asked is Op.BARRIER
                or "_verify_param_shape_across_processes" in functions  # DDP reads there what the others have
                or any(words in origin for words in _SYNCS_HOST)
            ),
            in_backward="_engine_run_backward" in functions,
            bucket=origin == "all-reduce (DDP backward())",
            rebuilds=_REBUILD in origin,
        )


ON_STREAMS, ON_HOSTS = Kinds(streams=True), Kinds(streams=False)
"""Of NCCL, and of gloo."""
