"""`make bench`: every figure is a ratio of two things measured side by side in one run, beside what
is aimed at.

A row is printed as soon as it is measured. A part that cannot run here, such as the bench where
there is no Chromium, is named at the end with the reason; the other parts keep their figures. A
part that finds nothing for LIMIT_S is ended, and says so.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module

from rich.console import Console

from tests.bench.figures import Figure

Part = Callable[[], Iterator[Figure]]

PARTS = ("launches", "steps", "emulation", "dumps", "benches", "sizes")
"""Modules beside this one. Each is imported when its turn comes: some need a browser's library."""

LIMIT_S = 900
"""Seconds in which a part must find its next figure."""

BROWSER = ("benches", "sizes")
"""The parts that need Chromium."""


def main(names: Sequence[str]) -> int:
    """Measure the parts that are named, or all; returns the exit code."""
    if unknown := [name for name in names if name not in PARTS]:
        print(f"no part {unknown[0]!r}; there are {', '.join(PARTS)}", file=sys.stderr)
        return 2
    return measure(
        {name: _part(name) for name in names or PARTS},
        os.environ.get("CHROMIUM") or shutil.which("chromium"),
    )


def measure(parts: Mapping[str, Part], browser: str | None) -> int:
    """Print the figures of each part as they come, then the parts that were left out, and why.

    Returns 1 if a part failed; a browser that is missing is no failure.
    """
    screen = Console(
        width=None if sys.stdout.isatty() else 170, markup=False, emoji=False, highlight=False
    )
    screen.print(_row("what", "measured", "figure", "aim"), style="bold")
    failed: dict[str, str] = {}
    unable = [name for name in parts if name in BROWSER and not browser]
    for name, part in parts.items():
        if name in unable:
            continue
        try:
            for figure in _in_time(part()):
                screen.print(_row(figure.what, figure.measured, figure.ratio, figure.aim))
        except Exception as error:  # the other parts still run, and their figures stand
            failed[name] = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
    for name in unable:
        screen.print(
            f"left out: {name}, which needs Chromium: apt-get install chromium, or CHROMIUM=path"
        )
    for name, reason in failed.items():
        screen.print(f"failed: {name}: {reason}")
    return 1 if failed else 0


def _in_time(figures: Iterator[Figure]) -> Iterator[Figure]:
    """The figures. Raises TimeoutError if the next one takes longer than LIMIT_S."""

    def ended(*_: object) -> None:
        raise TimeoutError(f"found nothing for {LIMIT_S} s")

    before = signal.signal(signal.SIGALRM, ended)
    try:
        while True:
            signal.alarm(LIMIT_S)
            figure = next(figures, None)
            signal.alarm(0)
            if figure is None:
                return
            yield figure
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _part(name: str) -> Part:
    def figures() -> Iterator[Figure]:
        yield from import_module(f"tests.bench.{name}").measure()

    return figures


def _row(what: str, measured: str, ratio: str, aim: str) -> str:
    return f"{what:<58}  {measured:<62}  {ratio:<26}  {aim}".rstrip()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
