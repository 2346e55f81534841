"""`run`: run a user's program and say how each rank ended."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joinlab.cli import keeping
from joinlab.cli.command import Command, add_backend, add_html, counts
from joinlab.cli.program import load_program
from joinlab.errors import LaunchInterrupted, ProgramError

if TYPE_CHECKING:
    from joinlab.timeline import Timeline


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "program", metavar="FILE:FUNCTION", help="such as train.py:worker or package.module:worker"
    )
    parser.add_argument(
        "--inputs",
        type=counts,
        default=(5, 6),
        metavar="5,6",
        help="how many inputs each rank gets (default: 5,6)",
    )
    add_backend(parser)
    parser.add_argument(
        "--emulate",
        choices=("nccl", "gloo"),
        help="start no processes: PyTorch's own code on a modelled backend",
    )
    parser.add_argument(
        "--era", choices=("today", "1.9"), help="PyTorch whose barrier is emulated (default: today)"
    )
    parser.add_argument(
        "--save", type=Path, metavar="FILE", help="save the run, for `show` and joinlab.load"
    )
    add_html(parser)
    parser.add_argument("--seed", type=int, metavar="INT", help="seeds every rank (default: 0)")
    parser.add_argument("--timeout", type=float, metavar="S", help="end the run after S seconds")
    parser.add_argument(
        "--no-progress",
        type=float,
        metavar="S",
        help="call it a suspected hang after S seconds without an event",
    )


def _run(options: argparse.Namespace) -> int:
    from joinlab.cli import report

    if options.emulate and (options.backend or options.no_progress is not None):
        raise ProgramError(
            "--backend and --no-progress apply to launches; leave them out with --emulate"
        )
    if options.era and not options.emulate:
        raise ProgramError(
            "--era needs --emulate; a launch has the barrier of the installed PyTorch"
        )
    keeping.check_can_write(options.save)
    program = load_program(options.program)
    try:
        if options.emulate:
            timeline = _emulated(program, options)
        else:
            timeline = _launched(program, options)
    except LaunchInterrupted as interrupted:
        keeping.keep(interrupted.timeline, options.save, options.html)
        raise
    # before the report, which fails on a closed stream
    keeping.keep(timeline, options.save, options.html)
    screen = report.Screen()
    screen.print(report.run_report(timeline, width=screen.width))
    if all(end.kind == "finished" for end in timeline.ends):
        return 0
    return 1


def _launched(program: Any, options: argparse.Namespace) -> Timeline:
    from joinlab.launcher.launcher import launch

    settings = _given(timeout=options.timeout, no_progress=options.no_progress, seed=options.seed)
    return launch(program, inputs=options.inputs, backend=options.backend, **settings)


def _emulated(program: Any, options: argparse.Namespace) -> Timeline:
    from joinlab.emulator.emulate import emulate
    from joinlab.launcher.terminal import Echo

    settings = _given(timeout=options.timeout, seed=options.seed, era=options.era)
    return emulate(program, options.inputs, options.emulate, on_output=Echo(), **settings)


def _given(**settings: object) -> dict[str, Any]:
    """The settings given on the command line; the others keep their defaults."""
    return {name: value for name, value in settings.items() if value is not None}


COMMAND = Command(
    "run",
    "run a program of your own: a function worker(rank, inputs)",
    _options,
    _run,
    (
        ("train.py:worker --inputs 5,6 --save run.joinlab", ""),
        ("train.py:worker --inputs 5,6 --emulate nccl", "what two GPUs would do, modelled"),
    ),
)
