"""One rank's dump of PyTorch's flight recorder, NCCL's or gloo's, pickle or JSON, read into
columns.

The format is that of c10d::FlightRecorder (torch/csrc/distributed/c10d: TraceUtils.h, later
NCCLUtils.cpp, later FlightRecorder.cpp, now FlightRecorderDetail.hpp). Its versions, the PyTorch
releases that write them, and the additions of each (tests/jobs/test_dump_versions.py has their fields,
and names the sources):

    2.4    2.5, 2.6, 2.7  all entries or only active ones; JSON: no frames, 0 for an unknown time, the numbers of
                          pg_status as text. Before 2.6, a batch of sends may count as a collective: its numbers then
                          differ between ranks, and are shown unchanged
    2.6    -              nccl_version
    2.7    -              an entry for each call of a batch of collectives (_split_batches)
    2.9    2.8            thread_id, thread_name; gloo
    2.10   2.9 to 2.13    comm_lib_version in place of nccl_version; since 2.10 no entries of before a reset

No source of 2.5 and 2.8 was found; earlier versions (PyTorch 2.4 and before) count differently and
are refused. The fields of a dump, and their use in a Timeline:

    collective_seq_id   the k-th collective of the group is number k + 1. A ring buffer drops its oldest entries, and a
                        dump of active entries leaves out completed ones: `meta["skipped"]` counts them
    op_id               counts every call of the group, send and recv included: `seq` is op_id - 1
    pg_status           the last collectives enqueued and completed, also of groups without an entry:
                        `meta["progress"]`. Its key is the number that the process gave the group, not the name
    state, retired      a gloo entry is never "completed", only retired, at a time that is not in the dump. Then
                        `completed_ns` is the time of enqueueing, a lower bound, and `meta["clock"]` says so. An NCCL
                        entry that is retired and not completed has timed out (FlightRecorder.hpp, Entry)

A dump does not say how its rank ended: every ending is unknown, in the oldest pending call.
"""

from __future__ import annotations

import ast
import json
import marshal
import re
from array import array
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from joinlab.errors import TimelineFileError
from joinlab.jobs import safe_pickle
from joinlab.ops import POINT_TO_POINT, Op
from joinlab.program.labels import Frame
from joinlab.program.log_events import MOST_RANKS, is_ranks

_Key = TypeVar("_Key", bound=Hashable)

MAX_BYTES = 1 << 29
"""A larger file is refused unread. A ring buffer of 20,000 entries with their stacks takes about
100 MB."""

_OPS = {op.value.replace("_", ""): op for op in Op} | {"allreducebarrier": Op.BARRIER}

_NOISE = re.compile(
    r"_|base$|coalesced$|single$|oop$|sparse|into_?tensor|(?<=scatter_)tensor|any_?source$"
)
"""The parts in which names of one op differ."""


def op_of(name: str) -> Op | None:
    """The op of a name in a dump, a trace or a log; None if it moves no data or is unknown.

    Dumps: torch/distributed/flight_recorder/components/types.py (COLLECTIVES, P2P), v2.13.0,
    and ProcessGroupGloo.cpp; traces: ProcessGroupNCCL.cpp, and Ops.cpp for gloo; logs: c10d's
    OpType, NCCL's own.

    >>> op_of("_REDUCE_SCATTER_BASE"), op_of("AllReduce"), op_of("all_to_allv"), op_of("COALESCED")
    (<Op.REDUCE_SCATTER: 'reduce_scatter'>, <Op.ALL_REDUCE: 'all_reduce'>, <Op.ALL_TO_ALL: 'all_to_all'>, None)
    """
    plain = _NOISE.sub("", name.lower())
    return _OPS.get(plain) or _OPS.get(plain.removesuffix("v"))


_BRACKETS = frozenset({"coalesced", "split"})
"""Entries that move no data: the end of a batch whose calls have their own entries, and the
creation of a group."""

DTYPES: Mapping[str, str] = {
    "Bool": "bool",
    "Byte": "uint8",
    "Char": "int8",
    "Short": "int16",
    "Int": "int32",
    "Long": "int64",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "Float": "float32",
    "Double": "float64",
    "ComplexHalf": "complex32",
    "ComplexFloat": "complex64",
    "ComplexDouble": "complex128",
}
"""torch's names by c10::ScalarType's (torch/headeronly/core/ScalarType.h), unless they are the same
in lower case."""

