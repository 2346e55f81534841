"""The Timeline: what every producer makes and every reader takes.

A Timeline is plain data. It holds no tensor, no process and no open file, so that it can be saved,
sent to another machine and opened there without torch. All times are int nanoseconds on the one
clock that `meta["clock"]` names: "monotonic" for real runs, counted from the moment the launch
began, or "virtual" for emulated ones. The two never share an axis.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import (
    Any,
    Literal,
    NotRequired,
    Protocol,
    Required,
    TypedDict,
    TypeVar,
    get_type_hints,
    overload,
)

import polars as pl

from joinlab import archive, showing
from joinlab.backend.calls import REFUSAL
from joinlab.errors import ProgramError, RankError
from joinlab.ops import LONG_VALUES, POINT_TO_POINT, AboutNccl, Stood, decode_values
from joinlab.ops import CallRow as CallRow
from joinlab.ops import Source as Source
from joinlab.ops import SpanRow as SpanRow
from joinlab.program.conforming import misfit
from joinlab.program.divergence import Divergence
from joinlab.program.misuse import Grouping, Outside, Unwaited
from joinlab.program.replicas import Gradient, Replica
from joinlab.program.traces import Trace, Window

CALL_COLUMNS: Mapping[str, pl.DataType] = {
    "rank": pl.Int64(),  # global rank that issued the call
    "group": pl.String(),  # name of the process group; its ranks are in meta["groups"]
    "seq": pl.Int64(),  # order of issue within the group on that rank, from 0: the key of a row
    # The call's displayed number, given at issue: its place in the group on that rank, from 1, as
    # PyTorch's watchdog and flight recorder count. Collectives are counted apart from sends and
    # recvs, calls missing from the record count too, and collectives of one number meet. null: the
    # backend refused the call, so it has no place
    "number": pl.Int64(),
    "op": pl.String(),  # all_reduce, broadcast, barrier, send, ... (an Op)
    "origin": pl.String(),  # who issued it, as a label of the documented traces
    # index of the input being processed, or of the step, see input_column; null outside of both
    "input": pl.Int64(),
    "dtype": pl.String(),  # "float32"; several are joined by ","; null for a gloo barrier
    # one entry per tensor that the rank contributes or receives into
    "shape": pl.List(pl.List(pl.Int64())),
    "reduce_op": pl.String(),  # "sum", "max", ...; null where the op reduces nothing
    "root": pl.Int64(),  # global rank of the root of broadcast, reduce, gather, scatter
    "peer": pl.Int64(),  # global rank of the other side of send and recv; null: from any source
    "tag": pl.Int64(),  # tag of send and recv
    # Of an all_to_all: the elements for each rank of its group, and those that it expects from
    # each; one number alone holds for each rank. null where the record does not say
    "splits": pl.List(pl.List(pl.Int64())),
    # JSON: one flat list per tensor, "[[1.0]]"; null if over MAX_VALUES elements
    "value_in": pl.String(),
    "value_out": pl.String(),  # the same, after completion; null until then
    "call_site": pl.String(),  # "file:line" of the learner's code
    "stack": pl.List(pl.String()),  # "file:line function", innermost last
    "enqueued_ns": pl.Int64(),  # the host handed the call to the backend
    "started_ns": pl.Int64(),  # the backend began it; null where the backend does not say (gloo)
    "completed_ns": pl.Int64(),  # the backend completed it; null: never
    "host_wait_begin_ns": pl.Int64(),  # the host began to wait for it; null: it never did
    "host_wait_end_ns": pl.Int64(),  # the wait returned; null: it never did
    "error": pl.String(),  # what the backend raised instead of completing it
}

SPAN_COLUMNS: Mapping[str, pl.DataType] = {
    "rank": pl.Int64(),
    "name": pl.String(),  # "forward", "backward", "optimizer"
    "input": pl.Int64(),
    "begin_ns": pl.Int64(),
    "end_ns": pl.Int64(),  # null: the rank ended inside it
    "call_site": pl.String(),
}


class Watched(TypedDict):
    """How NCCL's watchdog would end a hanging rank: the delay and its message."""

    rank: int
    after_s: float
    text: str


