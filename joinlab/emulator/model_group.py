"""The process group of an emulated rank: it looks like torch's, and hands each call to the keeper.

    program ── RecordingGroup ── ModelGroup ── Link ··· messages ··· keeper: NcclFabric or GlooFabric

The recorder is outside of it, as it is outside gloo and NCCL in a launched rank, and has described
each call before it comes here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from joinlab.backend.clock import ISSUE_NS
from joinlab.backend.model import EmulatedCall, Knobs
from joinlab.backend.payload import parts_of
from joinlab.emulator.buckets import BucketRebuild
from joinlab.emulator.link import Link, PendingCall
from joinlab.emulator.messages import CallSent
from joinlab.emulator.model_work import Futures, ModelWork
from joinlab.gloo import checks as gloo_checks
from joinlab.nccl import checks as nccl_checks
from joinlab.ops import FACTS, POINT_TO_POINT, Op
from joinlab.program.kinds import CallKind
from joinlab.program.process_group import METHODS, NoSuchRank, options_of, values_in
from joinlab.recorder.call import Reader, RecordedCall
from joinlab.recorder.group import RecordingGroup

DEFAULT_BARRIER_TIMEOUT = timedelta(minutes=30)
"""default_pg_timeout in torch/distributed/constants.py, PyTorch v2.13.0."""


class ModelReader(Reader):
    """Reads the values that calls put in; the keeper tells when they end, and what comes out."""

    late = True

    def __init__(self, link: Link, knobs: Knobs, streams: bool) -> None:
        self._link = link
        self._knobs = knobs
        self._streams = streams

    def barrier_element(self) -> list[torch.Tensor]:
        return [self._knobs.barrier_element()] if self._streams else []

    def know(self, kind: CallKind) -> None:
        """Torch reads the results of some calls on the host as soon as it has waited for them; here
        the wait itself is the host's. No call blocks before it has a Work."""
        kind.host_waits = kind.host_waits or kind.syncs_host
        kind.blocks = False

    def before(self, call: RecordedCall, tensors: Sequence[torch.Tensor]) -> list[list[Any]] | None:
        return None if self._link.stuck else values_in(tensors)

    def after(self, call: RecordedCall) -> None:
        """The keeper has written it."""

    def after_wait(self, call: RecordedCall) -> None:
        if self._streams and not call.done and self._link.stuck:
            self._link.recorder.waits.newly_streamed.append(call.id)

    def awaited_with(self, calls: Sequence[RecordedCall]) -> Sequence[RecordedCall]:
        """It waits for the stream, and so for what that is stuck at."""
        if not self._streams:
            return calls
        return [*calls, *(call for call in self._link.stuck_at if call not in calls)]

    def watch(self, call: RecordedCall) -> bool:
        return True


class EmulatedGroup(RecordingGroup):
    """The process group that a program sees: what torch.distributed asks it beside collectives is
    the model's to answer."""

    real: ModelGroup
    own_name = ""

    @property
    def group_name(self) -> Any:
        """Its name in torch.distributed, by which functional collectives find it."""
        return self.own_name

    @property
    def group_desc(self) -> str:
        """What torch.distributed calls it besides."""
        return self.about[0]

    def _get_backend(self, device: torch.device) -> Any:
        return SimpleNamespace(
            supports_splitting=False,
            supports_time_estimate=False,
            supports_coalescing=self.real.streams,
        )

    @property
    def _device_types(self) -> list[torch.device]:
        """Asked by torch.distributed.monitored_barrier of PyTorch 2.15: only a group on the CPU has
        one."""
        return [] if self.real.streams else [torch.device("cpu")]

    def _set_sequence_number_for_group(self) -> None:
        """Each call is numbered anyway."""

    def _get_sequence_number_for_group(self) -> int:
        return self.record.numbering.issued

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """Only gloo has one; torch.distributed refuses it for others."""
        limit = DEFAULT_BARRIER_TIMEOUT if timeout is None else timeout
        self.real.link.ask(
            "monitored_barrier",
            self.record.label,
            round(limit.total_seconds() * 1e9),
            wait_all_ranks,
        )

    def __repr__(self) -> str:
        # in errors of C++: without an address
        return f"<the process group {self.record.label!r} of ranks {self.record.ranks}>"


