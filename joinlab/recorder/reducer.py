"""Records the waits of DDP's C++ Reducer, which Python code does not see.

At the end of a backward pass the Reducer waits, in C++, for the all-reduces of all buckets. It does
so in a callback that it has queued with the autograd engine, and the engine runs callbacks in the
order in which they were queued:

    first bucket is issued      we queue `_before`
    last bucket was issued      the Reducer queues its own callback, in which it waits
    the pass ends               _before, the Reducer's wait, `after`

so our two callbacks bracket the wait. `after` runs after `torch.autograd.backward`; if that is not
recorded, or the pass ends on another thread (GPUs), `_before` queues it as a callback.
"""

from __future__ import annotations

from types import FrameType

from torch.autograd import Variable

from joinlab.recorder.call import RecordedCall
from joinlab.recorder.completions import Completions, Turn
from joinlab.recorder.events import harmless
from joinlab.recorder.waits import WaitRecorder


class ReducerWaits:
    """Brackets the Reducer's waits. The state of a pass is in the thread's Turn."""

    def __init__(self, completions: Completions, waits: WaitRecorder) -> None:
        self.completions = completions
        self.waits = waits
        self.log = waits.log

    @harmless
    def expect(self, turn: Turn) -> None:
        """The Reducer is about to issue a call, for which it will wait at the end of the pass."""
        if turn.issued is None:
            turn.issued = []
            Variable._execution_engine.queue_callback(self._before)

    @harmless
    def bracket(self, call: RecordedCall, turn: Turn, frame: FrameType | None) -> None:
        """Follow a call that the Reducer has issued from `frame` (`expect`)."""
        issued, kind = turn.issued, call.kind
        assert issued is not None
        issued.append(call)
        if kind.direct:
            turn.frame, turn.stack = id(frame), kind.stack
        # The last bucket gets no callback, see Completions. The previous pass had as many buckets.
        waits = kind.host_waits and (not self.completions.prompt or len(issued) == turn.buckets)
        self.completions.follow(call, turn, waits)

    @harmless
    def _before(self) -> None:
        turn = self.completions.own.turn
        calls, turn.issued, turn.frame = turn.issued or [], None, 0
        turn.buckets = len(calls)
        if turn.buckets > 1:
            self.completions.look(turn)
            calls = [call for call in calls if not call.done or call.outs]
        if not calls:
            return
        turn.waiting = calls
        host_waits = calls[0].kind.host_waits
        if host_waits:
            # A later call may complete while the first never does, so its future has to report it.
            self.completions.end_deferral(turn, calls[0] if len(calls) == 1 else None)
            self.waits.begin(calls)
        if not (host_waits and turn.within):
            Variable._execution_engine.queue_callback(self._after)

    def _after(self) -> None:
        turn = self.completions.own.turn
        if turn.waiting:
            self.after(turn)

    @harmless
    def after(self, turn: Turn, span: int | None = None) -> bool:
        """Record that the Reducer's wait for `turn.waiting` has ended, and with it this host span.

        Returns True if the host waited: then the end of the span is written with that of the wait.
        """
        calls, turn.waiting = turn.waiting, ()
        if calls[0].kind.host_waits:
            self.waits.end(calls, span=span)
            return span is not None
        for call in calls:  # NCCL: the stream waits, not the host
            call.waited = True
            call.group.reader.after_wait(call)
        return False

    @harmless
    def gave_up(self, error: BaseException) -> None:
        """Record that the backward pass raised instead of ending its wait."""
        turn = self.completions.own.turn
        calls, turn.waiting, turn.issued, turn.frame = turn.waiting, (), None, 0
        self.completions.end_deferral(turn)
        if not calls:
            return
        # the Reducer waits for its buckets in order, and stops at the first that fails
        for call in calls:
            if call.group.reader.late:  # which reports completions and errors by itself
                continue
            future = call.work.get_future()
            if not future.done():
                self.completions.fail(call, error)
                break
            self.completions.take(call, future)
        self.waits.end(calls, completed=False)
