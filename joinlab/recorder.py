"""The recorder: sits at the process-group seam of one rank and writes down every collective.

`install(...)` makes every process group that this process creates from then on a `RecordingGroup`: a Python
subclass of torch's ProcessGroup that writes an event and hands the call to the real backend. The C++ Reducer calls
it too, so that DDP's gradient all-reduces are seen as well as the learner's own calls.

What is recorded must not change how a program ends. So nothing here waits, nothing raises into the program, no
large tensor is kept alive, and the real Work decides about completion and errors. Three places need care:

- Values out are read once, under the lock, either when the backend reports completion or when the waiting host
  is about to be let go, whichever is first: after that the program may overwrite the tensor.
- The Reducer waits in C++, on futures that no Python sees. But it does so in an autograd callback, and callbacks run
  in order: ours, queued before it and (from within the first) after it, bracket that wait.
- A Python Work that C++ alone holds is forgotten by Python, so works are kept alive here: those on large tensors
  until they are done, the last KEPT_WORKS on small ones beyond that.
"""

from __future__ import annotations

import itertools
import os
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import Variable
from torch.distributed import distributed_c10d as c10d
from torch.nn.parallel import DistributedDataParallel

from joinlab.collectives import MAX_VALUES, Op
from joinlab.events import EventLog, log_name, now, to_json
from joinlab.origins import Frame, Stacks, call_site, from_reducer, kind_of, label
from joinlab.reader import Reader
from joinlab.seam import METHODS, Method, dtype_of, options_of, tensors_in

BACKEND = "joinlab"
"""Name under which the recording group is registered. It must be its own: DDP's logger casts a "gloo" group."""

KEPT_WORKS = 65_536
"""The last works on small tensors that are kept alive. C++ may hold one without Python knowing (DDP does so with the
first all-reduce of a forward pass), and wait for ever once Python has forgotten it."""


class Call:
    """One issued call, while it is open."""

    __slots__ = (
        "done",
        "group",
        "host_waits",
        "id",
        "op",
        "origin",
        "outs",
        "recorded",
        "small",
        "waited",
        "waited_at_once",
        "work",
    )

    def __init__(self, id: int, op: Op, origin: str, group: RecordingGroup, small: bool) -> None:
        self.id = id
        self.op = op
        self.origin = origin
        self.group = group
        self.small = small  # its tensors are, so that they can be kept alive
        self.outs: list[torch.Tensor] | None = None  # what comes out, to be read; only if small
        self.work: Any = None
        self.recorded: RecordedWork | None = None  # kept alive until done; small ones longer, see KEPT_WORKS
        self.done = False
        self.waited = False  # the stream (NCCL) or the host (gloo) has been made to wait for it
        self.host_waits = group.host_waits or op is Op.BARRIER
        self.waited_at_once = False  # the host waits for it next: its waking tells when it completed


class _Thread(threading.local):
    """What a thread of the program has come to: its last call, and its backward pass."""

    unwaited: Call | None = None  # the last call, if it is one that the host waits for at once
    pending: list[Call] | None = None  # calls of the Reducer in this pass; None: there is none yet
    waiting: Sequence[Call] = ()  # those that it waits for now, at the end of the pass
    buckets = 0  # how many the pass before issued


