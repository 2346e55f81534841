"""Installs an emulation into torch's and Python's global state, and restores that state at the end.

The changes are process-wide, but only threads of ranks see them: each replaced function looks up
whose thread calls it, and is the original in any other thread.

    Isolation       installs and restores everything, swaps the state of ranks
    rank_state.py   the state that each rank has of its own
    copies.py       each rank's copy of the objects that the program reaches
    patches.py      how a function is replaced
    devices.py      the lines of a program that name a GPU
    rank_process.py calls that would end, delay or outlive a rank's process
    library_names.py  names that the program sets in libraries
    output.py       sys.stdout, stderr and stdin
    leftovers.py    undoes a program's changes to the process at the end
"""

from __future__ import annotations

import builtins
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, NoReturn

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import c10d_logger
from torch.distributed import distributed_c10d as c10d
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._device import _device_constructors

from joinlab.emulator.copies import Copies
from joinlab.emulator.devices import patch_devices
from joinlab.emulator.leftovers import Leftovers
from joinlab.emulator.output import RankStreams, no_input, output
from joinlab.emulator.patches import Patches
from joinlab.emulator.rank_process import patch_process, spare_kernel
from joinlab.emulator.rank_state import (
    DRAWING,
    GIVEN,
    Environments,
    RankState,
    Worlds,
    read_swapped,
    write_swapped,
)
from joinlab.emulator.scheduler import behind, current, forget_ranks
from joinlab.program.host_syncs import reads_host_memory
from joinlab.program.process_group import HOST_SYNCS, accept_own_groups, name_backend

_chdir = os.chdir  # the originals: ranks get others, or may put others there
_environ: Any = os.environ
_environb: Any = os.environb

_OF_PROGRAMS = {"print", "input", "open", "breakpoint", "quit", "exit", "help", "_"}
"""Builtins that a program may replace: joinlab calls none of them while ranks run."""

MAX_BYTES = 2**29
"""The most that torch.empty gives a rank for one tensor. A larger request is almost always another
call's data misread as a size, and all ranks share the memory of this process."""


