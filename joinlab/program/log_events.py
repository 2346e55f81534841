"""The events that a rank writes into its log: a class for each, with its fields spelled out.

A log holds an event as a line of JSON with short keys, which only this module knows:

    {"e":"done","id":7,"t":1500,"v":[[2.0]]}      CallDone(call=7, time_ns=1500, values=[[2.0]])

`encode` makes the JSON object of an event, and `decode` the event of an object; it refuses fields
that are not of the types below, since a file may be damaged or of another origin. The recorder
writes the events of a training step as text, which costs a quarter: `first_field` and `next_field`
give it the keys.

Times are int nanoseconds on the rank's clock. A field that is None is not written, and a log that
lacks it reads as None. Emulated ranks hand the same classes to their RankLog, without JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    NamedTuple,
    TypeGuard,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from joinlab.ops import Op, Source, Stood

MOST_RANKS = 65_536
LINE_END = "}\n"
"""The end of an event that is written as text."""

Check = Callable[[object], bool]


# ---- the types of fields


def _whole(least: int, below: int = 2**62) -> Check:
    return lambda value: type(value) is int and least <= value < below


_is_rank = _whole(0, MOST_RANKS)


def is_ranks(value: object) -> TypeGuard[list[int]]:
    """Whether a value is a list of ranks, each of them once."""
    return isinstance(value, list) and all(map(_is_rank, value)) and len(set(value)) == len(value)


def _is_tensor(value: object) -> bool:
    """Whether a value is a flat list: the elements of one tensor. Those of a complex one are
    texts."""
    return isinstance(value, list) and all(isinstance(item, (int, float, str)) for item in value)


def _is_thread(value: object) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("n"), str)
        and isinstance(value.get("f"), list)
        and all(isinstance(frame, str) for frame in value["f"])
    )


Count = Annotated[int, _whole(0)]
Positive = Annotated[int, _whole(1)]
Rank = Annotated[int, _is_rank]
Ranks = Annotated[list[int], is_ranks]
OpName = Annotated[str, {*Op}.__contains__]
Tensor = Annotated[list[object], _is_tensor]
"""The elements of one tensor."""
Unchecked = Annotated[Any, lambda value: value is not MISSING]


# ---- the schema


class Event:
    """An event. Its class says which."""

    __slots__ = ()


class EventField(NamedTuple):
    """One field of an event: its name here, its key in a log, and its type."""

    name: str
    key: str
    fits: Check
    default: object


_FIELDS: dict[type[Event], dict[str, EventField]] = {}
"""By event: its fields by their keys in a log."""
_CODES: dict[type[Event], str] = {}
_BY_CODE: dict[str, type[Event]] = {}

E = TypeVar("E", bound=Event)


def key(name: str, *, default: object = MISSING) -> Any:
    """A field that is called `name` in a log. Without a default, an event must have it."""
    return field(default=default, metadata={"key": name})


@dataclass_transform(kw_only_default=True, field_specifiers=(key,))
def event(code: str) -> Callable[[type[E]], type[E]]:
    """Make a class an event that a log calls `code`."""

    def register(described: type[E]) -> type[E]:
        kind: type[E] = dataclass(slots=True, kw_only=True)(described)
        hints = get_type_hints(kind, include_extras=True)
        described_fields = (
            EventField(item.name, item.metadata["key"], _check_of(hints[item.name]), item.default)
            for item in fields(kind)  # type: ignore[arg-type]  # mypy does not see the dataclass
        )
        _FIELDS[kind] = {item.key: item for item in described_fields}
        _CODES[kind] = code
        _BY_CODE[code] = kind
        return kind

    return register


def _check_of(hint: object) -> Check:
    """The check of a field's type."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        check: Check = inner[1]
        return check
    if origin in (Union, UnionType):
        (some,) = (_check_of(kind) for kind in inner if kind is not NoneType)
        return lambda value: value is None or some(value)
    if origin is list:
        item = _check_of(inner[0])
        return lambda value: isinstance(value, (list, tuple)) and all(map(item, value))
    if hint is int:
        return _whole(1 - 2**62)
    if hint is float:
        return lambda value: isinstance(value, (int, float))
    if hint in (str, bool):
        return lambda value: isinstance(value, hint)
    raise TypeError(f"an event cannot have a field of type {hint}")


