"""The recording process group, between a program and its backend.

A `RecordingGroup` is a Python subclass of torch's ProcessGroup that records each call and hands it
to the real group. DDP's C++ Reducer calls it too, so the log has its gradient all-reduces beside
the program's own calls. Each call of Python returns a `RecordedWork`: the real Work decides, this
one records the wait.

A backend may answer without a Work, and then has made the stream or the host wait already. NCCL
does so since PyTorch 2.8 for calls with async_op=False (ProcessGroupNCCL::collective returns
`asyncOp ? work : nullptr`, pull request 150398), and for each call between `_start_coalescing` and
`_end_coalescing`, whose Work stands for all of them. Callers in C++ have no guard against that
(PyProcessGroup.hpp, v2.13.0: the macro WORK_OVERRIDE), and would crash; so they, and Python alike,
get a Work that is complete.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as torch_own
from torch._C import _len_torch_dispatch_stack
from torch._C._autograd import _profiler_enabled

from joinlab.program.process_group import COALESCED, METHODS, Method, Numbering, tensors_in
from joinlab.program.traces import refuse_asked
from joinlab.recorder.call import RecordedCall, RecordedGroup, ValueReader
from joinlab.recorder.events import harmless
from joinlab.recorder.recorder import Recorder

BACKEND = "joinlab"
"""Backend name of the recording group. Not "gloo": DDP's logger would cast the group to that
class."""


KINDS = {"gloo": dist.ProcessGroup.BackendType.GLOO, "nccl": dist.ProcessGroup.BackendType.NCCL}


class RecordedWork(dist.Work):
    """The Work that a RecordingGroup returns to Python: records, and leaves the rest to the real
    Work."""

    def __init__(self, recorder: Recorder, real: dist.Work, calls: Sequence[RecordedCall]) -> None:
        """`real` completes with all of `calls`: one, or those that were issued as one."""
        super().__init__()
        self._recorder = recorder
        self._real = real
        self._calls = calls

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait as the real Work does, and record the wait if the host waits."""
        real, calls, waits = self._real, self._calls, self._recorder.waits
        for call in calls:
            waits.begin_expected(call)
        self._recorder.misuse.asked(call.id for call in calls)
        if not calls[0].kind.host_waits and not timeout:
            result = bool(real.wait())
            for call in calls:
                call.group.reader.after_wait(call)
            if calls[0].kind.syncs_host and not calls[0].done:
                waits.begin_below(calls)
            return result
        if all(call.done for call in calls):
            return bool(real.wait(timeout) if timeout else real.wait())
        if timeout:
            awaited = calls
        else:
            awaited = calls[0].group.reader.awaited_with(calls)
        with waits.waiting(awaited, limited=bool(timeout)):
            return bool(real.wait(timeout) if timeout else real.wait())

    def get_future(self) -> torch.futures.Future[object]:
        """The real future. Waits on it in C++ are recorded by reducer.py, those in Python by
        install.py."""
        self._recorder.misuse.asked(call.id for call in self._calls)
        # The program's callbacks may overwrite the tensors, so ours have to come first.
        self._recorder.completions.end_deferral(self._recorder.completions.own.turn)
        future: Any = self._real.get_future()
        self._recorder.waits.futures[future] = self._calls[0]
        return future  # type: ignore[no-any-return]


def _asked(name: str) -> Callable[..., object]:
    def asked(self: RecordedWork, *args: object, **kwargs: object) -> object:
        self._recorder.misuse.asked(call.id for call in self._calls)
        return getattr(self._real, name)(*args, **kwargs)

    return asked


for _name in (
    *("is_completed", "is_success", "exception", "result", "synchronize", "block_current_stream"),
    *("source_rank", "_source_rank", "get_future_result"),
):
    setattr(RecordedWork, _name, _asked(_name))


def complete_work(outs: object) -> dist.Work:
    """A Work that is complete, with these outputs."""
    future: torch.futures.Future[object] = torch.futures.Future()
    future.set_result(tensors_in(outs))
    return torch_own._create_work_from_future(future)  # type: ignore[attr-defined,no-any-return]