class Isolation:
    """Installs everything on entering, restores everything on leaving. One at a time per process.

    states   of each rank, its own
    backend  of the default group
    program  runs in each rank, on the rank's own copies of all objects that it reaches
    copied   bytes of one rank's copies, roughly
    replaced names of builtins that joinlab needs itself and that a rank has replaced
    shared   names of libraries that one rank has set for all of them, known at the end
    """

    _installed: Isolation | None = None

    def __init__(self, states: Sequence[RankState], backend: str, program: object) -> None:
        self._states = states
        self._program = program
        self._copies: Copies
        self.copied = 0
        self._backend = backend
        self._patches = Patches()
        self._hooks: list[Any] = []  # handles of the hooks registered with torch
        self._leftovers = Leftovers()
        self._restore: Callable[[], None] = lambda: None
        self._environ: dict[bytes, bytes] = {}
        self._builtins: dict[str, object] = {}
        self.replaced: set[str] = set()
        self.shared: list[str] = []
        self._cwd: str | int = ""  # where the process is
        self._pid = os.getpid()

    def __enter__(self) -> Isolation:
        try:
            self._restore = self._keep()
            self._install()
            Isolation._installed = self
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        Isolation._installed = None
        if self._builtins:
            self._copies.library_names.take()  # of a rank that was left alone
        self._uninstall()
        # a closure that keeps all of this alive
        restore, self._restore = self._restore, lambda: None
        restore()

    def switched(self, old: Any, new: Any) -> None:
        """The baton passes from one host to another (None: to or from no rank): swap state that is
        one per process."""
        library_names = self._copies.library_names.take()
        swapped = read_swapped()
        if old is not None:
            old.state.library_names = library_names
            old.state.torch_random = torch.default_generator.get_state()
            old.state.swapped = swapped
            old.state.names = self._copies.read()
        if new is None:
            return
        self._copies.write(new.state.names)
        torch.default_generator.set_state(new.state.torch_random)
        write_swapped(swapped, new.state.swapped)
        self._copies.library_names.give(new.state.library_names)
        if new.state.cwd != self._cwd or (old is not None and old.state.cwd != self._cwd):
            self._cwd = new.state.cwd
            with suppress(OSError):  # it was removed, or its descriptor closed
                _chdir(new.state.cwd)

    def call(self, program: Callable[[], object]) -> Any:
        """Run a rank's program. If it returns or raises in a process that it has forked, that
        process ends."""
        try:
            value = program()
        except BaseException as error:
            if os.getpid() == self._pid:
                raise
            if not isinstance(error, SystemExit):
                traceback.print_exc()
            _end_child(0 if isinstance(error, SystemExit) and not error.code else 1)
        finally:  # the other ranks and this process need what a program set to None, or deleted
            for name, before in self._builtins.items():
                now = vars(builtins).get(name)
                if now is not before and (now is None or name not in _OF_PROGRAMS):
                    setattr(builtins, name, before)
                    if name not in _OF_PROGRAMS:
                        self.replaced.add(name)
        if os.getpid() != self._pid:
            _end_child(0)
        return value

    def leave_to_child(self) -> None:
        """In a process that a rank has just forked: every function is the original again, and no
        thread is a rank's.

        Only os.kill and os.killpg still refuse what would end the process that all ranks share.

        The child keeps what its rank has of its own: environment, working directory, random state,
        settings.
        """
        host = behind()
        Isolation._installed = None
        self._uninstall()
        if host is not None:
            _environ._data = _environb._data = host.state.environ
            spare_kernel(self._pid)
        for name in ("stdin", "stdout", "stderr"):
            stream = getattr(sys, name)
            if isinstance(stream, RankStreams):
                setattr(sys, name, stream.before)
        forget_ranks()

    # ---------------- keeping and restoring state

    def _keep(self) -> Callable[[], None]:
        """Read what ranks may change; return a function that restores it."""
        self._copies = Copies(self._program, len(self._states))
        self.copied = self._copies.nbytes
        state = torch.default_generator.get_state()
        legacy = np.random.get_state()
        swapped = read_swapped()
        cwd = self._cwd = os.getcwd()
        self._leftovers.read()
        environ = self._environ = _environ._data

        def restore() -> None:
            _environ._data = _environb._data = environ
            _undo_environ(environ, self._states)
            write_swapped(read_swapped(), swapped)
            self._copies.restore()
            set_names = self._leftovers.restore()
            if len(self._states) > 1:
                self.shared += set_names
            torch.default_generator.set_state(state)
            np.random.set_state(legacy)
            with suppress(OSError):  # a program may remove this one, too
                _chdir(cwd)
            for rank_state in self._states:
                rank_state.leave("")

        return restore

    # ---------------- installing

    def _install(self) -> None:
        if torch.get_num_threads() != 1:
            torch.set_num_threads(1)  # as in a launched rank: sums are then made in the same order
        _environ._data = _environb._data = Environments(self._environ)
        sys.stdin = RankStreams(sys.stdin, no_input)
        sys.stdout, sys.stderr = (RankStreams(one, output) for one in (sys.stdout, sys.stderr))
        for rank_state in self._states:
            rank_state.begin(self._environ, str(self._cwd))
        _isolate_threads(True)
        self._hooks += [
            register_optimizer_step_pre_hook(_begin_step),
            register_optimizer_step_post_hook(_end_step),
        ]
        _patch(self._patches, self._backend, self._pid)
        self._builtins = dict(vars(builtins))
        self._copies.library_names.begin()
        for rank_state in self._states:
            rank_state.program, rank_state.names = self._copies.fresh(rank_state)

    def _uninstall(self) -> None:
        self._patches.undo()
        while self._hooks:
            self._hooks.pop().remove()
        _isolate_threads(False)