_NAME = re.compile(r"(?:(?P<backend>\w+):)?(?P<op>\w+)(?: (?P<own>\d+)(?:->|<-)(?P<peer>\d+))?$")
_LAST_NUMBER = re.compile(r"(\d+)\D*$")


class Kind(NamedTuple):
    """Properties that calls share. A job of 500,000 calls has a few hundred kinds, so each call is
    a row of numbers.

    shape  index into Texts.shapes
    peer   global rank
    over   it completed, perhaps at an unknown time
    """

    group: str
    backend: str
    op: str
    dtype: str | None
    shape: int
    peer: int | None
    over: bool


@dataclass(frozen=True, slots=True)
class DumpCalls:
    """The calls of a dump, oldest first, 60 bytes each. A time of 0 is unknown.

    kind    index into Texts.kinds
    stack   index into Texts.stacks; -1: none was recorded
    number  collective_seq_id; a send or recv has that of the collective before it
    paired  p2p_seq_id, the own number of a send or recv; 0: unknown
    seq     order of issue within the group
    """

    kind: array[int]
    stack: array[int]
    number: array[int]
    paired: array[int]
    seq: array[int]
    enqueued_ns: array[int]
    started_ns: array[int]
    completed_ns: array[int]

    def __len__(self) -> int:
        return len(self.kind)


Group = tuple[str, tuple[int, ...]]
"""Description and global ranks of a process group."""


@dataclass(frozen=True, slots=True)
class Dump:
    """One rank's dump, checked.

    form      the tool that wrote it, and its version
    library   version of NCCL; "" if unknown
    groups    by name; a group that only entries name has no ranks
    status    enqueued and completed collectives, by the number that the process gave the group
    numbers   names of the groups by that number, if entries have both
    problems  sentences about omitted parts
    """

    rank: int
    file: str
    form: str
    library: str
    calls: DumpCalls
    groups: dict[str, Group]
    status: dict[str, dict[str, int]]
    numbers: dict[str, str]
    problems: tuple[str, ...]


def looks_like_dump(head: bytes) -> bool:
    """Whether a file starts like a pickle; torch writes protocol 2."""
    return head[:1] == b"\x80" and head[1:2] in b"\x02\x03\x04\x05"


def rank_in(name: str) -> int | None:
    """The rank at the end of a dump's file name.

    >>> rank_in("nccl_trace_rank_12"), rank_in("fr_0.json"), rank_in("dump")
    (12, 0, None)
    """
    match = _LAST_NUMBER.search(Path(name).name)
    if match and len(match[1]) < 8 and int(match[1]) < MOST_RANKS:
        return int(match[1])
    return None


def around_rank(name: str) -> tuple[str, str]:
    """The parts of a file's name before and after the rank: the same for all dumps of a job.

    >>> around_rank("nccl_trace_rank_12"), around_rank("fr_0.json")
    (('nccl_trace_rank_', ''), ('fr_', '.json'))
    """
    match = _LAST_NUMBER.search(name)
    if match:
        return (name[: match.start(1)], name[match.end(1) :])
    return (name, "")


def parsed(path: Path, data: bytes) -> object:
    """The plain data in `data`, the bytes of `path`. TimelineFileError names the file."""
    try:
        if looks_like_dump(data):
            return safe_pickle.load(data)
        return json.loads(data)
    except safe_pickle.UNREADABLE as error:
        detail = str(error).partition("\n")[0] or type(error).__name__
        raise _refused(
            path, f"it cannot be read ({detail})", "Copy it again from where it was written."
        ) from error


def check(path: Path, content: object, texts: Texts) -> Dump:
    """The Dump with the `content` read from `path`. TimelineFileError if a part is not in PyTorch's
    format."""
    if not isinstance(content, dict) or not {"version", "pg_config"} <= content.keys():
        raise _refused(
            path,
            "it is not a flight recorder dump",
            "A dump has a version, a pg_config and entries.",
        )
    version = str(content["version"])
    if version.partition(".")[0] != "2" or version in ("2.0", "2.1", "2.2", "2.3"):
        raise _refused(
            path,
            f"its version is {version!r:.40}",
            "Versions 2.4 to 2.10 are known (PyTorch 2.5 and later).",
        )
    rank = rank_in(path.name)
    if rank is None:
        raise _refused(
            path, "its name does not end in a rank", "Name it as PyTorch does: nccl_trace_rank_3."
        )
    with known_format(path):
        groups = _groups(content["pg_config"])
        status = _status(content.get("pg_status") or {})
        entries = _entries(content.get("entries", []))
        problems: list[str] = []
        try:
            calls, numbers = _calls(entries, groups, texts, problems)
        except KeyError:  # older versions lack some fields
            entries = [{**_ABSENT, **entry} for entry in entries]
            problems.clear()
            calls, numbers = _calls(entries, groups, texts, problems)
    library = str(content.get("comm_lib_version") or content.get("nccl_version") or "")
    form = f"flight recorder {version}"
    return Dump(rank, str(path), form, library, calls, groups, status, numbers, tuple(problems))