def encode(event: Event) -> dict[str, Any]:
    """The event as the object that a log holds."""
    kind = type(event)
    plain: dict[str, object] = {"e": _CODES[kind]}
    for item in _FIELDS[kind].values():
        value = getattr(event, item.name)
        if item.default is MISSING or value != item.default:
            plain[item.key] = value
    return plain


def decode(plain: Mapping[str, Any]) -> Event | None:
    """The event of an object that a log holds; None if it is of another version's class.

    Keys that its class does not have are ignored. Raises ValueError if a field is not of its type,
    TypeError if one is missing, KeyError without a code.
    """
    kind = _BY_CODE.get(plain["e"])
    if kind is None:
        return None
    known = _FIELDS[kind]
    values = {}
    for code, value in plain.items():
        item = known.get(code)
        if item is not None:
            if not item.fits(value):
                raise ValueError(f"{code!r} of {plain['e']!r} is {value!r:.40}")
            values[item.name] = value
    return kind(**values)


def encode_fields(kind: type[Event], values: Mapping[str, object]) -> dict[str, object]:
    """Some fields of an event, by their keys in a log; those that are None are left out."""
    return {
        item.key: values[item.name]
        for item in _FIELDS[kind].values()
        if values.get(item.name) is not None
    }


def first_field(kind: type[Event], name: str) -> str:
    """The text of an event up to the value of its first field.

    >>> first_field(CallDone, "call") + "7" + next_field(CallDone, "time_ns") + "1500" + LINE_END
    '{"e":"done","id":7,"t":1500}\\n'
    """
    return f'{{"e":"{_CODES[kind]}",{next_field(kind, name)[1:]}'


def next_field(kind: type[Event], name: str) -> str:
    """The text between the value of a field and that of the field `name`."""
    (code,) = (item.key for item in _FIELDS[kind].values() if item.name == name)
    return f',"{code}":'


# ---- a rank and its groups


@event("begin")
class RankBegins(Event):
    """Who the rank is.

    job        the launcher's names for the job: ranks of one job have the same
    wall_ns    the wall clock at `time_ns`
    process    when its process began (psutil): tells it from a later one with its pid
    """

    rank: Rank = key("rank")
    time_ns: Count = key("t")
    host: str | None = key("host", default=None)
    pid: int | None = key("pid", default=None)
    world_size: Rank | None = key("world", default=None)
    command: list[str] | None = key("command", default=None)
    job: list[str | None] | None = key("job", default=None)
    wall_ns: int | None = key("wall", default=None)
    process: float | None = key("process", default=None)
    joinlab: str | None = key("joinlab", default=None)
    python: str | None = key("python", default=None)
    torch: str | None = key("torch", default=None)
    nccl: str | None = key("nccl", default=None)


NOT_BEGUN = RankBegins(rank=0, time_ns=0)
"""Of a rank whose log does not have its begin, or not yet."""


@event("group")
class GroupMade(Event):
    """The rank is in a new process group, or the timeout of one has changed."""

    name: str = key("name")
    ranks: Ranks = key("ranks")
    backend: str = key("backend")
    description: str | None = key("desc", default=None)
    eager: bool | None = key("eager", default=None)  # its communicator is made with it
    timeout_ns: int | None = key("limit", default=None)


@event("gpu")
class GpuUsed(Event):
    """The GPU that the rank computes on, and the major number of its compute capability."""

    text: str = key("x")
    capability: int | None = key("cc", default=None)


@event("ring")
class RingOrder(Event):
    """A group's ranks in the order of NCCL's ring."""

    group: str = key("g")
    ranks: Ranks = key("r")


@event("coalesced")
class CallsCoalesced(Event):
    """Calls of this group were issued as one."""

    group: str = key("g")


@event("captured")
class CallsCaptured(Event):
    """Calls of this group are captured into a CUDA graph."""

    group: str = key("g")


@event("streams")
class SeveralStreams(Event):
    """Calls use several streams, so that one may overtake another."""


@event("issued")
class CollectivesIssued(Event):
    """How many collectives the rank has issued in a group before a segment of its log."""

    group: str = key("g")
    count: Count = key("k")


