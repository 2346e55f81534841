"""Fixes: edits of a program's text, each applied and emulated before it is shown.

    with model.join():                        with model.join():
        for input in inputs:                      for input in inputs:
            model(input).backward()                   model(input).backward()
            dist.barrier()                        dist.barrier()

The edits that apply where the ranks' ways part are tried in turn, with the run's counts of inputs
and then with nearby ones (equal ones if the run's were equal). The first edit with which every rank
finishes for all counts is shown, with the number of counts. `fewer` says that ranks then train on
fewer inputs, or issue fewer calls from a line that the edit does not move. An edit that changes the
results of a run that finished before is rejected; counts at which the program itself raises are
skipped. Only programs that the user has emulated are tried. The number of trials depends on the
program alone, so that every reader sees the same fix.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import itertools
import linecache
import re
import textwrap
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import asdict, dataclass
from types import CodeType, FunctionType, MethodType
from typing import Any

import polars as pl
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from joinlab.analysis.meanings import is_own
from joinlab.emulator.again import Again
from joinlab.errors import LaunchError, ProgramError
from joinlab.program.branches import dotted, names_in
from joinlab.program.parting import Test
from joinlab.story.forms import cause_of
from joinlab.story.forms.fates import is_peer_gone
from joinlab.story.lines import Edit
from joinlab.story.scene import Scene
from joinlab.timeline import EndKind, PlainFix, Timeline

MAX_COUNTS = 24
MAX_CALLS = 1500
"""Counts are tried until they add up to about so many calls; at least MIN_COUNTS."""
MIN_COUNTS = 4
MAX_EDITS = 8
TRY_SECONDS = 5.0
"""Real seconds after which an edited program is ended; no edit begins after MAX_SECONDS in all, a
rare last resort."""
MAX_SECONDS = 20.0
EDITED = " (edited)"
"""Suffix of an edited file's name."""


def find_fixes(scene: Scene, again: Any) -> None:
    """Store a tested fix for a failed run in `meta["fixes"]`; [] if none is found.

    A fix with which ranks train on fewer inputs is stored only if there is no other.

    Raises LaunchInterrupted if the user interrupts it.
    """
    timeline, found = scene.timeline, list[PlainFix]()
    if not _ended_well(timeline) and isinstance(again, Again):
        rows = timeline.calls.filter(
            pl.col("completed_ns").is_null() | pl.col("error").is_not_null()
        )
        calls = (call.site for line in cause_of(scene) for call in line.calls)
        sites = {*rows["call_site"].drop_nulls(), *calls}
        tests, until = (
            timeline.meta.get("parting", {}).get("tests", ()),
            time.monotonic() + MAX_SECONDS,
        )
        for edited in itertools.islice(_edited(again.program, tests, sites), MAX_EDITS):
            if (fix := _try(timeline, again, edited)) is not None:
                found.append(fix)
            if (found and not found[-1]["fewer"]) or time.monotonic() > until:
                break
    timeline.meta["fixes"] = sorted(found, key=lambda fix: fix["fewer"])[:1]


# ---------------------------------------------------------------------------------------- trying an
# edit


