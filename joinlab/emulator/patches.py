"""Replaces functions while an emulation runs: ranks call the replacement, all other threads the
original."""

from __future__ import annotations

import sys
from collections.abc import Callable
from inspect import signature
from typing import Any

from joinlab.emulator.leftovers import MISSING, put
from joinlab.emulator.scheduler import current
from joinlab.program.labels import owner_of

Make = Callable[[Any], Callable[..., Any]]
"""Makes the replacement for the host of the rank that calls."""


class Patches:
    """Sets attributes, and restores the old values in reverse order."""

    def __init__(self) -> None:
        self._set: list[tuple[object, str, object]] = []  # owner, name, old value

    def undo(self) -> None:
        """Put everything back."""
        while self._set:
            put(*self._set.pop())

    def set(self, owner: object, name: str, value: object) -> None:
        """Set an attribute of a module or class."""
        self._set.append((owner, name, vars(owner).get(name, MISSING)))
        setattr(owner, name, value)

    def for_ranks(self, owner: object, name: str, make: Make) -> None:
        """Replace a function in the threads of ranks: make(host) returns the replacement."""
        self.set(owner, name, chosen(getattr(owner, name), name, make))

    def given(
        self, owner: object, name: str, **changes: Callable[[object, object], object]
    ) -> None:
        """Call a function with other arguments in the threads of ranks: for each named,
        change(host, value)."""
        before = getattr(owner, name)
        known = signature(before).parameters
        changed = [
            (list(known).index(parameter), parameter, known[parameter].default, change)
            for parameter, change in changes.items()
        ]

        def make(host: object) -> Callable[..., object]:
            def given(*args: object, **kwargs: object) -> object:
                values = list(args)
                for index, parameter, default, change in changed:
                    if index < len(args):
                        values[index] = change(host, values[index])
                    else:
                        kwargs[parameter] = change(host, kwargs.get(parameter, default))
                return before(*values, **kwargs)

            return given

        self.for_ranks(owner, name, make)

    def for_programs(self, owner: object, name: str, make: Make) -> None:
        """Replace a function where the program of a rank calls it; torch and other libraries get
        the original."""
        self.set(owner, name, chosen(getattr(owner, name), name, make, programs_alone=True))


def chosen(
    before: Callable[..., object], name: str, make: Make, programs_alone: bool = False
) -> Callable[..., object]:
    """A function that is make(host) in the threads of ranks, and `before` in all others.

    programs_alone  `before` for torch and other libraries, too, whatever thread they run in
    """

    def chosen(*args: object, **kwargs: object) -> object:
        host = current()
        if host is None or (
            programs_alone and owner_of(sys._getframe(1).f_code.co_filename) != "program"
        ):
            return before(*args, **kwargs)
        return make(host)(*args, **kwargs)

    chosen.__name__ = name
    return chosen
