"""Edits: changed texts of one function of a program that may let its ranks go on together.

    if rank == 0:                    if rank == 0:
        write(path)                      write(path)
        dist.barrier()               dist.barrier()

`candidates` reads the functions in which ranks' traces diverge or calls did not fit, and yields edits,
the best first; `fixes` tries them. A call is moved only past statements that do not touch its data.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import itertools
import re
import textwrap
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from joinlab.program.branches import dotted, names_in, stored_in
from joinlab.program.divergence import Test
from joinlab.story.lines import Edit

EDITED = " (edited)"
"""Suffix of an edited file's name."""

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
        self.models = list(dict.fromkeys(self.wrapped()))
        self.runners: dict[str, list[str]] = {}

    def read(self, text: str) -> None:
        """Replace the function's text."""
        self.text, self.bytes = text, text.encode()
        self.starts = [0, *itertools.accumulate(map(len, self.bytes.splitlines(keepends=True)))]
        (tree,) = ast.parse(text).body
        if not isinstance(tree, ast.FunctionDef) or tree.decorator_list:
            raise ValueError("not a plain function")
        self.tree = tree
        self.parents = {
            child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)
        }

    # ---------------------------------------------------------------- reading the text

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
        value = self.names.get(first)
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
        stores = _stores(branch.body)
        terms = [
            term
            for term in test.values
            if same.issuperset(names_in(term))
            and not any(isinstance(node, ast.Call | ast.NamedExpr) for node in ast.walk(term))
            and not _overlap(stores, _names([term]))
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

    # ---------------------------------------------------------------- editing the text

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
        modules = {value: key for key, value in self.names.items() if inspect.ismodule(value)}
        if torch not in modules:
            return ()
        module = modules.get(dist, f"{modules[torch]}.distributed")
        return (
            f"{name} = {modules[torch]}.tensor({value})",
            f"{module}.all_reduce({name}, op={module}.ReduceOp.{op})",
        )


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
        """The program with the edit: its functions and classes are made anew, so that they use the
        edited one."""
        function = getattr(program, "__func__", program)
        names = dict(function.__globals__)
        for name, value in function.__globals__.items():
            if isinstance(value, FunctionType) and value.__globals__ is function.__globals__:
                names[name] = self._function(value, names)
            elif isinstance(value, type) and value.__module__ == names.get("__name__"):
                names[name] = self._class(value, names)
        made = self._function(function, names)
        if isinstance(program, MethodType):
            return MethodType(made, program.__self__)
        return made

    def _function(
        self, function: Any, names: dict[str, object], within: CellType | None = None
    ) -> FunctionType:
        code = function.__code__
        cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
        if within is not None and "__class__" in cells:
            cells["__class__"] = within
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
        made = FunctionType(code, names, function.__name__, function.__defaults__, closure)
        made.__kwdefaults__ = function.__kwdefaults__
        made.__qualname__ = function.__qualname__
        return made

    def _class(self, old: type, names: dict[str, Any]) -> type:
        """A class of the program with its methods made anew; itself if it cannot be copied."""
        cell, home = CellType(), self.before.names

        def made(value: object) -> Any:
            match value:
                case FunctionType() if value.__globals__ is home:
                    return self._function(value, names, cell)
                case staticmethod() | classmethod():
                    return type(value)(made(value.__func__))
                case property():
                    return property(*map(made, (value.fget, value.fset, value.fdel)))
            return value

        space = {
            name: made(value)
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


# ---------------------------------------------------------------------------------------- which
# edits apply


def candidates(
    program: Any, tests: Sequence[Test], sites: Collection[str], errors: Iterable[str]
) -> Iterator[Edited]:
    """The edits that apply, the best first, each text once. `errors`: what ranks raised."""
    function = getattr(program, "__func__", program)
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
    hint = any(text in error for error in errors for text in _UNUSED_HINTS)
    # Two kinds of edits may come to one text, and an edit may change nothing.
    texts = {target.text for target in targets}
    for make in (
        _unused,
        _batch,
        _agree,
        _behind,
        _module,
        _out,
        _group,
        _late,
        _flag,
        _join,
        _most,
        _root,
        _same,
    ):
        for target in targets:
            target.runners = runners
            if make is _unused and not hint:
                continue
            # A function in which no test and no told call stands is left alone, but for the program.
            if make is _unused or target.function is function or target.tests or target.sites:
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
            member = getattr(member, "__func__", member)
            if isinstance(member, FunctionType) and member.__globals__ is names:
                yield member


_UNUSED_HINTS = ("find_unused_parameters", "training graph has changed")
"""In the errors of Reducer::ensure_prior_reduction_finished (reducer.cpp, PyTorch v2.13.0): one of
them names the cure, the other, of a static graph, what is wrong."""


def _unused(target: FixTarget) -> Iterator[Edited]:
    """Let DDP look for parameters without a gradient, as its error suggests."""
    for call in ast.walk(target.tree):
        if not isinstance(call, ast.Call) or not target.calls(call, DistributedDataParallel):
            continue
        fixed = [word.value for word in call.keywords if word.arg == "static_graph"]
        keywords = {word.arg for word in call.keywords}
        if "find_unused_parameters" in keywords:
            continue
        end = target.span(call)[1] - 1
        changes = [(end, end, ", find_unused_parameters=True")]
        changes += [(*target.span(value), "False") for value in fixed]
        yield Edited("unused", target, target.changed(*changes))


# ---- moving a call


def _moved(
    target: FixTarget, call: ast.Expr, block: ast.stmt, behind: bool = True, test: str = ""
) -> str | None:
    """Move a call of the program's own after a block that holds it, or before it; to where `test`
    holds, if there is one."""
    put = target.put(block, *_under(test, [target.source(*target.span(call))]), behind=behind)
    (begin, end), (first, last) = target.span(call), target.lines(call)
    before, after = target.source(first, begin), target.source(end, last).partition("#")[0]
    cuts = [(begin, end, "pass")]  # a block must not be left empty
    if not before.strip() and not after.strip():
        cuts.insert(0, (first, last, ""))
    elif joined := re.search(r"\s*;\s*$", before):
        cuts.insert(0, (begin - len(joined[0]), end, ""))
    elif joined := re.match(r"\s*;\s*", after):
        cuts.insert(0, (begin, end + len(joined[0]), ""))
    for text in (target.changed(cut, put) for cut in cuts):
        with suppress(SyntaxError):
            ast.parse(text)
            return text
    return None


def _under(test: str, lines: list[str]) -> list[str]:
    """These lines where a test holds; unchanged without one."""
    return [f"if {test}:", *("    " + line for line in lines)] if test else lines


def _data(target: FixTarget, call: ast.stmt) -> set[str]:
    """The names of what a call works on: not those of modules and functions."""
    return {name for name in _names([call]) if name.partition(".")[0] not in target.names}


def _names(nodes: Iterable[ast.AST]) -> set[str]:
    """The names that nodes read or write, with their attributes: "self.best", not "self"."""
    names = set[str]()
    for node in nodes:
        for text in names_in(node):
            names.update(re.findall(r"[^\W\d][\w.]*", text))
    return names


def _stores(nodes: Iterable[ast.AST]) -> set[str]:
    """The names that statements write to, also by a call within an expression: x = seen.pop()."""
    names = set[str]()
    for node in nodes:
        names.update(stored_in(node))
        for part in ast.walk(node):
            if isinstance(part, ast.Call):
                names.update(stored_in(ast.Expr(part)))
    return names - {""}


def _variables(nodes: Iterable[ast.AST]) -> Counter[str]:
    """How often each variable stands in these nodes."""
    parts = (part for node in nodes for part in ast.walk(node))
    return Counter(part.id for part in parts if isinstance(part, ast.Name))


def _overlap(names: Iterable[str], others: Iterable[str]) -> set[str]:
    """The names that are also among the others, or an attribute, or the owner, of one of these."""
    return {
        name
        for name, owner in itertools.product(names, others)
        if f"{name}.".startswith(f"{owner}.") or f"{owner}.".startswith(f"{name}.")
    }


def _beside(
    target: FixTarget, call: ast.stmt, block: ast.AST
) -> tuple[list[ast.AST], list[ast.AST]]:
    """The nodes of a block that run before a call in it, and those that may run after it."""
    before, after = list[ast.AST](), list[ast.AST]()
    node: ast.AST = call
    while node is not block:
        parent = target.parents[node]
        repeats = isinstance(parent, ast.For | ast.While) and parent is not block
        for child in ast.iter_child_nodes(parent):
            if child is not node:
                earlier = getattr(child, "lineno", 0) < call.lineno
                (before if earlier else after).append(child)
                after += [child] if earlier and repeats else []  # in the next round
        node = parent
    return before, after


def _behind(target: FixTarget) -> Iterator[Edited]:
    """Move a call of the program's own in a block of join() after the block."""
    for call in target.own_calls(target.tree):
        for block in target.joins(call):
            _, after = _beside(target, call, block)
            free = not _overlap(_data(target, call), _names(after))
            if free and (text := _moved(target, call, block)):
                yield Edited("behind", target, text, moves=True)


def _out(target: FixTarget) -> Iterator[Edited]:
    """Move a call that only some ranks issue out of its `if`: behind it, or before it, alone or
    with what sets its data; or else the whole block. What all ranks alike ask in the `if` stays
    asked."""
    branch = target.branch()
    if branch is None:
        return
    collectives, test = target.own_calls(branch), target.shared(branch)
    asked = _names([branch.test])
    # A test of anything else may guard what a function of the program does.
    by_rank = _is_for_some_ranks(target, target.same_names())
    calls = [
        call
        for call in (*branch.body, *branch.orelse)
        if isinstance(call, ast.Expr)
        and call.lineno in target.sites
        and (call in collectives or (by_rank and target.leads(call)))
    ]
    for call in calls if len(branch.body) > 1 or branch.orelse else ():
        data = _data(target, call)
        before, after = _beside(target, call, branch)
        # in the next round, ranks that skip the branch would send what they had in this one
        free = not _overlap(data, _names(after))
        free = free and not _overlap(data - _made_before(target, branch), _stores(before))
        if free and (text := _moved(target, call, branch, test=test)):
            yield Edited("out", target, text, moves=True)
        elif not _overlap(data, _stores(before) | asked):
            text = _moved(target, call, branch, behind=False, test=test)
            if text:
                yield Edited("out", target, text, moves=True)
        elif 1 < len(moved := _making(target, call, branch)) < len(branch.body):
            new = [line for statement in moved for line in target.text_of(statement)]
            cuts = [(*target.lines(statement), "") for statement in moved]
            put = target.put(branch, *_under(test, new))
            yield Edited("out", target, target.changed(put, *cuts), moves=True)
    # Where a block sets what its test reads, each run of it depends on the last; and where it sets
    # what the call sends, and others have a value for that, too, they would lose theirs.
    stores = _stores(branch.body)
    sent = [_data(target, call) for call in calls[-1:] if not target.calls(call.value, *_FROM_ROOT)]
    lost = _overlap(_overlap(stores, itertools.chain(*sent)), _set_outside(target, branch))
    if calls and not (branch.orelse or _leaves(branch) or _overlap(stores, asked) or lost):
        body = target.source(target.span(branch.body[0])[0], target.span(branch)[1])
        block = textwrap.indent(
            textwrap.dedent(" " * branch.body[0].col_offset + body), " " * branch.col_offset
        )
        whole = len(_making(target, calls[-1], branch)) == len(branch.body)
        through = calls[-1] not in collectives  # a function of the program
        kind = "out" if whole and not through else "block"
        if test:
            kind, change = f"{kind}, shared", (*target.span(branch.test), test)
        elif by_rank or kind == "out":
            change = (*target.span(branch), block.lstrip())
        else:
            return  # what else is in the block may be right only where the test holds
        yield Edited(kind, target, target.changed(change), moves=through)


def _made_before(target: FixTarget, branch: ast.If) -> set[str]:
    """The variables that keep nothing from an earlier round of a loop around a branch: all variables
    if there is no loop, else the tensors that each round creates before the branch."""
    loops = target.within(branch, ast.For, ast.While)
    if not loops:
        return _names([target.tree])
    made, node = set[str](), branch
    while node is not loops[0]:
        if isinstance(node, ast.stmt):
            block = target.block_of(node)
            for statement in block[: block.index(node)]:
                if isinstance(statement, ast.Assign) and target.makes(statement.value):
                    made.update(map(dotted, statement.targets))
        node = target.parents[node]  # type: ignore[assignment]
    return made


def _set_outside(target: FixTarget, branch: ast.If) -> set[str]:
    """The variables that the function sets outside a branch, too, or is handed."""
    inside = {*ast.walk(branch)}
    names = set[str]()
    for node in {*ast.walk(target.tree)} - inside:
        if isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


_FROM_ROOT = (
    dist.broadcast,
    dist.broadcast_object_list,
    dist.scatter,
    dist.scatter_object_list,
)


def _making(target: FixTarget, call: ast.Expr, branch: ast.If) -> list[ast.stmt]:
    """A call in a branch with the assignments before it that make its data, to variables that only
    the branch uses; [] if other statements do, or others read what they set."""
    if call not in branch.body:
        return []
    private = dict(_variables(branch.body).items() & _variables([target.tree]).items()).keys()
    needed, moved = _data(target, call), list[ast.stmt]([call])
    for statement in reversed(branch.body[: branch.body.index(call)]):
        stores = _stores([statement])
        if not _overlap(needed, stores):
            continue
        if not isinstance(statement, ast.Assign) or not stores <= private:
            return []
        moved.insert(0, statement)
        needed |= _names([statement.value])
    return moved


def _late(target: FixTarget) -> Iterator[Edited]:
    """Let ranks return only behind a call that the others make: move the branch behind it."""
    branch = target.branch()
    if branch is None or not isinstance(branch.body[-1], ast.Return) or branch.orelse:
        return
    block = target.block_of(branch)
    below = block[block.index(branch) + 1 :]
    last = next((index for index, node in enumerate(below) if node in target.own_calls(node)), None)
    if last is None:
        return
    between = below[: last + 1]
    if _overlap(_stores(between) | _data(target, between[-1]), _names([branch])):
        return
    put = target.put(between[-1], *target.text_of(branch), behind=True)
    yield Edited("late", target, target.changed((*target.lines(branch), ""), put), moves=True)


def _module(target: FixTarget) -> Iterator[Edited]:
    """Call `model.module(...)` where one rank alone evaluates."""
    branch = target.branch()
    if branch is not None:
        nodes = branch.body
    elif not target.tests:
        nodes = [target.tree]
    else:
        nodes = []
    if not nodes or any("backward" in ast.unparse(node) for node in nodes):
        return
    calls = (node for block in nodes for node in ast.walk(block) if isinstance(node, ast.Call))
    ends = []
    for call in calls:
        if dotted(call.func) in target.models and call.lineno in target.sites:
            ends.append(target.span(call.func)[1])
    if ends:
        yield Edited("module", target, target.changed(*((end, end, ".module") for end in ends)))


# ---- deciding together


def _flag(target: FixTarget) -> Iterator[Edited]:
    """Let all ranks leave a loop, skip the rest of a step, or go on, together."""
    node = target.diverging()
    if node is None or target.joins(node):
        # join() shadows no calls of the program: with uneven inputs, a flag would meet join()'s
        return
    if isinstance(node, ast.While):
        made = target.agree("flag", _as_number(target, node.test), "MAX")
        if made:
            lines = [*made, "if not flag.item():", "    break"]
            put = target.put(node.body[0], *lines)
            text = target.changed((*target.span(node.test), "True"), put)
            yield Edited("together", target, text)
    elif isinstance(node, ast.If) and not _is_role(target, node.test):
        for kind, op in _decisions(target, node):
            made = target.agree("flag", _as_number(target, node.test), op)
            if made:
                changes = target.put(node, *made), (*target.span(node.test), "flag.item()")
                yield Edited(kind, target, target.changed(*changes))


def _as_number(target: FixTarget, test: ast.expr) -> str:
    """The text of a number that says whether a test passes, which may be one of a list."""
    others = {
        read["name"]
        for read in target.tests[-1]["values"]
        if not isinstance(read["value"], bool | float)
    }
    numbers = {read["name"] for read in target.tests[-1]["values"]} - others
    parts = test.values if isinstance(test, ast.BoolOp) else [test]
    plain = (
        isinstance(part, ast.Compare | ast.UnaryOp | ast.Call) or ast.unparse(part) in numbers
        for part in parts
    )
    text = ast.unparse(test)
    return f"float({text})" if all(plain) else f"float(bool({text}))"


def _decisions(target: FixTarget, branch: ast.If) -> Iterator[tuple[str, str]]:
    """How ranks may decide on a branch together, the best first: the kind of the edit, and the operator
    of the all-reduce.

    A branch with a call that did not fit is taken where all ranks would take it (MIN), since one may
    have nothing to put in; not where a value that outlives the branch would then stay unshared, or
    the test asks for the rank besides. Or
    else it is taken as soon as one would (MAX), unless it sets what its test reads. To leave a loop
    or a function, one rank's wish is enough (MAX), except where the test is the only regular way out
    of its loop, or what follows reads what the test asks for: then each rank has to pass it (MIN).
    If that is a number, which ranks that fail the test have too, one rank's wish is the second
    choice.
    """
    if not _leaves(branch):
        lines = range(branch.body[0].lineno, (branch.end_lineno or 0) + 1)
        if (target.sites.intersection(lines) or target.all_fit) and not branch.orelse:
            calls = (call for call in target.own_calls(branch) if call.lineno in target.sites)
            filled = itertools.chain(*(call.value.args[:1] for call in calls))  # type: ignore[attr-defined]
            roles = (_is_role(target, part) for part in getattr(branch.test, "values", ()))
            if not any(roles) and not _overlap(_names(filled), _set_outside(target, branch)):
                yield "where all do", "MIN"
            if not _overlap(_stores(branch.body), _names([branch.test])):
                yield "where one does", "MAX"
        return
    loops = target.within(branch, ast.For, ast.While)
    ends = bool(loops) and not isinstance(branch.body[-1], ast.Continue | ast.Raise)
    if ends and _is_only_way_out(loops[0]):
        yield "all ready", "MIN"
        return
    wanted = _is_wanted(target, branch, loops)
    if ends and wanted:
        yield "all ready", "MIN"
    types = {type(read["value"]) for read in target.tests[-1]["values"]}
    if not wanted or set() < types <= {int, float}:
        yield "flag", "MAX"


def _is_wanted(target: FixTarget, branch: ast.If, loops: Sequence[ast.stmt]) -> bool:
    """Whether the code to which a branch leads uses what its test asks for, which a rank that fails
    the test does not have.

    path = fetch()
    if path is not None:
        break
    """
    asked, follows = _names([branch.test]), list[ast.AST](branch.body)
    if loops:
        asked = _overlap(asked, _stores(loops[:1]))
    if isinstance(branch.body[-1], ast.Break):
        end = loops[0].end_lineno or 0
        for node in ast.walk(target.tree):
            if isinstance(node, ast.stmt) and node.lineno > end:
                follows.append(node)
    return bool(_overlap(asked, _names(follows)))


def _is_only_way_out(loop: ast.For | ast.While) -> bool:
    """Whether a loop is not meant to end but by its `break`: `while True`, or an `else` that
    raises."""
    forever = isinstance(loop, ast.While) and getattr(loop.test, "value", False) is True
    return forever or (bool(loop.orelse) and isinstance(loop.orelse[-1], ast.Raise))


def _leaves(branch: ast.If) -> bool:
    return isinstance(branch.body[-1], ast.Break | ast.Return | ast.Continue | ast.Raise)


def _is_role(target: FixTarget, test: ast.expr) -> bool:
    """Whether a rank's number alone can decide that it passes a test which others fail, as that of
    4 does in `done or rank == 4`, and not in `done and rank == 4`."""
    if isinstance(test, ast.BoolOp):
        decides = all if isinstance(test.op, ast.And) else any
        return decides(_is_role(target, part) for part in test.values)
    return bool(_overlap(_names([test]), _ranks_own(target)))


def _is_for_some_ranks(target: FixTarget, ignored: Collection[str] = ()) -> bool:
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


def _agree(
    target: FixTarget, kind: str = "agree", agreed: str = "least", op: str = "MIN"
) -> Iterator[Edited]:
    """Let all ranks use the smallest of their values for a number that decides how often a loop
    runs."""
    loop = target.diverging()
    if not isinstance(loop, ast.For) or not isinstance(loop.iter, ast.Call):
        return
    test = target.tests[-1]
    for name in dict.fromkeys(names_in(loop.iter)):
        values = [read["value"] for read in test["values"] if read["name"] == name]
        if (
            "." in name
            or name == "rank"
            or len(set(values)) < 2
            or any(type(value) is not int for value in values)
        ):
            continue
        made = target.agree(agreed, name, op)
        if made:
            text = target.changed(target.put(loop, *made, f"{name} = int({agreed})"))
            yield Edited(kind, target, text)


def _most(target: FixTarget) -> Iterator[Edited]:
    """Let all ranks use the greatest value for a number of rounds: not for one of inputs, which a
    rank may not have."""
    loop = target.diverging()
    if isinstance(loop, ast.For) and ast.unparse(loop.iter).startswith("range("):
        yield from _agree(target, "most", "most", "MAX")


def _same(target: FixTarget) -> Iterator[Edited]:
    """Give every rank as many inputs as the rank with the fewest."""
    loop = target.diverging()
    if not isinstance(loop, ast.For) or not dotted(loop.iter):
        return
    if not target.runs(loop) and not target.own_calls(loop):
        return  # its items may be of any kind, callbacks
    made = target.agree("count", f"len({ast.unparse(loop.iter)})", "MIN")
    if made:
        end = target.span(loop.iter)[1]
        text = target.changed(target.put(loop, *made), (end, end, "[: int(count)]"))
        yield Edited("same", target, text)


def _join(target: FixTarget) -> Iterator[Edited]:
    """Wrap a training loop whose own end parts the ranks in join(), and move a call of the
    program's own in it after the loop."""
    if target.loop() is None:
        return
    loops = [
        node
        for node in ast.walk(target.tree)
        if isinstance(node, ast.For | ast.While) and target.runs(node)
    ]
    for loop in sorted(loops, key=lambda node: node.col_offset):
        if target.joins(loop):
            continue
        starts = target.starts[loop.lineno - 1 : loop.end_lineno]
        deeper = (
            (start, start, "    ") for start in starts if target.bytes[start : start + 1] != b"\n"
        )
        text = target.changed(target.put(loop, f"with {target.runs(loop)[0]}.join():"), *deeper)
        yield Edited("join", target, text)
        after = copy(target)
        after.read(text)
        if len(list(filter(after.joins, after.own_calls(after.tree)))) == 1:
            for moved in _behind(after):
                yield Edited("join, behind", target, moved.after)


def _turning(target: FixTarget, call: ast.Call) -> set[str]:
    """The names that may have another value in each round of a loop around a call, or of a
    comprehension: as root, they take turns."""
    names = _stores(target.within(call, ast.For, ast.While))
    for node in target.within(call, ast.ListComp, ast.GeneratorExp):
        names |= _names([generator.target for generator in node.generators])
    return names


def _root(target: FixTarget) -> Iterator[Edited]:
    """Make rank 0 the root on every rank if the ranks name different roots."""
    calls = (node for node in ast.walk(target.tree) if isinstance(node, ast.Call))
    for call in calls:
        turns = _turning(target, call)
        for keyword in call.keywords if call.lineno in target.sites else ():
            asked = keyword.arg in ("src", "dst") and not isinstance(keyword.value, ast.Constant)
            if asked and not _overlap(_names([keyword.value]), turns):
                text = target.changed((*target.span(keyword.value), "0"))
                yield Edited("root", target, text, root=ast.unparse(keyword.value))


def _group(target: FixTarget) -> Iterator[Edited]:
    """Pass a group of the function to a call that has none, and so is one of all ranks."""
    named = set[str]()
    for node in ast.walk(target.tree):
        if isinstance(node, ast.keyword) and node.arg == "group":
            named.add(ast.unparse(node.value))
        elif isinstance(node, ast.Assign) and target.calls(node.value, dist.new_group):
            named.update(map(dotted, node.targets))
    for call in target.own_calls(target.tree):
        if call.lineno not in target.sites or not _takes_group(target, call):
            continue
        end = target.span(call)[1] - 1
        comma = "" if target.source(*target.span(call)).endswith("()") else ", "
        for name in sorted(named):
            yield Edited("group", target, target.changed((end, end, f"{comma}group={name}")))


def _takes_group(target: FixTarget, call: ast.Expr) -> bool:
    """Whether a call is a collective for which a group could be named, and is not."""
    function, arguments = _arguments(target, call)
    if function is None or function in (dist.send, dist.recv) or "group" in arguments:
        return False
    return "group" in inspect.signature(function).parameters


def _arguments(target: FixTarget, call: ast.Expr) -> tuple[Any, dict[str, ast.expr]]:
    """The function that a statement calls, and its arguments by their names; None, {} if unknown."""
    expression = call.value
    assert isinstance(expression, ast.Call)
    function: Any = target.value_of(expression.func)
    keywords = {str(keyword.arg): keyword.value for keyword in expression.keywords}
    with suppress(TypeError, ValueError):
        return function, inspect.signature(function).bind(*expression.args, **keywords).arguments
    return None, {}


# ---- sends and receives


def _batch(target: FixTarget) -> Iterator[Edited]:
    """Issue sends and receives that stand in a row, each on a tensor of its own, as one batch, in
    which none waits for another: each row alone, or all rows."""
    calls = {call: _exchange(target, call) for call in target.own_calls(target.tree)}
    exchanges = [call for call, arguments in calls.items() if arguments]
    if not any(call.lineno in target.sites for call in exchanges):
        return
    changes = list[list[Change]]()
    while exchanges:
        block = target.block_of(exchanges[0])
        behind = block[block.index(exchanges[0]) :]
        row: list[Any] = list(itertools.takewhile(exchanges.__contains__, behind))
        exchanges = [call for call in exchanges if call not in row]
        names = [_names([calls[call]["tensor"]]) for call in row]
        if len(row) > 1 and sum(map(len, names)) == len(set().union(*names)):
            module = dotted(calls[row[0]]["op"]).rpartition(".")[0]
            begin = f"for work in {module}.batch_isend_irecv(["
            operations = (_operation(target, calls[call]) for call in row)
            new = target.put(row[0], begin, *operations, "]):", "    work.wait()")
            changes.append([new, *((*target.lines(call), "") for call in row)])
    for change in (*changes, [*itertools.chain.from_iterable(changes)]):
        yield Edited("batch", target, target.changed(*change))


def _exchange(target: FixTarget, call: ast.Expr) -> dict[str, ast.expr]:
    """A statement dist.send(...) or dist.recv(...), alone in its lines: its function as `op`, and its
    arguments by their names in P2POp; {} of another one."""
    function, arguments = _arguments(target, call)
    text, _, _comment = target.source(*target.lines(call)).partition("#")
    alone = text.strip() == target.source(*target.span(call))
    assert isinstance(call.value, ast.Call)
    if function in (dist.send, dist.recv) and alone and "." in dotted(call.value.func):
        arguments = {re.sub("src|dst", "peer", key): value for key, value in arguments.items()}
        if "peer" in arguments or "group_peer" in arguments:
            return {"op": call.value.func, **arguments}
    return {}


def _operation(target: FixTarget, arguments: Mapping[str, ast.expr]) -> str:
    """A send or recv as a line of a batch."""
    module, _, name = dotted(arguments["op"]).rpartition(".")
    texts = {key: target.source(*target.span(value)) for key, value in arguments.items()}
    texts["op"] = f"{module}.i{name}"
    plain = ("op", "tensor", "peer")
    named = (text if key in plain else f"{key}={text}" for key, text in texts.items())
    return f"    {module}.P2POp({', '.join(named)}),"
