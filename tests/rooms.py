"""Checks the imports between joinlab's rooms: none may point upward, and there are no cycles.

    python -m tests.rooms

A room is a folder of the package, or one file beside those folders. The allowed order is the table
of floors in joinlab/README.md: a room may import rooms on lower floors, never rooms on its own
floor or above. Every import counts: those inside functions, those for types alone, and those by
`import_module`, too.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "joinlab"
TOP = "joinlab"
"""The package's own `__init__` and `__main__`: they stand above every floor."""


@dataclass(frozen=True, slots=True)
class Import:
    """One import statement: the module it stands in, the module it names, and its line."""

    importer: str
    imported: str
    line: int

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.imported}"


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name; a folder's `__init__` has the folder's
    name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def room_of(module: str) -> str:
    """The room a module lies in.

    >>> room_of("joinlab.nccl.rule"), room_of("joinlab.timeline"), room_of("joinlab.__main__")
    ('nccl', 'timeline', 'joinlab')
    """
    parts = module.split(".")
    return TOP if len(parts) == 1 or parts[1] == "__main__" else parts[1]


@cache
def imports() -> tuple[Import, ...]:
    """Every import of one module of joinlab by another."""
    known = modules()
    return tuple(
        Import(module, name, line)
        for module, path in known.items()
        for name, line in _named(ast.parse(path.read_text("utf-8")), known)
        if name != module
    )


def _named(tree: ast.Module, known: Mapping[str, Path]) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name in known:
                    yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide which room they name"
            for alias in node.names if node.module in known else ():
                inner = f"{node.module}.{alias.name}"
                yield (inner if inner in known else str(node.module)), node.lineno
        elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in (
            "import_module",
            "__import__",
        ):
            for one in node.args:
                if isinstance(one, ast.Constant) and one.value in known:
                    yield one.value, node.lineno


@cache
def floors() -> dict[str, int]:
    """The floor of each room, 1 at the bottom: read from the table in joinlab/README.md."""
    rows = re.findall(
        r"^\| *(\d+) *\| *([^|]+?) *\|", (PACKAGE / "README.md").read_text("utf-8"), flags=re.M
    )
    return {room: int(floor) for floor, names in rows for room in re.findall(r"`(\w+)`", names)}


def upward() -> list[Import]:
    """Imports of a room on the same floor or above, in other words those that the table forbids."""
    level = {**floors(), TOP: sys.maxsize}
    return [
        item
        for item in imports()
        if (low := room_of(item.importer)) != (high := room_of(item.imported))
        and level[low] <= level[high]
    ]


def circle(of_rooms: bool) -> list[str]:
    """Modules (or rooms) that import each other, directly or by a detour; [] if none do."""
    graph: dict[str, set[str]] = {}
    for item in imports():
        pair = (
            (room_of(item.importer), room_of(item.imported))
            if of_rooms
            else (item.importer, item.imported)
        )
        if pair[0] != pair[1]:
            graph.setdefault(pair[0], set()).add(pair[1])
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def main() -> int:
    """Print the rooms by floor and whatever breaks the rule; the exit code says whether anything
    does."""
    level = floors()
    sizes: dict[str, list[int]] = {}
    for module, path in modules().items():
        sizes.setdefault(room_of(module), []).append(len(path.read_text("utf-8").splitlines()))
    for floor in sorted(set(level.values()), reverse=True):
        names = [room for room, at in level.items() if at == floor]
        print(
            f"{floor}  "
            + ", ".join(
                f"{name} ({len(sizes[name])} files, {sum(sizes[name])} lines)" for name in names
            )
        )
    missing = sorted(set(sizes) - set(level) - {TOP})
    wrong, circles = (
        upward() if not missing else [],
        [one for one in (circle(True), circle(False)) if one],
    )
    print(
        f"{len(level)} rooms, {len(set(level.values()))} floors, {sum(map(sum, sizes.values()))} lines of Python"
    )
    print(f"{len(missing)} rooms missing from the table: {', '.join(missing) or 'none'}")
    print(f"{len(wrong)} upward imports")
    for item in wrong:
        print(f"    {item}")
    print(f"{len(circles)} circles of rooms or modules")
    for one in circles:
        print(f"    {' <- '.join(one)}")
    return bool(missing or wrong or circles)


if __name__ == "__main__":
    sys.exit(main())
