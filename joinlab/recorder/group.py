"""The recording process group: listens at the seam between a program and its backend.

A `RecordingGroup` is a Python subclass of torch's ProcessGroup that has each call written down and hands it to the
real group. The C++ Reducer calls it too, so that DDP's gradient all-reduces are seen as well as the learner's own
calls. The Work that it returns is a `RecordedWork`: the real Work decides, this one has the wait written down.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from joinlab.program.process_group import METHODS
from joinlab.recorder.events import now
from joinlab.recorder.reader import Reader
from joinlab.recorder.recorder import Call, Recorder

BACKEND = "joinlab"
"""Name under which the recording group is registered. It must be its own: DDP's logger casts a "gloo" group."""


class RecordedWork(dist.Work):
    """The Work that a RecordingGroup returns: the real one decides, this one writes down."""

    def __init__(self, recorder: Recorder, call: Call) -> None:
        super().__init__()
        self._recorder = recorder
        self._call = call

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait as the real Work does, and record it if it is the host that waits."""
        call, real = self._call, self._call.work
        self._recorder.waits_now(call)
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
        self.known: dict[tuple[Any, ...], tuple[str, str, bool, bool]] = {}
        self._seq = itertools.count()
        recorder.log.write({"e": "group", "name": label, "ranks": ranks, "backend": backend, "t": now()})

    def next_seq(self) -> int:
        """Number of the next call of this rank in this group."""
        return next(self._seq)

    def getBackendName(self) -> str:
        """Asked by C++ (DDP's logger). Not "gloo" or "nccl": it would cast this group to that class."""
        return BACKEND

    def shutdown(self) -> None:
        """destroy_process_group."""
        self.real.shutdown()
        self.recorder.drain(self)

    def abort(self) -> None:
        self.real.abort()

    def set_timeout(self, timeout: timedelta) -> None:
        self.real.set_timeout(timeout)


def _method(name: str) -> Callable[..., RecordedWork]:
    method = METHODS[name]

    def recorded(self: RecordingGroup, *args: Any, **kwargs: Any) -> RecordedWork:
        recorder = self.recorder
        call = recorder.describe(self, method, args, kwargs, sys._getframe(1))
        try:
            call.work = getattr(self.real, name)(*args, **kwargs)
        except BaseException as error:
            recorder.fail(call, error)
            raise
        work = RecordedWork(recorder, call)
        recorder.track(call, work)
        return work

    recorded.__name__ = name
    return recorded


for _name in METHODS:
    setattr(RecordingGroup, _name, _method(_name))
