"""One rank's dump of PyTorch's flight recorder, NCCL's or gloo's, pickle or JSON, read into columns.

The form is that of c10d::FlightRecorder (torch/csrc/distributed/c10d/FlightRecorderDetail.hpp, v2.13.0; dump versions
2.1 to 2.10 were read). What the dump says, and what a Timeline makes of it:

    collective_seq_id   the k-th collective of the group is number k + 1. A ring buffer forgets its oldest entries, and
                        a dump of active entries alone leaves out all that completed: `meta["skipped"]` counts them
    op_id               every call of the group, send and recv included: `seq` is op_id - 1
    pg_status           the last collective that was enqueued and completed, also of groups without an entry:
                        `meta["progress"]`. It is kept by the number that the process gave the group, not by its name
    state, retired      a gloo entry is never "completed"; it is retired instead, at a time that the dump does not say.
                        Then `completed_ns` is the time of the enqueueing, a lower bound, and `meta["clock"]` says so

How a rank ended is not in a dump: every ending is unknown, in the oldest call that was pending.
"""

from __future__ import annotations

import ast
import gc
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import polars as pl

from joinlab.errors import TimelineFileError
from joinlab.importers import safe_pickle, torchcomms
from joinlab.ops import Op
from joinlab.program.labels import Frame
from joinlab.recorder.rank_log import MOST_RANKS

MAX_BYTES = 1 << 29
"""A larger file is refused unread. A ring buffer of 20,000 entries with their stacks takes about 100 MB."""

OPS: Mapping[str, Op] = {
    "all_reduce": Op.ALL_REDUCE,
    "allreduce_coalesced": Op.ALL_REDUCE,
    "all_reduce_sparse": Op.ALL_REDUCE,
    "broadcast": Op.BROADCAST,
    "_broadcast_oop": Op.BROADCAST,
    "reduce": Op.REDUCE,
    "_reduce_oop": Op.REDUCE,
    "all_gather": Op.ALL_GATHER,
    "_all_gather_base": Op.ALL_GATHER,
    "all_gather_single": Op.ALL_GATHER,
    "all_gather_v": Op.ALL_GATHER,
    "all_gather_into_tensor_coalesced": Op.ALL_GATHER,
    "ALLGATHER_coalesced": Op.ALL_GATHER,
    "reduce_scatter": Op.REDUCE_SCATTER,
    "_reduce_scatter_base": Op.REDUCE_SCATTER,
    "reduce_scatter_single": Op.REDUCE_SCATTER,
    "reduce_scatter_v": Op.REDUCE_SCATTER,
    "reduce_scatter_tensor_coalesced": Op.REDUCE_SCATTER,
    "REDUCE_SCATTER_coalesced": Op.REDUCE_SCATTER,
    "gather": Op.GATHER,
    "gather_single": Op.GATHER,
    "scatter": Op.SCATTER,
    "all_to_all": Op.ALL_TO_ALL,
    "all_to_all_single": Op.ALL_TO_ALL,
    "all_to_all_v_single": Op.ALL_TO_ALL,
    "all_reduce_barrier": Op.BARRIER,
    "barrier": Op.BARRIER,
    "send": Op.SEND,
    "recv": Op.RECV,
}
"""Names of torch/distributed/flight_recorder/components/types.py (COLLECTIVES, P2P), v2.13.0, without the backend.

"gather_single" is TorchComms' (comms/torchcomms/hooks/common/OpNameHelper.hpp).
"""

_BRACKETS = frozenset({"coalesced", "split", "new_window"})
"""Entries that move no data: the end of a batch whose calls have entries of their own, and the making of a group."""

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
"""c10::ScalarType's names (torch/headeronly/core/ScalarType.h) that torch spells otherwise; the rest in lower case."""

_REDUCING = frozenset({Op.ALL_REDUCE, Op.REDUCE, Op.REDUCE_SCATTER})
_NAME = re.compile(r"(?:(?P<backend>\w+):)?(?P<op>\w+)(?: (?P<own>\d+)(?:->|<-)(?P<peer>\d+))?$")
_LAST_NUMBER = re.compile(r"(\d+)\D*$")


ROWS: Mapping[str, pl.DataType] = {
    "rank": pl.Int64(),
    "group": pl.String(),
    "number": pl.Int64(),  # collective_seq_id
    "seq": pl.Int64(),
    "op": pl.String(),
    "backend": pl.String(),
    "dtype": pl.String(),
    "shape": pl.Int64(),  # index into Texts.shapes
    "stack": pl.Int64(),  # index into Texts.stacks; null: none was recorded
    "peer": pl.Int64(),
    "enqueued_ns": pl.Int64(),
    "started_ns": pl.Int64(),
    "completed_ns": pl.Int64(),
    "bound": pl.Boolean(),  # completed_ns is only a lower bound
}
"""Columns of one dump's calls."""

