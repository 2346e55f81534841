"""The function that an edit changes: what its text says, and how to change bytes of it."""

from __future__ import annotations

import ast
import inspect
import itertools
import sys
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from types import FunctionType
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from joinlab.program.branches import dotted, names_in
from joinlab.program.divergence import Test
from joinlab.story.edits.variables import names_of, overlap, stores_of

Change = tuple[int, int, str]
"""First byte, the byte after the last, and the text that replaces these bytes."""


_MAKERS = (torch.zeros, torch.ones, torch.full, torch.empty, torch.tensor)


class FixTarget:
    """The dedented text of one function or method, the tests in it at which traces diverge, and its
    calls that did not fit.

    Raises OSError, TypeError, SyntaxError or ValueError if the text is missing or cannot be edited.
    """

    def __init__(
        self, function: FunctionType, tests: Sequence[Test] = (), sites: Collection[str] = ()
    ) -> None:
        lines, self.first = inspect.getsourcelines(function)
        self.function, self.names = function, function.__globals__
        self.indent = lines[0][: len(lines[0]) - len(lines[0].lstrip())]
        self.read(textwrap.dedent("".join(lines)).rstrip("\n") + "\n")
        file, line_range = function.__code__.co_filename, range(self.first, self.first + len(lines))
        self.tests = [test for test in tests if test["file"] == file and test["line"] in line_range]
        if self.tests[1:] and isinstance(self.diverging(), ast.Raise):
            self.tests.pop()  # it only says what a rank raised in the branch of the one before
        self.all_fit = not sites  # and the replicas differ
        targets = (site.rpartition(":") for site in sites)
        self.sites = {
            int(n) - self.first + 1 for name, _, n in targets if name == file and n.isdecimal()
        } & {line - self.first + 1 for line in line_range}
        self.known = {**self.names, **self.imported()}
        self.models = list(dict.fromkeys(self.wrapped()))
        self.runners: dict[str, list[str]] = {}

    def read(self, text: str) -> None:
        """Replace the function's text."""
        self.text, self.bytes = text, text.encode()
        self.starts = [0, *itertools.accumulate(map(len, self.bytes.splitlines(keepends=True)))]
        (tree,) = ast.parse(text).body
        if not isinstance(tree, ast.FunctionDef):
            raise ValueError("not a function")
        self.tree = tree
        self.parents = {
            child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)
        }

    # ---------------- reading the text

    def diverging(self) -> ast.stmt | None:
        """The innermost statement at which the traces finally diverge, if it is in this text."""
        if self.tests:
            line = self.tests[-1]["line"] - self.first + 1
        else:
            line = None
        nodes = (node for node in ast.walk(self.tree) if isinstance(node, ast.stmt))
        return next((node for node in nodes if node.lineno == line), None)

    def branch(self) -> ast.If | None:
        """The `if` at which the traces finally diverge."""
        node = self.diverging()
        return node if isinstance(node, ast.If) else None

    def loop(self) -> ast.For | ast.While | None:
        """The loop whose own end makes the traces diverge: of a `for` or `while`, or of `next()` in one."""
        node: ast.AST | None = self.diverging()
        if isinstance(node, ast.For | ast.While):
            return node
        if node is None or not any(side["text"] == "StopIteration" for side in self.sides):
            return None
        while node is not None and not isinstance(node, ast.For | ast.While):
            node = self.parents.get(node)
        return node

    @property
    def sides(self) -> Sequence[Mapping[str, object]]:
        return self.tests[-1]["sides"] if self.tests else ()

    def imported(self) -> dict[str, object]:
        """The names that the function itself imports, of modules that are loaded."""
        names: dict[str, object] = {}
        for node in self.tree.body:
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                modules = [str(node.module)]
            else:
                continue
            if sys.modules.keys() >= {*modules}:
                with suppress(ImportError):
                    exec(compile(ast.Module([node], []), "<imports>", "exec"), names)
        return names

    def wrapped(self) -> Iterator[str]:
        """The names that the function gives to models that DDP wraps."""
        for node in ast.walk(self.tree):
            for target in node.targets if isinstance(node, ast.Assign) else ():
                pairs = [(target, node.value)]  # type: ignore[attr-defined]
                if isinstance(target, ast.Tuple) and isinstance(pairs[0][1], ast.Tuple):
                    pairs = list(zip(target.elts, pairs[0][1].elts, strict=False))
                for name, value in pairs:
                    if self.calls(value, DistributedDataParallel):
                        yield dotted(name)

    def calls(self, node: ast.AST, *functions: object) -> bool:
        """Whether an expression calls one of these."""
        return isinstance(node, ast.Call) and self.value_of(node.func) in functions

    def value_of(self, node: ast.AST) -> object:
        """The value of a dotted name of the module."""
        first, *attributes = dotted(node).split(".")
        value = self.known.get(first)
        for name in attributes:
            if inspect.ismodule(value):
                value = getattr(value, name, None)
            else:
                value = None
        return value

    def runs(self, node: ast.AST) -> list[str]:
        """The models that are called in a node, or in a method that it calls."""
        called = {dotted(inner.func) for inner in ast.walk(node) if isinstance(inner, ast.Call)}
        through = [model for name in called for model in self.runners.get(name, ())]
        return [*(model for model in self.models if model in called), *through]

    def own_calls(self, node: ast.AST) -> list[ast.Expr]:
        """Statements in a node that consist of one call of torch.distributed."""
        calls = (
            statement
            for statement in ast.walk(node)
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)
        )
        module = dist.distributed_c10d
        return [
            call
            for call in calls
            if inspect.getmodule(self.value_of(call.value.func)) is module  # type: ignore[attr-defined]
        ]

    def leads(self, node: ast.Expr) -> bool:
        """Whether a statement consists of a call of one of the program's functions, or of its
        object's methods."""
        if not isinstance(node.value, ast.Call):
            return False
        function = self.value_of(node.value.func)
        in_module = isinstance(function, FunctionType) and function.__globals__ is self.names
        return in_module or dotted(node.value.func) in self.runners

    def makes(self, value: ast.expr) -> bool:
        """Whether an expression makes a tensor: torch.zeros(1).cuda(), loss.clone()."""
        if not isinstance(value, ast.Call):
            return False
        function = value.func
        if isinstance(function, ast.Attribute) and self.makes(function.value):
            return True
        return dotted(function).endswith(".clone") or self.calls(value, *_MAKERS)

    def same_names(self) -> set[str]:
        """What the last test reads that has one value on all ranks that reached it."""
        ranks = {rank for side in self.tests[-1]["sides"] for rank in side["ranks"]}
        return {read["name"] for read in self.tests[-1]["values"] if ranks <= {*read["ranks"]}}

    def shared(self, branch: ast.If) -> str:
        """The part of an `if a and b` that reads the same values on all ranks; "" where that is
        nothing, or all of it, or can change in the block.

        rank == 0 and step % 2 == 1    ->    step % 2 == 1
        """
        test = branch.test
        if not isinstance(test, ast.BoolOp) or not isinstance(test.op, ast.And):
            return ""
        same = self.same_names()
        stores = stores_of(branch.body)
        terms = [
            term
            for term in test.values
            if same.issuperset(names_in(term))
            and not any(isinstance(node, ast.Call | ast.NamedExpr) for node in ast.walk(term))
            and not overlap(stores, names_of([term]))
        ]
        if not terms or len(terms) == len(test.values):
            return ""
        return ast.unparse(terms[0] if len(terms) == 1 else ast.BoolOp(ast.And(), terms))

    def block_of(self, node: ast.stmt) -> list[ast.stmt]:
        """The statements among which a statement stands."""
        parent = self.parents[node]
        blocks = (getattr(parent, name, ()) for name in ("body", "orelse", "finalbody"))
        return next(block for block in blocks if isinstance(block, list) and node in block)

    def within(self, node: ast.AST, *kinds: type) -> list[Any]:
        """The statements of these kinds around a node, the innermost first."""
        around = []
        while (node := self.parents.get(node)) is not None:  # type: ignore[assignment]
            if isinstance(node, kinds):
                around.append(node)
        return around

    def joins(self, node: ast.AST) -> list[ast.With]:
        """The blocks of join() around a node, the innermost first."""
        called = (
            (block, item.context_expr)
            for block in self.within(node, ast.With)
            for item in block.items[:1]
        )
        return [
            block
            for block, call in called
            if isinstance(call, ast.Call) and dotted(call.func).rpartition(".")[2].lower() == "join"
        ]

    # ---------------- editing the text

    def changed(self, *changes: Change) -> str:
        """The text with these bytes replaced."""
        pieces, offset = list[bytes](), 0
        for begin, end, new in sorted(changes, key=lambda change: change[0]):
            pieces += [self.bytes[offset:begin], new.encode()]
            offset = end
        return b"".join([*pieces, self.bytes[offset:]]).decode()

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """First byte of a node, and the byte after it."""
        begin, end = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        return self.starts[begin] + node.col_offset, self.starts[end] + (node.end_col_offset or 0)

    def lines(self, node: ast.stmt) -> tuple[int, int]:
        """First byte of a statement's lines, and the byte after them."""
        return self.starts[node.lineno - 1], self.starts[node.end_lineno or node.lineno]

    def source(self, begin: int, end: int) -> str:
        return self.bytes[begin:end].decode()

    def put(self, node: ast.stmt, *new: str, behind: bool = False, deeper: int = 0) -> Change:
        """The change that puts these lines before or after a statement, with its indentation."""
        offset = self.lines(node)[behind]
        indent = " " * (node.col_offset + deeper)
        return offset, offset, "".join(f"{indent}{line}\n" for line in new)

    def text_of(self, node: ast.stmt) -> list[str]:
        """The lines of a statement without its indentation."""
        begin, end = self.lines(node)
        return textwrap.dedent(self.source(begin, end)).splitlines()

    def agree(self, name: str, value: str, op: str) -> tuple[str, ...]:
        """The lines that set `name` to the `op` of all ranks' `value`; none if the module lacks
        torch."""
        modules = {value: key for key, value in self.known.items() if inspect.ismodule(value)}
        if torch not in modules:
            return ()
        module = modules.get(dist, f"{modules[torch]}.distributed")
        return (
            f"{name} = {modules[torch]}.tensor({value})",
            f"{module}.all_reduce({name}, op={module}.ReduceOp.{op})",
        )
