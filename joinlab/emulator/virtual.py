"""What is replaced in the process of an emulated rank, so that its program meets the model.

Its host waits where a GPU's would: a method that reads a tensor first waits for the stream. Its
clocks show virtual time where the program reads them, and its sleeps take virtual time. Memory that
no one has set is zero, so that a run can be repeated.

The replacements are made once, in the process that ranks are forked from, and put in place in a
rank. A process that a rank forks gets the originals back.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from inspect import signature
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import c10d_logger
from torch.distributed import distributed_c10d as c10d
from torch.nn.parallel import DistributedDataParallel

from joinlab.emulator.link import Link
from joinlab.emulator.model_group import default_timeout
from joinlab.emulator.model_work import Futures
from joinlab.program.labels import kind_of
from joinlab.program.process_group import HOST_SYNCS, batching
from joinlab.recorder.group import BACKEND

EPOCH_NS = 1_635_724_800_000_000_000
"""First value of time.time_ns(): 1 November 2021, 0:00 UTC. Always the same, so that a run can be
repeated."""

CLOCK_NS = 1_000
"""Virtual time that reading a clock takes, so that a loop that waits for a time comes to an end."""

MAX_BYTES = 2**29
"""The most that torch.empty gives a rank for one tensor. A larger request is almost always another
call's data misread as a size."""

_MISSING = object()
_sleep, _main_thread = time.sleep, threading.main_thread


class RankState:
    """What the replacements work on: the one rank whose process this is.

    link   None outside of an emulated rank
    gpu    the GPU that it has chosen by torch.cuda.set_device
    ranks  how many there are
    pad    32 bits that no one had set
    backend  of the default group
    """

    def __init__(self) -> None:
        self.link: Link | None = None
        self.futures: Futures
        self.gpu = 0
        self.ranks = 1
        self.pad = 0
        self.backend = "nccl"

    @property
    def linked(self) -> Link:
        assert self.link is not None
        return self.link


