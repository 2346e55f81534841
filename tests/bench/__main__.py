"""`make bench`: every figure is a ratio of two things measured side by side in one run, beside what is aimed at."""

from __future__ import annotations

import sys
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from tests.bench import benches, emulation, launches, steps, views
from tests.bench.figures import Figure

PARTS: dict[str, Callable[[], list[Figure]]] = {
    "launches": launches.measure,
    "steps": steps.measure,
    "emulation": emulation.measure,
    "views": views.measure,
    "benches": benches.measure,
}


def main() -> int:
    """Measure the parts named on the command line, or all."""
    wanted = sys.argv[1:] or list(PARTS)
    if unknown := [name for name in wanted if name not in PARTS]:
        print(f"no part {unknown[0]!r}; there are {', '.join(PARTS)}", file=sys.stderr)
        return 2
    table = Table("what", "measured", "figure", "aim")
    for name in wanted:
        for figure in PARTS[name]():
            table.add_row(figure.what, figure.measured, figure.ratio, figure.aim)
    Console(width=None if sys.stdout.isatty() else 150).print(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