class EmulationSettings(TypedDict, total=False):
    """The knobs of an emulation: see `joinlab.emulate`."""

    era: str
    barrier_value: int
    pad: int
    gpu: str  # left out: "A100"
    assumes: str  # assumptions of the model where NCCL might choose otherwise
    watchdog: list[Watched]  # left out: no rank hangs on NCCL, or era is "1.9"
    seconds_per_input: list[float]
    latency: float
    bytes_per_second: float


class Clock(TypedDict, total=False):
    """The clock of a Timeline's times; for a monotonic clock also its origin, and each host's
    offset."""

    domain: Required[str]
    origin_ns: int
    hosts: dict[str, int]
    bounds_ns: dict[str, int | None]  # by host: how far off its offset can be; None: not known
    completed: str  # the meaning of a completion time, if it is not the time of completion


class GroupProgress(TypedDict):
    """How many collectives of one group a rank had enqueued and completed when its record was
    written."""

    enqueued: int
    completed: int


class Process(TypedDict):
    """Where a recorded rank ran, and its command."""

    host: str
    pid: int | None
    gpu: str | None
    command: list[str]
    stopped: NotRequired[bool]  # by SIGSTOP, a debugger or its cgroup
    silent: NotRequired[str]  # it wrote no stacks when it should have; the line that Ctrl-C met


class Cut(TypedDict):
    """Where a job was interrupted, or its record broke off: it is read up to there.

    why       the ending of the ranks that had not ended before
    still_ns  how long no rank had written an event
    """

    why: str
    still_ns: int


class PlainEdit(TypedDict):
    """A `joinlab.story.lines.Edit`."""

    file: str
    begin: int
    removed: list[str]
    added: list[str]


class PlainFix(TypedDict):
    """A fix of `joinlab.story.fixes`: what it does, its edits, and whether ranks do less with it.

    tried   with how many counts of inputs it was emulated and every rank finished
    raised  with how many further ones a rank raised an error, as without the edit
    joining the ranks whose values a reduction gets with it that it did not get before
    uneven  by rank the inputs that it then trains on, where they got as many and differ
    often   how often a rank made the moved call before, and makes it now, if that is more
    root    the expression in whose place the edit puts one root
    lost    the ranks that sent their data as root, and do not with the edit
    ungiven the ranks that were to get a result as root, and do not with the edit
    apart   with it, every call meets its counterpart, and the replicas differ
    """

    kind: str
    edits: list[PlainEdit]
    fewer: bool
    tried: int
    raised: NotRequired[int]
    joining: NotRequired[list[int]]
    uneven: NotRequired[list[int]]
    often: NotRequired[list[int]]
    root: NotRequired[str]
    lost: NotRequired[list[int]]
    ungiven: NotRequired[list[int]]
    apart: NotRequired[bool]


