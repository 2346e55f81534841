"""Branches: the statement at a line of the program, its test, and the names that it sets."""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from typing import Any


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement, or the head of a compound one.

    first, last  its lines in the file, including its block
    text         its head without indentation: "if v < self.best:"
    decides      it is a loop, a `match`, an `if` or an assert, or holds a condition or a comprehension that decides
                 which functions are called: `mean(x) if x else None`, unlike `1 if x else 2`
    branches     it chooses the next statement, unlike a conditional expression
    names        what its test reads and does not itself set: "v", "self.best", "mask.sum()"
    keys         names that select the data of a call in it: "k" of `dist.all_reduce(m[k])`
    one_line     the test of an `if` with its block on the same line, or of its only conditional expression
    reads        names that it reads or calls, without its block: "loss"
    stores       names that it or its block sets: "start", "self.bad"
    replaces     names that it gives other values, in which it does not read them
    calls        objects of which it, without its block, calls methods, or its decorators do: "hooks" of
                 `hooks.add(save)`; without imported modules
    owned        dotted names that it tests or sets, each with the name of what has the attribute; and "hooks()" with
                 "hooks", for each of `calls`
    loop         it is a `for` or a `while`
    returns      its block has a `return`
    """

    first: int
    last: int
    text: str
    decides: bool
    branches: bool
    names: tuple[str, ...]
    keys: tuple[str, ...]
    one_line: ast.expr | None
    reads: frozenset[str]
    stores: frozenset[str]
    replaces: frozenset[str]
    calls: frozenset[str]
    owned: tuple[tuple[str, str], ...]
    loop: bool
    returns: bool

    @property
    def lines(self) -> range:
        """All its lines."""
        return range(self.first, self.last + 1)

    @property
    def block(self) -> range:
        """The lines of its block."""
        return self.lines[1:]


def loops_around(file: str, line: int) -> list[range]:
    """The lines of each loop around this line, outermost first."""
    loops = {}
    for statement in _statements_of(file).values():
        if statement.loop and line in statement.block:
            loops[statement.first] = statement.last
    return [range(first, last + 1) for first, last in loops.items()]


def statement_at(file: str, line: int) -> Statement | None:
    """The statement at a line; for `if a: b` the `if`, for a `case` its `match`. None if the text
    is unknown."""
    return _statements_of(file).get(line)


@dataclass(frozen=True, slots=True)
class Guard:
    """A `try` or `with`: the lines of its body, of its handlers, each from its `except` on, and of
    what runs while an exception passes through it (`finally`, `except`, the head of a `with`)."""

    body: range
    handlers: tuple[range, ...]
    cleanup: tuple[range, ...]


def guards_around(file: str, line: int) -> list[Guard]:
    """The `try` and `with` statements whose body holds this line, innermost first."""
    linecache.checkcache(file)
    guards = _guards("".join(linecache.getlines(file)))
    return sorted(
        (guard for guard in guards if line in guard.body), key=lambda guard: len(guard.body)
    )


@lru_cache(maxsize=64)
def _guards(text: str) -> tuple[Guard, ...]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return ()
    guards = []
    for node in ast.walk(tree):
        if isinstance(node, ast.With | ast.AsyncWith):
            guards.append(Guard(_lines(node.body), (), (range(node.lineno, _head_end(node) + 1),)))
        elif isinstance(node, ast.Try):
            heads = [range(handler.lineno, handler.body[0].lineno) for handler in node.handlers]
            handlers = tuple(_lines([handler]) for handler in node.handlers)
            final = [_lines(node.finalbody)] if node.finalbody else []
            guards.append(Guard(_lines(node.body), handlers, (*heads, *final)))
            if final:  # which runs for an exception of a handler, too
                around = _lines([*node.body, *node.handlers, *node.orelse])
                guards.append(Guard(around, (), (final[0],)))
    return tuple(guards)


def _lines(block: Sequence[ast.stmt | ast.ExceptHandler]) -> range:
    return range(block[0].lineno, (block[-1].end_lineno or block[-1].lineno) + 1)


def _statements_of(file: str) -> dict[int, Statement]:
    linecache.checkcache(file)
    return _statements("".join(linecache.getlines(file)), file)


@lru_cache(maxsize=64)
def _statements(text: str, file: str) -> dict[int, Statement]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return {}
    by_line: dict[int, Statement] = {}
    cases = set()
    for match in ast.walk(tree):
        if isinstance(match, ast.Match):
            for case in match.cases:
                cases.add(case.pattern.lineno)
    lines = text.splitlines()
    statements = (item for item in ast.walk(tree) if isinstance(item, ast.stmt))
    nodes = sorted(statements, key=lambda item: (item.lineno, item.col_offset))
    keys, modules = _keys(nodes), set[str]()
    for node in nodes:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            modules.update((name.asname or name.name).partition(".")[0] for name in node.names)
    for node in nodes:
        made: Statement | None = None
        for line in range(node.lineno, _head_end(node) + 1):
            inside = line not in cases or isinstance(node, ast.Match)  # `case 1: a()` is the match
            if (
                line not in by_line
                or not by_line[line].decides
                or (by_line[line].first < line and inside)
            ):
                made = made or _made(node, lines, keys, modules)
                by_line[line] = made
    return by_line


def _head_end(node: ast.stmt) -> int:
    """The last line of the head, before its block."""
    body = getattr(node, "body", None)
    if not body or isinstance(node, ast.Match):
        return node.end_lineno or node.lineno
    first: int = body[0].lineno
    return max(node.lineno, first - 1)


def _made(
    node: ast.stmt, lines: list[str], keys: Mapping[int, Iterable[str]], modules: Set[str]
) -> Statement:
    tests = list(_tests(node))
    text = " ".join(line.strip() for line in lines[node.lineno - 1 : _text_end(node)])
    # The statement does not read names that it binds in an expression, such as `x` in [x for x in xs], or
    # in a pattern.
    inner = set[str]()
    for part in _expressions(node):
        match part:
            case ast.comprehension(target=target) | ast.NamedExpr(target=target):
                inner.update(map(dotted, ast.walk(target)))
            case (
                ast.MatchAs(name=str(name))
                | ast.MatchStar(name=str(name))
                | ast.MatchMapping(rest=str(name))
            ):
                inner.add(name)
    if isinstance(node, (ast.Return, ast.Expr)):
        value = node.value
    else:
        value = None
    test_names = (
        name
        for test in [test for test, _ in tests] or filter(None, [value])
        for name in names_in(test)
    )
    names = tuple(
        name for name in dict.fromkeys(test_names) if inner.isdisjoint({*_WORDS.findall(name)})
    )
    stores, calls = frozenset(stored_in(node)), frozenset(_called(node)) - modules - {""}
    dotted_names = set[str]()
    for name in _ATTRIBUTE.findall(" ".join({*names, *stores})):
        while "." in name:
            dotted_names.add(name)
            name = name.rpartition(".")[0]
    owned = [(name, name.rpartition(".")[0]) for name in sorted(dotted_names)]
    return Statement(
        node.lineno,
        node.end_lineno or node.lineno,
        text,
        any(decides for _, decides in tests),
        isinstance(node, ast.If) or _one_line(node) is None,
        names,
        tuple(keys.get(node.lineno, ())),
        _one_line(node),
        frozenset(_reads(node)) - inner,
        stores,
        frozenset(_replaced(node)),
        calls,
        (*owned, *((f"{name}()", name) for name in sorted(calls))),
        isinstance(node, (ast.For, ast.AsyncFor, ast.While)),
        any(isinstance(inner_node, ast.Return) for inner_node in ast.walk(node)),
    )


def _text_end(node: ast.stmt) -> int:
    """The last line of its text; for a compound statement, the end of its test."""
    if not hasattr(node, "body") and not isinstance(node, ast.Match):
        return node.end_lineno or node.lineno
    heads = []
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            heads.append(child.end_lineno or 0)
    return max([node.lineno, *heads])


def _tests(node: ast.stmt) -> Iterator[tuple[ast.expr, bool]]:
    """The expressions whose values decide what runs next; whether that may be a statement or a
    function's call."""
    match node:
        case ast.If(test=test) | ast.While(test=test) | ast.Assert(test=test):
            yield test, True
        case ast.For(iter=test) | ast.AsyncFor(iter=test):
            yield test, True
        case ast.Assign(value=ast.Compare() as test) | ast.AugAssign(value=ast.Compare() as test):
            yield test, False
        case ast.Match(subject=test, cases=cases):
            yield test, True
            for case in cases:
                for part in (*_matched(test, case.pattern), *filter(None, [case.guard])):
                    yield part, True
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() | ast.Try():
            return
        case _:
            for inner in _expressions(node):
                match inner:
                    case ast.IfExp(test=test, body=body, orelse=orelse):
                        yield test, _calls(body, orelse)
                    case ast.BoolOp(values=values):
                        for value in values[:-1]:
                            yield (value, _calls(*values[1:]))
                        if isinstance(node, ast.Return):  # which decides in the caller
                            yield (values[-1], False)
                    case ast.comprehension(iter=test, ifs=ifs):
                        for expression in (test, *ifs):
                            yield (expression, True)


