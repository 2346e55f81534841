"""Fixes: edits of a program's text, each applied and emulated before it is shown.

    with model.join():                        with model.join():
        for input in inputs:                      for input in inputs:
            model(input).backward()                   model(input).backward()
            dist.barrier()                        dist.barrier()

The edits that apply where the ranks' ways part are tried in turn, with the inputs of the run and then with those around
them: other equal counts where they were equal. The first after which every rank finishes for all of them is shown, with
how many were tried. `fewer` says that ranks then train on fewer inputs. An edit that changes what the program returns
where it finished before is not shown, and counts at which the program itself raises are not asked. Only what the user
has emulated is emulated again. How much is tried depends on the program alone, so that each reader is told the same.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import itertools
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from types import CodeType, FunctionType, MethodType
from typing import Any

import polars as pl
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from joinlab.emulator.again import Again
from joinlab.errors import LaunchError, ProgramError
from joinlab.program.branches import dotted, names_in
from joinlab.program.parting import Test
from joinlab.story.forms import cause_of
from joinlab.story.forms.fates import is_peer_gone
from joinlab.story.lines import Edit, Tried
from joinlab.story.scene import Scene
from joinlab.timeline import EndKind, PlainFix, Timeline

MAX_COUNTS = 24
MAX_CALLS = 1500
"""As many counts are tried as make about so many calls, and at least MIN_COUNTS."""
MIN_COUNTS = 4
MAX_EDITS = 8
TRY_SECONDS = 5.0
"""Real seconds after which an edited program is ended; after MAX_SECONDS in all no edit is begun, which is no aim."""
MAX_SECONDS = 20.0


def find_fixes(scene: Scene, again: Any) -> None:
    """Keep the fix of a run that went wrong, tried, in `meta["fixes"]`; [] where none is known.

    One after which ranks train on fewer inputs is given only where no other is found.

    Raises LaunchInterrupted if the user interrupts it.
    """
    timeline, found = scene.timeline, list[PlainFix]()
    if not _ended_well(timeline) and isinstance(again, Again):
        rows = timeline.calls.filter(pl.col("completed_ns").is_null() | pl.col("error").is_not_null())
        calls = (call.site for line in cause_of(scene) for call in line.calls)
        sites = {*rows["call_site"].drop_nulls(), *calls}
        tests, until = timeline.meta.get("parting", {}).get("tests", ()), time.monotonic() + MAX_SECONDS
        for edited in itertools.islice(_edited(again.program, tests, sites), MAX_EDITS):
            if (fix := _try(timeline, again, edited)) is not None:
                found.append(fix)
            if (found and not found[-1]["fewer"]) or time.monotonic() > until:
                break
    timeline.meta["fixes"] = sorted(found, key=lambda fix: fix["fewer"])[:1]


# ---------------------------------------------------------------------------------------- trying an edit


@dataclass(frozen=True, slots=True)
class Text:
    """The text of one function: its lines without indentation, and where they stand."""

    function: FunctionType
    lines: tuple[str, ...]
    first: int
    indent: str

    @classmethod
    def of(cls, function: FunctionType) -> Text | None:
        try:
            lines, first = inspect.getsourcelines(function)
            text = textwrap.dedent("".join(lines)).rstrip("\n")
            tree = ast.parse(text).body
        except (OSError, TypeError, SyntaxError, IndentationError):
            return None
        if len(tree) != 1 or not isinstance(tree[0], ast.FunctionDef) or tree[0].decorator_list:
            return None
        indent = lines[0][: len(lines[0]) - len(lines[0].lstrip())]
        return cls(function, tuple(text.split("\n")), first, indent)

    @property
    def tree(self) -> ast.FunctionDef:
        found = ast.parse("\n".join(self.lines)).body[0]
        assert isinstance(found, ast.FunctionDef)
        return found

    def compiled(self, names: dict[str, Any]) -> FunctionType:
        """The function that this text makes, with `names` as its module."""
        free = self.function.__code__.co_freevars
        text = "\n".join(self.lines)
        if free:
            text = f"def make({', '.join(free)}):\n{textwrap.indent(text, '    ')}\n    return {self.tree.name}"
        code = _inner(compile(text, f"{self.function.__code__.co_filename} (edited)", "exec"), self.tree.name)
        cells = dict(zip(free, self.function.__closure__ or (), strict=True))
        closure = tuple(cells[name] for name in code.co_freevars)
        made = FunctionType(code, names, self.function.__name__, self.function.__defaults__, closure)
        made.__kwdefaults__ = self.function.__kwdefaults__
        return made


def _inner(code: CodeType, name: str) -> CodeType:
    inner = [one for one in code.co_consts if isinstance(one, CodeType)]
    return next((one for one in inner if one.co_name == name), None) or _inner(inner[0], name)


@dataclass(frozen=True, slots=True)
class Edited:
    """A candidate: the text before and after, of the program or of a function that it calls."""

    kind: str
    before: Text
    after: Text

    def program(self, program: Any) -> Any:
        """The program with the edit."""
        function = program.__func__ if isinstance(program, MethodType) else program
        names = dict(function.__globals__)
        for name, value in function.__globals__.items():
            if isinstance(value, FunctionType) and value.__globals__ is function.__globals__:
                names[name] = self._made(value, names)
        made = self._made(function, names)  # type: ignore[arg-type]
        return MethodType(made, program.__self__) if isinstance(program, MethodType) else made

    def _made(self, function: FunctionType, names: dict[str, Any]) -> FunctionType:
        if function is self.before.function:
            return self.after.compiled(names)
        made = FunctionType(
            function.__code__, names, function.__name__, function.__defaults__, function.__closure__ or ()
        )
        made.__kwdefaults__ = function.__kwdefaults__
        return made

    def edits(self, tried: Tried) -> tuple[Edit, ...]:
        """The lines that it changes."""
        old, new = (
            [self.before.indent + one if one else one for one in text.lines] for text in (self.before, self.after)
        )
        file = self.before.function.__code__.co_filename
        blocks = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
        return tuple(
            Edit(file, self.before.first + a, tuple(old[a:b]), tuple(new[c:d]), tried)
            for tag, a, b, c, d in blocks
            if tag != "equal"
        )


def _try(timeline: Timeline, again: Again, edited: Edited) -> PlainFix | None:
    """The candidate as a fix, if every rank finishes with it for all counts that are tried."""
    try:
        program = edited.program(again.program)
        first = again.run(program, again.counts, TRY_SECONDS)
    except (LaunchError, ProgramError, SyntaxError):
        return None
    if not _good(first):
        return None
    trained = _trained(first)
    fewer = any(now < before for now, before in zip(trained, _trained(timeline), strict=True))
    fewer = fewer or (edited.kind == "same" and not any(trained))  # what nobody trains on is not counted
    even = (max(again.counts),) * len(again.counts)
    most, tried = max(MIN_COUNTS, min(MAX_COUNTS, MAX_CALLS // (first.calls.height + 30))), 1
    for counts in itertools.islice(dict.fromkeys([even, *_around(again.counts)]), most):
        if counts == again.counts:
            continue
        try:
            run = again.run(program, counts, TRY_SECONDS)
            before = again.run(again.program, counts, TRY_SECONDS) if counts == even or not _good(run) else None
        except LaunchError:
            return None
        if before is not None and (_changes(before, run) if _good(run) else not _raises(before)):
            return None
        tried += _good(run)
    edits: Any = [asdict(edit) for edit in edited.edits(Tried(tried, tried))]
    return {"kind": edited.kind, "edits": edits, "fewer": fewer}


def _changes(before: Timeline, after: Timeline) -> bool:
    """Whether an edit changes what a run that went well trains or returns."""
    return _good(before) and (_trained(before) != _trained(after) or repr(before.returns) != repr(after.returns))


def _raises(timeline: Timeline) -> bool:
    """Whether a rank raised an error of its own."""
    return any(end.kind is EndKind.RAISED and not is_peer_gone(end.text) for end in timeline.ends)


def _ended_well(timeline: Timeline) -> bool:
    return all(end.kind is EndKind.FINISHED and not end.pending for end in timeline.ends)


def _good(timeline: Timeline) -> bool:
    """Every rank has finished, and no call met one that it was not meant for."""
    return _ended_well(timeline) and cause_of(Scene(timeline))[0].form in ("all_finished", "replicas_differ")


def _trained(timeline: Timeline) -> list[int]:
    """By rank: backward passes begun."""
    spans = timeline.spans
    return [int(((spans["rank"] == rank) & (spans["name"] == "backward")).sum()) for rank in range(timeline.world_size)]


def _around(counts: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Counts near those of the run, the nearest first; equal ones where they were equal."""
    if len(set(counts)) == 1 and len(counts) > 1:
        return ((near,) * len(counts) for by in range(1, 5) for near in (counts[0] + by, counts[0] - by) if near >= 0)
    reach = 4 if len(counts) <= 2 else 1
    near = [sorted({max(0, count + by) for by in range(-reach, reach + 1)}) for count in counts[:4]]
    found = itertools.islice(itertools.product(*near), 10 * MAX_COUNTS)
    key: Callable[[tuple[int, ...]], int] = lambda some: sum(abs(a - b) for a, b in zip(some, counts, strict=False))  # noqa: E731
    return ((*some, *counts[4:]) for some in sorted(found, key=key))