class Meta(TypedDict, total=False):
    """Facts about a run. A producer leaves out what it does not know."""

    program: str
    source: Source | None
    functions: list[Source]  # the learner's other functions that calls came from
    engine: str  # "launched", "emulated", "recorded", "imported" or "documented" (by the thread)
    backend: str
    transport: str | None
    world_size: int
    inputs: list[int]
    # what `input` counts, see program/steps.py; left out: "inputs"
    input_column: Literal["inputs", "backward passes"]
    seeds: list[int | None]
    groups: dict[str, list[int]]  # global ranks
    versions: dict[str, str | None]
    clock: Clock
    emulation: EmulationSettings
    verdict_ns: int | None
    format: str
    group_names: dict[str, str]  # the program's own description of a group
    group_backends: dict[str, str]  # only groups whose backend differs from `backend`
    # NCCL communicators made with their groups: init_process_group(device_id=...)
    eager_groups: list[str]
    # NCCL only: rank, group and seq of each incomplete call that the rank's stream was made to wait
    # for, then group and seq of the first call that the rank issued after that wait
    stream_waits: list[list[int | str]]
    nccl: AboutNccl
    # by group and rank: number of lost collectives before its first row
    skipped: dict[str, dict[int, int]]
    progress: dict[str, dict[int, GroupProgress]]  # if calls are lost: how far each rank had got
    missing_ranks: list[int]
    heard: list[int]  # of a text: ranks that some line is of
    problems: list[str]  # sentences about what could not be read
    processes: dict[int, Process]
    # by rank that had written nothing for a while: where each thread stood
    stood: dict[int, list[Stood]]
    cut: Cut
    # of a text: by group, its name for a call's number, if it counts from 0
    counted: dict[str, str]
    sends: dict[int, str]  # of a text: by rank its last send and recv, in words
    rank_names: dict[int, str]  # of a text: what a rank is called whose number nothing gives
    mismatched: list[int]  # ranks at and around which NCCL found calls that do not match
    asides: list[str]  # sentences about tracebacks that ended no rank for sure, or earlier attempts
    left_at: dict[int, str]  # by rank that called sys.exit: the line
    fixes: list[PlainFix]  # the fixes that were tried: see joinlab.story.fixes
    fixes_cut: bool  # a trial took too long to say whether its edit is a fix
    fixes_hidden: bool  # an exercise asks for one: the story neither tries nor shows any
    # the first parameter that differs between DDP's replicas; left out: none was seen
    replicas: Replica
    # the first two calls that met and averaged gradients of two models; emulated runs only
    mixed: list[Gradient]
    unwaited: list[Unwaited]  # calls whose Work nobody waited for
    outside: list[Outside]  # calls of groups that the rank is not in
    grouped: list[Grouping]  # calls of new_group that not all ranks made alike
    parting: Divergence  # where the ranks' traces diverge
    parting_emulated: bool  # of a launch: it was found in an emulation that ended as the launch did
    not_emulated: str  # of a launch: why the emulation of its program that was tried was refused
    seconds: float  # of a launch: how long it took
    side_effects: dict[int, str]  # of a launch: what a rank did first that would happen again
    ways: bool  # of a recorded job: the lines that its ranks ran were recorded, too
    contradiction: str  # documented only: where the thread contradicts itself


def backend_of(meta: Mapping[str, Any], group: str) -> object:
    """The backend of a process group: its own if meta names one, else the run's.

    >>> backend_of({"backend": "nccl", "group_backends": {"1": "gloo"}}, "1")
    'gloo'
    """
    return meta.get("group_backends", {}).get(group, meta.get("backend"))


class EndKind(StrEnum):
    """How a rank can end."""

    FINISHED = "finished"  # the program returned
    HUNG = "hung"  # it waited for a call that could not complete, and joinlab ended it
    RAISED = "raised"  # an exception escaped from the program
    KILLED = "killed"  # its process died of a signal, called os._exit, or was stopped from outside
    UNKNOWN = "unknown"  # the record ends before the rank did, or has nothing about it


NOTHING_RECORDED = 1 << 40
"""`meta["skipped"]` of a rank of which nothing is recorded: all of its calls are unknown."""

FROM_TEXT = "text"
"""`meta["format"]` of a Timeline read from pasted text, which leaves out most of what happened."""

FIRST_FAILED = "torchrun: the first that failed"
"""In the text of an ending: torchrun named the rank as the root cause."""

STUCK = "its NCCL watchdog made no progress"
"""In the text of an ending, from pasted text: a call of CUDA or NCCL did not return on the rank."""

UNTOLD = "no line says how it ended"
"""The text of an ending that pasted text leaves out."""

WROTE = "it wrote a traceback, and no line says whether that ended it"
"""The text of an ending that pasted text may tell, in lines that cannot be read for sure."""

INTERRUPTED = "the job was interrupted (Ctrl-C)"
"""The text of an ending: the user ended the job, which may have hung."""

LOST = "its record ends early"
"""The text of an ending: the rank did more than its record has."""

CUT = "ended by joinlab"
"""The first words of an ending that joinlab brought about at a limit of time."""

RUNNING = "still running when its record was read"
"""The text of an ending that has not come yet."""

NO_END = (
    "its process is gone without an ending in the record: it was killed, aborted or called os._exit"
)
FAILED = "failed"
"""In place of the kind of an ending of which only the exit code is known, where it is told."""

ABRUPT = "abrupt"
"""In place of the kind of an ending with the text NO_END, where it is told."""