class ModelGroup(dist.ProcessGroup):
    """One rank's end of a process group on a modelled network.

    limited  on gloo: the program gave the group a timeout, which its waits keep
    """

    def __init__(
        self,
        link: Link,
        futures: Futures,
        knobs: Knobs,
        label: str,
        ranks: Sequence[int],
        backend: str,
    ) -> None:
        place = ranks.index(link.recorder.rank)
        super().__init__(place, len(ranks))  # type: ignore[call-arg]
        self.ranks = tuple(ranks)
        self.link = link
        self.futures = futures
        self.knobs = knobs
        self.label = label
        self.place = place
        self.backend = backend
        self.streams = backend == "nccl"
        self.limited = False
        self._rebuild = BucketRebuild()
        self._batch: list[CallSent] | None = None
        self._batched: list[PendingCall] = []
        self._connected = False  # its communicator is there
        self._aborted = False

    def getBackendName(self) -> str:
        return "joinlab-model"

    # ------------------------------------------------------------------------------------ issuing

    def issue(self, name: str, args: tuple[Any, ...]) -> ModelWork:
        """A rank calls the method `name`; the recorder has just described the call."""
        link, recorder = self.link, self.link.recorder
        recorded, method = recorder.newest, METHODS[name]
        if recorded is None or recorded is link.newest:
            raise link.broken(self._undescribed(name, args))
        link.newest = recorded
        kind = recorded.kind
        if method.op is Op.BARRIER:
            ins = outs = recorded.outs or []
        else:
            ins, outs = method.tensors(args)
        self._check(recorded, name, args, ins, outs)
        enqueued_ns = link.clock.host_ns
        link.clock.work_for(ISSUE_NS)
        call = PendingCall(recorded, outs, self.streams)
        if name == "allgather" and self.streams:
            call.gathered = args[0]
        sent = link.describe(call, self.label, name, args, ins, enqueued_ns)
        if self._batch is None:
            self._submit([sent], [call], batched=False)
        else:
            self._batch.append(sent)
            self._batched.append(call)
        if kind.in_backward:
            self.futures.issued_in_backward(call)
        return self._work([call])

    def _submit(self, sent: list[CallSent], calls: list[PendingCall], batched: bool) -> None:
        """Hand calls over. Where the host may wait inside them, or the backend may refuse them by
        what only the network knows, the rank stands still until they are over there."""
        link = self.link
        pairs = any(call.op in POINT_TO_POINT for call in calls)
        meets = self.streams and (
            not self._connected or any(FACTS[call.op].pairwise for call in calls)
        )
        link.submit(sent, batched)
        if pairs or meets:
            link.ask("submitted")
            self._connected = self._connected or not pairs

    def _check(
        self,
        recorded: RecordedCall,
        name: str,
        args: tuple[Any, ...],
        ins: Sequence[torch.Tensor],
        outs: Sequence[torch.Tensor],
    ) -> None:
        """Raise what the backend refuses at once."""
        kind = recorded.kind
        era = self.knobs.era if self.streams else "gloo"
        if self._aborted and self.streams:  # errorMessage of NCCLComm::getNcclComm, NCCLUtils.cpp
            raise dist.DistBackendError(
                f"NCCL communicator was aborted on rank {self.link.recorder.rank}."
            )
        plain = all(tensor.is_contiguous() for tensor in (*ins, *outs))
        if era in kind.accepted and plain and kind.op is not Op.ALL_TO_ALL:
            return
        row: Any = kind.facts
        parts = parts_of(name, args, self.size(), self.streams)
        host: Any = SimpleNamespace(rank=self.link.recorder.rank)
        call = EmulatedCall(host, self, kind, recorded.id, row, parts, name, args)  # type: ignore[arg-type]
        if self.streams:
            nccl_checks.check(call, era)
        else:
            gloo_checks.check(call)
            kind.accepted.add(era)

    def _undescribed(self, name: str, args: tuple[Any, ...]) -> str:
        """Why the recorder could not describe a call."""
        rank = self.link.recorder.rank
        try:
            options_of(METHODS[name].op, self.ranks, args)
        except NoSuchRank as error:
            return f"rank {rank} calls {name}: {error}. Real ranks would wait for it in vain, or crash."
        return f"joinlab could not describe a call of {name} on rank {rank}"

    def _work(self, calls: list[PendingCall]) -> ModelWork:
        """A Work, which lives as long as its rank: one that was collected makes C++ wait for
        ever."""
        work = ModelWork(self, calls)
        self.link.kept.append(work)
        return work

    def check_rebuild(self, call: PendingCall) -> None:
        """If DDP's Reducer read numbers of parameters from a call: end the rank if they are another
        call's data."""
        if call.recorded.kind.rebuilds:
            wrong = self._rebuild.believe((values_in(call.outs) or [[]])[0])
            if wrong:
                self.link.die(
                    f"DDP's Reducer took another call's data for {wrong}; what a process then does is undefined"
                )

    # ----------------------------------------------------------------------- asked by the recorder

    def _start_coalescing(self, device: torch.device | None) -> None:
        if not self.streams:  # Backend::startCoalescing in Backend.hpp, PyTorch v2.13.0
            raise RuntimeError("Backend gloo does not implement startCoalescing")
        self._batch, self._batched = [], []

    def _end_coalescing(self, device: torch.device | None) -> ModelWork:
        sent, self._batch = self._batch or [], None
        calls = self._batched
        if sent:
            self._submit(sent, calls, batched=True)
        return self._work(calls)

    def shutdown(self) -> None:
        """destroy_process_group: on NCCL the host first waits for pending calls; the recorder waits
        for gloo's."""
        if self.streams:
            self.link.synchronize(self.label)

    def abort(self) -> None:
        """Give everything up, without waiting."""

    def set_timeout(self, timeout: timedelta) -> None:
        """On gloo, a timeout that the program gives (new_group, init_process_group, this) passes in
        virtual time.

        On NCCL the rank hangs, and the Timeline's meta says when and how the watchdog would end it.
        """
        self.limited = not self.streams
        self.link.note("timeout", self.label, round(timeout.total_seconds() * 1e9))