class Recorder:
    """Writes the events of one rank. One per process; the groups, works and patches of `install` share it."""

    def __init__(self, log: EventLog, rank: int) -> None:
        self.log = log
        self.rank = rank
        self.input: int | None = None
        self.own_threads = 0
        """Threads that the recorder itself runs: no program's thread, which may go on while another waits."""
        self._lock = threading.RLock()
        self._ids = itertools.count()
        self._spans = itertools.count()
        self._stacks = Stacks()
        self._works: deque[RecordedWork] = deque(maxlen=KEPT_WORKS)
        self._open: dict[int, Call] = {}
        self._thread = _Thread()
        self._backward_site: str | None = None
        self._join_hook: deque[Call] = deque()
        self._cuda_reader: Reader | None = None

    # ---------------------------------------------------------------- calls

    def issue(self, group: RecordingGroup, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> RecordedWork:
        """Record a call, hand it to the real group, and return a Work that records its wait and completion."""
        unwaited, self._thread.unwaited = self._thread.unwaited, None
        if unwaited is not None and not unwaited.done:  # a coalescing manager holds the wait back
            self._watch(unwaited)
        method = METHODS[name]
        ins = tensors_in(args[method.ins]) if method.ins is not None else []
        outs = tensors_in(args[method.outs]) if method.outs is not None else []
        call = self._describe(group, method, ins, outs, (*args, *kwargs.values()), sys._getframe(2))
        try:
            call.work = getattr(group.real, name)(*args, **kwargs)
        except BaseException as error:
            self.fail(call, error)
            raise
        work = RecordedWork(self, call)
        if call.small:
            self._works.append(work)
        else:
            call.recorded = work
        if call.origin.endswith("(join() hook)"):
            self._join_hook.append(call)
        if call.waited_at_once:
            self._thread.unwaited = call
        else:
            self._watch(call)
        return work

    def _describe(
        self,
        group: RecordingGroup,
        method: Method,
        ins: list[torch.Tensor],
        outs: list[torch.Tensor],
        rest: tuple[Any, ...],
        frame: FrameType,
    ) -> Call:
        tensors = ins or outs
        stack, frames = self._stack(frame)
        asynchronous = bool(getattr(rest[-1], "asyncOp", True)) if rest else True
        options = options_of(method.op, group.ranks, rest)
        key = (stack, method, asynchronous, *((t.dtype, t.shape) for t in tensors), *options.values())
        known = group.known.get(key)
        if known is None:
            known = group.known[key] = self._describe_once(group, method, tensors, frames, asynchronous, options)
        origin, text, reducer = known
        small = sum(t.numel() for t in ins) + (0 if ins is outs else sum(t.numel() for t in outs)) <= MAX_VALUES
        call = Call(next(self._ids), method.op, origin, group, small)
        if outs and small:
            call.outs = outs
        call.waited_at_once = not asynchronous and call.host_waits
        values = group.reader.before(call, ins) if ins and small else None
        more = "" if values is None else f',"v":{to_json(values)}'
        if not frames and self._backward_site is not None:  # the autograd thread of a GPU: no Python below it
            more += f',"site":{to_json(self._backward_site)}'
        if reducer:
            self._bracket_reducer_wait(call)
        index = "null" if self.input is None else self.input
        with self._lock:
            self._open[call.id] = call
            self.log.write_text(
                f'{{"e":"call","id":{call.id},"s":{group.next_seq()},"i":{index},"st":{stack},{text}{more},"t":{now()}}}'
            )
        return call

    @staticmethod
    def _describe_once(
        group: RecordingGroup,
        method: Method,
        tensors: list[torch.Tensor],
        frames: tuple[Frame, ...],
        asynchronous: bool,
        options: dict[str, Any],
    ) -> tuple[str, str, bool]:
        """What is the same each time a call is issued from there: label, text of the event, whether by the Reducer."""
        dtype = dtype_of(tensors)
        nccl = group.backend == "nccl"
        origin = label(method.op, frames, asynchronous=asynchronous, dtype=dtype, all_reduce_barrier=nccl)
        event = {
            "g": group.label,
            "op": Op.ALL_REDUCE if method.op is Op.BARRIER and nccl else method.op,
            "o": origin,
            "d": dtype,
            "sh": [list(t.shape) for t in tensors],
            **options,
        }
        return origin, to_json(event)[1:-1], from_reducer(frames)

    def _stack(self, frame: FrameType) -> tuple[int, tuple[Frame, ...]]:
        with self._lock:
            number, new = self._stacks.intern(frame)
        frames = self._stacks.frames[number]
        if new:
            outward = [str(f) for f in reversed(frames)]
            self.log.write({"e": "stack", "id": number, "f": outward, "site": call_site(frames)})
        return number, frames

    def _watch(self, call: Call) -> None:
        if call.group.reader.watch(call):
            return
        with suppress(Exception):  # send and recv of gloo have no future: their wait tells
            call.work.get_future().add_done_callback(lambda future: self._completed(call, future))

    def _completed(self, call: Call, future: Any) -> None:
        try:
            future.value()
        except Exception as error:
            self.fail(call, error)
        else:
            self.finish(call)

    def finish(self, call: Call) -> None:
        """Record completion, with the values that came out, once."""
        with self._lock:
            if call.done:
                return
            at = now()
            values = call.group.reader.after(call)
            more = "" if values is None else f',"v":{to_json(values)}'
            self.log.write_text(f'{{"e":"done","id":{call.id},"t":{at}{more}}}')
            self._close(call)

    def fail(self, call: Call, error: BaseException) -> None:
        """Record that the backend raised instead of completing the call."""
        with self._lock:
            if call.done:
                return
            self.log.write({"e": "fail", "id": call.id, "t": now(), "x": f"{type(error).__name__}: {error}"})
            self._close(call)

    def _close(self, call: Call) -> None:
        """Let go of what an open call holds. `done` comes last: who sees it may overwrite the tensors and end."""
        self._open.pop(call.id, None)
        call.outs = call.recorded = None
        call.done = True

    def settle(self) -> None:
        """Record what completed without anyone having been told. Called before the rank ends."""
        for reader in {call.group.reader for call in list(self._open.values())}:
            reader.settle()
        for call in list(self._open.values()):
            try:
                if call.work is not None and call.work.is_completed() and call.work.is_success():
                    self.finish(call)
            except Exception:
                continue
        with self._lock:  # a completion that another thread is just writing down
            pass

    # ---------------------------------------------------------------- waits

    @contextmanager
    def waiting(self, calls: Sequence[Call]) -> Iterator[None]:
        """Record that the host waits for `calls` while the body runs; an error of the body is theirs."""
        self.begin_wait(calls)
        try:
            yield
        except Exception as error:
            for call in calls:
                self.fail(call, error)
            self.end_wait(calls)
            raise
        for call in calls:
            self.finish(call)
        self.end_wait(calls)

    def begin_wait(self, calls: Sequence[Call]) -> None:
        """Record that the host begins to wait for all of `calls`."""
        ids = ",".join(str(call.id) for call in calls)
        thread, live = threading.get_ident(), threading.active_count() - self.own_threads
        self.log.write_text(f'{{"e":"wait","id":[{ids}],"t":{now()},"th":{thread},"n":{live}}}')

    def end_wait(self, calls: Sequence[Call]) -> None:
        """Record that the host was let go."""
        ids = ",".join(str(call.id) for call in calls)
        self.log.write_text(f'{{"e":"wake","id":[{ids}],"t":{now()},"th":{threading.get_ident()}}}')

    def streamed(self) -> list[Call]:
        """Open calls that this rank's stream has been made to wait for: a host sync now waits for them."""
        return [call for call in list(self._open.values()) if call.waited]

    def _bracket_reducer_wait(self, call: Call) -> None:
        """See to it that the Reducer's wait for `call`, at the end of the backward pass, is recorded."""
        thread = self._thread
        if thread.pending is None:
            thread.pending = []
            Variable._execution_engine.queue_callback(self._before_reducer_waits)
        else:
            before = thread.pending[-1]
            if before.waited_at_once:  # it was not the last bucket after all
                before.waited_at_once = False
                self._watch(before)
        thread.pending.append(call)
        call.waited_at_once = call.host_waits and len(thread.pending) == thread.buckets

    def _before_reducer_waits(self) -> None:
        thread = self._thread
        issued, thread.pending = thread.pending or [], None
        calls = [call for call in issued if not call.done]
        thread.buckets = len(issued)
        if calls:
            thread.waiting = calls
            if calls[0].host_waits:
                self.begin_wait(calls)
            Variable._execution_engine.queue_callback(self._after_reducer_waited)

    def _after_reducer_waited(self) -> None:
        calls, self._thread.waiting = self._thread.waiting, []
        if not calls[0].host_waits:  # NCCL: it was the stream that has been made to wait
            for call in calls:
                call.waited = True
                call.group.reader.after_wait(call)
            return
        for call in calls:
            self.finish(call)
        self._thread.unwaited = None
        self.end_wait(calls)

    def _reducer_gave_up(self, error: BaseException) -> None:
        """The backward pass raised: the callbacks after the Reducer's own never ran."""
        calls, self._thread.waiting, self._thread.pending = self._thread.waiting, [], None
        if not calls:
            return
        for call in calls:  # the Reducer waits for one bucket after the other, and stops at the first that fails
            future = call.work.get_future()
            if not future.done():
                self.fail(call, error)
                break
            self._completed(call, future)
        self.end_wait(calls)

    # ---------------------------------------------------------------- host spans

    def begin_span(self, name: str, frame: FrameType | None) -> int:
        """Record that the host began what `name` says, called from `frame`; returns the span's number."""
        number = next(self._spans)
        site = self._site(frame)
        if name == "backward":
            self._backward_site = site
        index = "null" if self.input is None else self.input
        self.log.write_text(
            f'{{"e":"span+","id":{number},"n":"{name}","i":{index},"site":{to_json(site)},"t":{now()}}}'
        )
        return number

    def end_span(self, number: int) -> None:
        """Record that the host ended it."""
        self.log.write_text(f'{{"e":"span-","id":{number},"t":{now()}}}')

    def _site(self, frame: FrameType | None) -> str | None:
        """ "file:line" of the innermost frame of the learner's own code, from `frame` outwards."""
        while frame is not None and kind_of(frame.f_code.co_filename) != "program":
            frame = frame.f_back
        return None if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"

    def cuda_reader(self) -> Reader:
        """The reader of this process's groups on GPUs, made on first use."""
        if self._cuda_reader is None:
            from joinlab.recorder_cuda import CudaReader

            self._cuda_reader = CudaReader(self)
        return self._cuda_reader

    # ---------------------------------------------------------------- the program's progress

    def begin(self, versions: dict[str, str | None]) -> None:
        """Record who this rank is."""
        self.log.write(
            {"e": "begin", "rank": self.rank, "pid": os.getpid(), "host": socket.gethostname(), "t": now(), **versions}
        )

    def mark_input(self, index: int | None, done: int) -> None:
        """Record that input `index` is now being processed (None: none is), `done` before it."""
        self.input = index
        self.log.write_text(f'{{"e":"input","i":{"null" if index is None else index},"k":{done},"t":{now()}}}')


class RecordedWork(dist.Work):
    """The Work that a RecordingGroup returns: the real one decides, this one writes down."""

    def __init__(self, recorder: Recorder, call: Call) -> None:
        super().__init__()
        self._recorder = recorder
        self._call = call

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait as the real Work does, and record it if it is the host that waits."""
        call, real = self._call, self._call.work
        call.waited = True
        self._recorder._thread.unwaited = None
        if not call.host_waits and not timeout:
            result = bool(real.wait())
            call.group.reader.after_wait(call)
            return result
        if call.done:
            return bool(real.wait(timeout) if timeout else real.wait())
        with self._recorder.waiting((call,)):
            return bool(real.wait(timeout) if timeout else real.wait())

    def get_future(self) -> torch.futures.Future[Any]:
        """The real future. Whoever waits on it in C++ is seen by other means, see the head of this file."""
        return self._call.work.get_future()  # type: ignore[no-any-return]

    def is_completed(self) -> bool:
        return bool(self._call.work.is_completed())

    def is_success(self) -> bool:
        return bool(self._call.work.is_success())

    def exception(self) -> Any:
        return self._call.work.exception()

    def result(self) -> Any:
        return self._call.work.result()

    def synchronize(self) -> None:
        self._call.work.synchronize()

    def block_current_stream(self) -> None:
        self._call.work.block_current_stream()

    def source_rank(self) -> int:
        return int(self._call.work.source_rank())

    def _source_rank(self) -> int:
        return int(self._call.work._source_rank())

    def get_future_result(self) -> Any:
        return self._call.work.get_future_result()


class RecordingGroup(dist.ProcessGroup):
    """A process group that writes down every call and hands it to `real`, which does the work."""

    def __init__(
        self, recorder: Recorder, real: dist.ProcessGroup, backend: str, label: str, ranks: list[int], reader: Reader
    ) -> None:
        super().__init__(real.rank(), real.size())  # type: ignore[call-arg]
        self.recorder = recorder
        self.real = real
        self.backend = backend
        self.label = label
        self.ranks = ranks  # global ranks, by rank within the group
        self.reader = reader
        # A Work.wait() of NCCL makes the stream wait, not the host, unless it is told to block.
        self.host_waits = backend == "gloo" or os.environ.get("TORCH_NCCL_BLOCKING_WAIT", "0") == "1"
        self.known: dict[tuple[Any, ...], tuple[str, str, bool]] = {}
        self._seq = itertools.count()
        recorder.log.write({"e": "group", "name": label, "ranks": ranks, "backend": backend, "t": now()})

    def next_seq(self) -> int:
        """Number of the next call of this rank in this group."""
        return next(self._seq)

    def getBackendName(self) -> str:
        """Asked by C++ (DDP's logger). Not "gloo" or "nccl": it would cast this group to that class."""
        return BACKEND

    def shutdown(self) -> None:
        self.real.shutdown()

    def abort(self) -> None:
        self.real.abort()

    def set_timeout(self, timeout: timedelta) -> None:
        self.real.set_timeout(timeout)


def _method(name: str) -> Callable[..., RecordedWork]:
    def recorded(self: RecordingGroup, *args: Any, **kwargs: Any) -> RecordedWork:
        return self.recorder.issue(self, name, args, kwargs)

    recorded.__name__ = name
    return recorded


for _name in METHODS:
    setattr(RecordingGroup, _name, _method(_name))


# -------------------------------------------------------------------- what is put into the process


def install(folder: Path, rank: int, versions: dict[str, str | None] | None = None) -> Recorder:
    """Record every process group that this process creates from now on, into `folder`. Call once per process.

    Writes `rank-<rank>.events.jsonl`. Works under torchrun as well: call it before init_process_group.
    """
    recorder = Recorder(EventLog(folder / log_name(rank)), rank)
    recorder.begin(versions or {})
    _patch_group_creation(recorder)
    _patch_spans(recorder)
    _patch_future_wait(recorder)
    return recorder


def _patch_group_creation(recorder: Recorder) -> None:
    helper = c10d._new_process_group_helper
    requested: list[str] = []

    def recording_helper(*args: Any, **kwargs: Any) -> Any:
        # (group_size, group_rank, global_ranks_in_group, backend, store, ...)
        backend = str(kwargs["backend"] if "backend" in kwargs else args[3]).lower()
        if backend != BACKEND:
            requested.append(_real_backend(backend))
        elif recorder_groups:
            requested.append(recorder_groups[0].backend)
        if "backend" in kwargs:
            kwargs["backend"] = dist.Backend(BACKEND)
        else:
            args = (*args[:3], dist.Backend(BACKEND), *args[4:])
        return helper(*args, **kwargs)

    recorder_groups: list[RecordingGroup] = []

    def create(options: Any, backend_options: Any) -> RecordingGroup:
        backend = requested.pop() if requested else "gloo"
        group = _create_group(recorder, backend, options, backend_options)
        recorder_groups.append(group)
        return group

    get_backend = c10d.get_backend

    def real_get_backend(group: Any = None) -> Any:
        group = group or c10d._get_default_group()
        return dist.Backend(group.backend) if isinstance(group, RecordingGroup) else get_backend(group)

    dist.Backend.register_backend(BACKEND, create, extended_api=True, devices=["cpu", "cuda"])
    c10d._new_process_group_helper = recording_helper
    c10d.get_backend = dist.get_backend = real_get_backend


def _real_backend(backend: str) -> str:
    """ "gloo" or "nccl" out of what init_process_group may be given: "undefined", "cpu:gloo,cuda:nccl", ..."""
    if "nccl" in backend:
        return "nccl"
    if "gloo" in backend:
        return "gloo"
    return "nccl" if torch.cuda.is_available() else "gloo"


def _create_group(recorder: Recorder, backend: str, options: Any, backend_options: Any) -> RecordingGroup:
    rank, size = options.group_rank, options.group_size
    ranks = list(options.global_ranks_in_group) or list(range(size))
    real = dist.ProcessGroup(options.store, rank, size)
    real._set_group_name(options.group_id)
    inner: Any
    if backend == "gloo":
        device, kind, reader = torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, Reader()
        gloo = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        gloo._devices = [_gloo_device()]
        gloo._timeout = options.timeout
        inner = dist.ProcessGroupGloo(options.store, rank, size, gloo)
    else:
        device, kind, reader = torch.device("cuda"), dist.ProcessGroup.BackendType.NCCL, recorder.cuda_reader()
        nccl: Any = backend_options or dist.ProcessGroupNCCL.Options()
        nccl._timeout = options.timeout
        nccl.global_ranks_in_group = ranks
        nccl.group_name = options.group_id
        inner = dist.ProcessGroupNCCL(options.store, rank, size, nccl)
    inner._set_sequence_number_for_group()
    real._set_default_backend(kind)
    real._register_backend(device, kind, inner)
    group = RecordingGroup(recorder, real, backend, str(options.group_id), ranks, reader)
    group._register_backend(device, kind, inner)  # for what C++ asks of a group beside its collectives
    return group


def _gloo_device() -> Any:
    """Loopback for ranks of one machine (the launcher sets the variable); gloo's own choice otherwise."""
    host = os.environ.get("JOINLAB_GLOO_HOST")
    gloo: Any = dist.ProcessGroupGloo
    return gloo.create_device(hostname=host) if host else gloo.create_default_device()


def _patch_spans(recorder: Recorder) -> None:
    forward: Any = DistributedDataParallel.forward
    backward: Any = torch.autograd.backward

    def recorded_forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        span = recorder.begin_span("forward", sys._getframe(1))
        try:
            return forward(self, *args, **kwargs)
        finally:
            recorder.end_span(span)

    def recorded_backward(*args: Any, **kwargs: Any) -> None:
        span = recorder.begin_span("backward", sys._getframe(1))
        try:
            backward(*args, **kwargs)
        except BaseException as error:
            recorder._reducer_gave_up(error)
            raise
        finally:
            recorder.end_span(span)

    DistributedDataParallel.forward = recorded_forward  # type: ignore[method-assign]
    torch.autograd.backward = recorded_backward
    steps: list[int] = []
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    register_optimizer_step_pre_hook(lambda *_: steps.append(recorder.begin_span("optimizer", sys._getframe(2))))
    register_optimizer_step_post_hook(lambda *_: recorder.end_span(steps.pop()) if steps else None)


def _patch_future_wait(recorder: Recorder) -> None:
    """The join hook waits on futures that C++ hands out, one per bucket, in the order of issue."""
    wait = torch._C.Future.wait

    def recorded_wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        if sys._getframe(1).f_code.co_name == "_match_all_reduce_for_bwd_pass" and recorder._join_hook:
            call = recorder._join_hook.popleft()
            if not call.done and call.host_waits:
                with recorder.waiting((call,)):
                    return wait(self, *args, **kwargs)
        return wait(self, *args, **kwargs)

    torch._C.Future.wait = recorded_wait  # type: ignore[method-assign]
