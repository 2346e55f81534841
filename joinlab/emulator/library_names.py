"""Names that a program sets in modules and classes of libraries: each rank sees its own values.

    def program(rank, inputs):
        if rank == 0:
            dist.all_reduce = lambda *args: None     rank 1 still calls torch's

The code of a program says which names these can be (`STORE_ATTR`): only those are compared and
swapped when the baton passes, and most programs set none. Where code sets names by other means
(`setattr`, `exec`, `mock.patch`), everything that leftovers.py restores is compared, which takes 0.3 ms
each time. What is set where neither can be seen is found at the end, see leftovers.py.
"""

from __future__ import annotations

import dis
import functools
from collections.abc import Sequence
from types import CodeType, ModuleType
from typing import Any, NamedTuple

from joinlab.emulator.leftovers import MISSING, OWNERS, changes_of, differ, put

Change = tuple[Any, str, Any]
"""A module or class, a name in it, and its value (MISSING: there is none)."""

_GLOBAL = {"STORE_GLOBAL", "DELETE_GLOBAL"}
_ATTRIBUTE = {"STORE_ATTR", "DELETE_ATTR"}
_OPCODES = {dis.opmap[name] for name in _GLOBAL | _ATTRIBUTE}
_INDIRECT = {"setattr", "delattr"}
_BY_ANY_NAME = {"exec", "eval", "patch", "monkeypatch"}


class Writes(NamedTuple):
    """What a code object sets.

    globals   names of its module
    attrs     attributes, of whatever object
    paths     of those, each with the names that lead to its object (its name alone, if there are none);
              without attributes of `self`
    anything  it may set any name
    """

    globals: frozenset[str] = frozenset()
    attrs: frozenset[str] = frozenset()
    paths: frozenset[tuple[str, ...]] = frozenset()
    anything: bool = False


class LibraryNames:
    """Swaps those names between ranks.

    note    adds what a code object can set
    begin   reads the values that ranks begin with
    take    puts these back, and returns what the rank that ran has set
    give    sets what the rank that runs next had set
    """

    def __init__(self) -> None:
        self._anything = False
        self._unknown: set[str] = set()  # names set on objects that only the running code knows
        self._places: list[tuple[object, str]] = []
        self._watched: list[tuple[object, set[str], dict[str, object]]] = []

    def note(self, writes: Writes, names: dict[str, object]) -> None:
        """These are of code of the program; `names` are its globals."""
        self._anything = self._anything or writes.anything
        for *path, name in writes.paths:
            owner = _owner(path, names)
            if owner is None:
                self._unknown.add(name)
            elif isinstance(owner, (ModuleType, type)):
                self._places.append((owner, name))

    def begin(self) -> None:
        """Read them: from now on `take` and `give` swap."""
        exact: dict[object, set[str]] = {}
        for owner, name in self._places:
            exact.setdefault(owner, set()).add(name)
        if self._anything or self._unknown:
            for owner in OWNERS:
                unknown = {name for name in self._unknown if name in vars(owner)}
                if self._anything or unknown:
                    exact.setdefault(owner, set()).update(unknown)
        self._watched = [(owner, names, vars(owner).copy()) for owner, names in exact.items()]

    def take(self) -> list[Change]:
        """What the rank that ran has set."""
        taken: list[Change] = []
        for owner, names, before in self._watched:
            now = vars(owner)
            if not differ(now, before):
                continue
            changed = dict(changes_of(owner, before))
            for name in names:
                if now.get(name, MISSING) is not before.get(name, MISSING):
                    changed[name] = before.get(name, MISSING)
            for name, value in changed.items():
                taken.append((owner, name, now.get(name, MISSING)))
                put(owner, name, value)
        return taken

    @staticmethod
    def give(changes: Sequence[Change]) -> None:
        """Set what `take` has returned."""
        for owner, name, value in changes:
            put(owner, name, value)


def _owner(path: Sequence[str], names: dict[str, object]) -> object:
    """The object that this path of names leads to; None if that is known only as the code runs."""
    if not path or path[0] not in names:
        return None
    owner = names[path[0]]
    for name in path[1:]:
        owner = getattr(owner, name, None)
    return owner


@functools.lru_cache(maxsize=1024)
def writes_of(code: CodeType) -> Writes:
    """What this code sets."""
    called = {*code.co_names}
    anything = not called.isdisjoint(_BY_ANY_NAME)
    if called.isdisjoint(_INDIRECT) and _OPCODES.isdisjoint(code.co_code[::2]):
        return Writes(anything=anything)  # to disassemble it takes 50 times as long
    stored: set[str] = set()
    attrs: set[str] = set()
    paths: set[tuple[str, ...]] = set()
    path: tuple[str, ...] = ()
    for line in dis.get_instructions(code):
        name = line.argval
        of_self = name == "self" or (isinstance(name, tuple) and name[-1:] == ("self",))
        if path and path[0] in _INDIRECT and not of_self:
            anything = True
        if line.opname in _GLOBAL:
            stored.add(name)
        elif line.opname in _ATTRIBUTE:
            attrs.add(name)
            if path != ("self",):
                paths.add((*path, name))
        if of_self:
            path = ("self",)
        elif line.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            path = (name,)
        elif line.opname == "LOAD_ATTR" and path:
            path = (*path, name)
        else:
            path = ()
    return Writes(frozenset(stored), frozenset(attrs), frozenset(paths), anything)