# ---------------------------------------------------------------------------------------- which edits apply


def _edited(program: Any, tests: Sequence[Test], sites: set[str]) -> Iterator[Edited]:
    """The candidates, the best first, each text once."""
    function = program.__func__ if isinstance(program, MethodType) else program
    if not isinstance(function, FunctionType):
        return
    texts = []
    for one in dict.fromkeys([function, *_called(function)]):
        if (text := Text.of(one)) is not None:
            texts.append(text)
    seen = set()
    for make in (_agree, _behind, _module, _out, _both, _join, _root, _flag, _same):
        for text in texts:
            for kind, lines in make(Place(text, tests, sites)):
                after = replace(text, lines=tuple(lines))
                if after.lines not in seen and after.lines != text.lines:
                    seen.add(after.lines)
                    yield Edited(kind, text, after)


def _called(function: FunctionType) -> Iterator[FunctionType]:
    """The functions of its own module that a function names."""
    for name in function.__code__.co_names:
        value = function.__globals__.get(name)
        if isinstance(value, FunctionType) and value.__globals__ is function.__globals__:
            yield value


Candidate = tuple[str, list[str]]


class Place:
    """The text of a function, with the tests where ways part in it and the calls that did not fit."""

    def __init__(self, text: Text, tests: Sequence[Test], sites: set[str]) -> None:
        self.text, self.lines, self.tree = text, list(text.lines), text.tree
        self.names = text.function.__globals__
        file = text.function.__code__.co_filename
        here = range(text.first, text.first + len(text.lines))
        self.tests = [
            (test, test["line"] - text.first + 1) for test in tests if test["file"] == file and test["line"] in here
        ]
        split = (site.rpartition(":") for site in sites)
        self.sites = {
            int(n) - text.first + 1 for name, _, n in split if name == file and n.isdecimal() and int(n) in here
        }
        self.parents = {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}
        self.models = list(dict.fromkeys(self._models()))

    def last(self, kind: type | tuple[type, ...]) -> Any:
        """The statement where the ways part for good, if it is of this kind and in this text."""
        if not self.tests:
            return None
        line = self.tests[-1][1]
        return next((one for one in ast.walk(self.tree) if isinstance(one, kind) and one.lineno == line), None)  # type: ignore[attr-defined]

    def _models(self) -> Iterator[str]:
        for one in ast.walk(self.tree):
            if isinstance(one, ast.Assign):
                for target in one.targets:
                    pairs = [(target, one.value)]
                    if isinstance(target, ast.Tuple) and isinstance(one.value, ast.Tuple):
                        pairs = list(zip(target.elts, one.value.elts, strict=False))
                    for name, value in pairs:
                        if isinstance(value, ast.Call) and self.value_of(value.func) is DistributedDataParallel:
                            yield dotted(name)

    def value_of(self, node: ast.AST) -> Any:
        """What a dotted name of the module stands for."""
        first, *rest = dotted(node).split(".")
        value = self.names.get(first)
        for name in rest:
            value = getattr(value, name, None) if inspect.ismodule(value) else None
        return value

    def runs(self, node: ast.AST) -> list[str]:
        """The models that are called in a node."""
        called = {dotted(one.func) for one in ast.walk(node) if isinstance(one, ast.Call)}
        return [model for model in self.models if model in called]

    def own_calls(self, node: ast.AST) -> list[ast.Expr]:
        """Statements in a node that are one call of torch.distributed, nothing else."""
        found = [one for one in ast.walk(node) if isinstance(one, ast.Expr) and isinstance(one.value, ast.Call)]
        return [one for one in found if inspect.getmodule(self.value_of(one.value.func)) is dist.distributed_c10d]  # type: ignore[attr-defined]

    def around(self, node: ast.AST, kind: type) -> list[Any]:
        """The statements of a kind around a node, the outermost first."""
        found = []
        while (parent := self.parents.get(node)) is not None:
            node = parent
            if isinstance(node, kind):
                found.append(node)
        return found[::-1]

    def put(self, node: ast.stmt, *new: str, until: int | None = None) -> list[str]:
        """The lines with these, at the statement's indentation, in front of it; in place of those to line `until`."""
        first = node.lineno - 1
        rest = self.lines[first if until is None else until :]
        return [*self.lines[:first], *(" " * node.col_offset + line for line in new), *rest]

    def agree(self, name: str, value: str, op: str) -> tuple[str, str] | None:
        """The lines that make `name` the `op` of all ranks' `value`; None where the module lacks torch or dist."""
        torch_name, dist_name = self.module(torch), self.module(dist)
        if not torch_name or not dist_name:
            return None
        return f"{name} = {torch_name}.tensor({value})", f"{dist_name}.all_reduce({name}, op={dist_name}.ReduceOp.{op})"

    def module(self, value: Any) -> str | None:
        """What a module is called here: "dist"."""
        return next((key for key, known in self.names.items() if known is value), None)


