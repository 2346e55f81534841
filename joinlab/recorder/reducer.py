"""The waits of DDP's C++ Reducer, which no Python sees.

At the end of a backward pass the Reducer waits, in C++, for the all-reduces of all buckets. It does so in a callback
that it has queued with the autograd engine, and the engine runs callbacks in the order in which they were queued:

    first bucket is issued      we queue `_before`
    last bucket is issued       the Reducer queues its own callback, in which it waits
    the pass ends               _before (queues _after), the Reducer's wait, _after

so the two callbacks of ours bracket the wait.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from torch.autograd import Variable

from joinlab.recorder.call import RecordedCall
from joinlab.recorder.completions import Completions
from joinlab.recorder.waits import Waits


class _Pass(threading.local):
    """The backward pass of one thread of the program."""

    issued: list[RecordedCall] | None = None  # calls of the Reducer in this pass; None: none yet
    waiting: Sequence[RecordedCall] = ()  # calls that it waits for now, at the end of the pass
    buckets = 0  # how many calls the previous pass issued


class ReducerWaits:
    """Brackets the Reducer's waits."""

    def __init__(self, completions: Completions, waits: Waits) -> None:
        self.completions = completions
        self.waits = waits
        self._pass = _Pass()

    def bracket(self, call: RecordedCall) -> None:
        """`call` is about to be issued by the Reducer: have its wait for it recorded."""
        now = self._pass
        if now.issued is None:
            now.issued = []
            Variable._execution_engine.queue_callback(self._before)
        else:
            previous = now.issued[-1]
            if previous.waited_at_once:  # it was not the last bucket after all
                previous.waited_at_once = False
                self.completions.watch(previous)
        now.issued.append(call)
        # The last bucket needs no callback of its own, see Completions.defer. Which one is last, the pass before tells.
        call.waited_at_once = call.host_waits and len(now.issued) == now.buckets

    def _before(self) -> None:
        now = self._pass
        issued, now.issued = now.issued or [], None
        calls = [call for call in issued if not call.done or call.outs]
        now.buckets = len(issued)
        if calls:
            now.waiting = calls
            if calls[0].host_waits:
                self.waits.begin(calls)
            Variable._execution_engine.queue_callback(self._after)

    def _after(self) -> None:
        calls, self._pass.waiting = self._pass.waiting, ()
        if not calls[0].host_waits:  # NCCL: the stream has been made to wait, not the host
            for call in calls:
                call.waited = True
                call.group.reader.after_wait(call)
            return
        for call in calls:
            self.completions.finish(call)
        self.completions.end_deferral(waits=True)
        self.waits.end(calls)

    def gave_up(self, error: BaseException) -> None:
        """The backward pass raised, so `_after` never ran."""
        calls, self._pass.waiting, self._pass.issued = self._pass.waiting, (), None
        if not calls:
            return
        for call in calls:  # the Reducer waits for one bucket after the other, and stops at the first that fails
            future = call.work.get_future()
            if not future.done():
                self.completions.fail(call, error)
                break
            self.completions.take(call, future)
        self.waits.end(calls)
