"""`show`: print a saved run."""

from __future__ import annotations

import argparse

from joinlab.cli import keeping
from joinlab.cli.command import Command, add_html


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="written by `run --save` or Timeline.save")
    parser.add_argument("--all", action="store_true", help="list every row and every lane, those that matched, too")
    add_html(parser)


def _run(options: argparse.Namespace) -> int:
    from joinlab.cli import report
    from joinlab.importers.load import load

    timeline = load(options.file)
    screen = report.Screen()
    screen.print(report.run_report(timeline, options.all, screen.width))
    keeping.keep(timeline, None, options.html)
    return 0


COMMAND = Command(
    "show",
    "print a saved run: what happened, why, where, and what to do",
    _options,
    _run,
    (("run.joinlab", "what met what, and why each rank ended as it did"),),
)
