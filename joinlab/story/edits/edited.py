"""A candidate: an edited function, and the program that uses it."""

from __future__ import annotations

import ast
import difflib
import inspect
from contextlib import suppress
from dataclasses import dataclass
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any

from joinlab.story.edits.target import FixTarget
from joinlab.story.lines import Edit

EDITED = " (edited)"
"""Suffix of an edited file's name."""


@dataclass(frozen=True, slots=True)
class Edited:
    """A candidate: the kind of edit, and the text before and after, of the program or of a function
    or method that it calls. `moves`: the edit moves a call; `root`: the root that it replaces."""

    kind: str
    before: FixTarget
    after: str
    moves: bool = False
    root: str = ""

    def program(self, program: Any) -> Any:
        """The program with the edit. Its functions and classes are recreated, so that they call the edited
        function."""
        function = getattr(program, "__func__", program)
        names = dict(self.before.names)
        for name, value in self.before.names.items():
            if isinstance(value, type) and value.__module__ == names.get("__name__"):
                names[name] = self._class(value, names)
            else:
                names[name] = self._made(value, names)
        made = self._function(function, names)
        if isinstance(program, MethodType):
            return MethodType(made, program.__self__)
        return made

    def _made(self, value: object, names: dict[str, object], within: CellType | None = None) -> Any:
        """Recreate a function or method of the program, also inside decorators; return any other value."""
        match value:
            case FunctionType() if (
                getattr(inspect.unwrap(value), "__globals__", 0) is self.before.names
            ):
                return self._function(value, names, within)
            case staticmethod() | classmethod():
                return type(value)(self._made(value.__func__, names, within))
            case property():
                parts = (value.fget, value.fset, value.fdel)
                return property(*(self._made(part, names, within) for part in parts))
        return value

    def _function(
        self, function: Any, names: dict[str, object], within: CellType | None = None
    ) -> FunctionType:
        code, home = function.__code__, function.__globals__
        cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
        if within is not None and "__class__" in cells:
            cells["__class__"] = within
        if wrapped := getattr(function, "__wrapped__", None):
            for name, cell in cells.items():
                with suppress(ValueError):  # an empty cell
                    if cell.cell_contents is wrapped:
                        cells[name] = CellType(self._made(wrapped, names, within))
        if function is self.before.function:
            whole = ast.parse(self.after)
            if cells:  # variables of the enclosing function, or class
                whole = ast.parse(f"def within({', '.join(cells)}): pass")
                whole.body[0].body = ast.parse(self.after).body  # type: ignore[attr-defined]
            code = compile(whole, code.co_filename + EDITED, "exec")
            for name in (*["within"][: len(cells)], self.before.tree.name):
                inner = (part for part in code.co_consts if isinstance(part, CodeType))
                code = next(part for part in inner if part.co_name == name)
        closure = tuple(cells[name] for name in code.co_freevars)
        home = names if home is self.before.names else home
        made = FunctionType(code, home, function.__name__, function.__defaults__, closure)
        made.__kwdefaults__ = function.__kwdefaults__
        made.__qualname__ = function.__qualname__
        return made

    def _class(self, old: type, names: dict[str, Any]) -> type:
        """Recreate a class of the program with its methods; return the class if it cannot be copied."""
        cell, home = CellType(), self.before.names
        space = {
            name: self._made(value, names, cell)
            for name, value in vars(old).items()
            if name not in ("__dict__", "__weakref__")
        }
        bases = tuple(
            names[base.__name__] if home.get(base.__name__) is base else base
            for base in old.__bases__
        )
        if "__slots__" in space:
            return old
        with suppress(Exception):  # a metaclass may refuse, as that of Enum does
            new: type = type(old)(old.__name__, bases, space)
            cell.cell_contents = new
            return new
        return old

    def edits(self) -> tuple[Edit, ...]:
        texts = (self.before.text, self.after)
        old, new = (
            [self.before.indent + line if line else line for line in text.splitlines()]
            for text in texts
        )
        file = self.before.function.__code__.co_filename
        blocks = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
        return tuple(
            Edit(file, self.before.first + a, tuple(old[a:b]), tuple(new[c:d]))
            for tag, a, b, c, d in blocks
            if tag != "equal"
        )
