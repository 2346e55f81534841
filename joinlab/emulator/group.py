"""The process group that a rank of an emulation sees, and the Work that its calls return.

Every collective of torch.distributed and of DDP's C++ Reducer arrives here (see
program/process_group.py). The rank's `Host` records the call and passes it to the group's fabric,
which decides which calls meet. Groups and Works hold their host weakly: torch may keep them in
cycles of its own for longer than the emulation lasts.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from joinlab.backend.model import EmulatedCall, Fabric, Group
from joinlab.emulator.futures import outputs
from joinlab.emulator.host import KINDS, Host
from joinlab.gloo.fabric import GlooFabric
from joinlab.gloo.monitored import DEFAULT_TIMEOUT, monitored_barrier
from joinlab.ops import Op
from joinlab.program.log_events import CallsCoalesced, GroupMade
from joinlab.program.process_group import COALESCED, METHODS
from joinlab.program.traces import refuse_asked
from joinlab.program.uncompiled import exclude_all

BACKEND = "joinlab-emulated"
"""Backend name of this group for C++. Not "gloo" or "nccl": DDP's logger casts those."""


class EmulatedGroup(dist.ProcessGroup, Group):
    """A process group of one rank on a modelled fabric."""

    def __init__(
        self, host: Host, label: str, desc: str, ranks: Sequence[int], fabric: Fabric
    ) -> None:
        Group.__init__(self, host.rank, label, ranks, fabric)
        dist.ProcessGroup.__init__(self, self.group_rank, len(ranks))  # type: ignore[call-arg]
        self.host: Host = weakref.proxy(host)
        self.desc = desc
        self.kinds = KINDS.setdefault((self.backend, label, self.ranks), {})
        if host.asked_timeout:
            self.set_timeout(host.asked_timeout)
        self.coalescing: list[EmulatedCall] | None = None
        self.host.take(
            GroupMade(name=label, ranks=list(ranks), backend=self.backend, description=desc)
        )

    def __repr__(self) -> str:
        # in errors of C++: without an address
        return f"<the process group {self.label!r} of ranks {list(self.ranks)}>"

    @property
    def group_name(self) -> Any:
        """Its name in torch.distributed, by which functional collectives find it."""
        return self.label

    @property
    def group_desc(self) -> str:
        """What torch.distributed calls it besides."""
        return self.desc

    @property
    def _device_types(self) -> list[torch.device]:
        """Asked by torch.distributed.monitored_barrier of PyTorch 2.15: only a group on the CPU has
        one."""
        return [] if self.fabric.streams else [torch.device("cpu")]

    def getBackendName(self) -> str:
        """Asked by C++ (DDP's logger)."""
        return BACKEND

    def new_group(
        self,
        ranks: Sequence[int],
        timeout: timedelta | None = None,
        backend: str | None = None,  # PyTorch 2.14 says it here
        pg_options: object = None,
        group_name: str | None = None,
        group_desc: str | None = None,
    ) -> EmulatedGroup | None:
        """Called by torch.distributed.new_group, also for DeviceMesh, new_subgroups, ..."""
        if self.host.rank not in ranks:
            return None
        group: EmulatedGroup = self.host.open_group(str(group_name), tuple(ranks), group_desc)
        return group

    def shutdown(self) -> None:
        """destroy_process_group: it first waits for pending calls."""
        self.host.flush(self)

    def abort(self) -> None:
        """Give everything up, without waiting."""

    def set_timeout(self, timeout: timedelta) -> None:
        """On gloo, a timeout that the program gives (new_group, init_process_group, this) passes in
        virtual time.

        On NCCL the rank hangs, and the Timeline's meta says when and how the watchdog would end it.
        """
        self.limit(round(timeout.total_seconds() * 1e9))

    def _get_backend(self, device: torch.device) -> Any:
        """What torch.distributed asks of a group's backend, beside its collectives."""
        return SimpleNamespace(
            supports_splitting=False,
            supports_time_estimate=False,
            supports_coalescing=self.fabric.streams,
        )

    def _start_coalescing(self, device: torch.device | None) -> None:
        if not self.fabric.streams:  # Backend::startCoalescing in Backend.hpp, PyTorch v2.13.0
            raise RuntimeError("Backend gloo does not implement startCoalescing")
        self.coalescing = []

    def _end_coalescing(self, device: torch.device | None) -> EmulatedWork:
        calls, self.coalescing = self.coalescing or [], None
        self.host.submit(self, calls)
        return self.work_of(calls)

    def work_of(self, calls: Sequence[EmulatedCall]) -> EmulatedWork:
        """A Work, which lives as long as its rank: one that was collected makes C++ wait for
        ever."""
        for call in calls if self.coalescing is None else ():
            if call.kind.awaited_at(self.group_rank):
                self.host.misuse.returned(call.id)
        work = EmulatedWork(self.host, calls)
        self.host.keep(work)
        return work

    def _set_sequence_number_for_group(self) -> None:
        """Each call is numbered here anyway."""

    def _get_sequence_number_for_group(self) -> int:
        return self.numbering.issued

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """Only gloo has one; torch.distributed refuses it for others."""
        fabric = self.fabric
        assert isinstance(fabric, GlooFabric)
        limit = DEFAULT_TIMEOUT if timeout is None else timeout
        monitored_barrier(
            fabric, self.host, self, round(limit.total_seconds() * 1e9), wait_all_ranks
        )


