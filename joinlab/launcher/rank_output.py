"""What a rank prints: the first and the last KEPT bytes are kept, and the space between them is freed
while the rank goes on printing."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

from joinlab.program.bounded_output import KEPT, BoundedOutput
from joinlab.recorder.events import FileTail

PORTION = 1 << 20
"""Bytes read at once."""


def cause_of_death(status: int, output: str) -> str:
    """How a process ended that did not say so, from its status as of os.waitpid and the end of its
    output."""
    if not os.WIFSIGNALED(status):
        return f"its process ended with exit code {os.WEXITSTATUS(status)} before the program returned (os._exit?)"
    name = signal.Signals(os.WTERMSIG(status)).name
    lines = output.splitlines()
    message = next(
        (
            line.strip()
            for line in reversed(lines)
            if "what():" in line or "terminate called" in line
        ),
        "",
    )
    return f"its process was killed by {name}" + (f": {message}" if message else "")


class Output(FileTail):
    """The output of one rank, in a file that the rank creates, without its middle if it is long."""

    flags = os.O_RDWR

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._kept = BoundedOutput()

    @property
    def whole(self) -> bool:
        """Whether all of it is kept."""
        return self._kept.whole

    def read(self) -> bytes:
        """The next bytes, at most PORTION."""
        data = self._portion(PORTION, self._kept.size)
        if self._kept.add(data):
            _give_back(self._fd, self._kept.size - KEPT)
        return data

    def last(self, size: int) -> str:
        return self._kept.last(size)

    def text(self) -> str:
        return self._kept.text()


def _give_back(fd: int, end: int) -> None:
    """Free the disk space of a file's first `end` bytes, which then read as zeros."""
    if sys.platform == "linux":
        punch_hole, keep_size = 2, 1  # linux/falloc.h
        with suppress(AttributeError):
            ctypes.CDLL(None).fallocate(
                fd, punch_hole | keep_size, ctypes.c_int64(0), ctypes.c_int64(end)
            )
