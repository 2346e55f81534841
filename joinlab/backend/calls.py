"""The calls that the ranks have issued so far, in the form in which the matching rules read them.

A rule is asked one question: given these calls and no others, which of them can never complete? It
is asked while the ranks still run, so the records are light: an `IssuedCall` is a plain tuple, and
nothing here touches a DataFrame.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from math import prod
from typing import Any, NamedTuple

from joinlab.ops import FACTS, GLOO_THREADS, POINT_TO_POINT, CallRow, Op

ITEM_BYTES: Mapping[str, int] = {
    **dict.fromkeys(("bool", "uint8", "int8", "float8_e4m3fn", "float8_e5m2"), 1),
    **dict.fromkeys(("float16", "bfloat16", "int16", "uint16"), 2),
    **dict.fromkeys(("float32", "int32", "uint32"), 4),
    **dict.fromkeys(("float64", "int64", "uint64", "complex64"), 8),
    "complex128": 16,
}
"""Bytes of one element, by dtype name."""


class IssuedCall(NamedTuple):
    """One issued call, with the fields that the rules need. `root` and `peer` are global ranks.

    completed  the backend is known to have completed it
    failed     the backend raised instead
    refused    it raised when it was handed the call; no other rank has seen anything of it
    void       gloo's thread raised before it sent anything: the call has used up its number, and that is all
    """

    rank: int
    group: str
    seq: int
    op: str
    dtype: str | None = None
    shape: Sequence[Sequence[int]] | None = None
    reduce_op: str | None = None
    root: int | None = None
    peer: int | None = None
    tag: int | None = None
    completed: bool = False
    failed: bool = False
    refused: bool = False
    void: bool = False

    @property
    def elements(self) -> int | None:
        """Elements of all its tensors together; None if the shapes are unknown."""
        return elements_of(self.shape)

    @property
    def nbytes(self) -> int | None:
        """Bytes of all its tensors together; None if a shape or dtype is unknown."""
        if self.shape is None or self.dtype is None:
            return None
        dtypes = self.dtype.split(",")
        if len(dtypes) == 1:
            dtypes *= len(self.shape)
        if len(dtypes) != len(self.shape) or any(dtype not in ITEM_BYTES for dtype in dtypes):
            return None
        return sum(
            ITEM_BYTES[dtype] * prod(shape) for dtype, shape in zip(dtypes, self.shape, strict=True)
        )


def elements_of(shape: Sequence[Sequence[int]] | None) -> int | None:
    """Elements of all tensors of these shapes together; None if the shapes are unknown."""
    if shape is None:
        return None
    return sum(map(prod, shape))


def is_list(call: IssuedCall, size: int) -> bool:
    """Whether the tensors of a reduce_scatter are the parts of one, and not several that are
    scattered as one call.

    Several have to be divided among the ranks, each; a list of parts has one for each rank. Both
    can be true of a record: then it is not known.
    """
    shapes = call.shape or ()
    return len(shapes) == size and any(not shape or shape[0] % size for shape in shapes)


def call_of(row: CallRow) -> IssuedCall:
    """The IssuedCall of a row of `Timeline.calls`; columns that are absent count as null.

    >>> call_of({"rank": 0, "group": "0", "seq": 3, "op": "all_reduce", "dtype": "float32", "shape": [[2]]}).nbytes
    8
    """
    error = row.get("error")
    late = (
        error is not None
        and error.startswith(TOO_LATE)
        and row["op"] in FACTS
        and FACTS[Op(row["op"])].reduces
    )
    return IssuedCall(
        row["rank"],
        row["group"],
        row["seq"],
        row["op"],
        row.get("dtype"),
        row.get("shape"),
        row.get("reduce_op"),
        row.get("root"),
        row.get("peer"),
        row.get("tag"),
        row.get("completed_ns") is not None or late,
        error is not None and not late,
        row["number"] is None if "number" in row else refuses(error or ""),
        _is_void(error or "") is not None,
    )


REFUSALS = (
    r"ProcessGroupGloo::",
    r"ProcessGroupNCCL does not support ",
    r"Tensors must be contiguous",
    r"input tensor has to be (contiguous|dense)",
    r"Tag must be nonnegative",
    r"invalid input tensor list size, must be world size",
    r"Input tensor data type is not supported for NCCL process group",
    r"Cannot use ReduceOp\.\w+ with (NCCL|[Bb]oolean inputs)",
    r"Could not run 'c10d::",
    r"NCCL error in: ProcessGroupNCCL.cpp, invalid argument",
    r"PyTorch 1\.9 has no ",
)
"""Prefixes of the messages with which a backend refuses a call before it sends any data.

