"""Which variables the statements of a function read and write."""

from __future__ import annotations

import ast
import itertools
import re
from collections import Counter
from collections.abc import Iterable

from joinlab.program.branches import names_in, stored_in


def names_of(nodes: Iterable[ast.AST]) -> set[str]:
    """The names that nodes read or write, with their attributes: "self.best", not "self"."""
    names = set[str]()
    for node in nodes:
        for text in names_in(node):
            names.update(re.findall(r"[^\W\d][\w.]*", text))
    return names


def stores_of(nodes: Iterable[ast.AST]) -> set[str]:
    """The names that statements write to, also by a call within an expression: x = seen.pop()."""
    names = set[str]()
    for node in nodes:
        names.update(stored_in(node))
        for part in ast.walk(node):
            if isinstance(part, ast.Call):
                names.update(stored_in(ast.Expr(part)))
    return names - {""}


def variables(nodes: Iterable[ast.AST]) -> Counter[str]:
    """How often each variable stands in these nodes."""
    parts = (part for node in nodes for part in ast.walk(node))
    return Counter(part.id for part in parts if isinstance(part, ast.Name))


def overlap(names: Iterable[str], others: Iterable[str]) -> set[str]:
    """The names that are also among the others, or an attribute, or the owner, of one of these."""
    return {
        name
        for name, owner in itertools.product(names, others)
        if f"{name}.".startswith(f"{owner}.") or f"{owner}.".startswith(f"{name}.")
    }
