"""Damaged and hostile files for the drills (drills.py): joinlab reads each whole, or refuses it by
name."""

from __future__ import annotations

import gzip
import json
import math
import os
import pickle
import random
import tempfile
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

import joinlab
from joinlab import archive
from joinlab.errors import TimelineFileError
from joinlab.picture.first_screen import first_screen
from joinlab.picture.svg import svg
from tests import dumps, parallel_jobs
from tests.backend.test_archive import opened, packed, repacked, sample, with_columns, with_table
from tests.timelines import same_timelines

MAX_BYTES = 1 << 26
"""Of every `load` here, so that a file of a few kB that takes more memory than that shows."""

RECORD = (
    b'{"e":"begin","rank":0,"t":100,"pid":1,"host":"a","world":2,"wall":5,"keep":2000}\n'
    b'{"e":"group","name":"0","ranks":[0,1],"backend":"gloo","t":110}\n'
    b'{"e":"stack","id":0,"f":["a.py:1 worker"],"site":"a.py:1"}\n'
    b'{"e":"call","id":0,"s":0,"i":0,"n":1,"st":0,"g":"0","op":"all_reduce","o":"all-reduce","d":"float32","sh":[[1]],'
    b'"v":[[1.0]],"t":130}\n'
    b'{"e":"wait","id":[0],"t":140,"th":7,"n":1}\n{"e":"done","id":0,"t":150,"v":[[2.0]]}\n'
    b'{"e":"wake","id":[0],"t":160,"th":7}\n{"e":"return"}\n'
)
WORDS = (
    b"null",
    b"-1",
    b"[]",
    b"{}",
    b'"x"',
    b"1e999",
    b"99999999999999999999",
    b"\xff\xfe",
    b"\n",
    b"\0",
)
VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        -1,
        0,
        1,
        2**31,
        2**63,
        2**70,
        1e308,
        math.nan,
        math.inf,
        "",
        "x",
        "\x1b]0;x\x07",
        "\ud800",
        "9" * 5000,
    ),
    *([], {}, [[]], [None], {"": None}, [0] * 50, {"x": [1]}, json.loads("[" * 60 + "]" * 60)),
)


def disturbed(data: bytes, draw: random.Random) -> bytes:
    """A few places overwritten, cut out or doubled."""
    text = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(text)) if text else 0
        end = min(at + draw.choice((0, 1, 1, 5, 40)), len(text))
        text[at:end] = draw.choice((*WORDS, bytes([draw.randrange(256)]), text[at:end] * 2, b""))
    return bytes(text if draw.random() < 0.9 else text[: draw.randrange(len(text) + 1)])


def changed(value: Any, draw: random.Random) -> Any:
    """JSON with one value somewhere in it replaced, or one key missing."""
    if isinstance(value, (dict, list)) and value and draw.random() < 0.85:
        key = draw.choice(list(value) if isinstance(value, dict) else range(len(value)))
        copy = value.copy()
        if draw.random() < 0.1:
            del copy[key]
        else:
            copy[key] = changed(value[key], draw)
        return copy
    return draw.choice(VALUES)


def record(draw: random.Random, folder: Path) -> Path:
    (folder / "rank-0.0.jsonl").write_bytes(disturbed(RECORD, draw))
    return folder


def archive_damaged(draw: random.Random, folder: Path) -> Path:
    return _file(folder, disturbed(SAVED, draw))


def archive_resealed(draw: random.Random, folder: Path) -> Path:
    """A stranger's file: its seal fits, but joinlab did not write its content."""
    data = draw.choice((SAVED, *_runs()))
    members = _members(data)
    match draw.randrange(4):
        case 0 | 1:
            header = json.loads(members[archive.HEADER])
            for _ in range(draw.randint(1, 3)):
                part = isinstance(header, dict) and draw.random() < 0.5 and "meta" in header
                header = (
                    header | {"meta": changed(header["meta"], draw)}
                    if part
                    else changed(header, draw)
                )
            change = {archive.HEADER: json.dumps(header).encode()}
        case 2:
            name = draw.choice(list(members))
            change = {name: disturbed(members[name], draw)}
        case _:
            return _file(folder, with_table(_frame(draw, opened(data).calls), data=data))
    return _file(folder, repacked(change, data=data))


