"""One rank's trace of torch.profiler (Kineto's Chrome trace, gzipped or not), read into the columns of a dump.

NCCL's calls are events "record_param_comms" of the host; their arguments name the collective, the group and its ranks
(torch/csrc/profiler/util.h, v2.13.0; libkineto/src/output_json.cpp). The kernels that carried them out have the same
"External id", and say when a call began and was complete. Gloo's calls are events "c10d::allreduce_" and so on, which
name no group; they are read where the job has one group.
"""

from __future__ import annotations

import json
import zlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, TypeGuard

from joinlab.errors import TimelineFileError
from joinlab.importers.dump import DTYPES, MAX_BYTES, OPS, Calls, Dump, Group, Kind, Texts, rank_in
from joinlab.ops import Op
from joinlab.recorder.rank_log import MOST_RANKS

_NAMES: Mapping[str, Op] = {
    "allreduce": Op.ALL_REDUCE,
    "allgather": Op.ALL_GATHER,
    "_allgather_base": Op.ALL_GATHER,
    "allgather_into_tensor_coalesced": Op.ALL_GATHER,
    "all_to_allv": Op.ALL_TO_ALL,
    "alltoall": Op.ALL_TO_ALL,
    "alltoall_base": Op.ALL_TO_ALL,
    "_reduce_scatter_base": Op.REDUCE_SCATTER,
    "recv_any_source": Op.RECV,
    **OPS,
}
"""Names that ProcessGroupNCCL.cpp (v2.13.0) gives record_param_comms, and c10d's Ops.cpp its operators."""

_GZIP = b"\x1f\x8b"


def looks_zipped(head: bytes) -> bool:
    """Whether the first bytes of a file are gzip's."""
    return head.startswith(_GZIP)


def unzipped_head(head: bytes) -> bytes:
    """What the first bytes of a file say, if they are gzip's: the first bytes of what it holds."""
    try:
        return zlib.decompressobj(wbits=31).decompress(head) if looks_zipped(head) else head
    except zlib.error:
        return head


def unzipped(path: Path, data: bytes) -> bytes:
    """What a gzip file holds, at most MAX_BYTES of it. Raises TimelineFileError, which names the file."""
    unpack = zlib.decompressobj(wbits=31)
    try:
        found = unpack.decompress(data, MAX_BYTES)
    except zlib.error as error:
        raise TimelineFileError(f"cannot open {str(path)!r}: it is damaged ({error}). Copy it again.") from error
    if unpack.unconsumed_tail or not unpack.eof:
        what = f"it unpacks to more than {MAX_BYTES:,} bytes" if unpack.unconsumed_tail else "it is cut short"
        raise TimelineFileError(f"cannot open {str(path)!r}: {what}. Profile fewer steps, or copy it again.")
    return found


def is_trace(content: object) -> TypeGuard[dict[str, Any]]:
    """Whether JSON is a profiler's trace."""
    return isinstance(content, dict) and isinstance(content.get("traceEvents"), list)


def check(path: Path, content: Mapping[str, Any], texts: Texts) -> Dump:
    """The calls in a trace that was read from `path`. Raises TimelineFileError, which names the file."""
    info = content.get("distributedInfo")
    rank = info.get("rank") if isinstance(info, dict) else rank_in(path.name)
    if not isinstance(rank, int) or not 0 <= rank < MOST_RANKS:
        raise TimelineFileError(
            f"cannot open {str(path)!r}: it does not say of which rank it is. "
            "Profile after init_process_group, or end its name in the rank."
        )
    try:
        events = [event for event in content["traceEvents"] if isinstance(event, dict)]
        groups, problems = _groups(info, events), list[str]()
        calls = _calls(int(content.get("baseTimeNanoseconds") or 0), events, groups, texts, problems)
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
        detail = f"{type(error).__name__}: {error}".partition("\n")[0][:160]
        raise TimelineFileError(f"cannot open {str(path)!r}: it is not of the known form ({detail}).") from error
    library = str(info.get("nccl_version") or "") if isinstance(info, dict) else ""
    told = tuple(f"{str(path)!r}: {problem}" for problem in problems)
    return Dump(rank, str(path), "profiler trace", library, calls, groups, {}, {}, told)


