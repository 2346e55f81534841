"""One rank's trace of torch.profiler (Kineto's Chrome trace, gzipped or not), read into the columns
of a dump.

NCCL's calls are events "record_param_comms" of the host; their arguments name the collective, the
group and its ranks (torch/csrc/profiler/util.h and util.cpp, saveNcclMeta;
libkineto/src/output_json.cpp). A call's kernel has the same "External id", and gives its start and
end; the kernels of a batch have another id, that of the batch's end. Gloo's calls are events such
as "c10d::allreduce_", which name no group, and are left out. The arguments, by the first release
whose util.h has them:

    2.4     Collective name, dtype, In msg nelems, Group size, Process Group Name and Description, Process Group Ranks
            (the first 30, then "..."), and for evenly spaced ranks, Global rank start and stride
    2.5     Src Rank, Dst Rank: global ranks
    2.12    Seq: the number of the collective, or of the send or recv

A trace is read event by event, and few events are kept. A truncated trace, as a killed job leaves
it, is read up to its end.
"""

from __future__ import annotations

import json
import re
import zlib
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from joinlab.errors import TimelineFileError
from joinlab.jobs.dump import (
    DTYPES,
    MAX_BYTES,
    Dump,
    DumpCalls,
    Group,
    Kind,
    Texts,
    known_format,
    op_of,
    rank_in,
    unknown,
)
from joinlab.ops import POINT_TO_POINT, Op
from joinlab.program.log_events import MOST_RANKS, is_ranks

_GZIP = b"\x1f\x8b"


def looks_zipped(head: bytes) -> bool:
    return head.startswith(_GZIP)


def unzipped_head(head: bytes) -> bytes:
    """The first bytes of a file, unzipped if they are gzip's."""
    try:
        if looks_zipped(head):
            return zlib.decompressobj(wbits=31).decompress(head)
        return head
    except zlib.error:
        return head


def unzipped(path: Path, data: bytes) -> tuple[bytes, bool]:
    """The content of a gzip file, and whether it is complete: the file may be truncated.

    Raises TimelineFileError, which names the file, if it is damaged or unpacks to more than
    MAX_BYTES.
    """
    unpack = zlib.decompressobj(wbits=31)
    try:
        content = unpack.decompress(data, MAX_BYTES)
    except zlib.error as error:
        raise TimelineFileError(
            f"cannot open {str(path)!r}: it is damaged ({error}). Copy it again."
        ) from error
    if unpack.unconsumed_tail:
        problem = f"it unpacks to more than {MAX_BYTES:,} bytes"
        raise TimelineFileError(f"cannot open {str(path)!r}: {problem}. Profile fewer steps.")
    return content, unpack.eof


_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_BETWEEN = re.compile(r"[\s,]*")


def is_trace(data: bytes) -> bool:
    return data.lstrip()[:1] == b"{" and _EVENTS.search(data) is not None


def parsed(data: bytes) -> tuple[dict[str, Any], str | None]:
    """A trace with only the events about calls, and a sentence if it is damaged or truncated.

    Raises ValueError or RecursionError if its head is not JSON.
    """
    match = _EVENTS.search(data)
    assert match is not None
    content = json.loads(data[: match.start()].rstrip().rstrip(b",") + b"}")
    text = str(memoryview(data)[match.end() :], errors="replace")  # avoids a copy of the bytes
    events, position, count, read = [], 0, 0, json.JSONDecoder().raw_decode
    broken = None
    while True:
        position = _BETWEEN.match(text, position).end()  # type: ignore[union-attr]
        if text[position : position + 1] == "]":
            with suppress(ValueError, RecursionError):
                content |= json.loads("{" + text[position + 1 :].lstrip(" \n\r\t,"))
            break
        try:
            event, position = read(text, position)
        except (ValueError, RecursionError):
            broken = (
                f"it is cut short or damaged after {count:,} events: calls after them are missing"
            )
            break
        count += 1
        if isinstance(event, dict) and _tells(event):
            events.append(event)
    return {**content, "traceEvents": events}, broken


def _tells(event: Mapping[str, object]) -> bool:
    name = event.get("name")
    return type(name) is str and (
        name == "record_param_comms" or name.startswith("c10d::") or _is_kernel(event)
    )


def _is_kernel(event: Mapping[str, object]) -> bool:
    return (
        event.get("cat") == "kernel"
        and str(event["name"]).startswith("nccl")
        and isinstance(event.get("args"), dict)
    )


def check(path: Path, data: bytes, texts: Texts) -> Dump:
    """The calls in the trace `data`, the bytes of `path`. TimelineFileError names the file."""
    with known_format(path):
        content, broken = parsed(data)
        info = content.get("distributedInfo")
        info = info if isinstance(info, dict) else {}
        rank = info.get("rank", _rank_in(path.name))
        if type(rank) is not int or not 0 <= rank < MOST_RANKS:
            raise TimelineFileError(
                f"cannot open {str(path)!r}: it does not name its rank. "
                "Profile after init_process_group, or end the file name in the rank."
            )
        problems = [broken] if broken else []
        events = content["traceEvents"]
        groups = _groups(info, events)
        calls = _calls(
            int(content.get("baseTimeNanoseconds") or 0), events, info, groups, texts, problems
        )
    library = str(info.get("nccl_version") or "")
    return Dump(rank, str(path), FORM, library, calls, groups, {}, {}, tuple(problems))


FORM = "profiler trace"


def _rank_in(name: str) -> int | None:
    """The rank in a trace's file name.

    >>> _rank_in("host_r3.1795307244663.pt.trace.json"), _rank_in("rank12_trace.json"), _rank_in("trace_0.json.gz")
    (3, 12, 0)
    """
    match = re.search(r"(?:^|[^a-z])r(?:ank)?[_-]?(\d{1,7})(?!\d)", name, re.IGNORECASE)
    return int(match[1]) if match else rank_in(name.removesuffix(".gz"))