@cache
def _runs() -> tuple[bytes, ...]:
    """Runs whose meta says what a watchdog, a parting, a fix and a flight recorder tell."""
    cases = joinlab.cases
    runs = [joinlab.emulate(one, (2, 3), backend="nccl") for one in (cases.case_2, cases.case_4)]
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dumps.write(Path(folder), parallel_jobs.dumps(parallel_jobs.draw(3)))
        runs.append(joinlab.load(folder))
    for one in runs:
        joinlab.diagnose(one)
    return tuple(map(packed, runs))


def _members(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(BytesIO(data)) as opened:
        return {name: opened.read(name) for name in opened.namelist()}


def _frame(draw: random.Random, frame: pl.DataFrame) -> pl.DataFrame:
    """The calls with a column missing, doubled, of another type, or with values out of range."""
    name = draw.choice(frame.columns)
    made: pl.Expr = draw.choice(
        (
            pl.lit(draw.choice((-1, 2**62, 10**6))).cast(pl.Int64),
            pl.lit(None),
            pl.lit(draw.choice(("x", "[" * 100, "[[1e999]]", "\x1b[2J", '{"a":1}'))),
            pl.col("seq").cast(pl.String),
            pl.lit([["x"]]),
        )
    )
    frame = frame.drop(name) if draw.random() < 0.15 else frame.with_columns(made.alias(name))
    return pl.concat([frame] * 2) if draw.random() < 0.2 else frame


def dump(draw: random.Random, folder: Path) -> Path:
    """Flight recorder dumps of a small job, one of them damaged, now and then beside files of
    others."""
    job = replace(parallel_jobs.draw(draw.randrange(20)), form="ring")
    found = dumps.of_pairs() if draw.random() < 0.3 else parallel_jobs.dumps(job)
    for rank, content in found.items():
        as_json = draw.random() < 0.5
        if rank == min(found) and draw.random() < 0.6:
            content = (
                spread(content, "entries", draw) if draw.random() < 0.4 else changed(content, draw)
            )
        data = json.dumps(content).encode() if as_json else pickle.dumps(content)
        data = disturbed(data, draw) if rank == min(found) and draw.random() < 0.5 else data
        (folder / f"dump_{rank}").write_bytes(data)
    if draw.random() < 0.3:
        for number in range(draw.randint(1, 9)):
            name = draw.choice(
                (f"step_{number}.json", f"config{number}", f"dump_0{number}", f"x{number}.gz")
            )
            (folder / name).write_bytes(
                draw.choice((b"", b"{}", b"{", b"\x80\x02}.", b"\x1f\x8b", gzip.compress(b"{")))
            )
    return folder


def spread(content: dict[str, Any], name: str, draw: random.Random) -> dict[str, Any]:
    """The content with one field of most of its entries replaced: by one value, or by one each."""
    entries = content[name]
    field, value = draw.choice(sorted(set().union(*entries))), draw.choice(VALUES)
    alike = draw.random() < 0.5
    changed = [
        entry | {field: value if alike else draw.choice(VALUES)} if draw.random() < 0.8 else entry
        for entry in entries
    ]
    return content | {name: changed}


def trace(draw: random.Random, folder: Path) -> Path:
    for rank in range(2):
        content = dumps.nccl_trace(rank, (1, 2))
        if rank:
            content = (
                spread(content, "traceEvents", draw)
                if draw.random() < 0.3
                else changed(content, draw)
            )
        data = json.dumps(content).encode()
        data = disturbed(data, draw) if rank and draw.random() < 0.3 else data
        data = gzip.compress(data) if draw.random() < 0.3 else data
        (folder / f"trace_{rank}.json").write_bytes(
            data[: -draw.randint(1, 40)] if draw.random() < 0.1 else data
        )
    return folder


def hostile(draw: random.Random, folder: Path) -> Path:
    """Small files whose reading could take much memory or time, or never end."""
    path = folder / "x"
    size = draw.choice((MAX_BYTES // 2, MAX_BYTES * 3))
    match draw.randrange(11):
        case 0:
            os.mkfifo(path)
        case 1:
            path.symlink_to(
                draw.choice(
                    ("/dev/zero", "/dev/null", "/dev/stdin", "/proc/self/mem", "x", "missing")
                )
            )
        case 2:
            with path.open("wb") as file:
                file.truncate(20 << 30)  # sparse
        case 3:
            path.write_bytes(_zip({archive.HEADER: b" " * size}))
        case 4:
            sealed = repacked(
                {archive.HEADER: b" " * size + SAVED_MEMBERS[archive.HEADER]},
                data=SAVED,
                deflate=True,
            )
            path.write_bytes(sealed)
        case 5:
            text = b"[" + draw.choice((b"[],", b"{},", b'{"a":{}},', b"0,")) * (size // 16) + b"0]"
            path.write_bytes(repacked({archive.HEADER: text}, data=SAVED, deflate=True))
        case 6:
            deep = draw.choice((b"[", b'{"a":')) * draw.choice((900, 100_000))
            path.write_bytes(repacked({archive.HEADER: deep}, data=SAVED))
        case 7:
            ranks = np.zeros(size // 8, np.int64)
            path.write_bytes(with_columns({"rank": ranks}, data=SAVED, deflate=True))
        case 8:
            stack = {"type": "List(String)", "distinct": [["f"] * (size // 1000)]}
            stack["index"] = np.zeros(1000, np.int32)
            path.write_bytes(with_columns({"stack": stack}, data=SAVED))
        case 9:
            header = json.loads(SAVED_MEMBERS[archive.HEADER])
            array = (
                b"\x93NUMPY\x01\x00v\x00{'descr': '<f8', 'fortran_order': False, 'shape': (%d,), }"
                % (1 << 40)
            )
            header["returns"] = [{"$": "array", "at": "arrays/0.npy"}] * 2
            new = {
                archive.HEADER: json.dumps(header).encode(),
                "arrays/0.npy": array.ljust(127) + b"\n",
            }
            path.write_bytes(repacked(new, data=SAVED))
        case _:
            path.write_bytes(
                pickle.dumps(_Calls())
                if draw.random() < 0.5
                else b"\x80\x04\x8e" + b"\xff" * 7 + b"\x7f"
            )
    return path


class _Calls:
    """Pickled, it names a function that a careless reader would call."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("a folder that a pickle made",)


def _zip(members: dict[str, bytes]) -> bytes:
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return buffer.getvalue()


def _file(folder: Path, data: bytes) -> Path:
    path = folder / "x.joinlab"
    path.write_bytes(data)
    return path


META = {
    "program": "worker",
    "engine": "launched",
    "backend": "gloo",
    "transport": "sockets",
    "inputs": (5, 6),
    "world_size": 2,
    "seeds": [0, 0],
    "verdict_ns": 10**15,
    "groups": {"0": [0, 1]},
    "group_names": {"0": "all"},
    "skipped": {"0": {0: 3, 1: 2}},
    "progress": {"0": {0: {"enqueued": 4, "completed": 3}}},
    "problems": ["one"],
    "source": {"file": "train.py", "first_line": 1, "text": "def worker():\n    pass\n"},
    "clock": {"domain": "monotonic", "origin_ns": 5, "hosts": {"a": 0}},
}
SAVED = packed(sample(meta=META, returns=(np.arange(3.0), {"a": [1, None]})))
SAVED_MEMBERS = _members(SAVED)

FILES: dict[str, tuple[int, Callable[[random.Random, Path], Path]]] = {
    "record, damaged": (30, record),
    "archive, damaged": (20, archive_damaged),
    "archive, resealed": (30, archive_resealed),
    "dump, damaged": (12, dump),
    "trace, damaged": (5, trace),
    "hostile": (3, hostile),
}
"""How often each is drawn, of 100, and what it writes."""


def open_one(path: Path) -> str:
    """ "read", "refused", or "WRONG: ..."."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            timeline = joinlab.load(path, MAX_BYTES)
        str(joinlab.diagnose(timeline)).encode()
        svg(first_screen(timeline)).encode()
        saved = Path(tempfile.mkstemp()[1])
        try:
            if not same_timelines(joinlab.load(timeline.save(saved)), timeline):
                return "WRONG: another one comes back from a file"
        finally:
            saved.unlink()
    except TimelineFileError as error:
        return (
            "refused"
            if str(path) in str(error) and "\n" not in str(error)
            else f"WRONG: it says {error}"
        )
    except Exception as error:
        return f"WRONG: {type(error).__name__}: {error}"
    return "read"
