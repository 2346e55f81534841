"""Host spans: when the host was in forward, backward and the optimizer, and which line of the
program called them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from types import CodeType, FrameType

from joinlab.ops import Source
from joinlab.program.labels import owner_of, sources_under
from joinlab.program.log_events import (
    LINE_END,
    CallIssued,
    SpanBegins,
    SpanEnds,
    first_field,
    next_field,
)
from joinlab.recorder.events import EventLog, harmless, to_json

_SPAN, _END = first_field(SpanBegins, "span"), first_field(SpanEnds, "span")
_NAME, _CALL_SITE, _TIME = (
    next_field(SpanBegins, name) for name in ("name", "call_site", "time_ns")
)
# Recorder.step_fields is a part of both events.
assert all(
    next_field(SpanBegins, name) == next_field(CallIssued, name) for name in ("input", "step")
)


def span_end(number: int | None, time_ns: int) -> str:
    """The event that a span ends, as a line of the log."""
    return f"{_END}{number}{_TIME}{time_ns}{LINE_END}"


class Spans:
    """Writes the host spans of one rank."""

    def __init__(
        self,
        log: EventLog,
        now: Callable[[], int],
        note: Callable[[Iterable[Source]], None],
    ) -> None:
        """`note` writes the source texts of functions into the log."""
        self.log = log
        self.write = log.write_text
        self.now = now
        self.note = note
        self.numbers = itertools.count()
        self.forward, self.backward, self.optimizer = (
            Spanned(self, name) for name in ("forward", "backward", "optimizer")
        )

    def end(self, number: int | None) -> None:
        self.write(span_end(number, self.now()))


class Spanned:
    """Writes the spans of one name, most of which the program begins on the same line."""

    __slots__ = ("_callers", "_fields", "_known", "_name", "_spans", "log", "site")

    def __init__(self, spans: Spans, name: str) -> None:
        self._spans = spans
        self.log = spans.log
        self._name = name
        self._callers: tuple[tuple[CodeType, int], ...] = ()
        """Code and offset of each frame of the latest call, up to the program's own frame: a cache
        of one entry."""
        self._fields = ""
        self.site: str | None = None
        """"file:line" of the program at the latest call."""
        self._known: dict[
            tuple[int, ...], tuple[tuple[tuple[CodeType, int], ...], str | None, str]
        ] = {}
        """Cache of the three values above, by the ids of the codes and the offsets."""

    @harmless
    def begin(self, frame: FrameType | None, step_fields: str) -> int:
        """Record that the host begins a span, called from `frame`, at Recorder.step_fields; return
        the span's number."""
        callers, caller = self._callers, frame
        for code, offset in callers:
            if caller is None or caller.f_code is not code or caller.f_lasti != offset:
                self._look_up(frame)
                break
            caller = caller.f_back
        if not callers:
            self._look_up(frame)
        spans = self._spans
        number = next(spans.numbers)
        spans.write(f"{_SPAN}{number}{step_fields}{self._fields}{_TIME}{spans.now()}{LINE_END}")
        return number

    def _look_up(self, frame: FrameType | None) -> None:
        callers = []
        while frame is not None:
            callers.append((frame.f_code, frame.f_lasti))
            if owner_of(frame.f_code.co_filename) == "program":
                break
            frame = frame.f_back
        key = tuple(part for code, offset in callers for part in (id(code), offset))
        cached = self._known.get(key)
        if cached is None:
            self._spans.note(sources_under(frame))
            if frame is None:
                site = None
            else:
                site = f"{frame.f_code.co_filename}:{frame.f_lineno}"
            cached = tuple(callers), site, f'{_NAME}"{self._name}"{_CALL_SITE}{to_json(site)}'
            self._known[key] = cached
        self._callers, self.site, self._fields = cached
