"""The trace of a rank: the lines of the program that it ran between its calls, and the values in
their tests.

    issued  event      depth  line                                    values
    3       line       1      8   for x in inputs:                    len(inputs) = 3
    3       line       1      7   for epoch in range(2):
    3       line       1      8   for x in inputs:                    len(inputs) = 3
    3       line       1      9       loss = net(x).sum()

Only functions in the learner's own files are followed; `divergence` compares traces. From Python 3.12
on, sys.monitoring reports the lines, at no cost in code that is not followed; before, sys.settrace
does. If a debugger or coverage already traces the thread, nothing is followed.
"""

from __future__ import annotations

import builtins
import linecache
import os
import re
import sys
import threading
from ast import literal_eval
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from enum import Enum
from functools import lru_cache
from math import isfinite
from opcode import opmap
from types import CodeType, FrameType, MemberDescriptorType
from typing import Any, NamedTuple, TypeVar

from joinlab.program.branches import LOOKUPS, Statement, statement_at
from joinlab.program.labels import owner_of
from joinlab.program.program import Inputs

T = TypeVar("T")

MAX_STEPS = 50_000
"""Most steps kept of a rank before its window, and most within it."""

MAX_TEXT = 40
"""Most characters of a string in a test; a longer one is shown by its length."""

_ENDS_A_LOOP = {opmap[name] for name in ("FOR_ITER", "SEND", "END_ASYNC_FOR")}
"""Instructions that catch StopIteration or StopAsyncIteration themselves."""

COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
"""Functions that Python makes of comprehensions; since 3.12 of generators alone."""

Plain = str | int | float | bool | None


class TraceStep(NamedTuple):
    """One event of a trace.

    issued  how many calls the rank had issued
    event   "call", "line", "return" (or yield), "raise", or "cut": later steps were dropped
    depth   frames of the program on the stack, this one included
    values  at a test: the names in it; of "raise": the type of the exception
    owners  the names in `Statement.owned` of the line, each with the `id` of the object: not in a recorded trace
    """

    issued: int
    event: str
    depth: int
    file: str
    function: str
    line: int
    values: tuple[tuple[str, Plain], ...] = ()
    owners: tuple[tuple[str, int], ...] = ()

    @property
    def key(self) -> tuple[str, int, str, str, int]:
        """The part that is equal on ranks whose traces are alike."""
        return self[1:6]


class Window(NamedTuple):
    """A rank's steps while it had issued `first` to `last` calls; None: to its end."""

    first: int
    last: int | None


ALL = Window(0, None)
"""Every step."""


