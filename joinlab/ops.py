"""The vocabulary of a Timeline's calls: the ops, the facts about each, and the text form of small
tensors' values.

It is separate from timeline.py because a rank's process must not import polars, whose threads do
not survive a fork.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from itertools import chain
from typing import Any, NotRequired, TypedDict, assert_never

MAX_VALUES = 16
"""Values are kept for calls whose tensors have at most this many elements in total."""

LONG_VALUES = 1 << 16
"""Most characters of one call's values as text; MAX_VALUES numbers take 500."""


class Op(StrEnum):
    """The collectives and point-to-point calls, under the names of torch.distributed."""

    ALL_REDUCE = "all_reduce"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    ALL_GATHER = "all_gather"
    GATHER = "gather"
    SCATTER = "scatter"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    BARRIER = "barrier"
    SEND = "send"
    RECV = "recv"

    @property
    def words(self) -> str:
        """How the documented traces spell it: "all-reduce"."""
        return self.value.replace("_", "-")


class Needs(Enum):
    """Whose contribution the result of a call depends on."""

    EVERYONE = "every rank needs every rank"
    FROM_ROOT = "every rank needs the root"
    AT_ROOT = "the root needs every rank; the others only contribute"
    PEER = "the receiver needs the sender"


@dataclass(frozen=True, slots=True)
class OpFacts:
    """Facts about an op, on every backend unless a line names one.

    needs     whose contribution the result depends on
    alike     columns of a call that must be equal on all ranks, besides op and origin
    reduces   it combines elements in their dtype, by a reduce_op: who receives gets all ranks' inputs combined, or all
              parts for it (for_each); the others move bytes
    rooted    it has a root
    pairwise  each rank's data goes straight to the rank that needs it (NCCL sends and receives); no other rank
              passes it on
    for_each  a rank's input has one part per rank; otherwise every receiver gets the whole input
    one_size  its tensors have the same size on all ranks: calls with the same dtype, shape, root and reduce_op agree;
              nothing else needs comparing
    empty_returns  gloo returns at once from a call whose tensors are empty
    """

    needs: Needs
    alike: tuple[str, ...]
    reduces: bool = False
    rooted: bool = False
    pairwise: bool = False
    for_each: bool = False
    one_size: bool = False
    empty_returns: bool = False

    @property
    def point_to_point(self) -> bool:
        """It has a peer instead of a group: send and recv."""
        return self.needs is Needs.PEER

    @property
    def mixes(self) -> bool:
        """Data of several ranks is combined on the way, so one rank's size affects more ranks than
        its receiver."""
        return self.needs in (Needs.EVERYONE, Needs.AT_ROOT) and not self.pairwise


_SUM = ("dtype", "shape", "reduce_op")

FACTS: Mapping[str, OpFacts] = {
    Op.ALL_REDUCE: OpFacts(Needs.EVERYONE, _SUM, reduces=True, one_size=True, empty_returns=True),
    Op.BROADCAST: OpFacts(Needs.FROM_ROOT, ("dtype", "shape", "root"), rooted=True, one_size=True),
    Op.REDUCE: OpFacts(
        Needs.AT_ROOT, (*_SUM, "root"), reduces=True, rooted=True, one_size=True, empty_returns=True
    ),
    # Ranks may contribute unevenly to an all_gather, so its shapes may differ.
    Op.ALL_GATHER: OpFacts(Needs.EVERYONE, ("dtype",), empty_returns=True),
    Op.GATHER: OpFacts(Needs.AT_ROOT, ("dtype", "shape", "root"), rooted=True, pairwise=True),
    Op.SCATTER: OpFacts(
        Needs.FROM_ROOT, ("dtype", "shape", "root"), rooted=True, pairwise=True, for_each=True
    ),
    Op.REDUCE_SCATTER: OpFacts(
        Needs.EVERYONE, _SUM, reduces=True, for_each=True, empty_returns=True
    ),
    Op.ALL_TO_ALL: OpFacts(Needs.EVERYONE, ("dtype",), pairwise=True, for_each=True),
    Op.BARRIER: OpFacts(Needs.EVERYONE, ()),
    Op.SEND: OpFacts(Needs.PEER, ("dtype", "shape"), pairwise=True),
    Op.RECV: OpFacts(Needs.PEER, ("dtype", "shape"), pairwise=True),
}
"""The facts of every op; look them up here instead of listing ops elsewhere."""

