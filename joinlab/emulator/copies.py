"""Copies every object that a program reaches for each rank, as if each were a process that received
or imported it.

    counter = 0                       every rank counts from 0, in every emulation, and
    losses = []                       every rank has its own list

    class Trainer:
        def run(self, rank, inputs):  joinlab.emulate(Trainer().run, (5, 6)): every rank has its own `self`,
            global counter            and the caller's stays as it is
            counter += 1
            self.model = DDP(...)

All of it goes through one pickler, so that two names of one object are two names of one copy:

    program ──► instances, closures, default arguments, partials ──► their functions and classes
       ▲                                                                    │ names in their code
       └───── the values of those names, and attributes of the classes ◄────┘

Code, modules and classes are not copied, nor functions that hold nothing: isinstance(), pickle and
tracing work as before. Instead, names of the program's own modules (or notebook) and attributes of
its classes stand for other values in each rank; they are swapped when the baton passes. Those are
swapped that the program reaches and can change: its code writes the name (STORE_GLOBAL; STORE_ATTR
for attributes of classes), or the value is one that is copied. A program without such names costs
nothing more.

Ranks still share names that are written indirectly (`globals()["x"] = 1`, `setattr`), and what
libraries keep.
"""

from __future__ import annotations

import _thread
import functools
import importlib
import inspect
import io
import pickle
import sys
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from contextvars import ContextVar
from enum import Enum
from logging import Logger
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import psutil
import torch

from joinlab.emulator.leftovers import MISSING, put
from joinlab.emulator.library_names import LibraryNames, writes_of
from joinlab.emulator.rank_state import IMPORTED, RankState
from joinlab.errors import ProgramError
from joinlab.program.labels import owner_of
from joinlab.program.program import program_name

LARGE = 2**26
"""The caller is warned if each rank's copy has more bytes than this."""

SHARED_STATE = {
    "accelerate": ("accelerate.state", ("PartialState", "AcceleratorState", "GradientState"))
}
"""Libraries that keep one state per process in `_shared_state` of some classes: the module, and the
classes (accelerate/state.py, v1.12.0)."""

_SHARED = (
    type,
    ModuleType,
    Enum,
    Logger,
    ContextVar,  # each rank's thread has values of its own
    torch.dtype,
    torch.device,
    torch._ops.OpOverload,
    torch._ops.OpOverloadPacket,
)
# packages whose objects belong to the kernel, or never change
_KERNEL = ("IPython", "ipykernel", "re", "typing")
_ATOMS = frozenset(
    (int, float, str, bool, bytes, complex, range, type(None), type(...), type(NotImplemented))
)
_LOCKS: dict[object, object] = {
    _thread.LockType: _thread.allocate_lock,
    _thread.RLock: _thread.RLock,
    _thread._local: _thread._local,
}
_CACHED: Any = type(functools.lru_cache(abs))


class Copies:
    """The copies of one program for `ranks` ranks. ProgramError if something cannot be copied.

    nbytes         size of one rank's copy, roughly
    library_names  names that the program sets elsewhere, not yet read
    """

    def __init__(self, program: object, ranks: int) -> None:
        pickler = _CopyPickler(program)
        self._pickled = pickler.pickled()
        self._kept = pickler.kept
        self._bindings = pickler.bindings
        self.library_names = pickler.library_names
        self._before = self.read()
        self._name = program_name(program)
        self.nbytes = len(self._pickled) + sum(one.nbytes() for one in pickler.storages)
        if self.nbytes > LARGE:
            free = psutil.virtual_memory().available
        else:
            free = sys.maxsize
        if self.nbytes * ranks > free:
            raise ProgramError(
                f"{self._name} reaches {self.nbytes / 2**20:,.0f} MB of data, and each of {ranks} ranks begins with a "
                f"copy of it; {free / 2**20:,.0f} MB are free. Make the data inside the program, or take fewer ranks."
            )

    def fresh(self, state: RankState) -> tuple[object, list[object]]:
        """A rank's copies: the program, and the values of the names. They refer to each other as
        the originals do."""
        _kept[:] = [state, *self._kept[1:]]
        try:
            unpickler = pickle.Unpickler(io.BytesIO(self._pickled))
            program = unpickler.load()
            return program, [
                MISSING if value is MISSING else unpickler.load() for value in self._before
            ]
        except Exception as error:
            raise _refusal(self._name, "something that it refers to", error) from error
        finally:
            _kept.clear()

    def read(self) -> list[object]:
        """The current values of the names."""
        return [_value_at(*binding) for binding in self._bindings]

    def write(self, values: Sequence[object]) -> None:
        """Set the names to `values`."""
        for (owner, name), now, value in zip(self._bindings, self.read(), values, strict=True):
            if now is value:
                continue
            if isinstance(owner, type):
                put(owner, name, value)
            elif value is MISSING:
                del owner[name]
            else:
                owner[name] = value

    def restore(self) -> None:
        """Restore the original values of the names."""
        self.write(self._before)