ON_REQUEST = "stopped on request", "interrupted by the user"
"""The last words of an ending that the user of `launch` or `emulate` brought about."""
STOPPED = "stopped"
"""In place of the kind of such an ending."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How one rank ended.

    `call` is the seq, within `group`, of the call it ended in: the one a hung rank waits for, the
    one that raised, or, if `pending`, the first that a finished rank left unfinished. `text` is the
    type and message of an exception, or what ended the process. `proven` is None unless the rank
    hung: True if the matching rule shows that the awaited call can never complete, False if only
    progress was missing.
    """

    kind: EndKind
    pending: bool = False
    call: int | None = None
    group: str | None = None
    text: str = ""
    proven: bool | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", EndKind(self.kind))
        if (self.kind is EndKind.HUNG) != (self.proven is not None):
            raise ValueError(f"an ending has `proven` exactly if it is hung: {self}")
        if self.pending and self.kind is not EndKind.FINISHED:
            raise ValueError(f"only a finished rank leaves a call pending: {self}")

    @property
    def how(self) -> str:
        """Its kind; ABRUPT if no more than the missing end is known, FAILED if no more than an exit
        code; STOPPED if its user ended it."""
        if self.kind is EndKind.KILLED and self.text.endswith(ON_REQUEST):
            return STOPPED
        if self.kind is EndKind.UNKNOWN and "exit code " in self.text:
            return FAILED
        return ABRUPT if self.text == NO_END else self.kind

    @property
    def runs(self) -> bool:
        """The rank was still running when its record was read."""
        return self.kind is EndKind.UNKNOWN and self.text == RUNNING

    @classmethod
    def at(
        cls, kind: EndKind, call: CallRow | None, text: str = "", *, proven: bool | None = None
    ) -> Ending:
        """An ending while the rank waited for `call`; None: for no call."""
        return cls(kind, False, *_where(call), text, proven)

    @classmethod
    def finished(cls, calls: Iterable[CallRow]) -> Ending:
        """The program returned. The first of the rank's `calls` that neither completed nor failed
        is pending."""
        open_call = next(
            (call for call in calls if call.get("completed_ns") is None and not call.get("error")),
            None,
        )
        return cls(EndKind.FINISHED, open_call is not None, *_where(open_call))

    @classmethod
    def raised(cls, calls: Iterable[CallRow], text: str) -> Ending:
        """An exception, type and message `text`, escaped from the program.

        The program may have caught the exception of an earlier call, so the call it ended in is the
        last of `calls` whose error message is in `text`.
        """
        last = None
        for call in calls:
            error = call.get("error")
            if error and error.partition(": ")[2] in text:
                last = call
        return cls(EndKind.RAISED, False, *_where(last), text)

    def __str__(self) -> str:
        if self.kind is EndKind.HUNG:
            if self.proven:
                return "hung (proven)"
            return "hung (suspected)"
        if self.pending:
            return f"{self.kind} (a call still pending)"
        return str(self.kind)


def _where(call: CallRow | None) -> tuple[int | None, str | None]:
    if call is None:
        return (None, None)
    return (call["seq"], call["group"])