def _matched(subject: ast.expr, pattern: ast.pattern) -> Iterator[ast.expr]:
    """The parts of a subject that a pattern compares: `phase.name` for `Phase(name="train")`."""
    match pattern:
        case ast.MatchClass(kwd_attrs=names, kwd_patterns=patterns):
            for name, inner in zip(names, patterns, strict=True):
                yield from _matched(ast.Attribute(subject, name, ast.Load()), inner)
        case ast.MatchMapping(keys=keys, patterns=patterns):
            for key, inner in zip(keys, patterns, strict=True):
                yield from _matched(ast.Subscript(subject, key, ast.Load()), inner)
        case ast.MatchOr(patterns=patterns):
            for inner in patterns:
                yield from _matched(subject, inner)
        case ast.MatchAs(pattern=ast.pattern() as inner):
            yield from _matched(subject, inner)
        case ast.MatchValue() | ast.MatchSingleton():
            yield subject


def _calls(*nodes: ast.expr) -> bool:
    """Whether a function is called in these expressions."""
    return any(isinstance(inner, ast.Call) for node in nodes for inner in ast.walk(node))


def _expressions(node: ast.AST) -> Iterator[ast.AST]:
    """The expressions of a statement, without those in its block."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.stmt):
            yield child
            yield from _expressions(child)


def names_in(test: ast.AST) -> Iterator[str]:
    """The names that an expression reads, with attributes and items; for a called method, its
    object, unless the call changes nothing.

    >>> test = ast.parse("stop(loss.item()) or self.best[step] < len(seen) or any(bad)").body[0].value
    >>> list(names_in(test))
    ['loss', 'self.best[step]', 'seen', 'any(bad)']
    """
    match test:
        case ast.Call() if _is_question(test):
            yield ast.unparse(test)
        case ast.Call(ast.Attribute(owner, "size"), [ast.Constant(int(dimension))]):
            yield from names_in(
                ast.parse(f"{ast.unparse(owner)}.shape[{dimension}]", mode="eval").body
            )
        case ast.Call(func=func, args=args, keywords=keywords):
            if not isinstance(func, ast.Name):
                yield from names_in(func.value if isinstance(func, ast.Attribute) else func)
            for argument in (*args, *(keyword.value for keyword in keywords)):
                yield from names_in(argument)
        case ast.Subscript() if _is_item(test):
            yield ast.unparse(test)
        case ast.Attribute() | ast.Name():
            name = dotted(test)
            if name:
                yield name
            elif isinstance(test, ast.Attribute):
                yield from names_in(test.value)
        case ast.Lambda():
            return
        case _:
            for child in ast.iter_child_nodes(test):
                yield from names_in(child)


def _reads(node: ast.AST) -> Iterator[str]:
    """The names that a statement or an expression reads or calls, without the statement's block."""
    match node:
        case ast.Attribute() | ast.Name() if name := dotted(node):
            yield name
        case ast.Call(func=ast.Attribute(value=owner), args=args, keywords=keywords):
            for part in (owner, *args, *keywords):
                yield from _reads(part)
        case _:
            for part in ast.iter_child_nodes(node):
                if not isinstance(part, ast.stmt):
                    yield from _reads(part)


