"""Edits: changed texts of one function of a program that may let its ranks go on together.

    if rank == 0:                    if rank == 0:
        write(path)                      write(path)
        dist.barrier()               dist.barrier()

`candidates` reads the functions in which ranks' traces diverge or calls did not fit, and yields edits,
the best first; `fixes` tries them. moving.py moves a call, deciding.py lets the ranks decide together,
arguments.py changes what a call is given, and exchanges.py makes a batch of sends and receives.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import FunctionType
from typing import Any

from joinlab.program.divergence import Test
from joinlab.story.edits.arguments import (
    UNUSED_HINTS,
    call_module,
    look_for_unused,
    name_one_root,
    pass_group,
)
from joinlab.story.edits.deciding import (
    agree_on_least,
    agree_on_most,
    decide_together,
    take_as_many,
    wrap_in_join,
)
from joinlab.story.edits.edited import Edited
from joinlab.story.edits.exchanges import batch_exchanges
from joinlab.story.edits.moving import move_behind_join, move_out, return_late
from joinlab.story.edits.target import FixTarget


def candidates(
    program: Any, tests: Sequence[Test], sites: Collection[str], errors: Iterable[str]
) -> Iterator[Edited]:
    """The edits that apply, the best first, each text once. `errors`: what ranks raised."""
    function = inspect.unwrap(getattr(program, "__func__", program))
    if not isinstance(function, FunctionType):
        return
    targets = []
    for candidate in dict.fromkeys([function, *_functions(function.__globals__)]):
        with suppress(OSError, TypeError, SyntaxError, ValueError):
            targets.append(FixTarget(candidate, tests, sites))
    models = list(dict.fromkeys(name for target in targets for name in target.models))
    for target in targets:
        target.models = models
    runners = {f"self.{target.tree.name}": target.runs(target.tree) for target in targets}
    hint = any(text in error for error in errors for text in UNUSED_HINTS)
    # Two kinds of edits may come to one text, and an edit may change nothing.
    texts = {target.text for target in targets}
    for make in (
        look_for_unused,
        batch_exchanges,
        agree_on_least,
        move_behind_join,
        call_module,
        move_out,
        pass_group,
        return_late,
        decide_together,
        wrap_in_join,
        agree_on_most,
        name_one_root,
        take_as_many,
    ):
        for target in targets:
            target.runners = runners
            if make is look_for_unused and not hint:
                continue
            # A function in which no test and no told call stands is left alone, but for the program.
            if (
                make is look_for_unused
                or target.function is function
                or target.tests
                or target.sites
            ):
                for edited in make(target):
                    if edited.after not in texts:
                        texts.add(edited.after)
                        yield edited


def _functions(names: Mapping[str, object]) -> Iterator[FunctionType]:
    """The functions and methods that a module defines."""
    for value in names.values():
        if isinstance(value, type) and value.__module__ == names.get("__name__"):
            members = [getattr(member, "fget", member) for member in vars(value).values()]
        else:
            members = [value]
        for member in members:
            member = inspect.unwrap(getattr(member, "__func__", member))
            if isinstance(member, FunctionType) and member.__globals__ is names:
                yield member
