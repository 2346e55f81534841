"""Runs the checks that are too long for `make test`, one after another at full length.

    python -m tests.nightly          about two hours and a half on two cores
    python -m tests.nightly wild     only the checks whose command contains this word

It prints each result, and exits with 1 if one failed. The tests marked `nightly` are the rest of
tables of which `make test` runs a sample: see `sampled`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest

MARKED = "pytest -q -p no:nbmake -m nightly tests"

CHECKS = (
    MARKED,
    "pytest -q --nbmake --nbmake-timeout=300 notebooks",
    "tests.against_gloo --n 1000",
    "tests.against_gloo --kind random --n 400",
    "tests.torch_bodies",
    "tests.torch_bodies --backend nccl",
    "tests.nccl_lines",
    "pytest -q -p no:nbmake -m hypothesis --hypothesis-profile nightly tests",
    "tests.proofs --n 1000",
    "tests.parallel_jobs --n 500",
    "tests.unseen",
    "tests.unseen --launched",
    "tests.unseen --jobs",
    "tests.drills --n 300",
    "tests.first_screen",
)


def sampled(rows: Iterable[Any], is_daily: Callable[[Any], bool]) -> list[Any]:
    """The rows of a parametrized test, those marked `nightly` that are not for every day.

    A row is the tuple of the test's arguments, or its only argument.
    """
    listed = list(rows)
    assert any(map(is_daily, listed)), "a sample of nothing"
    return [row if is_daily(row) else _at_night(row) for row in listed]


def _at_night(row: Any) -> Any:
    values = row if isinstance(row, tuple) else (row,)
    return pytest.param(*values, marks=pytest.mark.nightly)


def main(words: list[str]) -> int:
    """Run the checks that have one of `words` in their command, or all; the number of those that
    failed, at most 1."""
    failed = 0
    for check in CHECKS:
        if words and not any(word in check for word in words):
            continue
        begun = time.monotonic()
        kernels = {"JUPYTER_PREFER_ENV_PATH": "1", "JOINLAB_PROGRESS": "off"}
        code = subprocess.run(
            [sys.executable, "-m", *check.split()], env=os.environ | kernels
        ).returncode
        print(
            f"{check}: {f'FAILED with {code}' if code else 'passed'}, {time.monotonic() - begun:.0f} s",
            flush=True,
        )
        failed |= code != 0
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
