"""Installs the recorder into a process, which then records every process group that it makes.

All patches of torch are in this file and, for NCCL, in cuda_reader.py, each with its reason.
"""

from __future__ import annotations

import _thread
import os
import sys
import threading
import warnings
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.nn.parallel import DistributedDataParallel

from joinlab.program.outcome import is_silent
from joinlab.program.process_group import name_backend
from joinlab.program.uncompiled import exclude, exclude_all
from joinlab.recorder.call import ValueReader
from joinlab.recorder.group import BACKEND, KINDS, RecordingGroup
from joinlab.recorder.recorder import Recorder

DEBUG = "TORCH_DISTRIBUTED_DEBUG"


def install(recorder: Recorder, about: Mapping[str, object]) -> None:
    """Record every process group that this process creates from now on. Call once, before
    init_process_group.

    `about` goes into the log's first event: versions, command and the like.
    """
    recorder.begin(about)
    patch(recorder)


def patch(recorder: Recorder) -> None:
    """Let torch call the recorder. Once per process; `Recorder.start` begins each rank's record."""
    _patch_group_creation(recorder)
    _patch_spans(recorder)
    _patch_futures(recorder)
    _patch_thread_start(recorder)
    _hide_from_compiler()


def _patch_group_creation(recorder: Recorder) -> None:
    helper = c10d._new_process_group_helper
    # the backends, the description, and the GPU that is bound to the group
    requested: list[tuple[dict[str, str], str, torch.device | None]] = []
    debug = os.environ.get(DEBUG)
    exported: Any = dist

    def recording_helper(*args: Any, **kwargs: Any) -> object:
        if os.environ.get(DEBUG) != debug:  # torch read it before the script could set it
            exported.set_debug_level_from_env()
        # (group_size, group_rank, global_ranks_in_group, backend, store, ...)
        try:
            backend = str(kwargs["backend"] if "backend" in kwargs else args[3]).lower()
            backends = recorder.default_backends if backend == BACKEND else _backends(backend)
        except Exception as error:
            recorder.log.give_up(error)
            return helper(*args, **kwargs)
        if backends is None:
            warnings.warn(
                f"joinlab records gloo and nccl, not {backend!r}; this group goes on unrecorded",
                stacklevel=3,
            )
            return helper(*args, **kwargs)
        recorder.default_backends = recorder.default_backends or backends
        device = kwargs.get("device_id")
        requested.append((backends, kwargs.get("group_desc") or "", device))
        if "backend" in kwargs:
            kwargs["backend"] = dist.Backend(BACKEND)
        else:
            args = (*args[:3], dist.Backend(BACKEND), *args[4:])
        try:
            made = helper(*args, **kwargs)
        finally:
            requested.clear()  # a rank outside the group made none
        if device is not None and isinstance(made[0], RecordingGroup):
            made[0].look_for_ring()
        return made

    def create(options: object, backend_options: object) -> dist.ProcessGroup:
        backends, desc, device = requested[-1]
        if recorder.rehearsal is not None:
            return recorder.rehearsal(options)
        return _create_group(recorder, backends, desc, device, options, backend_options)

    warn: Any = c10d._warn_not_in_group

    def warn_not_in_group(name: str) -> None:
        recorder.misuse.outside(name)
        warn(name)

    torch_own: Any = c10d
    torch_own._warn_not_in_group = warn_not_in_group
    new_group = torch_own._new_group_with_tag

    def named_group(ranks: Any = None, *args: object, **kwargs: object) -> object:
        if not kwargs.get("use_local_synchronization"):
            recorder.misuse.grouped(torch_own._world, ranks)
        return new_group(ranks, *args, **kwargs)

    torch_own._new_group_with_tag = named_group
    get_backend = c10d.get_backend

    def real_get_backend(group: Any = None) -> Any:
        group = group or c10d._get_default_group()
        if isinstance(group, RecordingGroup):
            return dist.Backend(group.backend)
        return get_backend(group)

    dist.Backend.register_backend(BACKEND, create, extended_api=True, devices=["cpu", "cuda"])
    # PyTorch 2.15 attaches its flight recorder to other groups than those that record themselves,
    # as gloo and NCCL do.
    torch_own._FR_SELF_RECORDING_BACKENDS = {
        *getattr(c10d, "_FR_SELF_RECORDING_BACKENDS", ()),
        BACKEND,
    }
    c10d._new_process_group_helper = recording_helper
    c10d.get_backend = dist.get_backend = real_get_backend


