"""Which calls are open, and how each one's completion or failure is written down, once.

Three sides may report the same completion: the Work's future, the host that waits for the call, and the poll on a GPU.
The first one wins, under one lock. With gloo the values that came out are read at that moment, before the waiting host
is let go: after that the program may overwrite the tensors.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

from joinlab.program.outcome import text_of
from joinlab.recorder.call import RecordedCall
from joinlab.recorder.events import Log, now, to_json, values_field


class _Thread(threading.local):
    deferred: RecordedCall | None = None  # the last call, if the host waits for it at once


class Completions:
    """The open calls of one rank."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self._lock = threading.RLock()
        self._open: dict[int, RecordedCall] = {}
        self._thread = _Thread()

    def issue(self, call: RecordedCall, line: str) -> None:
        """Write `line`, the event of a call that is about to be issued."""
        with self._lock:
            self._open[call.id] = call
            segment = self.log.write_text(line)
            if call.history is not None:
                call.history.call, call.history.segment = line, segment

    def open_calls(self) -> list[RecordedCall]:
        """Calls that have neither completed nor failed, in the order of issue."""
        return list(self._open.values())

    # A call that the host waits for at once needs no callback on its future: the end of the wait tells. A callback
    # runs on gloo's thread and needs the GIL there: without this a step of 0.36 ms took 0.46 ms.

    def defer(self, call: RecordedCall) -> None:
        """The host is expected to wait for `call` next: listen to its future only if it does not."""
        self._thread.deferred = call

    def end_deferral(self, waits: bool) -> None:
        """The host does something else, or (`waits`) waits for the deferred call as expected."""
        call, self._thread.deferred = self._thread.deferred, None
        if call is not None and not waits and not call.done:  # a coalescing manager holds the wait back
            self.watch(call)

    def watch(self, call: RecordedCall) -> None:
        """Have the completion of `call` reported by its group's reader, or by its future."""
        if call.group.reader.watch(call):
            return
        with suppress(Exception):  # send and recv of gloo have no future: their wait tells
            call.work.get_future().add_done_callback(lambda future: self.take(call, future))

    def take(self, call: RecordedCall, future: Any) -> None:
        """Record what a completed future says of its call."""
        try:
            future.value()
        except Exception as error:
            self.fail(call, error)
        else:
            self.finish(call)

    def finish(self, call: RecordedCall) -> None:
        """Record completion, with the values that came out."""
        with self._lock:
            if call.done:
                return
            at = now()
            values = values_field(call.group.reader.after(call)) if call.outs else ""
            self._end(call, f'{{"e":"done","id":{call.id},"t":{at}{values}}}')

    def fail(self, call: RecordedCall, error: BaseException) -> None:
        """Record that the backend raised instead of completing the call."""
        with self._lock:
            if call.done:
                return
            self._end(call, to_json({"e": "fail", "id": call.id, "t": now(), "x": text_of(error)}))

    def _end(self, call: RecordedCall, line: str) -> None:
        if call.history is not None:
            call.history.end = line
        self.log.write_text(line)
        self.close(call)

    def close(self, call: RecordedCall) -> None:
        """Drop what an open call holds. Set `done` last: readers treat it as permission to overwrite the tensors."""
        self._open.pop(call.id, None)
        if not call.group.reader.late:  # a late reader still needs them: the program may wait long after completion
            call.outs = None
        call.kept = None
        call.done = True

    def settle(self) -> None:
        """Record every completion that has not been reported. Called before the rank ends."""
        for reader in {call.group.reader for call in self.open_calls()}:
            reader.settle()
        for call in self.open_calls():
            try:
                if call.work is not None and call.work.is_completed() and call.work.is_success():
                    self.finish(call)
            except Exception:
                continue
        with self._lock:  # wait for a completion that another thread is just writing
            pass
