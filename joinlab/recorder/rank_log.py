"""Reads one rank's event log: events become rows of a Timeline. The log may still be growing, or be cut anywhere."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from joinlab.ops import CallRow, SpanRow, encode_values


@dataclass(slots=True)
class RankLog:
    """What one rank's log says so far. Feed it bytes in any portions; a line cut short waits for its rest."""

    rank: int
    origin_ns: int = 0
    begin: dict[str, Any] = field(default_factory=dict)
    groups: dict[str, dict[str, Any]] = field(default_factory=dict)
    calls: dict[int, CallRow] = field(default_factory=dict)
    spans: dict[int, SpanRow] = field(default_factory=dict)
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

    def _take(self, event: dict[str, Any]) -> None:
        at: Any = event.get("t")  # absent in an event that no clock was read for
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
                call = self.calls[event["id"]]
                if event["c"] == "value_in":
                    call["value_in"] = _values(event["v"])
                else:
                    call["value_out"] = _values(event["v"])
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