invalidArgument, checkSingleTensor, checkTag and reduce_scatter in ProcessGroupGloo.cpp;
check_gpu_single_tensor, getNcclReduceOp and recvAnysource in ProcessGroupNCCL.cpp; getNcclDataType
in NCCLUtils.cpp; the dispatcher for a device that has no such backend (torch/csrc/distributed/c10d
and c10/core, PyTorch v2.13.0). The last two are the emulator's own words. What gloo's worker
refuses ("Cannot use ReduceOp.BAND with non-integral dtype") has used up its number.
"""

REFUSAL = f"^[^:]*: ({'|'.join(REFUSALS)})"
"""A regular expression: an error, type and message, that is a refusal."""
_is_refusal = re.compile(REFUSAL).match

_VOID = (
    r"Invalid scalar type",
    r"Cannot use ReduceOp\.\w+ with (non-integral dtype|Gloo)",
    r"(all_)?reduce does not support.on complex tensors",
    r"\[enforce fail at [^ ]*alltoallv?\.cc:(29|30|138)\]",
    r"Tensor's dim 0 does not divide equally across group size",
    r"Split sizes doesn't match total dim 0 size",
)
"""Prefixes of the messages with which a thread of gloo's fails before it sends any data.

getFunction and GENERATE_ALL_TYPES in ProcessGroupGlooDetail.hpp, AsyncAlltoallWork in
ProcessGroupGloo.cpp, PyTorch v2.13.0, and alltoall.cc and alltoallv.cc of the gloo that it pins.
"""
_is_void = re.compile(f"^[^:]*: ({'|'.join(_VOID)})").match


TOO_LATE = "RuntimeError: result type Float can't be cast to the desired output type"
"""How the error of an average of integers begins on gloo: AsyncReduceWork in ProcessGroupGloo.cpp,
v2.13.0, divides the sum when gloo has completed the call, as AsyncAllreduceWork does. A barrier
behind it raises it, too, and sent nothing.
"""


PEER_GONE = ("Connection closed by peer", "Connection reset by peer", "Read error", "Broken pipe")
"""Gloo's messages when the process at the other end is gone."""


OF_PYTHON = ("[Errno ", "ConnectionResetError", "BrokenPipeError")
"""Parts of Python's own errors in these words, of a download or a pipe, say: no other rank brings them about."""


NOT_MET = "Detected mismatch between collectives on ranks."
"""In the error of calls that torch compared under DETAIL, and refused since they differ."""


def is_peer_gone(text: str) -> bool:
    """Whether an error says that gloo lost the process at the other end.

    >>> is_peer_gone("RuntimeError: [pair.cc:553] Connection reset by peer")
    True
    >>> is_peer_gone("ConnectionResetError: [Errno 104] Connection reset by peer")
    False
    """
    of_python = any(part in text for part in OF_PYTHON)
    return not of_python and any(phrase in text for phrase in PEER_GONE)


def refuses(error: str) -> bool:
    """Whether an error, type and message, is a refusal.

    >>> refuses("ValueError: Tensors must be contiguous"), refuses("RuntimeError: Connection closed by peer")
    (True, False)
    """
    return _is_refusal(error) is not None


class Blocker(NamedTuple):
    """Why a call cannot complete: what `rank` did in its place. `seq` is None where it issued no
    such call.

    group  the group of that call; None: that of the blocked call
    """

    rank: int
    seq: int | None
    group: str | None = None


