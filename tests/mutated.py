"""Checks the stories of 40 programs that are drawn: healthy ones with one change each, whose truth
follows from the change.

    python -m tests.mutated                     the 40 programs, emulated on gloo and on NCCL
    python -m tests.mutated --seed 7 --tell     others, with their stories

The sources are the tutorials and the healthy programs of tests/material. A change is one of four,
made for one rank:

    branch    `if rank == 1:` around a statement that issues calls
    removed   the statement is left out on one rank, in a branch of its own
    cut       a loop that issues calls leaves out its first round
    swapped   two statements that issue calls come in the other order
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib.util
import inspect
import io
import itertools
import random
import sys
import tempfile
import textwrap
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import joinlab
from joinlab.errors import JoinlabError
from joinlab.timeline import EndKind, Timeline
from tests.material import tutorials
from tests.unseen import KINDS, Check, Row, program_of, short, summary, table, worst_of

SEED = 20261124
"""Committed before the first run."""

EACH = 10
"""Programs of each kind."""

WRONG = ("NameError", "UnboundLocalError", "AttributeError", "TypeError", "IndexError")
"""Errors of a rank that the change itself made: such a draw is no program of a user."""


@dataclass(frozen=True)
class Source:
    """A healthy program: its name, its function, and the lines from which it issues calls."""

    name: str
    program: Callable[..., Any]
    inputs: tuple[int, ...]


@dataclass(frozen=True)
class Mutant:
    """A changed program, and what is so of it. `line`: of the change, counted in the new file."""

    kind: str
    source: Source
    rank: int
    text: str
    line: int
    statements: tuple[int, ...]
    roles: tuple[int, ...]
    joined: bool


def sources() -> list[Source]:
    """The tutorials, and users' healthy programs."""
    each = [Source(script.__name__, script, (0, 0)) for script in tutorials.SCRIPTS]
    healthy = [name for name, row in table().items() if row.healthy and "." not in name]
    return [*each, *(Source(name, program_of(name), table()[name].inputs) for name in healthy)]


def drawn(seed: int = SEED) -> Iterator[tuple[str, Mutant]]:
    """EACH programs of each kind, with a name; the same ones for a seed."""
    pool = sources()
    for kind in ("branch", "removed", "cut", "swapped"):
        dice, count = random.Random(f"{seed} {kind}"), 0
        tried: set[tuple[str, int, int]] = set()
        while count < EACH:
            source = dice.choice(pool)
            rank = dice.randrange(len(source.inputs))
            candidates = list(mutants(kind, source, rank))
            mutant = dice.choice(candidates) if candidates else None
            if mutant is None or (source.name, mutant.line, rank) in tried or not sound(mutant):
                continue
            tried.add((source.name, mutant.line, rank))
            count += 1
            yield f"{kind}{count:02}_{source.name}", mutant


def sound(mutant: Mutant) -> bool:
    """Whether it runs, and issues other calls than its source: no rank fails by an error that the
    change itself made."""
    with tempfile.TemporaryDirectory() as folder:
        timeline = run(mutant, Path(folder), "gloo")
    if timeline is None or any(end.text.startswith(WRONG) for end in timeline.ends):
        return False
    healthy = emulated(mutant.source.program, mutant.source.inputs, "gloo")
    assert healthy is not None
    names = ("rank", "group", "op", "shape", "peer")
    return not timeline.calls.select(names).equals(healthy.calls.select(names))


# ---------------- the changes


