"""What PyTorch hands gloo for a call, gloo's messages with their bytes, and what PyTorch does with
the result.

Gloo knows memory: a pointer and a number of elements. ProcessGroupGloo hands it either the tensor's
own memory, from its first element on and whatever its strides (`flat`), or a packed copy that it
unpacks afterwards:

    base = arange(6).view(3, 2);  all_reduce(base[:, 0])

    base          0 1 2 3 4 5
    the column    ^   ^   ^         what the program means
    what is sent  ^ ^ ^             three elements in a row

A `GlooCollective` is one of them: the memory, what a worker refuses before it sends anything, and what
it does with the result. Sources are functions of torch/csrc/distributed/c10d/ProcessGroupGloo.cpp,
PyTorch v2.13.0; all of it was measured too (tests/gloo/test_gloo_agreement.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, assert_never

import numpy as np
import torch

from joinlab.backend.model import EmulatedCall
from joinlab.backend.payload import Bytes, CallPart, len_of, memory, read, write
from joinlab.gloo import messages
from joinlab.gloo.network import Buffer, Network, NetworkPart, Waits, play
from joinlab.gloo.sums import DTYPES, all_reduce_sparse, combine
from joinlab.ops import Op
from joinlab.program.process_group import METHODS, Form, tensors_in

_BITWISE = ("band", "bor", "bxor")
# RedOpType in Types.hpp
_NUMBERS = {"product": 2, "min": 3, "max": 4, "band": 5, "bor": 6, "bxor": 7}
_ENFORCE = "[enforce fail at {}] {}. "
SINCE_2_15 = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 15)
"""Whether PyTorch is 2.15 or newer."""

_INDIVISIBLE = "Tensor's dim 0 does not divide equally across group size"


@dataclass(slots=True)
class GlooCollective:
    """One collective for gloo.

    op         what gloo runs: a reduce_scatter is all-reduces
    prepare    gives the memory that it reads and writes, when a worker begins with it
    reduce_op  what gloo does with two elements: for AVG it sums
    refusal    what the worker raises instead of running it; "" for nothing
    finish     what the worker does when gloo is done; a RuntimeError from it is the call's
    sparse     the tensor of an all_reduce of sparse tensors: it runs as all-gathers of indices and values
    grad       whether the program had gradients enabled when it issued the call: `finish` runs as it would have there
    """

    op: Op
    prepare: Callable[[], CallPart]
    reduce_op: str = "sum"
    refusal: str = ""
    finish: Callable[[], object] | None = None
    sparse: torch.Tensor | None = None
    grad: bool = field(default_factory=torch.is_grad_enabled)

    def end(self) -> None:
        if self.finish is not None:
            with torch.set_grad_enabled(self.grad):
                self.finish()


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """The memory that gloo takes for a tensor's: its first element, and as many after it as it has
    elements.

    A complex element is two real ones to gloo (at::view_as_real).
    """
    tensor = tensor.detach()
    if tensor.is_complex():
        tensor = torch.view_as_real(
            tensor if tensor.is_contiguous() else tensor.as_strided((tensor.numel(),), (1,))
        )
    if tensor.is_contiguous():
        return tensor
    return tensor.as_strided((tensor.numel(),), (1,))


def collectives_of(call: EmulatedCall) -> list[GlooCollective]:
    """The collectives that gloo runs for a call, in order. A call that has several has as many
    numbers."""
    args, size = call.args, len(call.group.ranks)
    op, form = METHODS[call.method].op, METHODS[call.method].form
    match op:
        case Op.BARRIER:
            return [GlooCollective(op, lambda: CallPart([], []))]
        case Op.ALL_REDUCE | Op.REDUCE:
            return [_reducing(op, tensors_in(args[0]), call.reduce_op, size)]
        case Op.REDUCE_SCATTER:
            copies = [tensor.detach().clone() for tensor in tensors_in(args[1])]
            if call.method == "reduce_scatter":  # this rank's share is summed where it belongs
                (copies[call.group_rank],) = tensors_in(args[0])
                copies[call.group_rank].copy_(tensors_in(args[1])[call.group_rank])
            call.when_waited = partial(_share_out, call, copies)
            return [_reducing(Op.ALL_REDUCE, [copy], call.reduce_op, size) for copy in copies]
        case Op.BROADCAST:
            tensor = tensors_in(args[0])[0]
            return [
                GlooCollective(
                    op, lambda: CallPart([flat(tensor)], [flat(tensor)]), refusal=_unknown(tensor)
                )
            ]
        case Op.ALL_GATHER:
            return [_all_gather(call.method, args, size)]
        case Op.GATHER:
            (input,) = tensors_in(args[1])
            return [_collecting(op, input, tensors_in(args[0]), _unknown(input, split=False))]
        case Op.SCATTER:
            outs, ins = tensors_in(args[0]), tensors_in(args[1])
            return [
                GlooCollective(
                    op,
                    lambda: CallPart([*map(flat, ins)], [*map(flat, outs)]),
                    refusal=_unknown(outs[0]),
                )
            ]
        case Op.ALL_TO_ALL:
            return [
                _splitting(args, size, call.group_rank)
                if form is Form.SINGLE
                else _all_to_all(args)
            ]
        case Op.SEND | Op.RECV:
            raise ValueError(f"{op} is no collective")
        case _:
            assert_never(op)


class _InPlace(Buffer):
    """The memory of a tensor, which the program may resize meanwhile: then it lies elsewhere."""

    __slots__ = ("_address", "_tensor")

    def __init__(self, task: NetworkPart, tensor: torch.Tensor) -> None:
        super().__init__(task)
        self._tensor = tensor
        self._address = -1  # and 0 once its memory has been freed

    @property
    def data(self) -> Any:
        # to look it up each time took 3 us more a message
        if self._tensor.data_ptr() != self._address:
            self._address, self._data = self._tensor.data_ptr(), memory(self._tensor)
        return self._data


class Task(NetworkPart):
    """One collective of one rank, as a worker thread carries it out: a call, or one part of a
    coalesced one.

    collective  what PyTorch makes of the call (`collectives_of`), and `op` what gloo runs of it
    part        the memory, once a worker has begun with it
    number      among the collectives of the group, from 0: gloo's tag
    undefined   its result holds memory that was never set
    """

    def __init__(self, call: EmulatedCall, collective: GlooCollective, number: int) -> None:
        super().__init__()
        self.call = call
        self.collective = collective
        self.op = collective.op
        self.part = CallPart([], [])
        self.undefined = False
        self.number = number
        self.done = False


def messages_of(network: Network, task: Task, size: int) -> Waits:
    """This rank's part of the collective, with its bytes, to be run message by message."""
    part, op, me, root = task.part, task.op, task.call.group_rank, task.call.root
    if task.collective.sparse is not None:
        slot = messages.kind(Op.ALL_GATHER), task.number
        yield from all_reduce_sparse(network, task, task.collective.sparse, slot, me, size)
        return

    def add(local: Bytes, came: Bytes) -> Bytes:
        return combine(part.dtype, task.collective.reduce_op, local, came)

    ins, outs = (list(map(len_of, side)) for side in (part.ins, part.outs))
    item = part.dtype.itemsize if ins or outs else 0
    steps = messages.of(
        op, me, size, root, outs if op is Op.SCATTER and me != root else ins, item, outs
    )
    buffers, result = _buffers(task, size, ins, outs)
    waits = play(network, (messages.kind(op), task.number), me, steps, buffers, add)
    if op is Op.ALL_TO_ALL and result is not None:
        for wait in waits:
            # received data is in the tensor even if the call never completes
            write(part.outs, result.data)
            yield wait
    yield from waits
    if result is not None:
        task.undefined = result.undefined
        write(part.outs, result.data)


