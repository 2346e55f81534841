"""What an emulation puts into torch's and Python's global state, and takes out again.

Everything here is process-wide, though only the threads of ranks may see it: each replaced function asks whose
thread it runs in, and anybody else gets what was there before. What cannot tell threads apart (generators of random
numbers, the environment) is swapped whenever the baton passes.
"""

from __future__ import annotations

import atexit
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NoReturn

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import c10d_logger
from torch.distributed import distributed_c10d as c10d
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from joinlab.emulator.scheduler import Thread, adopt, behind, current

_MISSING = object()

_HOST_SYNCS = (
    "item", "tolist", "numpy", "cpu", "__bool__", "__float__", "__int__", "__index__", "__repr__", "__format__",
    "__array__", "__contains__", "is_nonzero", "nonzero", "equal", "allclose", "__reduce_ex__",
)  # fmt: skip
"""Methods of a tensor on a GPU that make the host wait for the stream."""


MAX_BYTES = 2**29
"""The most that torch.empty gives a rank for one tensor. Who asks for more has mostly taken another call's data for a
size, and all ranks share the memory of this one process."""


class World:
    """What torch.distributed knows of process groups: one of these for every rank."""

    def __init__(self) -> None:
        self.default_pg: Any = None
        self.pg_map: dict[Any, Any] = {}
        self.pg_names: dict[Any, Any] = {}
        self.pg_group_ranks: dict[Any, Any] = {}
        self.pg_backend_config: dict[Any, Any] = {}
        self.group_count = 0
        self.tags_to_pg: dict[str, list[Any]] = {}
        self.pg_to_tag: dict[Any, Any] = {}
        self.pg_coalesce_state: dict[Any, list[Any]] = {}
        self.comms: list[Any] = []

    @property
    def pg_config_info(self) -> Any:
        """As torch's own World gives it."""
        return vars(c10d._World)["pg_config_info"].fget(self)


class _Worlds:
    """In a rank's thread, and in those that it starts, its World; in any other the one that was there before."""

    def __init__(self, before: Any) -> None:
        object.__setattr__(self, "_before", before)

    def __getattr__(self, name: str) -> Any:
        host = behind()
        return getattr(self._before if host is None else host.own.world, name)

    def __setattr__(self, name: str, value: Any) -> None:
        host = behind()
        setattr(self._before if host is None else host.own.world, name, value)


def _methods_of(instance: Any, module: Any) -> tuple[str, ...]:
    """Names of the functions of `module` that are methods of its hidden `instance`."""
    found = (name for name, value in vars(module).items() if getattr(value, "__self__", None) is instance)
    return tuple(name for name in found if not name.startswith("_"))


_RANDOM = {random: _methods_of(random._inst, random), np.random: _methods_of(np.random.mtrand._rand, np.random)}
"""Modules that draw numbers from a hidden generator, and their functions that do."""


class Own:
    """What a rank has of its own in an emulation, as a process would have it."""

    def __init__(self, rank: int, ranks: int, seed: int | None) -> None:
        self.world = World()
        self._seed = int.from_bytes(os.urandom(4), "little") if seed is None else seed
        self._drawing: dict[Any, Any] = {}
        generator = torch.Generator()
        generator.manual_seed(self._seed)
        self.torch_random = generator.get_state()
        self.dtype = torch.get_default_dtype()
        self.environ: Any = dict(os.environ._data)  # type: ignore[attr-defined]
        numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks}
        for name, number in numbers.items():
            self.environ[os.environ.encodekey(name)] = os.environ.encodevalue(str(number))
        self.output: list[str] = []
        self.at_exit: list[Callable[[], Any]] = []

    def drawing(self, module: Any) -> Any:
        """This rank's generator in place of the hidden one of `random` or `numpy.random`."""
        found = self._drawing.get(module)
        if found is None:
            made = random.Random(self._seed) if module is random else np.random.RandomState(self._seed % 2**32)
            found = self._drawing[module] = made
        return found


def _chosen(before: Any, name: str, make: Callable[[Any], Callable[..., Any]]) -> Callable[..., Any]:
    """A function that is make(host) in the threads of ranks, and `before` in all others."""

    def chosen(*args: Any, **kwargs: Any) -> Any:
        host = current()
        return before(*args, **kwargs) if host is None else make(host)(*args, **kwargs)

    chosen.__name__ = name
    return chosen


def _draws(module: Any, name: str) -> Callable[..., Any]:
    return _chosen(getattr(module, name), name, lambda host: getattr(host.own.drawing(module), name))