Group = tuple[str, tuple[int, ...]]
"""Description and global ranks of a process group."""


@dataclass(frozen=True, slots=True)
class Dump:
    """One rank's dump, checked.

    form      what wrote it, and its version
    library   version of NCCL; "" where the dump does not say
    rows      its calls, oldest first: columns ROWS
    groups    every group that the dump describes, by name; that of a group which only entries name has no ranks
    status    enqueued and completed collectives, by the number that the process gave the group
    numbers   names of the groups by that number, as far as entries tell
    problems  sentences about what was left out
    """

    rank: int
    file: str
    form: str
    library: str
    rows: pl.DataFrame
    groups: dict[str, Group]
    status: dict[str, dict[str, int]]
    numbers: dict[str, str]
    problems: tuple[str, ...]


def looks_like_dump(head: bytes) -> bool:
    """Whether the first bytes of a file are a pickle's, as torch writes it (protocol 2)."""
    return head[:1] == b"\x80" and head[1:2] in b"\x02\x03\x04\x05"


def rank_in(name: str) -> int | None:
    """The rank that a dump's file name ends in.

    >>> rank_in("nccl_trace_rank_12"), rank_in("fr_0.json"), rank_in("dump")
    (12, 0, None)
    """
    found = _LAST_NUMBER.search(Path(name).name)
    return int(found[1]) if found and len(found[1]) < 8 and int(found[1]) < MOST_RANKS else None


def around_rank(name: str) -> tuple[str, str]:
    """What stands before and after the rank in a file's name: the same for all dumps of a job.

    >>> around_rank("nccl_trace_rank_12"), around_rank("fr_0.json")
    (('nccl_trace_rank_', ''), ('fr_', '.json'))
    """
    found = _LAST_NUMBER.search(name)
    return (name[: found.start(1)], name[found.end(1) :]) if found else (name, "")


@contextmanager
def no_collection() -> Iterator[None]:
    """No garbage collection meanwhile: with it, 256 dumps of 2,000 entries took four times as long to read."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def parsed(path: Path, data: bytes) -> object:
    """The plain data in `data`, the bytes of `path`. Raises TimelineFileError, which names the file."""
    try:
        return safe_pickle.load(data) if looks_like_dump(data) else json.loads(data)
    except safe_pickle.UNREADABLE as error:
        detail = str(error).partition("\n")[0] or type(error).__name__
        raise _refused(path, f"it cannot be read ({detail})", "Copy it again from where it was written.") from error


def check(path: Path, content: object, texts: Texts) -> Dump:
    """The dump that `content` is, as it was read from `path`; each part must be of the form that PyTorch gives it."""
    if not isinstance(content, dict) or not {"version", "pg_config"} <= content.keys():
        raise _refused(path, "it is no flight recorder dump", "A dump has a version, a pg_config and entries.")
    version = str(content["version"])
    if version.partition(".")[0] != "2":
        raise _refused(path, f"its version is {version!r}", "Versions 2.1 to 2.10 are known.")
    rank = rank_in(path.name)
    if rank is None:
        raise _refused(path, "its name does not end in a rank", "Name it as PyTorch does: nccl_trace_rank_3.")
    try:
        if torchcomms.is_torchcomms(content):
            version, content = f"{version} of TorchComms", torchcomms.as_c10d(path, content)
        groups = _groups(content["pg_config"])
        status = _status(content.get("pg_status") or {})
        entries = _entries(content.get("entries", []))
        problems: list[str] = []
        rows, numbers = _rows(rank, entries, groups, texts, problems)
    except TimelineFileError:
        raise
    except _MALFORMED as error:
        detail = f"{type(error).__name__}: {error}".partition("\n")[0][:160]
        raise _refused(path, f"it is not of the known form ({detail})", "Copy it again.") from error
    library = str(content.get("comm_lib_version") or content.get("nccl_version") or "")
    named = tuple(f"{str(path)!r}: {problem}" for problem in problems)
    return Dump(rank, str(path), f"flight recorder {version}", library, rows, groups, status, numbers, named)


_MALFORMED = (
    AttributeError,
    IndexError,
    KeyError,
    MemoryError,
    OverflowError,
    RecursionError,
    SyntaxError,
    TypeError,
    ValueError,
    pl.exceptions.PolarsError,
)


def _entries(entries: object) -> list[dict[str, Any]]:
    if not isinstance(entries, list) or not all(type(entry) is dict for entry in entries):
        raise TypeError("its entries are no list of dicts")
    return entries


def _plain(text: object) -> Any:
    """What a text says as JSON or as a Python literal; nothing in it is evaluated. Other values as they are."""
    if not isinstance(text, str):
        return text
    try:
        return json.loads(text)
    except ValueError:
        return ast.literal_eval(text)


def _groups(config: object) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Description and global ranks of each group, by its name. The nameless one is the default group, "0"."""
    config = _plain(config)
    if not isinstance(config, dict):
        raise TypeError(f"pg_config is {type(config).__name__}")
    found = {}
    for name, one in config.items():
        ranks = _plain(one["ranks"])
        if not isinstance(ranks, list) or not all(isinstance(rank, int) and 0 <= rank < MOST_RANKS for rank in ranks):
            raise ValueError(f"the ranks of group {name!r} are {str(ranks)[:80]!r}")
        found[str(name) or "0"] = (str(one.get("desc") or ""), tuple(ranks))
    return found


