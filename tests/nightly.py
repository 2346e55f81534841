"""Runs the checks that are too long for tests, one after another at full length.

    python -m tests.nightly          about two hours on two cores
    python -m tests.nightly wild     only the checks whose command contains this word

It prints each result, and exits with 1 if one failed.
"""

from __future__ import annotations

import subprocess
import sys
import time

CHECKS = (
    "tests.against_gloo --n 1000",
    "tests.against_gloo --kind random --n 400",
    "tests.torch_bodies",
    "tests.torch_bodies --backend nccl",
    "tests.nccl_lines",
    "pytest -q tests/backend/test_network.py --hypothesis-profile nightly",
    "tests.proofs --n 1000",
    "tests.parallel_jobs --n 500",
    "tests.unseen",
    "tests.unseen --launched",
    "tests.unseen --jobs",
    "tests.drills --n 300",
    "tests.first_screen",
)


def main(words: list[str]) -> int:
    """Run the checks that have one of `words` in their command, or all; the number of those that
    failed, at most 1."""
    failed = 0
    for check in CHECKS:
        if words and not any(word in check for word in words):
            continue
        begun = time.monotonic()
        code = subprocess.run([sys.executable, "-m", *check.split()]).returncode
        print(
            f"{check}: {f'FAILED with {code}' if code else 'passed'}, {time.monotonic() - begun:.0f} s",
            flush=True,
        )
        failed |= code != 0
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
