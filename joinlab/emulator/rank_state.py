"""The state that each rank of an emulation has of its own, as a process would.

Some of it is looked up by thread at each access (process groups, the environment, random numbers of
Python and numpy, output, clocks). The rest is one value per process, so it is swapped whenever the
baton passes (`read_swapped`), which takes 4 us.

Ranks still share state that can neither be looked up by thread nor swapped: umask, resource limits,
signal masks, open descriptors, flags of torch that are not named below (cudnn, mkldnn, autograd's
own), the locale, and what libraries keep but for names that the program sets (library_names.py).
Each rank has its own copy of the objects that the program itself reaches (copies.py). A name that
was imported from a module before the emulation (`from time import sleep`) is the original, in ranks
too, but for those of `random` and numpy.random.

Other threads of the process see the swapped values of the rank that runs, and random numbers that
they draw from torch meanwhile come from its generator.
"""

from __future__ import annotations

import logging
import multiprocessing.context
import os
import random
import sys
import warnings
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import torch
from torch._C import _distributed_c10d as dist_c
from torch._tensor_str import PRINT_OPTS
from torch.distributed import distributed_c10d as c10d
from torch.nn.parallel import DistributedDataParallel

from joinlab.emulator.scheduler import behind
from joinlab.program.bounded_output import BoundedOutput
from joinlab.program.program import as_torchrun


class World:
    """torch.distributed's table of process groups. Each rank has one."""

    def __init__(self) -> None:
        self.default_pg: object = None
        self.pg_map: dict[object, object] = {}
        self.pg_names: dict[object, object] = {}
        self.pg_group_ranks: dict[object, object] = {}
        self.pg_backend_config: dict[object, object] = {}
        self.group_count = 0
        self.tags_to_pg: dict[str, list[object]] = {}
        self.pg_to_tag: dict[object, object] = {}
        self.pg_coalesce_state: dict[object, list[object]] = {}
        self.comms: list[object] = []
        self.pg_flight_recorder_hooks: dict[object, object] = {}  # of PyTorch 2.15

    @property
    def pg_config_info(self) -> Any:
        """As torch's own World gives it."""
        return vars(c10d._World)["pg_config_info"].fget(self)


class Worlds:
    """In a rank's thread, and in those that it starts, its World; in any other the one that was
    there before."""

    def __init__(self, before: object) -> None:
        object.__setattr__(self, "_before", before)

    def __getattr__(self, name: str) -> Any:
        host = behind()
        return getattr(self._before if host is None else host.state.world, name)

    def __setattr__(self, name: str, value: object) -> None:
        host = behind()
        setattr(self._before if host is None else host.state.world, name, value)


class Environments(MutableMapping[bytes, bytes]):
    """The dict behind os.environ: in a rank's thread, and in threads that it starts, the rank's own
    variables.

    C code sees the process's variables and those that ranks set.
    """

    def __init__(self, before: dict[bytes, bytes]) -> None:
        self.before = before

    @property
    def _mine(self) -> dict[bytes, bytes]:
        host = behind()
        return self.before if host is None else host.state.environ

    def __getitem__(self, key: bytes) -> bytes:
        return self._mine[key]

    def __setitem__(self, key: bytes, value: bytes) -> None:
        self._mine[key] = value

    def __delitem__(self, key: bytes) -> None:
        del self._mine[key]

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._mine)

    def __len__(self) -> int:
        return len(self._mine)


# ---------------- swapped state


def _set_filters(filters: list[Any]) -> None:
    changed = filters != warnings.filters
    warnings.filters = filters
    if changed:  # Python then forgets which warnings it has shown
        warnings._filters_mutated()  # type: ignore[attr-defined]


def _set_level(level: int) -> None:
    logging.root.level = level
    logging.root.manager._clear_cache()  # type: ignore[attr-defined]


def _set_deterministic(chosen: tuple[bool, bool]) -> None:
    torch._C._set_deterministic_algorithms(chosen[0], warn_only=chosen[1])


_root = logging.root
_context: Any = multiprocessing.context._default_context


def read_swapped() -> list[object]:
    """The values that are swapped, as they are now. Each rank gets copies of lists and dicts, and
    may change them."""
    return [  # one expression: a function for each cost 3 us for 14 of them
        torch.get_default_dtype(),
        (
            torch._C._get_deterministic_algorithms(),
            torch._C._get_deterministic_algorithms_warn_only(),
        ),
        dist_c.get_debug_level(),
        torch.is_anomaly_enabled(),
        (*vars(PRINT_OPTS).values(),),
        torch._C._get_cudnn_benchmark(),
        torch._C._get_float32_matmul_precision(),
        warnings.filters,
        _root.level,
        sys.stdin,
        sys.stdout,
        sys.stderr,
        sys.path,
        sys.argv,
        _root.handlers,
        _root.manager.loggerDict,
        _context._actual_context,
        DistributedDataParallel._active_ddp_module,  # set while a rank is in its forward()
        os.environ,
    ]


