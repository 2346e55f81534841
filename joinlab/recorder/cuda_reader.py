"""Records calls on GPU tensors without making the host wait.

A thread polls for completion (`Work.is_completed` queries a CUDA event). Small values are copied
into pinned memory on the program's own stream, before the call and after the stream has been made
to wait for it, and recorded once the copy has arrived. Neither adds a wait to the host or the
stream.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from joinlab.program.process_group import HOST_SYNCS, batching, values_in
from joinlab.recorder.call import Reader, RecordedCall
from joinlab.recorder.completions import Completions
from joinlab.recorder.events import EventLog, harmless
from joinlab.recorder.waits import Waits

POLL_S = 0.001


class CudaReader(Reader):
    """Reads small tensors on a GPU; one per process, with one thread that polls."""

    late = True

    def __init__(
        self,
        log: EventLog,
        completions: Completions,
        waits: Waits,
        on_other_stream: Callable[[], None],
    ) -> None:
        """`on_other_stream` is called when the program issues or awaits a call on a stream of its
        own."""
        self.log = log
        self._completions = completions
        self._waits = waits
        self._on_other_stream = on_other_stream
        self._open: deque[RecordedCall] = deque()
        self._copies: deque[tuple[int, str, list[torch.Tensor], Any]] = (
            deque()
        )  # id, column, copies, CUDA event
        self._lock = threading.Lock()
        waits.own_threads += 1
        threading.Thread(target=self._poll_for_ever, daemon=True, name="joinlab-poll").start()
        _mark_host_syncs(waits)
        c10d.batch_isend_irecv = dist.batch_isend_irecv = batching(c10d.batch_isend_irecv)

    def before(self, call: RecordedCall, tensors: Sequence[torch.Tensor]) -> None:
        """Start to copy the inputs; they are recorded once the copy has arrived."""
        self._copy(call, "value_in", tensors)

    def watch(self, call: RecordedCall) -> bool:
        """Poll for the completion of `call`; without a Work, for an event behind it on its
        stream, the current one."""
        self._see_stream()
        if call.work is None:
            call.work = _Passed()
        self._open.append(call)
        return True

    @harmless
    def after_wait(self, call: RecordedCall) -> None:
        """Start to copy the outputs, on the stream that was just made to wait for the call."""
        if not call.done:
            self._see_stream()
            self._waits.newly_streamed.append(call.id)
        outs, call.outs = call.outs, None
        if outs:
            self._copy(call, "value_out", outs)

    def _see_stream(self) -> None:
        if torch.cuda.current_stream().cuda_stream != 0:  # not the default one
            self._on_other_stream()

    def after(self, call: RecordedCall) -> None:
        """Nothing is read at completion."""

    @harmless
    def settle(self) -> None:
        """Record the completions and copies that have arrived."""
        with self._lock:
            for call in [self._open.popleft() for _ in range(len(self._open))]:
                if not self._completed(call):
                    self._open.append(call)
            for _ in range(len(self._copies)):
                id, column, hosts, arrived = copy = self._copies.popleft()
                if arrived.query():
                    self.log.write({"e": "value", "id": id, "c": column, "v": values_in(hosts)})
                else:
                    self._copies.append(copy)

    def _completed(self, call: RecordedCall) -> bool:
        try:
            if not call.work.is_completed():
                return False
            error = call.work.exception() if _failed(call.work) else None
        except Exception as raised:
            self._completions.fail(call, raised)
            return True
        if error is None:
            self._completions.finish(call)
        else:
            self._completions.fail(call, RuntimeError(str(error)))
        return True

    def _copy(self, call: RecordedCall, column: str, tensors: Sequence[torch.Tensor]) -> None:
        try:
            hosts = []
            for tensor in tensors:
                host = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
                hosts.append(host.copy_(tensor.detach(), non_blocking=True))
            arrived: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
            arrived.record()
        except Exception:  # a sparse or quantised tensor: the call is recorded without its values
            return
        self._copies.append((call.id, column, hosts, arrived))

    def _poll_for_ever(self) -> None:
        pause = threading.Event()
        while not self.log.failed:
            pause.wait(POLL_S)
            if self._open or self._copies:
                self.settle()


class _Passed:
    """In place of the Work of a call that runs on the current stream: complete once the stream has
    passed it."""

    def __init__(self) -> None:
        self._event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._event.record()

    def is_completed(self) -> bool:
        return bool(self._event.query())


def _failed(work: Any) -> bool:
    """Whether a Work that is complete has failed. Its `exception()` would tell, with a warning in
    the output of every rank, so it is asked only then."""
    with suppress(AttributeError, RuntimeError):  # an older PyTorch, or no such future
        result = work.get_future_result()
        return bool(result.done() and result.value() != SUCCESS)
    return False


SUCCESS = 0
"""WorkResult::SUCCESS of torch/csrc/distributed/c10d/Work.hpp, v2.13.0: the result of a Work whose
call did not fail."""


def _mark_host_syncs(waits: Waits) -> None:
    """Record host syncs such as `.item()`, in which the host waits for everything that its stream
    waits for."""

    def marked(sync: Callable[..., Any], on_gpu: Callable[..., bool]) -> Callable[..., Any]:
        def recorded(*args: Any, **kwargs: Any) -> Any:
            calls = waits.streamed() if on_gpu(*args) else []
            if not calls:
                return sync(*args, **kwargs)
            with waits.waiting(calls):
                return sync(*args, **kwargs)

        return recorded

    for name in HOST_SYNCS:
        setattr(
            torch.Tensor,
            name,
            marked(getattr(torch.Tensor, name), lambda tensor, *_: tensor.is_cuda),
        )
    for owner in (torch.cuda, torch.cuda.Stream, torch.cuda.Event):
        setattr(owner, "synchronize", marked(owner.synchronize, lambda *_: True))  # noqa: B010 (mypy knows them as fixed)