def _backends(backend: str) -> dict[str, str] | None:
    """The backend of each type of device for init_process_group's argument; None if one is neither
    gloo nor NCCL.

    As in torch, "undefined" is gloo for the CPU and NCCL for GPUs, if there are any.
    """
    backends: Mapping[str, str] = c10d.BackendConfig(dist.Backend(backend)).get_device_backend_map()
    if not torch.cuda.is_available():
        backends = {
            device: name for device, name in backends.items() if device != "cuda" or name == "nccl"
        }
    known = {device: name for device, name in backends.items() if device in ("cpu", "cuda")}
    if known and set(known.values()) <= {"gloo", "nccl"}:
        return known
    return None


def _create_group(
    recorder: Recorder,
    backends: Mapping[str, str],
    desc: str,
    device: torch.device | None,
    options: Any,
    backend_options: object,
) -> dist.ProcessGroup:
    ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
    real, inner = _real_group(backends, ranks, device, options, backend_options)
    try:
        label = recorder.label_of(str(options.group_id))
        readers = {
            device: (name, recorder.cuda_reader() if name == "nccl" else ValueReader())
            for device, name in backends.items()
        }
        alone = next(iter(inner.values())) if len(inner) == 1 else None
        # with a GPU bound to it, NCCL makes the communicator at once
        eager = device is not None and "nccl" in backends.values()
        group = RecordingGroup(
            recorder, real, label, ranks, readers, desc, eager, options.timeout, alone
        )
    except Exception as error:
        recorder.log.give_up(error)
        return real
    _register(group, backends, device, inner)  # for calls of C++ other than collectives
    return group


def _real_group(
    backends: Mapping[str, str],
    ranks: list[int],
    device: torch.device | None,
    options: Any,
    backend_options: object,
) -> tuple[dist.ProcessGroup, dict[str, object]]:
    """The group that torch would have made, and its backends by name."""
    real = dist.ProcessGroup(options.store, options.group_rank, options.group_size)
    real._set_group_name(options.group_id)
    real._set_default_backend(KINDS[backends.get("cuda") or backends["cpu"]])
    inner: dict[str, Any] = {}  # by name of the backend
    names = set(backends.values())
    for name in names:
        if len(names) == 1:
            store = options.store
        else:
            store = c10d.PrefixStore(name, options.store)
        inner[name] = _checked(
            _create_backend(name, store, ranks, options, backend_options), store, options
        )
        if not hasattr(real, "register_pre_hook"):  # PyTorch 2.14 numbers from 0, and warns of this
            inner[name]._set_sequence_number_for_group()
    _register(real, backends, device, inner)
    return real, inner


def _register(
    group: dist.ProcessGroup,
    backends: Mapping[str, str],
    bound: torch.device | None,
    inner: Mapping[str, Any],
) -> None:
    """Bind the group to a GPU, which its backends learn when they are registered, and split_group
    and barrier ask for; torch does so with the group that it drops for ours."""
    if bound is not None:
        group.bound_device_id = bound
    for device, name in backends.items():
        if name in inner:
            group._register_backend(torch.device(device), KINDS[name], inner[name])


