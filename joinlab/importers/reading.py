"""Reads dumps and traces: one file, or those of many ranks in several processes at once.

Unpickling holds the interpreter, so threads do not help. Each further process reads every n-th file into numbers, loads
neither polars nor torch, and answers in one message: 256 dumps of 2,000 calls are 26 MB of numbers, where their objects
would be 1 GB. A file that a process could not read is left to the caller, and all of its files if it ends early.
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
    """Further processes that read some of the files; they end with the block that it is the context of.

    own    the files for this process
    given  those that the others read
    """

    def __init__(self, files: Sequence[Path]) -> None:
        large = sum(one.stat().st_size for one in files) >= FEWEST_BYTES
        count = min(len(os.sched_getaffinity(0)), MOST_PROCESSES) if large and hasattr(os, "sched_getaffinity") else 1
        self.own = files[::count]
        self._shares = [files[at::count] for at in range(1, count)]
        self._running: list[subprocess.Popen[bytes]] = []

    @property
    def given(self) -> list[Path]:
        return [one for share in self._shares for one in share]

    def results(self, texts: Texts) -> Iterator[Dump]:
        """What the others read, once they have."""
        for process in self._running:
            output, _ = process.communicate()
            with suppress(*safe_pickle.UNREADABLE):
                yield from _unpacked(safe_pickle.load(output), texts)

    def __enter__(self) -> Self:
        for share in self._shares:
            with suppress(OSError):  # no process can be had: the caller reads its files
                self._running.append(_begun(share))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for process in self._running:
            process.kill()
            process.communicate()


def _begun(files: Sequence[Path]) -> subprocess.Popen[bytes]:
    folder = str(Path(__file__).parents[2])
    command = [sys.executable, "-I", "-S", "-c", _CODE, folder]  # without what site-packages would load: 20 ms
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
    assert process.stdin is not None
    with suppress(OSError):  # it has ended already
        pickle.dump([os.fspath(one) for one in files], process.stdin)
        process.stdin.flush()
    return process


def answer() -> None:
    """What a further process does: read the files that stdin names, and write what they say to stdout."""
    texts = Texts()
    packed = []
    with dump.no_collection():
        for name in pickle.load(sys.stdin.buffer):
            with suppress(TimelineFileError, OSError):
                packed.append(_packed(read(Path(name), texts)))
    tables = [list(map(tuple, texts.kinds)), list(texts.shapes)]
    stacks = [[(one.file, one.line, one.function) for one in stack] for stack in texts.stacks]
    pickle.dump((packed, *tables, stacks), sys.stdout.buffer, protocol=5)
    sys.stdout.flush()


_FIELDS = ("rank", "file", "form", "library", "groups", "status", "numbers", "problems")
_COLUMNS = ("kind", "stack", "number", "seq", "enqueued_ns", "started_ns", "completed_ns")


def _packed(one: Dump) -> tuple[list[Any], list[tuple[str, bytes]]]:
    """A dump as plain data: its fields, and its columns with the letter of their type."""
    columns: list[array[int]] = [getattr(one.calls, name) for name in _COLUMNS]
    return [getattr(one, name) for name in _FIELDS], [(column.typecode, column.tobytes()) for column in columns]


def _unpacked(message: Any, texts: Texts) -> Iterator[Dump]:
    """The dumps that another process read, their numbers as `texts` gives them."""
    packed, kinds, shapes, stacks = message
    shape_of = [texts.shapes.setdefault(shape, len(texts.shapes)) for shape in shapes]
    kind_of = [texts.kind(one._replace(shape=shape_of[one.shape])) for one in map(Kind._make, kinds)]
    frames = [tuple(Frame(*one) for one in stack) for stack in stacks]
    stack_of = [texts.stacks.setdefault(stack, len(texts.stacks)) for stack in frames]
    stack_of.append(-1)  # what stack_of[-1] gives: no stack
    for fields, columns in packed:
        calls = Calls(*(array(code, data) for code, data in columns))
        kind, stack = (
            array("i", map(table.__getitem__, column))
            for table, column in ((kind_of, calls.kind), (stack_of, calls.stack))
        )
        rest = (calls.number, calls.seq, calls.enqueued_ns, calls.started_ns, calls.completed_ns)
        yield Dump(**dict(zip(_FIELDS, fields, strict=True)), calls=Calls(kind, stack, *rest))