@dataclass(frozen=True, eq=False)
class Timeline:
    """One run of one program: every collective call of every rank, and how each rank ended.

    calls    polars DataFrame, columns CALL_COLUMNS, one row per call per rank, sorted by rank, then by issue
    spans    polars DataFrame, columns SPAN_COLUMNS: the host's other work (forward, backward, optimizer)
    ends     one Ending per rank
    returns  each rank's return value, as plain data (tensors become numpy arrays); None if it did not return
    output   each rank's stdout and stderr, in the order written
    live     what the process that made it knows beside: it is not saved
    meta     facts about the run: a `Meta`

        timeline.calls.filter(pl.col("completed_ns").is_null())     # what never completed
        timeline.ends[1].kind                                       # "hung"
    """

    calls: pl.DataFrame
    spans: pl.DataFrame
    ends: tuple[Ending, ...]
    meta: Meta
    returns: tuple[Any, ...] = field(default=())
    output: tuple[str, ...] = field(default=())
    live: LiveRun = field(default_factory=lambda: LiveRun(), init=False, repr=False)
    _derived: _Derived = field(default_factory=lambda: _Derived(), init=False, repr=False)

    def __post_init__(self) -> None:
        n = len(self.ends)
        if n == 0:
            raise ValueError("a Timeline needs at least one rank")
        for name, columns in (("calls", CALL_COLUMNS), ("spans", SPAN_COLUMNS)):
            schema = getattr(self, name).schema
            if dict(schema) != dict(columns):
                wrong = sorted(set(schema.items()) ^ set(columns.items()), key=str)
                raise ValueError(
                    f"Timeline.{name} needs the columns of {name[:-1].upper()}_COLUMNS; differing: {wrong}"
                )
        for name in ("returns", "output"):
            value = getattr(self, name) or ((None,) * n if name == "returns" else ("",) * n)
            if len(value) != n:
                raise ValueError(f"Timeline.{name} has {len(value)} entries for {n} ranks")
            object.__setattr__(self, name, tuple(value))

    @overload
    def rows(self, name: Literal["calls"]) -> list[CallRow]: ...
    @overload
    def rows(self, name: Literal["spans"]) -> list[SpanRow]: ...
    def rows(self, name: Literal["calls", "spans"]) -> list[CallRow] | list[SpanRow]:
        """The rows of `calls` or `spans` as dicts, with every column."""
        # to_dicts takes twice as long
        rows: list[CallRow] | list[SpanRow] = getattr(self, name).rows(named=True)
        return rows

    @property
    def world_size(self) -> int:
        return len(self.ends)

    def call(self, rank: int, seq: int, group: str | None = None) -> CallRow:
        """The one call of `rank` with that `seq`, as a dict of its columns (group: the default
        one).

        Raises KeyError if there is none.
        """
        group = self.default_group if group is None else group
        matching = self.calls.filter(
            pl.col("rank") == rank, pl.col("seq") == seq, pl.col("group") == group
        )
        if matching.is_empty():
            raise KeyError(f"rank {rank} issued no call with seq {seq} in group {group!r}")
        row: CallRow = matching.row(0, named=True)  # type: ignore[assignment]  # polars knows no TypedDict
        return row

    @property
    def default_group(self) -> str:
        """Name of the group that all ranks are in: the first of meta["groups"]."""
        return str(next(iter(self.meta["groups"])))

    def ended_in(self, rank: int) -> tuple[int, str, int] | None:
        """Rank, group and seq of the call that a rank's ending names; None if it names none."""
        end = self.ends[rank]
        if end.call is None:
            return None
        return (rank, self.default_group if end.group is None else end.group, end.call)

    def raise_for_ending(self) -> Timeline:
        """Return self if every rank finished with nothing pending; else raise RankError with the
        story."""
        if any(end.kind is not EndKind.FINISHED or end.pending for end in self.ends):
            raise RankError(self._ended_text(), self)
        return self

    def _ended_text(self) -> str:
        """How the ranks ended, in words: the story, or without one the endings."""
        if showing.story is not None:
            return showing.story(self)
        return "; ".join(f"rank {rank} {end}: {end.text}" for rank, end in enumerate(self.ends))

    def _repr_html_(self) -> str | None:
        """Its picture, for marimo and others; IPython shows a live view instead."""
        if showing.html is None:
            return None
        return showing.html(self)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write one file that `joinlab.load` opens, also on a machine without torch; returns its
        path."""
        if self.live.traces and showing.story is not None:  # the story adds its findings to `meta`
            showing.story(self)
        return archive.save(parts_of(self), path)

    def __repr__(self) -> str:
        if self.world_size > NAMED_ENDS:
            ends = ", ".join(
                f"{count} {end}" for end, count in Counter(map(str, self.ends)).items()
            )
        else:
            ends = ", ".join(f"{rank}: {end}" for rank, end in enumerate(self.ends))
        return (
            f"<Timeline of {self.meta.get('program')!r}, {self.meta.get('engine')} on {self.meta.get('backend')}, "
            f"inputs {self.meta.get('inputs')}: {self.calls.height} calls; ends {{{ends}}}>"
        )


NAMED_ENDS = 8
"""Of more ranks than these, the repr of a Timeline counts the endings instead of listing them."""


class TraceSource(Protocol):
    """A source of the traces of a run's ranks: an emulation that can be run again, or recorded
    steps."""

    def traces(
        self, timeline: Timeline, windows: Mapping[int, Window], /
    ) -> Mapping[int, Trace] | str:
        """The steps of these ranks in their windows; {}: unknown; a text: the reason why they
        are."""


@dataclass(slots=True)
class LiveRun:
    """What can still be found out about a run in the process that made its Timeline.

    traces  source of the ranks' traces, until the first story
    rerun   emulates the program once more, to try fixes: of a launched run, or one that ships
    mended  the run with the fix that the story shows, once it was tried
    """

    traces: TraceSource | None = None
    rerun: Callable[[], Timeline] | None = None
    mended: Timeline | None = None


class _Derived(dict[object, Any]):
    """Results of `derived` functions. A copy of the Timeline starts without them."""

    def __reduce__(self) -> tuple[type[_Derived], tuple[()]]:
        return _Derived, ()


_R = TypeVar("_R")


def derived(find: Callable[..., _R]) -> Callable[..., _R]:
    """Cache the results of a function of a Timeline on that Timeline.

    A result must not refer to the Timeline: the reference cycle would keep both until the garbage
    collector runs.
    """

    @wraps(find)
    def cached(timeline: Timeline, *options: object) -> _R:
        results, key = timeline._derived, (find, *options)
        if key not in results:
            results[key] = find(timeline, *options)
        result: _R = results[key]
        return result

    return cached


def load(path: str | os.PathLike[str], max_bytes: int = archive.MAX_BYTES) -> Timeline:
    """Open a file that `Timeline.save` wrote; raises TimelineFileError for any other file.

    max_bytes  largest size of the file, and of its unpacked content
    """
    return archive.load(path, timeline_from_parts, max_bytes)


def parts_of(timeline: Timeline) -> archive.Parts:
    """The parts of a Timeline that a file holds."""
    ends = tuple(map(asdict, timeline.ends))
    return archive.Parts(
        timeline.calls, timeline.spans, ends, dict(timeline.meta), timeline.returns, timeline.output
    )


def timeline_from_parts(parts: archive.Parts) -> Timeline:
    """The Timeline of a file's parts; ValueError or TypeError if they are inconsistent."""
    for end in parts.ends:
        if not isinstance(end, dict):
            raise ValueError(f"an ending {end!r:.40}")
        for name, value in end.items():
            if name in _ENDING and (wrong := misfit(value, _ENDING[name], name)):
                raise ValueError(f"an ending whose {wrong}")
    if not all(isinstance(text, str) for text in parts.output):
        raise ValueError("output that is not text")
    versions = parts.meta.get("versions")
    if isinstance(versions, dict):  # older files have the repr of torch's
        parts.meta["versions"] = {
            name: version and str(version).strip("'") for name, version in versions.items()
        }
    _check_meta(parts.meta, len(parts.ends))
    timeline = Timeline(
        calls=_completed(parts.calls, parts.meta),
        spans=parts.spans,
        ends=tuple(Ending(**end) for end in parts.ends),
        meta=parts.meta,  # type: ignore[arg-type]  # checked above
        returns=parts.returns,
        output=parts.output,
    )
    _check_rows(timeline)
    return timeline


