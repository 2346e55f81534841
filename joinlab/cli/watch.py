"""`watch`: follow a recorded job in the terminal, and say why it has stalled once it has."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from joinlab.cli.command import Command
from joinlab.cli.record import FOLDER

if TYPE_CHECKING:
    from joinlab.jobs.recording import RecordedFolder
    from joinlab.timeline import Timeline

EVERY_S = 1.0
STILL = 3
"""Exit code for a job in which nothing moves but which may go on, such as while a rank writes a
checkpoint."""


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder",
        type=Path,
        nargs="?",
        default=Path(FOLDER),
        metavar="FOLDER",
        help=f"the folder into which the job is recorded (default: {FOLDER})",
    )
    parser.add_argument("--once", action="store_true", help="look once, and do not wait")
    parser.add_argument(
        "--still",
        type=float,
        default=30.0,
        metavar="S",
        help="call the job stalled after S seconds without an event while a call is open (default: 30)",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print the story as one line of JSON; its state is running, still, stuck or over",
    )
    parser.add_argument(
        "--exit-code",
        action="store_true",
        help="exit with 1 as soon as a hang is proven or a rank has raised or was killed, and with 3 after --still "
        "seconds without an event, which may still end by itself",
    )


def _run(options: argparse.Namespace) -> int:
    from rich.live import Live

    from joinlab.cli import report
    from joinlab.jobs.recording import RecordedFolder
    from joinlab.jobs.timeline_of_logs import has_open_call
    from joinlab.story.judge import diagnose

    recorded = RecordedFolder(options.folder)
    screen = report.Screen()

    def tell(state: str, timeline: Timeline, *first: str) -> None:
        if options.json:
            print(json.dumps({"state": state, **diagnose(timeline).plain()}), flush=True)
        else:
            screen.print(*first, report.run_report(timeline, width=screen.width), sep="\n")

    last_ends = ""
    _wait_for_record(options)
    moved = time.monotonic()
    recorded.refresh()
    if options.once:
        timeline = recorded.timeline()
        tell(_state(timeline, False), timeline, "\n".join(_lines(recorded, timeline)))
        if options.exit_code:
            return _code(timeline, False)
        return 0
    shows = screen.is_terminal and not options.json
    with (
        Live(console=screen, auto_refresh=False, transient=True) if shows else nullcontext() as live
    ):
        while True:
            now = time.monotonic()
            if recorded.refresh():
                moved = now
            timeline = recorded.timeline()
            # A job that computes for long writes nothing, too; it is stuck only within a call.
            still = now - moved >= options.still and has_open_call(timeline)
            if live is not None:
                live.update("\n".join(_lines(recorded, timeline, now - moved)), refresh=True)
            state = _state(timeline, still)
            if state == "over":
                tell(state, timeline)
            elif state != "running" and last_ends != (last_ends := str(timeline.ends)):
                if state == "stuck":
                    news = "The job has stalled."
                else:
                    news = f"Nothing has moved for {options.still:g} s."
                tell(state, timeline, news)
            if state == "over" or (options.exit_code and _code(timeline, still)):
                if options.exit_code:
                    return _code(timeline, still)
                return 0
            time.sleep(EVERY_S)


def _wait_for_record(options: argparse.Namespace) -> None:
    """Wait for the first record: ranks import torch before they write. --exit-code limits the wait
    to --still."""
    from joinlab.jobs.recording import is_recording

    began = time.monotonic()
    announced = False
    while not (
        options.folder.exists() and (not options.folder.is_dir() or is_recording(options.folder))
    ):
        if options.once or (options.exit_code and time.monotonic() - began >= options.still):
            return  # reading the folder reports what is missing
        if not announced:
            announced = True
            print(
                f"joinlab: no rank was recorded into {str(options.folder)!r} yet; waiting for one",
                file=sys.stderr,
            )
        time.sleep(EVERY_S)


def _state(timeline: Timeline, still: bool) -> str:
    from joinlab.jobs.timeline_of_logs import is_over

    if is_over(timeline):
        return "over"
    if any(end.kind == "hung" for end in timeline.ends):
        return "stuck"
    if still:
        return "still"
    return "running"


def _code(timeline: Timeline, still: bool) -> int:
    """0 while the job runs or after it finished, 1 if it cannot finish any more, 3 while nothing
    moves."""
    from joinlab.timeline import INTERRUPTED

    if any(
        end.kind in ("raised", "killed") or end.proven or end.text == INTERRUPTED
        for end in timeline.ends
    ):
        return 1
    if still:
        return STILL
    return 0


def _lines(
    recorded: RecordedFolder, timeline: Timeline, quiet: float | None = None
) -> Iterator[str]:
    """One line per place, with the ranks that are there; the places that are furthest ahead come
    first."""
    from joinlab.analysis.wording import by_key, ranks_text

    ranks_at = by_key((recorded.progress(rank), rank) for rank in range(timeline.world_size))
    since = "" if quiet is None else f"; last event {quiet:.0f} s ago"
    yield f"{timeline.meta['program']}: {timeline.world_size} ranks on {timeline.meta['backend']}{since}"
    for (issued, label), ranks in sorted(ranks_at.items(), reverse=True):
        ends = {str(timeline.ends[rank]) for rank in ranks} - {"unknown"}
        state = f" ({', '.join(sorted(ends))})" if ends else ""
        yield f"  {ranks_text(ranks)}: {issued:,} calls, the last is {label}{state}"
    for problem in timeline.meta["problems"]:
        yield f"  {problem}"


COMMAND = Command(
    "watch",
    "follow a recorded job while it runs: who is ahead, and why it has stalled",
    _options,
    _run,
    (("runs/today --exit-code", "exits with 1 as soon as the job cannot finish"),),
)