# ---------------- reading the pickle

_kept: list[Any] = []
"""While a copy is made: the rank, and the objects that are not copied. The pickle refers to them by
number."""


def _take(number: int) -> object:
    return _kept[number]


def _drawn(number: int, name: str) -> object:
    """The rank's generator or function, for one that the program imported from `random` or numpy."""
    state, module = _kept[0], _kept[number]
    return state.drawn(module, name) if name else state.drawing(module)


def _clone(number: int) -> object:
    return _kept[number].clone()


def _typed(storage: object, dtype: torch.dtype) -> object:
    return torch.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)  # type: ignore[no-untyped-call]


def _function(number: int, cells: tuple[CellType, ...]) -> FunctionType:
    of: FunctionType = _kept[number]
    made = FunctionType(of.__code__, of.__globals__, of.__name__, None, cells)
    for name in ("__annotations__", "__doc__", "__module__", "__qualname__"):
        setattr(made, name, getattr(of, name))
    return made


def _set_function(made: FunctionType, state: tuple[Any, Any, dict[str, object]]) -> None:
    made.__defaults__, made.__kwdefaults__, names = state
    made.__dict__.update(names)


def _set_cell(cell: CellType, contents: tuple[object]) -> None:
    (cell.cell_contents,) = contents


# ---------------- making the pickle