def _buffers(
    task: Task, size: int, ins: Sequence[int], outs: Sequence[int]
) -> tuple[list[Buffer], Buffer | None]:
    """The buffers of gloo's messages, and the one that has the result."""
    part, op, me, root = task.part, task.op, task.call.group_rank, task.call.root
    match op:
        case Op.BARRIER:
            return [Buffer(task, np.empty(0, np.uint8))], None
        case Op.BROADCAST | Op.ALL_REDUCE | Op.REDUCE:
            nbytes, item, segment = sum(ins), part.dtype.itemsize, 0
            if op is not Op.BROADCAST:
                if op is Op.ALL_REDUCE:
                    plan = messages.segments
                else:
                    plan = messages.reduce_segments
                segment = plan(nbytes, item, size)[1]
            work: Buffer = _InPlace(task, part.ins[0])
            return [work, Buffer(task, np.zeros(segment * 2, np.uint8), scratch=True)], work
        case Op.ALL_GATHER:
            work = Buffer(task, np.zeros(sum(ins) * size, np.uint8), scratch=True)
            work.data[me * sum(ins) : (me + 1) * sum(ins)] = read(part.ins)
            return [work], work
        case Op.GATHER if me == root:
            work = Buffer(task, np.tile(read(part.ins), size), scratch=True)
            return [work], work
        case Op.GATHER:
            return [_InPlace(task, part.ins[0])], None
        case Op.SCATTER if me == root:
            write(part.outs, read([part.ins[me]]))
            return [_InPlace(task, tensor) for tensor in part.ins], None
        case Op.SCATTER:
            return [_InPlace(task, part.outs[0])], None
        case Op.ALL_TO_ALL:
            sent, came = Buffer(task, read(part.ins)), Buffer(task, read(part.outs))
            share = sent.data[sum(ins[:me]) :][: min(ins[me], outs[me])]
            came.data[sum(outs[:me]) :][: len(share)] = share
            write(part.outs, came.data)  # a rank's own share is there even if the call fails
            return [sent, came], came
        # the fabric makes all-reduces of the one, and pairs of the others
        case Op.REDUCE_SCATTER | Op.SEND | Op.RECV:
            raise ValueError(f"a {op} is no algorithm of gloo's collectives")
        case _:
            assert_never(op)


