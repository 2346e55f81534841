"""The names of a program's own modules, for each rank: what a process of its own would have.

    counter = 0                       every rank counts from 0, in every emulation, and
    losses = []                       every rank has its own list
    model = torch.nn.Linear(1, 1)     and its own parameters

    def worker(rank, inputs):
        global counter
        counter += 1

Functions and classes stay the same objects, so isinstance() and pickle work as before. When the baton passes, the
values behind names are swapped: names of a module (or notebook) that the program is written in, and attributes of
classes defined there. A name is swapped if the program reaches it and can change it: its code, or code that it reaches,
writes the name (STORE_GLOBAL; STORE_ATTR for attributes of classes), or the value is a list, dict, set, tensor, array,
module of torch, optimizer, or an instance of one of the program's own classes. A program without such names costs
nothing more.

Ranks still share values that cannot be copied (a lock, an open file), values larger than MAX_BYTES, the contents of
closures, and names that are written indirectly (`globals()["x"] = 1`, `setattr`).
"""

from __future__ import annotations

import copy
import dis
import functools
import random
import sys
from collections import deque
from collections.abc import Sequence
from enum import Enum
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

from joinlab.program.labels import kind_of

MAX_BYTES = 2**26
"""A tensor, array or module of torch that is larger stays shared: most such data is only read."""

_DATA = (
    *(list, dict, set, bytearray, deque, random.Random, np.ndarray, np.random.Generator),
    *(torch.Tensor, torch.Generator, torch.nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler),
)
_ATOMS = frozenset((int, float, str, bool, bytes, complex, type(None)))
_MISSING: Any = object()
_STORES = {"global": (dis.opmap["STORE_GLOBAL"], dis.opmap["DELETE_GLOBAL"]), "attr": (dis.opmap["STORE_ATTR"],)}


class Namespaces:
    """The names that ranks have of their own, of one program."""

    def __init__(self, program: object) -> None:
        found = _Reached()
        found.add(program)
        self._places = found.places()
        self._before = self.read()

    def __bool__(self) -> bool:
        return bool(self._places)

    def fresh(self) -> list[Any]:
        """What a rank begins with: copies, which refer to each other as the originals do."""
        memo: dict[int, Any] = {}
        return [_copied(value, memo) for value in self._before]

    def read(self) -> list[Any]:
        """What the names stand for now."""
        return [(vars(at) if isinstance(at, type) else at).get(name, _MISSING) for at, name in self._places]

    def write(self, values: Sequence[Any]) -> None:
        """Make them stand for `values`."""
        for (owner, name), now, value in zip(self._places, self.read(), values, strict=True):
            if now is value:
                continue
            if isinstance(owner, type):
                delattr(owner, name) if value is _MISSING else setattr(owner, name, value)
            elif value is _MISSING:
                del owner[name]
            else:
                owner[name] = value

    def restore(self) -> None:
        """Make them what they were."""
        self.write(self._before)


class _Reached:
    """Walks what a program reaches in the learner's own modules, by the names in its code."""

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self._stored_attrs: set[str] = set()
        self._classes: dict[type, None] = {}
        self._names: dict[tuple[int, str], tuple[dict[str, Any], str]] = {}

    def places(self) -> list[tuple[Any, str]]:
        """The module (its dict) or class, and the name, of everything that ranks have of their own."""
        found: list[tuple[Any, str]] = list(self._names.values())
        for cls in self._classes:
            for name, value in vars(cls).items():
                plain = not name.startswith("__") and not hasattr(value, "__get__")
                if plain and (name in self._stored_attrs or _is_data(value)):
                    found.append((cls, name))
        return found

    def add(self, value: object) -> None:
        """Walk a function, class or callable object."""
        if isinstance(value, functools.partial):
            value = value.func
        if isinstance(value, (MethodType, staticmethod, classmethod)):
            value = value.__func__
        if isinstance(value, property):
            for one in (value.fget, value.fset):
                self.add(one)
        elif isinstance(value, FunctionType):
            if id(value) not in self._seen and kind_of(value.__code__.co_filename) == "program":
                self._seen.add(id(value))
                self._add_code(value.__code__, value.__globals__)
                for cell in value.__closure__ or ():
                    self.add(_contents(cell))
        elif isinstance(value, type):
            self._add_class(value)
        elif _is_own(type(value)):
            self._add_class(type(value))

    def _add_class(self, cls: type) -> None:
        for one in cls.__mro__:
            if one in self._classes or not _is_own(one):
                continue
            self._classes[one] = None
            for value in list(vars(one).values()):
                self.add(value)

    def _add_code(self, code: CodeType, names: dict[str, Any]) -> None:
        stored, attrs = _stores(code)
        self._stored_attrs |= attrs
        for name in stored:
            self._names[id(names), name] = names, name
        for name in code.co_names:
            if name in names:
                self._add_name(names, name, code)
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                self._add_code(constant, names)

    def _add_name(self, names: dict[str, Any], name: str, code: CodeType) -> None:
        value = names[name]
        if isinstance(value, ModuleType):
            if kind_of(getattr(value, "__file__", None) or "<frozen") == "program" and id(value) not in self._seen:
                for inner in code.co_names:
                    if inner in vars(value) and not isinstance(vars(value)[inner], ModuleType):
                        self._add_name(vars(value), inner, code)
            return
        if _is_data(value):
            self._names[id(names), name] = names, name
        self.add(value)


def _stores(code: CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """Names of globals and of attributes that this code writes."""
    opcodes = code.co_code[::2]
    if not any(one in opcodes for some in _STORES.values() for one in some):  # to disassemble it takes 50 times as long
        return frozenset(), frozenset()
    return _disassembled(code)


@functools.lru_cache(maxsize=1024)
def _disassembled(code: CodeType) -> tuple[frozenset[str], frozenset[str]]:
    found = [(one.opcode, one.argval) for one in dis.get_instructions(code)]
    globals_, attrs = (frozenset(name for op, name in found if op in _STORES[way]) for way in ("global", "attr"))
    return globals_, attrs


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # of a variable that has no value yet
        return None


def _is_own(cls: type) -> bool:
    """Whether a class is defined in one of the learner's modules."""
    if issubclass(cls, Enum):  # whose members are what they are
        return False
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    return cls.__module__ == "__main__" or (file is not None and kind_of(file) == "program")


def _is_data(value: object) -> bool:
    """Whether a rank could change this value in place, and have a copy of its own."""
    return isinstance(value, _DATA) or (not isinstance(value, type) and _is_own(type(value)))


def _copied(value: Any, memo: dict[int, Any]) -> Any:
    """A copy as a forked process has it; the value itself if there is none to be had."""
    if not _is_data(value) or _nbytes(value) > MAX_BYTES:
        return value
    if type(value) in (list, set) and all(type(one) in _ATOMS for one in value):
        return memo.setdefault(id(value), value.copy())  # a million numbers take 20 ms, deepcopy 300
    try:
        return copy.deepcopy(value, memo)
    except Exception:
        return value


def _nbytes(value: Any) -> int:
    if isinstance(value, torch.nn.Module):
        return sum(map(_nbytes, (*value.parameters(), *value.buffers())))
    if isinstance(value, (list, dict)):
        return sum(map(_nbytes, value.values() if isinstance(value, dict) else value))
    return int(value.nbytes) if isinstance(value, (torch.Tensor, np.ndarray)) else 0