_isolate_threads = torch._C._distributed_c10d._set_thread_isolation_mode  # type: ignore[attr-defined]

_device_constructors()  # torch caches this set: fill it before a rank's functions are in place


def _patch(patches: Patches, backend: str, pid: int) -> None:
    """Replace the functions and objects of which each rank has its own."""
    patches.set(c10d, "_world", Worlds(c10d._world))
    for drawing, names in DRAWING.items():
        for name in names:
            patches.for_ranks(drawing, name, _drawn(drawing, name))
    batch = accept_own_groups(c10d.batch_isend_irecv)
    for module in (c10d, dist):
        patches.for_ranks(module, "init_process_group", lambda host: host.init_process_group)
        patches.for_ranks(module, "batch_isend_irecv", lambda host: batch)
    patches.for_ranks(c10d, "_new_group_with_tag", _naming_its_backend(c10d._new_group_with_tag))
    patches.for_ranks(c10d, "_warn_not_in_group", _noting(c10d._warn_not_in_group))
    patches.for_ranks(c10d, "_get_default_timeout", lambda host: _default_timeout)
    # asks NCCL's version
    patches.for_ranks(c10d_logger, "_get_msg_dict", lambda host: lambda *args, **kwargs: {})
    if backend == "nccl":
        patch_devices(patches)
    # whatever happens to lie in memory would differ from run to run
    for name in ("empty", "empty_like"):
        patches.for_ranks(torch, name, _zeroed(getattr(torch, name)))
    _patch_spans(patches)
    _patch_waits(patches)
    patch_process(patches, pid)


def _noting(warn: Any) -> Callable[[object], Callable[..., object]]:
    def make(host: Any) -> Callable[..., object]:
        def warn_not_in_group(name: str) -> None:
            host.misuse.outside(name)
            warn(name)

        return warn_not_in_group

    return make


def _drawn(module: object, name: str) -> Callable[[Any], Callable[..., object]]:
    return lambda host: host.state.drawn(module, name)


def _begin_step(optimizer: object, *_: object) -> None:
    host = current()
    if host is not None:
        host.progress.begin_step()
        if not host.stuck:
            host.replicas.steps(optimizer)


def _end_step(optimizer: object, *_: object) -> None:
    host = current()
    if host is not None:
        host.progress.end_step()
        if not host.stuck:
            host.replicas.stepped(optimizer)


def _patch_spans(patches: Patches) -> None:
    forward: object = DistributedDataParallel.forward
    backward: object = torch.autograd.backward
    logged: Any = DistributedDataParallel._get_ddp_logging_data
    helper: Any = DistributedDataParallel._ddp_init_helper
    builtin: object = DistributedDataParallel._register_builtin_comm_hook

    def noted_builtin(host: Any) -> Any:
        host.reducer.typed_futures = True
        return builtin

    def noted_model(host: Any) -> Any:
        def made(module: Any, *args: object, **kwargs: object) -> None:
            host.replicas.made(module, str(module.process_group.group_name))
            helper(module, *args, **kwargs)
            if module.find_unused_parameters:
                # at::empty, which only a backward pass fills. A rank that never had one sends it to
                # its peers in join(): they leave the gradient of an unused parameter as it is where
                # the sum is 0, and set it to zeros elsewhere (initialize_local_used_map and
                # finalize_bucket_dense, reducer.cpp, v2.13.0).
                pad = torch.tensor(host.driver.knobs.pad, dtype=torch.uint32)
                module.reducer._get_local_used_map().fill_(pad.view(torch.int32).item())

        return made

    replaced: dict[str, Callable[[Any], Callable[..., object]]] = {
        "forward": lambda host: partial(host.progress.forward, forward),
        "_get_ddp_logging_data": lambda host: (
            lambda module: name_backend(logged(module), str(c10d.get_backend(module.process_group)))
        ),
        "_ddp_init_helper": noted_model,
        "_register_builtin_comm_hook": noted_builtin,
    }
    for name, make in replaced.items():
        patches.for_ranks(DistributedDataParallel, name, make)
    patches.for_ranks(
        torch.autograd, "backward", lambda host: partial(host.progress.backward, backward)
    )


