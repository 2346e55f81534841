"""`show`: print a saved run."""

from __future__ import annotations

import argparse

from joinlab.cli import keeping
from joinlab.cli.command import Command, add_html


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="written by `run --save` or Timeline.save")
    parser.add_argument("--setup", action="store_true", help="with the calls of DDP's construction and bucket rebuild")
    add_html(parser)


def _run(options: argparse.Namespace) -> int:
    from joinlab.cli import report
    from joinlab.importers.load import load

    timeline = load(options.file)
    report.Screen().print(report.calls_table(timeline, options.setup), report.endings(timeline))
    keeping.keep(timeline, None, options.html)
    return 0


COMMAND = Command(
    "show",
    "print a saved run: which calls met, how each rank ended, and why",
    _options,
    _run,
    (("run.joinlab", "what met what, and why each rank ended as it did"),),
)