def _completed(calls: pl.DataFrame, meta: Mapping[str, Any]) -> pl.DataFrame:
    """The table of calls of a file, with the columns that older files lack."""
    if not CALL_COLUMNS.keys() - {"number", "splits"} <= {*calls.columns} < CALL_COLUMNS.keys():
        return calls
    if "splits" not in calls.columns:
        calls = calls.with_columns(splits=pl.lit(None, CALL_COLUMNS["splits"]))
    return numbered(calls, meta) if "number" not in calls.columns else calls.select(*CALL_COLUMNS)


_ENDING = get_type_hints(Ending) | {"kind": str}


def _check_meta(meta: Mapping[str, Any], world_size: int) -> None:
    wrong = misfit(meta, Meta)
    if wrong:
        raise ValueError(f"meta whose {wrong}")
    ranks = range(world_size)
    if not all(fix["edits"] for fix in meta.get("fixes", ())):
        raise ValueError("a fix without an edit")
    if not meta.get("groups"):
        raise ValueError("meta without groups")
    for name, members in meta["groups"].items():
        if any(rank not in ranks for rank in members) or len(set(members)) < len(members):
            raise ValueError(f"group {name!r:.40} has ranks that do not exist")
    lists = [
        meta.get("missing_ranks", ()),
        meta.get("stood", ()),
        *meta.get("skipped", {}).values(),
    ]
    lists += meta.get("progress", {}).values()
    for test in meta.get("parting", {}).get("tests", ()):
        lists += [outcome["ranks"] for outcome in (*test["values"], *test["sides"])]
    if any(rank not in ranks for ranks_named in lists for rank in ranks_named):
        raise ValueError("meta that names ranks that do not exist")


