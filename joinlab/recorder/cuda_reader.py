"""Records calls on GPU tensors without making the host or a stream wait.

A thread polls what has happened; nothing is read before it is there. On the program's own stream
the recorder puts events and copies, and nothing else; it uses no stream of its own that waits for
another one, since streams may share a hardware queue, where such a wait would hold up the program.

    values        copied into pinned memory on the program's stream: inputs before the call, outputs behind the point
                  where the stream was made to wait for the call
    synchronous   an event before and one behind the call give its begin and its end: it runs on the program's stream
    asynchronous  its Work says that it has ended, within POLL_S; with TORCH_NCCL_ENABLE_TIMING=1 also how long it ran,
                  which gives its begin

Under CUDA graph capture none of this is allowed, and the call does not run: the log says that calls
of the group were captured.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from joinlab.ops import MAX_VALUES
from joinlab.program.log_events import (
    LINE_END,
    CallDone,
    CallStarted,
    ValuesRead,
    first_field,
    next_field,
)
from joinlab.program.process_group import HOST_SYNCS, accept_own_groups, values_in
from joinlab.recorder.call import RecordedCall, ValueReader
from joinlab.recorder.completions import Completions
from joinlab.recorder.cuda_clock import GpuClock
from joinlab.recorder.events import EventLog, harmless, now
from joinlab.recorder.waits import WaitRecorder

_STARTED, _DONE = first_field(CallStarted, "call"), first_field(CallDone, "call")
_TIME = next_field(CallDone, "time_ns")

POLL_S = 0.001
SLOTS = 1024
"""Small calls whose values may be on their way at once; those of further ones are not recorded."""
SLOT_BYTES = MAX_VALUES * torch.complex128.itemsize
"""Each tensor of a call begins at a multiple of ALIGN, as wide as the widest element."""
ALIGN = torch.complex128.itemsize
SUCCESS = 0
"""WorkResult::SUCCESS of torch/csrc/distributed/c10d/Work.hpp, v2.13.0: the result of a Work whose
call did not fail."""


def on_gpu(tensor: torch.Tensor) -> bool:
    return tensor.is_cuda


def pinned(nbytes: int) -> torch.Tensor:
    """Host memory that a GPU writes by itself."""
    return torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True)


@dataclass(slots=True, eq=False)
class _Copy:
    """Values of a call on their way to the host: a view of the slot for each tensor."""

    call_id: int
    column: str
    slot: int
    hosts: list[torch.Tensor]
    arrived: Any  # event behind the copies


@dataclass(slots=True, eq=False)
class _Run:
    """What is measured of one open call.

    end      event on the program's stream, behind a call that runs on it
    waited   event behind the point where the program's stream was made to wait for it
    seen_ns  when its Work was first seen complete
    """

    call: RecordedCall
    end: Any = None
    waited: Any = None
    seen_ns: int = 0


class CudaReader(ValueReader):
    """Reads small tensors on a GPU; one per process, with one thread that polls."""

    late = True

    def __init__(
        self,
        log: EventLog,
        completions: Completions,
        waits: WaitRecorder,
        on_other_stream: Callable[[], None],
    ) -> None:
        """`on_other_stream` is called when the program issues or awaits a call on a stream of its
        own."""
        self.log = log
        self._completions = completions
        completions.late_reader = self
        self._waits = waits
        self._on_other_stream = on_other_stream
        self._clock: GpuClock | None = None  # made at the first call: by then the GPU is chosen
        self._memory = torch.empty(0)
        self._slots: deque[int] = deque()
        self._open: dict[int, _Run] = {}  # by id of the call
        self._copies: deque[_Copy] = deque()
        self._polling = threading.Lock()
        self._captures = 0
        self._passed: object = None  # an event that passed before the first call
        self._synchronize: Any = torch.cuda.Event.synchronize  # replaced below
        waits.own_threads += 1
        threading.Thread(target=self._poll_for_ever, daemon=True, name="joinlab-poll").start()
        _mark_host_syncs(waits)
        self._pause_for_captures()
        c10d.batch_isend_irecv = dist.batch_isend_irecv = accept_own_groups(c10d.batch_isend_irecv)

    def capturing(self) -> bool:
        return torch.cuda.is_current_stream_capturing()

    @harmless
    def begins(self, call: RecordedCall) -> None:
        """Mark where a call begins, if it will run on the current stream."""
        self._prepare()
        if call.kind.on_stream:
            call.begun = _mark()

    @harmless
    def before(self, call: RecordedCall, tensors: Sequence[torch.Tensor]) -> None:
        """Start to copy the inputs; they are recorded once the copy has arrived."""
        self._prepare()  # `begins` comes later
        self._copy(call, "value_in", tensors)

    def watch(self, call: RecordedCall) -> bool:
        """Poll for the completion of `call`; without a Work, for an event behind it on its stream,
        the current one."""
        self._see_stream()
        run = _Run(call)
        if call.work is None:
            run.end = _mark()
        self._open[call.id] = run
        return True

    @harmless
    def after_wait(self, call: RecordedCall) -> None:
        """Start to copy the outputs, on the stream that was just made to wait for the call."""
        if not call.done:
            self._see_stream()
            self._waits.newly_streamed.append(call.id)
            run = self._open.get(call.id)
            if run is not None and run.end is None:
                run.waited = _mark()
        outs, call.outs = call.outs, None
        if outs:
            self._copy(call, "value_out", outs)

    def after(self, call: RecordedCall) -> None:
        """Nothing is read at completion."""

    @harmless
    def settle(self, patience_s: float = 0.0) -> None:
        """Record the completions and copies that have arrived; wait so long for the rest."""
        give_up = time.monotonic() + patience_s
        self._look()
        while (self._open or self._copies) and time.monotonic() < give_up:
            time.sleep(POLL_S)
            self._look()

    def _look(self) -> None:
        with self._polling:
            if self._clock is None or self._captures:
                return
            self._wait_for_driver()
            self._clock.align()
            for id, run in list(self._open.items()):
                if self._ended(run, self._clock):
                    del self._open[id]
            for _ in range(len(self._copies)):
                copy = self._copies.popleft()
                if copy.arrived.query():
                    values = values_in(copy.hosts)
                    self.log.write(ValuesRead(call=copy.call_id, column=copy.column, values=values))
                    self._slots.append(copy.slot)
                else:
                    self._copies.append(copy)

    def _prepare(self) -> None:
        """Before the first call: nothing is stuck yet, and the program has chosen its GPU.

        Memory that is pinned behind a kernel that never ends might have to wait for it.
        """
        if self._clock is None:
            self._memory = pinned(SLOTS * SLOT_BYTES)
            self._slots.extend(range(SLOTS))
            self._passed = _mark()
            self._clock = GpuClock()

    def _wait_for_driver(self) -> None:
        """Wait until the driver can be asked, without the GIL.

        While another thread waits for a stream, the driver may hold back all questions
        (WorkNCCL::finishedGPUExecutionInternal in ProcessGroupNCCL.cpp says so). Work.is_completed
        and Event.query ask it with the GIL held, and the program's thread could not go on; this
        asks first, for an event that has long passed, and does not hold it.
        """
        self._synchronize(self._passed)

    def _see_stream(self) -> None:
        if torch.cuda.current_stream().cuda_stream != 0:  # not the default one
            self._on_other_stream()

    def _ended(self, run: _Run, clock: GpuClock) -> bool:
        """Whether a call has ended; then record it."""
        if run.end is not None:
            if not run.end.query():
                return False
            self._finish(run.call, clock.ns(run.call.begun), clock.ns(run.end))
            return True
        work = run.call.work
        try:
            if not work.is_completed():
                return False
            first, run.seen_ns = not run.seen_ns, run.seen_ns or now()
            failed = _failed(work)
            if failed is None and first:  # the watchdog may be about to say that it has
                return False
            if failed:
                raise RuntimeError(str(work.exception()))
        except Exception as error:
            self._completions.fail(run.call, error)
            return True
        end_ns = run.seen_ns
        if run.waited is not None and run.waited.query():
            end_ns = min(end_ns, clock.ns(run.waited) or end_ns)
        self._finish(run.call, _begin_ns(work, end_ns), end_ns)
        return True

    def _finish(self, call: RecordedCall, begin_ns: int | None, end_ns: int | None) -> None:
        if begin_ns is not None:
            self.log.write_text(f"{_STARTED}{call.id}{_TIME}{begin_ns}{LINE_END}")
        if not call.done:
            self._completions.finish(call, end_ns)
        elif end_ns is not None:  # a host that waited for it has said so, a little later
            self.log.write_text(f"{_DONE}{call.id}{_TIME}{end_ns}{LINE_END}")
        self._waits.end_below(call)

    def _copy(self, call: RecordedCall, column: str, tensors: Sequence[torch.Tensor]) -> None:
        if not self._slots or not all(tensor.is_contiguous() for tensor in tensors):
            return
        slot = self._slots.popleft()
        offset, hosts = slot * SLOT_BYTES, []
        try:
            for tensor in tensors:
                nbytes = tensor.numel() * tensor.element_size()
                host = self._memory[offset : offset + nbytes].view(tensor.dtype)
                hosts.append(host.copy_(tensor.detach().view(-1), non_blocking=True))
                offset += -(-nbytes // ALIGN) * ALIGN
            arrived = _mark()
        except Exception:  # a sparse or quantised tensor: the call is recorded without its values
            self._slots.append(slot)
            return
        self._copies.append(_Copy(call.id, column, slot, hosts, arrived))

    def _poll_for_ever(self) -> None:
        pause = threading.Event()
        while not self.log.failed:
            pause.wait(POLL_S)
            if self._open or self._copies:
                self.settle()

    def _pause_for_captures(self) -> None:
        """Ask the driver nothing while a CUDA graph is captured, not even from another thread: it
        would invalidate the capture."""
        begin, end = torch.cuda.CUDAGraph.capture_begin, torch.cuda.CUDAGraph.capture_end

        def capture_begin(graph: Any, *args: Any, **kwargs: Any) -> None:
            with self._polling:
                self._captures += 1
            try:
                begin(graph, *args, **kwargs)
            except BaseException:
                self._captures -= 1
                raise

        def capture_end(graph: Any) -> None:
            try:
                end(graph)
            finally:
                self._captures -= 1

        torch.cuda.CUDAGraph.capture_begin = capture_begin  # type: ignore[method-assign,assignment]
        torch.cuda.CUDAGraph.capture_end = capture_end  # type: ignore[method-assign,assignment]


def _mark() -> object:
    """An event on the current stream, behind all that is on it now."""
    event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def _failed(work: Any) -> bool | None:
    """Whether a Work that is complete has failed; None: nobody has said so yet.

    Its `exception()` would tell, with a warning in the output of every rank, so it is asked only of
    those that have.
    """
    with suppress(AttributeError, RuntimeError):  # an older PyTorch, or no such future
        result = work.get_future_result()
        if result.done():
            return bool(result.value() != SUCCESS)
        return None
    return None


def _begin_ns(work: Any, end_ns: int) -> int | None:
    """When a call began that ended then; None unless NCCL times its calls
    (TORCH_NCCL_ENABLE_TIMING=1)."""
    with suppress(AttributeError, RuntimeError):
        return int(end_ns - round(work._get_duration() * 1e6))
    return None


def _to_crosses(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> bool:
    device, _, non_blocking, _ = torch._C._nn._parse_to(*args, **kwargs)
    return bool(
        device is not None and not non_blocking and (device.type == "cuda") != on_gpu(tensor)
    )


def _cuda_crosses(
    tensor: torch.Tensor, device: object = None, non_blocking: bool = False, **_: object
) -> bool:
    return not non_blocking and not on_gpu(tensor)


def _copy_crosses(tensor: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> bool:
    return not non_blocking and on_gpu(tensor) != on_gpu(source)


CROSSINGS: dict[str, Callable[..., bool]] = {
    "to": _to_crosses,
    "cuda": _cuda_crosses,
    "copy_": _copy_crosses,
}
"""Methods of a tensor that copy between host and GPU, and whether the host then waits for the
stream: always unless told not to (memcpy_and_sync, aten/src/ATen/native/cuda/Copy.cu)."""


def _mark_host_syncs(waits: WaitRecorder) -> None:
    """Record host syncs such as `.item()`, in which the host waits for everything that its stream
    waits for."""

    def marked(sync: Callable[..., object], of_gpu: Callable[..., bool]) -> Callable[..., object]:
        def recorded(*args: object, **kwargs: object) -> object:
            calls = waits.streamed()
            if not calls or not of_gpu(*args, **kwargs):
                return sync(*args, **kwargs)
            with waits.waiting(calls):
                return sync(*args, **kwargs)

        return recorded

    for name in HOST_SYNCS:
        sync = getattr(torch.Tensor, name)
        setattr(torch.Tensor, name, marked(sync, lambda tensor, *_, **__: on_gpu(tensor)))
    for name, crosses in CROSSINGS.items():
        setattr(torch.Tensor, name, marked(getattr(torch.Tensor, name), crosses))
    for owner in (torch.cuda, torch.cuda.Stream, torch.cuda.Event):
        setattr(owner, "synchronize", marked(owner.synchronize, lambda *_, **__: True))  # noqa: B010 (mypy knows them as fixed)