def _unknown(tensor: torch.Tensor, split: bool = True) -> str:
    """Why a worker cannot send elements of this dtype. `split`: it sends a complex number as two
    floats."""
    if tensor.dtype in DTYPES and (split or not tensor.is_complex()):
        return ""
    return "Invalid scalar type"


def _reducing(op: Op, tensors: Sequence[torch.Tensor], asked: str, size: int) -> GlooCollective:
    """AsyncAllreduceWork, AsyncAllreduceCoalescedWork, AsyncSparseAllreduceWork and
    AsyncReduceWork."""
    tensor = tensors[0]
    if tensor.is_sparse:
        return GlooCollective(op, lambda: CallPart([], []), sparse=tensor)
    reduce_op = "sum" if asked == "avg" else asked
    refusal = _unknown(tensor)
    if tensor.is_complex() and asked in _NUMBERS:  # PyTorch prints the op's number as a character
        refusal = f"{op} does not support{chr(_NUMBERS[asked])}on complex tensors"
    elif not refusal and asked in _BITWISE and tensor.is_floating_point():
        refusal = f"Cannot use ReduceOp.{asked.upper()} with non-integral dtype"
    elif not refusal and reduce_op != "sum" and asked not in _NUMBERS:
        refusal = f"Cannot use ReduceOp.{asked.upper()} with Gloo"
    packed = [] if len(tensors) == 1 else [torch.empty(0)]

    def prepare() -> CallPart:
        if not packed:
            return CallPart([flat(tensor)], [flat(tensor)])
        packed[0] = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
        return CallPart(packed, packed)

    # AVG divides the tensor, not the memory that was summed: with strides they are not the same
    def finish() -> None:
        if asked == "avg":
            (packed[0] if packed else tensor).div_(size)
        if packed:
            _unpack(packed[0], tensors)

    return GlooCollective(
        op, prepare, reduce_op, refusal, finish if packed or asked == "avg" else None
    )


