"""The event log: what one rank appends while it runs, and how a folder of logs becomes rows.

Each rank writes one file of JSON lines. Every event is appended with a single write, so that a SIGKILL, an abort
in C++ or os._exit loses nothing already written; only a line cut short at the end is dropped when read. Times are
the raw monotonic clock; the reader subtracts the moment the run began.

    begin   rank, pid, host, versions              group   name, ranks, backend
    stack   id, frames                             input   i (null: exhausted)
    call    id, group, seq, op, ...                done / fail   id, values or text
    value   id, column, values (from a GPU)         wait / wake   ids, thread, live threads
    span+   id, name                               span-   id
    return                                         raise   type and text, traceback
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from joinlab.collectives import encode_values


def log_name(rank: int) -> str:
    """File name of a rank's log within the run's folder."""
    return f"rank-{rank}.events.jsonl"


class EventLog:
    """Appends events to one rank's file. Safe to call from several threads: an append is one write."""

    __slots__ = ("_fd",)

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def write(self, event: Mapping[str, Any]) -> None:
        """Append one event."""
        os.write(self._fd, json.dumps(event, separators=(",", ":"), default=str).encode() + b"\n")

    def write_text(self, line: str) -> None:
        """Append one event that the caller has formatted itself: the hot path."""
        os.write(self._fd, line.encode() + b"\n")


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
            case "return":
                self.returned = True
            case "raise":
                self.raised = event
            case "refused":
                self.refused = event["x"]


def _values(tensors: Any) -> str | None:
    return None if tensors is None else encode_values(tensors)


def read_folder(folder: Path, ranks: Iterable[int], origin_ns: int) -> list[RankLog]:
    """Read every rank's log of a finished run; a rank that never wrote has an empty one."""
    logs = []
    for rank in ranks:
        log = RankLog(rank, origin_ns)
        path = folder / log_name(rank)
        if path.exists():
            log.feed(path.read_bytes())
        logs.append(log)
    return logs
