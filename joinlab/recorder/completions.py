"""Keeps the open calls, and records the completion or failure of each, once.

The Work's future, the host's wait and the poll on a GPU may all report the same completion; the
first one wins, under one lock. On gloo the output values are read at that moment, before the
waiting host continues: afterwards the program may overwrite the tensors.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch

from joinlab.program.kinds import CallKind
from joinlab.program.log_events import LINE_END, CallDone, CallFailed, first_field, next_field
from joinlab.program.outcome import text_of
from joinlab.recorder.call import RecordedCall, ValueReader
from joinlab.recorder.events import EventLog, harmless, line_of, values_text

_DONE = first_field(CallDone, "call")
_TIME, _VALUES = next_field(CallDone, "time_ns"), next_field(CallDone, "values")

END_S = 0.02
"""At the end of a rank, so long is waited for what a GPU has still to write."""

EXIT_S = 1.0
"""At the exit of the process, so long is waited for a callback whose future is done."""

_add_done_callback = torch._C.Future.add_done_callback
"""Torch's own: `install` replaces it, to record the callbacks of the program."""


class Turn:
    """The state of one thread of the program."""

    __slots__ = ("below", "buckets", "deferred", "frame", "issued", "stack", "waiting", "within")

    def __init__(self) -> None:
        # calls whose completion nothing reports yet, see Completions
        self.deferred: list[RecordedCall] = []
        # its id, and the calls that C++ reads on the host, see Waits.begin_below
        self.below: tuple[int, Sequence[RecordedCall]] | None = None
        # The backward pass that it is in, see reducer.py:
        # calls of the Reducer in this pass; None: none yet
        self.issued: list[RecordedCall] | None = None
        # calls that it waits for now, at the end of the pass
        self.waiting: Sequence[RecordedCall] = ()
        self.buckets = 0  # number of calls of the previous pass
        # id of the frame from which the pass issues calls: alive until the pass has ended
        self.frame = 0
        self.stack = 0  # number of that frame's stack
        self.within = False  # in a recorded torch.autograd.backward


class OwnTurn(threading.local):
    """`own.turn` is the turn of the calling thread."""

    def __init__(self) -> None:
        self.turn = Turn()


