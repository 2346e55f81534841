"""`handout`: the six cases as one page with sliders."""

from __future__ import annotations

import argparse
from pathlib import Path

from joinlab.cli.command import Command


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="such as out/cases.html")


def _run(options: argparse.Namespace) -> int:
    from joinlab.course.handout import write_handout

    options.file.parent.mkdir(parents=True, exist_ok=True)
    print(f"wrote {write_handout(options.file)}")
    return 0


COMMAND = Command(
    "handout",
    "write the six cases, emulated, as one page with sliders",
    _options,
    _run,
    (("out/six.html", "the six cases as a page with sliders, for a class"),),
)