if FACTS.keys() != set(Op):
    raise TypeError(
        f"FACTS in {__name__} needs one line for every Op; differing: {sorted(FACTS.keys() ^ set(Op))}"
    )

POINT_TO_POINT = frozenset(op for op in Op if FACTS[op].point_to_point)
NEEDS_ALL = frozenset(op for op in Op if FACTS[op].needs is Needs.EVERYONE)
"""Collectives that complete nowhere before every rank has issued them."""
ONE_SIZE = frozenset(op for op in Op if FACTS[op].one_size)
COUNTERPART: Mapping[object, Op] = {Op.SEND: Op.RECV, Op.RECV: Op.SEND}
"""What meets a send, or a recv."""


def peer_text(op: object, peer: int | None, noun: str = "rank ") -> str:
    """The other rank of a send or recv, as a suffix; "" if it is any, and of other ops.

    >>> peer_text("recv", 3)
    ' from rank 3'
    """
    if peer is None or op not in COUNTERPART:
        return ""
    return f" {'to' if op == Op.SEND else 'from'} {noun}{peer}"


def op_of(name: str) -> Op | None:
    """The op of that name; None if it is unknown, as in files of other tools."""
    return Op(name) if name in FACTS else None


def waits_for(op: Op, me: int, root: int, everyone: Sequence[int]) -> Sequence[int]:
    """The ranks whose input the result at `me` depends on; arguments and result are all places, or
    all global ranks."""
    match FACTS[op].needs:
        case Needs.EVERYONE:
            return everyone
        case Needs.AT_ROOT:
            return everyone if me == root else (me,)
        case Needs.FROM_ROOT:
            return (root,)
        case Needs.PEER:
            return (me,)
        case _ as never:
            assert_never(never)


GLOO_THREADS = 2
"""Threads per rank that run a group's collectives on gloo, in the order of issue.

Source: Options::threads in ProcessGroupGloo.cpp, PyTorch v2.13.0: two per device, and there is one
device. So a third collective starts only after one of the first two, and a rank whose two threads
both wait for a peer makes no progress.
"""


class CallRow(TypedDict):
    """A row of `Timeline.calls`; timeline.CALL_COLUMNS says what each column holds.

    A producer may leave out columns that are null; a row read from a Timeline has them all.
    """

    rank: int
    group: str
    seq: int
    number: NotRequired[int | None]
    op: str
    origin: NotRequired[str | None]
    input: NotRequired[int | None]
    dtype: NotRequired[str | None]
    shape: NotRequired[Sequence[Sequence[int]] | None]
    reduce_op: NotRequired[str | None]
    root: NotRequired[int | None]
    peer: NotRequired[int | None]
    tag: NotRequired[int | None]
    splits: NotRequired[Sequence[Sequence[int]] | None]
    value_in: NotRequired[str | None]
    value_out: NotRequired[str | None]
    call_site: NotRequired[str | None]
    stack: NotRequired[Sequence[str] | None]
    enqueued_ns: NotRequired[int | None]
    started_ns: NotRequired[int | None]
    completed_ns: NotRequired[int | None]
    host_wait_begin_ns: NotRequired[int | None]
    host_wait_end_ns: NotRequired[int | None]
    error: NotRequired[str | None]


