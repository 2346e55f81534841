"""What a rank's process and its keeper tell each other, and how tensors travel between them.

A rank sends what it has issued since its last message together with what it asks now, and stands
still until the answer. An answer says which of its calls have ended meanwhile, with their outputs.

    rank      RankMessage([CallSent, ...], ("wait", [3], 0))          keeper
    rank      Reply(now=22_000, ended=[CallEnded(3, ...)])       keeper

The memory of a call's tensors is copied when the call is issued. While a call is open, the keeper's
copy of its memory is the true one: two calls on one tensor, issued one behind the other, are carried
out on the same copy. So a tensor is sent as a piece of its storage, under a number that the storage
has while any of its calls is open.
"""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterable, Sequence
from ctypes import memmove, string_at
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from joinlab.program.kinds import CallKind
from joinlab.program.process_group import Method

NEIGHBOURS = 16
"""Bytes behind a tensor that are sent with it: NCCL's kernels read whole lines (nccl/kernels.py)."""


class TensorSent(NamedTuple):
    """A tensor: where it lies in its storage, and the bytes from there on.

    storage  its number; -1: the tensor itself is in `data`, pickled (sparse)
    nbytes   of the whole storage
    begin    its first byte in the storage
    extent   bytes from its first to behind its last element
    """

    storage: int
    nbytes: int
    begin: int
    extent: int
    data: bytes
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]


class CallSent(NamedTuple):
    """A call as its rank hands it to its backend.

    kind     number of its kind in this rank
    facts    the kind, the first time
    args     arguments of the method of ProcessGroup, with an index into `tensors` for each tensor
    now      the host's clock then, and `ready_ns` that of the stream if it is ahead
    readable  its rank has recorded the values that it puts in
    """

    id: int
    kind: int
    facts: CallKind | None
    group: str
    method: str
    args: Any
    tensors: list[TensorSent]
    seq: int
    number: int
    enqueued_ns: int
    now: int
    ready_ns: int
    readable: bool


class CallEnded(NamedTuple):
    """A call of this rank is complete, or has failed.

    outs    the bytes of its output tensors
    error   what its backend raises
    source  on a recv: the place in the group that the message came from
    """

    id: int
    ended_ns: int
    outs: list[bytes]
    error: str | None
    source: int


class RankMessage(NamedTuple):
    """From a rank.

    log_end  bytes that its log has
    items    what it has issued or decided since its last message, each with its time
    request  what it asks, and waits for; None: it goes on
    """

    log_end: int
    now: int
    thread: int
    items: list[Any]
    request: tuple[Any, ...] | None


class Reply(NamedTuple):
    """To a rank.

    value  what it asked for
    error  or the exception that its backend raises instead
    now    its host's clock
    stuck  its stream waits for ever, and its host goes on
    ended  its calls that have ended since the last answer
    again  the request is not answered yet, only `ended` is news: ask again
    """

    value: Any
    error: Exception | None
    now: int
    stuck: bool
    ended: list[CallEnded]
    again: bool = False
    thread: int = 0


class Range(NamedTuple):
    """Bytes of a storage that an open call may write; none of them if it only reads there."""

    storage: int
    begin: int
    end: int


class Reference(NamedTuple):
    """A tensor among a call's arguments: its place in `CallSent.tensors`."""

    at: int


# ------------------------------------------------------------------------------------- in a rank