def _create_backend(
    name: str, store: Any, ranks: list[int], options: Any, backend_options: object
) -> object:
    rank, size = options.group_rank, options.group_size
    if name == "gloo":
        gloo = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        gloo._devices = [_gloo_device()]
        gloo._timeout = options.timeout
        return dist.ProcessGroupGloo(store, rank, size, gloo)
    nccl: Any = backend_options or dist.ProcessGroupNCCL.Options()
    nccl._timeout = options.timeout
    nccl.global_ranks_in_group = ranks
    nccl.group_name = options.group_id
    split_from = _split_from()
    if split_from is not None:
        nccl.split_from = split_from
        nccl.split_color = c10d._process_group_color(ranks)
    return dist.ProcessGroupNCCL(store, rank, size, nccl)


def _split_from() -> object:
    """The backend from whose communicator a new group's is split, as in torch's helper: where a GPU
    is bound to the default group. All ranks must do it, so the others' part is torch's."""
    torch_own: Any = c10d
    if not dist.is_initialized() or not c10d._get_default_group().bound_device_id:
        return None
    return torch_own._get_split_source(c10d._get_default_group())


def _checked(backend: object, store: object, options: Any) -> object:
    """The backend, wrapped in torch's checks under TORCH_DISTRIBUTED_DEBUG=DETAIL.

    torch's helper adds these checks only for the names "gloo" and "nccl", and gets our name.
    Without them a mismatched call would hang in a recorded job and raise in any other.
    """
    checked: Any = c10d
    if checked.get_debug_level() != checked.DebugLevel.DETAIL:
        return backend
    rank, size = options.group_rank, options.group_size
    return checked._create_process_group_wrapper(
        backend, options.group_id, store, rank, size, options.timeout
    )


def _gloo_device() -> object:
    """Loopback for ranks of one machine (the launcher sets the variable); gloo's own choice
    otherwise."""
    host = os.environ.get("JOINLAB_GLOO_HOST")
    gloo: Any = dist.ProcessGroupGloo
    if host:
        return gloo.create_device(hostname=host)
    return gloo.create_default_device()


def _patch_spans(recorder: Recorder) -> None:
    forward: Any = DistributedDataParallel.forward
    backward: Any = torch.autograd.backward

    def recorded_forward(self: object, *args: object, **kwargs: object) -> object:
        if recorder.steps.begin_forward():
            recorder.begin_step()
        spans = recorder.spans
        span = spans.forward.begin(sys._getframe(1), recorder.step_fields)
        try:
            return forward(self, *args, **kwargs)
        finally:
            spans.end(span)

    def recorded_backward(*args: object, **kwargs: object) -> None:
        steps, reducer, spans = recorder.steps, recorder.reducer, recorder.spans
        if steps.begin_backward():
            recorder.begin_step()
        span = spans.backward.begin(sys._getframe(1), recorder.step_fields)
        turn = recorder.own.turn
        outer, turn.within = turn.within, True
        if not outer:
            turn.waiting = ()  # left over from a pass that raised and was not recorded
        try:
            backward(*args, **kwargs)
        except BaseException as error:
            reducer.gave_up(error)
            raise
        finally:
            turn.within = outer
            steps.end_backward()
            if not (turn.waiting and reducer.after(turn, span)):
                spans.end(span)

    logged: Any = DistributedDataParallel._get_ddp_logging_data

    def named_logging_data(self: Any) -> object:
        return name_backend(logged(self), str(c10d.get_backend(self.process_group)))

    begin: Any = DistributedDataParallel._ddp_init_helper

    def noted_model(self: Any, *args: object, **kwargs: object) -> object:
        recorder.models.made(self, str(self.process_group.group_name))
        return begin(self, *args, **kwargs)

    DistributedDataParallel._ddp_init_helper = noted_model  # type: ignore[method-assign]
    exclude(recorded_forward, within=False)
    exclude(recorded_backward, within=False)
    DistributedDataParallel._get_ddp_logging_data = named_logging_data  # type: ignore[method-assign]
    DistributedDataParallel.forward = recorded_forward  # type: ignore[method-assign]
    torch.autograd.backward = recorded_backward
    stepping: list[int | None] = []
    from torch.optim.optimizer import (
        register_optimizer_step_post_hook,
        register_optimizer_step_pre_hook,
    )

    def begin_optimizing(optimizer: object, *_: object) -> None:
        recorder.models.steps(optimizer)
        stepping.append(recorder.spans.optimizer.begin(sys._getframe(2), recorder.step_fields))

    register_optimizer_step_pre_hook(begin_optimizing)

    def end_optimizing(optimizer: object, *_: object) -> None:
        if stepping:
            recorder.spans.end(stepping.pop())
        recorder.models.stepped(optimizer)

    register_optimizer_step_post_hook(end_optimizing)