def _method(name: str) -> Callable[..., ModelWork]:
    def issued(self: ModelGroup, *args: Any, **kwargs: Any) -> ModelWork:
        return self.issue(name, (*args, *kwargs.values()))

    issued.__name__ = name
    return issued


for _name in METHODS:
    setattr(ModelGroup, _name, _method(_name))


def group_maker(
    link: Link, futures: Futures, knobs: Knobs
) -> Callable[[Mapping[str, str], str, Any], EmulatedGroup]:
    """What makes the process groups of a rank (Recorder.modelled)."""

    def make(backends: Mapping[str, str], desc: str, options: Any) -> EmulatedGroup:
        names = {*backends.values()}
        backend = names.pop() if len(names) == 1 else knobs.backend
        ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
        timeout = options.timeout if options.timeout != default_timeout(backend) else timedelta(0)
        label = link.ask(
            "group", str(options.group_id), ranks, backend, round(timeout.total_seconds() * 1e9)
        )
        real = ModelGroup(link, futures, knobs, label, ranks, backend)
        real.limited = bool(timeout) and not real.streams
        readers = {"cpu": (backend, ModelReader(link, knobs, real.streams))}
        group = EmulatedGroup(
            link.recorder, real, label, ranks, readers, desc, False, options.timeout
        )
        group.own_name = str(options.group_id)
        link.kept.append(group)
        return group

    return make


def default_timeout(backend: str) -> timedelta:
    """That of torch/distributed/constants.py (v2.13.0). Torch asks the built library, which may
    know no NCCL."""
    return timedelta(minutes=10 if backend == "nccl" else 30)
