"""`run`: run a program of one's own and say how each rank ended."""

from __future__ import annotations

import argparse
from pathlib import Path

from joinlab.cli import keeping
from joinlab.cli.command import Command, add_backend, add_html, counts
from joinlab.cli.program import load_program
from joinlab.errors import LaunchInterrupted


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("program", metavar="FILE:FUNCTION", help="such as train.py:worker; a module's name works, too")
    parser.add_argument(
        "--inputs", type=counts, default=(5, 6), metavar="5,6", help="how many inputs each rank gets (default: 5,6)"
    )
    add_backend(parser)
    parser.add_argument("--save", type=Path, metavar="FILE", help="keep the recorded run, for `show` and joinlab.load")
    add_html(parser)
    parser.add_argument("--seed", type=int, metavar="INT", help="seeds every rank (default: 0)")
    parser.add_argument("--timeout", type=float, metavar="S", help="end the run after S seconds")
    parser.add_argument(
        "--no-progress", type=float, metavar="S", help="call it a suspected hang after S seconds without an event"
    )


def _run(options: argparse.Namespace) -> int:
    from joinlab.cli import report
    from joinlab.launcher.launcher import launch

    keeping.check_can_write(options.save)
    program = load_program(options.program)
    settings = {"timeout": options.timeout, "no_progress": options.no_progress, "seed": options.seed}
    try:
        timeline = launch(
            program,
            inputs=options.inputs,
            backend=options.backend,
            **{name: value for name, value in settings.items() if value is not None},
        )
    except LaunchInterrupted as interrupted:
        keeping.keep(interrupted.timeline, options.save, options.html)
        raise
    report.Screen().print(report.run_report(timeline))
    keeping.keep(timeline, options.save, options.html)
    return 0 if all(end.kind == "finished" for end in timeline.ends) else 1


COMMAND = Command(
    "run",
    "run a program of your own: a function worker(rank, inputs)",
    _options,
    _run,
    (("train.py:worker --inputs 5,6 --save run.joinlab", ""),),
)
