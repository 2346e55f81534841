"""Undoes a program's changes to this process when its emulation is over.

The ranks of an emulation share this process with a notebook. A real rank's process ends and takes
its settings with it; here they would stay. Restored are:

- settings of Python: recursion limit, switch interval, garbage collection, state of `random`, locale, umask, resource
  limits, the hooks of `sys` and `threading`, the import path and its finders, names in `builtins`, replaced entries of
  `sys.modules`
- settings of torch and numpy: number of threads, print options, matmul precision, `warn_always`, error handling of
  floats, global hooks
- functions and classes that the program replaced in torch, its common classes and some modules of Python (`OWNERS`),
  functions of its own that it added there, and builtin functions that it added to classes. Other attributes stay: torch
  caches in its modules as it runs.

State that is swapped between ranks is restored by rank_state.py. Not restored: files, threads that a
program started and that still run, descriptors that it closed or replaced (`os.close(1)`), modules
that it imported.
"""

from __future__ import annotations

import builtins
import gc
import json
import locale
import logging
import math
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional
import torch.utils.data
from torch import _tensor_str
from torch.distributed import distributed_c10d as c10d
from torch.nn.parallel import DistributedDataParallel
from torch.optim import optimizer as optimizers

from joinlab.program.labels import owner_of

if sys.platform != "win32":
    import resource

MISSING: object = object()
"""Stands for the value of a name that does not exist."""

OWNERS: tuple[object, ...] = (
    *(
        torch,
        torch.Tensor,
        torch.autograd,
        torch.cuda,
        torch.optim,
        torch.optim.Optimizer,
        torch.utils.data,
    ),
    *(
        torch.nn,
        torch.nn.functional,
        torch.nn.Module,
        torch.nn.Parameter,
        torch.nn.init,
        DistributedDataParallel,
    ),
    *(value for value in vars(torch.nn).values() if isinstance(value, type)),
    *(dist, c10d, builtins, os, sys, time, random, math, json, logging, threading, np, np.random),
    *(socket, tempfile, warnings, subprocess, torch.nn.modules.module),
)
"""Modules and classes in which a program's patches are undone."""


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def _limits() -> dict[int, tuple[int, int]]:
    if sys.platform == "win32":
        return {}
    return {
        number: resource.getrlimit(number)
        for name, number in vars(resource).items()
        if name[:7] == "RLIMIT_"
    }


def _set_limits(limits: dict[int, tuple[int, int]]) -> None:
    for number, limit in limits.items():
        with suppress(ValueError, OSError):  # a hard limit that was lowered cannot be raised again
            if resource.getrlimit(number) != limit:
                resource.setrlimit(number, limit)


_GLOBAL_HOOKS = [
    hooks
    for module in (torch.nn.modules.module, optimizers)
    for name, hooks in vars(module).items()
    if name.startswith("_global_") and isinstance(hooks, dict)
]


def _refill(hooks: dict[object, object], before: dict[object, object]) -> None:
    hooks.clear()
    hooks.update(before)


_SETTINGS: tuple[tuple[Callable[[], object], Callable[[Any], object]], ...] = (
    (sys.getrecursionlimit, sys.setrecursionlimit),
    (sys.getswitchinterval, sys.setswitchinterval),
    (gc.isenabled, lambda on: gc.enable() if on else gc.disable()),
    (gc.get_threshold, lambda counts: gc.set_threshold(*counts)),
    (random.getstate, random.setstate),
    (torch.get_num_threads, torch.set_num_threads),
    (lambda: locale.setlocale(locale.LC_ALL), lambda name: locale.setlocale(locale.LC_ALL, name)),
    (_umask, os.umask),
    (_limits, _set_limits),
    (lambda: dict(vars(_tensor_str.PRINT_OPTS)), vars(_tensor_str.PRINT_OPTS).update),
    (np.get_printoptions, lambda options: np.set_printoptions(**options)),
    (np.geterr, lambda choices: np.seterr(**choices)),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (torch.is_warn_always_enabled, torch.set_warn_always),
    (socket.getdefaulttimeout, socket.setdefaulttimeout),
    (lambda: tempfile.tempdir, lambda folder: setattr(tempfile, "tempdir", folder)),
    (lambda: list(map(dict, _GLOBAL_HOOKS)), lambda before: [*map(_refill, _GLOBAL_HOOKS, before)]),
    (
        lambda: logging.root.manager.disable,
        lambda level: setattr(logging.root.manager, "disable", level),
    ),
)
"""How each is read, and how it is set."""