def _patch_futures(recorder: Recorder) -> None:
    """Record waits on futures, the program's and the join hook's, one per bucket in the order of
    issue, and their callbacks."""
    wait = torch._C.Future.wait
    then = torch._C.Future.then
    add_done_callback = torch._C.Future.add_done_callback

    def recorded_then(self: Any, callback: Any) -> object:
        waits = recorder.waits
        following = then(self, waits.noting(self, callback) or callback)
        if self in waits.futures:
            waits.futures[following] = waits.futures[self]
        return following

    def recorded_callback(self: Any, callback: Any) -> None:
        add_done_callback(self, recorder.waits.noting(self, callback) or callback)

    def recorded_wait(self: Any, *args: object, **kwargs: object) -> object:
        call = recorder.waits.futures.get(self)
        if (
            sys._getframe(1).f_code.co_name == "_match_all_reduce_for_bwd_pass"
            and recorder.join_hook
        ):
            call = recorder.join_hook.popleft()
        if call is None or (call.done and call.kind.host_waits):
            return wait(self, *args, **kwargs)
        if call.kind.host_waits:
            with recorder.waits.waiting((call,)):
                return wait(self, *args, **kwargs)
        result = wait(self, *args, **kwargs)
        recorder.waits.begin_expected(call)
        call.group.reader.after_wait(call)
        return result

    for name, one in (
        ("wait", recorded_wait),
        ("then", recorded_then),
        ("add_done_callback", recorded_callback),
    ):
        exclude(one, within=False)
        setattr(torch._C.Future, name, one)


def _patch_thread_start(recorder: Recorder) -> None:
    start: Any = threading.Thread.start
    lock = threading.Lock()

    def count(by: int) -> None:
        with lock:
            recorder.waits.own_threads += by

    def counting_start(self: Any) -> None:
        # A silent thread issues no calls: it is left out of the count of threads, where it would look
        # like one that can still end a wait.
        if is_silent(self):
            run = self.run

            def counted_run() -> None:
                count(1)
                try:
                    run()
                finally:
                    count(-1)

            self.run = counted_run
        start(self)

    threading.Thread.start = counting_start  # type: ignore[method-assign]
    start_bare = _thread.start_new_thread

    def started_bare(function: Any, args: Any, *kwargs: object) -> int:
        """Return once Python counts the thread, as Thread.start does; an earlier wait would look
        like a hang."""
        if not callable(function):
            return start_bare(function, args, *kwargs)
        begun = _thread.allocate_lock()
        begun.acquire()

        def run(*args: object, **kwargs: object) -> None:
            begun.release()
            function(*args, **kwargs)

        number = start_bare(run, args, *kwargs)
        begun.acquire()
        return number

    _thread.start_new_thread = started_bare


def _hide_from_compiler() -> None:
    """Keep torch.compile from tracing the recorder with the program, which would fail at the first
    group."""
    modules = [
        module for name, module in sys.modules.items() if name.startswith("joinlab.recorder.")
    ]
    classes = [one for module in modules for one in vars(module).values() if isinstance(one, type)]
    exclude_all([*modules, *classes], "joinlab.recorder.")