class Patches:
    """Replacements of attributes of modules and classes: made once, set and unset as one."""

    def __init__(self, state: RankState) -> None:
        self.state = state
        self._made: list[tuple[Any, str, Any, Any]] = []  # owner, name, old value, new value
        self._is_set = False

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """`value` is to take the place of an attribute."""
        self._made.append((owner, name, vars(owner).get(name, _MISSING), value))

    def wrap(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """make(original) is to take its place."""
        self.replace(owner, name, make(getattr(owner, name)))

    def for_programs(self, owner: Any, name: str, value: Callable[..., Any]) -> None:
        """Replace a function where the program's own files call it, in the main thread; torch and
        other libraries get the original."""
        original = getattr(owner, name)

        def chosen(*args: Any, **kwargs: Any) -> Any:
            called_by = kind_of(sys._getframe(1).f_code.co_filename)
            if called_by != "program" or threading.current_thread() is not _main_thread():
                return original(*args, **kwargs)
            return value(*args, **kwargs)

        chosen.__name__ = name
        self.replace(owner, name, chosen)

    def change_arguments(self, owner: Any, name: str, **changes: Callable[[Any], Any]) -> None:
        """Call a function with other arguments: change(value) for each that is named."""
        original = getattr(owner, name)
        parameters = signature(original).parameters
        changed = [
            (list(parameters).index(argument), argument, parameters[argument].default, change)
            for argument, change in changes.items()
        ]

        def called(*args: Any, **kwargs: Any) -> Any:
            values = list(args)
            for index, argument, default, change in changed:
                if index < len(args):
                    values[index] = change(values[index])
                else:
                    kwargs[argument] = change(kwargs.get(argument, default))
            return original(*values, **kwargs)

        called.__name__ = name
        self.replace(owner, name, called)

    def set(self) -> None:
        """Put all in place."""
        if not self._is_set:
            self._is_set = True
            for owner, name, _, value in self._made:
                setattr(owner, name, value)

    def unset(self) -> None:
        """Put the originals back."""
        if self._is_set:
            self._is_set = False
            for owner, name, original, _ in reversed(self._made):
                if original is _MISSING:
                    delattr(owner, name)
                else:
                    setattr(owner, name, original)


def patch_rank(patches: Patches) -> None:
    """Prepare the replacements that both backends need."""
    state = patches.state
    for name in HOST_SYNCS:  # on gloo too: a program may make a group on NCCL there
        if hasattr(torch.Tensor, name):
            patches.wrap(torch.Tensor, name, lambda method: _synced(state, method))
    patches.wrap(torch, "equal", lambda method: _synced(state, method))
    for name in ("empty", "empty_like"):
        patches.wrap(torch, name, lambda make: _zeroed(state, make))
    patches.replace(
        c10d,
        "_get_default_timeout",
        lambda backend: default_timeout(state.backend if backend == BACKEND else str(backend)),
    )
    # asks NCCL's version
    patches.replace(c10d_logger, "_get_msg_dict", lambda *args, **kwargs: {})
    batch = batching(c10d.batch_isend_irecv)
    for module in (c10d, dist):
        patches.replace(module, "batch_isend_irecv", batch)
    _patch_ddp(patches)
    _patch_clocks(patches)


def _synced(state: RankState, method: Callable[..., Any]) -> Callable[..., Any]:
    def synced(*args: Any, **kwargs: Any) -> Any:
        state.linked.sync()
        return method(*args, **kwargs)

    synced.__name__ = getattr(method, "__name__", "synced")
    return synced


def _zeroed(state: RankState, make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def zeroed(*args: Any, **kwargs: Any) -> torch.Tensor:
        tensor = make(*args, **kwargs)
        nbytes = tensor.numel() * tensor.element_size()
        if nbytes > MAX_BYTES:  # none of it has been written to yet, so none of it takes memory
            state.linked.die(
                f"it asked for a tensor of {nbytes / 2**30:.1f} GiB, and an emulation gives at most "
                f"{MAX_BYTES / 2**30:g} GiB for one"
            )
        return tensor.zero_()

    return zeroed


def _patch_ddp(patches: Patches) -> None:
    state = patches.state
    helper: Any = DistributedDataParallel._ddp_init_helper
    builtin: Any = DistributedDataParallel._register_builtin_comm_hook

    def noted_builtin(*args: Any, **kwargs: Any) -> Any:
        state.futures.typed = True
        return builtin(*args, **kwargs)

    def made(module: Any, *args: Any, **kwargs: Any) -> None:
        helper(module, *args, **kwargs)
        if module.find_unused_parameters:
            # at::empty, which only a backward pass fills. A rank that never had one sends it to its
            # peers in join(): they leave the gradient of an unused parameter as it is where the sum
            # is 0, and set it to zeros elsewhere (initialize_local_used_map and
            # finalize_bucket_dense, reducer.cpp, v2.13.0).
            pad = torch.tensor(state.pad, dtype=torch.uint32)
            module.reducer._get_local_used_map().fill_(pad.view(torch.int32).item())

    patches.replace(DistributedDataParallel, "_register_builtin_comm_hook", noted_builtin)
    patches.replace(DistributedDataParallel, "_ddp_init_helper", made)


def _patch_clocks(patches: Patches) -> None:
    state = patches.state

    def sleep(seconds: float) -> None:
        if threading.current_thread() is _main_thread():
            state.linked.sleep(seconds)
        else:
            _sleep(seconds)

    def reader(start_ns: int, whole: bool) -> Callable[[], float]:
        def read() -> float:
            clock = state.linked.clock
            clock.work_for(CLOCK_NS)
            ns = start_ns + clock.host_ns
            return ns if whole else ns / 1e9

        return read

    patches.replace(time, "sleep", sleep)
    for name, start_ns in (("time", EPOCH_NS), ("perf_counter", 0), ("monotonic", 0)):
        patches.for_programs(time, name, reader(start_ns, whole=False))
        patches.for_programs(time, f"{name}_ns", reader(start_ns, whole=True))


def patch_futures(state: RankState) -> None:
    """Let a wait for a future in C++ be preceded by one in Python, in emulated ranks.

    Before the recorder replaces the method, so that the recorder sees the wait begin and end.
    """
    wait: Any = torch._C.Future.wait

    def waited(future: Any, *args: Any, **kwargs: Any) -> Any:
        if state.link is not None:
            state.futures.before_wait(future)
        return wait(future, *args, **kwargs)

    torch._C.Future.wait = waited  # type: ignore[assignment,method-assign]