class Trace:
    """Follows one thread: `issued()` says how many calls its rank has issued."""

    def __init__(
        self, issued: Callable[[], int], window: Window = ALL, max_steps: int = MAX_STEPS
    ) -> None:
        self.before: deque[TraceStep] = deque(maxlen=max_steps)
        self.within: list[TraceStep] = []
        self.dropped = 0  # steps before the window that are no longer kept
        self._issued = issued
        self._window = window
        self._most = max_steps
        self._depth = 0
        self._closes = 0  # the depth of a generator that is being closed
        self._over = False
        self._asks = False  # it runs code of the program's classes itself
        self._follows = False
        self._unsure: tuple[list[tuple[str, Plain]], list[tuple[int, _Asked]]] | None = None
        self.keyed: list[tuple[int, tuple[tuple[str, Plain], ...]]] = []
        """The keys that selected the data of calls: the number of calls issued before, and the
        names and values."""
        self.replica: Callable[[], tuple[int, int]] = lambda: (0, 0)
        """Says what the rank's replica holds: checksums of its parameters and gradients."""
        self.held: dict[int, tuple[int, int]] = {}
        """What it held when a step began, by the step's `id`."""
        # code and line of the last step, and the calls until then
        self._stood: tuple[CodeType, int, int] | None = None
        self._tests: dict[tuple[str, int], Statement | None] = {}

    @classmethod
    def of(cls, steps: Iterable[TraceStep], window: Window) -> Trace:
        """A trace made of recorded steps."""
        trace = cls(int, window)
        for step in steps:
            (trace.before if step.issued < window.first else trace.within).append(step)
        last = window.last
        trace.within = [step for step in trace.within if last is None or step.issued <= last]
        return trace

    @property
    def steps(self) -> list[TraceStep]:
        return [*self.before, *self.within]

    def follow(self, run: Callable[[], T]) -> T:
        """Follow `run()` and return its result."""
        self.begin()
        try:
            return run()
        finally:
            self.end()

    def begin(self) -> None:
        """Follow this thread from now on, including the functions of the program that it is in."""
        if traced_by() is not None:
            return
        self._follows = True
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if followed(frame.f_code.co_filename):
                self._depth += 1
                frame.f_trace = self._stepped
            frame = frame.f_back
        if hasattr(sys, "monitoring"):
            _monitor(self)
        else:
            sys.settrace(self._called)

    def end(self) -> None:
        if self._follows:
            self._follows = False
            if hasattr(sys, "monitoring"):
                _unmonitor()
            else:
                sys.settrace(None)
            self._settle()

    # ---------------- sys.settrace

    def _called(self, frame: FrameType, event: str, arg: object) -> Any:
        if not followed(frame.f_code.co_filename) or self._over:
            return None
        self.note("call", frame)
        return self._stepped

    def _stepped(self, frame: FrameType, event: str, arg: Any) -> object:
        if event == "exception":
            self.raised(frame, arg[0])
        elif event in ("line", "return"):
            self.note(event, frame)
        return self._stepped

    # ---------------- keeping steps

    def raised(self, frame: FrameType, kind: type[BaseException]) -> None:
        """An exception passes through a frame. The end of a loop is no event; joinlab's own
        exceptions end the trace."""
        if self._asks:
            return
        if issubclass(kind, GeneratorExit):
            return self._close()
        ends = issubclass(kind, (StopIteration, StopAsyncIteration))
        if ends and frame.f_code.co_code[frame.f_lasti] in _ENDS_A_LOOP:
            return
        if kind.__module__.startswith("joinlab.") and not issubclass(kind, Exception):
            self._keep_keys(frame, self._issued())  # of the call that the rank ended in
            self._over = True
        self.note("raise", frame, (("", kind.__name__),))

    def _close(self) -> None:
        """Drop the last steps of an abandoned generator: Python closes it, the rank did not call
        it."""
        steps = self.within or self.before
        if steps and (steps[-1].event, steps[-1].depth) == ("call", self._depth):
            steps.pop()
            self._closes = self._closes or self._depth

    def note(
        self, event: str, frame: FrameType, values: tuple[tuple[str, Plain], ...] = ()
    ) -> None:
        """Keep an event of a program's frame."""
        if self._asks:
            return
        if event == "call":
            self._depth += 1
        if not self._over and not self._closes:
            self._settle()
            self._keep(event, frame, values)
        if event == "return":
            if self._depth == self._closes:
                self._closes = 0
            self._depth -= 1

    def _keep(self, event: str, frame: FrameType, values: tuple[tuple[str, Plain], ...]) -> None:
        issued, code, line = self._issued(), frame.f_code, frame.f_lineno
        self._keep_keys(frame, issued)
        self._stood = code, line, issued
        owners: tuple[tuple[str, int], ...] = ()
        if event == "line":
            values = self._values(frame, code, line)
            owners = self._owners(frame, self._test_at(code.co_filename, line))
        position = code.co_filename, code.co_name, line
        step = TraceStep(issued, event, self._depth, *position, values, owners)
        self.held[id(step)] = self.replica()
        self.take(step)

    def take(self, step: TraceStep) -> None:
        """Keep a step that is in the window or before it."""
        issued = step.issued
        if issued < self._window.first:
            self.dropped += len(self.before) == self._most
            self.before.append(step)
        elif self._window.last is not None and issued > self._window.last:
            self._over = True
        else:
            self._over = len(self.within) == self._most
            self.within.append(step._replace(event="cut") if self._over else step)

    def _keep_keys(self, frame: FrameType, now: int) -> None:
        """Keep the keys that selected the data of the last line's calls, if it made any: a loop on
        it sets them."""
        if self._stood is None or now <= self._stood[2] or frame.f_code is not self._stood[0]:
            return
        code, line, issued = self._stood
        statement = self._test_at(code.co_filename, line)
        pairs = []
        for name in statement.keys if statement else ():
            pairs.append(plain_of(name, _named(frame, name)))
        values = tuple(pair for pair in pairs if pair and type(pair[1]) in (str, int))
        if values:
            self.keyed.append((issued, values))

    def _test_at(self, *position: Any) -> Statement | None:
        if position not in self._tests:
            self._tests[position] = statement_at(*position)
        return self._tests[position]

    def _values(self, frame: FrameType, code: CodeType, line: int) -> Any:
        test = self._test_at(code.co_filename, line)
        if test is None or not test.names:
            return ()
        # a comprehension has none of these names
        if code.co_name in COMPREHENSIONS[:3] and frame.f_back is not None:
            frame = frame.f_back
        values: list[tuple[str, Plain]] = []
        tensors: list[tuple[int, _Asked]] = []
        for name in test.names:
            asked = _asked(frame, name)
            value = asked.answer()
            if value is asked or not asked.function:
                name, value = asked[:2]
            pair = plain_of(name, value) or self._length(name, value) or _key_of(frame, name)
            if pair is None and test.one_line is not None and value is not frame:
                pair = f"type({name})", type(value).__name__
            if pair is not None:
                if pair[0] == name and _is_tensor(asked.value):
                    tensors.append((len(values), asked))
                values.append(pair)
        if tensors:
            self._unsure = values, tensors
            return values
        return tuple(values)

    def _owners(self, frame: FrameType, statement: Statement | None) -> tuple[tuple[str, int], ...]:
        owned = statement.owned if statement else ()
        owners = ((name, _named(frame, owner)) for name, owner in owned)
        return tuple((name, id(owner)) for name, owner in owners if owner is not frame)

    def _length(self, name: str, value: object) -> tuple[str, Plain] | None:
        """The length of an object whose class says it, such as a DataLoader's; its `__len__` is no
        step of the trace."""
        kind = type(value)
        if not hasattr(kind, "__len__") or _is_module(value):
            return None
        self._asks = True
        _asking.add(threading.get_ident())
        try:
            return f"len({name})", int(kind.__len__(value))
        except Exception:  # it knows none, or would issue a call
            return None
        finally:
            self._asks = False
            _asking.discard(threading.get_ident())

    def _settle(self) -> None:
        """Drop numbers of tensors that differ after the test: a call in flight may have set
        them."""
        if self._unsure is None:
            return
        values, tensors = self._unsure
        self._unsure = None
        for index, asked in reversed(tensors):
            if plain_of("", asked.answer()) != ("", values[index][1]):
                del values[index]


