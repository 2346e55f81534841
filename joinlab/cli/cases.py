"""`cases`: run the documented cases and say how they ended, beside how they were documented to end."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from joinlab.cli import keeping
from joinlab.cli.command import Command, add_backend, add_html, whole
from joinlab.errors import ProgramError

if TYPE_CHECKING:
    from joinlab.cases import Case
    from joinlab.timeline import Timeline


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--n", type=whole, nargs="+", default=[5], metavar="N", help="rank 0 gets N inputs, rank 1 N + 1 (default: 5)"
    )
    parser.add_argument("--only", type=int, nargs="+", metavar="CASE", help="only these cases, by number")
    add_backend(parser)
    add_html(parser)


def _in_short(ends: Sequence[str]) -> str:
    """How two ranks end, after a sign of the worst: "✕ both hang", "✕ rank 1 hangs"."""
    sign = "✕" if {"hangs", "raises", "is killed"} & set(ends) else "✓" if set(ends) == {"finishes"} else "!"
    if len(set(ends)) == 1:
        return f"{sign} both {_PLURAL.get(ends[0], ends[0])}"
    return f"{sign} {', '.join(f'rank {rank} {end}' for rank, end in enumerate(ends) if end != 'finishes')}"


_PLURAL = {"finishes": "finish", "hangs": "hang", "raises": "raise", "is killed": "are killed"}

_HOW = {"1.9": "emulated NCCL, PyTorch 1.9", "today": "emulated NCCL, today's PyTorch"}


def _run(options: argparse.Namespace) -> int:
    from joinlab.cases import CASES
    from joinlab.cli import report
    from joinlab.launcher.launcher import launch

    if unknown := [number for number in options.only or () if number not in CASES]:
        raise ProgramError(f"there is no case {unknown[0]}; there are {', '.join(map(str, CASES))}")
    chosen = {number: CASES[number] for number in sorted(set(options.only or CASES))}
    counts = list(dict.fromkeys(options.n))
    pages: dict[tuple[int, int, str], Timeline] = {}
    screen = report.Screen()
    for n in counts:
        runs = {}
        for number, case in chosen.items():
            with screen.status(f"case {number}, inputs {n} and {n + 1}"):
                timeline = launch(
                    case.program, inputs=(n, n + 1), backend=options.backend, on_output=None, progress=False
                )
            runs[number] = case, timeline
            pages[number, n, "launched"] = timeline
        screen.print(report.cases_report(runs, n))
    if options.html:
        _write_page(pages, chosen, counts, Path(options.html))
    return 0


def _write_page(
    pages: dict[tuple[int, int, str], Timeline], chosen: Mapping[int, Case], counts: Sequence[int], path: Path
) -> None:
    """The runs as one page, beside emulations of them; it opens with a table of how each ended."""
    from joinlab.emulator.emulate import emulate
    from joinlab.picture.page import Contents
    from joinlab.story.words import ENDINGS

    columns = {"1.9": "documented: NCCL, PyTorch 1.9", "today": "NCCL today, emulated", "launched": "run here"}
    for number, case in chosen.items():
        for n in counts:
            for era in ("1.9", "today"):
                pages[number, n, era] = emulate(case.program, (n, n + 1), era=era)
    backends = sorted({str(run.meta["backend"]) for (_, _, how), run in pages.items() if how == "launched"})
    columns["launched"] = f"{' and '.join(backends)}, run here"
    order = {key: pages[key] for key in sorted(pages, key=lambda key: (key[0], -key[1], list(columns).index(key[2])))}
    titles = {
        (number, n, how): f"Case {number}, inputs {n} and {n + 1}: {_HOW.get(how, columns[how])}"
        for number, n, how in order
    }

    def cell(number: int, how: str) -> Iterator[tuple[str, str]]:
        for n in sorted(counts, reverse=True):
            run, told = pages[number, n, how], chosen[number].documentation
            here = _in_short([ENDINGS[end.kind].trace + ", leaving a call" * end.pending for end in run.ends])
            if how == "1.9":  # what the thread says; the picture behind it is emulated
                known = told.ends((n, n + 1)) if told else None
                here = f"not documented; emulated: {here}" if known is None else _in_short(known)
            yield f"{n}, {n + 1}: {here}", titles[number, n, how]

    rows = tuple((case.title, tuple(tuple(cell(number, how)) for how in columns)) for number, case in chosen.items())
    keeping.write_html({titles[key]: run for key, run in order.items()}, path, Contents(tuple(columns.values()), rows))


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