class SpanRow(TypedDict):
    """A row of `Timeline.spans`, see SPAN_COLUMNS."""

    rank: int
    name: str
    begin_ns: int
    input: NotRequired[int | None]
    end_ns: NotRequired[int | None]
    call_site: NotRequired[str | None]


class Stood(TypedDict):
    """Where one thread of a rank stood: its frames as in the column `stack`, the innermost last; and
    the exception that was on its way through them, in a `finally`, say."""

    thread: str
    frames: list[str]
    error: NotRequired[str]


class AboutNccl(TypedDict, total=False):
    """Facts about NCCL from a record of GPUs, beside its version.

    rings        by group of more than two ranks: their order on the ring, if NCCL's log has it
    coalesced    groups that issued several calls as one: a batch of sends and recvs, or several collectives
    captured     groups of which calls were captured into a CUDA graph: what its replays call is not recorded
    warps_apart  False: the GPUs are older than Volta, so the threads of a warp run in lockstep
    """

    rings: dict[str, list[int]]
    coalesced: list[str]
    captured: list[str]
    warps_apart: bool


class Source(TypedDict):
    """The text of a program, and its place in a file."""

    file: str
    first_line: int
    text: str


# finds inf, nan, True, None, 'text', (tuples) and 1j
_IS_NO_JSON = re.compile(r"[^][0-9.,e+ -]").search
_ENCODE = json.JSONEncoder(separators=(",", ":"), default=str).encode


def encode_values(tensors: Sequence[Sequence[object]]) -> str:
    """The text of value_in and value_out: one flat list per tensor. Exact for every int and float.

    >>> encode_values([[1.0], [2, 3]])
    '[[1.0],[2,3]]'
    """
    text = repr(tensors)
    if _IS_NO_JSON(text):  # rare: lists of ints and finite floats have the same repr in JSON
        return _ENCODE(list(map(list, tensors)))
    return text.replace(" ", "")


def decode_values(text: str | None) -> list[list[Any]] | None:
    """The flat lists that `encode_values` wrote; None for a null.

    >>> decode_values('[[1.0],[2,3]]')
    [[1.0], [2, 3]]
    """
    return None if text is None else json.loads(text)


def flat_values(text: str | None) -> list[Any]:
    """The values of all tensors that `encode_values` wrote; none for a null."""
    return list(chain.from_iterable(decode_values(text) or ()))


def counted(count: int, noun: str) -> str:
    """A number of things.

    >>> counted(1, "input"), counted(3, "input"), counted(0, "call")
    ('1 input', '3 inputs', '0 calls')
    """
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def group_names(
    groups: Mapping[str, Sequence[int]], descriptions: Mapping[str, str]
) -> dict[str, str]:
    """Display names of all groups but the first, which has all ranks: the program's description, or
    the ranks.

    descriptions  by group: the program's; torch's placeholders ("undefined", "default_pg") count as none

    >>> group_names({"0": [0, 1, 2], "9f3c": [0, 2], "77aa": [0, 2], "e1": [0]}, {"e1": "mesh_dp", "77aa": "undefined"})
    {'9f3c': 'ranks 0, 2', '77aa': 'ranks 0, 2 (second)', 'e1': 'mesh_dp'}
    """
    names: dict[str, str] = {}
    for name, ranks in list(groups.items())[1:]:
        numbers = ", ".join(
            map(str, ranks if len(ranks) <= _FEW else [*ranks[:3], "...", ranks[-1]])
        )
        desc = descriptions.get(name, "")
        if desc not in ("", "undefined", "default_pg"):
            label = desc
        else:
            label = f"{'ranks' if len(ranks) > 1 else 'rank'} {numbers}"
        namesakes = sum(name_before.partition(" (")[0] == label for name_before in names.values())
        names[name] = (
            label
            if not namesakes
            else f"{label} ({_NTH[namesakes] if namesakes < len(_NTH) else f'no. {namesakes + 1}'})"
        )
    return names


_FEW = 8
_NTH = ("first", "second", "third", "fourth")