def _patch_waits(patches: Patches) -> None:
    wait: Any = torch._C.Future.wait

    def pumped(host: Any) -> Any:
        def wait_of_rank(future: Any, *args: object, **options: object) -> Any:
            host.reducer.before_wait(future)
            return wait(future, *args, **options)

        return wait_of_rank

    def synced(method: object) -> Callable[[object], Any]:
        def of(host: Any) -> object:
            if not reads_host_memory(sys._getframe(2)):
                host.sync()
            return method

        return of

    patches.for_ranks(torch._C.Future, "wait", pumped)
    for name in HOST_SYNCS:  # on gloo too: a program may make a group on NCCL there
        patches.for_ranks(torch.Tensor, name, synced(getattr(torch.Tensor, name)))


def _naming_its_backend(make: Callable[..., object]) -> Callable[[object], Callable[..., object]]:
    """Note what the program asks of a new group: torch.distributed does not tell our default group,
    which makes it."""

    def of(host: Any) -> Callable[..., object]:
        def noted(
            ranks: Any = None,
            timeout: object = None,
            backend: object = None,
            *args: object,
            **kwargs: object,
        ) -> object:
            if not kwargs.get("use_local_synchronization"):
                host.misuse.grouped(c10d._world, ranks)
            before = host.asked_backend, host.asked_timeout
            host.asked_backend, host.asked_timeout = backend, timeout
            try:
                made = make(ranks, timeout, backend, *args, **kwargs)
                # as for a real group: calls in it then warn, and go on
                if made is c10d.GroupMember.NON_GROUP_MEMBER:
                    known: dict[Any, Any] = c10d._world.pg_group_ranks
                    known[made] = {
                        rank: group_rank for group_rank, rank in enumerate(sorted(ranks))
                    }
                return made
            finally:
                host.asked_backend, host.asked_timeout = before

        return noted

    return of


def _default_timeout(backend: str) -> timedelta:
    """torch.distributed asks the built library, which knows no NCCL here
    (torch/distributed/constants.py, v2.13.0)."""
    return timedelta(minutes=10 if str(backend) == "nccl" else 30)


def _zeroed(make: Callable[..., torch.Tensor]) -> Callable[[object], Callable[..., torch.Tensor]]:
    def of(host: Any) -> Callable[..., torch.Tensor]:
        def zeroed(*args: object, **kwargs: object) -> torch.Tensor:
            tensor = make(*args, **kwargs)
            nbytes = tensor.numel() * tensor.element_size()
            if nbytes > MAX_BYTES:  # none of it has been written to yet, so none of it takes memory
                host.die(
                    f"it asked for a tensor of {nbytes / 2**30:.1f} GiB, and an emulation gives at most "
                    f"{MAX_BYTES / 2**30:g} GiB for one"
                )
            return tensor.zero_()

        return zeroed

    return of


def _undo_environ(before: dict[bytes, bytes], states: Sequence[RankState]) -> None:
    """Undo the ranks' changes in C's environment, which has what they set: of what each was given
    only what it has set once more, as libraries do (accelerate: RANK)."""
    changed = set(GIVEN)
    for rank_state in states:
        names = before.keys() | rank_state.environ.keys()
        changed |= {name for name in names if before.get(name) != rank_state.environ.get(name)}
    for name in changed:
        if name in before:
            os.putenv(name, before[name])
        else:
            os.unsetenv(name)


def _end_child(code: int) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def _let_go_of_child() -> None:
    if Isolation._installed is not None:
        Isolation._installed.leave_to_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_of_child)