class _CopyPickler(pickle.Pickler):
    """Pickles a program and the values of the names that it reaches.

    bindings   of each of these names the module (its dict) or class, and the name
    kept       objects that are not copied, by number
    storages   of the tensors that are copied
    """

    def __init__(self, program: object) -> None:
        self._file = io.BytesIO()
        super().__init__(self._file, protocol=5)
        self._program = program
        self.bindings: list[tuple[Any, str]] = []
        self.library_names = LibraryNames()
        self.kept: list[object] = [None]  # the first one is for the rank
        self.storages: list[Any] = []
        self._known: set[object] = set()  # ids of functions, and (id, name) of bindings
        self._stored_attrs: set[str] = set()
        self._classes: dict[type, None] = {}

    def pickled(self) -> bytes:
        """The pickles of the program and of the value of each of `bindings`, one after the other."""
        self._dump(self._program, program_name(self._program))
        done = 0
        while self._add_attributes() or done < len(self.bindings):
            for owner, name in self.bindings[done:]:
                done += 1
                value = _value_at(owner, name)
                if value is not MISSING:
                    self._dump(
                        value, f"{owner.__name__}.{name}" if isinstance(owner, type) else name
                    )
        return self._file.getvalue()

    def _dump(self, value: object, name: str) -> None:
        try:
            self.dump(value)
        except Exception as error:
            raise _refusal(program_name(self._program), _culprit(value, name), error) from error

    def reducer_override(self, value: Any) -> Any:
        """How to copy an object other than a number, string or container."""
        kind = type(value)
        if getattr(value, "__module__", None) == __name__:
            return NotImplemented
        if id(value) in IMPORTED:
            module, name = IMPORTED[id(value)]
            return _drawn, (*self._keep(module)[1], name)
        self._meet(value)
        if not _is_copied(value):
            return self._keep(value)
        if kind is FunctionType:
            self.kept.append(value)
            state = value.__defaults__, value.__kwdefaults__, vars(value)
            return (
                _function,
                (len(self.kept) - 1, value.__closure__ or ()),
                state,
                None,
                None,
                _set_function,
            )
        if kind is CellType:
            contents = _contents(value)
            # a state of None is no state
            return (
                (CellType, ())
                if contents is MISSING
                else (CellType, (), (contents,), None, None, _set_cell)
            )
        if kind is MethodType:
            return kind, (value.__func__, value.__self__)
        if kind in (staticmethod, classmethod):
            return kind, (value.__func__,)
        if kind is property:
            return kind, (value.fget, value.fset, value.fdel, value.__doc__)
        if kind is _CACHED:
            return functools.lru_cache(**value.cache_parameters()), (value.__wrapped__,)
        if kind in _LOCKS:  # a process has its own, and no one holds it
            return _LOCKS[kind], ()
        if kind is weakref.ref and value() is not None:
            return kind, (value(),)
        if kind is torch.TypedStorage:
            return _typed, (value._untyped_storage, value.dtype)
        if kind is torch.UntypedStorage:
            self.storages.append(value)
            return _clone, self._keep(value)[1]
        for name in ("stdin", "stdout", "stderr"):
            if value is getattr(sys, name):
                return getattr, (sys, name)  # which by then is the rank's
        return NotImplemented

    def _keep(self, value: object) -> tuple[Callable[[int], object], tuple[int]]:
        self.kept.append(value)
        return _take, (len(self.kept) - 1,)

    # ---------------- the names that are reached

    def _meet(self, value: object) -> None:
        """Follow the names in the code of a function or class, or of an object that has such
        code."""
        if isinstance(value, FunctionType):
            if id(value) not in self._known and _is_program(value):
                self._known.add(id(value))
                self._add_code(value.__code__, value.__globals__)
        elif isinstance(value, (staticmethod, classmethod)):
            self._meet(value.__func__)
        elif isinstance(value, property):
            for one in (value.fget, value.fset, value.fdel):
                self._meet(one)
        elif isinstance(value, tuple):
            for one in value:
                self._meet(one)
        elif type(value) is functools.cached_property:
            self._meet(value.func)
        else:
            self._add_class(value if isinstance(value, type) else type(value))

    def _add_class(self, cls: type) -> None:
        self._add_library(cls.__module__)
        for one in cls.__mro__:
            if one not in self._classes and _is_own(one):
                self._classes[one] = None
                for value in list(vars(one).values()):
                    self._meet(value)

    def _add_attributes(self) -> bool:
        """Find class attributes to swap; True if there are new ones."""
        before = len(self.bindings)
        for cls in list(self._classes):
            for name, value in list(vars(cls).items()):
                inner = getattr(value, "__func__", value)
                if isinstance(inner, property):
                    swapped = any(map(_is_copied, (inner.fget, inner.fset, inner.fdel)))
                elif isinstance(inner, (FunctionType, _CACHED)):
                    code = getattr(inner, "__code__", None)  # a cached function has none of its own
                    swapped = _is_copied(inner) and (code is None or code.co_filename != "<string>")
                else:
                    holds = type(value) is functools.cached_property or _is_own(type(value))
                    plain = not name.startswith(("__", "_abc_"))
                    plain &= holds or not hasattr(value, "__get__")
                    swapped = plain and (name in self._stored_attrs or _is_copied(value))
                if swapped:
                    self._bind(cls, name)
        return len(self.bindings) > before

    def _add_code(self, code: CodeType, names: dict[str, object]) -> None:
        writes = writes_of(code)
        self.library_names.note(writes, names)
        self._stored_attrs |= writes.attrs
        for name in writes.globals:
            self._bind(names, name)
        for name in code.co_names:
            if name in names:
                self._add_name(names, name, code)
            self._add_library(name)
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                self._add_code(constant, names)

    def _add_name(self, names: dict[str, object], name: str, code: CodeType) -> None:
        value = names[name]
        if isinstance(value, ModuleType):
            self._add_library(value.__name__)
            if owner_of(getattr(value, "__file__", None) or "<frozen") == "program":
                for inner in code.co_names:
                    if inner in vars(value) and not isinstance(vars(value)[inner], ModuleType):
                        self._add_name(vars(value), inner, code)
            return
        if _is_copied(value):
            self._bind(names, name)
        self._meet(value)

    def _add_library(self, name: str) -> None:
        module, classes = SHARED_STATE.get(name.partition(".")[0], ("", ()))
        if module:
            with suppress(ImportError):
                for cls in classes:
                    self._bind(getattr(importlib.import_module(module), cls), "_shared_state")

    def _bind(self, owner: object, name: str) -> None:
        if (id(owner), name) not in self._known:
            self._known.add((id(owner), name))
            self.bindings.append((owner, name))


