"""The process-group seam: the meaning of the methods of torch's ProcessGroup and of their
arguments.

Everything that passes between a program and its backend passes here: the calls of torch.distributed
and those of DDP's C++ Reducer alike. The recorder listens at this seam and the emulator answers at
it; both read it by this file.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from math import prod
from typing import Any, TypedDict

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from joinlab.ops import FACTS, GLOO_THREADS, POINT_TO_POINT, Op


class NoSuchRank(Exception):
    """A send or recv names a rank that its group does not have."""

    def __init__(self, number: int, size: int) -> None:
        super().__init__(
            f"no rank {number} is in its group, which has {size} ranks. Real ranks would wait for it in vain, or crash."
        )


class DefaultGroupGone(Exception):
    """The program calls init_process_group after destroy_process_group."""

    def __init__(self) -> None:
        super().__init__(
            "it has destroyed the default group, and joinlab keeps one per run. `joinlab record` follows a script "
            "that makes a second one."
        )


class Form(Enum):
    """What a method of ProcessGroup takes for a side that has a part per rank."""

    LIST = "a tensor for each part"
    SINGLE = "one tensor, which holds all parts"
    COALESCED = "several tensors, for as many collectives"


@dataclass(frozen=True, slots=True, eq=False)
class Method:
    """A method of ProcessGroup: its op, which of its arguments are the input and output tensors,
    and their form."""

    op: Op
    ins: int | None
    outs: int | None
    form: Form = Form.LIST

    def tensors(self, args: Sequence[object]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The input and the output tensors; the same list if a call replaces its input."""
        ins = tensors_in(args[self.ins]) if self.ins is not None else []
        if self.outs == self.ins:
            return ins, ins
        return ins, tensors_in(args[self.outs]) if self.outs is not None else []


METHODS = {
    "allreduce": Method(Op.ALL_REDUCE, 0, 0),
    "allreduce_coalesced": Method(Op.ALL_REDUCE, 0, 0, Form.COALESCED),
    "broadcast": Method(Op.BROADCAST, 0, 0),
    "reduce": Method(Op.REDUCE, 0, 0),
    "allgather": Method(Op.ALL_GATHER, 1, 0),
    "allgather_coalesced": Method(Op.ALL_GATHER, 1, 0, Form.COALESCED),
    "_allgather_base": Method(Op.ALL_GATHER, 1, 0, Form.SINGLE),
    "all_gather_single": Method(Op.ALL_GATHER, 1, 0, Form.SINGLE),
    "all_gather_single_coalesced": Method(Op.ALL_GATHER, 1, 0, Form.COALESCED),
    "allgather_into_tensor_coalesced": Method(Op.ALL_GATHER, 1, 0, Form.COALESCED),
    "gather": Method(Op.GATHER, 1, 0),
    "gather_single": Method(Op.GATHER, 1, 0, Form.SINGLE),
    "gather_into_tensor": Method(Op.GATHER, 1, 0, Form.SINGLE),
    "scatter": Method(Op.SCATTER, 1, 0),
    "reduce_scatter": Method(Op.REDUCE_SCATTER, 1, 0),
    "_reduce_scatter_base": Method(Op.REDUCE_SCATTER, 1, 0, Form.SINGLE),
    "reduce_scatter_single": Method(Op.REDUCE_SCATTER, 1, 0, Form.SINGLE),
    "reduce_scatter_single_coalesced": Method(Op.REDUCE_SCATTER, 1, 0, Form.COALESCED),
    "reduce_scatter_tensor_coalesced": Method(Op.REDUCE_SCATTER, 1, 0, Form.COALESCED),
    "alltoall": Method(Op.ALL_TO_ALL, 1, 0),
    "alltoall_base": Method(Op.ALL_TO_ALL, 1, 0, Form.SINGLE),
    "all_to_all_single": Method(Op.ALL_TO_ALL, 1, 0, Form.SINGLE),
    "barrier": Method(Op.BARRIER, None, None),
    "send": Method(Op.SEND, 0, None),
    "recv": Method(Op.RECV, None, 0),
    "recv_anysource": Method(Op.RECV, None, 0),
}

COALESCED = frozenset(name for name, method in METHODS.items() if method.form is Form.COALESCED)
"""Methods that make one call of several collectives."""

_REDUCE_OPS = {
    int(getattr(dist.ReduceOp, name).value): name.lower()
    for name in ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")
    if hasattr(dist.ReduceOp, name)
}


HOST_SYNCS = (
    "item", "tolist", "numpy", "cpu", "__bool__", "__float__", "__int__", "__index__", "__repr__", "__format__",
    "__array__", "__contains__", "is_nonzero", "nonzero", "equal", "allclose", "__reduce_ex__",
)  # fmt: skip
"""Methods of a tensor on a GPU that make the host wait for the stream."""


