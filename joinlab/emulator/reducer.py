"""Moves the waits of DDP's C++ Reducer, and its checks of received numbers, into the rank's own
thread.

C++ cannot hand the baton on: a wait inside it would stop every rank. So each wait of the Reducer is
preceded by one of ours, in Python, for the same calls:

    backward pass      the Reducer issues buckets, then queues its finalize_backward with the autograd engine
    engine callbacks   ours, queued at the first bucket and so before the Reducer's, waits for all of them ...
                       ... then finalize_backward finds every Work complete
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import Variable

from joinlab.backend.model import EmulatedCall
from joinlab.backend.turns import ActingRank, HostWait
from joinlab.emulator.buckets import BucketRebuild
from joinlab.emulator.futures import Futures, outputs
from joinlab.program.process_group import values_in


def future_with(tensors: list[torch.Tensor]) -> Any:
    """A future that holds these tensors, of a type that C++ can read, too (of no tensors it has
    none to read)."""
    if tensors:
        return torch._C.fork(lambda: tensors)
    future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
    future.set_result([])
    return future


class Reducer:
    """The Reducer of one rank: its waits for calls, and how it reads their results."""

    def __init__(self, host: ActingRank, futures: Futures) -> None:
        # DDP was given one of C++'s own comm hooks, which reads futures in C++
        self.typed_futures = False
        # some forward pass of this rank has prepared one for its backward pass
        self._prepared = False
        self._unprepared = False  # there was a forward pass, and none has
        self._host = host  # weakly
        self._futures = futures
        # calls whose future was, and whose wait has not been seen yet
        self._handed_out: list[EmulatedCall] = []
        # what this backward pass has issued; None outside of one
        self._in_backward: list[EmulatedCall] | None = None
        self.failed: RuntimeError | None = None  # the error of one of these
        self._rebuild = BucketRebuild()

    def disbelief(self, call: EmulatedCall) -> str:
        """Why the Reducer cannot go on with the numbers of parameters that `call` brought; "" if it
        can."""
        return self._rebuild.believe((values_in(call.parts[0].outs) or [[]])[0])

    def future_of(self, call: EmulatedCall) -> torch.futures.Future[object]:
        """A future for the outputs of `call`.

        To a host, NCCL's is complete at once, since callbacks on it run after the call on a stream.
        Gloo's completes with the call; the rank notices at its next wait, unless that would be a
        wait in C++.
        """
        if call.future is None:
            host, streams = self._host, call.group.fabric.streams
            if streams and not host.stuck:
                host.stand_still(HostWait([call], of_stream=True))
            past = call.done and call.error is None and call.ended_ns <= host.now
            if streams or past or self.typed_futures or self._in_finalize():
                if not streams:
                    host.for_host([call])
                call.future = future_with(outputs(call))
                self._handed_out.append(call)
            else:
                self._futures.add(call)
        future: Any = call.future
        return future  # type: ignore[no-any-return]

    def before_wait(self, future: torch.futures.Future[object]) -> None:
        """C++ is about to wait for `future`: first wait for the calls that it hangs on, oldest
        first."""
        if any(call.group.fabric.streams for call in self._handed_out):
            handed, self._handed_out = self._handed_out, []
            self._host.for_stream(handed)
        while not future.done() and self._futures.open:
            call = self._futures.behind(future)
            self._host.for_host([call])
            self._futures.fulfil(call)

    def forward_over(self, synchronizes: bool) -> None:
        """A forward pass of DDP has returned; outside of no_sync it has prepared its Reducer."""
        self._prepared = self._prepared or synchronizes
        self._unprepared = not self._prepared

    def issued_in_backward(self, call: EmulatedCall) -> None:
        """The Reducer will wait for it in C++, in an engine callback; ours comes before that one,
        if queued now."""
        if self._in_backward is None:
            self._in_backward = [call]
            Variable._execution_engine.queue_callback(self._before_finalize)
        else:
            self._in_backward.append(call)

    def backward_over(self) -> None:
        """The backward pass has returned, or raised."""
        self._in_backward = None
        self.failed = None

    def _in_finalize(self) -> bool:
        """Whether this is an engine callback: the Reducer, with a static graph, waits for its
        buckets right there."""
        in_callback = self._in_backward is not None and torch._C._current_autograd_node() is None
        return in_callback and not self._unprepared

    def _before_finalize(self) -> None:
        """Wait for all calls of the backward pass, and for those that they issue in turn (a comm
        hook's `then`).

        A Reducer that no forward pass has prepared (a static graph whose first one is in no_sync)
        raises instead, before it waits (expect_autograd_hooks_ in finalize_backward, reducer.cpp,
        v2.13.0). Nor is the error of a call raised here: finalize_backward does so, after it has
        made the Reducer ready for another forward pass."""
        while self._in_backward and not self._unprepared:
            calls, self._in_backward = self._in_backward, []
            asked = [call for call in calls if call.future is not None]
            try:
                if asked:
                    self._host.await_end(asked)
            except RuntimeError as error:
                if all(call.error is None for call in asked):
                    raise
                self.failed = error
            self._handed_out = [call for call in self._handed_out if call not in asked]
        self._in_backward = None
