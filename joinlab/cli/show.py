"""`show`: say what happened in a run, from any kind of record."""

from __future__ import annotations

import argparse
import errno
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from joinlab.cli import keeping
from joinlab.cli.command import Command, add_html

if TYPE_CHECKING:
    from joinlab.timeline import Timeline

RUNS = "runs"
"""The folder of runs/today, the default of `record`."""

_HELP = """a folder of `record`; a dump or trace, or a folder of them; a log; a file of `run --save`; - for
text on stdin; . for the current folder. Default: the newest in runs/"""


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("record", nargs="?", metavar="RECORD", help=_HELP)
    parser.add_argument(
        "--all", action="store_true", help="list every row and every lane, also those that matched"
    )
    parser.add_argument(
        "--json", action="store_true", help="print the story as JSON: its lines, ranks and calls"
    )
    add_html(parser)


def _run(options: argparse.Namespace) -> int:
    from joinlab.cli import report
    from joinlab.story.judge import diagnose

    keeping.check_other_file(options.record, options.html)
    timeline = _read(options.record)
    if options.json:
        print(diagnose(timeline).json())
    else:
        screen = report.Screen()
        screen.print(report.run_report(timeline, options.all, screen.width))
    keeping.keep(timeline, None, options.html)
    return 0


def _read(record: str | None) -> Timeline:
    from joinlab.jobs.load import load
    from joinlab.jobs.recording import is_recording
    from joinlab.jobs.text import read_text

    if record == "-":
        return read_text(sys.stdin.read(), "stdin")
    source = Path(RUNS if record is None else record)
    if record is None or (
        source.is_dir() and not is_recording(source) and (source / RUNS).is_dir()
    ):
        source = newest(source if record is None else source / RUNS)
        print(f"joinlab: {source}", file=sys.stderr)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        timeline = load(source)
    for warning in caught:
        print(f"joinlab: {warning.message}", file=sys.stderr)
    return timeline


def newest(folder: Path) -> Path:
    """The run that was written to last in a folder of runs."""
    jobs = [path for path in folder.glob("*") if not path.name.startswith(".")]
    if not jobs:
        why = "nothing was recorded there. Name a record, or run `torchrun ... -m joinlab record train.py`"
        raise FileNotFoundError(errno.ENOENT, why, str(folder))
    return max(jobs, key=lambda job: max(path.stat().st_mtime for path in (job, *job.rglob("*"))))


COMMAND = Command(
    "show",
    "say what happened in a run, from a record, dumps, traces, a log or a saved file",
    _options,
    _run,
    (
        ("", "the newest of runs/"),
        ("runs/today", "a job that was recorded, or still runs"),
        ("dumps/", "PyTorch's flight recorder dumps, or traces"),
        ("train.log", "what NCCL's watchdog and torchrun wrote"),
    ),
)