def check_init_process_group(
    run: tuple[str, int, int], begun: bool, backend: object = None, *args: object, **kwargs: Any
) -> None:
    """init_process_group, called by a program: raise if it may not, with these arguments.
    DefaultGroupGone if no run here can follow it.

    A rank's group exists before its program begins. A program that creates it, as tutorials do,
    must ask for the same backend, rank and size; it may set another timeout.

    run    its backend, its number of ranks, and this rank
    begun  the program has called it before
    """
    own_backend, size, own_rank = run
    world_size = kwargs.get("world_size", args[2] if len(args) > 2 else -1)
    rank = kwargs.get("rank", args[3] if len(args) > 3 else -1)
    if not dist.is_initialized():
        raise DefaultGroupGone
    if begun:
        raise ValueError("trying to initialize the default process group twice!")
    asked = str(backend or own_backend).lower()
    if own_backend not in {part.rpartition(":")[2] for part in asked.split(",")}:
        raise RuntimeError(
            f"the program asks init_process_group for backend {asked!r}, but this run is on {own_backend!r}. Give "
            f"backend={asked!r} to joinlab, or leave the backend out in the program."
        )
    if world_size not in (-1, size) or rank not in (-1, own_rank):
        raise RuntimeError(
            f"the program asks init_process_group to be rank {rank} of {world_size}, but it is rank {own_rank} of "
            f"{size}: inputs= has one count per rank."
        )
    if kwargs.get("timeout") is not None:
        c10d._get_default_group().set_timeout(kwargs["timeout"])


def accept_own_groups(batch: Any) -> Any:
    """A replacement for batch_isend_irecv, `batch`, that also accepts joinlab's groups.

    torch issues the sends and recvs on NCCL as one only for its own class of group. Issued one by
    one, two ranks that both send first would wait for each other.
    """

    def batch_isend_irecv(p2p_op_list: list[Any]) -> list[object]:
        c10d._check_p2p_op_list(p2p_op_list)
        group: Any = p2p_op_list[0].group or c10d._get_default_group()
        if getattr(group, "backend", None) != "nccl":
            return batch(p2p_op_list)  # type: ignore[no-any-return]
        device = p2p_op_list[0].tensor.device
        with c10d._coalescing_manager(group, device, async_ops=True) as manager:
            for op in p2p_op_list:
                peer = {"group_dst" if op.op is c10d.isend else "group_src": op.group_peer}
                op.op(op.tensor, group=op.group, tag=op.tag, **peer)
        return list(manager.works)

    return batch_isend_irecv


class Numbering:
    """Numbers the calls of this rank in one process group.

    collectives  number of collectives that the backend has not refused
    pairs        number of sends and recvs that it has not refused
    issued       number of all calls
    """

    __slots__ = ("_seq", "collectives", "issued", "pairs")

    def __init__(self) -> None:
        self.collectives = self.pairs = self.issued = 0
        self._seq = itertools.count()

    def next_seq(self) -> int:
        """Key of the next call; threads may ask at once."""
        seq = next(self._seq)
        self.issued = seq + 1
        return seq

    def next_number(self, collective: bool) -> int:
        """Number of the next call, see the column `number`."""
        if collective:
            self.collectives += 1
            return self.collectives
        self.pairs += 1
        return self.pairs

    def take_back(self, collective: bool) -> None:
        """The backend has refused the call that was numbered last, which therefore has no place in
        its group."""
        if collective:
            self.collectives -= 1
        else:
            self.pairs -= 1


def tensors_in(value: object) -> list[torch.Tensor]:
    """All tensors in an argument, which may be one, a list, or a list of lists."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        if len(value) == 1 and isinstance(value[0], torch.Tensor):
            return [value[0]]
        return [t for item in value for t in tensors_in(item)]
    return []


def dtype_of(tensors: Sequence[torch.Tensor]) -> str | None:
    """ "float32", or "sparse float32"; several distinct ones joined by ","; None without
    tensors."""
    if not tensors:
        return None
    if len(tensors) == 1:
        return _dtype_of(tensors[0])
    return ",".join(dict.fromkeys(map(_dtype_of, tensors)))


def _dtype_of(tensor: torch.Tensor) -> str:
    name = str(tensor.dtype)[6:]
    if tensor.layout is torch.strided:
        return name
    return f"sparse {name}"


_tolist = torch._C.TensorBase.tolist  # not that of torch.Tensor, which is replaced: see HOST_SYNCS


def values_in(tensors: Sequence[torch.Tensor]) -> list[list[Any]] | None:
    """The elements of each tensor, flat; None if they cannot be read (sparse, quantised or fake
    tensors)."""
    try:
        if len(tensors) == 1 and tensors[0].dim() == 1:  # most often
            return [_tolist(tensors[0])]
        return [_tolist(t.reshape(-1)) for t in tensors]
    except Exception:
        return None


def options_key(op: Op, args: tuple[Any, ...]) -> object:
    """A hashable key that differs if `options_of` does, and is cheaper: most calls repeat an
    earlier one's options."""
    if op is Op.BARRIER or not args:
        return None
    opts = args[-1]
    try:
        facts = FACTS[op]
        if facts.reduces:
            key = opts.reduceOp.op.value
            if facts.rooted:
                return (key, opts.rootRank)
            return key
        if facts.rooted:
            return opts.rootRank
    except AttributeError:  # no options object: the short forms of a method
        return tuple([str(arg) for arg in args if not isinstance(arg, (torch.Tensor, list))])
    if op in POINT_TO_POINT:
        return tuple([arg for arg in args if isinstance(arg, int)])  # peer and tag
    if op is Op.ALL_TO_ALL:
        return tuple([tuple(arg) for arg in args[2:] if isinstance(arg, list)])  # split sizes
    return None