# ---- its calls


@event("stack")
class StackSeen(Event):
    """A stack that calls are issued from, innermost frame last, and the line of the program."""

    stack: int = key("id")
    frames: list[str] = key("f")
    call_site: str | None = key("site", default=None)


@event("text")
class FunctionText(Event):
    """The text of a function that calls came from."""

    file: str = key("f")
    first_line: Positive = key("n")
    text: str = key("x")

    @classmethod
    def of(cls, source: Source) -> FunctionText:
        return cls(file=source["file"], first_line=source["first_line"], text=source["text"])

    @property
    def source(self) -> Source:
        return {"file": self.file, "first_line": self.first_line, "text": self.text}


@event("call")
class CallIssued(Event):
    """A call is handed to the backend. Its row has the fields of the same names.

    call       number of the call on its rank
    number     its number among the group's collectives, or sends and recvs, from 1
    before     of a send or recv: number of collectives before it
    step       of a program that marks no inputs: number of the step, see program/steps.py
    streamed   calls that the stream was made to wait for since the last call
    model      number of the DDP module whose gradients it averages, if the group has several
    call_site  only if its stack does not tell it
    """

    call: int = key("id")
    group: str = key("g")
    seq: Count = key("s")
    number: Positive | None = key("n", default=None)
    before: Count | None = key("k", default=None)
    op: OpName = key("op")
    origin: str | None = key("o", default=None)
    input: int | None = key("i", default=None)
    step: int | None = key("b", default=None)
    dtype: str | None = key("d", default=None)
    shape: list[list[Count]] = key("sh")
    stack: int = key("st")
    reduce_op: str | None = key("reduce_op", default=None)
    root: int | None = key("root", default=None)
    peer: int | None = key("peer", default=None)
    tag: int | None = key("tag", default=None)
    splits: list[list[Count]] | None = key("sp", default=None)
    values: list[Tensor] | None = key("v", default=None)
    call_site: str | None = key("site", default=None)
    streamed: list[int] | None = key("w", default=None)
    model: Count | None = key("m", default=None)
    time_ns: Count = key("t")


@event("begun")
class CallStarted(Event):
    """The backend has begun a call: its kernel runs."""

    call: int = key("id")
    time_ns: Count = key("t")


@event("done")
class CallDone(Event):
    """The backend has completed a call; its output values, if they were read then."""

    call: int = key("id")
    time_ns: Count = key("t")
    values: list[Tensor] | None = key("v", default=None)


@event("value")
class ValuesRead(Event):
    """Values copied from a GPU, of a call's column "value_in" or "value_out"."""

    call: int = key("id")
    column: str = key("c")
    values: list[Tensor] | None = key("v", default=None)


@event("fail")
class CallFailed(Event):
    """The backend raised instead of completing a call.

    refused  1: when the call was issued; it has no number in its group then
    """

    call: int = key("id")
    text: str = key("x")
    refused: int | None = key("r", default=None)
    time_ns: Count | None = key("t", default=None)


# ---- its waits


@event("wait")
class WaitBegins(Event):
    """A thread begins to wait until all of these calls are complete.

    threads  Python threads of the program that are alive
    inside   1: inside these calls, which have not returned yet
    """

    calls: list[int] = key("id")
    time_ns: Count = key("t")
    thread: int = key("th")
    threads: int = key("n")
    inside: int | None = key("in", default=None)


@event("wake")
class WaitEnds(Event):
    """The wait is over, and the calls are complete, but for those that are still open.

    values  by call: its output values, if they were read now
    """

    calls: list[int] = key("id")
    time_ns: Count = key("t")
    thread: int = key("th")
    still_open: list[int] | None = key("open", default=None)
    values: list[list[Tensor] | None] | None = key("v", default=None)


@event("then")
class CallbackPending(Event):
    """A future's callback will run once this call is complete; None: it runs, or may run now."""

    callback: int = key("k")
    call: int | None = key("id", default=None)


@event("ran")
class CallbackRan(Event):
    """The callback has returned."""

    callback: int = key("k")


