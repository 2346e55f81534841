"""One rank's dump of PyTorch's flight recorder, NCCL's or gloo's, pickle or JSON, read into columns.

The form is that of c10d::FlightRecorder (torch/csrc/distributed/c10d: TraceUtils.h, later NCCLUtils.cpp, later
FlightRecorder.cpp, now FlightRecorderDetail.hpp). Its versions, the PyTorch releases that write them, and what each
adds (tests/test_dump_versions.py has their fields, and names the sources):

    2.4    2.5, 2.6, 2.7  whole or active entries alone; JSON: no frames, 0 for a time that is not known, the numbers of
                          pg_status as text. Before 2.6, a batch of sends may count as a collective: its numbers then
                          differ between ranks, and are told as they stand
    2.6    -              nccl_version
    2.7    -              an entry for each call of a batch of collectives (_apart)
    2.9    2.8            thread_id, thread_name; gloo
    2.10   2.9 to 2.13    comm_lib_version in place of nccl_version; since 2.10 no entries of before a reset

No source of 2.5 and 2.8 was found; earlier versions (PyTorch 2.4 and before) count otherwise, and are refused.
What a dump says, and what a Timeline makes of it:

    collective_seq_id   the k-th collective of the group is number k + 1. A ring buffer forgets its oldest entries, and
                        a dump of active entries alone leaves out all that completed: `meta["skipped"]` counts them
    op_id               every call of the group, send and recv included: `seq` is op_id - 1
    pg_status           the last collective that was enqueued and completed, also of groups without an entry:
                        `meta["progress"]`. It is kept by the number that the process gave the group, not by its name
    state, retired      a gloo entry is never "completed"; it is retired instead, at a time that the dump does not say.
                        Then `completed_ns` is the time of the enqueueing, a lower bound, and `meta["clock"]` says so.
                        An NCCL entry that is retired and not completed has timed out (FlightRecorder.hpp, Entry)

How a rank ended is not in a dump: every ending is unknown, in the oldest call that was pending.
"""

from __future__ import annotations

import ast
import gc
import json
import marshal
import re
from array import array
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from joinlab.errors import TimelineFileError
from joinlab.importers import safe_pickle, torchcomms
from joinlab.ops import Op
from joinlab.program.labels import Frame
from joinlab.recorder.rank_log import MOST_RANKS, is_ranks

_Key = TypeVar("_Key", bound=Hashable)

MAX_BYTES = 1 << 29
"""A larger file is refused unread. A ring buffer of 20,000 entries with their stacks takes about 100 MB."""

_OPS = {op.value.replace("_", ""): op for op in Op} | {"allreducebarrier": Op.BARRIER}

NOISE = r"_|base$|coalesced$|single$|oop$|sparse|into_?tensor|(?<=scatter_)tensor|any_?source$"
"""What the names of an op differ in, as a regular expression that JavaScript shares."""

_NOISE = re.compile(NOISE)


def op_of(name: str) -> Op | None:
    """The op of a name in a dump, a trace or a log; None where it moves no data, or is not known.

    Dumps: torch/distributed/flight_recorder/components/types.py (COLLECTIVES, P2P), v2.13.0, ProcessGroupGloo.cpp and
    TorchComms' OpNameHelper.hpp; traces: ProcessGroupNCCL.cpp, and Ops.cpp for gloo; logs: c10d's OpType, NCCL's own.

    >>> op_of("_REDUCE_SCATTER_BASE"), op_of("AllReduce"), op_of("all_to_allv"), op_of("COALESCED")
    (<Op.REDUCE_SCATTER: 'reduce_scatter'>, <Op.ALL_REDUCE: 'all_reduce'>, <Op.ALL_TO_ALL: 'all_to_all'>, None)
    """
    plain = _NOISE.sub("", name.lower())
    return _OPS.get(plain) or _OPS.get(plain.removesuffix("v"))


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

_NAME = re.compile(r"(?:(?P<backend>\w+):)?(?P<op>\w+)(?: (?P<own>\d+)(?:->|<-)(?P<peer>\d+))?$")
_LAST_NUMBER = re.compile(r"(\d+)\D*$")


class Kind(NamedTuple):
    """What calls share: a job of 500,000 calls has a few hundred kinds, so that a call is a row of numbers.

    shape  index into Texts.shapes
    peer   global rank
    over   it completed, whether or not the record says when
    """

    group: str
    backend: str
    op: str
    dtype: str | None
    shape: int
    peer: int | None
    over: bool