_DRAWS = {module: {name: _draws(module, name) for name in names} for module, names in _RANDOM.items()}
"""What stands in these modules during an emulation: in a rank's thread, its own generator."""


class Isolation:
    """Installs everything on entering, restores everything on leaving. One at a time per process."""

    def __init__(self, owns: Sequence[Own], streams: bool) -> None:
        self._owns = owns  # of all ranks
        self._streams = streams  # some waits of the host are waits for a stream
        self._undo: list[Callable[[], Any]] = []

    def __enter__(self) -> Isolation:
        try:
            self._install()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        while self._undo:
            self._undo.pop()()

    def switched(self, old: Any, new: Any) -> None:
        """The baton passes from one host to another (None: to nobody): swap what is process-wide."""
        if old is not None:
            old.own.torch_random = torch.default_generator.get_state()
            old.own.dtype = torch.get_default_dtype()
        if new is None:
            return
        own = new.own
        torch.default_generator.set_state(own.torch_random)
        if own.dtype is not torch.get_default_dtype():
            torch.set_default_dtype(own.dtype)
        os.environ._data = os.environb._data = own.environ  # type: ignore[attr-defined]

    # ------------------------------------------------------------------------------------ installing

    def _set(self, owner: Any, name: str, value: Any) -> None:
        before = vars(owner).get(name, _MISSING)
        if before is _MISSING:
            self._undo.append(lambda: delattr(owner, name))
        else:
            self._undo.append(lambda: setattr(owner, name, before))
        setattr(owner, name, value)

    def _for_ranks(self, owner: Any, name: str, make: Callable[[Any], Callable[..., Any]]) -> None:
        """Replace a function in the threads of ranks: make(host) returns what stands there."""
        self._set(owner, name, _chosen(getattr(owner, name), name, make))

    def _install(self) -> None:
        self._keep_globals()
        for module, draws in _DRAWS.items():
            vars(module).update(draws)
        self._set(c10d, "_world", _Worlds(c10d._world))
        isolate = torch._C._distributed_c10d._set_thread_isolation_mode  # type: ignore[attr-defined]
        self._undo.append(lambda: isolate(False))
        isolate(True)
        for module in (c10d, dist):
            self._for_ranks(module, "init_process_group", lambda host: _refuse_init)
            self._for_ranks(module, "batch_isend_irecv", lambda host: host.batch_isend_irecv)
        self._for_ranks(c10d, "_get_default_timeout", lambda host: lambda backend: timedelta(minutes=10))  # of NCCL
        self._for_ranks(c10d_logger, "_get_msg_dict", lambda host: lambda *args, **kwargs: {})  # asks NCCL's version
        for name in ("empty", "empty_like"):  # whatever happens to lie in memory would differ from run to run
            self._for_ranks(torch, name, _zeroed(getattr(torch, name)))
        self._patch_spans()
        self._patch_waits()
        self._patch_process()
        for name in ("stdout", "stderr"):
            self._set(sys, name, _Output(getattr(sys, name)))

    def _keep_globals(self) -> None:
        state, dtype, threads = torch.default_generator.get_state(), torch.get_default_dtype(), torch.get_num_threads()
        python, legacy, cwd = random.getstate(), np.random.get_state(), os.getcwd()
        environ = os.environ._data  # type: ignore[attr-defined]
        functions = [(vars(module), dict(vars(module))) for module in (random, np.random)]

        def restore() -> None:
            torch.default_generator.set_state(state)
            torch.set_default_dtype(dtype)
            if torch.get_num_threads() != threads:
                torch.set_num_threads(threads)
            for names, before in functions:
                names.update({name: before[name] for name in before if names.get(name) is not before[name]})
            random.setstate(python)
            np.random.set_state(legacy)
            os.environ._data = os.environb._data = environ  # type: ignore[attr-defined]
            for own in self._owns:
                _undo_environ(environ, own.environ)
            if os.getcwd() != cwd:
                os.chdir(cwd)

        self._undo.append(restore)
        if threads != 1:
            torch.set_num_threads(1)  # as in a launched rank: sums are then made in the same order

    def _patch_spans(self) -> None:
        forward, backward = DistributedDataParallel.forward, torch.autograd.backward

        def counted_forward(module: Any, *args: Any, **kwargs: Any) -> Any:
            host = current()
            if host is None:
                return forward(module, *args, **kwargs)  # type: ignore[no-untyped-call]
            return host.progress.forward(module, sys._getframe(1), lambda: forward(module, *args, **kwargs))  # type: ignore[no-untyped-call]

        def counted_backward(*args: Any, **kwargs: Any) -> None:
            host = current()
            if host is None:
                return backward(*args, **kwargs)
            host.progress.backward(sys._getframe(1), lambda: backward(*args, **kwargs))
            return None

        builtin = DistributedDataParallel._register_builtin_comm_hook

        def noted_builtin(module: Any, *args: Any, **kwargs: Any) -> Any:
            host = current()
            if host is not None:
                host.reducer.typed_futures = True
            return builtin(module, *args, **kwargs)  # type: ignore[no-untyped-call]

        self._set(DistributedDataParallel, "forward", counted_forward)
        self._set(DistributedDataParallel, "_register_builtin_comm_hook", noted_builtin)
        self._set(torch.autograd, "backward", counted_backward)

        def begin(*_: Any) -> None:
            host = current()
            if host is not None:
                host.progress.begin_step(sys._getframe(2))

        def end(*_: Any) -> None:
            host = current()
            if host is not None:
                host.progress.end_step()

        for handle in (register_optimizer_step_pre_hook(begin), register_optimizer_step_post_hook(end)):
            self._undo.append(handle.remove)

    def _patch_waits(self) -> None:
        wait = torch._C.Future.wait

        def pumped(future: Any, *args: Any, **kwargs: Any) -> Any:
            host = current()
            if host is not None:
                host.reducer.before_wait(future)
            return wait(future, *args, **kwargs)

        self._set(torch._C.Future, "wait", pumped)
        if not self._streams:
            return
        for name in _HOST_SYNCS:
            self._set(torch.Tensor, name, _synced(getattr(torch.Tensor, name)))
        self._set(torch, "equal", _synced(torch.equal))
        self._for_ranks(torch.cuda, "synchronize", lambda host: lambda device=None: host.waits.sync())

    def _patch_process(self) -> None:
        """What would end, delay or outlive a rank's process must not do so to this one."""
        self._for_ranks(time, "sleep", lambda host: host.waits.sleep)
        self._for_ranks(os, "_exit", lambda host: host.exit_process)
        self._for_ranks(os, "abort", lambda host: lambda: host.die_of(signal.SIGABRT))
        kill, register, start = os.kill, atexit.register, Thread.start

        def started(thread: Thread) -> None:
            adopt(thread)
            start(thread)

        self._set(Thread, "start", started)

        def kill_rank(host: Any) -> Callable[[int, int], None]:
            return lambda pid, number: host.die_of(number) if pid == os.getpid() and number else kill(pid, number)

        def register_for(host: Any) -> Callable[..., Any]:
            def register_here(function: Any, *args: Any, **kwargs: Any) -> Any:
                host.own.at_exit.append(lambda: function(*args, **kwargs))
                return function

            return register_here

        assert register is atexit.register
        self._for_ranks(os, "kill", kill_rank)
        self._for_ranks(atexit, "register", register_for)


