"""A Timeline as one file, which another machine opens without torch.

The file is a zip: `header.json` (format, version, meta, endings, output, returns, calls, spans), and
one `arrays/<n>.npy` for each array in them. The same Timeline gives the same bytes on the same
machine. The zip's comment is the SHA-256 of everything before it, so a truncated or damaged file is
refused. Reading runs no code from the file: it holds no pickle, and none is accepted.

A table is kept as arrays, so that what it takes in memory is known before it is read, which is not
so with parquet. A column is an array of numbers, or its distinct values and their indices (-1: null):

    "rank":  array([0, 0, 1])          "peer": {"numbers": array([0, 1]), "known": array([False, True])}
    "op":    {"text": array(b"sendrecv"), "ends": array([4, 8]), "index": array([0, 1, -1])}
    "stack": {"type": "List(String)", "distinct": [["train.py:3 worker"]], "index": array([0, 0, 0])}

Files of version 1 have their tables as parquet, which a process of its own reads, in bounded
memory. Unknown header keys and members are ignored.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import secrets
import stat
import struct
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from lzma import LZMAError
from pathlib import Path
from tokenize import TokenError
from typing import Any, NoReturn, TypeVar

import numpy as np
import polars as pl

from joinlab._version import __version__
from joinlab.errors import TimelineFileError
from joinlab.program.plain_data import decode, encode

FORMAT = "joinlab-timeline"
FILE_VERSION = 2
HEADER = "header.json"

_FIRST_NAME_AT = 30  # offset of the first member's name in a zip
_DAMAGED = ("it is cut short or damaged", "copy it again from where it was saved, or save it again")
_SEAL = b"sha256:"
_SEAL_BYTES = len(_SEAL) + 64
_UNSEALED_HEADER = 1 << 24
_LEVEL = 1
"""Of compression: level 6 takes five times as long, for files 4 % smaller."""
_OBJECT_BYTES = 100
"""Most bytes of memory per "[", "{", "," or ":" of a JSON text: an empty list takes 56, a dict of
one key 184 for 2."""
# the earliest date of a zip: the bytes must not depend on when they were written
_DATE = (1980, 1, 1, 0, 0, 0)
_UNREADABLE = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    LookupError,
    LZMAError,
    MemoryError,
    NotImplementedError,
    OSError,  # bz2's, since everything is read from memory
    OverflowError,
    RecursionError,
    RuntimeError,
    TokenError,  # numpy's, of an array's header
    TypeError,
    ValueError,  # JSON's, numpy's and Timeline's own among them
    pl.exceptions.PolarsError,
    pl.exceptions.PanicException,
)


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a Timeline that a file holds; each ending is a dict of its fields."""

    calls: pl.DataFrame
    spans: pl.DataFrame
    ends: tuple[dict[str, Any], ...]
    meta: dict[str, object]
    returns: tuple[object, ...]
    output: tuple[str, ...]


T = TypeVar("T")


def save(parts: Parts, path: str | os.PathLike[str]) -> Path:
    """Write a Timeline's parts to `path`, replacing a file there in one step, and return that path.

    Raises OSError if the folder cannot be written to.
    """
    return write_whole(Path(path), pack(parts))


def check_writable(path: Path) -> None:
    """Raise OSError, which says what to do, if no file can be written there."""
    if not path.parent.is_dir():
        raise FileNotFoundError(
            f"cannot write {path}: there is no folder {path.parent}. Make it first."
        )
    if path.is_dir():
        raise IsADirectoryError(f"cannot write {path}: it is a folder. Name a file.")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise PermissionError(f"cannot write {path}: permission denied. Name another place.")


def write_whole(path: Path, data: bytes) -> Path:
    """Write a file whole or not at all, replacing one there in one step, and return its path.

    A link stays, and the file that it leads to is written. Raises OSError as `check_writable`, and for a
    device or a pipe.
    """
    check_writable(path)
    target = path.resolve()
    if target.exists() and not target.is_file():
        raise OSError(errno.EINVAL, "this is no regular file. Name a file to write", str(path))
    # In the same folder, so that the last step is a rename.
    draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        with draft.open("xb") as file:
            file.write(data)
        os.replace(draft, target)
    except BaseException as error:
        with suppress(OSError):
            draft.unlink()
        if isinstance(error, OSError):  # it names the draft; name the file that the caller chose
            error.filename, error.filename2 = str(path), None
        raise
    return path


MAX_BYTES = 1 << 30
"""A file is not opened if it, or what it unpacks to, is larger: 1 GiB, some 5 million calls."""


def load(
    path: str | os.PathLike[str], build: Callable[[Parts], T], max_bytes: int = MAX_BYTES
) -> T:
    """Read a Timeline that `save` wrote; `build` makes it from its parts, or refuses them with a
    ValueError.

    Raises TimelineFileError, which names the file and the fault, also if the file is not regular,
    or if it or its unpacked content is larger than `max_bytes`.
    """
    name = os.fspath(path)
    try:
        # Without O_NONBLOCK, opening a FIFO waits for a writer.
        with open(
            path,
            "rb",
            opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NONBLOCK", 0)),
        ) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                _refuse(name, "it is not a regular file", "open a file that Timeline.save wrote")
            if status.st_size > max_bytes:
                _too_large(name, f"it has {status.st_size:,} bytes", max_bytes)
            data = file.read(status.st_size + 1)
    except (OSError, ValueError) as error:
        if isinstance(error, TimelineFileError):
            raise
        if isinstance(error, OSError) and error.strerror:
            why = error.strerror
        else:
            why = str(error)
        _refuse(name, f"it cannot be read ({why})", "check the path, and that you may read it")
    return unpack(data, name, build, max_bytes)