def _replaced(node: ast.stmt) -> Iterator[str]:
    """The names to which an assignment or a loop gives values in which it does not read them."""
    match node:
        case ast.Assign(targets=targets, value=value):
            pass
        case ast.For(target=ast.expr() as target, iter=value):
            targets = [target]
        case _:
            return
    read = list(_reads(value))
    for target in targets:
        for part in target.elts if isinstance(target, ast.Tuple) else [target]:
            name = dotted(part)
            if name and not any(f"{other}.".startswith(f"{name}.") for other in read):
                yield name


def _called(node: ast.stmt) -> Iterator[str]:
    """The objects of which a statement or its decorators call methods."""
    match node:
        case ast.Expr(value=value) | ast.Assign(value=value):
            parts = [value]
        case ast.FunctionDef(decorator_list=parts):
            pass
        case _:
            return
    for part in parts:
        match part:
            case ast.Call(func=ast.Attribute(value=owner)):
                yield dotted(owner.value if isinstance(owner, ast.Subscript) else owner)


QUESTIONS = ("any", "all", "sum", "min", "max")
"""Functions, and methods of arrays, that change nothing."""
LOOKUPS = ("get", "getenv")
"""Methods of dicts and of `os` that change nothing."""


def _is_question(node: ast.AST) -> bool:
    """Whether it is a call that changes nothing, on a name: `any(bad)`, `len(set(bad))`,
    `mask.sum().item()`, `os.environ.get("DEBUG")`."""
    match node:
        case ast.Call(func=ast.Name(id="len"), args=[ast.Call(ast.Name(id="set"), [owner])]):
            return bool(dotted(owner))
        case ast.Call(func=ast.Name(id=name), args=[ast.expr() as owner], keywords=[]):
            return name in QUESTIONS and bool(dotted(owner))
        case ast.Call(func=ast.Attribute(value=owner, attr="item"), args=[]):
            return _is_question(owner)
        case ast.Call(func=ast.Attribute(value=owner, attr=name), args=args, keywords=[]):
            changes_nothing = not args if name in QUESTIONS else name in LOOKUPS
            return (
                changes_nothing
                and bool(dotted(owner))
                and all(isinstance(arg, ast.Constant) for arg in args)
            )
    return False