@contextmanager
def known_format(path: Path) -> Iterator[None]:
    """Raise TimelineFileError for the exceptions that damaged or hostile dumps and traces cause."""
    try:
        yield
    except TimelineFileError:
        raise
    except (*safe_pickle.UNREADABLE, SyntaxError) as error:
        detail = f"{type(error).__name__}: {error}".partition("\n")[0][:160]
        raise _refused(path, f"its format is unknown ({detail})", "Copy it again.") from error


def _entries(entries: object) -> list[dict[str, object]]:
    if not isinstance(entries, list) or not set(map(type, entries)) <= {dict}:
        raise TypeError("its entries are not a list of dicts")
    return entries


def _plain(text: object) -> object:
    """A text parsed as JSON or as a Python literal, without evaluating it; other values
    unchanged."""
    if not isinstance(text, str):
        return text
    try:
        return json.loads(text)
    except ValueError:
        return ast.literal_eval(text)


def _groups(config: object) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Description and global ranks of each group, by name. The empty name is the default group,
    "0"."""
    config = _plain(config)
    if not isinstance(config, dict):
        raise TypeError(f"pg_config is {type(config).__name__}")
    groups = {}
    for name, group in config.items():
        groups[str(name) or "0"] = (str(group.get("desc") or ""), _ranks(str(group["ranks"])))
    return groups


@lru_cache(1024)
def _ranks(text: str) -> tuple[int, ...]:
    """The ranks of a group: the same text in the dumps of all of them."""
    ranks = _plain(text)
    if not is_ranks(ranks):
        raise ValueError(f"the ranks of a group are {text[:80]!r}")
    return tuple(ranks)


def _status(status: object) -> dict[str, dict[str, int]]:
    status = _plain(status)
    if not isinstance(status, dict):
        raise TypeError(f"pg_status is {type(status).__name__}")
    return {
        str(number): {key: int(value) for key, value in counts.items()}
        for number, counts in status.items()
    }


def _calls(
    entries: Sequence[dict[str, Any]], groups: dict[str, Group], texts: Texts, problems: list[str]
) -> tuple[DumpCalls, dict[str, str]]:
    """The calls, and the names of the groups by the process's number for them."""
    codes, fields = _coded_fields(entries, texts)
    if any(
        (entry_fields.backend == "nccl" and entry_fields.op in POINT_TO_POINT)
        or entry_fields.title.endswith("coalesced")
        for entry_fields in fields
    ):
        entries = _split_batches(entries, problems)
        codes, fields = _coded_fields(entries, texts)
    got = {code for code, entry_fields in enumerate(fields) if _gets(entry_fields)}
    if got:
        entries = [
            {
                **entry,
                "input_sizes": entry.get("output_sizes", ()),
                "input_dtypes": entry.get("output_dtypes", ()),
            }
            if code in got
            else entry
            for entry, code in zip(entries, codes, strict=True)
        ]
        codes, fields = _coded_fields(entries, texts)
    for entry_fields in fields:
        groups.setdefault(entry_fields.group, (entry_fields.words, ()))
    left_out = {
        code for code, entry_fields in enumerate(fields) if not _is_known(entry_fields, groups)
    }
    if left_out:
        titles = Counter(fields[code].title for code in codes if code in left_out)
        problems += unknown(
            {title: n for title, n in titles.items() if _kind(title)[0] not in _BRACKETS}
        )
        entries = [
            entry for entry, code in zip(entries, codes, strict=True) if code not in left_out
        ]
        codes = array("i", [code for code in codes if code not in left_out])
    kinds = [
        -1 if code in left_out else texts.kind(_kind_of(entry_fields, groups))
        for code, entry_fields in enumerate(fields)
    ]
    calls = DumpCalls(
        kind=array("i", map(kinds.__getitem__, codes)),
        stack=texts.numbered_stacks([entry["frames"] for entry in entries]),
        number=_numbers(entries, "collective_seq_id"),
        paired=_numbers(entries, "p2p_seq_id"),
        seq=_seqs(codes, fields, _numbers(entries, "op_id")),
        enqueued_ns=_numbers(entries, "time_created_ns"),
        started_ns=_numbers(entries, "time_discovered_started_ns"),
        completed_ns=_numbers(entries, "time_discovered_completed_ns"),
    )
    return calls, {entry_fields.number: entry_fields.group for entry_fields in fields}


