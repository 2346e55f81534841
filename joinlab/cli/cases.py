"""`cases`: how each rank of the documented cases ends, on modelled NCCL and run on this machine's
backend."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from joinlab.cli.command import Command, add_backend, add_html, whole
from joinlab.errors import ProgramError

if TYPE_CHECKING:
    from joinlab.cli.report import CaseRuns
    from joinlab.timeline import Timeline


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--n",
        type=whole,
        nargs="+",
        default=[5],
        metavar="N",
        help="rank 0 gets N inputs, rank 1 N + 1 (default: 5)",
    )
    parser.add_argument(
        "--only", type=int, nargs="+", metavar="CASE", help="only these cases, by number"
    )
    add_backend(parser)
    add_html(parser)


def _run(options: argparse.Namespace) -> int:
    from joinlab.cases import CASES
    from joinlab.cli import report
    from joinlab.launcher.launcher import launch
    from joinlab.story.judge import diagnose

    unknown = [number for number in options.only or () if number not in CASES]
    if unknown:
        raise ProgramError(f"there is no case {unknown[0]}; there are {', '.join(map(str, CASES))}")
    chosen = {number: CASES[number] for number in sorted(set(options.only or CASES))}
    tables: dict[int, dict[int, CaseRuns]] = {}
    screen = report.Screen()
    for n in dict.fromkeys(options.n):
        tables[n] = {}
        for number, case in chosen.items():
            with screen.status(f"case {number}, inputs {n} and {n + 1}"):
                run_here = launch(
                    case.program,
                    inputs=(n, n + 1),
                    backend=options.backend,
                    on_output=None,
                    progress=False,
                )
                run_here.live.rerun = None  # its fixes are those of the modelled run beside it
                before, today = (_modelled(number, n, era) for era in ("1.9", "today"))
            tables[n][number] = report.CaseRuns(case, before, today, run_here)
        screen.print(report.cases_report(tables[n], n))
    screen.print(report.cases_notes(tables))
    if options.html:
        for n, number in product(tables, chosen):
            with screen.status(f"case {number}, inputs {n} and {n + 1}: trying fixes"):
                for run in tables[n][number].all():
                    diagnose(run)
        write_page(tables, Path(options.html))
    return 0


def _modelled(number: int, n: int, era: str) -> Timeline:
    """The case on the NCCL of an era; if it ships with the package, with the fixes that were
    tried."""
    from joinlab.cases import CASES
    from joinlab.emulator.emulate import emulate
    from joinlab.emulator.shipped_runs import shipped_run

    shipped = shipped_run(number, (n, n + 1), "nccl", era)
    return shipped or emulate(CASES[number].program, (n, n + 1), era=era)


def write_page(tables: Mapping[int, Mapping[int, CaseRuns]], path: Path) -> None:
    """Write the runs as one page: a large picture above small ones of all runs."""
    from joinlab.cli import report
    from joinlab.picture.gallery import Gallery, GalleryRun, write_gallery

    def row(case_runs: CaseRuns) -> list[GalleryRun]:
        pictures = []
        notes = report.documented(case_runs), "", ""
        for run, note in zip(case_runs.all(), notes, strict=True):
            ended = report.ended(run.ends)
            if any(end.pending for end in run.ends):
                ended += ", a call left pending"
            pictures.append(GalleryRun(run, ended, note))
        return pictures

    cases_of_first = next(iter(tables.values()))
    backends = {str(case_runs.here.meta["backend"]) for case_runs in cases_of_first.values()}
    runs: dict[tuple[int, ...], dict[str, list[GalleryRun]]] = {}
    for n, cases in tables.items():
        runs[n, n + 1] = {f"Case {number}": row(case_runs) for number, case_runs in cases.items()}
    first = 4 if 4 in cases_of_first else next(iter(cases_of_first))
    gallery = Gallery(
        "Six loops, one input more on rank 1",
        report.fabrics(" and ".join(sorted(backends))),
        runs,
        (max(runs), f"Case {first}", 1),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    print(f"wrote {write_gallery(gallery, path)}")


COMMAND = Command(
    "cases",
    "run the documented cases and say how each rank ends, here and on modelled NCCL",
    _options,
    _run,
    (
        ("", "all cases, rank 0 with 5 inputs, rank 1 with 6"),
        ("--n 1 2 5 --html out/cases.html", "for three N, and one page of pictures"),
    ),
)