_asking: set[int] = set()
"""Threads in which a trace runs code of the program."""


def refuse_asked() -> None:
    """Raise RuntimeError if a trace runs the code that is about to issue a call: the program did not
    ask for it."""
    if _asking and threading.get_ident() in _asking:
        raise RuntimeError("a trace issues no calls")


@lru_cache(maxsize=4096)
def followed(file: str) -> bool:
    """Whether a file is the learner's own and its text is known."""
    return owner_of(file) == "program" and bool(linecache.getlines(file))


def traced_by() -> str | None:
    """The tool that already traces this thread, or will trace new ones; None if there is none."""
    tracer = sys.gettrace() or threading.gettrace()
    if tracer is None:
        return None
    return str(getattr(tracer, "__module__", None) or type(tracer).__module__).partition(".")[0]


# ---------------- sys.monitoring

_following: dict[int, Trace] = {}
"""By thread: the traces that sys.monitoring follows now."""

TOOL = 4
"""The number of our tool in sys.monitoring: 0 to 2 and 5 have names there."""


def _monitor(trace: Trace) -> None:
    monitoring = sys.monitoring  # type: ignore[attr-defined]
    if not _following:
        monitoring.use_tool_id(TOOL, "joinlab")
        events = monitoring.events
        callbacks: dict[int, Callable[..., object]] = {
            events.PY_START: _line_reporter("call"),
            events.PY_RESUME: _line_reporter("call"),
            events.PY_RETURN: _line_reporter("return"),
            events.PY_YIELD: _line_reporter("return"),
            events.LINE: _line_reporter("line"),
        }
        callbacks[events.JUMP] = _report_jump
        for event, callback in callbacks.items():
            monitoring.register_callback(TOOL, event, callback)
        # sys.monitoring cannot disable these
        for event in (events.RAISE, events.RERAISE, events.PY_UNWIND, events.PY_THROW):
            monitoring.register_callback(
                TOOL, event, _error_reporter(event == events.PY_UNWIND, event == events.PY_THROW)
            )
        monitoring.set_events(
            TOOL,
            sum(callbacks) | events.RAISE | events.RERAISE | events.PY_UNWIND | events.PY_THROW,
        )
        monitoring.restart_events()
    _following[threading.get_ident()] = trace


