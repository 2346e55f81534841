"""What decides which edits an `if` allows: whether only some ranks take it, whether it ends by leaving
its loop or function, and which variables are also set elsewhere."""

from __future__ import annotations

import ast
from collections.abc import Collection

from joinlab.story.edits.target import FixTarget
from joinlab.story.edits.variables import names_of, overlap


def leaves(branch: ast.If) -> bool:
    """Whether a branch ends by leaving its loop, its round or the function."""
    return isinstance(branch.body[-1], ast.Break | ast.Return | ast.Continue | ast.Raise)


def is_role(target: FixTarget, test: ast.expr) -> bool:
    """Whether a rank's number alone can decide that it passes a test which others fail, as that of
    4 does in `done or rank == 4`, and not in `done and rank == 4`."""
    if isinstance(test, ast.BoolOp):
        decides = all if isinstance(test.op, ast.And) else any
        return decides(is_role(target, part) for part in test.values)
    return bool(overlap(names_of([test]), _ranks_own(target)))


def is_for_some_ranks(target: FixTarget, ignored: Collection[str] = ()) -> bool:
    """Whether the test reads nothing but the rank's number. `ignored`: names that do not count."""
    names = {read["name"] for read in target.tests[-1]["values"] if "(" not in read["name"]}
    return bool(names.difference(ignored)) and names.difference(ignored) <= _ranks_own(target)


def _ranks_own(target: FixTarget) -> set[str]:
    """The names in the test that hold the rank's number on each rank. A length may equal it."""
    own, others = set[str](), set[str]()
    for read in target.tests[-1]["values"]:
        is_rank = read["ranks"] == [read["value"]] and type(read["value"]) is int
        (own if is_rank and "(" not in read["name"] else others).add(read["name"])
    return own - others


def set_outside(target: FixTarget, *block: ast.stmt) -> set[str]:
    """The variables that the function sets outside a block, too, or is handed."""
    inside = [node for statement in block for node in ast.walk(statement)]
    names = set[str]()
    for node in {*ast.walk(target.tree)}.difference(inside):
        if isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names
