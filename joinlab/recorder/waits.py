"""Records when each host thread of the rank waits, and for which calls."""

from __future__ import annotations

import _thread
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import active_count, get_ident
from threading import enumerate as enumerate_threads
from weakref import WeakKeyDictionary

from joinlab.program.log_events import (
    LINE_END,
    CallbackPending,
    CallbackRan,
    WaitBegins,
    WaitEnds,
    first_field,
    next_field,
)
from joinlab.recorder.call import RecordedCall
from joinlab.recorder.completions import Completions, Turn
from joinlab.recorder.events import EventLog, harmless, values_text
from joinlab.recorder.spans import span_end

_WAIT, _WAKE = first_field(WaitBegins, "calls"), first_field(WaitEnds, "calls")
_TIME, _THREAD, _THREADS, _INSIDE = (
    next_field(WaitBegins, name) for name in ("time_ns", "thread", "threads", "inside")
)
_PENDING, _AFTER = first_field(CallbackPending, "callback"), next_field(CallbackPending, "call")
_RAN = first_field(CallbackRan, "callback")
_STILL_OPEN, _VALUES = next_field(WaitEnds, "still_open"), next_field(WaitEnds, "values")


class WaitRecorder:
    """Writes the waits of one rank's threads."""

    def __init__(self, log: EventLog, completions: Completions) -> None:
        self.log = log
        self.completions = completions
        self._now = completions.now
        self.own_threads = sum(thread.name.startswith("joinlab") for thread in enumerate_threads())
        """Number of joinlab's own threads, which issue no calls and are not counted as the
        program's."""
        self.newly_streamed: list[int] = []
        """On NCCL: ids of open calls that the stream was made to wait for since the last issued
        call."""
        self.open: dict[int, str] = {}
        """By thread: the event of its open wait."""
        self.futures: WeakKeyDictionary[object, RecordedCall] = WeakKeyDictionary()
        """By future of the program: the call whose completion it reports."""
        self._callbacks = itertools.count()
        self._bare = _thread._count() - active_count()
        """Number of bare threads that are not the program's, minus 1: `_thread` does not count the
        main thread."""

    @contextmanager
    def waiting(self, calls: Sequence[RecordedCall], limited: bool = False) -> Iterator[None]:
        """Record that the host waits for `calls` while the body runs; an error of the body is
        recorded as theirs.

        limited  the wait has a time limit
        """
        self.begin(calls, limited)
        try:
            yield
        except Exception as error:
            self._fail(calls, error)
            raise
        self.end(calls)

    @harmless
    def _fail(self, calls: Sequence[RecordedCall], error: BaseException) -> None:
        for call in calls:
            self.completions.fail(call, error)
        self.end(calls)

    @harmless
    def begin(
        self, calls: Sequence[RecordedCall], limited: bool = False, inside: bool = False
    ) -> None:
        """Record that the host begins to wait for all of `calls`.

        A rank is blocked when all of its threads wait. A thread in a `limited` wait will go on, so
        it also counts as one that does not wait, and no hang is proven from it.

        inside  it waits, if at all, inside the calls, until other ranks have come to them
        """
        thread = get_ident()
        self.end_turns_below(self.completions.own.turn)
        live = max(active_count(), _thread._count() - self._bare) - self.own_threads + limited
        ids = ",".join([str(call.id) for call in calls])
        inside_field = f"{_INSIDE}1" if inside else ""
        line = f"{_WAIT}[{ids}]{_TIME}{self._now()}{_THREAD}{thread}{_THREADS}{live}{inside_field}{LINE_END}"
        self.open[thread] = line
        self.log.write_text(line)

    @harmless
    def end(
        self,
        calls: Sequence[RecordedCall],
        completed: bool = True,
        span: int | None = None,
        thread: int = 0,
    ) -> None:
        """Record, in one event, that the wait ended; unless `completed` is False, all of `calls`
        are complete.

        span  number of a host span that ends with the wait
        thread  the one that waited; 0: the calling one
        """
        thread = thread or get_ident()
        self.open.pop(thread, None)
        with self.completions.lock:
            end_ns = self._now()
            ids, values = ",".join([str(call.id) for call in calls]), ""
            if not completed:
                values = f"{_STILL_OPEN}{[call.id for call in calls if not call.done]}"
            elif len(calls) > 1 or calls[0].outs:
                values = f"{_VALUES}[{','.join(map(_values, calls))}]"
            if span is None:
                span_text = ""
            else:
                span_text = span_end(span, self._now())
            self.log.write_text(
                f"{_WAKE}[{ids}]{_TIME}{end_ns}{_THREAD}{thread}{values}{LINE_END}{span_text}"
            )
            if completed:
                for call in calls:
                    if not call.done:
                        self.completions.close(call)

    def begin_below(self, calls: Sequence[RecordedCall]) -> None:
        """Record that C++ now reads on the host what `calls` write on a GPU, which no Python code
        sees. The wait has ended once they are complete, or their thread does something else."""
        self.begin(calls)
        turn = self.completions.own.turn
        turn.below = get_ident(), calls
        for call in calls:
            call.below = turn

    def end_below(self, call: RecordedCall) -> None:
        """End the wait of `begin_below` for this call, which is complete."""
        if call.below is not None:
            self.end_turns_below(call.below)

    def end_turns_below(self, turn: Turn) -> None:
        """End the wait of `begin_below` that a thread is in, if it is in one."""
        with self.completions.lock:
            below, turn.below = turn.below, None
        if below is not None:
            thread, calls = below
            self.end(calls, thread=thread)

    @harmless
    def noting(
        self, future: object, callback: Callable[[object], object]
    ) -> Callable[[object], object]:
        """Wrap a future's callback to record it from now until it returns: it may run while the
        host waits.

        It can run once its call completes; the callback of a future without a call may run at any
        time.
        """
        number, call = next(self._callbacks), self.futures.get(future)
        self.log.write_text(
            f"{_PENDING}{number}{_AFTER}{'null' if call is None else call.id}{LINE_END}"
        )

        def noted(value: object) -> object:
            self.log.write_text(f"{_PENDING}{number}{LINE_END}")
            try:
                return callback(value)
            finally:
                self.log.write_text(f"{_RAN}{number}{LINE_END}")

        return noted

    @harmless
    def begin_expected(self, call: RecordedCall) -> None:
        """Note that the program makes its host or its stream wait for `call`."""
        call.waited = True
        self.completions.end_deferral(self.completions.own.turn, call)

    @harmless
    def streamed(self) -> list[RecordedCall]:
        """Open calls that this rank's stream waits for, and so would a host sync now."""
        return [call for call in self.completions.open_calls() if call.waited]


def _values(call: RecordedCall) -> str:
    if call.outs:
        return values_text(call.group.reader.after(call))
    return "null"