def _unpack(packed: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
    """Copy a run of elements into tensors, one after the other."""
    parts = torch.split(packed, [tensor.numel() for tensor in tensors])
    for tensor, part in zip(tensors, parts, strict=True):
        tensor.copy_(part.view(tensor.shape))


def _share_out(call: EmulatedCall, copies: Sequence[torch.Tensor]) -> None:
    """What a reduce_scatter does when it is waited for (LambdaWork): each output takes its share of
    the sums."""
    if call.method == "reduce_scatter":
        return  # its share is in place
    outs = tensors_in(call.args[0])
    for out, copy in zip(outs, copies, strict=True):
        out.copy_(torch.chunk(copy, len(call.group.ranks))[call.group_rank])


def _all_gather(name: str, args: Sequence[Any], size: int) -> GlooCollective:
    """AsyncAllgatherWork and AsyncAllgatherCoalescedWork."""
    form = METHODS[name].form
    if form is not Form.COALESCED:
        (input,) = tensors_in(args[1])
        outs = tensors_in(args[0])
        return _collecting(
            Op.ALL_GATHER,
            input,
            torch.chunk(outs[0], size) if form is Form.SINGLE else outs,
            _unknown(input),
        )
    ins = tensors_in(args[1])
    if name == "allgather_coalesced":  # one list per rank
        lists = list(map(list, args[0]))
    else:
        lists = list(map(list, zip(*[torch.chunk(out, size) for out in args[0]], strict=True)))
    packed = torch.zeros(sum(tensor.numel() for tensor in ins) * size, dtype=ins[0].dtype)
    return GlooCollective(
        Op.ALL_GATHER,
        lambda: CallPart([torch.cat([tensor.detach().reshape(-1) for tensor in ins])], [packed]),
        refusal=_unknown(ins[0]),
        finish=lambda: _unpack(packed, list(chain.from_iterable(lists))),
    )


def _collecting(
    op: Op, input: torch.Tensor, outs: Sequence[torch.Tensor], refusal: str
) -> GlooCollective:
    """AsyncAllgatherWork and AsyncGatherWork: a packed input, and packed outputs that are copied
    where they belong."""
    if all(out.is_contiguous() for out in outs):
        return GlooCollective(
            op,
            lambda: CallPart([input.detach().contiguous()], [out.detach() for out in outs]),
            refusal=refusal,
        )
    packed = torch.zeros(sum(out.numel() for out in outs), dtype=input.dtype)
    return GlooCollective(
        op,
        lambda: CallPart([input.detach().contiguous()], [packed]),
        refusal=refusal,
        finish=lambda: _unpack(packed, outs),
    )


def _all_to_all(args: Sequence[object]) -> GlooCollective:
    """alltoall() packs both lists."""
    outs, ins = tensors_in(args[0]), tensors_in(args[1])
    packed = [torch.zeros(out.shape, dtype=out.dtype) for out in outs]

    def finish() -> None:
        for out, copy in zip(outs, packed, strict=True):
            out.copy_(copy)

    return GlooCollective(
        Op.ALL_TO_ALL,
        lambda: CallPart([tensor.detach().contiguous() for tensor in ins], packed),
        refusal=_unknown(outs[0]),
        finish=finish,
    )


def _splitting(args: Sequence[Any], size: int, group_rank: int) -> GlooCollective:
    """AsyncAlltoallWork: gloo::alltoall of equal shares of the bytes, or gloo::alltoallv of some
    rows for each rank."""
    out, input = args[0], args[1]
    rows: list[list[int]] = [list(args[3] or ()), list(args[2] or ())]
    refusal = _unknown(out)
    shares: list[list[int]] = []  # bytes for each rank, of the input and of the output
    if not any(rows):
        lengths = [tensor.numel() * tensor.element_size() for tensor in (input, out)]
        shares = [[length // size] * size for length in lengths]
        if SINCE_2_15 and any(tensor.size(0) % size for tensor in (input, out)):
            refusal = refusal or _INDIVISIBLE
        elif lengths[0] % size:
            refusal = refusal or _ENFORCE.format("alltoall.cc:29", "in->size % context->size == 0")
        elif lengths[0] != lengths[1]:
            refusal = refusal or _ENFORCE.format("alltoall.cc:30", "in->size == out->size")
    else:
        for tensor, counts in zip((input, out), rows, strict=True):
            if not counts and tensor.size(0) % size:
                refusal = refusal or _INDIVISIBLE
            elif counts and sum(counts) != tensor.size(0):
                refusal = refusal or "Split sizes doesn't match total dim 0 size"
            width = tensor.numel() // max(1, tensor.size(0)) * tensor.element_size()
            shares.append([count * width for count in counts or [tensor.size(0) // size] * size])
        if shares[0][group_rank] != shares[1][group_rank]:
            condition = "inLengthPerRank[myRank] == outLengthPerRank[myRank]"
            refusal = refusal or _ENFORCE.format("alltoallv.cc:138", condition)

    def prepare() -> CallPart:
        ins, outs = (
            list(torch.split(flat(tensor).reshape(-1).view(torch.uint8), lengths))
            if tensor.numel()
            else [torch.empty(0, dtype=torch.uint8) for _ in lengths]
            for tensor, lengths in zip((input, out), shares, strict=True)
        )
        return CallPart(ins, outs)

    return GlooCollective(Op.ALL_TO_ALL, prepare, refusal=refusal)
