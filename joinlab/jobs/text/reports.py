"""torchrun's report of the processes that failed:

...train.py FAILED
Root Cause (first observed failure):
[0]:
  time      : 2026-03-05_10:00:01
  host      : gpu1
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 24703)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 24703
"""

from __future__ import annotations

import re
from signal import Signals
from typing import NamedTuple

NEXT = r"\s*\n(?:(?!.*\b(?:time|host|rank|exitcode)\s+: ).*\n)??.{0,80}?"
"""The way to the next line of a failure, perhaps behind a line of another process."""

FAILED = re.compile(
    rf"(?:\btime\s+: (?P<time>\d{{4}}-\d\d-\d\d_\d\d:\d\d:\d\d){NEXT}\bhost\s+: (?P<host>\S+){NEXT})?"
    rf"\brank\s+: (?P<rank>\d+) \(local_rank: (?P<local>\d+)\){NEXT}exitcode\s+: (?P<code>-?\d+) \(pid: \d+\)"
    r"(?:(?:.*\n){2,3}?  traceback : (?P<raised>Traceback .*\n(?:  .*\n)+))?",
    re.MULTILINE,
)

CAUSE = "Root Cause"


class Report(NamedTuple):
    """The failures that one torchrun lists, and the last of them if it is called the root cause."""

    failures: list[re.Match[str]]
    root: re.Match[str] | None


def reports(text: str) -> list[Report]:
    """The reports in a text, each up to its root cause."""
    complete: list[Report] = []
    failures: list[re.Match[str]] = []
    end = 0
    for match in FAILED.finditer(text):
        cause = text.rfind(CAUSE, end, match.start())
        if cause >= 0 and text.count("\n", cause, match.start()) > 7:  # it cannot be read
            complete.append(Report(failures, None))
            failures, cause = [], -1
        failures.append(match)
        if cause >= 0:
            complete.append(Report(failures, match))
            failures = []
        end = match.end()
    if failures:
        complete.append(Report(failures, None))
    return complete


def exit_text(match: re.Match[str]) -> str:
    """The exit code of a match in words: a negative one is the signal that ended the process."""
    return signal_text(int(match["code"]))


def signal_text(code: int) -> str:
    names = {-signal: signal.name for signal in Signals}
    return names.get(code, f"exit code {code}")