def mutants(kind: str, source: Source, rank: int) -> Iterator[Mutant]:
    """Every change of this kind, for one rank, of a program's function."""
    file = Path(inspect.getsourcefile(source.program) or "")
    text = file.read_text(encoding="utf-8")
    lines = text.splitlines()
    function = next(
        node
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef) and node.name == source.program.__name__
    )
    parents = {child: node for node in ast.walk(function) for child in ast.iter_child_nodes(node)}
    issuing = issued_from(source)
    for block in blocks(function):
        for at, node in enumerate(block):
            for first, last, new, statements in changed(kind, block, at, issuing, lines, rank):
                above = list(ancestors(node, parents))
                roles = tuple(
                    one.lineno
                    for one in above
                    if isinstance(one, ast.If) and "rank" in ast.unparse(one.test)
                )
                joined = any(
                    isinstance(one, ast.With) and "oin(" in ast.unparse(one.items[0].context_expr)
                    for one in (*above, node)
                )
                indent = " " * node.col_offset
                added = [indent + line for line in new]
                after = [*lines[: first - 1], *added, *lines[last:]]
                yield Mutant(
                    kind, source, rank, "\n".join(after) + "\n", first, statements, roles, joined
                )


def blocks(function: ast.FunctionDef) -> Iterator[list[ast.stmt]]:
    """Every list of statements in a function."""
    for node in ast.walk(function):
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
                yield block


