"""The event log that one rank appends to while it runs. rank_log.py makes rows of these events.

Each rank writes one file of JSON lines through a shared memory mapping. An append is a copy in
memory without a system call, and it survives SIGKILL, an abort in C++ and os._exit. (A `write` per
event made the step of a tiny model half as long again, since each lets other threads run.) The file
is longer than its text, which ends at the first zero byte. Times are of the monotonic clock; the
reader subtracts the start of the run.
program/log_events.py describes the events.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import re
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from joinlab.program.log_events import Event, RecordLost, encode

CHUNK = 1 << 18
"""A log grows by at least this many bytes."""
MOST_AHEAD = 1 << 20
"""A log's file is longer than its text by at most this much."""
MADV_POPULATE_WRITE = 23
"""From Linux 5.14, include/uapi/asm-generic/mman-common.h."""
RESERVE = 512
"""Bytes at the end of a log reserved for the event that says that the disk is full."""

now = time.monotonic_ns
"""The clock of every event: int nanoseconds, one for all ranks of a host."""


def log_name(rank: int) -> str:
    """File name of a rank's log within the run's folder."""
    return f"rank-{rank}.events.jsonl"


def output_name(rank: int) -> str:
    """File name of a rank's output."""
    return f"rank-{rank}.out"


def return_name(rank: int) -> str:
    """File name of the return value of a rank's program."""
    return f"rank-{rank}.return.json"


class EventLog:
    """Appends events to one rank's file. Safe to call from several threads."""

    __slots__ = (
        "__weakref__",
        "_end",
        "_fd",
        "_file",
        "_full_at",
        "_lock",
        "_map",
        "_on_failure",
        "_put",
        "failed",
        "segment",
    )

    _end: int  # end of the text, once the mapping is sealed
    _fd: int
    _file: tuple[int, int] | None
    _full_at: int  # the file takes at most this many bytes of text
    _map: mmap.mmap
    _put: Callable[[bytes], object]

    def __init__(
        self, path: Path, on_failure: Callable[[Exception], None], full_at: int = sys.maxsize
    ) -> None:
        """Create the file, or raise OSError. `on_failure` is called once if it cannot grow later (a
        full disk)."""
        self._lock = threading.RLock()
        self._on_failure = on_failure
        self._full_at = full_at
        self.failed = False
        self.segment = 0
        """Number of the current file; a BoundedLog has several."""
        self._begin(path)
        LOGS.add(self)

    @property
    def position(self) -> tuple[int, int]:
        """The position of the next event; it changes with each event."""
        return self.segment, self._map.tell()

    def write(self, event: Event) -> None:
        self.write_text(line_of(event))

    def write_text(self, lines: str) -> int:
        """Append events that the caller has formatted, each with its line break; returns the
        segment that has them.

        The hot path: one C call copies the lines behind the last event. The GIL makes it atomic, so
        it takes no lock, which would cost 1.4 us in each of a step's eight appends. Code that
        replaces the mapping seals it first.
        """
        data = lines.encode()
        segment = self.segment
        try:
            self._put(data)
        except ValueError:  # it does not fit
            return self._put_in_room(data)
        return segment

    def _put_in_room(self, data: bytes) -> int:
        with self._lock:
            room = not self.failed
            while room:
                with suppress(ValueError):  # other threads may take the room
                    self._put(data)
                    break
                room = self._make_room(len(data))
            return self.segment

    def lose(self, error: Exception) -> None:
        """Write a last event that says that the rest is lost; without it the rank would look
        killed."""
        if not self.failed:
            self.stop()
            text = f"{type(error).__name__}: {error}"[: RESERVE // 4]
            with suppress(OSError):
                line = line_of(RecordLost(text=text, time_ns=now()))
                os.pwrite(self._fd, line.encode(), self._end)

    def give_up(self, error: Exception) -> None:
        """Stop recording after an error, and say so once. The events so far stay."""
        if not self.failed:
            self.lose(error)
            self._on_failure(error)

    def stop(self) -> None:
        self._seal()
        self.failed = True

    def close(self) -> None:
        """Truncate the file after its last event. Later events are lost."""
        with self._lock:
            end = None if self.failed else self._seal()
            if self._fd >= 0:
                cut(self._fd, end)
                self._fd = -1
            self.stop()
            self._map = mmap.mmap(-1, 1)  # the other one holds a descriptor of the file

    def _begin(self, path: Path, text: bytes = b"") -> None:
        """Create the file, beginning with this text."""
        # Other users may write to the folder: follow no link, and replace only the first file,
        # which is reserved.
        new = os.O_EXCL if self.segment else os.O_TRUNC
        fd = os.open(
            path, os.O_RDWR | os.O_CREAT | new | getattr(os, "O_NOFOLLOW", 0) | os.O_CLOEXEC, 0o600
        )
        try:
            mapped = _mapped(fd, len(text) + CHUNK, self._full_at, 0)
        except OSError:
            os.close(fd)
            raise
        mapped.write(text)
        self._fd, self._file = fd, file_of(fd)
        self._go_on_in(mapped)

    def _go_on_in(self, mapped: mmap.mmap) -> None:
        self._map = mapped
        self._put = mapped.write

    def _seal(self) -> int:
        """Let no further event into the mapping, also from other threads; return the end of its
        text."""
        if self._put is not _refuse:
            self._put = _refuse
            position = self._map.tell()
            self._map.seek(0, os.SEEK_END)
            end = self._map.find(b"\0", position)  # behind what another thread has put since
            self._end = len(self._map) if end < 0 else end
            if file_of(self._fd) != self._file:
                self._fd = -1
                # nor may the mapping close its descriptor
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._map))
        return self._end

    def _make_room(self, size: int) -> bool:
        """Make room for `size` bytes; False if that fails. The caller holds the lock."""
        return self._grow(self._seal(), size)

    def _grow(self, end: int, size: int) -> bool:
        try:
            whole = end + size + min(max(len(self._map), CHUNK), MOST_AHEAD)
            mapped = _mapped(self._fd, whole, self._full_at, end)
        except OSError as error:  # recording ends here; the program goes on
            self.give_up(error)
            return False
        mapped.seek(end)
        self._go_on_in(mapped)
        return True