class Completions:
    """The open calls of one rank."""

    def __init__(self, log: EventLog, now: Callable[[], int], prompt: bool) -> None:
        """`prompt`: write each completion when it happens."""
        self.log = log
        self.now = now
        self.prompt = prompt
        self.lock = threading.RLock()
        self.late_reader: ValueReader | None = None
        """Of calls on a GPU, once there are any."""
        self._open: dict[int, RecordedCall] = {}
        self.own = OwnTurn()

    def issue(self, call: RecordedCall, line: str, before: str = "") -> int:
        """Write `line`, the event of a call that is about to be issued, and its stack `before` it.

        Returns the segment that has them. The call counts as open before it is written: if a
        segment begins with it, the preamble repeats it.
        """
        call.line = line
        self._open[call.id] = call
        return self.log.write_text(before + line)

    def open_calls(self) -> list[RecordedCall]:
        """Calls that have neither completed nor failed, in the order of issue."""
        return list(self._open.values())

    # A callback on a future runs on gloo's thread, needs the GIL and misses the caches: with them a
    # step of 0.36 ms took 0.46 ms, and one of 2 million parameters took 0.2 ms longer. So if the
    # host waits for a call next, the call gets no callback, and the end of the wait reports its
    # completion. Such a call is `deferred` until the host does something else. Unless `prompt` is
    # set, all calls of the Reducer are deferred until it waits; each call that it issues checks the
    # earlier ones.

    def follow(self, call: RecordedCall, turn: Turn, waits: bool) -> None:
        """Follow an issued call, for which the host waits next if `waits`."""
        if waits:
            turn.deferred.append(call)
        else:
            self.watch(call)

    def before_issue(self, kind: CallKind, turn: Turn) -> None:
        """The host is about to issue a call; one of the Reducer leaves earlier calls deferred until
        its wait."""
        if turn.deferred:
            if kind.direct and not self.prompt:
                self.look(turn)
            else:
                self.end_deferral(turn)

    def end_deferral(self, turn: Turn, awaited: RecordedCall | None = None) -> None:
        """The host waits for `awaited` or does something else: let futures report the other
        deferred calls."""
        calls, turn.deferred = turn.deferred, []
        for call in calls:
            if call is not awaited and not call.done:
                self.watch(call)

    def look(self, turn: Turn) -> None:
        """Record the deferred calls that have completed."""
        calls, turn.deferred = turn.deferred, []
        for call in calls:
            if call.group.reader.late:  # on a GPU the future is done when the call is issued
                self.watch(call)
            elif (future := call.work.get_future()).done():
                self.take(call, future)
            else:
                turn.deferred.append(call)

    def watch(self, call: RecordedCall) -> None:
        """Have the completion of `call` reported by its group's reader, or by its future."""
        if call.group.reader.watch(call) or call.done:
            return
        if call.work is None:  # the backend has waited for it
            self.finish(call)
            return
        with suppress(Exception):  # gloo's send and recv have no future; their wait reports them
            _add_done_callback(call.work.get_future(), lambda future: self.take(call, future))
            call.called_back = True

    @harmless
    def take(self, call: RecordedCall, future: Any) -> None:
        """Record the result of a completed future for its call."""
        try:
            future.value()
        except Exception as error:
            self.fail(call, error)
        else:
            self.finish(call)

    def finish(self, call: RecordedCall, at_ns: int | None = None) -> None:
        """Record completion, with the output values: now, or at `at_ns`, as far as is known."""
        with self.lock:
            if not call.done:
                done_ns = at_ns or self.now()
                if call.outs:
                    after = call.group.reader.after(call)
                else:
                    after = None
                if after is None:
                    values = ""
                else:
                    values = f"{_VALUES}{values_text(after)}"
                self._end(call, f"{_DONE}{call.id}{_TIME}{done_ns}{values}{LINE_END}")

    def fail(self, call: RecordedCall, error: BaseException, refused: bool = False) -> None:
        """Record that the backend raised instead of completing the call; `refused`: already at its
        issue."""
        with self.lock:
            if not call.done:
                event = CallFailed(
                    call=call.id,
                    time_ns=self.now(),
                    text=text_of(error),
                    refused=1 if refused else None,
                )
                self._end(call, line_of(event))

    def _end(self, call: RecordedCall, line: str) -> None:
        self.log.write_text(line)
        self.close(call)

    def close(self, call: RecordedCall) -> None:
        """Release an open call's tensors. Set `done` last: readers treat it as permission to
        overwrite the tensors."""
        self._open.pop(call.id, None)
        # a late reader still needs them: the program may wait long after completion
        if not call.group.reader.late:
            call.outs = None
        call.kept = None
        call.done = True

    def settle(self) -> None:
        """Record every completion that has not been reported. Called before the rank ends."""
        if self.late_reader is not None:
            self.late_reader.settle(END_S)
        for call in self.open_calls():
            with suppress(Exception):  # gloo's send and recv have no future
                if not call.group.reader.late and (future := call.work.get_future()).done():
                    self.take(call, future)
        with self.lock:  # wait for a completion that another thread is just writing
            pass

    def outlast(self) -> None:
        """At the exit of the process, wait for the calls that their future reports.

        A callback that gloo's thread runs while Python shuts down aborts the process. The exit would
        wait for these calls anyway, where it frees the process group.
        """
        for call in self.open_calls():
            if call.called_back:
                future = call.work.get_future()
                while not future.done():
                    time.sleep(END_S)
                until = time.monotonic() + EXIT_S
                while not call.done and time.monotonic() < until:
                    time.sleep(END_S)