def ancestors(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> Iterator[ast.AST]:
    while (node := parents.get(node)) is not None:  # type: ignore[assignment]
        yield node


def changed(
    kind: str, block: list[ast.stmt], at: int, issuing: set[int], lines: list[str], rank: int
) -> Iterator[tuple[int, int, list[str], tuple[int, ...]]]:
    """The changes of one statement: its first and last line, the new lines, and which of these
    issue calls."""
    node = block[at]
    first, last = node.lineno, node.end_lineno or node.lineno
    if kind == "cut":
        inside = any(first <= line <= last for line in issuing)
        if isinstance(node, ast.For) and inside and "range(rank" not in ast.unparse(node.iter):
            head = f"for {ast.unparse(node.target)} in list({ast.unparse(node.iter)})"
            body = [line[node.col_offset :] for line in lines[first:last]]
            new = [f"{head}[rank == {rank} :]:", *body]
            if node.body[0].lineno > first:
                yield first, last, new, ()
        return
    if not is_simple(node) or not issues(node, issuing):
        return
    mine = text_of(node, lines)
    if kind == "branch":
        yield first, last, [f"if rank == {rank}:", *indented(mine)], (first + 1,)
    elif kind == "removed":
        rest = [one for one in block[at + 1 : at + 3] if is_simple(one)]
        if not rest:
            yield first, last, [f"if rank != {rank}:", *indented(mine)], (first + 1,)
            return
        tail = [line for one in rest for line in text_of(one, lines)]
        new = [f"if rank == {rank}:", *indented(tail), "else:", *indented([*mine, *tail])]
        end = rest[-1].end_lineno or rest[-1].lineno
        yield first, end, new, (first + 2 + len(tail),)
    else:
        for later in range(at + 1, len(block)):
            other = block[later]
            if not is_simple(other):
                break
            if issues(other, issuing):
                between = [line for one in block[at + 1 : later] for line in text_of(one, lines)]
                theirs = text_of(other, lines)
                new = [f"if rank == {rank}:", *indented([*theirs, *between, *mine])]
                new += ["else:", *indented([*mine, *between, *theirs])]
                yield first, other.end_lineno or other.lineno, new, ()


def is_simple(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr | ast.Assign | ast.AugAssign)


def issues(node: ast.stmt, issuing: set[int]) -> bool:
    return any(node.lineno <= line <= (node.end_lineno or node.lineno) for line in issuing)


def text_of(node: ast.stmt, lines: list[str]) -> list[str]:
    """The lines of a statement, without its indentation."""
    return [line[node.col_offset :] for line in lines[node.lineno - 1 : node.end_lineno]]


def indented(lines: list[str]) -> list[str]:
    return textwrap.indent("\n".join(lines), "    ").splitlines()


ISSUED: dict[str, set[int]] = {}


def issued_from(source: Source) -> set[int]:
    """The lines of the function from which a healthy run issues calls, here or in what they call."""
    if source.name not in ISSUED:
        timeline = emulated(source.program, source.inputs, "gloo")
        file = Path(inspect.getsourcefile(source.program) or "").name
        sites: set[int] = set()
        for row in timeline.calls.iter_rows(named=True) if timeline is not None else ():
            for site in (row["call_site"] or "", *(row["stack"] or ())):
                name, _, line = short(site.split(" ")[0]).rpartition(":")
                if name == file and line.isdecimal():
                    sites.add(int(line))
        block, begin = inspect.getsourcelines(source.program)
        ISSUED[source.name] = {line for line in sites if begin <= line < begin + len(block)}
    return ISSUED[source.name]


# ---------------- running and checking


def emulated(program: Callable[..., Any], inputs: tuple[int, ...], backend: str) -> Timeline | None:
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            return joinlab.emulate(program, inputs=inputs, backend=backend)  # type: ignore[arg-type]
    except JoinlabError:
        return None


def loaded(mutant: Mutant, folder: Path) -> Callable[..., Any]:
    """The changed function, from a file in the folder."""
    file = folder / f"{mutant.source.name}_changed.py"
    file.write_text(mutant.text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    function: Callable[..., Any] = getattr(module, mutant.source.program.__name__)
    return function


def run(mutant: Mutant, folder: Path, backend: str) -> Timeline | None:
    """An emulation; None if the program cannot be loaded or run."""
    try:
        program = loaded(mutant, folder)
    except (SyntaxError, NameError):
        return None
    return emulated(program, mutant.source.inputs, backend)


def row_of(mutant: Mutant) -> Row:
    """What is so of a changed program. Lines are given by number."""
    world = len(mutant.source.inputs)
    if mutant.kind == "cut" and mutant.joined:
        return Row(what="a loop under join()", inputs=mutant.source.inputs, free="join() copes")
    by_role = bool(mutant.roles)  # only one role runs the statement: no path differs
    line = str(mutant.line)
    return Row(
        what=mutant.kind,
        inputs=mutant.source.inputs,
        parts=() if by_role else (line,),
        may=(line,),
        odd=tuple(range(world)) if world == 2 or by_role else (mutant.rank,),
        innocent=tuple(map(str, mutant.roles)),
        false=() if by_role else ("every call (met its|fits)",),
    )


def check(mutant: Mutant, backend: str) -> tuple[list[str], str]:
    """What is wrong with the story of a changed program, and the story."""
    with tempfile.TemporaryDirectory() as folder:
        timeline = run(mutant, Path(folder), backend)
        if timeline is None:
            return ["FALSE refusal"], ""
        story = joinlab.diagnose(timeline)
        file = f"{mutant.source.name}_changed.py"
        checked = Check(row_of(mutant), lambda line: f"{file}:{line}", timeline, story)
        checked.program = loaded(mutant, Path(folder))
        problems = checked.problems()
        ended = all(end.kind is EndKind.FINISHED and not end.pending for end in timeline.ends)
        if mutant.kind == "cut" and mutant.joined and ended and "every call met" not in str(story):
            problems.append(f"ALARM: {story.sentence}")
        return problems, str(story)


def main() -> int:
    """Check the programs of a seed; 1 if anything but silence is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="beginnings of the names; all if none is named")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--tell", action="store_true", help="print each story, too")
    parser.add_argument("--text", action="store_true", help="print the changed lines, too")
    words = parser.parse_args()
    warnings.filterwarnings("ignore")
    runs, counts = 0, dict.fromkeys(KINDS, 0)
    for (name, mutant), backend in itertools.product(drawn(words.seed), ("gloo", "nccl")):
        if words.names and not any(name.startswith(word) for word in words.names):
            continue
        problems, story = check(mutant, backend)
        runs += 1
        if worst := worst_of(problems):
            counts[worst] += 1
        print(f"{name} {backend}: {'; '.join(problems) or 'so'}", flush=True)
        if words.text:
            lines = mutant.text.splitlines()
            print("\n".join(lines[mutant.line - 2 : mutant.line + 8]))
        if words.tell:
            print("    " + story.replace("\n", "\n    "))
    print(summary(runs, counts))
    return int(any(counts[kind] for kind in KINDS if kind != "SILENT"))


if __name__ == "__main__":
    sys.exit(main())