def _status(status: object) -> dict[str, dict[str, int]]:
    status = _plain(status)
    if not isinstance(status, dict):
        raise TypeError(f"pg_status is {type(status).__name__}")
    return {str(number): {key: int(value) for key, value in one.items()} for number, one in status.items()}


def _rows(
    rank: int, entries: Sequence[dict[str, Any]], groups: dict[str, Group], texts: Texts, problems: list[str]
) -> tuple[pl.DataFrame, dict[str, str]]:
    """The calls, and the names of the groups by the number that the process gave them."""
    titles = _column(entries, "profiling_name")
    kinds = {title: _kind(title) for title in set(titles)}
    left_out = {title for title, (_, op, _) in kinds.items() if op is None}
    for title in sorted(left_out):
        if kinds[title][0] not in _BRACKETS:
            problems.append(f"{titles.count(title)} calls of the unknown kind {title!r} were left out")
    keys = _place_keys(entries)
    places = {key: _group_of(*key) for key in dict.fromkeys(keys)}
    for name, words in places.values():
        groups.setdefault(name, (words, ()))
    if left_out:
        entries = [entry for entry in entries if entry["profiling_name"] not in left_out]
        titles, keys = _column(entries, "profiling_name"), _place_keys(entries)
    names = [places[key][0] for key in keys]
    peers = {title: peer for title, (_, _, peer) in kinds.items() if peer is not None}
    over = [
        bool(gone) or told == "completed"
        for gone, told in zip(_column(entries, "retired"), _column(entries, "state"), strict=True)
    ]
    created = _column(entries, "time_created_ns")
    done = [time or None for time in _column(entries, "time_discovered_completed_ns")]
    bound = [yes and time is None for yes, time in zip(over, done, strict=True)]
    if any(bound):
        done = [first if low else time for first, low, time in zip(created, bound, done, strict=True)]
    data: dict[str, Sequence[Any]] = {
        "rank": [rank] * len(entries),
        "group": names,
        "number": _column(entries, "collective_seq_id"),
        "seq": _seqs(names, _column(entries, "op_id")),
        "op": [kinds[title][1] for title in titles],
        "backend": [kinds[title][0] for title in titles],
        "dtype": texts.dtypes(_column(entries, "input_dtypes")),
        "shape": texts.numbered_shapes(_column(entries, "input_sizes")),
        "stack": texts.numbered_stacks(_column(entries, "frames")),
        "peer": [
            groups[name][1][peers[title]] if title in peers else None for title, name in zip(titles, names, strict=True)
        ],
        "enqueued_ns": created,
        "started_ns": [time or None for time in _column(entries, "time_discovered_started_ns")],
        "completed_ns": done,
        "bound": bound,
    }
    return frame_of(data), {str(number): name for (number, _), (name, _) in places.items()}


def frame_of(data: Mapping[str, Sequence[Any]]) -> pl.DataFrame:
    """The columns ROWS; TypeError where a value is of another type."""
    return pl.DataFrame([pl.Series(name, values, dtype=ROWS[name], strict=True) for name, values in data.items()])


_FIELDS: Mapping[str, Any] = {
    "retired": False,
    "collective_seq_id": 0,
    "input_dtypes": (),
    "input_sizes": (),
}
"""What an older or shorter form of dump counts as having in these fields; None in all others."""


def _column(entries: Sequence[dict[str, Any]], name: str) -> list[Any]:
    """One field of all entries. Indexing takes two thirds of the time of `get`, and of rows zipped into columns."""
    try:
        return [entry[name] for entry in entries]
    except KeyError:
        otherwise = _FIELDS.get(name)
        return [entry.get(name, otherwise) for entry in entries]