def _groups(info: Mapping[str, Any], events: Sequence[Mapping[str, Any]]) -> dict[str, Group]:
    """The groups in the trace's head, and those that only its events name."""
    listed = info.get("pg_config")
    listed = json.loads(listed) if isinstance(listed, str) else listed
    groups: dict[str, Group] = {}
    for item in listed or ():
        ranks = item.get("ranks") or ()
        groups[str(item["pg_name"])] = (str(item.get("pg_desc") or ""), _ranks(list(ranks)))
    for event in events:
        if event["name"] == "record_param_comms":
            arguments = event.get("args", {})
            name = str(arguments.get("Process Group Name", "0"))
            if not groups.get(name, ("", ()))[1]:
                groups[name] = (
                    str(arguments.get("Process Group Description") or ""),
                    _ranks_in(arguments),
                )
    return groups


def _ranks_in(arguments: Mapping[str, object]) -> tuple[int, ...]:
    """The ranks of the group of an event; () where it names only the first 30 ("[0, 1, ...]") of
    uneven places."""
    ranks = _ranks(arguments.get("Process Group Ranks"))
    if ranks:
        return ranks
    match list(map(arguments.get, ("Global rank start", "Global rank stride", "Group size"))):
        case [int(first), int(step), int(size)] if step > 0 and 0 < size <= MOST_RANKS:
            return _ranks(list(range(first, first + step * size, step)))
        case _:
            return ()


def _ranks(text: object) -> tuple[int, ...]:
    try:
        ranks = json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return ()
    return tuple(ranks) if is_ranks(ranks) else ()


def _calls(
    base: int,
    events: Sequence[Mapping[str, Any]],
    info: Mapping[str, object],
    groups: Mapping[str, Group],
    texts: Texts,
    problems: list[str],
) -> DumpCalls:
    calls = list(_nccl(events, info, problems))
    operators = sum(event["name"].startswith("c10d::") for event in events)
    if operators and not calls:
        problems.append(
            f"{operators} calls were left out: traces of gloo, and of torch before 2.4, do not name groups"
        )
    calls.sort(key=lambda call: float(call[0]["ts"]))
    kernels = {event["args"].get("External id"): event for event in events if _is_kernel(event)}
    ids = [arguments.get("External id") for *_, arguments in calls]
    last_alone = max((float(kernels[id]["ts"]) for id in kernels.keys() - set(ids)), default=0.0)
    reached = {
        call[2]: index
        for index, (call, id) in enumerate(zip(calls, ids, strict=True))
        if id in kernels
    }
    counts: dict[str, int] = {}
    nth: dict[tuple[str, bool], int] = {}
    columns = [array(code) for code in "iiqqqqqq"]
    for index, (event, backend, name, op, arguments) in enumerate(calls):
        order = counts[name] = counts.get(name, 0) + 1
        kernel = kernels.get(ids[index])
        ran = base + round(float(kernel["ts"]) * 1000) if kernel else 0
        pair, recorded = op in POINT_TO_POINT, arguments.get("Seq")
        counted = nth[name, pair] = nth.get((name, pair), 0) + 1
        number = recorded if type(recorded) is int and recorded > 0 else counted
        peer = arguments.get("Dst Rank" if op is Op.SEND else "Src Rank") if pair else None
        if peer is not None and not (type(peer) is int and -1 <= peer < MOST_RANKS):
            raise ValueError(f"the peer of a {op} is {peer!r:.40}")
        dtype = arguments.get("dtype")
        if dtype is not None:
            dtype = DTYPES.get(dtype, str(dtype).lower())
        # A call without its own kernel is over if a later kernel of its group ran, or a later
        # kernel of a batch.
        over = not kernels or index <= reached.get(name, -1) or float(event["ts"]) < last_alone
        elements = arguments.get("In msg nelems")
        shape = texts.shape(arguments.get("shape", []) if elements is None else [[elements]])
        kind = texts.kind(Kind(name, backend, op.value, dtype, shape, peer, over))
        numbers = (0, number) if pair else (number, 0)
        enqueued = base + round(float(event["ts"]) * 1000)
        ended = ran + round(float(kernel["dur"]) * 1000) if kernel else 0
        row = (kind, -1, *numbers, order - 1, enqueued, ran, ended)
        for column, value in zip(columns, row, strict=True):
            column.append(value)
    return DumpCalls(*columns)


_Call = tuple[Mapping[str, Any], str, str, Op, Mapping[str, Any]]
"""Its event, backend, group, op, and the event's arguments."""


def _nccl(
    events: Sequence[Mapping[str, Any]], info: Mapping[str, object], problems: list[str]
) -> Iterator[_Call]:
    """NCCL's calls. Before 2.4 events may name no group: calls in groups smaller than the job are
    left out."""
    size = info.get("world_size")
    unknown_titles: Counter[str] = Counter()
    nameless = 0
    for event in events:
        if event["name"] != "record_param_comms":
            continue
        arguments = event.get("args", {})
        title = str(arguments.get("Collective name"))
        op = op_of(title)
        if op is None:
            unknown_titles[title] += title not in ("init", "wait", "None")
        elif (
            "Process Group Name" not in arguments
            and size is not None
            and arguments.get("Group size", size) != size
        ):
            nameless += 1
        else:
            yield event, "nccl", str(arguments.get("Process Group Name", "0")), op, arguments
    problems += unknown(+unknown_titles)
    if nameless:
        problems.append(
            f"{nameless} calls were left out: they do not say in which of the smaller groups they are"
        )