def left_out(files: Sequence[Path]) -> str:
    """The beginning of a sentence: which files were left out."""
    first = repr(str(files[0]))
    if files[1:]:
        return f"{len(files)} files such as {first} were left out"
    return f"{first} was left out"


def unknown(counts: Mapping[str, int]) -> list[str]:
    """Sentences about calls of unknown kinds, from the count of each kind."""
    if len(counts) > 3:
        return [
            f"{sum(counts.values())} calls of {len(counts)} unknown kinds such as {min(counts)!r:.60} were left out"
        ]
    return [
        f"{count} calls of the unknown kind {title!r:.60} were left out"
        for title, count in sorted(counts.items())
    ]


def _coded_fields(
    entries: Sequence[dict[str, object]], texts: Texts
) -> tuple[array[int], list[_EntryFields]]:
    """A code for each entry's fields _REPEATED, and the _EntryFields of each code."""
    codes, keys = _numbered(map(_REPEATED, entries), lambda fields: marshal.dumps(fields, 2))
    return codes, list(map(texts.fields_of, keys))


def _gets(fields: _EntryFields) -> bool:
    """Whether to describe a call by its outputs: a recv, or a scatter, which has inputs only on its
    root."""
    return fields.title == "gloo:scatter" or (
        fields.dtype is None and fields.op in (Op.SCATTER.value, Op.RECV.value)
    )


def _split_batches(
    entries: Sequence[dict[str, object]], problems: list[str]
) -> list[dict[str, object]]:
    """Split batches: each send and recv gets the state of its batch, and a batch of collectives
    becomes one entry.

    batch_isend_irecv(), or an all_gather of uneven tensors, makes an entry for each call, whose
    state never changes, and then one that ends the batch and has its state; all have the same two
    numbers (ProcessGroupNCCL.cpp, pointToPoint, collective and endCoalescing; collectives since
    dump version 2.7):

        7, 13   nccl:send 0->1    scheduled          7, 13   nccl:send 0->1    completed
        7, 13   nccl:recv 0<-1    scheduled    ->    7, 13   nccl:recv 0<-1    completed
        7, 13   nccl:coalesced    completed

    A dump of active entries leaves out the end of a completed batch. If such a batch has a single
    call, the dump does not show that it completed.

    Before dump version 2.7 a batch of collectives had a single entry, its end, which has no sizes
    (there `enqueue` is false in a batch). A batch of sends and recvs has their entries before its
    end, unless the ring buffer lost them.
    """
    batches: dict[object, list[dict[str, Any]]] = {}
    for entry in entries:
        batches.setdefault(_batch_of(entry), []).append(entry)
    # of active calls alone, or of a job in which nothing has completed yet
    active = not any(entry["state"] == "completed" for entry in entries)
    whole = active or not entries[0].get("record_id")
    separate: list[dict[str, object]] = []
    unnamed = False
    for entry in entries:
        batch = batches[_batch_of(entry)]
        end = batch[-1]
        title = end["profiling_name"]
        ended = title.endswith("coalesced")
        state = {name: end[name] for name in _STATE} if ended else {"state": "completed"}
        if len(batch) == 1 and _kind(title)[0] == "coalesced" and (separate or whole):
            title = title.replace("coalesced", "ALLGATHER_coalesced")
            separate.append({**entry, "profiling_name": title})
            unnamed = True
        elif len(batch) == 1 or not (ended or active):
            separate.append(entry)
        elif _is_pair(entry):
            separate.append({**entry, **state})
        elif (
            entry is not end
            and entry is next(member for member in batch if not _is_pair(member))
            and (parts := batch[:-1] if ended else batch)
        ):
            # A batch that ends as "coalesced" is named after its first call, any other after its
            # end.
            if not (ended and _kind(title)[1]):
                title = entry["profiling_name"]
            joined = {
                name: [item for part in parts for item in part[name]]
                for name in ("input_sizes", "input_dtypes")
            }
            separate.append({**entry, "profiling_name": title, **joined, **state})
    if unnamed:
        problems.append(
            "batches of collectives are shown as all_gather: which calls they held was not recorded"
        )
    return separate