def _is_item(node: ast.AST) -> bool:
    """Whether it is an item of a name, by a constant or a name: `losses[epoch]`,
    `groups[-1]["lr"]`."""
    if not isinstance(node, ast.Subscript) or not (dotted(node.value) or _is_item(node.value)):
        return False
    return bool(dotted(node.slice)) or isinstance(
        getattr(node.slice, "operand", node.slice), ast.Constant
    )


def _one_line(node: ast.stmt) -> ast.expr | None:
    match node:
        case ast.If(test=test, body=body, orelse=orelse):
            return test if body[0].lineno == node.lineno and not orelse else None
        case ast.Assign(value=ast.Compare() as test) | ast.AugAssign(value=ast.Compare() as test):
            return test
    inside = [expression for expression in _expressions(node) if isinstance(expression, ast.IfExp)]
    if len(inside) == 1 and not isinstance(node, (ast.For, ast.While)):
        return inside[0].test
    return None


def _keys(statements: Sequence[ast.stmt]) -> dict[int, dict[str, None]]:
    """By line, the names that select the data of its calls: "k" of each of these.

    dist.all_reduce(m[k])
    t = torch.tensor(m[k]); dist.all_reduce(t)
    for k, v in m.items(): dist.all_reduce(v)
    """
    by_line: dict[int, dict[str, None]] = {}
    keys_of: dict[str, dict[str, None]] = {}  # by name, those that selected its value
    for node in statements:
        match node:
            case ast.For(
                target=ast.Tuple(elts=[ast.Name(id=key), ast.Name(id=value)]),
                iter=ast.Call(func=called),
            ):
                keys_of[value] = (
                    {key: None}
                    if isinstance(called, ast.Attribute) and called.attr == "items"
                    else {}
                )
            case ast.Assign(targets=[ast.Name(id=name)], value=data):
                keys_of[name] = dict.fromkeys(_selects(data, keys_of))
        for call in _expressions(node):
            if isinstance(call, ast.Call) and call.lineno == node.lineno:
                keys = (key for argument in call.args for key in _selects(argument, keys_of))
                by_line.setdefault(node.lineno, {}).update(dict.fromkeys(keys))
    return by_line