@dataclass(frozen=True, slots=True)
class Calls:
    """The calls of a dump, oldest first, 60 bytes each. A time of 0 is not known.

    kind    index into Texts.kinds
    stack   index into Texts.stacks; -1: none was recorded
    number  collective_seq_id: a send or recv has that of the collective before it
    paired  of a send or recv its own number, p2p_seq_id; 0: not known
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

    form      what wrote it, and its version
    library   version of NCCL; "" where the dump does not say
    groups    every group that the dump describes, by name; that of a group which only entries name has no ranks
    status    enqueued and completed collectives, by the number that the process gave the group
    numbers   names of the groups by that number, as far as entries tell
    problems  sentences about what was left out
    """

    rank: int
    file: str
    form: str
    library: str
    calls: Calls
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
    if version.partition(".")[0] != "2" or version in ("2.0", "2.1", "2.2", "2.3"):
        raise _refused(
            path, f"its version is {version!r:.40}", "Versions 2.4 to 2.10 are known (PyTorch 2.5 and later)."
        )
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
        try:
            calls, numbers = _calls(entries, groups, texts, problems)
        except KeyError:  # a form that lacks some fields
            entries = [{**_ABSENT, **entry} for entry in entries]
            problems.clear()
            calls, numbers = _calls(entries, groups, texts, problems)
    except TimelineFileError:
        raise
    except MALFORMED as error:
        detail = f"{type(error).__name__}: {error}".partition("\n")[0][:160]
        raise _refused(path, f"it is not of the known form ({detail})", "Copy it again.") from error
    library = str(content.get("comm_lib_version") or content.get("nccl_version") or "")
    form = f"flight recorder {version}"
    return Dump(rank, str(path), form, library, calls, groups, status, numbers, tuple(problems))


MALFORMED = (*safe_pickle.UNREADABLE, SyntaxError)
"""What the parts of a damaged or hostile dump or trace raise."""


def _entries(entries: object) -> list[dict[str, Any]]:
    if not isinstance(entries, list) or not set(map(type, entries)) <= {dict}:
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
        if not is_ranks(ranks):
            raise ValueError(f"the ranks of group {name!r:.40} are {str(ranks)[:80]!r}")
        found[str(name) or "0"] = (str(one.get("desc") or ""), tuple(ranks))
    return found


def _status(status: object) -> dict[str, dict[str, int]]:
    status = _plain(status)
    if not isinstance(status, dict):
        raise TypeError(f"pg_status is {type(status).__name__}")
    return {str(number): {key: int(value) for key, value in one.items()} for number, one in status.items()}


def _calls(
    entries: Sequence[dict[str, Any]], groups: dict[str, Group], texts: Texts, problems: list[str]
) -> tuple[Calls, dict[str, str]]:
    """The calls, and the names of the groups by the number that the process gave them."""
    codes, told = _told(entries, texts)
    if any((one.backend == "nccl" and one.op in _PAIRS) or one.title.endswith("coalesced") for one in told):
        entries = _apart(entries, problems)
        codes, told = _told(entries, texts)
    if got := {code for code, one in enumerate(told) if _gets(one)}:
        entries = [_with_output(entry) if code in got else entry for entry, code in zip(entries, codes, strict=True)]
        codes, told = _told(entries, texts)
    for one in told:
        groups.setdefault(one.group, (one.words, ()))
    left_out = {code for code, one in enumerate(told) if one.op is None}
    if left_out:
        titles = Counter(told[code].title for code in codes if code in left_out)
        problems += unknown({title: n for title, n in titles.items() if _kind(title)[0] not in _BRACKETS})
        entries = [entry for entry, code in zip(entries, codes, strict=True) if code not in left_out]
        codes = array("i", [code for code in codes if code not in left_out])
    kinds = [-1 if one.op is None else texts.kind(_kind_of(one, groups)) for one in told]
    calls = Calls(
        kind=array("i", map(kinds.__getitem__, codes)),
        stack=texts.numbered_stacks([entry["frames"] for entry in entries]),
        number=_numbers(entries, "collective_seq_id"),
        paired=_numbers(entries, "p2p_seq_id"),
        seq=_seqs([told[code].group for code in codes], _numbers(entries, "op_id")),
        enqueued_ns=_numbers(entries, "time_created_ns"),
        started_ns=_numbers(entries, "time_discovered_started_ns"),
        completed_ns=_numbers(entries, "time_discovered_completed_ns"),
    )
    return calls, {one.number: one.group for one in told}


def unknown(counts: Mapping[str, int]) -> list[str]:
    """Sentences about calls of unknown kinds, given how many there are of each."""
    if len(counts) > 3:
        return [
            f"{sum(counts.values())} calls of {len(counts)} unknown kinds such as {min(counts)!r:.60} were left out"
        ]
    return [f"{count} calls of the unknown kind {title!r:.60} were left out" for title, count in sorted(counts.items())]


def _told(entries: Sequence[dict[str, Any]], texts: Texts) -> tuple[array[int], list[_Told]]:
    """What each entry says of itself, as a number, and what the numbers stand for."""
    codes, keys = _numbered(map(_TOLD, entries), _bytes)
    return codes, [texts.told(key) for key in keys]


