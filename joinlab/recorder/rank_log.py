"""Makes rows of a Timeline from the events of one rank: lines of a log file, or dicts from an
emulated rank.

A log may still be growing, or be truncated anywhere.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NotRequired, TypedDict, TypeGuard

from joinlab.ops import (
    LONG_VALUES,
    AboutNccl,
    CallRow,
    Op,
    Source,
    SpanRow,
    Stood,
    encode_values,
    group_names,
)
from joinlab.program.replicas import mixed_gradients
from joinlab.program.sources import other_functions
from joinlab.program.steps import BY_BACKWARD, is_made_by_join, settle_steps
from joinlab.program.ways import Step
from joinlab.recorder.ways import MOST_KEPT, take_step

MOST_RANKS = 65_536
VOLTA = 7
"""Compute capability from which threads of a warp progress independently (CUDA C++ Programming
Guide)."""


@dataclass(slots=True)
class RankLog:
    """The state read from one rank's log so far. Feed it bytes in any portions; it keeps an
    incomplete last line."""

    rank: int
    origin_ns: int = 0
    begin: dict[str, Any] = field(default_factory=dict)
    groups: dict[str, dict[str, Any]] = field(default_factory=dict)
    calls: dict[int, CallRow] = field(default_factory=dict)
    spans: dict[int, SpanRow] = field(default_factory=dict)
    waits: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Open waits: thread -> ids of the calls that must all complete."""
    inside: set[int] = field(default_factory=set)
    """Threads that wait inside a call, until other ranks have come."""
    threads: int = 1
    """Python threads of the program that were alive when its last wait began."""
    callbacks: dict[int, int | None] = field(default_factory=dict)
    """Pending callbacks of futures: number -> id of the call to complete first; None if it runs or
    may run any time."""
    inputs_done: int = 0
    marked: bool = False
    """Whether the program has iterated over its inputs."""
    numbered: list[CallRow | SpanRow] = field(default_factory=list)
    """Rows whose input is the number of a step, see program/steps.py."""
    over: str | None = None
    """How the program ended, once its process only waits for calls in flight."""
    returned: bool = False
    raised: dict[str, Any] | None = None
    refused: str | None = None
    before: dict[int, int] = field(default_factory=dict)
    """By call id: number of collectives that the rank issued before it in its group."""
    issued: dict[str, int] = field(default_factory=dict)
    """By group: number of collectives issued before the newest segment began, see
    bounded_log.py."""
    gpu: str | None = None
    gpu_major: int | None = None
    """Major version of the GPU's compute capability."""
    rings: dict[str, list[int]] = field(default_factory=dict)
    """By group whose first rank this is: its ranks in the order of NCCL's ring."""
    coalesced: set[str] = field(default_factory=set)
    """Groups in which calls were issued as one."""
    captured: set[str] = field(default_factory=set)
    """Groups of which calls were captured into a CUDA graph."""
    streamed: dict[int, int] = field(default_factory=dict)
    """On NCCL: id of a call that the stream was made to wait for -> id of the first call issued
    after that."""
    texts: dict[tuple[str, int], Source] = field(default_factory=dict)
    """Source text of the program's functions that issued calls, by file and first line."""
    one_stream: bool = True
    """False if the program issued or waited for a call on another stream than the device's default
    stream."""
    lost: str | None = None
    """Why the recorder stopped before the rank did."""
    damaged: int = 0
    """Number of lines that are not events."""
    stood: list[Stood] = field(default_factory=list)
    """Stacks of its threads, if these are the rank's latest event."""
    moves: int = 0
    """Number of events, without those that hold stacks."""
    gradients: list[tuple[CallRow, int]] = field(default_factory=list)
    """Calls that averaged gradients, each with the number of its model, if a group has several
    models."""
    held: Any = None
    """After the program has returned: names and checksums of the tensors in DDP's replicas, see
    Mark."""
    way: deque[Step] = field(default_factory=lambda: deque(maxlen=MOST_KEPT))
    """The lines of the program that it ran, if they were recorded."""
    _stacks: dict[int, tuple[list[str], str | None, bool]] = field(default_factory=dict)
    _rest: bytes = b""

    def feed(self, data: bytes) -> None:
        """Take further bytes of the file."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            if line:
                try:
                    self.take(_checked(json.loads(line)))
                except (
                    AttributeError,
                    KeyError,
                    TypeError,
                    ValueError,
                    RecursionError,
                ):  # not ours, or damaged
                    self.damaged += 1

    @property
    def cut(self) -> bool:
        """True if the bytes read end within a line."""
        return bool(self._rest)

    def awaited(self) -> CallRow | None:
        """The first open call of the rank's latest wait; None if it waits for no call."""
        for ids in reversed(self.waits.values()):
            calls = [self.calls[id] for id in ids]
            is_open = (
                call
                for call in calls
                if call.get("completed_ns") is None and call.get("error") is None
            )
            return next(is_open, calls[0] if calls else None)
        return None

    def standing(self) -> list[tuple[tuple[tuple[str, int], ...], bool]]:
        """Group and seq of the calls that each thread and callback waits for, and whether it does
        so inside them; empty if one of them may go on."""
        waits = [(ids, thread in self.inside) for thread, ids in self.waits.items()]
        waits += [((), False) if id is None else ((id,), False) for id in self.callbacks.values()]
        if not self.waits or len(self.waits) < self.threads or not all(ids for ids, _ in waits):
            return []
        return [
            (tuple((self.calls[id]["group"], self.calls[id]["seq"]) for id in ids), inside)
            for ids, inside in waits
        ]

    def take(self, event: dict[str, Any]) -> None:
        """Take one event, whose fields have the documented types. Emulated ranks call this
        directly."""
        at: Any = event.get("t")  # some events have no time
        if at is not None:
            at -= self.origin_ns
        self.moves += event["e"] != "stacks"
        self.stood = []
        match event["e"]:
            case "call" if event["id"] in self.calls:
                return  # a bounded log repeats it in its next segment
            case "call":
                stack, site, joined = self._stacks.get(event["st"], ([], None, False))
                call: CallRow = {
                    "rank": self.rank,
                    "group": event["g"],
                    "seq": event["s"],
                    "number": event.get("n"),
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
                self.calls[event["id"]] = call
                if event.get("m") is not None:
                    self.gradients.append((call, event["m"]))
                if not joined:
                    self._number(call, event)
                before = event.get("k")  # a collective's number implies it
                self.before[event["id"]] = (event.get("n") or 1) - 1 if before is None else before
                for id in event.get("w") or ():
                    self.streamed.setdefault(id, event["id"])
            case "begun":
                begun = self.calls.get(event["id"])  # a bounded log may have dropped the call
                if begun is not None:
                    begun["started_ns"] = at
            case "done":
                done = self.calls.get(event["id"])  # a bounded log may have dropped the call
                if done is not None:
                    done["completed_ns"] = at
                    if "v" in event:
                        done["value_out"] = _values(event["v"])
            case "value":  # copied from the GPU after the call's own event
                late = self.calls.get(event["id"])
                if late is not None and event["c"] == "value_in":
                    late["value_in"] = _values(event["v"])
                elif late is not None:
                    late["value_out"] = _values(event["v"])
            case "fail":
                if event["id"] in self.calls:
                    self.calls[event["id"]]["error"] = event["x"]
                    if event.get("r"):
                        self.calls[event["id"]]["number"] = None
            case "wait":
                ids = tuple(id for id in event["id"] if id in self.calls)
                for id in ids:
                    self.calls[id].setdefault("host_wait_begin_ns", at)
                self.waits[event["th"]] = ids
                (self.inside.add if event.get("in") else self.inside.discard)(event["th"])
                self.threads = event["n"]
            case "wake" if event["th"] in self.inside:  # the host has done its part of the call
                for id in event["id"]:
                    if id in self.calls:
                        self.calls[id].pop("host_wait_begin_ns", None)
                self.inside.discard(event["th"])
                self.waits.pop(event["th"], None)
            case "wake":
                ids = event["id"]
                for id, values in zip(ids, event.get("v") or [None] * len(ids), strict=True):
                    woken = self.calls.get(id)
                    if woken is None:
                        continue
                    woken["host_wait_end_ns"] = at
                    if "error" not in woken and id not in event.get("open", ()):
                        woken.setdefault("completed_ns", at)
                        if values is not None:
                            woken["value_out"] = _values(values)
                self.waits.pop(event["th"], None)
            case "then":
                self.callbacks[event["k"]] = event["id"] if event["id"] in self.calls else None
            case "ran":
                self.callbacks.pop(event["k"], None)
            case "span+":
                span: SpanRow = {
                    "rank": self.rank,
                    "name": event["n"],
                    "input": event["i"],
                    "begin_ns": at,
                    "call_site": event.get("site"),
                }
                self.spans[event["id"]] = span
                self._number(span, event)
            case "span-":
                if event["id"] in self.spans:
                    self.spans[event["id"]]["end_ns"] = at
            case "input":
                self.inputs_done = event["k"]
                self.marked = True
            case "stack":
                self._stacks[event["id"]] = (event["f"], event["site"], is_made_by_join(event["f"]))
            case "text":
                text: Source = {"file": event["f"], "first_line": event["n"], "text": event["x"]}
                self.texts.setdefault((event["f"], event["n"]), text)
            case "group":
                self.groups[event["name"]] = {
                    "ranks": event["ranks"],
                    "backend": event["backend"],
                    "desc": event.get("desc") or "",
                    "eager": bool(event.get("eager")),
                    "limit_ns": event.get("limit") or 0,
                }
            case "begin":
                self.begin = event
            case "over":
                self.over = event["x"]
            case "way":
                take_step(self.way, event, len(self.calls))
            case "stacks":
                self.stood = [{"thread": one["n"], "frames": one["f"]} for one in event["th"]]
            case "return":
                self.returned, self.held = True, event.get("held")
            case "raise":
                self.raised = event
            case "refused":
                self.refused = event["x"]
            case "lost":
                self.lost = event["x"]
            case "gpu":
                self.gpu, self.gpu_major = event["x"], event.get("cc")
            case "issued":
                self.issued[event["g"]] = event["k"]
            case "ring":
                self.rings[event["g"]] = event["r"]
            case "coalesced":
                self.coalesced.add(event["g"])
            case "captured":
                self.captured.add(event["g"])
            case "streams":
                self.one_stream = False

    def _number(self, row: CallRow | SpanRow, event: dict[str, Any]) -> None:
        if event.get("b") is not None:
            row["input"] = event["b"]
            self.numbered.append(row)

    def stream_waits(self) -> list[list[int | str]]:
        """`AboutRanks.stream_waits` of this rank; empty unless it used only the default stream."""
        found: list[list[int | str]] = []
        for id, first in self.streamed.items() if self.one_stream else ():
            call = self.calls.get(id)
            if call is not None and call.get("completed_ns") is None and call.get("error") is None:
                then = self.calls[first]
                found.append([self.rank, call["group"], call["seq"], then["group"], then["seq"]])
        return found


class AboutRanks(TypedDict):
    """Metadata of recorded ranks: their versions and their groups.

    stream_waits  NCCL only: rank, group and seq of each incomplete call that the rank's stream was made to wait for,
                  then group and seq of the first call that the rank issued after that wait
    """

    versions: dict[str, str | None]
    group_names: dict[str, str]
    group_backends: dict[str, str]
    eager_groups: list[str]
    stream_waits: list[list[int | str]]
    nccl: NotRequired[AboutNccl]


def about_ranks(logs: Collection[RankLog], backend: str) -> AboutRanks:
    """Metadata of a run on `backend`: versions, names and backends of groups, eager groups, waits
    of streams."""
    begin: Mapping[str, Any] = next((log.begin for log in logs if log.begin), {})
    groups = {name: group for log in logs for name, group in log.groups.items()}
    ranks, said = (
        {name: group[field] for name, group in groups.items()} for field in ("ranks", "desc")
    )
    about: AboutRanks = {
        "versions": {name: begin.get(name) for name in ("joinlab", "python", "torch", "nccl")},
        "group_names": group_names(ranks, said),
        "group_backends": {
            name: group["backend"] for name, group in groups.items() if group["backend"] != backend
        },
        "eager_groups": [name for name, group in groups.items() if group["eager"]],
        "stream_waits": [wait for log in logs for wait in log.stream_waits()],
    }
    if any(group["backend"] == "nccl" for group in groups.values()):
        about["nccl"] = _about_nccl(logs)
    return about


def _about_nccl(logs: Collection[RankLog]) -> AboutNccl:
    """Rings and, unless a log comes from an older version, the groups with coalesced calls."""
    about: AboutNccl = {"rings": {name: ring for log in logs for name, ring in log.rings.items()}}
    if all("coalesced" in log.begin for log in logs):
        about["coalesced"] = sorted({name for log in logs for name in log.coalesced})
    if captured := sorted({name for log in logs for name in log.captured}):
        about["captured"] = captured
    if logs and all(log.gpu_major is not None and log.gpu_major < VOLTA for log in logs):
        about["warps_apart"] = False
    return about


def about_calls(logs: Collection[RankLog], program: Source | None = None) -> dict[str, Any]:
    """The part of `meta` that calls determine: texts of helper functions, how steps are counted,
    mixed gradients."""
    about = {
        "functions": other_functions(
            program, (text for log in logs for text in log.texts.values())
        ),
        "input_column": BY_BACKWARD if settle_steps(logs) else None,
        "mixed": mixed_gradients(log.gradients for log in logs),
    }
    return {name: value for name, value in about.items() if value}


def _checked(event: dict[str, Any]) -> dict[str, Any]:
    """The event, if its fields are of the documented types. A file may be damaged, or of another
    origin."""
    for name, right in _FORMS.get(event["e"], {}).items():
        if not right(event.get(name)):
            raise ValueError(f"{name!r} of {event['e']!r} is {event.get(name)!r}")
    return event


def _whole(least: int, below: int = 2**62) -> Callable[[object], bool]:
    return lambda value: type(value) is int and least <= value < below


_number, _count, _positive, _rank = _whole(1 - 2**62), _whole(0), _whole(1), _whole(0, MOST_RANKS)


def _text(value: object) -> bool:
    return isinstance(value, str)


def _list(right: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, list) and all(map(right, value))


def _or_none(right: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: value is None or right(value)


def is_ranks(value: object) -> TypeGuard[list[int]]:
    """Whether a value is a list of ranks, each of them once."""
    return isinstance(value, list) and all(map(_rank, value)) and len(set(value)) == len(value)


def _stood(value: object) -> bool:
    return isinstance(value, dict) and _text(value.get("n")) and _list(_text)(value.get("f"))


def _flat(value: object) -> bool:
    """A flat list: the elements of one tensor. Those of a complex one are texts."""
    return isinstance(value, list) and all(isinstance(one, (int, float, str)) for one in value)


_FORMS: Mapping[str, Mapping[str, Callable[[object], bool]]] = {
    "begin": {"t": _count, "rank": _rank, "host": _or_none(_text), "pid": _or_none(_number), "world": _or_none(_rank),
              "wall": _or_none(_number), "command": _or_none(_list(_text)),
              **dict.fromkeys(("joinlab", "python", "torch", "nccl"), _or_none(_text))},
    "group": {"name": _text, "ranks": is_ranks, "backend": _text, "desc": _or_none(_text),
              "limit": _or_none(_number)},
    "stack": {"id": _number, "f": _list(_text), "site": _or_none(_text)},
    "text": {"f": _text, "n": _positive, "x": _text},
    "call": {"t": _count, "id": _number, "g": _text, "s": _count, "op": {*Op}.__contains__, "o": _or_none(_text),
             "i": _or_none(_number), "d": _or_none(_text), "sh": _list(_list(_count)), "st": _number,
             "reduce_op": _or_none(_text), "root": _or_none(_number), "peer": _or_none(_number),
             "tag": _or_none(_number), "v": _or_none(_list(_flat)), "site": _or_none(_text), "k": _or_none(_count),
             "n": _or_none(_positive), "w": _or_none(_list(_number)), "b": _or_none(_number), "m": _or_none(_count)},
    "issued": {"g": _text, "k": _count},
    "ring": {"g": _text, "r": is_ranks},
    "coalesced": {"g": _text},
    "captured": {"g": _text},
    "begun": {"t": _count, "id": _number},
    "done": {"t": _count, "id": _number, "v": _or_none(_list(_flat))},
    "value": {"id": _number, "c": _text, "v": _or_none(_list(_flat))},
    "fail": {"id": _number, "x": _text},
    "wait": {"t": _count, "id": _list(_number), "th": _number, "n": _number, "in": _or_none(_number)},
    "wake": {"t": _count, "id": _list(_number), "th": _number, "open": _or_none(_list(_number)),
             "v": _or_none(_list(_or_none(_list(_flat))))},
    "then": {"k": _number, "id": _or_none(_number)}, "ran": {"k": _number},
    "span+": {"t": _count, "id": _number, "n": _text, "i": _or_none(_number), "b": _or_none(_number),
              "site": _or_none(_text)},
    "span-": {"t": _count, "id": _number},
    "input": {"k": _number},
    "raise": {"x": _text, "tb": _or_none(_text)},
    "stacks": {"th": _list(_stood)},
    "gpu": {"x": _text, "cc": _or_none(_number)},
    **{event: {"x": _text} for event in ("over", "refused", "lost")},
}  # fmt: skip
"""By event: what its fields must be."""


def _values(tensors: Any) -> str | None:
    text = None if tensors is None else encode_values(tensors)
    if text is not None and len(text) > LONG_VALUES:
        raise ValueError("values longer than the recorder keeps")
    return text
