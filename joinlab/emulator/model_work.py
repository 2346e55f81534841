"""The Work of a call on the modelled network, its futures, and the waits of DDP's C++ Reducer.

The Reducer waits for its buckets in C++, where nobody in this process completes them. So each of
its waits is preceded by one of ours, in Python, for the same calls:

    backward pass      the Reducer issues buckets, then queues its finalize_backward with the autograd engine
    engine callbacks   ours, queued at the first bucket and so before the Reducer's, waits for all of them ...
                       ... then finalize_backward finds every Work complete

On NCCL a future is complete for the host at once, since callbacks on it run behind the call on a
stream. On gloo it is completed when this rank learns that the call has ended: real gloo does so on
its own threads, here it happens whenever the rank stands still.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.autograd import Variable

from joinlab.emulator.link import Link, PendingCall
from joinlab.ops import POINT_TO_POINT, Op


class WorkGroup(Protocol):
    """What a Work asks its process group (ModelGroup).

    limited  on gloo: the program gave the group a timeout, which its waits keep
    """

    futures: Futures
    limited: bool

    def check_rebuild(self, call: PendingCall) -> None:
        """The host has waited for a call: end the rank if DDP's Reducer cannot go on with it."""


class ModelWork(dist.Work):
    """The Work of one call, or of several that were issued together."""

    def __init__(self, group: WorkGroup, calls: Sequence[PendingCall]) -> None:
        super().__init__()
        self.group = group
        self.calls = list(calls)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Make the host wait (gloo, a barrier, an explicit timeout), or the stream (NCCL)."""
        futures, timeout_ns = self.group.futures, round(timeout.total_seconds() * 1e9)
        if timeout_ns or self.group.limited:
            futures.link.for_host_until(self.calls, timeout_ns)
        else:
            futures.wait(self.calls)
        self.group.check_rebuild(self.calls[0])
        return True

    def get_future(self) -> torch.futures.Future[Any]:
        """A future of the call's outputs. On gloo not every Work has one."""
        if self._without_future:
            raise RuntimeError("Work::getFuture not implemented.")
        return self.group.futures.of(self.calls[-1])

    @property
    def _without_future(self) -> bool:
        """Whether it is gloo's LambdaWork, SendWork or RecvWork (ProcessGroupGloo.cpp, PyTorch
        v2.13.0)."""
        return any(
            not call.streams and (call.op is Op.REDUCE_SCATTER or call.op in POINT_TO_POINT)
            for call in self.calls
        )

    def is_completed(self) -> bool:
        link = self.group.futures.link
        completed = all(
            call.done and (call.error is not None or call.ended_ns <= link.clock.host_ns)
            for call in self.calls
        ) or bool(link.ask("poll", [call.id for call in self.calls]))
        if self._without_future:
            # a LambdaWork never says so, a SendWork or RecvWork when it has been waited for
            return all(call.done and call.op is not Op.REDUCE_SCATTER for call in self.calls)
        return completed

    def is_success(self) -> bool:
        return all(call.done and call.error is None for call in self.calls)

    def exception(self) -> Any:
        errors = [call.error for call in self.calls if call.error is not None]
        return RuntimeError(errors[0]) if errors else None

    def result(self) -> list[torch.Tensor]:
        link = self.group.futures.link
        if not all(call.streams or link.is_past(call) for call in self.calls):
            raise RuntimeError(
                "Work needs to be completed before calling result(). Should call wait() before result()."
            )
        return [tensor for call in self.calls for tensor in call.results]

    def synchronize(self) -> None:
        self.wait()

    def block_current_stream(self) -> None:
        self.wait()

    def source_rank(self) -> int:
        return self.calls[-1].source

    def _source_rank(self) -> int:
        return self.source_rank()

    def get_future_result(self) -> torch.futures.Future[Any]:
        return self.get_future()


def future_with(tensors: list[torch.Tensor]) -> Any:
    """A future that holds these tensors, of a type that C++ can read, too (of no tensors it has
    none to read)."""
    if tensors:
        return torch._C.fork(lambda: tensors)
    future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
    future.set_result([])
    return future


class Futures:
    """The futures of one rank's calls, in the order of issue, and the waits on them in C++."""

    def __init__(self, link: Link) -> None:
        self.link = link
        link.futures = self
        link.clock.after_backward = self.backward_over
        self.typed = False
        """DDP was given one of C++'s own comm hooks, which reads futures in C++."""
        self._open: list[PendingCall] = []
        self._fulfilling = False
        self._handed_out: list[PendingCall] = []
        """Calls on NCCL whose future was handed out, and whose wait has not been seen yet."""
        self._in_backward: list[PendingCall] | None = None
        """What this backward pass has issued; None outside of one."""

    def wait(self, calls: Sequence[PendingCall]) -> None:
        """Make the host wait, or its stream; raises the backend's error."""
        if any(call.host_waits for call in calls):
            self.link.for_host(calls)
        else:
            self.link.for_stream(calls)

    def of(self, call: PendingCall) -> torch.futures.Future[Any]:
        """A future of the outputs of `call`."""
        if call.future is None:
            link = self.link
            if call.streams and not call.done and not link.stuck:
                link.ask("stream", [call.id])
                self.fulfil()
            if call.streams or link.is_past(call) or self.typed or self._in_finalize():
                if not call.streams:
                    link.for_host([call])
                call.future = future_with(call.results)
                self._handed_out.append(call)
            else:
                call.future = torch.futures.Future()
                self._open.append(call)
        return call.future  # type: ignore[no-any-return]

    def fulfil(self, awaited: PendingCall | None = None) -> None:
        """Fulfil the futures of calls that have ended, in the order of issue.

        Fulfilling one runs its callbacks, which may wait for a call and so come here again: from
        within a callback only the future of `awaited` is fulfilled, as no other callback may run
        inside this one.
        """
        while True:
            ready = [
                call
                for call in self._open
                if call.done and (not self._fulfilling or call is awaited)
            ]
            if not ready:
                return
            call = ready[0]
            self._open.remove(call)
            before, self._fulfilling = self._fulfilling, True
            try:
                if call.error is not None:
                    call.future.set_exception(RuntimeError(call.error))
                else:
                    call.future.set_result(call.results)
            finally:
                self._fulfilling = before

    def before_wait(self, future: torch.futures.Future[Any]) -> None:
        """Python is about to wait for `future` in C++: first wait for the calls that it hangs on,
        oldest first, since chained callbacks run in order."""
        handed, self._handed_out = self._handed_out, []
        if any(call.streams for call in handed):
            self.link.for_stream(handed)
        while not future.done() and self._open:
            call = next((call for call in self._open if call.future is future), self._open[0])
            self.link.for_host([call])
            self.fulfil(call)

    # -------------------------------------------------------------------------- backward passes

    def issued_in_backward(self, call: PendingCall) -> None:
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

    def _in_finalize(self) -> bool:
        """Whether this is an engine callback: the Reducer, with a static graph, waits for its
        buckets right there."""
        return self._in_backward is not None and torch._C._current_autograd_node() is None

    def _before_finalize(self) -> None:
        """Wait for all calls of the backward pass, and for those that they issue in turn (a comm
        hook's `then`).

        A call's error is raised here: C++ would take the exception in a future of Python for a
        tensor, and crash.
        """
        while self._in_backward:
            calls, self._in_backward = self._in_backward, []
            asked = [call for call in calls if call.future is not None]
            if asked:
                self.wait(asked)
            self._handed_out = [call for call in self._handed_out if call not in asked]
        self._in_backward = None