def _gets(told: _Told) -> bool:
    """Whether a call's data is what it gets: that of a scatter, which has inputs on its root alone, or of a recv."""
    return told.title == "gloo:scatter" or (told.dtype is None and told.op in (Op.SCATTER.value, Op.RECV.value))


def _with_output(entry: dict[str, Any]) -> dict[str, Any]:
    return {**entry, "input_sizes": entry.get("output_sizes", ()), "input_dtypes": entry.get("output_dtypes", ())}


def _apart(entries: Sequence[dict[str, Any]], problems: list[str]) -> list[dict[str, Any]]:
    """Entries whose batches are taken apart: sends and recvs with the state of their batch, its collectives as one.

    batch_isend_irecv(), or an all_gather of uneven tensors, makes an entry for each call, whose state never changes,
    and then one that ends the batch and has its state; all of them bear the same two numbers (ProcessGroupNCCL.cpp,
    pointToPoint, collective and endCoalescing; collectives since dump version 2.7):

        7, 13   nccl:send 0->1    scheduled          7, 13   nccl:send 0->1    completed
        7, 13   nccl:recv 0<-1    scheduled    ->    7, 13   nccl:recv 0<-1    completed
        7, 13   nccl:coalesced    completed

    A dump of active entries alone leaves out the end of a batch that completed. Of one call alone in such a batch it
    does not tell that it completed.

    Before dump version 2.7 a batch of collectives made no entries but its end, which has no sizes (there `enqueue` is
    false in a batch). A batch of sends and recvs has them before its end, unless the ring buffer lost them.
    """
    batches: dict[object, list[dict[str, Any]]] = {}
    for entry in entries:
        batches.setdefault(_batch_of(entry), []).append(entry)
    active = _is_active(entries)
    whole = active or not entries[0].get("record_id")
    found: list[dict[str, Any]] = []
    unnamed = False
    for entry in entries:
        those = batches[_batch_of(entry)]
        end = those[-1]
        ended = end["profiling_name"].endswith("coalesced")
        if len(those) == 1 and _kind(end["profiling_name"])[0] == "coalesced" and (found or whole):
            found.append({**entry, "profiling_name": end["profiling_name"].replace("coalesced", "ALLGATHER_coalesced")})
            unnamed = True
        elif len(those) == 1 or not (ended or active):
            found.append(entry)
        elif _is_pair(entry):
            found.append(
                {**entry, **{name: end[name] for name in _STATE}} if ended else {**entry, "state": "completed"}
            )
        elif entry is next(one for one in those if not _is_pair(one)) and (parts := those[:-1] if ended else those):
            # A batch that ends as "coalesced" is named by its first call, another one by its end.
            named = end if ended and _kind(end["profiling_name"])[1] else entry
            joined = {name: [one for part in parts for one in part[name]] for name in ("input_sizes", "input_dtypes")}
            state = {name: end[name] for name in _STATE} if ended else {"state": "completed"}
            found += (
                [{**entry, "profiling_name": named["profiling_name"], **joined, **state}] if entry is not end else []
            )
    if unnamed:
        problems.append("batches of collectives are shown as all_gather: which calls they held was not recorded")
    return found


def _is_active(entries: Sequence[dict[str, Any]]) -> bool:
    """Whether a dump holds active entries alone, or nothing has completed."""
    return not any(entry["state"] == "completed" for entry in entries)


def _batch_of(entry: dict[str, Any]) -> object:
    group = entry["process_group"]
    return entry["pg_id"], group and tuple(group), entry["collective_seq_id"], entry.get("p2p_seq_id")


def _is_pair(entry: dict[str, Any]) -> bool:
    return _kind(entry["profiling_name"])[1] in _PAIRS


_PAIRS = frozenset({Op.SEND.value, Op.RECV.value})
_STATE = ("state", "retired", "time_discovered_started_ns", "time_discovered_completed_ns")