def _unmonitor() -> None:
    monitoring = sys.monitoring  # type: ignore[attr-defined]
    del _following[threading.get_ident()]
    if not _following:
        monitoring.set_events(TOOL, 0)
        monitoring.free_tool_id(TOOL)


def _line_reporter(event: str) -> Callable[..., object]:
    disable = sys.monitoring.DISABLE  # type: ignore[attr-defined]

    def callback(code: CodeType, *_: object) -> object:
        if not followed(code.co_filename):
            return disable
        trace = _following.get(threading.get_ident())
        if trace is not None:
            trace.note(event, sys._getframe(1))
        return None

    return callback


def _report_jump(code: CodeType, offset: int, to: int) -> object:
    """Report each round of a loop on one line, for which there is no line event."""
    if to > offset or not followed(code.co_filename) or _line(code, offset) != _line(code, to):
        return sys.monitoring.DISABLE  # type: ignore[attr-defined]
    trace = _following.get(threading.get_ident())
    if trace is not None:
        trace.note("line", sys._getframe(1))
    return None


def _line(code: CodeType, offset: int) -> int | None:
    return next((line for first, end, line in code.co_lines() if first <= offset < end), None)


def _error_reporter(unwinds: bool, throws: bool) -> Callable[..., None]:
    def callback(code: CodeType, _: int, error: BaseException) -> None:
        if followed(code.co_filename):
            trace = _following.get(threading.get_ident())
        else:
            trace = None
        if trace is None:
            return
        frame = sys._getframe(1)
        if throws:
            trace.note("call", frame)
        elif unwinds:
            trace.note("return", frame)
        else:
            trace.raised(frame, type(error))

    return callback


# ---------------- values


class _Asked(NamedTuple):
    """What a test reads: the object `value` that is called `name`, or what a function that changes
    nothing says of it."""

    name: str
    value: Any
    function: str = ""
    arguments: tuple[Any, ...] = ()

    def answer(self) -> object:
        """Itself if that is unknown: no code of a class of the program runs."""
        value, function = self.value, self.function
        if not function:
            return value
        if _is_tensor(value) and value.device.type == "cpu" and value.numel() <= MANY:
            with suppress(Exception):  # of a type that numpy does not have
                base = sys.modules["torch"]._C.TensorBase
                value = base.numpy(base.detach(value))
        if function in LOOKUPS:
            environment = value is os or value is os.environ
            holder = os.environ if environment else value
            if (environment and not _SECRET.search(self.arguments[0])) or type(holder) is dict:
                return holder.get(*self.arguments)
        elif type(value).__module__ == "numpy" and type(value).__name__ == "ndarray":
            with suppress(ValueError, AttributeError):  # the least of nothing; no `len` of a set
                return getattr(value, function)()
        elif type(value) not in _SIZED[3:8]:
            return self
        elif function == "len" and {*map(type, value)} <= {int, float, bool, str}:
            return len(set(value))
        elif {*map(type, value)} <= {int, float, bool}:
            with suppress(ValueError):
                return getattr(builtins, function)(value)
        return self


_CALL = re.compile(r"(?:([\w.]+)\.)?(\w+)\((.*?)\)(?:\.item\(\))?")
_SECRET = re.compile(r"(?i)key|token|secret|pass|auth")
MANY = 65_536
"""Most elements of a tensor of which a test's function is computed again."""