def _cut(lines: Sequence[str], node: ast.stmt) -> tuple[list[str], str]:
    """The lines without a statement, and its text. A block that would be empty gets a `pass`."""
    found, last = list(lines), node.end_lineno or node.lineno
    head, tail = found[node.lineno - 1][: node.col_offset], found[last - 1][node.end_col_offset :]
    text = ast.get_source_segment("\n".join(lines), node) or ast.unparse(node)
    rest = tail.strip().removeprefix(";").strip()
    if rest.startswith("#"):
        rest = ""
    if head.strip():
        kept = (head + rest) if rest else head.rstrip().removesuffix(";").rstrip()
        found[node.lineno - 1 : last] = [kept + " pass" if kept.endswith(":") else kept]
    else:
        found[node.lineno - 1 : last] = [head + rest] if rest else []
    return found, text


def _parsed(lines: Sequence[str]) -> bool:
    try:
        ast.parse("\n".join(lines))
    except SyntaxError:
        return False
    return True


def _moved(place: Place, call: ast.Expr, block: ast.stmt, in_front: bool = False) -> list[str] | None:
    """A call of its own put behind a block that holds it, or in front of it."""
    lines, text = _cut(place.lines, call)
    with_pass = [*lines[: call.lineno - 1], " " * call.col_offset + "pass", *lines[call.lineno - 1 :]]
    for some in (lines, with_pass):
        at = block.lineno - 1 if in_front else (block.end_lineno or block.lineno) - len(place.lines) + len(some)
        new = [*some[:at], " " * block.col_offset + text, *some[at:]]
        if _parsed(new):
            return new
    return None