class Lender:
    """Numbers the storages of a rank's tensors that open calls refer to."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}  # by address
        self._calls: dict[int, int] = {}  # by address: how many open calls refer to it
        self._next = itertools.count()

    def lend(self, args: Sequence[Any]) -> tuple[Any, list[TensorSent], list[int]]:
        """A call's arguments as they are sent, their tensors, and what `give_back` takes."""
        tensors: list[TensorSent] = []
        places: dict[int, int] = {}
        addresses: list[int] = []

        def sent(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                place = places.get(id(value))
                if place is None:
                    place = places[id(value)] = len(tensors)
                    tensors.append(self._tensor(value, addresses))
                return Reference(place)
            if isinstance(value, (list, tuple)):
                return [sent(item) for item in value]
            if isinstance(value, (int, float, str)):
                return value
            return _options(value)

        return sent(list(args)), tensors, addresses

    def _tensor(self, tensor: torch.Tensor, addresses: list[int]) -> TensorSent:
        dtype, shape = tensor.dtype, tuple(tensor.shape)
        if tensor.layout is not torch.strided:
            return TensorSent(-1, 0, 0, 0, pickle.dumps(tensor.detach()), dtype, shape, ())
        storage = tensor.untyped_storage()
        address, nbytes, stride = storage.data_ptr(), storage.nbytes(), tensor.stride()
        begin = int(tensor.storage_offset()) * dtype.itemsize
        extent = extent_of(shape, stride, dtype.itemsize)
        end = min(begin + extent + NEIGHBOURS, nbytes)
        number = self._numbers.get(address)
        if number is None:
            number = self._numbers[address] = next(self._next)
        self._calls[address] = self._calls.get(address, 0) + 1
        addresses.append(address)
        data = string_at(address + begin, end - begin) if end > begin else b""
        return TensorSent(number, nbytes, begin, extent, data, dtype, shape, stride)

    def give_back(self, addresses: Iterable[int]) -> None:
        """A call is no longer open."""
        for address in addresses:
            self._calls[address] -= 1
            if not self._calls[address]:
                del self._calls[address], self._numbers[address]


def _options(options: Any) -> Any:
    """What the network reads of a call's options: a factor. All else is in the call's kind."""
    reduce_op = getattr(options, "reduceOp", None)
    if reduce_op is not None and "PREMUL_SUM" in str(reduce_op):
        return SimpleNamespace(reduceOp=reduce_op)
    return None


def take_in(tensors: Sequence[torch.Tensor], outs: Sequence[bytes]) -> None:
    """Write a call's outputs into its rank's tensors. What the program has freed meanwhile stays."""
    for tensor, data in zip(tensors, outs, strict=True):
        if tensor.layout is not torch.strided:
            tensor.detach().copy_(pickle.loads(data))
        elif data:
            end = tensor.storage_offset() * tensor.element_size() + len(data)
            if end <= tensor.untyped_storage().nbytes():
                memmove(tensor.data_ptr(), data, len(data))


def extent_of(shape: Sequence[int], stride: Sequence[int], itemsize: int) -> int:
    """Bytes from a tensor's first element to behind its last one, also if those that it names
    repeatedly (an expanded tensor) lay one behind the other.

    >>> extent_of((2, 2), (4, 1), 4), extent_of((3,), (0,), 4), extent_of((0, 2), (2, 1), 4)
    (24, 12, 0)
    """
    elements, last = 1, 0
    for size, step in zip(shape, stride, strict=True):
        elements *= size
        last += (size - 1) * step
    return max(elements, last + 1) * itemsize if elements else 0


# ------------------------------------------------------------------------------------ in the keeper


class Borrower:
    """The keeper's copies of the storages of one rank."""

    def __init__(self) -> None:
        self._storages: dict[int, torch.UntypedStorage] = {}
        self._ranges: dict[int, list[Range]] = {}  # by storage: what open calls write

    def borrow(
        self, method: Method, args: Any, tensors: Sequence[TensorSent]
    ) -> tuple[Any, list[torch.Tensor], list[torch.Tensor], list[Range]]:
        """A call's arguments with the keeper's tensors, those that it reads, those that it writes,
        and what `give_back` takes."""
        made = [self._tensor(sent) for sent in tensors]

        def received(value: Any) -> Any:
            if isinstance(value, Reference):
                return made[value.at]
            return [received(item) for item in value] if isinstance(value, list) else value

        own_args = received(args)
        ins, outs = method.tensors(own_args)
        written = {id(tensor) for tensor in outs}
        lent = []
        for tensor, sent in zip(made, tensors, strict=True):
            if sent.storage >= 0:
                extent = sent.extent if id(tensor) in written else 0
                lent.append(Range(sent.storage, sent.begin, sent.begin + extent))
                self._ranges[sent.storage].append(lent[-1])
        return own_args, ins, outs, lent

    def _tensor(self, sent: TensorSent) -> torch.Tensor:
        if sent.storage < 0:
            tensor: torch.Tensor = pickle.loads(sent.data)
            return tensor
        storage = self._storages.get(sent.storage)
        if storage is None:
            made: Any = torch.UntypedStorage
            storage = self._storages[sent.storage] = made(sent.nbytes)
            self._ranges[sent.storage] = []
        address = storage.data_ptr()
        covered = [(lent.begin, lent.end) for lent in self._ranges[sent.storage]]
        for begin, end in uncovered(sent.begin, sent.begin + len(sent.data), covered):
            memmove(address + begin, sent.data[begin - sent.begin : end - sent.begin], end - begin)
        offset = sent.begin // sent.dtype.itemsize
        return torch.empty(0, dtype=sent.dtype).set_(storage, offset, sent.shape, sent.stride)

    def give_back(self, lent: Iterable[Range]) -> None:
        """The rank knows that the call has ended: its own memory is the true one again."""
        for piece in lent:
            ranges = self._ranges[piece.storage]
            ranges.remove(piece)
            if not ranges:
                del self._ranges[piece.storage], self._storages[piece.storage]


def uncovered(begin: int, end: int, ranges: Iterable[tuple[int, int]]) -> Iterable[tuple[int, int]]:
    """The parts of begin..end that lie in none of these ranges.

    >>> list(uncovered(0, 10, [(4, 6), (8, 20)]))
    [(0, 4), (6, 8)]
    """
    for first, last in sorted(ranges):
        if first > begin and first < end:
            yield begin, first
        begin = max(begin, last)
    if begin < end:
        yield begin, end


def held(tensors: Iterable[torch.Tensor]) -> list[bytes]:
    """The bytes of a call's outputs, as `take_in` takes them."""
    return [_bytes(tensor) for tensor in tensors]


def _bytes(tensor: torch.Tensor) -> bytes:
    if tensor.layout is not torch.strided:
        return pickle.dumps(tensor)
    extent = extent_of(tensor.shape, tensor.stride(), tensor.element_size())
    begin = int(tensor.storage_offset()) * tensor.element_size()
    length = min(extent, tensor.untyped_storage().nbytes() - begin)
    return string_at(tensor.data_ptr(), length) if length > 0 else b""
