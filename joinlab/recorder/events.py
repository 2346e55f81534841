"""The event log: what one rank appends while it runs. rank_log.py makes rows of it.

Each rank writes one file of JSON lines, through a shared mapping of it: an append is a copy in memory, no system
call, and what is copied is in the file whatever then happens to the process: SIGKILL, an abort in C++, os._exit. (A
`write` per event made the step of a tiny model half as long again, since each lets other threads in between.) The
file is longer than its text; for a reader it ends at its first zero byte. Times are the raw monotonic
clock; the reader subtracts the moment the run began.

    begin   rank, pid, host, versions              group   name, ranks, backend
    gpu     device, its name and its compute capability's first number
    ring    group, its ranks in NCCL's order        coalesced   group in which calls were issued as one
    stack   id, frames                             input   i (null: exhausted)
    call    id, group, seq, input or step, op, ... done / fail   id, values or text
    value   id, column, values (from a GPU)         wait / wake   ids, thread, live threads
    span+   id, name, input or step                span-   id
    over    how the program ended                  return / raise   type and text, traceback
"""

from __future__ import annotations

import json
import mmap
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

CHUNK = 1 << 18
"""Bytes by which a log grows at least."""
MOST_AHEAD = 1 << 20
"""A log's file is longer than its text by at most this much."""
RESERVE = 512
"""Bytes at the end of a log in which it can still say that the disk is full."""


PROGRAM = "program.pickle"
"""Within a run's folder: the program, pickled. Beside it stand three files for each rank."""


def log_name(rank: int) -> str:
    """File name of a rank's log within the run's folder."""
    return f"rank-{rank}.events.jsonl"


def output_name(rank: int) -> str:
    """File name of what a rank printed."""
    return f"rank-{rank}.out"


def return_name(rank: int) -> str:
    """File name of what a rank's program returned."""
    return f"rank-{rank}.return.json"


class Log(Protocol):
    """Where events are appended: an EventLog, or a BoundedLog."""

    @property
    def failed(self) -> bool: ...

    def write(self, event: Mapping[str, Any]) -> None: ...

    def write_text(self, line: str) -> int: ...

    def close(self) -> None: ...


class EventLog:
    """Appends events to one rank's file. Safe to call from several threads."""

    __slots__ = ("__weakref__", "_at", "_fd", "_lock", "_map", "_on_failure", "_size", "failed")

    def __init__(self, path: Path, on_failure: Callable[[OSError], None]) -> None:
        """Create the file, or raise OSError. `on_failure` is called once if it cannot grow later (a full disk)."""
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self._lock = threading.Lock()
        self._on_failure = on_failure
        self.failed = False
        self._at = self._size = 0
        self._map = self._grown(CHUNK)
        _LOGS.add(self)

    def write(self, event: Mapping[str, Any]) -> None:
        """Append one event."""
        self.write_text(to_json(event))

    def write_text(self, line: str) -> int:
        """Append one event that the caller has formatted itself: the hot path. Returns 0, the number of the segment."""
        data = line.encode() + b"\n"
        with self._lock:
            end = self._at + len(data)
            if end >= self._size - RESERVE and not self.failed:  # so a zero byte is left to end the text, too
                try:
                    self._map = self._grown(end + min(max(self._size, CHUNK), MOST_AHEAD))
                except OSError as error:  # recording ends here; the program goes on
                    self.lose(error)
                    self._on_failure(error)
            if not self.failed:
                self._map[self._at : end] = data
                self._at = end
        return 0

    def lose(self, error: OSError) -> None:
        """Write as the last event that the rest is lost: otherwise the rank would seem killed."""
        if not self.failed:
            self.failed = True
            data = to_json({"e": "lost", "x": f"{type(error).__name__}: {error}"[: RESERVE // 4], "t": now()}).encode()
            if self._at + len(data) + 1 < self._size:
                self._map[self._at : self._at + len(data) + 1] = data + b"\n"

    def close(self) -> None:
        """Cut the file behind its last event. What is written afterwards is lost."""
        with self._lock:
            if not self.failed:
                self.failed = True
                with suppress(OSError):
                    os.ftruncate(self._fd, self._at)
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

    def _grown(self, size: int) -> mmap.mmap:
        if hasattr(os, "posix_fallocate"):  # a full disk is an error here, and not a SIGBUS at the next append
            os.posix_fallocate(self._fd, 0, size)
        else:
            os.ftruncate(self._fd, size)
        self._size = size
        return mmap.mmap(self._fd, size)


_LOGS: weakref.WeakSet[EventLog] = weakref.WeakSet()


def _leave_to_parent() -> None:
    """In a forked child, such as a worker of a DataLoader: the mapping is shared, and the log is the parent's."""
    for log in list(_LOGS):
        log.failed = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)

to_json = json.JSONEncoder(separators=(",", ":"), default=str).encode


def values_field(values: list[list[Any]] | None) -> str:
    """The field of an event that holds `values`. Python's repr of most lists is JSON, in a third of the time."""
    if values is None:
        return ""
    text = repr(values)
    plain = not any(letter in text for letter in "naTFj")  # nan, inf, True, False, complex
    return f',"v":{text if plain else to_json(values)}'


class LogTail:
    """Reads what was appended to a log since the last time; the log may be still being written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1
        self._at = 0

    def read(self) -> bytes:
        """The new bytes: whole lines, and perhaps a part of one."""
        if self._fd < 0:
            try:
                self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return b""
        found = b""
        while True:
            portion = os.pread(self._fd, CHUNK, self._at)
            text, zero, _ = portion.partition(b"\0")
            found += text
            self._at += len(text)
            if zero or len(portion) < CHUNK:
                return found

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def now() -> int:
    """The clock of every event: monotonic, int nanoseconds, one for all ranks of a host."""
    return time.monotonic_ns()