def _asked(frame: FrameType, name: str) -> _Asked:
    match = _CALL.fullmatch(name)
    if match is None:
        value = _named(frame, name)
        if value is frame:  # the item cannot be read: use its container
            name = name.partition("[")[0]
            value = _named(frame, name)
        return _Asked(name, value)
    owner, function, arguments = match.groups()
    if owner is None:
        owner, arguments = arguments.removeprefix("set(").rstrip(")"), ""
        if function in frame.f_locals or function in frame.f_globals:
            function = ""  # it is the program's own
    return _Asked(owner, _named(frame, owner), function, literal_eval(f"[{arguments}]"))


def _named(frame: FrameType, name: str) -> Any:
    """The value of a name; `frame` if it is unknown.

    Only attributes that `_attribute` reads, and items of a list, tuple or dict: no code of a class
    runs.
    """
    if name.endswith("]"):
        container, _, key = name[:-1].rpartition("[")
        with suppress(LookupError, ValueError, SyntaxError):
            holder = _named(frame, container)
            item = _named(frame, key) if key[0].isidentifier() else literal_eval(key)
            if isinstance(holder, dict) and type(item) in (str, int):
                return dict.get(holder, item, frame)
            if type(holder) in (list, tuple) and type(item) is int:
                return holder[item]
        return frame
    first, *attributes = name.split(".")
    value = frame.f_locals.get(first, frame.f_globals.get(first, frame))
    for attribute in attributes:
        value = _attribute(value, attribute, frame)
    return value


def _attribute(owner: Any, name: str, unknown: object) -> Any:
    """An attribute of the object's own dict, a slot, a plain value of its class, or `requires_grad` or
    the shape of a tensor."""
    if name in ("requires_grad", "shape") and _is_tensor(owner):
        return tuple(owner.shape) if name == "shape" else owner.requires_grad
    with suppress(AttributeError, TypeError):
        held = object.__getattribute__(owner, "__dict__")
        if name in held:
            return held[name]
    for cls in type.__getattribute__(type(owner), "__mro__"):
        value = vars(cls).get(name, unknown)
        if type(value) is MemberDescriptorType:
            with suppress(AttributeError):  # a slot that is not set
                return value.__get__(owner)
        if value is not unknown:
            return unknown if hasattr(type(value), "__get__") else value
    return unknown


def _key_of(frame: FrameType, name: str) -> tuple[str, Plain] | None:
    """The name that selects an item, if the item says nothing: `handlers[kind](batch)`."""
    key = name.removesuffix("]").rpartition("[")[2]
    return plain_of(key, _named(frame, key)) if key.isidentifier() and key != name else None


def plain_of(name: str, value: Any) -> tuple[str, Plain] | None:
    """The reported form of a value: a number, a length, a shape or a short string; None if there is
    none.

    >>> plain_of("best", 0.4), plain_of("seen", [1, 2]), plain_of("self", object())
    (('best', 0.4), ('len(seen)', 2), None)
    """
    kind = type(value)
    if kind is float and not isfinite(value):
        return name, str(value)  # JSON has no number for it
    if value is None or kind in (bool, float) or (kind is int and abs(value) < 2**63):
        return name, value
    if kind is str and len(value) <= MAX_TEXT:
        return name, value
    if kind in _SIZED:
        return f"len({name})", len(value)
    if kind is type:
        return f"{name}.__name__", value.__name__
    if isinstance(value, Enum):
        return f"{name}.name", value._name_
    if _is_tensor(value):
        if value.device.type == "cpu" and value.numel() == 1 and (item := _item(value)) is not None:
            return plain_of(name, item)
        return f"{name}.shape", str(tuple(value.shape))
    if kind.__module__ == "numpy" and hasattr(value, "dtype") and not getattr(value, "shape", True):
        return plain_of(name, value.item())
    return None


_SIZED = (str, bytes, bytearray, list, tuple, dict, set, frozenset, deque, range, Inputs)


def _is_module(value: Any) -> bool:
    """Whether it is a model: how many layers it has explains nothing."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


def _is_tensor(value: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and type(value) in (torch.Tensor, torch.nn.Parameter)


def _item(tensor: object) -> Plain:
    """Its only element, by the C++ class's method: in an emulated rank, torch.Tensor.item() would
    wait."""
    with suppress(Exception):
        number = sys.modules["torch"]._C.TensorBase.item(tensor)
        if isinstance(number, (bool, int, float)):
            return number
    return None