_TOLD = itemgetter("pg_id", "process_group", "profiling_name", "input_dtypes", "input_sizes", "state", "retired")
_ABSENT: Mapping[str, Any] = {
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
"""What an entry says of these fields that an older or shorter form of dump does not have."""


def _numbered(values: Iterable[Any], key: Callable[[Any], _Key]) -> tuple[array[int], list[_Key]]:
    """A number for each value, the same for those of one key, and the keys by number.

    A training loop repeats itself: a value that equals the one that followed last time needs no key. On dumps of 2,000
    entries that took half the time of a key for each.
    """
    numbers: dict[_Key, int] = {}
    known: list[Any] = []  # a value of each number
    follows: dict[int, int] = {}  # the number that came after each one
    codes: list[int] = []
    last = -1
    for value in values:
        code = follows.get(last, -1)
        if code < 0 or known[code] != value:
            code = numbers.setdefault(key(value), len(known))
            if code == len(known):
                known.append(value)
            follows[last] = code
        codes.append(code)
        last = code
    return array("i", codes), list(numbers)


def _bytes(value: Any) -> bytes:
    return marshal.dumps(value, 2)


def _ids(frames: Sequence[object] | None) -> tuple[int, ...]:
    """Frames that a dump shares are one object in it."""
    return tuple(map(id, frames or ()))


def _numbers(entries: Sequence[dict[str, Any]], name: str) -> array[int]:
    """One field of all entries, 0 where it is null. TypeError if it is no integer."""
    return array("q", [value or 0 for value in map(itemgetter(name), entries)])


class _Told(NamedTuple):
    """What an entry says of itself that others say, too. `peer` counts in the group; without an op it is left out."""

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


def _kind_of(told: _Told, groups: Mapping[str, Group]) -> Kind:
    assert told.op is not None
    peer = None if told.peer is None else groups[told.group][1][told.peer]
    return Kind(told.group, told.backend, told.op, told.dtype, told.shape, peer, told.over)


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
    op = op_of(name)
    if found is None or op is None:
        return name, None, None
    return found["backend"] or "nccl", op.value, int(found["peer"]) if found["peer"] else None


def _seqs(names: Sequence[str], ids: array[int]) -> array[int]:
    """Each call's order of issue within its group: from op_id, or counted where a dump has none or repeats it."""
    several = len(set(names)) > 1
    unique = len(set(zip(names, ids, strict=True) if several else ids)) == len(ids)
    if unique and min(ids, default=0) > 0:
        return array("q", [one - 1 for one in ids])
    counts: dict[str, int] = {}
    found = array("q")
    for name in names:
        found.append(counts.get(name, 0))
        counts[name] = found[-1] + 1
    return found


class Texts:
    """What the calls of all dumps share, each distinct one once: their kinds, shapes and stacks."""

    def __init__(self) -> None:
        self.kinds: dict[Kind, int] = {}
        self.shapes: dict[tuple[tuple[int, ...], ...], int] = {}
        self.stacks: dict[tuple[Frame, ...], int] = {}
        self._told: dict[bytes, _Told] = {}
        self._stacks: dict[tuple[tuple[Any, Any, Any], ...], int] = {}

    def kind(self, kind: Kind) -> int:
        """The number of a kind. UnicodeEncodeError where a name in it is no text that a table takes."""
        "".join((kind.group, kind.backend, kind.dtype or "")).encode()
        return self.kinds.setdefault(kind, len(self.kinds))

    def told(self, key: Any) -> _Told:
        """What the fields _TOLD say, from their marshalled bytes."""
        found = self._told.get(key)
        if found is None:
            number, group, title, names, sizes, state, retired = marshal.loads(key)
            name, words = _group_of(number, group)
            backend, op, peer = _kind(title)
            shape = self.shape(sizes) if op else 0
            over = state == "completed" or (bool(retired) and backend == "gloo")
            found = _Told(str(number), name, words, title, backend, op, peer, _dtype(names), shape, over)
            self._told[key] = found
        return found

    def shape(self, sizes: Sequence[Sequence[int]]) -> int:
        key = tuple(map(tuple, sizes))
        if key not in self.shapes and not all(
            type(size) is int and 0 <= size < 1 << 62 for size in chain.from_iterable(key)
        ):
            raise ValueError(f"sizes {str(sizes)[:60]}")
        return self.shapes.setdefault(key, len(self.shapes))

    def numbered_stacks(self, stacks: Sequence[Sequence[Mapping[str, Any]] | None]) -> array[int]:
        """The number of each stack."""
        codes, keys = _numbered(stacks, _ids)
        numbers = [self._stack(stacks[codes.index(code)]) for code in range(len(keys))]
        return array("i", map(numbers.__getitem__, codes))

    def _stack(self, frames: Sequence[Mapping[str, Any]] | None) -> int:
        if not frames:
            return -1
        key = tuple((one["filename"], one["line"], one["name"]) for one in frames)
        number = self._stacks.get(key)
        if number is None:
            stack = tuple(Frame(str(file), int(line), str(name)) for file, line, name in key)
            "".join(map(str, stack)).encode()  # as in `kind`
            number = self._stacks[key] = self.stacks.setdefault(stack, len(self.stacks))
        return number


def _dtype(names: Sequence[str] | str) -> str | None:
    """The name, or names, as torch spells it."""
    words = [DTYPES.get(name, name.lower()) for name in ([names] if isinstance(names, str) else names) if name]
    return (words[0] if len(set(words)) == 1 else ",".join(words)) if words else None


def _refused(path: Path, what: str, todo: str) -> TimelineFileError:
    return TimelineFileError(f"cannot open {str(path)!r}: {what}. {todo}")