class Place:
    """The dedented text of one function, the tests in it at which ways part, and its calls that did
    not fit.

    Raises OSError, TypeError, SyntaxError or ValueError if the text is missing or cannot be edited.
    """

    def __init__(
        self, function: FunctionType, tests: Sequence[Test] = (), sites: Collection[str] = ()
    ) -> None:
        lines, self.first = inspect.getsourcelines(function)
        self.function, self.names = function, function.__globals__
        self.indent = lines[0][: len(lines[0]) - len(lines[0].lstrip())]
        self.read(textwrap.dedent("".join(lines)).rstrip("\n") + "\n")
        file, here = function.__code__.co_filename, range(self.first, self.first + len(lines))
        self.tests = [test for test in tests if test["file"] == file and test["line"] in here]
        places = (site.rpartition(":") for site in sites)
        self.sites = {
            int(n) - self.first + 1 for name, _, n in places if name == file and n.isdecimal()
        }

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
        self.models = list(dict.fromkeys(self._models()))

    # ---------------------------------------------------------------- reading the text

    def last(self, *kinds: type) -> Any:
        """The statement at which the ways finally part, if it is in this text and of these
        kinds."""
        line = self.tests[-1]["line"] - self.first + 1 if self.tests else None
        for node in ast.walk(self.tree):
            if isinstance(node, kinds) and node.lineno == line:  # type: ignore[attr-defined]
                return node
        return None

    def _models(self) -> Iterator[str]:
        for one in ast.walk(self.tree):
            for target in one.targets if isinstance(one, ast.Assign) else ():
                pairs = [(target, one.value)]  # type: ignore[attr-defined]
                if isinstance(target, ast.Tuple) and isinstance(pairs[0][1], ast.Tuple):
                    pairs = list(zip(target.elts, pairs[0][1].elts, strict=False))
                for name, value in pairs:
                    if (
                        isinstance(value, ast.Call)
                        and self.value_of(value.func) is DistributedDataParallel
                    ):
                        yield dotted(name)

    def value_of(self, node: ast.AST) -> Any:
        """The value of a dotted name of the module."""
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
        """Statements in a node that consist of one call of torch.distributed."""
        found = [
            one
            for one in ast.walk(node)
            if isinstance(one, ast.Expr) and isinstance(one.value, ast.Call)
        ]
        return [
            one
            for one in found
            if inspect.getmodule(self.value_of(one.value.func))  # type: ignore[attr-defined]
            is dist.distributed_c10d
        ]

    def joins(self, node: ast.AST) -> list[ast.With]:
        """The blocks of join() around a node, the innermost first."""
        found = []
        while (node := self.parents.get(node)) is not None:  # type: ignore[assignment]
            match node:
                case ast.With(items=[ast.withitem(context_expr=ast.Call(func=func)), *_]):
                    if dotted(func).rpartition(".")[2] in ("join", "Join"):
                        found.append(node)
        return found

    # ---------------------------------------------------------------- editing the text

    def changed(self, *changes: Change) -> str:
        """The text with these bytes replaced."""
        found, at = b"", 0
        for begin, end, new in sorted(changes, key=lambda one: one[0]):
            found, at = found + self.bytes[at:begin] + new.encode(), end
        return (found + self.bytes[at:]).decode()

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """First byte of a node, and the byte after it."""
        begin, end = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        return self.starts[begin] + node.col_offset, self.starts[end] + (node.end_col_offset or 0)

    def lines(self, node: ast.stmt) -> tuple[int, int]:
        """First byte of a statement's lines, and the byte after them."""
        return self.starts[node.lineno - 1], self.starts[node.end_lineno or node.lineno]

    def source(self, begin: int, end: int) -> str:
        return self.bytes[begin:end].decode()

    def put(self, node: ast.stmt, *new: str, behind: bool = False) -> Change:
        """The change that puts these lines before or after a statement, with its indentation."""
        at = self.lines(node)[behind]
        return at, at, "".join(f"{' ' * node.col_offset}{line}\n" for line in new)

    def agree(self, name: str, value: str, op: str) -> tuple[str, ...]:
        """The lines that set `name` to the `op` of all ranks' `value`; none if the module lacks
        torch or dist."""
        called = [
            next((key for key, known in self.names.items() if known is one), "")
            for one in (torch, dist)
        ]
        reduced = f"{called[1]}.all_reduce({name}, op={called[1]}.ReduceOp.{op})"
        return (f"{name} = {called[0]}.tensor({value})", reduced) if all(called) else ()


Change = tuple[int, int, str]
"""First byte, the byte after the last, and the text that replaces these bytes."""


@dataclass(frozen=True, slots=True)
class Edited:
    """A candidate: the kind of edit, and the text before and after, of the program or of a function
    that it calls."""

    kind: str
    before: Place
    after: str

    def program(self, program: Any) -> Any:
        """The program with the edit."""
        function = program.__func__ if isinstance(program, MethodType) else program
        names = dict(function.__globals__)
        for name, value in function.__globals__.items():
            if isinstance(value, FunctionType) and value.__globals__ is function.__globals__:
                names[name] = self._made(value, names)
        made = self._made(function, names)
        return MethodType(made, program.__self__) if isinstance(program, MethodType) else made

    def _made(self, function: Any, names: dict[str, Any]) -> FunctionType:
        code = function.__code__
        cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
        if function is self.before.function:
            whole = ast.parse(self.after)
            if cells:  # variables of the enclosing function
                whole = ast.parse(f"def within({', '.join(cells)}): pass")
                whole.body[0].body = ast.parse(self.after).body  # type: ignore[attr-defined]
            code = compile(whole, code.co_filename + EDITED, "exec")
            for name in (*["within"][: len(cells)], self.before.tree.name):
                inner = (one for one in code.co_consts if isinstance(one, CodeType))
                code = next(one for one in inner if one.co_name == name)
        closure = tuple(cells[name] for name in code.co_freevars)
        made = FunctionType(code, names, function.__name__, function.__defaults__, closure)
        made.__kwdefaults__ = function.__kwdefaults__
        return made

    def edits(self) -> tuple[Edit, ...]:
        texts = (self.before.text, self.after)
        old, new = (
            [self.before.indent + one if one else one for one in text.splitlines()]
            for text in texts
        )
        file = self.before.function.__code__.co_filename
        blocks = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
        return tuple(
            Edit(file, self.before.first + a, tuple(old[a:b]), tuple(new[c:d]))
            for tag, a, b, c, d in blocks
            if tag != "equal"
        )


