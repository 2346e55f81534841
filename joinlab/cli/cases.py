"""`cases`: run the documented cases and say how they ended, beside how they were documented to end."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from joinlab.cli import keeping
from joinlab.cli.command import Command, add_backend, add_html, whole
from joinlab.errors import ProgramError

if TYPE_CHECKING:
    from joinlab.timeline import Timeline


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--n", type=whole, nargs="+", default=[5], metavar="N", help="rank 0 gets N inputs, rank 1 N + 1 (default: 5)"
    )
    parser.add_argument("--only", type=int, nargs="+", metavar="CASE", help="only these cases, by number")
    add_backend(parser)
    add_html(parser)


def _run(options: argparse.Namespace) -> int:
    from joinlab.cases import CASES
    from joinlab.cli import report
    from joinlab.launcher.launcher import launch

    if unknown := [number for number in options.only or () if number not in CASES]:
        raise ProgramError(f"there is no case {unknown[0]}; there are {', '.join(map(str, CASES))}")
    chosen = {number: CASES[number] for number in sorted(set(options.only or CASES))}
    counts = list(dict.fromkeys(options.n))
    pages: dict[str, Timeline] = {}
    screen = report.Screen()
    for n in counts:
        runs = {}
        for number, case in chosen.items():
            with screen.status(f"case {number}, inputs {n} and {n + 1}"):
                timeline = launch(
                    case.program, inputs=(n, n + 1), backend=options.backend, on_output=None, progress=False
                )
            runs[number] = case, timeline
            pages[f"Case {number}, inputs {n} and {n + 1}"] = timeline
        screen.print(report.cases_report(runs, n))
    if options.html:
        keeping.write_html(pages, Path(options.html))
    return 0


COMMAND = Command(
    "cases",
    "run the documented cases and say how each rank ended, and why",
    _options,
    _run,
    (
        ("", "all cases, rank 0 with 5 inputs, rank 1 with 6"),
        ("--n 1 2 5 --html out/cases.html", "for three N, and the swimlanes as one page"),
    ),
)