def pack(parts: Parts) -> bytes:
    """The bytes of a file with these parts."""
    members: dict[str, bytes] = {}

    def store(npy: bytes) -> str:
        name = f"arrays/{len(members)}.npy"
        members[name] = npy
        return name

    header = {
        "format": FORMAT,
        "version": FILE_VERSION,
        "written_by": f"joinlab {__version__}",
        "meta": encode(parts.meta, store),
        "ends": parts.ends,
        "output": parts.output,
        "returns": [encode(value, store) for value in parts.returns],
        "calls": encode(_columns(parts.calls), store),
        "spans": encode(_columns(parts.spans), store),
    }
    first = {HEADER: json.dumps(header, indent=1, allow_nan=False).encode()}

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in (first | dict(sorted(members.items()))).items():
            info = zipfile.ZipInfo(name, _DATE)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = 0o644 << 16
            archive.writestr(info, content, compresslevel=_LEVEL)
        archive.comment = _SEAL + b"0" * 64  # its length is part of what is sealed
    body = buffer.getvalue()[:-_SEAL_BYTES]
    return body + _seal(body)


def unpack(data: bytes, name: str, build: Callable[[Parts], T], max_bytes: int = MAX_BYTES) -> T:
    """Pass the parts in a file's bytes to `build` and return its result; errors call the file
    `name`."""
    budget = max_bytes

    def fetch(member: str) -> bytes:
        nonlocal budget  # one budget for all reads: a header may name one large array many times
        budget -= archive.getinfo(member).file_size  # zipfile never reads more than that
        if budget < 0:
            raise _Bomb(member)
        return archive.read(member)

    # The header comes first, so these bytes identify our file even if the rest is missing.
    if not (data.startswith(b"PK\x03\x04") and data.startswith(HEADER.encode(), _FIRST_NAME_AT)):
        _refuse(name, "it is not a Timeline file", "open a file that Timeline.save wrote")
    whole = data[-_SEAL_BYTES:] == _seal(data[:-_SEAL_BYTES])
    if not whole and data[-_SEAL_BYTES:].startswith(_SEAL):
        _refuse(name, *_DAMAGED)
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
        # A file without our seal may be of another version: read only its version.
        if archive.getinfo(HEADER).file_size > (max_bytes // 4 if whole else _UNSEALED_HEADER):
            raise _Bomb(HEADER)
        text = fetch(HEADER)
        if _OBJECT_BYTES * sum(map(text.count, (b"[", b"{", b",", b":"))) > max_bytes:
            raise _Bomb(HEADER)
        header = json.loads(text)
    except _Bomb as bomb:
        _too_large(name, f"it unpacks to more, at {bomb}", max_bytes)
    except _UNREADABLE:
        _refuse(name, *_DAMAGED)
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        _refuse(
            name, "it is a zip file, but not a Timeline", "open a file that Timeline.save wrote"
        )
    version, writer = header.get("version"), header.get("written_by", "another joinlab")
    if version not in (1, FILE_VERSION):
        newer = isinstance(version, int) and version > FILE_VERSION
        if newer:
            todo = "update joinlab"
        else:
            todo = f"open it with {writer}, which wrote it"
        _refuse(
            name,
            f"its file version is {version!r}, and this joinlab opens versions 1 and {FILE_VERSION}",
            todo,
        )
    if not whole:
        _refuse(name, *_DAMAGED)
    try:
        meta = decode(header["meta"], fetch)
        if not isinstance(meta, dict):
            raise ValueError(f"meta is {meta!r}")
        calls, spans = (
            _parquet(fetch(f"{table}.parquet"), max_bytes)
            if version == 1
            else _frame(decode(header[table], fetch), max_bytes)
            for table in ("calls", "spans")
        )
        parts = Parts(
            calls=calls,
            spans=spans,
            ends=tuple(header["ends"]),
            meta=meta,
            returns=tuple(decode(value, fetch) for value in header["returns"]),
            output=tuple(header["output"]),
        )
        return build(parts)
    except _Bomb as bomb:
        _too_large(name, f"it unpacks to more, at {bomb}", max_bytes)
    except _UNREADABLE as error:
        detail = f"{type(error).__name__}: {error}".partition("\n")[0]
        _refuse(
            name,
            f"its content is not that of a Timeline ({detail})",
            "save it again with Timeline.save",
        )


class _Bomb(Exception):
    """Reading this member would take more memory than allowed."""


_TEXT_BYTES = 60
"""Memory of a short text in Python."""
_ITEM_BYTES = 16
"""Memory of a text or number in a list of polars, beside the text itself, which rows share."""
_LISTS = {str(kind): kind for kind in (pl.List(pl.String()), pl.List(pl.List(pl.Int64())))}


def _columns(frame: pl.DataFrame) -> dict[str, object]:
    """The columns of a frame as plain data and arrays: see the head of this module."""
    columns: dict[str, object] = {}
    for name, dtype in frame.schema.items():
        column = frame[name]
        if dtype == pl.Int64:
            numbers = column.fill_null(0).to_numpy()
            valid = column.is_not_null().to_numpy()
            columns[name] = {"numbers": numbers, "known": valid} if column.null_count() else numbers
            continue
        values, index = _distinct(column)
        if dtype == pl.String:
            texts = [value.encode() for value in values]
            ends = np.cumsum(list(map(len, texts)), dtype=np.int64)
            text = np.frombuffer(b"".join(texts), np.uint8)
            columns[name] = {"text": text, "ends": ends, "index": index}
        else:
            columns[name] = {"type": str(dtype), "distinct": values, "index": index}
    return columns


def _distinct(column: pl.Series) -> tuple[list[Any], np.ndarray[Any, Any]]:
    """The values of a column, each once, and for each row the index of its value; -1: null."""
    rows = pl.DataFrame({"value": column}).with_row_index("row").drop_nulls("value")
    groups = rows.group_by("value", maintain_order=True).agg("row")
    sizes = groups["row"].list.len().to_numpy()
    index = np.full(len(column), -1, np.int32)
    index[groups["row"].explode().to_numpy()] = np.repeat(np.arange(groups.height), sizes)
    return groups["value"].to_list(), index


def _frame(columns: object, max_bytes: int) -> pl.DataFrame:
    """The frame that `_columns` wrote; _Bomb if it takes more memory than allowed. ValueError or a
    PolarsError for anything else."""
    if not isinstance(columns, dict):
        raise ValueError(f"a table {columns!r:.40}")
    return pl.DataFrame([_series(name, column, max_bytes) for name, column in columns.items()])


def _series(name: str, column: object, max_bytes: int) -> pl.Series:
    match column:
        case np.ndarray():
            return pl.Series(name, column)
        case {"numbers": np.ndarray() as numbers, "known": np.ndarray() as valid}:
            both = pl.DataFrame({name: numbers, "known": valid})
            return both.select(pl.when("known").then(pl.col(name)).alias(name))[name]
        case {"text": np.ndarray() as text, "ends": np.ndarray() as ends, "index": index}:
            if _TEXT_BYTES * len(ends) + len(text) > max_bytes:
                raise _Bomb("a table's texts")
            begins = [0, *ends.tolist()]
            if begins != sorted(begins):  # else a short file could hold many long texts
                raise ValueError(f"texts of {name!r} that overlap")
            data = text.tobytes()
            texts = [data[begin:end].decode() for begin, end in pairwise(begins)]
            values = pl.Series(name, texts, pl.String())
        case {"type": str(kind), "distinct": list(distinct), "index": np.ndarray() as index}:
            items = np.array([*map(_items, distinct), 0])  # the last: of a row that is null
            if _ITEM_BYTES * int(items[index].sum()) > max_bytes:
                raise _Bomb("a table's lists")
            values = pl.Series(name, distinct, _LISTS[kind])
        case _:
            raise ValueError(f"a column {name!r} of another form")
    return values.gather(pl.Series(index).replace(-1, None))


def _items(value: object) -> int:
    """How many texts and numbers a value of a table holds."""
    if isinstance(value, list):
        return 1 + sum(map(_items, value))
    return 1


_READ_PARQUET = """
import io, resource, sys
import polars
polars.select(1).write_ipc(io.BytesIO())  # what polars takes for itself is taken by now
with open("/proc/self/statm") as statm:
    taken = int(statm.read().split()[0]) * resource.getpagesize()
most = taken + int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_AS, (most, most))
polars.read_parquet(io.BytesIO(sys.stdin.buffer.read())).write_ipc(sys.stdout.buffer)
"""


def _parquet(parquet: bytes, max_bytes: int) -> pl.DataFrame:
    """The frame in a parquet file.

    polars allocates what a file claims to hold before it reads it, and a failed allocation ends the
    process. So another process reads it, which may take `max_bytes`; _Bomb if it ends.
    """
    command = [sys.executable, "-I", "-c", _READ_PARQUET, str(max_bytes)]
    done = subprocess.run(command, input=parquet, capture_output=True)
    if done.returncode:
        raise _Bomb("a table")
    return pl.read_ipc(io.BytesIO(done.stdout))


def _too_large(name: str, problem: str, max_bytes: int) -> NoReturn:
    _refuse(
        name,
        f"{problem}, and max_bytes={max_bytes:,}",
        "if you trust it, load it with a larger max_bytes",
    )


def _seal(body: bytes) -> bytes:
    return _SEAL + hashlib.sha256(body).hexdigest().encode("ascii")


def _refuse(name: str, problem: str, todo: str) -> NoReturn:
    raise TimelineFileError(f"cannot open {name!r}: {problem}. {todo[0].upper()}{todo[1:]}.")