class RecordingGroup(dist.ProcessGroup):
    """A process group that records every call and passes it to `real`."""

    def __init__(
        self,
        recorder: Recorder,
        real: dist.ProcessGroup,
        label: str,
        ranks: list[int],
        readers: Mapping[str, tuple[str, ValueReader]],
        desc: str = "",
        eager: bool = False,
        timeout: timedelta = timedelta(0),
        inner: object = None,
    ) -> None:
        """`readers`: by type of device, its backend and the reader of its values.

        inner  the backend of `real`, where there is one alone
        desc   what the program calls the group
        eager  its NCCL communicator is made with it, not by the first call
        timeout  how long a call may take
        """
        super().__init__(real.rank(), real.size())  # type: ignore[call-arg]
        self.recorder = recorder
        self.log = recorder.log
        self.real = real
        numbering = Numbering()
        self.inner = inner
        self.records: dict[str, RecordedGroup] = {}
        for device, (backend, reader) in readers.items():
            # A Work.wait() of NCCL makes the stream wait, not the host, unless it is told to block.
            host_waits = backend == "gloo" or os.environ.get("TORCH_NCCL_BLOCKING_WAIT", "0") == "1"
            self.records[device] = RecordedGroup(
                label, backend, ranks, reader, host_waits, numbering
            )
        self.record = self.records.get("cuda") or self.records["cpu"]  # for calls without a tensor
        self.only = len(self.records) == 1
        self.backend = self.record.backend
        self.about = (desc, eager)
        self._note(timeout)
        self.batch: list[RecordedCall] | None = None
        """The calls since `_start_coalescing`; None outside such a batch."""
        # NCCL prints the ring on the group's first rank; two ranks have only one ring.
        self.ring_wanted = (
            recorder.nccl_log is not None
            and self.backend == "nccl"
            and real.rank() == 0
            and real.size() > 2
        )

    def __repr__(self) -> str:
        return repr(self.real)  # in errors, as without a recorder

    def name(self) -> str:
        return str(self.real.name())  # asked by programs, as without a recorder

    def record_of(self, method: Method, args: tuple[object, ...]) -> RecordedGroup:
        """The record of the backend that serves the device of this call's tensors, if there are
        several."""
        for at in (method.ins, method.outs):
            tensors = tensors_in(args[at]) if at is not None else []
            if tensors:
                return self.records.get(tensors[0].device.type, self.record)
        return self.record

    def nearer(self) -> Any:
        """The target for a bucket of the Reducer, a plain tensor: the backend itself if there is
        only one.

        `real` passes it through PyTorch's dispatcher, which took 8 us of a step of 0.3 ms. A
        profiler and a dispatch mode of the program listen there.
        """
        listened_to = _len_torch_dispatch_stack() or _profiler_enabled()
        if self.inner is not None and not listened_to:
            return self.inner
        return self.real

    def getBackendName(self) -> str:
        """Asked by C++ (DDP's logger). Not "gloo" or "nccl": it would cast this group to that
        class.

        So DDP uses this group, and it is held from now on. Otherwise the Reducer could be the last
        to let go of it when the model is freed: gloo's destructor would join its threads with the
        GIL held, while one of them waits for the GIL to free a callback. Two of 15 launches of a
        script that destroys its group and returns hung this way.
        """
        if self not in self.recorder.held:
            self.recorder.held.append(self)
        return BACKEND

    @harmless
    def look_for_ring(self) -> None:
        """If this group's NCCL communicator was just made, record the order of its ranks on the
        ring."""
        log = self.recorder.nccl_log
        if self.ring_wanted and self.batch is None and log is not None:
            ring = log.ring(len(self.record.ranks))
            if ring:
                self.ring_wanted = False
                self.recorder.note_ring(
                    self.record, [self.record.ranks[group_rank] for group_rank in ring]
                )

    def _start_coalescing(self, device: torch.device) -> None:
        self.recorder.note_coalesced(self.record)
        self.batch = []
        self.real._start_coalescing(device)

    def _end_coalescing(self, device: torch.device) -> Any:
        calls, self.batch = self.batch or [], None
        waits = self.recorder.waits
        if calls:  # where the batch is launched, NCCL connects ranks that it has not yet
            waits.begin(calls, inside=True)
        try:
            work = self.real._end_coalescing(device)
        except BaseException as error:
            for call in calls:
                self.recorder.refuse(call, error)
            raise
        finally:
            if calls:
                waits.end(calls, completed=False)
        self.look_for_ring()
        if not calls or work is None:
            self.recorder.follow_enqueued(calls)
            return work
        self.recorder.follow_batch(calls, work)
        for call in calls:
            if call.kind.awaited_at(self.rank()):
                self.recorder.misuse.returned(call.id)
        return RecordedWork(self.recorder, work, calls)

    def get_group_store(self) -> Any:
        return self.real.get_group_store()

    def split_group(self, new_ranks: list[int], *args: Any, **kwargs: Any) -> Any:
        """dist.split_group: the backend makes the new group, on all ranks of this one."""
        split = self.real.split_group(new_ranks, *args, **kwargs)
        if split is None:
            return split
        return self._wrapped(split, new_ranks) or split

    @harmless
    def _wrapped(self, split: dist.ProcessGroup, group_ranks: list[int]) -> RecordingGroup:
        ranks = [self.record.ranks[group_rank] for group_rank in group_ranks]
        readers = {name: (record.backend, record.reader) for name, record in self.records.items()}
        label, desc = self.recorder.label_of(str(split.group_name)), str(split.group_desc)
        timeout = timedelta(microseconds=self.record.limit_ns / 1000)
        group = RecordingGroup(self.recorder, split, label, ranks, readers, desc, True, timeout)
        group._set_default_backend(KINDS[group.backend])
        for device, record in self.records.items():
            kind = torch.device(device)
            group._register_backend(kind, KINDS[record.backend], split._get_backend(kind))
        group._set_group_name(split.group_name)
        return group

    def shutdown(self) -> None:
        """destroy_process_group."""
        self.real.shutdown()
        for record in self.records.values():
            self.recorder.drain(record)

    def abort(self) -> None:
        self.real.abort()

    def set_timeout(self, timeout: timedelta) -> None:
        self.real.set_timeout(timeout)
        self._note(timeout)

    def _note(self, timeout: timedelta) -> None:
        self.record.limit_ns = round(timeout.total_seconds() * 1e9)
        self.recorder.begin_group(self.record, *self.about)