def _try(timeline: Timeline, again: Again, edited: Edited) -> PlainFix | None:
    """The candidate as a fix, if every rank finishes with it for all counts tried."""
    try:
        program = edited.program(again.program)
        first = again.run(program, again.counts, TRY_SECONDS)
    except (LaunchError, ProgramError, SyntaxError):
        return None
    if not _good(first):
        return None
    now, then = (_work(run, edited.after) for run in (first, timeline))
    moved = {line.strip() for edit in edited.edits() for line in edit.removed}
    fewer = edited.kind in ("flag", "same") or any(
        now[rank, line] < many for (rank, line), many in then.items() if line not in moved
    )
    even = (max(again.counts),) * len(again.counts)
    most, tried = max(MIN_COUNTS, min(MAX_COUNTS, MAX_CALLS // (first.calls.height + 30))), 1
    for counts in itertools.islice(dict.fromkeys([even, *_around(again.counts)]), most):
        if counts == again.counts:
            continue
        try:
            run = again.run(program, counts, TRY_SECONDS)
            before = (
                again.run(again.program, counts, TRY_SECONDS)
                if counts == even or not _good(run)
                else None
            )
        except LaunchError:
            return None
        if before is not None and (_changes(before, run) if _good(run) else not _raises(before)):
            return None
        tried += _good(run)
    edits: Any = [asdict(edit) for edit in edited.edits()]
    return {"kind": edited.kind, "edits": edits, "fewer": fewer, "tried": tried}


def _changes(before: Timeline, after: Timeline) -> bool:
    """Whether an edit changes the training or the results of a run that finished before."""
    return _good(before) and (
        _trained(before) != _trained(after) or repr(before.returns) != repr(after.returns)
    )


def _raises(timeline: Timeline) -> bool:
    """Whether a rank raised an error of its own."""
    return any(end.kind is EndKind.RAISED and not is_peer_gone(end.text) for end in timeline.ends)


def _ended_well(timeline: Timeline) -> bool:
    return all(end.kind is EndKind.FINISHED and not end.pending for end in timeline.ends)


def _good(timeline: Timeline) -> bool:
    """Whether every rank has finished, and no call met one that it was not meant for."""
    return _ended_well(timeline) and cause_of(Scene(timeline))[0].form in (
        "all_finished",
        "replicas_differ",
    )


def _trained(timeline: Timeline) -> list[int]:
    """By rank: backward passes begun."""
    spans = timeline.spans
    return [
        int(((spans["rank"] == rank) & (spans["name"] == "backward")).sum())
        for rank in range(timeline.world_size)
    ]


def _work(timeline: Timeline, edited: str) -> Counter[tuple[int, str]]:
    """By rank: the number of backward passes, under ""; and of calls, under the text of the line
    they came from.

    Calls that DDP and Join issue by themselves are left out, since their number depends on how the
    ranks continue.
    """
    found = Counter({(rank, ""): count for rank, count in enumerate(_trained(timeline))})
    lines = edited.splitlines()
    for rank, site, origin in timeline.calls.select("rank", "call_site", "origin").iter_rows():
        if site is None or not is_own(origin or ""):
            continue
        file, _, line = site.rpartition(":")
        text = lines[int(line) - 1] if file.endswith(EDITED) else linecache.getline(file, int(line))
        found[rank, text.strip()] += 1
    return found


def _around(counts: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Counts near those of the run, nearest first; only equal ones if the run's were equal."""
    if len(set(counts)) == 1 and len(counts) > 1:
        return (
            (near,) * len(counts)
            for by in range(1, 5)
            for near in (counts[0] + by, counts[0] - by)
            if near >= 0
        )
    reach = 4 if len(counts) <= 2 else 1
    near = [sorted({max(0, count + by) for by in range(-reach, reach + 1)}) for count in counts[:4]]
    found = itertools.islice(itertools.product(*near), 10 * MAX_COUNTS)

    def distance(tried: tuple[int, ...]) -> int:
        return sum(abs(a - b) for a, b in zip(tried, counts, strict=False))

    return ((*tried, *counts[4:]) for tried in sorted(found, key=distance))


# ---------------------------------------------------------------------------------------- which
# edits apply


def _edited(program: Any, tests: Sequence[Test], sites: Collection[str]) -> Iterator[Edited]:
    """The candidates, the best first, each text once."""
    function = program.__func__ if isinstance(program, MethodType) else program
    if not isinstance(function, FunctionType):
        return
    places = []
    for one in dict.fromkeys([function, *_called(function)]):
        with suppress(OSError, TypeError, SyntaxError, ValueError):
            places.append(Place(one, tests, sites))
    seen = {place.text for place in places}
    for make in (_agree, _behind, _module, _out, _join, _root, _flag, _same):
        for place in places:
            for kind, text in make(place):
                if text not in seen:
                    seen.add(text)
                    yield Edited(kind, place, text)


def _called(function: FunctionType) -> Iterator[FunctionType]:
    """The functions of its own module that a function names."""
    for name in function.__code__.co_names:
        value = function.__globals__.get(name)
        if isinstance(value, FunctionType) and value.__globals__ is function.__globals__:
            yield value


Candidate = tuple[str, str]
"""The kind of an edit, and the text after it."""


def _moved(place: Place, call: ast.Expr, block: ast.stmt, behind: bool = True) -> str | None:
    """Move a call of the program's own after a block that holds it, or before it."""
    put = place.put(block, place.source(*place.span(call)), behind=behind)
    (begin, end), (first, last) = place.span(call), place.lines(call)
    before, after = place.source(first, begin), place.source(end, last).partition("#")[0]
    cuts = [(begin, end, "pass")]  # a block must not be left empty
    if not before.strip() and not after.strip():
        cuts.insert(0, (first, last, ""))
    elif found := re.search(r"\s*;\s*$", before):
        cuts.insert(0, (begin - len(found[0]), end, ""))
    elif found := re.match(r"\s*;\s*", after):
        cuts.insert(0, (begin, end + len(found[0]), ""))
    for text in (place.changed(cut, put) for cut in cuts):
        with suppress(SyntaxError):
            ast.parse(text)
            return text
    return None


def _free(place: Place, call: ast.Expr, block: ast.AST) -> bool:
    """Whether nothing else in a block reads the data of a call, so that the call may come later."""
    works = {
        name.id for name in ast.walk(call.value) if isinstance(name, ast.Name)
    } - place.names.keys()
    inside = set(ast.walk(call))
    reads = {one.id for one in ast.walk(block) if isinstance(one, ast.Name) and one not in inside}
    return not works & reads or not call.value.args  # type: ignore[attr-defined]


def _behind(place: Place) -> Iterator[Candidate]:
    """Move a call of the program's own in a block of join() after the block."""
    for call in place.own_calls(place.tree):
        for block in place.joins(call):
            if _free(place, call, block) and (text := _moved(place, call, block)):
                yield "behind", text


def _out(place: Place) -> Iterator[Candidate]:
    """Move a call that only some ranks issue out of its `if`; with its block, if that sets what the
    call reads."""
    branch: ast.If | None = place.last(ast.If)
    if branch is None:
        return
    calls = [
        one
        for one in place.own_calls(branch)
        if place.parents[one] is branch and one.lineno in place.sites
    ]
    alone = len(branch.body) == 1 and not branch.orelse
    for call in () if alone else calls:
        if text := _moved(place, call, branch, behind=_free(place, call, branch)):
            yield "out", text
    if calls and (alone or not (branch.orelse or _leaves(branch) or _is_for_some_ranks(place))):
        body = place.source(place.span(branch.body[0])[0], place.span(branch)[1])
        block = textwrap.indent(
            textwrap.dedent(" " * branch.body[0].col_offset + body), " " * branch.col_offset
        )
        yield "out", place.changed((*place.span(branch), block.lstrip()))


def _join(place: Place) -> Iterator[Candidate]:
    """Wrap a training loop in join(), and move a call of the program's own in it after the loop."""
    parts = place.last(ast.For, ast.While, ast.If)
    leaves = (
        any(isinstance(one, (ast.Break, ast.Return)) for one in ast.walk(parts))
        if parts is not None
        else False
    )
    if parts is None or (isinstance(parts, ast.If) and not leaves):
        return
    loops = [
        one
        for one in ast.walk(place.tree)
        if isinstance(one, (ast.For, ast.While)) and place.runs(one)
    ]
    for loop in sorted(loops, key=lambda one: one.col_offset):
        if place.joins(loop):
            continue
        starts = place.starts[loop.lineno - 1 : loop.end_lineno]
        deeper = ((at, at, "    ") for at in starts if place.bytes[at : at + 1] != b"\n")
        text = place.changed(place.put(loop, f"with {place.runs(loop)[0]}.join():"), *deeper)
        yield "join", text
        after = copy(place)
        after.read(text)
        if len([call for call in after.own_calls(after.tree) if after.joins(call)]) == 1:
            yield from (("join, behind", found) for _, found in _behind(after))


def _agree(place: Place) -> Iterator[Candidate]:
    """Let all ranks use the smallest of their values for a number that decides how often a loop
    runs."""
    loop = place.last(ast.For)
    if loop is None or not isinstance(loop.iter, ast.Call):
        return
    test = place.tests[-1]
    for name in dict.fromkeys(names_in(loop.iter)):
        values = [read["value"] for read in test["values"] if read["name"] == name]
        if (
            "." in name
            or name == "rank"
            or len(set(values)) < 2
            or any(type(value) is not int for value in values)
        ):
            continue
        if made := place.agree("least", name, "MIN"):
            yield "agree", place.changed(place.put(loop, *made, f"{name} = int(least)"))


def _flag(place: Place) -> Iterator[Candidate]:
    """Let all ranks leave a loop, or skip the rest of a step, as soon as any rank does."""
    branch = place.last(ast.If)
    if branch is None or not _leaves(branch):
        return
    if place.joins(branch):
        # join() shadows no calls of the program: with uneven inputs, a flag would meet join()'s
        return
    if _is_for_some_ranks(place):
        return
    if made := place.agree("flag", f"float({ast.unparse(branch.test)})", "MAX"):
        yield (
            "flag",
            place.changed(place.put(branch, *made), (*place.span(branch.test), "flag.item()")),
        )


def _leaves(branch: ast.If) -> bool:
    return isinstance(branch.body[-1], (ast.Break, ast.Return, ast.Continue))


def _is_for_some_ranks(place: Place) -> bool:
    """Whether the test reads nothing but the rank's number."""
    values = [
        (read["ranks"], read["value"])
        for read in place.tests[-1]["values"]
        if "(" not in read["name"]
    ]  # no len()
    return bool(values) and all(ranks == [value] and type(value) is int for ranks, value in values)


def _same(place: Place) -> Iterator[Candidate]:
    """Give every rank as many inputs as the rank with the fewest."""
    loop = place.last(ast.For)
    if loop is None or not isinstance(loop.iter, ast.Name):
        return
    if made := place.agree("count", f"len({loop.iter.id})", "MIN"):
        end = place.span(loop.iter)[1]
        yield "same", place.changed(place.put(loop, *made), (end, end, "[: int(count)]"))


def _module(place: Place) -> Iterator[Candidate]:
    """Call `model.module(...)` where one rank alone evaluates."""
    branch: ast.If | None = place.last(ast.If)
    if branch is None or any("backward" in ast.unparse(one) for one in branch.body):
        return
    calls = [
        one
        for one in ast.walk(branch)
        if isinstance(one, ast.Call) and dotted(one.func) in place.models
    ]
    ends = [place.span(one.func)[1] for one in calls if one.lineno in place.sites]
    if ends:
        yield "module", place.changed(*((end, end, ".module") for end in ends))


def _root(place: Place) -> Iterator[Candidate]:
    """Make rank 0 the root on every rank if the ranks name different roots."""
    for call in ast.walk(place.tree):
        for keyword in (
            call.keywords if isinstance(call, ast.Call) and call.lineno in place.sites else ()
        ):
            if keyword.arg in ("src", "dst") and not isinstance(keyword.value, ast.Constant):
                yield "root", place.changed((*place.span(keyword.value), "0"))