def _check_rows(timeline: Timeline) -> None:
    n = timeline.world_size
    for name, needed in (
        ("calls", ("rank", "group", "seq", "op")),
        ("spans", ("rank", "name", "begin_ns")),
    ):
        frame: pl.DataFrame = getattr(timeline, name)
        if any(frame[column].null_count() for column in needed):
            raise ValueError(f"{name} that lack one of {', '.join(needed)}")
        if frame.height and not (frame["rank"].is_between(0, n - 1).all()):
            raise ValueError(f"{name} of ranks that do not exist")
        times = [column for column in frame.columns if column.endswith("_ns")]
        if any(
            not frame[column].drop_nulls().is_between(-_LONG_NS, _LONG_NS).all() for column in times
        ):
            raise ValueError(f"{name} at impossible times")
    calls = timeline.calls
    if calls.select("rank", "group", "seq").is_duplicated().any() or not (calls["seq"] >= 0).all():
        raise ValueError("calls with the same seq")
    if not calls["rank"].is_sorted():
        raise ValueError("calls that are not sorted by rank")
    placed = calls.filter(pl.col("number").is_not_null(), ~pl.col("op").is_in(list(POINT_TO_POINT)))
    if (
        placed.select("rank", "group", "number").is_duplicated().any()
        or not (calls["number"].drop_nulls() > 0).all()
    ):
        raise ValueError("two collectives with the same number")
    # others may have been refused for their root
    accepted = calls.filter(pl.col("error").is_null())
    if any(
        not accepted[column].drop_nulls().is_between(0, n - 1).all() for column in ("peer", "root")
    ):
        raise ValueError("calls that name ranks that do not exist")
    for text in {*calls["value_in"].drop_nulls(), *calls["value_out"].drop_nulls()}:
        if len(text) > LONG_VALUES:
            raise ValueError("values longer than the recorder keeps")
        tensors = decode_values(text)
        if not isinstance(tensors, list) or not all(isinstance(values, list) for values in tensors):
            raise ValueError(f"values of another form: {text:.40}")
        if any(isinstance(value, (list, dict)) for values in tensors for value in values):
            raise ValueError(f"values of another form: {text:.40}")
    for column in ("shape", "splits"):
        lists = calls[column].drop_nulls().explode()
        if lists.drop_nulls().len() < calls[column].drop_nulls().list.len().sum():
            raise ValueError(f"a {column} that is null")
        sizes = lists.drop_nulls().explode().drop_nulls()
        if (
            not sizes.is_between(0, _LONG_NS).all()
            or sizes.len() < lists.drop_nulls().list.len().sum()
        ):
            raise ValueError(f"a {column} with an impossible size")
    _check_splits(calls, timeline.meta)
    if (
        calls["stack"].drop_nulls().explode().drop_nulls().len()
        < calls["stack"].drop_nulls().list.len().sum()
    ):
        raise ValueError("a stack with a frame that is null")


def _check_splits(calls: pl.DataFrame, meta: Meta) -> None:
    given = calls.filter(pl.col("splits").is_not_null()).select("group", "splits").unique()
    for group, splits in given.rows():
        size = len(meta["groups"].get(group, ()))
        if len(splits) != 2 or any(len(side) not in (1, size) for side in splits):
            raise ValueError("an all-to-all with parts for other ranks than its group's")


_LONG_NS = 1 << 62  # 146 years