Blocked = Mapping[tuple[int, int], tuple[Blocker, ...]]
"""What a rule answers: (rank, seq) of every call of a group that cannot complete, and which ranks
are the reason."""

Key = tuple[int, str, int]
"""A call: rank, group, seq."""

Pair = tuple[int, int, int]
"""Sender, receiver, tag."""


@dataclass(frozen=True, slots=True)
class RuleContext:
    """Facts about a run that a rule needs besides its calls.

    transport  over "sockets" NCCL notices that a peer has ended, and raises instead of hanging
    backends   the backend of each group whose backend differs from the run's
    eager      groups whose communicator was made with them
    one_node   all ranks run on one machine
    streamed   on NCCL, calls that never completed and that the stream of their rank was made to wait for, by the first
               call that the rank issued then: that one and all later ones of the rank wait for them on its stream
    rings      on NCCL, by group: its ranks in the order of the ring, where NCCL's log told it
    version    of NCCL, "2.29.7"
    coalesced  groups in which calls were issued as one; None: not known
    captured   groups of which a CUDA graph has calls: nothing is known of them, since its replays are not recorded
    warps_apart  False: on the GPUs the threads of a warp wait for each other, as before Volta
    threads    of each rank and group on gloo
    sends_wait on NCCL, sends that only some machines buffer wait for their recvs, as the emulator's do
    """

    transport: str | None = None
    backends: Mapping[str, str] = field(default_factory=dict)
    eager: Collection[str] = ()
    one_node: bool = True
    streamed: Mapping[Key, Sequence[Key]] = field(default_factory=dict)
    rings: Mapping[str, Sequence[int]] = field(default_factory=dict)
    version: str | None = None
    coalesced: Collection[str] | None = None
    captured: Collection[str] = ()
    warps_apart: bool = True
    threads: int | None = None
    sends_wait: bool = False


def contradicted(blocked: Blocked, calls: Iterable[IssuedCall]) -> bool:
    """Whether one of these calls is known to be complete that a rule takes for blocked."""
    return any(call.completed and (call.rank, call.seq) in blocked for call in calls)


@dataclass(frozen=True, slots=True)
class GroupCalls:
    """The calls of one process group.

    name         of the group
    ranks        its global ranks, in the order of the group
    collectives  per rank, in order of issue: the k-th of one rank stands beside the k-th of another
    sends        per (sender, receiver, tag), in order of issue
    recvs        the same; the sender is -1 where any source is accepted
    failed       whether the backend raised in one of them: then its state is no longer known
    setting      where its ranks ran
    held         by (rank, seq): calls that were issued but never begin, and the stuck call that their stream waits for
    """

    name: str
    ranks: tuple[int, ...]
    collectives: dict[int, list[IssuedCall]]
    sends: dict[Pair, list[IssuedCall]]
    recvs: dict[Pair, list[IssuedCall]]
    failed: bool
    setting: RuleContext = field(default_factory=RuleContext)
    held: Blocked = field(default_factory=dict)

    @property
    def eager(self) -> bool:
        """Whether its communicator was made with the group, as init_process_group(device_id=...)
        does on NCCL."""
        return self.name in self.setting.eager

    @property
    def ring(self) -> tuple[int, ...]:
        """On NCCL its ranks in the order of the ring; (): not known."""
        ring = tuple(self.setting.rings.get(self.name, ()))
        if sorted(ring) == sorted(self.ranks):
            return ring
        return ()

    @property
    def version(self) -> tuple[int, ...]:
        """NCCL's, as numbers; (): not known."""
        parts = (self.setting.version or "").split(".")
        if all(map(str.isdecimal, parts)):
            return tuple(map(int, parts))
        return ()

    @property
    def uncoalesced(self) -> bool:
        """Whether each call was issued by itself: no batch of sends and recvs, no collectives
        coalesced into one."""
        return self.setting.coalesced is not None and self.name not in self.setting.coalesced

    def reached(self) -> GroupCalls:
        """Without the calls that the backend refused: those take no place in the order on any
        rank."""
        return self._only(lambda call: not call.refused)

    def begun(self) -> GroupCalls:
        """Without the calls that are held: their hosts have issued them, and no stream comes to
        them."""
        if self.held:
            return self._only(lambda call: (call.rank, call.seq) not in self.held)
        return self

    def of_pairs(self) -> Iterator[IssuedCall]:
        """All sends and recvs."""
        for side in (self.sends, self.recvs):
            yield from chain.from_iterable(side.values())

    def _only(self, condition: Callable[[IssuedCall], bool]) -> GroupCalls:
        lanes = {rank: list(filter(condition, lane)) for rank, lane in self.collectives.items()}

        def chosen(side: dict[Pair, list[IssuedCall]]) -> dict[Pair, list[IssuedCall]]:
            calls_of = {pair: list(filter(condition, calls)) for pair, calls in side.items()}
            return {pair: calls for pair, calls in calls_of.items() if calls}

        return replace(self, collectives=lanes, sends=chosen(self.sends), recvs=chosen(self.recvs))


