"""The event log: what one rank appends while it runs, and how it becomes rows.

Each rank writes one file of JSON lines, through a shared mapping of it: an append is a copy in memory, no system
call, and what is copied is in the file whatever then happens to the process: SIGKILL, an abort in C++, os._exit. (A
`write` per event made the step of a tiny model half as long again, since each lets other threads in between.) The
file is longer than what is written, and ends, for a reader, at its first zero byte. Times are the raw monotonic
clock; the reader subtracts the moment the run began.

    begin   rank, pid, host, versions              group   name, ranks, backend
    stack   id, frames                             input   i (null: exhausted)
    call    id, group, seq, op, ...                done / fail   id, values or text
    value   id, column, values (from a GPU)         wait / wake   ids, thread, live threads
    span+   id, name                               span-   id
    over    how the program ended                  return / raise   type and text, traceback
"""

from __future__ import annotations

import json
import mmap
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from joinlab.ops import encode_values

CHUNK = 1 << 18
"""Bytes by which a log grows at least."""


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


class EventLog:
    """Appends events to one rank's file. Safe to call from several threads."""

    __slots__ = ("_at", "_fd", "_lock", "_map", "_size")

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self._lock = threading.Lock()
        self._at = self._size = 0
        self._map = self._grown(CHUNK)

    def write(self, event: Mapping[str, Any]) -> None:
        """Append one event."""
        self.write_text(to_json(event))

    def write_text(self, line: str) -> None:
        """Append one event that the caller has formatted itself: the hot path."""
        data = line.encode() + b"\n"
        with self._lock:
            end = self._at + len(data)
            if end >= self._size:  # one zero byte is left to end the text
                self._map = self._grown(max(2 * self._size, end + CHUNK))
            self._map[self._at : end] = data
            self._at = end

    def _grown(self, size: int) -> mmap.mmap:
        if hasattr(os, "posix_fallocate"):  # a full disk is an error here, and not a SIGBUS at the next append
            os.posix_fallocate(self._fd, 0, size)
        else:
            os.ftruncate(self._fd, size)
        self._size = size
        return mmap.mmap(self._fd, size)


to_json = json.JSONEncoder(separators=(",", ":"), default=str).encode


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


@dataclass(slots=True)
class RankLog:
    """What one rank's log says so far. Feed it bytes in any portions; a line cut short waits for its rest."""

    rank: int
    origin_ns: int = 0
    begin: dict[str, Any] = field(default_factory=dict)
    groups: dict[str, dict[str, Any]] = field(default_factory=dict)
    calls: dict[int, dict[str, Any]] = field(default_factory=dict)
    spans: dict[int, dict[str, Any]] = field(default_factory=dict)
    waits: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Open waits: thread -> ids of the calls it waits for, all of which it needs."""
    threads: int = 1
    """Python threads of the program that were alive when its last wait began."""
    inputs_done: int = 0
    last_ns: int = 0
    over: str | None = None
    """How the program has ended, once its process only waits for what is still in flight."""
    returned: bool = False
    raised: dict[str, Any] | None = None
    refused: str | None = None
    _stacks: dict[int, tuple[list[str], str | None]] = field(default_factory=dict)
    _rest: bytes = b""

    def feed(self, data: bytes) -> None:
        """Take further bytes of the file."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            if line:
                self._take(json.loads(line))

    def open_calls(self) -> list[dict[str, Any]]:
        """Calls neither completed nor failed, in the order of issue."""
        return [call for call in self.calls.values() if call.get("completed_ns") is None and not call.get("error")]

    def _take(self, event: dict[str, Any]) -> None:
        at = event.get("t")
        if at is not None:
            at -= self.origin_ns
            self.last_ns = max(self.last_ns, at)
        match event["e"]:
            case "call":
                stack, site = self._stacks.get(event["st"], ([], None))
                self.calls[event["id"]] = {
                    "rank": self.rank,
                    "group": event["g"],
                    "seq": event["s"],
                    "op": event["op"],
                    "origin": event["o"],
                    "input": event["i"],
                    "dtype": event["d"],
                    "shape": event["sh"],
                    "reduce_op": event.get("reduce_op"),
                    "root": event.get("root"),
                    "peer": event.get("peer"),
                    "tag": event.get("tag"),
                    "value_in": _values(event.get("v")),
                    "call_site": event.get("site", site),
                    "stack": stack,
                    "enqueued_ns": at,
                }
            case "done":
                call = self.calls[event["id"]]
                call["completed_ns"] = at
                if "v" in event:
                    call["value_out"] = _values(event["v"])
            case "value":  # what a GPU's copy brought after the event of its call
                self.calls[event["id"]][event["c"]] = _values(event["v"])
            case "fail":
                self.calls[event["id"]].setdefault("error", event["x"])
            case "wait":
                for id in event["id"]:
                    self.calls[id].setdefault("host_wait_begin_ns", at)
                self.waits[event["th"]] = tuple(event["id"])
                self.threads = event["n"]
            case "wake":
                for id in event["id"]:
                    self.calls[id].setdefault("host_wait_end_ns", at)
                self.waits.pop(event["th"], None)
            case "span+":
                self.spans[event["id"]] = {
                    "rank": self.rank,
                    "name": event["n"],
                    "input": event["i"],
                    "begin_ns": at,
                    "call_site": event.get("site"),
                }
            case "span-":
                self.spans[event["id"]]["end_ns"] = at
            case "input":
                self.inputs_done = event["k"]
            case "stack":
                self._stacks[event["id"]] = (event["f"], event["site"])
            case "group":
                self.groups[event["name"]] = {"ranks": event["ranks"], "backend": event["backend"]}
            case "begin":
                self.begin = event
            case "over":
                self.over = event["x"]
            case "return":
                self.returned = True
            case "raise":
                self.raised = event
            case "refused":
                self.refused = event["x"]


def _values(tensors: Any) -> str | None:
    return None if tensors is None else encode_values(tensors)
