"""Makes rows of a Timeline from the events of one rank: lines of a log file, or the events of an
emulated rank itself.

A log may still be growing, or be truncated anywhere.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from joinlab.backend.calls import is_peer_gone
from joinlab.ops import (
    LONG_VALUES,
    AboutNccl,
    CallRow,
    Source,
    SpanRow,
    Stood,
    encode_values,
    group_names,
)
from joinlab.program.log_events import (
    NOT_BEGUN,
    CallbackPending,
    CallbackRan,
    CallDone,
    CalledOutside,
    CallFailed,
    CallIssued,
    CallsCaptured,
    CallsCoalesced,
    CallStarted,
    CollectivesIssued,
    Event,
    FunctionText,
    GpuUsed,
    GroupMade,
    GroupNamed,
    InputBegins,
    Interrupted,
    ProgramOver,
    ProgramRaised,
    ProgramRefused,
    ProgramReturned,
    RankBegins,
    RecordLost,
    ReplicasMarked,
    RingOrder,
    SeveralStreams,
    SideEffectSeen,
    SpanBegins,
    SpanEnds,
    StackSeen,
    ThreadRaised,
    ThreadsStand,
    TraceStepped,
    ValuesRead,
    WaitBegins,
    WaitEnds,
    WorksDropped,
    decode,
)
from joinlab.program.misuse import unlike_groups, unwaited_of
from joinlab.program.replicas import Mark, differing_replicas, mixed_gradients
from joinlab.program.sources import other_functions
from joinlab.program.steps import BY_BACKWARD, is_made_by_join, settle_steps
from joinlab.program.traces import TraceStep
from joinlab.recorder.recorded_traces import MOST_KEPT, take_step

if TYPE_CHECKING:
    from joinlab.timeline import Meta

VOLTA = 7
"""Compute capability from which threads of a warp progress independently (CUDA C++ Programming
Guide)."""


@dataclass(slots=True)
class RankLog:
    """The state read from one rank's log so far. Feed it bytes in any portions; it keeps an
    incomplete last line."""

    rank: int
    origin_ns: int = 0
    begin: RankBegins = field(default_factory=lambda: NOT_BEGUN)
    groups: dict[str, GroupMade] = field(default_factory=dict)
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
    left_at: str | None = None
    """The line in which the program called sys.exit, if it ended so."""
    raised: ProgramRaised | None = None
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
    marks: list[Mark] = field(default_factory=list)
    """Checksums of the tensors in DDP's replicas, at steps and at the end."""
    dropped: list[int] = field(default_factory=list)
    """Calls whose Work nobody waited for."""
    outside: list[CalledOutside] = field(default_factory=list)
    """Calls of groups that the rank is not in."""
    thread_errors: list[ThreadRaised] = field(default_factory=list)
    """What ended threads of the program."""
    named: list[GroupNamed] = field(default_factory=list)
    """The groups for which it called new_group."""
    side_effect: str = ""
    """What the program did first that another run of it would do again."""
    trace: deque[TraceStep] = field(default_factory=lambda: deque(maxlen=MOST_KEPT))
    """The lines of the program that it ran, if they were recorded."""
    last_ns: int = 0
    """Time of the latest event that was taken, of those that have one."""
    interrupts: list[int] = field(default_factory=list)
    """When SIGINT came."""
    left_ns: int | None = None
    """When a call first failed because a peer's process had ended."""
    read_ns: int = 0
    """When its file was last read, by the wall clock: the same for all ranks of the job."""
    process: str | None = None
    """The state of its process then, by psutil, or "gone"; None if not known."""
    until_ns: int | None = None
    """Events from this time on are not taken."""
    _stacks: dict[int, tuple[list[str], str | None, bool]] = field(default_factory=dict)
    _read_to_ns: int = 0
    _held: list[TraceStepped] = field(default_factory=list)
    _rest: bytes = b""

    def feed(self, data: bytes) -> None:
        """Take further bytes of the file."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            if line:
                try:
                    self._take_plain(json.loads(line))
                except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
                    # not ours, or damaged
                    self.damaged += 1

    def _take_plain(self, plain: dict[str, object]) -> None:
        event = decode(plain)
        time_ns = getattr(event, "time_ns", None)
        if time_ns is not None:
            self._read_to_ns = time_ns
        in_time = self.until_ns is None or self._read_to_ns < self.until_ns
        if self.until_ns is not None and self.stood and isinstance(event, TraceStepped):
            # A step has no time: the next event tells whether it came in time.
            self._held.append(event)
        elif event is not None:
            if in_time or self._went_on():
                self.take_held()
            self._held.clear()
            if in_time:
                self.last_ns = self._read_to_ns
                self.take(event)

    def _went_on(self) -> bool:
        """Whether the held steps run a line before an exception: otherwise one met the rank where it
        stood."""
        for held in self._held:
            if held.step and held.step[0] in ("line", "raise"):
                return bool(held.step[0] == "line")
        return False

    def take_held(self) -> None:
        """Take the steps behind a stand."""
        for step in self._held:
            self.take(step)

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

    def take(self, event: Event) -> None:
        """Take one event. Emulated ranks call this directly."""
        if type(event) is Interrupted:
            self.interrupts.append(event.time_ns)
            return
        self.moves += type(event) is not ThreadsStand
        self.stood = []
        match event:  # the most frequent come first
            case CallIssued():
                self._issue(event)
            case WaitBegins():
                self._begin_wait(event)
            case WaitEnds():
                self._end_wait(event)
            case SpanBegins():
                self._begin_span(event)
            case SpanEnds():
                if event.span in self.spans:
                    self.spans[event.span]["end_ns"] = event.time_ns - self.origin_ns
            case CallDone():
                self._complete(event)
            case CallStarted():
                if event.call in self.calls:  # a bounded log may have dropped the call
                    self.calls[event.call]["started_ns"] = event.time_ns - self.origin_ns
            case ValuesRead():
                self._read(event)
            case CallFailed():
                self._fail(event)
            case InputBegins():
                self.inputs_done, self.marked = event.done, True
            case TraceStepped():
                take_step(self.trace, event, len(self.calls))
            case CallbackPending():
                is_known = event.call in self.calls
                self.callbacks[event.callback] = event.call if is_known else None
            case CallbackRan():
                self.callbacks.pop(event.callback, None)
            case StackSeen():
                by_join = is_made_by_join(event.frames)
                self._stacks[event.stack] = (event.frames, event.call_site, by_join)
            case FunctionText():
                self.texts.setdefault((event.file, event.first_line), event.source)
            case ThreadsStand():
                self.stood = event.stood
            case RankBegins():
                self.begin = event
            case GroupMade():
                self.groups[event.name] = event
            case GroupNamed():
                self.named.append(event)
            case GpuUsed():
                self.gpu, self.gpu_major = event.text, event.capability
            case RingOrder():
                self.rings[event.group] = event.ranks
            case CallsCoalesced():
                self.coalesced.add(event.group)
            case CallsCaptured():
                self.captured.add(event.group)
            case SeveralStreams():
                self.one_stream = False
            case CollectivesIssued():
                self.issued[event.group] = event.count
            case ProgramOver():
                self.over = event.text
            case ReplicasMarked():
                self.marks.append(Mark.of(event))
            case SideEffectSeen():
                self.side_effect = event.what
            case WorksDropped():
                self.dropped = event.calls
            case CalledOutside():
                self.outside.append(event)
            case ThreadRaised() if event not in self.thread_errors:  # segments repeat it
                self.thread_errors.append(event)
            case ProgramReturned():
                self.returned = True
                self.left_at = event.left_at
            case ProgramRaised():
                self.raised = event
            case ProgramRefused():
                self.refused = event.text
            case RecordLost():
                self.lost = event.text

    def _issue(self, event: CallIssued) -> None:
        if event.call in self.calls:
            return  # a bounded log repeats it in its next segment
        stack, site, joined = self._stacks.get(event.stack, ([], None, False))
        call: CallRow = {
            "rank": self.rank,
            "group": event.group,
            "seq": event.seq,
            "number": event.number,
            "op": event.op,
            "origin": event.origin,
            "input": event.input,
            "dtype": event.dtype,
            "shape": event.shape,
            "reduce_op": event.reduce_op,
            "root": event.root,
            "peer": event.peer,
            "tag": event.tag,
            "splits": event.splits,
            "value_in": _values(event.values),
            "call_site": event.call_site or site,
            "stack": stack,
            "enqueued_ns": event.time_ns - self.origin_ns,
        }
        self.calls[event.call] = call
        if event.model is not None:
            self.gradients.append((call, event.model))
        if event.step is not None and not joined:
            call["input"] = event.step
            self.numbered.append(call)
        # a collective's number implies how many came before it
        if event.before is None:
            before = (event.number or 1) - 1
        else:
            before = event.before
        self.before[event.call] = before
        for awaited in event.streamed or ():
            self.streamed.setdefault(awaited, event.call)

    def _complete(self, event: CallDone) -> None:
        call = self.calls.get(event.call)  # a bounded log may have dropped the call
        if call is not None:
            call["completed_ns"] = event.time_ns - self.origin_ns
            if event.values is not None:
                call["value_out"] = _values(event.values)

    def _read(self, event: ValuesRead) -> None:
        call = self.calls.get(event.call)
        if call is not None and event.column == "value_in":
            call["value_in"] = _values(event.values)
        elif call is not None:
            call["value_out"] = _values(event.values)

    def _fail(self, event: CallFailed) -> None:
        if event.call in self.calls:
            self.calls[event.call]["error"] = event.text
            if self.left_ns is None and is_peer_gone(event.text):
                self.left_ns = event.time_ns
            if event.refused:
                self.calls[event.call]["number"] = None

    def _begin_wait(self, event: WaitBegins) -> None:
        calls = tuple(call for call in event.calls if call in self.calls)
        for call in calls:
            self.calls[call].setdefault("host_wait_begin_ns", event.time_ns - self.origin_ns)
        self.waits[event.thread] = calls
        self.threads = event.threads
        if event.inside:
            self.inside.add(event.thread)
        else:
            self.inside.discard(event.thread)

    def _end_wait(self, event: WaitEnds) -> None:
        self.waits.pop(event.thread, None)
        if event.thread in self.inside:  # the host has done its part of the call
            self.inside.discard(event.thread)
            for number in event.calls:
                if number in self.calls:
                    self.calls[number].pop("host_wait_begin_ns", None)
            return
        values_of = event.values or [None] * len(event.calls)
        for number, values in zip(event.calls, values_of, strict=True):
            call = self.calls.get(number)
            if call is None:
                continue
            call["host_wait_end_ns"] = event.time_ns - self.origin_ns
            if "error" not in call and number not in (event.still_open or ()):
                call.setdefault("completed_ns", event.time_ns - self.origin_ns)
                if values is not None:
                    call["value_out"] = _values(values)

    def _begin_span(self, event: SpanBegins) -> None:
        span: SpanRow = {
            "rank": self.rank,
            "name": event.name,
            "input": event.input,
            "begin_ns": event.time_ns - self.origin_ns,
            "call_site": event.call_site,
        }
        self.spans[event.span] = span
        if event.step is not None:
            span["input"] = event.step
            self.numbered.append(span)

    def stream_waits(self) -> list[list[int | str]]:
        """`Meta.stream_waits` of this rank; empty unless it used only the default stream."""
        waits: list[list[int | str]] = []
        for id, first in self.streamed.items() if self.one_stream else ():
            call = self.calls.get(id)
            if call is not None and call.get("completed_ns") is None and call.get("error") is None:
                waiting = self.calls[first]
                waits.append(
                    [self.rank, call["group"], call["seq"], waiting["group"], waiting["seq"]]
                )
        return waits


def about_ranks(logs: Collection[RankLog], backend: str) -> Meta:
    """Metadata of a run on `backend`: versions, names and backends of groups, eager groups, waits
    of streams."""
    begin = next((log.begin for log in logs if log.begin is not NOT_BEGUN), NOT_BEGUN)
    groups = {name: group for log in logs for name, group in log.groups.items()}
    ranks = {name: group.ranks for name, group in groups.items()}
    descriptions = {name: group.description or "" for name, group in groups.items()}
    facts: Meta = {
        "versions": {
            "joinlab": begin.joinlab,
            "python": begin.python,
            "torch": begin.torch,
            "nccl": begin.nccl,
        },
        "group_names": group_names(ranks, descriptions),
        "group_backends": {
            name: group.backend for name, group in groups.items() if group.backend != backend
        },
        "eager_groups": [name for name, group in groups.items() if group.eager],
        "stream_waits": [wait for log in logs for wait in log.stream_waits()],
    }
    if any(group.backend == "nccl" for group in groups.values()):
        facts["nccl"] = _about_nccl(logs)
    return facts


def _about_nccl(logs: Collection[RankLog]) -> AboutNccl:
    """Rings and, unless the beginning of a log is missing, the groups with coalesced calls."""
    facts: AboutNccl = {"rings": {name: ring for log in logs for name, ring in log.rings.items()}}
    if all(log.begin is not NOT_BEGUN for log in logs):
        facts["coalesced"] = sorted({name for log in logs for name in log.coalesced})
    captured = sorted({name for log in logs for name in log.captured})
    if captured:
        facts["captured"] = captured
    if logs and all(log.gpu_major is not None and log.gpu_major < VOLTA for log in logs):
        facts["warps_apart"] = False
    return facts


def groups_of(logs: Collection[RankLog]) -> dict[str, list[int]]:
    """Ranks by name of the group. A second group of one name, on other ranks, gets a name of its
    own."""
    groups: dict[str, list[int]] = {}
    for log in logs:
        for name, group in list(log.groups.items()):
            ranks = group.ranks
            if groups.get(name, ranks) != ranks:
                new_name = f"{name} of ranks {', '.join(map(str, ranks))}"
                log.groups[new_name] = log.groups.pop(name)
                for call in log.calls.values():
                    if call["group"] == name:
                        call["group"] = new_name
                name = new_name
            groups.setdefault(name, ranks)
    unnamed: dict[str, list[int]] = {}
    for log in logs:
        for name in dict.fromkeys(call["group"] for call in log.calls.values()):
            if name not in groups:  # the line that describes it is damaged, or not written yet
                unnamed.setdefault(name, []).append(log.rank)
    return groups | unnamed


def about_calls(
    logs: Collection[RankLog],
    program: Source | None = None,
    groups: Mapping[str, Sequence[int]] | None = None,
) -> dict[str, object]:
    """The part of `meta` that calls determine: texts of helper functions, how steps are counted,
    mixed gradients, and between the ranks of `groups` the first difference of their replicas."""
    rows = (row for log in logs for row in log.calls.values())
    facts = {
        "functions": other_functions(
            program, (text for log in logs for text in log.texts.values())
        ),
        "input_column": BY_BACKWARD if settle_steps(logs) else None,
        "mixed": mixed_gradients(log.gradients for log in logs),
        "unwaited": [one for log in logs for one in unwaited_of(log.rank, log.calls, log.dropped)],
        "grouped": unlike_groups({log.rank: log.named for log in logs}),
        "outside": [
            {"rank": log.rank, "name": one.name, "site": one.site}
            for log in logs
            for one in log.outside
        ],
        "stood": {log.rank: log.stood for log in logs if log.stood},
        "left_at": {log.rank: log.left_at for log in logs if log.left_at},
        "replicas": differing_replicas({log.rank: log.marks for log in logs}, rows, groups or {}),
        "side_effects": {log.rank: log.side_effect for log in logs if log.side_effect},
    }
    return {name: value for name, value in facts.items() if value}


def _values(tensors: Any) -> str | None:
    text = None if tensors is None else encode_values(tensors)
    if text is not None and len(text) > LONG_VALUES:
        raise ValueError("values longer than the recorder keeps")
    return text