ANY_SOURCE = -1


def setting_of(meta: Mapping[str, Any]) -> RuleContext:
    """What a Timeline's meta says of its run."""
    hosts = (meta.get("clock") or {}).get("hosts") or {}
    backends, eager = meta.get("group_backends") or {}, meta.get("eager_groups") or ()
    streamed: dict[Key, list[Key]] = {}
    for rank, group, seq, first_group, first in meta.get("stream_waits") or ():
        streamed.setdefault((rank, first_group, first), []).append((rank, group, seq))
    nccl, versions = meta.get("nccl") or {}, meta.get("versions") or {}
    emulated = meta.get("engine") == "emulated"
    return RuleContext(
        meta.get("transport"),
        backends,
        eager,
        # Ranks that share a GPU over sockets are hosts of their own to NCCL, which then may choose
        # other algorithms.
        len(hosts) < 2 and meta.get("transport") != "sockets",
        streamed,
        nccl.get("rings") or {},
        versions.get("nccl"),
        nccl.get("coalesced", () if emulated else None),
        nccl.get("captured", ()),
        nccl.get("warps_apart", True),
        GLOO_THREADS if meta.get("engine") in ("emulated", "launched", "recorded") else None,
        emulated,
    )


def by_group(
    calls: Iterable[IssuedCall | CallRow],
    groups: Mapping[str, Iterable[int]],
    setting: RuleContext | None = None,
) -> dict[str, GroupCalls]:
    """Sort `calls`, each rank's in its order of issue, into their groups.

    Calls of a group that `groups` does not name, or of a rank outside it, make that group unknown:
    it is left out.
    """
    by_name = {
        name: GroupCalls(name, tuple(ranks), {}, {}, {}, False) for name, ranks in groups.items()
    }
    lanes = {
        name: {rank: list[IssuedCall]() for rank in group.ranks} for name, group in by_name.items()
    }
    failed: set[str] = set()
    foreign: set[str] = set()
    for call in calls:
        if not isinstance(call, IssuedCall):
            call = call_of(call)
        name = call.group
        if name not in lanes or call.rank not in lanes[name]:
            foreign.add(name)
            continue
        if call.failed and not call.refused and not call.void:
            failed.add(name)
        if call.op in POINT_TO_POINT:
            _add_pair(by_name[name], call)
        else:
            lanes[name][call.rank].append(call)
    context = setting or RuleContext()
    groups_known = {}
    for name, group in by_name.items():
        if name not in foreign:
            groups_known[name] = GroupCalls(
                name, group.ranks, lanes[name], group.sends, group.recvs, name in failed, context
            )
    return groups_known


def _add_pair(group: GroupCalls, call: IssuedCall) -> None:
    peer = ANY_SOURCE if call.peer is None else call.peer
    tag = call.tag or 0
    if call.op == Op.SEND:
        group.sends.setdefault((call.rank, peer, tag), []).append(call)
    else:
        group.recvs.setdefault((peer, call.rank, tag), []).append(call)