def _groups(info: object, events: Sequence[Mapping[str, Any]]) -> dict[str, Group]:
    """The groups that the trace's head lists, and those that only its events name."""
    listed = info.get("pg_config") if isinstance(info, dict) else None
    listed = json.loads(listed) if isinstance(listed, str) else listed
    found: dict[str, Group] = {}
    for one in listed or ():
        ranks = one.get("ranks") or ()
        found[str(one["pg_name"])] = (str(one.get("pg_desc") or ""), _ranks(list(ranks)))
    for event in events:
        if event.get("name") == "record_param_comms":
            told = event.get("args", {})
            name = str(told.get("Process Group Name", "0"))
            ranks = _ranks(told.get("Process Group Ranks"))
            if not found.get(name, ("", ()))[1]:
                found[name] = (str(told.get("Process Group Description") or ""), ranks)
    return found


def _ranks(text: object) -> tuple[int, ...]:
    """The ranks of a group as an event tells them; () where it names only the first 30 ("[0, 1, ..., 63]")."""
    try:
        ranks = json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return ()
    if not isinstance(ranks, list) or not all(type(rank) is int and 0 <= rank < MOST_RANKS for rank in ranks):
        return ()
    return tuple(ranks)


def _calls(
    base: int, events: Sequence[Mapping[str, Any]], groups: Mapping[str, Group], texts: Texts, problems: list[str]
) -> Calls:
    calls = list(_nccl(events)) or list(_gloo(events, groups, problems))
    kernels = {
        event["args"]["External id"]: event
        for event in events
        if event.get("cat") == "kernel" and str(event.get("name", "")).startswith("nccl") and event.get("args")
    }
    counts: dict[str, int] = {}
    found = Calls(array("i"), array("i"), *(array("q") for _ in range(5)))
    for event, backend, name, op, told in sorted(calls, key=lambda call: float(call[0]["ts"])):
        order = counts[name] = counts.get(name, 0) + 1
        kernel = kernels.get(told.get("External id"))
        ran = base + round(float(kernel["ts"]) * 1000) if kernel else 0
        number = told.get("Seq")
        peer = told.get("Dst Rank" if op is Op.SEND else "Src Rank") if op in (Op.SEND, Op.RECV) else None
        if peer is not None and not (type(peer) is int and -1 <= peer < MOST_RANKS):
            raise ValueError(f"the peer of a {op} is {peer!r:.40}")
        elements, dtype = told.get("In msg nelems"), told.get("dtype")
        dtype = None if dtype is None else DTYPES.get(dtype, str(dtype).lower())
        shape = texts.shape([] if elements is None else [[elements]])
        found.kind.append(texts.kind(Kind(name, backend, op.value, dtype, shape, peer, over=not kernels)))
        found.stack.append(-1)
        found.number.append(number if type(number) is int and number > 0 else order)
        found.seq.append(order - 1)
        found.enqueued_ns.append(base + round(float(event["ts"]) * 1000))
        found.started_ns.append(ran)
        found.completed_ns.append(ran + round(float(kernel["dur"]) * 1000) if kernel else 0)
    return found


_Call = tuple[Mapping[str, Any], str, str, Op, Mapping[str, Any]]
"""Its event, backend, group, op, and what the event's arguments tell."""


def _nccl(events: Sequence[Mapping[str, Any]]) -> Iterator[_Call]:
    for event in events:
        if event.get("name") != "record_param_comms":
            continue
        told = event.get("args", {})
        op = _NAMES.get(str(told.get("Collective name")))
        if op is not None:  # it is neither "init" nor "wait"
            yield event, "nccl", str(told.get("Process Group Name", "0")), op, told


def _gloo(events: Sequence[Mapping[str, Any]], groups: Mapping[str, Group], problems: list[str]) -> Iterator[_Call]:
    calls = []
    for event in events:
        title = str(event.get("name", ""))
        op = _NAMES.get(title.removeprefix("c10d::").rstrip("_")) if title.startswith("c10d::") else None
        if op is not None and event.get("cat") == "cpu_op":
            calls.append((event, op))
    if calls and len(groups) != 1:
        problems.append(
            f"{len(calls)} calls on gloo were left out: a trace does not say in which of {len(groups)} groups"
        )
        return
    for event, op in calls:
        told = event.get("args", {})
        sizes: list[Any] = next(iter(told.get("Input Dims", ())), [])
        flat = sizes[0] if sizes and isinstance(sizes[0], list) else sizes
        elements = 1
        for size in chain(flat):
            elements *= int(size)
        yield event, "gloo", next(iter(groups)), op, {"In msg nelems": elements}