class Options(TypedDict, total=False):
    """The columns of a CallRow that come from a call's options; root and peer are global ranks."""

    reduce_op: str
    root: int | None
    peer: int
    tag: int | None


def options_of(op: Op, ranks: Sequence[int], args: tuple[object, ...]) -> Options:
    """Reduce op, root, peer and tag of a call of `op` with these arguments, as columns of a
    Timeline.

    `ranks` are the global ranks of the group, by rank within it: root and peer come out as global
    ranks. NoSuchRank if the peer is in no place of it, which no backend checks: gloo waits for its
    address until the timeout, or crashes.
    """
    if args and not isinstance(args[-1], (torch.Tensor, list, tuple)):
        opts = args[-1]
    else:
        opts = None
    options: Options = {}
    if FACTS[op].reduces:
        options["reduce_op"] = _reduce_op_name(getattr(opts, "reduceOp", opts))
    if FACTS[op].rooted:
        root = getattr(opts, "rootRank", None)
        if root is None and len(args) > 1 and isinstance(args[1], int):
            root = args[1]
        options["root"] = ranks[root] if root is not None and 0 <= root < len(ranks) else root
    if op in POINT_TO_POINT:
        numbers = [arg for arg in args if isinstance(arg, int) and not isinstance(arg, bool)]
        options["tag"] = numbers[-1] if numbers else None
        if len(numbers) == 2:
            if not 0 <= numbers[0] < len(ranks):
                raise NoSuchRank(numbers[0], len(ranks))
            options["peer"] = ranks[numbers[0]]
    return options


def splits_of(method: Method, args: tuple[Any, ...], size: int) -> list[list[int]] | None:
    """The column `splits` of an all-to-all in a group of `size` ranks; None where its sizes cannot
    be those of so many parts, which the backend refuses."""
    if method.form is Form.SINGLE:
        sides = [_rows_split(args[1], args[3], size), _rows_split(args[0], args[2], size)]
    else:
        sides = [[part.numel() for part in tensors_in(args[side])] for side in (1, 0)]
    if any(len(parts) != size for parts in sides):
        return None
    even = [parts[:1] if len({*parts}) == 1 else parts for parts in sides]
    return even if max(map(len, even)) <= MOST_SPLITS else None


MOST_SPLITS = 256
"""Unequal parts of an all-to-all are recorded for up to so many ranks: a call of 1,024 would take 8
KB of a rank's log."""


def _rows_split(tensor: torch.Tensor, rows: Sequence[int], size: int) -> list[int]:
    """The elements of each part of a tensor that is split by its first dimension; [] if it cannot
    be."""
    first, *others = tensor.shape or [0]
    if not rows and first % size == 0:
        rows = [first // size] * size
    return [count * prod(others) for count in rows] if sum(rows) == first else []


def _reduce_op_name(reduce_op: Any) -> str:
    value = getattr(reduce_op, "op", reduce_op)
    try:
        return _REDUCE_OPS[int(getattr(value, "value", value))]
    except (KeyError, TypeError, ValueError):
        if reduce_op is None or not hasattr(value, "name"):
            return "sum"
        return str(value.name).lower()


def name_backend(data: dict[str, object], backend: str) -> dict[str, object]:
    """DDP's logging data for a group that C++ knows by another name, since it casts groups named
    "gloo" and "nccl".

    Source: Logger::set_env_variables() in torch/csrc/distributed/c10d/logger.cpp, v2.13.0.
    """
    data["backend_name"] = backend
    if backend == "gloo":
        data["gloo_num_threads"] = GLOO_THREADS
        for name in ("gloo_socket_ifname", "gloo_device_transport"):
            data[name] = os.environ.get(name.upper(), "N/A")
    return data
