"""Mutants: every small change of one function or class in a module, each as a module of its own.

    for text, module in mutants(path, "in_order"): ...      # `text` describes the change

A check that accepts a mutant does not test the changed code.
"""

from __future__ import annotations

import ast
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

SWAPPED: dict[type, type] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.Eq: ast.NotEq,
    ast.In: ast.NotIn,
    ast.Gt: ast.LtE,
    ast.Lt: ast.GtE,
}
RENAMED = {"max": "min", "MAX": "MIN", "maximum": "minimum", "no_sync": "join", "cat": "hstack"}


def mutants(path: Path, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each mutant of the top-level function or class `name`: what was changed, and the names of the
    changed module."""
    tree = ast.parse(path.read_text("utf-8"))
    (part,) = [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name
    ]
    part.body = [node for node in part.body if not _is_docstring(node)]
    whole = pickle.dumps(tree)  # copying by pickle takes a tenth of deepcopy's time
    for at, node in enumerate(ast.walk(part)):
        for number in range(len(list(_changes(node)))):
            changed = pickle.loads(whole)
            (place,) = [
                one
                for one in changed.body
                if isinstance(one, ast.FunctionDef | ast.ClassDef) and one.name == name
            ]
            target = list(ast.walk(place))[at]
            before = ast.unparse(target)
            list(_changes(target))[number]()
            after = ast.unparse(target)
            ast.fix_missing_locations(place)
            module = ModuleType(f"mutant_of_{path.stem}")
            exec(compile(changed, f"mutant_of_{path.name}", "exec"), vars(module))
            yield f"line {getattr(node, 'lineno', 0)}: {before!r} became {after!r}", vars(module)


def _is_docstring(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _changes(node: ast.AST) -> Iterator[Callable[[], Any]]:
    """What can be changed of the node alone; each changes it in place."""
    match node:
        case ast.Constant(value=bool(value)):
            yield lambda: setattr(node, "value", not value)
        case ast.Constant(value=int(value) | float(value)):
            yield lambda: setattr(node, "value", value + 1)
            yield lambda: setattr(node, "value", value - 1)
        case ast.UnaryOp(op=ast.USub()):
            yield lambda: setattr(node, "op", ast.UAdd())
        case ast.BinOp(op=op) | ast.AugAssign(op=op) if type(op) in SWAPPED:
            yield lambda: setattr(node, "op", SWAPPED[type(op)]())
        case ast.Compare(ops=[op]) if type(op) in SWAPPED:
            yield lambda: setattr(node, "ops", [SWAPPED[type(op)]()])
        case ast.Name(id=name) if name in RENAMED:
            yield lambda: setattr(node, "id", RENAMED[name])
        case ast.Attribute(attr=name) if name in RENAMED:
            yield lambda: setattr(node, "attr", RENAMED[name])
        case ast.IfExp(body=body, orelse=orelse):
            yield lambda: (setattr(node, "body", orelse), setattr(node, "orelse", body))
        case ast.Slice(lower=None, upper=upper) if upper is not None:
            yield lambda: setattr(node, "upper", None)
    body = getattr(node, "body", None)
    if isinstance(body, list):
        for at, statement in enumerate(body):
            if not isinstance(statement, ast.FunctionDef | ast.Return) and not _is_docstring(
                statement
            ):
                yield lambda at=at: body.__setitem__(at, ast.Pass())