def _method(name: str) -> Callable[..., EmulatedWork]:
    several = name in COALESCED

    def issued(self: EmulatedGroup, *args: object, **kwargs: object) -> EmulatedWork:
        refuse_asked()
        if several or self.coalescing is not None:
            self.host.take(CallsCoalesced(group=self.label))
        return self.work_of(
            [self.host.issue(self, name, (*args, *kwargs.values()), self.coalescing)]
        )

    issued.__name__ = name
    return issued


for _name in METHODS:
    setattr(EmulatedGroup, _name, _method(_name))


def _gather_single(
    self: EmulatedGroup, output: torch.Tensor, given: torch.Tensor, opts: Any
) -> EmulatedWork:
    """A gather into parts of one tensor (ProcessGroupNCCL.cpp, PyTorch v2.14.1)."""
    if not self.fabric.streams:  # Backend.hpp, PyTorch v2.14.1
        raise RuntimeError("Backend gloo does not support gather_single")
    if opts.rootRank == self.group_rank:
        parts = [list(output.chunk(len(self.ranks)))]
    else:
        parts = []
    return _method("gather")(self, parts, [given], opts)


for _name in ("gather_single", "gather_into_tensor"):  # the second is its older name
    setattr(EmulatedGroup, _name, _gather_single)


class EmulatedWork(dist.Work):
    """The Work of one call, or of several that were issued together."""

    def __init__(self, host: Host, calls: Sequence[EmulatedCall]) -> None:
        super().__init__()
        self.host = host  # a proxy, as its group's is
        self.calls = list(calls)

    def _asked(self) -> None:
        self.host.misuse.asked(call.id for call in self.calls)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Make the host wait (gloo, a barrier, an explicit timeout), or the stream (NCCL)."""
        self._asked()
        self.host.wait(self.calls, round(timeout.total_seconds() * 1e9))
        return True

    def get_future(self) -> torch.futures.Future[object]:
        """A future that is fulfilled in this rank's thread, when it waits. On gloo not every Work
        has one."""
        self._asked()
        if self._without_future:
            raise RuntimeError("Work::getFuture not implemented.")
        return self.host.reducer.future_of(self.calls[-1])

    @property
    def _without_future(self) -> bool:
        """Whether it is gloo's LambdaWork, SendWork or RecvWork (ProcessGroupGloo.cpp, PyTorch
        v2.13.0)."""
        ops = (Op.REDUCE_SCATTER, Op.SEND, Op.RECV)
        return any(call.op in ops and not call.group.fabric.streams for call in self.calls)

    def is_completed(self) -> bool:
        self._asked()
        completed = self.host.poll(self.calls)
        # a LambdaWork never says so, a SendWork or RecvWork when it has been waited for
        if self._without_future:
            return all(call.op is not Op.REDUCE_SCATTER and call.settled for call in self.calls)
        return completed

    def is_success(self) -> bool:
        return all(call.done and call.error is None for call in self.calls)

    def exception(self) -> Any:
        for call in self.calls:
            if call.error is not None:
                return RuntimeError(call.error)
        return None

    def result(self) -> list[torch.Tensor]:
        for call in self.calls:
            if not call.group.fabric.streams and not (call.done and call.ended_ns <= self.host.now):
                raise RuntimeError(
                    "Work needs to be completed before calling result(). Should call wait() before result()."
                )
        return [tensor for call in self.calls for tensor in outputs(call)]

    def synchronize(self) -> None:
        self.wait()

    def block_current_stream(self) -> None:
        self.wait()

    def source_rank(self) -> int:
        return self.calls[-1].source_group_rank

    def _source_rank(self) -> int:
        return self.source_rank()

    def get_future_result(self) -> torch.futures.Future[object]:
        return self.host.reducer.future_of(self.calls[-1])


exclude_all((EmulatedGroup, EmulatedWork), __name__)