def _free(place: Place, call: ast.Expr, block: ast.AST) -> bool:
    """Whether nothing else in a block reads what a call works on, so that the call may come later."""
    works = {name.id for name in ast.walk(call.value) if isinstance(name, ast.Name)} - place.names.keys()
    inside = set(ast.walk(call))
    reads = {one.id for one in ast.walk(block) if isinstance(one, ast.Name) and one not in inside}
    return not works & reads or not call.value.args  # type: ignore[attr-defined]


def _behind(place: Place) -> Iterator[Candidate]:
    """A call of the program's own that stands in a block of join(), behind the block."""
    for call in place.own_calls(place.tree):
        for block in place.around(call, ast.With)[::-1]:
            joins = ".join(" in ast.unparse(block.items[0])
            if joins and _free(place, call, block) and (lines := _moved(place, call, block)):
                yield "behind", lines


def _out(place: Place) -> Iterator[Candidate]:
    """A call that only some ranks issue, out of its `if`."""
    branch: ast.If | None = place.last(ast.If)
    for call in place.own_calls(branch) if branch is not None else ():
        assert branch is not None
        if place.parents[call] is branch and call.lineno in place.sites:
            if len(branch.body) == 1 and not branch.orelse:
                text = ast.get_source_segment("\n".join(place.lines), call) or ""
                yield "out", place.put(branch, text, until=branch.end_lineno)
            elif lines := _moved(place, call, branch, in_front=not _free(place, call, branch)):
                yield "out", lines


def _both(place: Place) -> Iterator[Candidate]:
    """The blocks of an `if` and its `else`, each with a collective of another kind, one behind the other."""
    branch: ast.If | None = place.last(ast.If)
    if branch is None or branch.body[0].lineno == branch.lineno:
        return
    calls = [[dotted(call.value.func) for one in block for call in place.own_calls(one)]  # type: ignore[attr-defined]
             for block in (branch.body, branch.orelse)]  # fmt: skip
    if all(calls) and not {*calls[0]} & {*calls[1]}:
        body = place.lines[branch.lineno : branch.body[-1].end_lineno]
        other = place.lines[branch.orelse[0].lineno - 1 : branch.end_lineno]
        lines = textwrap.dedent("\n".join(body)).split("\n") + textwrap.dedent("\n".join(other)).split("\n")
        yield "both", place.put(branch, *lines, until=branch.end_lineno)