def _is_copied(value: Any) -> bool:
    """Whether a rank begins with a copy of this value: it could change it."""
    kind = type(value)
    if kind in _ATOMS or isinstance(value, _SHARED) or kind.__module__.partition(".")[0] in _KERNEL:
        return False
    if kind is MethodType:
        return _is_copied(value.__self__) or _is_copied(value.__func__)
    if isinstance(value, FunctionType):
        holds = any(name != "__class__" for name in value.__code__.co_freevars) or vars(value)
        defaults = (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())
        return _is_program(value) and bool(holds or any(map(_is_copied, defaults)))
    if kind is _CACHED:
        return _is_program(value.__wrapped__)
    if isinstance(value, BuiltinFunctionType):
        return _is_copied(value.__self__)
    if isinstance(value, (tuple, frozenset)) and kind in (tuple, frozenset):
        return any(map(_is_copied, value))
    return not isinstance(
        value, (types.WrapperDescriptorType, types.MethodDescriptorType, types.GenericAlias)
    )


def _is_program(value: Any) -> bool:
    """Whether a function is the learner's, or a library's wrapper of one (`@torch.no_grad()`)."""
    code = getattr(inspect.unwrap(value), "__code__", None)
    return code is not None and owner_of(code.co_filename) == "program"


def _is_own(cls: type) -> bool:
    """Whether a class is defined in one of the learner's modules."""
    if issubclass(cls, Enum):  # whose members are what they are
        return False
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    return cls.__module__ == "__main__" or (file is not None and owner_of(file) == "program")


def _value_at(owner: Any, name: str) -> object:
    return (vars(owner) if isinstance(owner, type) else owner).get(name, MISSING)


def _contents(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # of a variable that has no value yet
        return MISSING


# ---------------- what cannot be copied


def _refusal(program: str, culprit: str, error: Exception) -> ProgramError:
    return ProgramError(
        f"each rank begins with a copy of what {program} refers to, and {culprit} cannot be copied "
        f"({type(error).__name__}: {error}). It may be tied to this process, such as an open file, a generator or a "
        "process group: make it inside the program."
    )


def _culprit(value: object, name: str) -> str:
    """The innermost part of `value` that cannot be copied, as a program would write it."""
    for inner, part in _parts(value, name):
        try:
            pickler = _CopyPickler(part)
            pickler.dump(part)
        except Exception:
            return _culprit(part, inner) if len(inner) < 200 else inner
    return f"`{name}`"


def _parts(value: object, name: str) -> Iterator[tuple[str, object]]:
    if isinstance(value, MethodType):
        yield "self", value.__self__
    elif isinstance(value, FunctionType):
        yield from zip(
            value.__code__.co_freevars, map(_contents, value.__closure__ or ()), strict=True
        )
        yield from (
            (entry.name, entry.default) for entry in inspect.signature(value).parameters.values()
        )
    elif isinstance(value, (list, tuple)):
        yield from ((f"{name}[{index}]", entry) for index, entry in enumerate(value))
    elif isinstance(value, dict):
        yield from ((f"{name}[{key!r}]", entry) for key, entry in value.items())
    elif isinstance(value, functools.partial):
        yield from (
            (name, value.func),
            (f"{name}.args", value.args),
            (f"{name}.keywords", value.keywords),
        )
    elif hasattr(value, "__dict__") and not isinstance(value, (type, ModuleType)):
        yield from ((f"{name}.{key}", entry) for key, entry in vars(value).items())
