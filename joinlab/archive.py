"""A Timeline as one file, which another machine opens without torch.

The file is a zip: `header.json` (format, version, meta, endings, output, returns), `calls.parquet`,
`spans.parquet`, and one `arrays/<n>.npy` for each array that a rank returned. The same Timeline
gives the same bytes on the same machine. The zip's comment is the SHA-256 of everything before it,
so a truncated or damaged file is refused. Reading runs no code from the file: it holds no pickle,
and none is accepted.

Only files of this FILE_VERSION are opened. Unknown header keys and members are ignored.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import secrets
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from lzma import LZMAError
from pathlib import Path
from tokenize import TokenError
from typing import Any, NoReturn, TypeVar

import polars as pl

from joinlab._version import __version__
from joinlab.errors import TimelineFileError
from joinlab.program import parquet_footer
from joinlab.program.plain_data import decode, encode

FORMAT = "joinlab-timeline"
FILE_VERSION = 1
HEADER = "header.json"

_FIRST_NAME_AT = 30  # offset of the first member's name in a zip
_DAMAGED = ("it is cut short or damaged", "copy it again from where it was saved, or save it again")
_SEAL = b"sha256:"
_SEAL_BYTES = len(_SEAL) + 64
_UNSEALED_HEADER = 1 << 24
_OBJECT_BYTES = 100
"""Most bytes of memory per "[", "{", "," or ":" of a JSON text: an empty list takes 56, a dict of
one key 184 for 2."""
_DATE = (
    1980,
    1,
    1,
    0,
    0,
    0,
)  # the earliest date of a zip: the bytes must not depend on when they were written
_UNREADABLE = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    KeyError,
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
    meta: dict[str, Any]
    returns: tuple[Any, ...]
    output: tuple[str, ...]


T = TypeVar("T")


def save(parts: Parts, path: str | os.PathLike[str]) -> Path:
    """Write a Timeline's parts to `path`, replacing a file there in one step, and return that path.

    Raises OSError if the folder cannot be written to.
    """
    return write_whole(Path(path), pack(parts))


def write_whole(path: Path, data: bytes) -> Path:
    """Write a file whole or not at all, replacing one there in one step, and return its path."""
    # In the same folder, so that the last step is a rename.
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with draft.open("xb") as file:
            file.write(data)
        os.replace(draft, path)
    except BaseException:
        with suppress(OSError):
            draft.unlink()
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
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode):
                _refuse(name, "it is not a regular file", "open a file that Timeline.save wrote")
            if about.st_size > max_bytes:
                _too_large(name, f"it has {about.st_size:,} bytes", max_bytes)
            data = file.read(about.st_size + 1)
    except (OSError, ValueError) as error:
        if isinstance(error, TimelineFileError):
            raise
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
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
    }
    for name, frame in (("calls", parts.calls), ("spans", parts.spans)):
        parquet = io.BytesIO()
        frame.write_parquet(parquet)
        members[f"{name}.parquet"] = parquet.getvalue()
    first = {HEADER: json.dumps(header, indent=1, allow_nan=False).encode()}

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in (first | dict(sorted(members.items()))).items():
            info = zipfile.ZipInfo(name, _DATE)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = 0o644 << 16
            archive.writestr(info, content)
        archive.comment = _SEAL + b"0" * 64  # its length is part of what is sealed
    body = buffer.getvalue()[:-_SEAL_BYTES]
    return body + _seal(body)


def unpack(data: bytes, name: str, build: Callable[[Parts], T], max_bytes: int = MAX_BYTES) -> T:
    """Pass the parts in a file's bytes to `build` and return its result; errors call the file
    `name`."""
    left = max_bytes

    def fetch(member: str) -> bytes:
        nonlocal left  # one budget for all reads: a header may name one large array many times
        left -= archive.getinfo(member).file_size  # zipfile never reads more than that
        if left < 0:
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
    if version != FILE_VERSION:
        newer = isinstance(version, int) and version > FILE_VERSION
        todo = "update joinlab" if newer else f"open it with {writer}, which wrote it"
        _refuse(
            name,
            f"its file version is {version!r}, and this joinlab opens version {FILE_VERSION}",
            todo,
        )
    if not whole:
        _refuse(name, *_DAMAGED)
    try:
        meta = decode(header["meta"], fetch)
        if not isinstance(meta, dict):
            raise ValueError(f"meta is {meta!r}")
        parts = Parts(
            calls=_frame(fetch("calls.parquet"), max_bytes),
            spans=_frame(fetch("spans.parquet"), max_bytes),
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


def _frame(parquet: bytes, max_bytes: int) -> pl.DataFrame:
    """The frame in a parquet file. Raises _Bomb if its footer claims more memory than allowed."""
    if parquet_footer.room(parquet) > max_bytes:
        raise _Bomb("a table's values")
    return pl.read_parquet(io.BytesIO(parquet))


def _too_large(name: str, what: str, max_bytes: int) -> NoReturn:
    _refuse(
        name,
        f"{what}, and max_bytes={max_bytes:,}",
        "if you trust it, load it with a larger max_bytes",
    )


def _seal(body: bytes) -> bytes:
    return _SEAL + hashlib.sha256(body).hexdigest().encode("ascii")


def _refuse(name: str, what: str, todo: str) -> NoReturn:
    raise TimelineFileError(f"cannot open {name!r}: {what}. {todo[0].upper()}{todo[1:]}.")