def _synced(method: Callable[..., Any]) -> Callable[..., Any]:
    def synced(*args: Any, **kwargs: Any) -> Any:
        host = current()
        if host is not None:
            host.waits.sync()
        return method(*args, **kwargs)

    synced.__name__ = method.__name__
    return synced


def _zeroed(make: Callable[..., torch.Tensor]) -> Callable[[Any], Callable[..., torch.Tensor]]:
    def of(host: Any) -> Callable[..., torch.Tensor]:
        def zeroed(*args: Any, **kwargs: Any) -> torch.Tensor:
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


def _refuse_init(*args: Any, **kwargs: Any) -> NoReturn:
    raise RuntimeError(
        "joinlab has already initialised the default process group of this rank. Remove the call of "
        "init_process_group from the program; dist.new_group() makes further groups."
    )


def _undo_environ(before: dict[bytes, bytes], after: dict[bytes, bytes]) -> None:
    """Variables that a rank has set were set for C code too; the three that it was given were not."""
    given = {b"RANK", b"LOCAL_RANK", b"WORLD_SIZE"}
    for name in {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)} - given:
        if name in before:
            os.putenv(name, before[name])
        else:
            os.unsetenv(name)


class _Output:
    """sys.stdout or sys.stderr: what a rank prints is kept for its Timeline."""

    def __init__(self, before: Any) -> None:
        self._before = before

    def write(self, text: str) -> int:
        """Keep it, or pass it on."""
        host = behind()
        if host is None:
            return int(self._before.write(text))
        host.printed(text)
        return len(text)

    def flush(self) -> None:
        """A rank's output needs none."""
        if behind() is None:
            self._before.flush()

    def writelines(self, lines: Any) -> None:
        """As of a file."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._before, name)