def _selects(data: ast.AST, keys_of: Mapping[str, Iterable[str]]) -> Iterator[str]:
    """The names that selected this data, which may have been copied or scaled since: not those of
    what else was computed from it, as a loss is of a sample."""
    match data:
        case ast.Subscript():
            yield from names_in(data.slice)
        case ast.Name(id=name):
            yield from keys_of.get(name, ())
        case ast.Attribute(value=value) | ast.Call(func=ast.Attribute(value=value, attr="item")):
            yield from _selects(value, keys_of)
        case ast.Call(func=func, args=args):
            if dotted(func).rpartition(".")[2] in _COPIES:
                if isinstance(func, ast.Attribute):
                    owner = [func.value]
                else:
                    owner = []
                for given in (*owner, *args[:1]):
                    yield from _selects(given, keys_of)
        case ast.BinOp(left=left, right=right):
            for side in (left, right):
                yield from _selects(side, keys_of)
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            for part in parts:
                yield from _selects(part, keys_of)


_COPIES = (
    *("tensor", "as_tensor", "clone", "detach", "float", "double", "int", "long", "to", "cuda"),
    *("cpu", "contiguous", "flatten", "reshape", "view", "unsqueeze", "squeeze"),
)
"""Functions and methods that return what they get, in another form."""


def outcome(test: ast.expr, values: Mapping[str, str | float | None]) -> bool | None:
    """The result of a test with these values of its names; None if they do not decide it.

    >>> outcome(ast.parse("rank == 1 and len(seen) > 2", mode="eval").body, {"rank": 1, "len(seen)": 3})
    True
    >>> outcome(ast.parse("mask is not None", mode="eval").body, {"mask.shape": "(3,)"})
    True
    """

    class Known(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            match node:
                case ast.Compare(left, [ast.Is() | ast.IsNot() as operator], [ast.Constant(None)]):
                    name = ast.unparse(left)
                    if not values.keys().isdisjoint(
                        (f"len({name})", f"{name}.shape", f"type({name})")
                    ):
                        return ast.Constant(isinstance(operator, ast.IsNot))
            name = ast.unparse(node) if isinstance(node, _NAMED) else ""
            if name in values:
                return ast.Name(name, ast.Load())
            return self.generic_visit(node)

    # Not a deepcopy: IPython's tracebacks link the nodes that all syntax trees share, such as Load,
    # to whole files.
    tree: Any = ast.fix_missing_locations(Known().visit(ast.parse(ast.unparse(test), mode="eval")))
    try:
        return bool(eval(compile(tree, "", "eval"), {"__builtins__": {}}, dict(values)))
    except Exception:  # a name without a value
        return None


_NAMED = (ast.Name, ast.Attribute, ast.Subscript, ast.Call)
_WORDS = re.compile(r"\w+")
_ATTRIBUTE = re.compile(r"\w+(?:\.\w+)+")


def dotted(node: ast.AST) -> str:
    """ "self.best" of a name or of attributes of one; "" of anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (owner := dotted(node.value)):
        return f"{owner}.{node.attr}"
    return ""


def stored_in(node: ast.AST) -> Iterator[str]:
    """The names that a statement, or its block, writes to: "start", "self.bad", "seen"."""
    inner = {  # what comprehensions bind
        target
        for part in ast.walk(node)
        if isinstance(part, ast.comprehension)
        for target in ast.walk(part.target)
    }
    for part in ast.walk(node):
        if part in inner:
            continue
        changes = isinstance(getattr(part, "ctx", None), (ast.Store, ast.Del))
        if changes and isinstance(part, (ast.Name, ast.Attribute)):
            yield dotted(part)
        elif changes and isinstance(part, ast.Subscript):
            yield _holder(part.value)
        elif isinstance(part, ast.Expr) and isinstance(part.value, ast.Call):  # seen.append(x)
            called = part.value.func
            if isinstance(called, ast.Attribute) and (
                called.attr in _CHANGES or called.attr.endswith("_")
            ):
                yield _holder(called.value)


def _holder(node: ast.expr) -> str:
    """The name of what holds an item: "seen" of `seen[key]` and of `seen.setdefault(key, [])`."""
    match node:
        case ast.Subscript(value=value) | ast.Call(func=ast.Attribute(value, "setdefault")):
            return _holder(value)
    return dotted(node)


_CHANGES = (
    *(
        "append",
        "extend",
        "insert",
        "add",
        "update",
        "setdefault",
        "pop",
        "popitem",
        "remove",
        "discard",
        "clear",
    ),
    *("appendleft", "popleft", "sort", "reverse", "rotate"),
)
"""Methods that change a container; methods that change a tensor end in "_"."""