def _join(place: Place) -> Iterator[Candidate]:
    """A loop that trains, in join(); a call of its own in it comes behind it."""
    parts = place.last((ast.For, ast.While)) or place.last(ast.If)
    leaves = isinstance(parts, ast.If) and any(isinstance(one, (ast.Break, ast.Return)) for one in ast.walk(parts))
    if parts is None or (isinstance(parts, ast.If) and not leaves):
        return
    loops = [one for one in ast.walk(place.tree) if isinstance(one, (ast.For, ast.While)) and place.runs(one)]
    for loop in sorted(loops, key=lambda one: one.col_offset):
        for model in place.runs(loop)[:1]:
            if any(".join(" in ast.unparse(block.items[0]) for block in place.around(loop, ast.With)):
                continue
            lines = _wrapped(place.lines, loop, f"with {model}.join():")
            yield "join", lines
            new = Place(replace(place.text, lines=tuple(lines)), [], set())
            calls = new.own_calls(new.tree)
            inside = [
                call for call in calls if any(".join(" in ast.unparse(b.items[0]) for b in new.around(call, ast.With))
            ]
            if len(inside) == 1:
                yield from (("join, behind", found) for _, found in _behind(new))


def _wrapped(lines: Sequence[str], node: ast.stmt, head: str) -> list[str]:
    last = node.end_lineno or node.lineno
    body = [f"    {line}" if line else line for line in lines[node.lineno - 1 : last]]
    return [*lines[: node.lineno - 1], " " * node.col_offset + head, *body, *lines[last:]]


def _agree(place: Place) -> Iterator[Candidate]:
    """A number that ranks have set otherwise, and that decides how often a loop runs: the least of all ranks'."""
    loop = place.last(ast.For)
    if loop is None or not isinstance(loop.iter, ast.Call):
        return
    test = place.tests[-1][0]
    for name in dict.fromkeys(names_in(loop.iter)):
        values = [read["value"] for read in test["values"] if read["name"] == name]
        if "." in name or name == "rank" or len(set(values)) < 2 or any(type(value) is not int for value in values):
            continue
        if made := place.agree("least", name, "MIN"):
            yield "agree", place.put(loop, *made, f"{name} = int(least)")


def _flag(place: Place) -> Iterator[Candidate]:
    """Leave a loop, or skip the rest of a step, where any rank wants to."""
    branch = place.last(ast.If)
    if branch is None or not isinstance(branch.body[-1], (ast.Break, ast.Return, ast.Continue)):
        return
    tail = place.lines[branch.test.end_lineno - 1][branch.test.end_col_offset :]
    if made := place.agree("flag", f"float({ast.unparse(branch.test)})", "MAX"):
        yield "flag", place.put(branch, *made, f"if flag.item(){tail}", until=branch.test.end_lineno)


def _same(place: Place) -> Iterator[Candidate]:
    """As many inputs for each rank as the one with fewest has."""
    loop = place.last(ast.For)
    if loop is None or not isinstance(loop.iter, ast.Name):
        return
    line, end = place.lines[loop.lineno - 1], loop.iter.end_col_offset
    changed = (line[:end] + "[: int(count)]" + line[end:]).strip()
    if made := place.agree("count", f"len({loop.iter.id})", "MIN"):
        yield "same", place.put(loop, *made, changed, until=loop.lineno)


def _module(place: Place) -> Iterator[Candidate]:
    """`model.module(...)` where one rank alone evaluates."""
    branch: ast.If | None = place.last(ast.If)
    if branch is None:
        return
    calls = [
        one.func
        for one in ast.walk(branch)
        if isinstance(one, ast.Call) and dotted(one.func) in place.models and one.lineno in place.sites
    ]
    if not calls or any("backward" in ast.unparse(one) for one in branch.body):
        return
    lines = list(place.lines)
    for node in sorted(calls, key=lambda one: (one.lineno, one.col_offset), reverse=True):
        line = lines[node.lineno - 1]
        lines[node.lineno - 1] = line[: node.end_col_offset] + ".module" + line[node.end_col_offset :]
    yield "module", lines


def _root(place: Place) -> Iterator[Candidate]:
    """Rank 0 as the root for all, where ranks name different ones."""
    for call in ast.walk(place.tree):
        if not isinstance(call, ast.Call) or call.lineno not in place.sites:
            continue
        for keyword in call.keywords:
            if keyword.arg in ("src", "dst") and not isinstance(keyword.value, ast.Constant):
                node = keyword.value
                line = place.lines[node.lineno - 1]
                changed = line[: node.col_offset] + "0" + line[node.end_col_offset :]
                yield "root", [*place.lines[: node.lineno - 1], changed, *place.lines[node.end_lineno :]]