@event("stacks")
class ThreadsStand(Event):
    """Where the threads of the rank stand, which has written no event for a while."""

    at_ns: int | None = key("at", default=None)
    threads: list[Annotated[dict[str, Any], _is_thread]] = key("th")

    @classmethod
    def of(cls, stood: list[Stood], at_ns: int) -> ThreadsStand:
        threads = []
        for thread in stood:
            threads.append(
                {"n": thread["thread"], "f": thread["frames"]}
                | ({"x": thread["error"]} if "error" in thread else {})
            )
        return cls(at_ns=at_ns, threads=threads)

    @property
    def stood(self) -> list[Stood]:
        events = []
        for plain in self.threads:
            thread = Stood(thread=plain["n"], frames=plain["f"])
            if isinstance(plain.get("x"), str):
                thread["error"] = plain["x"]
            events.append(thread)
        return events


# ---- its program


@event("input")
class InputBegins(Event):
    """The rank goes on to this input (None: it has no more), after so many."""

    index: int | None = key("i", default=None)
    done: int = key("k")
    time_ns: Count | None = key("t", default=None)


@event("span+")
class SpanBegins(Event):
    """The host begins forward, backward or an optimizer's step."""

    span: int = key("id")
    name: str = key("n")
    input: int | None = key("i", default=None)
    step: int | None = key("b", default=None)
    call_site: str | None = key("site", default=None)
    time_ns: Count = key("t")


@event("span-")
class SpanEnds(Event):
    """The host is through with it."""

    span: int = key("id")
    time_ns: Count = key("t")


@event("way")
class TraceStepped(Event):
    """A step of the program's own lines (see program/traces.py), or the values that the step before
    it read."""

    step: Unchecked = key("s", default=None)
    values: Unchecked = key("v", default=None)


@event("interrupt")
class Interrupted(Event):
    """SIGINT came to the process."""

    time_ns: int = key("t")


@event("thread")
class ThreadRaised(Event):
    """An exception ended a thread of the program, which goes on without it."""

    name: str = key("n")
    text: str = key("x")
    site: str | None = key("at", default=None)
    time_ns: int = key("t")


@event("over")
class ProgramOver(Event):
    """The program has ended, and its process only waits for calls in flight."""

    text: str = key("x")


@event("mark")
class ReplicasMarked(Event):
    """Checksums of the tensors in DDP's replicas: a `Mark` of program/replicas.py.

    step   number of the optimizer's step; None: at the end of the program
    held   group, model, "parameter" or "state", name and checksum of each
    rates  group, model, name and learning rate of each
    before  it is of the step's beginning; left out where it is not
    """

    issued: Count = key("n")
    step: Count | None = key("b", default=None)
    held: Unchecked = key("h")
    rates: Unchecked = key("r")
    before: bool | None = key("p", default=None)


@event("dropped")
class WorksDropped(Event):
    """Nobody waited for the Works of these calls, by the end of the program: see misuse.py."""

    calls: list[int] = key("id")


@event("outside")
class CalledOutside(Event):
    """The rank called a collective of a group that it is not in: PyTorch warns, and skips it."""

    name: str = key("fn")
    site: str = key("at")


@event("effect")
class SideEffectSeen(Event):
    """The program has done something that another run of it would do again: see
    launcher/side_effects.py."""

    what: str = key("w")


@event("grouped")
class GroupNamed(Event):
    """The rank has called new_group, which every rank has to call for the same ranks; `name` is the
    name that the group gets."""

    name: str = key("name")
    ranks: Ranks = key("ranks")
    site: str = key("at")


@event("return")
class ProgramReturned(Event):
    """The program has returned.

    left_at  the line in which it called sys.exit, if it did
    """

    left_at: str | None = key("at", default=None)
    time_ns: Count | None = key("t", default=None)


@event("raise")
class ProgramRaised(Event):
    """An exception has escaped from the program.

    connected  False: before all ranks had found each other
    """

    text: str = key("x")
    traceback: str | None = key("tb", default=None)
    connected: bool | None = key("connected", default=None)
    time_ns: Count | None = key("t", default=None)


@event("refused")
class ProgramRefused(Event):
    """The program could not be loaded in the rank's process."""

    text: str = key("x")


@event("lost")
class RecordLost(Event):
    """The recorder has stopped before the rank."""

    text: str = key("x")
    time_ns: Count | None = key("t", default=None)