def _method(name: str) -> Callable[..., dist.Work]:
    method = METHODS[name]
    several = name in COALESCED

    def unrecorded(self: RecordingGroup, *args: object, **kwargs: object) -> dist.Work:
        work: dist.Work | None = getattr(self.real, name)(*args, **kwargs)
        return complete_work(args[:1]) if work is None else work

    def recorded(self: RecordingGroup, *args: object, **kwargs: object) -> dist.Work:
        refuse_asked()
        recorder = self.recorder
        turn = recorder.own.turn
        try:
            if self.only:
                record = self.record
            else:
                record = self.record_of(method, args)
            if record.reader.late and record.reader.capturing():
                recorder.note_captured(record)
                return unrecorded(self, *args, **kwargs)
            # A C++ thread (autograd, for a GPU) has no outer frame, and sys._getframe(1) would
            # raise.
            frame = sys._getframe().f_back
            call = recorder.describe(record, method, args, kwargs, frame, turn)
        except Exception as error:  # issue a call even if the recorder cannot describe it
            self.log.give_up(error)
            return unrecorded(self, *args, **kwargs)
        kind = call.kind
        target = getattr(self.nearer() if kind.direct else self.real, name)
        if kind.by_reducer:
            recorder.reducer.expect(turn)
        if record.reader.late:
            record.reader.begins(call)
        # The host may wait inside the call; a hang there is known only if it was written before.
        connects = record.reader.late and not kind.entered
        if kind.blocks or connects:
            recorder.waits.begin((call,), inside=not kind.blocks)
        try:
            call.work = work = target(*args, **kwargs)
        except BaseException as error:
            recorder.refuse(call, error)
            if kind.blocks or connects:
                recorder.waits.end((call,))
            raise
        if self.ring_wanted:
            self.look_for_ring()
        if several:
            recorder.note_coalesced(call.group)
        if kind.blocks or connects:
            recorder.waits.end((call,), completed=kind.blocks and work is None)
            kind.entered = True
        if self.batch is not None:
            self.batch.append(call)
        elif work is None:
            recorder.follow_enqueued((call,))
        elif kind.direct:  # only C++ waits for this Work; reducer.py records the wait
            recorder.reducer.bracket(call, turn, frame)
        else:
            recorded_work = RecordedWork(recorder, work, (call,))
            if kind.awaits and kind.awaited_at(self.rank()):
                recorder.misuse.returned(call.id)
            recorder.track(call, recorded_work, frame, turn)
            return recorded_work
        return complete_work(args[:1]) if work is None else work

    recorded.__name__ = name
    return recorded


for _name in METHODS:
    setattr(RecordingGroup, _name, _method(_name))