def _frame(
    rows: Sequence[CallRow] | Sequence[SpanRow], columns: Mapping[str, pl.DataType]
) -> pl.DataFrame:
    """A frame with exactly `columns`; a column missing in a row is null."""
    return pl.DataFrame(
        [_series(name, dtype, [row.get(name) for row in rows]) for name, dtype in columns.items()]
    )


def numbered(calls: pl.DataFrame, meta: Mapping[str, Any]) -> pl.DataFrame:
    """`calls` with the column `number` added, counted from their order.

    >>> rows = {"rank": [0, 0, 0], "group": ["0"] * 3, "op": ["all_reduce", "send", "barrier"], "error": [None] * 3}
    >>> numbered(pl.DataFrame(rows).with_columns(seq=0), {})["number"].to_list()
    [1, 1, 2]
    """
    skips = []
    for group, ranks in (meta.get("skipped") or {}).items():
        for item in ranks.items():
            skips.append((group, *item))
    skipped = pl.DataFrame(
        skips, {"group": pl.String(), "rank": pl.Int64(), "lost": pl.Int64()}, orient="row"
    )
    pair = pl.col("op").is_in(list(POINT_TO_POINT))
    takes = ~pl.col("error").cast(pl.String()).str.contains(REFUSAL).fill_null(False)
    numbers = takes.cum_sum().over("rank", "group", pair).cast(pl.Int64())
    before = pl.when(pair).then(0).otherwise(pl.col("lost").fill_null(0))
    frame = calls.join(skipped, on=["group", "rank"], how="left", maintain_order="left")
    frame = frame.with_columns(number=pl.when(takes).then(numbers + before))
    return frame.select(name for name in CALL_COLUMNS if name in frame.columns)


def _series(name: str, dtype: pl.DataType, values: Sequence[object]) -> pl.Series:
    try:
        return _converted(name, dtype, values)
    except UnicodeEncodeError:  # a file name that is not valid text: polars takes only UTF-8
        return _converted(name, dtype, list(map(_encodable, values)))


def _encodable(value: object) -> object:
    if isinstance(value, list):
        return list(map(_encodable, value))
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    return value


def _converted(name: str, dtype: pl.DataType, values: Sequence[object]) -> pl.Series:
    if not isinstance(dtype, pl.List):
        return pl.Series(name, values, dtype=dtype)
    # Converting lists is slow, and many are equal: convert each once.
    spelled = {key: repr(value) for key, value in {id(value): value for value in values}.items()}
    distinct = {spelled[id(value)]: value for value in values}
    index_of = {text: index for index, text in enumerate(distinct)}
    return pl.Series(name, list(distinct.values()), dtype=dtype)[
        [index_of[spelled[id(value)]] for value in values]
    ]


def timeline_from_rows(
    calls: Iterable[CallRow],
    ends: Sequence[Ending],
    meta: Meta,
    spans: Iterable[SpanRow] = (),
    returns: Sequence[object] = (),
    output: Sequence[str] = (),
) -> Timeline:
    """Build a Timeline from row dicts; a missing column is null. Rows are sorted by rank, keeping
    issue order.

    meta["groups"], if absent, becomes one default group "0" of all ranks; `number`, if no row has
    it, is counted.
    """
    default: Meta = {"groups": {"0": list(range(len(ends)))}, "world_size": len(ends)}
    full: Meta = {**default, **meta}
    called = sorted(calls, key=lambda row: row["rank"])
    spanned = sorted(spans, key=lambda row: (row["rank"], row["begin_ns"]))
    frame = _frame(called, CALL_COLUMNS)
    if called and frame["number"].null_count() == len(called):
        frame = numbered(frame.drop("number"), full)
    return Timeline(
        calls=frame,
        spans=_frame(spanned, SPAN_COLUMNS),
        ends=tuple(ends),
        meta=full,
        returns=tuple(returns),
        output=tuple(output),
    )


def expect_timeline(value: object, function: str) -> None:
    """Raise ProgramError unless `value`, which the caller gave a public function, is a Timeline."""
    if not isinstance(value, Timeline):
        raise ProgramError(
            f"{function} takes a Timeline, as launch and emulate return it; got {value!r:.60}"
        )