def _place_keys(entries: Sequence[dict[str, Any]]) -> list[tuple[Any, Any]]:
    """Of each entry what it says of its group: the group's number, and its name with a description."""
    groups = _column(entries, "process_group")
    return [
        (number, tuple(group) if type(group) is list else group)
        for number, group in zip(_column(entries, "pg_id"), groups, strict=True)
    ]


def _group_of(number: object, group: Any) -> tuple[str, str]:
    """Name and description of a group; older dumps have its number alone."""
    name, words = ("0" if number is None else number, "") if group is None else group
    return str(name), str(words)


def _kind(title: str) -> tuple[str, str | None, int | None]:
    """Backend, op and the peer's rank in its group, from an entry's name. Without an op: the name itself.

    >>> _kind("nccl:recv 2<-3"), _kind("gloo:all_reduce"), _kind("nccl:split")
    (('nccl', 'recv', 3), ('gloo', 'all_reduce', None), ('split', None, None))
    """
    found = _NAME.match(title)
    name = found["op"] if found else title
    op = OPS.get(name)
    if found is None or op is None:
        return name, None, None
    return found["backend"] or "nccl", op.value, int(found["peer"]) if found["peer"] else None


def _seqs(names: Sequence[str], ids: Sequence[object]) -> list[int]:
    """Each call's order of issue within its group: from op_id, or counted where a dump has none or repeats it."""
    pairs = set(zip(names, ids, strict=True))
    if len(pairs) == len(names) and all(isinstance(one, int) and one > 0 for one in ids):
        return [one - 1 for one in ids]  # type: ignore[operator]
    counts: dict[str, int] = {}
    found = []
    for name in names:
        found.append(counts.get(name, 0))
        counts[name] = found[-1] + 1
    return found


class Texts:
    """Shapes and stacks of all dumps, each distinct one once: 500,000 entries have a few hundred of them."""

    def __init__(self) -> None:
        self.shapes: dict[tuple[tuple[int, ...], ...], int] = {}
        self.stacks: dict[tuple[str, ...], int] = {}
        self.frames: list[tuple[Frame, ...]] = []
        self._dtypes: dict[tuple[str, ...], str | None] = {}

    def shape(self, sizes: Sequence[Sequence[int]]) -> int:
        key = tuple(map(tuple, sizes))
        found = self.shapes.get(key)
        if found is None:
            if not all(type(size) is int and size >= 0 for size in chain.from_iterable(key)):
                raise ValueError(f"sizes {str(sizes)[:60]}")
            found = self.shapes[key] = len(self.shapes)
        return found

    def numbered_shapes(self, column: Sequence[Sequence[Sequence[int]]]) -> list[int]:
        """The number of each shape. Most are known, and cost a look."""
        known = self.shapes
        try:
            return [known[tuple(map(tuple, sizes))] for sizes in column]
        except KeyError:
            return list(map(self.shape, column))

    def dtypes(self, column: Sequence[Sequence[str] | str]) -> list[str | None]:
        """Each name, or names, as torch spells it."""
        known = self._dtypes
        try:
            return [known[tuple(names)] for names in column]
        except KeyError:
            return list(map(self._dtype, column))

    def _dtype(self, names: Sequence[str] | str) -> str | None:
        key = (names,) if isinstance(names, str) else tuple(names)
        if key not in self._dtypes:
            words = [DTYPES.get(name, name.lower()) for name in key if name]
            self._dtypes[key] = (words[0] if len(set(words)) == 1 else ",".join(words)) if words else None
        return self._dtypes[key]

    def numbered_stacks(self, stacks: Sequence[Sequence[Mapping[str, Any]] | None]) -> list[int | None]:
        """The number of each stack. Frames that a dump shares are one object in it, so that most cost only a look."""
        seen: dict[tuple[int, ...], int] = {}
        found: list[int | None] = []
        for frames in stacks:
            if not frames:
                found.append(None)
                continue
            key = tuple(map(id, frames))
            number = seen.get(key)
            if number is None:
                number = seen[key] = self._stack(frames)
            found.append(number)
        return found

    def _stack(self, frames: Sequence[Mapping[str, Any]]) -> int:
        read = tuple(Frame(str(one["filename"]), int(one["line"]), str(one["name"])) for one in frames)
        texts = tuple(map(str, read))
        number = self.stacks.get(texts)
        if number is None:
            number = self.stacks[texts] = len(self.frames)
            self.frames.append(read)
        return number


def _refused(path: Path, what: str, todo: str) -> TimelineFileError:
    return TimelineFileError(f"cannot open {str(path)!r}: {what}. {todo}")