_HOOKS = (
    *(
        (sys, name)
        for name in ("excepthook", "displayhook", "unraisablehook", "breakpointhook", "meta_path")
    ),
    *((sys, name) for name in ("path_hooks", "stdin", "stdout", "stderr", "dont_write_bytecode")),
    *((threading, name) for name in ("excepthook", "_trace_hook", "_profile_hook")),
    (gc, "callbacks"),
)
"""Attributes that are put back, and their items, where they are lists."""


class Leftovers:
    """`read` reads all of it, `restore` puts it back."""

    def __init__(self) -> None:
        self._settings: list[object] = []
        self._hooks: list[Any] = []
        self._modules: dict[str, Any] = {}
        self._names: list[dict[str, object]] = []  # of each of OWNERS

    def read(self) -> None:
        """Remember the settings and names that a program may change."""
        self._settings = [read() for read, _ in _SETTINGS]
        self._hooks = [(owner, name, _copied(getattr(owner, name))) for owner, name in _HOOKS]
        self._modules = sys.modules.copy()
        self._names = [vars(owner).copy() for owner in OWNERS]

    def restore(self) -> list[str]:
        """Undo what the program has changed, once the emulation's own patches are gone.

        Returns the names that the program itself has set in modules and classes of libraries."""
        set_names: list[str] = []
        # none, if it was not read
        for (read, write), before in zip(_SETTINGS, self._settings, strict=False):
            if read() != before:
                write(before)
        for owner, name, (value, items) in self._hooks:
            if getattr(owner, name, None) is not value:
                setattr(owner, name, value)
            if items is not None and value != items:
                value[:] = items
        if differ(sys.modules, self._modules):
            for name, module in self._modules.items():
                if sys.modules.get(name) is not module:
                    sys.modules[name] = module
        for owner, names in zip(OWNERS, self._names, strict=False):
            if differ(vars(owner), names):
                for name, value in list(changes_of(owner, names)):
                    if not _from_library(vars(owner).get(name)):
                        set_names.append(f"{full_name(owner)}.{name}")
                    put(owner, name, value)
        return set_names


def full_name(owner: Any) -> str:
    """The name of a module or class."""
    if isinstance(owner, type):
        return f"{owner.__module__}.{owner.__qualname__}"
    return str(owner.__name__)


def put(owner: object, name: str, value: object) -> None:
    """Set a name of a module or class; MISSING: delete it."""
    if value is not MISSING:
        setattr(owner, name, value)
    elif name in vars(owner):
        delattr(owner, name)


def differ(now: Mapping[str, object], before: Mapping[str, object]) -> bool:
    """Whether names were added, removed or set anew. Lists of identical objects compare five times
    as fast as dicts."""
    try:
        return list(now) != list(before) or list(now.values()) != list(before.values())
    except Exception:  # the `==` of values that differ
        return True


def _copied(value: object) -> tuple[object, list[object] | None]:
    return value, list(value) if isinstance(value, list) else None


def changes_of(owner: object, before: dict[str, object]) -> Iterator[tuple[str, object]]:
    """Names of `owner` to put back, each with its earlier value; MISSING: there was no such name."""
    now = vars(owner)
    for name, value in before.items():
        found = now.get(name)
        if found is not value and callable(value) and not _from(found, "torch"):
            yield name, value
    for name in [name for name in now if name not in before]:
        bases = owner.__mro__[1:] if isinstance(owner, type) else ()
        hides = owner is builtins or any(name in vars(base) for base in bases)
        builtin = isinstance(owner, type) and isinstance(now[name], BuiltinFunctionType)
        if _from(now[name], "program") or builtin or (hides and not _from(now[name], "torch")):
            yield name, MISSING


def _from_library(value: object) -> bool:
    return isinstance(value, FunctionType) and not _from(value, "program")


def _from(value: object, kind: str) -> bool:
    """Whether it is a Python function of torch's own source, or of the program's. (torch._dynamo
    patches torch.)"""
    return isinstance(value, FunctionType) and owner_of(value.__code__.co_filename) == kind
