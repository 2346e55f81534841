"""Reads dumps and traces: one file, or those of many ranks in several processes at once.

Unpickling holds the interpreter, so threads do not help. Each process takes the next file that none has taken, by
reading its number from a pipe that all share. A further one loads neither polars nor torch, and answers in one message:
256 dumps of 2,000 calls are 26 MB of numbers, where their objects would be 1 GB. A file that it could not read is left
to the caller, and all of its files if it ends early.
"""

from __future__ import annotations

import os
import pickle
import stat
import subprocess
import sys
from array import array
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from joinlab.errors import TimelineFileError
from joinlab.importers import dump, kineto, safe_pickle
from joinlab.importers.dump import Calls, Dump, Kind, Texts
from joinlab.program.labels import Frame

FEWEST_BYTES = 8 << 20
"""Files of fewer bytes together are read sooner by this process alone: another one takes 0.1 s to begin."""

MOST_PROCESSES = 4

_CODE = "import sys; sys.path.insert(0, sys.argv[1]); from joinlab.importers.reading import answer; answer()"


def read(file: Path, texts: Texts) -> Dump:
    """The dump or trace in a file. Raises TimelineFileError, which names it, or OSError."""
    data, whole = _bytes(file), True
    if kineto.looks_zipped(data):
        data, whole = kineto.unzipped(file, data)
    if kineto.is_trace(data):
        return kineto.check(file, data, texts)
    if not whole:
        raise TimelineFileError(f"cannot open {str(file)!r}: it is cut short. Copy it again.")
    return dump.check(file, dump.parsed(file, data), texts)


def status_of(file: Path) -> os.stat_result:
    """What the system says of a file. A pipe or a device is refused: reading it might never end."""
    status = file.stat()
    if not stat.S_ISREG(status.st_mode):
        raise TimelineFileError(f"cannot open {str(file)!r}: it is no regular file. Name a file or a folder.")
    return status


def _bytes(file: Path) -> bytes:
    size = status_of(file).st_size
    if size > dump.MAX_BYTES:
        raise TimelineFileError(
            f"cannot open {str(file)!r}: it has {size:,} bytes, and at most {dump.MAX_BYTES:,} of a dump "
            "are read. Set TORCH_FR_BUFFER_SIZE lower for the next run."
        )
    return file.read_bytes()


class Readers:
    """Further processes that read files together with this one; they end with the block that it is the context of."""

    def __init__(self, files: Sequence[Path]) -> None:
        large = sum(one.stat().st_size for one in files) >= FEWEST_BYTES
        cores = len(os.sched_getaffinity(0)) if large and hasattr(os, "sched_getaffinity") else 1
        self._others = min(cores, MOST_PROCESSES) - 1
        self._files = files
        self._running: list[subprocess.Popen[bytes]] = []

    def own(self) -> Iterator[Path]:
        """The files for this process: the next one that no other has taken, as long as there is one."""
        return _taken(self._files, self._numbers)

    def results(self, texts: Texts) -> Iterator[Dump]:
        """What the others read, once they have."""
        for process in self._running:
            assert process.stdout is not None
            with suppress(*safe_pickle.UNREADABLE):
                yield from _unpacked(safe_pickle.load(process.stdout.read()), texts)

    def __enter__(self) -> Self:
        self._numbers = _numbers(len(self._files))
        for _ in range(self._others):
            with suppress(OSError):  # no process can be had
                self._running.append(_begun(self._files, self._numbers))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for process in self._running:
            process.kill()
            process.communicate()
        os.close(self._numbers)


_MOST_NUMBERS = 1000  # of four bytes each: the smallest pipe of Linux holds 4,096


def _numbers(count: int) -> int:
    """A pipe with the numbers of files, or, of very many, of the first ones of stretches of files."""
    reads, writes = os.pipe()
    os.write(writes, array("i", range(0, count, _stretch(count))).tobytes())
    os.close(writes)
    return reads


def _stretch(count: int) -> int:
    return 1 + count // _MOST_NUMBERS


def _taken(files: Sequence[Path], numbers: int) -> Iterator[Path]:
    """The files whose numbers this process is the one to read from the pipe."""
    while number := os.read(numbers, 4):
        (begin,) = array("i", number)
        yield from files[begin : begin + _stretch(len(files))]


def _begun(files: Sequence[Path], numbers: int) -> subprocess.Popen[bytes]:
    folder = str(Path(__file__).parents[2])
    command = [sys.executable, "-I", "-S", "-c", _CODE, folder]  # without what site-packages would load: 20 ms
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, pass_fds=[numbers])
    assert process.stdin is not None
    with suppress(OSError):  # it has ended already
        pickle.dump((numbers, [os.fspath(one) for one in files]), process.stdin)
        process.stdin.flush()
    return process


def answer() -> None:
    """What a further process does: read some of the files that stdin names, and write what they say to stdout."""
    texts = Texts()
    packed = []
    numbers, names = pickle.load(sys.stdin.buffer)
    with dump.no_collection():
        for file in _taken(list(map(Path, names)), numbers):
            with suppress(TimelineFileError, OSError):
                packed.append(_packed(read(file, texts)))
    tables = [list(map(tuple, texts.kinds)), list(texts.shapes)]
    stacks = [[(one.file, one.line, one.function) for one in stack] for stack in texts.stacks]
    pickle.dump((packed, *tables, stacks), sys.stdout.buffer, protocol=5)
    sys.stdout.flush()


_FIELDS = ("rank", "file", "form", "library", "groups", "status", "numbers", "problems")
_COLUMNS = ("kind", "stack", "number", "paired", "seq", "enqueued_ns", "started_ns", "completed_ns")


def _packed(one: Dump) -> tuple[list[Any], list[tuple[str, bytes]]]:
    """A dump as plain data: its fields, and its columns with the letter of their type."""
    columns: list[array[int]] = [getattr(one.calls, name) for name in _COLUMNS]
    return [getattr(one, name) for name in _FIELDS], [(column.typecode, column.tobytes()) for column in columns]


def _unpacked(message: Any, texts: Texts) -> Iterator[Dump]:
    """The dumps that another process read, their numbers as `texts` gives them."""
    import numpy as np  # not above: the processes that only read do without it

    packed, kinds, shapes, stacks = message
    shape_of = [texts.shapes.setdefault(shape, len(texts.shapes)) for shape in shapes]
    kind_of = [texts.kind(one._replace(shape=shape_of[one.shape])) for one in map(Kind._make, kinds)]
    frames = [tuple(Frame(*one) for one in stack) for stack in stacks]
    stack_of = [texts.stacks.setdefault(stack, len(texts.stacks)) for stack in frames]
    stack_of.append(-1)  # what stack_of[-1] gives: no stack
    for fields, columns in packed:
        kind, stack, *rest = (array(code, data) for code, data in columns)
        kind, stack = (
            array("i", np.array(table, np.int32)[column].tobytes())
            for table, column in ((kind_of, kind), (stack_of, stack))
        )
        yield Dump(**dict(zip(_FIELDS, fields, strict=True)), calls=Calls(kind, stack, *rest))