def _batch_of(entry: dict[str, Any]) -> object:
    group = entry["process_group"]
    return (
        entry["pg_id"],
        group and tuple(group),
        entry["collective_seq_id"],
        entry.get("p2p_seq_id"),
    )


def _is_pair(entry: dict[str, Any]) -> bool:
    return _kind(entry["profiling_name"])[1] in POINT_TO_POINT


_STATE = ("state", "retired", "time_discovered_started_ns", "time_discovered_completed_ns")

_REPEATED = itemgetter(
    "pg_id", "process_group", "profiling_name", "input_dtypes", "input_sizes", "state", "retired"
)
_ABSENT: Mapping[str, object] = {
    "pg_id": None,
    "process_group": None,
    "input_dtypes": (),
    "input_sizes": (),
    "state": None,
    "retired": False,
    "frames": None,
    "collective_seq_id": 0,
    "p2p_seq_id": 0,
    "op_id": None,
    "time_created_ns": None,
    "time_discovered_started_ns": None,
    "time_discovered_completed_ns": None,
}
"""Values for fields that older or shorter dumps lack."""


def _numbered(
    values: Iterable[object], key: Callable[[Any], _Key]
) -> tuple[array[int], list[_Key]]:
    """A number for each value, equal for equal keys, and the keys by number.

    A training loop repeats itself, so each value is first compared with the one that followed its
    predecessor before, which needs no key. On dumps of 2,000 entries this halved the time.
    """
    numbers: dict[_Key, int] = {}
    distinct: list[object] = []  # one value per number
    follows: dict[int, int] = {}  # the number that came after each number
    codes: list[int] = []
    last = -1
    for value in values:
        code = follows.get(last, -1)
        if code < 0 or distinct[code] != value:
            code = numbers.setdefault(key(value), len(distinct))
            if code == len(distinct):
                distinct.append(value)
            follows[last] = code
        codes.append(code)
        last = code
    return array("i", codes), list(numbers)


def _ids(frames: Sequence[object] | None) -> tuple[int, ...]:
    """The identities of frames: equal frames of a dump are one object."""
    return tuple(map(id, frames or ()))


def _numbers(entries: Sequence[dict[str, object]], name: str) -> array[int]:
    """One field of all entries, with 0 for null. TypeError if it is not an integer."""
    return array("q", [value or 0 for value in map(itemgetter(name), entries)])


class _EntryFields(NamedTuple):
    """An entry's fields that repeat across entries. `peer` is a rank in the group; entries without
    op are omitted."""

    number: str
    group: str
    words: str
    title: str
    backend: str
    op: str | None
    peer: int | None
    dtype: str | None
    shape: int
    over: bool


def _is_known(fields: _EntryFields, groups: Mapping[str, Group]) -> bool:
    """Whether it is a call of a known kind, and its peer a rank of its group: no backend checks
    that."""
    return fields.op is not None and (
        fields.peer is None or fields.peer < len(groups[fields.group][1])
    )


def _kind_of(fields: _EntryFields, groups: Mapping[str, Group]) -> Kind:
    assert fields.op is not None
    peer = fields.peer
    if peer is not None:
        peer = groups[fields.group][1][peer]
    return Kind(
        fields.group, fields.backend, fields.op, fields.dtype, fields.shape, peer, fields.over
    )


def _kind(title: str) -> tuple[str, str | None, int | None]:
    """Backend, op and the peer's rank in the group, from an entry's name; without an op, the name
    itself.

    >>> _kind("nccl:recv 2<-3"), _kind("gloo:all_reduce"), _kind("nccl:split")
    (('nccl', 'recv', 3), ('gloo', 'all_reduce', None), ('split', None, None))
    """
    match = _NAME.match(title)
    name = match["op"] if match else title
    op = op_of(name)
    if match is None or op is None:
        return name, None, None
    return match["backend"] or "nccl", op.value, int(match["peer"]) if match["peer"] else None


def _seqs(codes: Sequence[int], fields: Sequence[_EntryFields], ids: array[int]) -> array[int]:
    """Each call's order of issue within its group: from op_id, or counted if op_ids are missing or
    repeat."""
    names = [fields[code].group for code in codes]
    distinct = set(ids) if len(set(names)) < 2 else set(zip(names, ids, strict=True))
    if len(distinct) == len(ids) and min(ids, default=0) > 0:
        return array("q", [id - 1 for id in ids])
    counts: dict[str, int] = {}
    seqs = array("q")
    for name in names:
        seqs.append(counts.get(name, 0))
        counts[name] = seqs[-1] + 1
    return seqs


