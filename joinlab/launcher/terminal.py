"""Output of a launch while it runs: each rank's lines, and progress as a bar or a callback."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

Listener = Callable[[int, str], None]
"""Called with (rank, line) for each line that a rank prints."""

ECHO_LINES = 1000
"""Lines that `Echo` prints per rank."""


class Echo:
    """Prints each rank's lines as they come, "rank 0: ...", up to ECHO_LINES per rank."""

    def __init__(self) -> None:
        self._lines: dict[int, int] = {}

    def __call__(self, rank: int, line: str) -> None:
        self._lines[rank] = self._lines.get(rank, 0) + 1
        if self._lines[rank] <= ECHO_LINES:
            print(f"rank {rank}: {line}", flush=True)
        elif self._lines[rank] == ECHO_LINES + 1:
            print(f"rank {rank}: (and more: timeline.output[{rank}] has all of it)", flush=True)


class ProgressBar:
    """A progress bar over all ranks' inputs, shown if a run takes longer than AFTER_S."""

    AFTER_S = 1.0
    EVERY_S = 0.2

    def __init__(self, total: int, name: str) -> None:
        self._total = total
        self._name = name
        self._next = time.monotonic() + self.AFTER_S
        self._bar: Any = None

    def due(self, now: float) -> bool:
        return now >= self._next

    def show(self, done: int) -> None:
        """Show that all ranks together have processed `done` inputs."""
        self._next = time.monotonic() + self.EVERY_S
        if self._bar is None:
            from tqdm.auto import tqdm

            self._bar = tqdm(
                total=self._total, desc=self._name, unit="input", leave=False, disable=None
            )
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


class ProgressCallback(ProgressBar):
    """Calls a function with the progress instead of showing a bar."""

    def __init__(self, listener: Callable[[int], None]) -> None:
        super().__init__(0, "")
        self._next = 0.0
        self._listener = listener

    def show(self, done: int) -> None:
        self._next = time.monotonic() + self.EVERY_S
        self._listener(done)