_WRITE: tuple[Callable[[Any], Any], ...] = (
    torch.set_default_dtype,
    _set_deterministic,
    dist_c.set_debug_level,
    lambda on: torch.set_anomaly_enabled(on, torch.is_anomaly_check_nan_enabled()),
    lambda options: vars(PRINT_OPTS).update(zip(vars(PRINT_OPTS), options, strict=True)),
    torch._C._set_cudnn_benchmark,
    torch._C._set_float32_matmul_precision,
    _set_filters,
    _set_level,
    *(partial(setattr, sys, name) for name in ("stdin", "stdout", "stderr", "path", "argv")),
    partial(setattr, _root, "handlers"),
    partial(setattr, _root.manager, "loggerDict"),
    partial(setattr, _context, "_actual_context"),
    partial(setattr, DistributedDataParallel, "_active_ddp_module"),
    partial(setattr, os, "environ"),
)
"""The setter of each, in the same order."""


def write_swapped(now: list[object], values: list[object]) -> None:
    """Make them `values`; `now` is what they are."""
    for write, found, value in zip(_WRITE, now, values, strict=True):
        if found is not value and (type(value) in (list, dict, os._Environ) or found != value):
            write(value)


def _methods_of(instance: object, module: object) -> tuple[str, ...]:
    """Names of the functions of `module` that are methods of its hidden `instance`."""
    names = (
        name for name, value in vars(module).items() if getattr(value, "__self__", None) is instance
    )
    return tuple(name for name in names if not name.startswith("_"))


_NUMPY_ALONE = {"seed": "seed", "sample": "random_sample", "ranf": "random_sample"}
"""Functions of numpy.random that draw from its hidden generator and are no methods of it, and the
method of each (numpy/random/mtrand.pyx, v2.4.6)."""


GIVEN = set(map(os.fsencode, as_torchrun(0, 1, "")))
"""Environment variables that each rank is given."""

DRAWING = {
    random: _methods_of(random._inst, random),
    np.random: (*_methods_of(np.random.mtrand._rand, np.random), *_NUMPY_ALONE),
}
"""Modules that draw numbers from a hidden generator, and their functions that do."""

IMPORTED: dict[int, tuple[object, str]] = {
    id(random._inst): (random, ""),
    id(np.random.mtrand._rand): (np.random, ""),
    **{id(getattr(np.random, name)): (np.random, name) for name in _NUMPY_ALONE},
}
"""What stays of a name that a program has imported from them (`from random import randint`): by id,
the module, and the function or "" for the hidden generator."""


class RankState:
    """The own state of one rank.

    world         its process groups
    environ       its environment variables, as os.environ keeps them
    swapped       values of `read_swapped` while another rank runs
    program       its copy of what the ranks run (copies.py)
    names         values of the program's names (copies.py) while another rank runs
    library_names what it has set in modules and classes of libraries, likewise
    torch_random  state of torch's generator, likewise
    cwd           its working directory: a path, or a descriptor, which stays valid if it is removed
    output        what it printed
    at_exit       functions to call when its program is over, the last one first
    handlers      its handlers of signals, by number
    gpu           the GPU that it has chosen by torch.cuda.set_device
    begun         it has called init_process_group
    """

    def __init__(self, rank: int, ranks: int, seed: int | None) -> None:
        self.rank = rank
        self.ranks = ranks
        self.world = World()
        if seed is None:
            self._seed = int.from_bytes(os.urandom(4), "little")
        else:
            self._seed = seed
        self._drawing: dict[object, object] = {}
        self.environ: dict[bytes, bytes] = {}
        self.swapped: list[object] = []
        self.program: Any = None
        self.names: list[object] = []
        self.library_names: list[object] = []
        self.torch_random: object = None
        self.cwd: str | int = ""
        self.output = BoundedOutput()
        self.at_exit: list[Callable[[], object]] = []
        self.handlers: dict[int, object] = {}
        self.gpu = rank
        self.begun = False

    def begin(self, environ: dict[bytes, bytes], cwd: str) -> None:
        """Give the rank its own copy of the process's state, as the emulation begins."""
        generator = torch.Generator()
        generator.manual_seed(self._seed)
        self.torch_random = generator.get_state()
        self.swapped = [
            value.copy() if isinstance(value, (list, dict)) else value for value in read_swapped()
        ]
        self.cwd = cwd
        self.environ = dict(environ)
        given = as_torchrun(self.rank, self.ranks, environ.get(b"MASTER_PORT", b"29500").decode())
        self.environ |= {os.fsencode(name): os.fsencode(value) for name, value in given.items()}

    def leave(self, folder: str | int) -> None:
        """Its working directory is another one now."""
        if isinstance(self.cwd, int):
            with suppress(OSError):  # a program may close every descriptor
                os.close(self.cwd)
        self.cwd = folder

    def drawing(self, module: object) -> Any:
        """This rank's generator in place of the hidden one of `random` or `numpy.random`."""
        generator = self._drawing.get(module)
        if generator is None:
            made = (
                random.Random(self._seed)
                if module is random
                else np.random.RandomState(self._seed % 2**32)
            )
            generator = self._drawing[module] = made
        return generator

    def drawn(self, module: object, name: str) -> Any:
        """This rank's function in place of one of `random` or `numpy.random`."""
        if module is np.random:
            name = _NUMPY_ALONE.get(name, name)
        return getattr(self.drawing(module), name)