class Texts:
    """The distinct kinds, shapes and stacks of the calls of all dumps."""

    def __init__(self) -> None:
        self.kinds: dict[Kind, int] = {}
        self.shapes: dict[tuple[tuple[int, ...], ...], int] = {}
        self.stacks: dict[tuple[Frame, ...], int] = {}
        self._fields: dict[bytes, _EntryFields] = {}
        self._stacks: dict[tuple[tuple[object, object, object], ...], int] = {}

    def kind(self, kind: Kind) -> int:
        """The number of a kind. UnicodeEncodeError if a name in it is not valid text."""
        "".join((kind.group, kind.backend, kind.dtype or "")).encode()
        return self.kinds.setdefault(kind, len(self.kinds))

    def renumbered(self, outcomes: Sequence[Dump | str], texts: Texts) -> list[Dump | str]:
        """Dumps that were read with other texts, with the numbers of these; sentences unchanged."""
        shapes = [self.shapes.setdefault(shape, len(self.shapes)) for shape in texts.shapes]
        kinds = [self.kind(kind._replace(shape=shapes[kind.shape])) for kind in texts.kinds]
        stacks = [self.stacks.setdefault(stack, len(self.stacks)) for stack in texts.stacks]
        same = kinds == list(range(len(kinds))) and stacks == list(range(len(stacks)))
        stacks.append(-1)  # what -1, no stack, becomes
        renumbered: list[Dump | str] = []
        for outcome in outcomes:
            if isinstance(outcome, Dump) and not same:
                calls = replace(
                    outcome.calls,
                    kind=array("i", map(kinds.__getitem__, outcome.calls.kind)),
                    stack=array("i", map(stacks.__getitem__, outcome.calls.stack)),
                )
                outcome = replace(outcome, calls=calls)
            renumbered.append(outcome)
        return renumbered

    def fields_of(self, key: Any) -> _EntryFields:
        """The _EntryFields of marshalled fields _REPEATED."""
        fields = self._fields.get(key)
        if fields is None:
            number, group, title, names, sizes, state, retired = marshal.loads(key)
            # Older dumps have only the number of a group.
            name, description = map(
                str, ("0" if number is None else number, "") if group is None else group
            )
            backend, op, peer = _kind(title)
            shape = self.shape(sizes) if op else 0
            over = state == "completed" or (bool(retired) and backend == "gloo")
            fields = _EntryFields(
                str(number), name, description, title, backend, op, peer, _dtype(names), shape, over
            )
            self._fields[key] = fields
        return fields

    def shape(self, sizes: Sequence[Sequence[int]]) -> int:
        key = tuple(map(tuple, sizes))
        if key not in self.shapes and not all(
            type(size) is int and 0 <= size < 1 << 62 for size in chain.from_iterable(key)
        ):
            raise ValueError(f"sizes {str(sizes)[:60]}")
        return self.shapes.setdefault(key, len(self.shapes))

    def numbered_stacks(
        self, stacks: Sequence[Sequence[Mapping[str, object]] | None]
    ) -> array[int]:
        codes, keys = _numbered(stacks, _ids)
        numbers = [self._stack(stacks[codes.index(code)]) for code in range(len(keys))]
        return array("i", map(numbers.__getitem__, codes))

    def _stack(self, frames: Sequence[Mapping[str, Any]] | None) -> int:
        if not frames:
            return -1
        key = tuple((frame["filename"], frame["line"], frame["name"]) for frame in frames)
        number = self._stacks.get(key)
        if number is None:
            stack = tuple(Frame(str(file), int(line), str(name)) for file, line, name in key)
            "".join(map(str, stack)).encode()  # as in `kind`
            number = self._stacks[key] = self.stacks.setdefault(stack, len(self.stacks))
        return number


def _dtype(names: Sequence[str] | str) -> str | None:
    """torch's name of the dtype, or its names joined by ","."""
    dtypes = []
    for name in [names] if isinstance(names, str) else names:
        if name:
            dtypes.append(DTYPES.get(name, name.lower()))
    return ",".join(dtypes if len(set(dtypes)) > 1 else dtypes[:1]) or None


def _refused(path: Path, problem: str, todo: str) -> TimelineFileError:
    return TimelineFileError(f"cannot open {str(path)!r}: {problem}. {todo}")