def nowhere() -> EventLog:
    """A log whose file has no name, for a process that has no run yet."""
    with tempfile.TemporaryDirectory() as folder:
        return EventLog(Path(folder) / "log", lambda error: None)


def _mapped(fd: int, size: int, limit: int, end: int) -> mmap.mmap:
    """The log's file, made `size` bytes long and mapped but for the last RESERVE, so that a zero
    byte ends the text.

    At most `limit` bytes are mapped. The pages from `end` on are made ready for writing together: of
    1,000 appends the slowest took 130 to 190 us, and 50 to 66 us since, beside a process that
    writes and syncs files.
    """
    # a full disk raises here, instead of a SIGBUS at the next append
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, 0, size)
    else:
        os.ftruncate(fd, size)
    mapped = mmap.mmap(fd, min(size - RESERVE, limit))
    start = end - end % mmap.PAGESIZE
    # older kernels and other systems map each page on first use
    with suppress(AttributeError, OSError, ValueError):
        mapped.madvise(MADV_POPULATE_WRITE, start, len(mapped) - start)
    return mapped


def _refuse(data: bytes) -> None:
    raise ValueError("the log takes no further event")


def file_of(fd: int) -> tuple[int, int] | None:
    """The open file of a number, which is another one's once the program has closed all files."""
    with suppress(OSError):
        status = os.fstat(fd)
        return status.st_dev, status.st_ino
    return None


def cut(fd: int, size: int | None) -> None:
    """Close a log's file, truncated to `size` bytes if given."""
    if size is not None:
        with suppress(OSError):
            os.ftruncate(fd, size)
    with suppress(OSError):
        os.close(fd)


class _Logging(Protocol):
    log: EventLog


Owner = TypeVar("Owner", bound=_Logging)
Given = ParamSpec("Given")
Result = TypeVar("Result")


def harmless(
    method: Callable[Concatenate[Owner, Given], Result],
) -> Callable[Concatenate[Owner, Given], Result | None]:
    """A method of the recorder that runs within the program's own calls: an error in it ends the
    recording, and never the program. Returns None then."""

    @wraps(method)
    def safe(self: Owner, *args: Given.args, **kwargs: Given.kwargs) -> Result | None:
        try:
            return method(self, *args, **kwargs)
        except Exception as error:
            self.log.give_up(error)
            return None

    return safe  # type: ignore[return-value]  # mypy: it must not be called with self=...


LOGS: weakref.WeakSet[EventLog] = weakref.WeakSet()


def _leave_to_parent() -> None:
    """Stop all logs in a forked child, such as a DataLoader's worker: it shares the mapping with
    its parent."""
    for log in list(LOGS):
        log._lock = threading.RLock()  # another thread of the parent may hold it
        log.stop()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)

to_json = json.JSONEncoder(separators=(",", ":"), default=str).encode


def line_of(event: Event) -> str:
    """The event as a line of a log."""
    return to_json(encode(event)) + "\n"


def values_text(values: list[list[object]] | None) -> str:
    """`values` as JSON. Python's repr of most lists is JSON, in a third of the time."""
    if values is None:
        return "null"
    text = repr(values)
    if _NO_JSON(text):
        return to_json(values)
    return text


_NO_JSON = re.compile("[naTFj]").search  # nan, inf, True, False, complex


class FileTail:
    """A file that another process creates and appends to."""

    flags = os.O_RDONLY

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1

    def _portion(self, size: int, begin: int) -> bytes:
        """Bytes from `begin` on, at most `size`; none while there is no file."""
        if self._fd < 0:
            try:
                self._fd = os.open(self._path, self.flags | os.O_CLOEXEC)
            except FileNotFoundError:
                return b""
        return os.pread(self._fd, size, begin)

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class LogTail(FileTail):
    """Reads the bytes appended to a log since the last read; the log may still be growing."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._read = 0

    def read(self) -> bytes:
        """The new bytes: whole lines, and perhaps a part of one."""
        portions = []
        while True:
            portion = self._portion(CHUNK, self._read)
            text, zero, _ = portion.partition(b"\0")
            portions.append(text)
            self._read += len(text)
            if zero or len(portion) < CHUNK:
                return b"".join(portions)
