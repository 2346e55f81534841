"""What the ranks of a launched run write, read while they run: event logs, output, and what their programs returned.

A rank's output is bounded here: the first KEPT bytes and the last KEPT bytes are kept, and what lies between is given
back to the disk while the rank goes on printing.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from base64 import b64decode
from contextlib import suppress
from pathlib import Path
from typing import Any

from joinlab.launcher.terminal import Listener
from joinlab.program.kept import KEPT, Kept
from joinlab.program.plain_data import decode
from joinlab.recorder.events import LogTail, log_name, output_name, return_name
from joinlab.recorder.rank_log import RankLog

PORTION = 1 << 20
"""Bytes read at once."""
LINE = 1 << 16
"""A longer line is handed to the listener in pieces."""


class RunFiles:
    """The files of one run: `logs` by rank say what was recorded, as far as `take_in` has read."""

    def __init__(self, folder: Path, ranks: int, origin_ns: int, listener: Listener | None) -> None:
        self.folder = folder
        self.logs = [RankLog(rank, origin_ns) for rank in range(ranks)]
        self.output = [Output(folder / output_name(rank)) for rank in range(ranks)]
        self._listener = listener
        self._events = [LogTail(folder / log_name(rank)) for rank in range(ranks)]
        self._unread = [b""] * ranks  # events read from the files, not yet taken in
        self._lines = [b""] * ranks  # each rank's last line, as far as it is printed
        self._printed = [0] * ranks

    def look(self) -> bool:
        """Read what is new; True if any rank has recorded or printed something since the last time."""
        fresh = [tail.read() for tail in self._events]
        self._unread = [old + new for old, new in zip(self._unread, fresh, strict=True)]
        return self._read_output() or any(fresh)

    def take_in(self, judged: set[int]) -> None:
        """Bring `logs` up to date, those of ranks already `judged` excepted.

        What a judged rank records afterwards is a side effect of killing its peers.
        """
        self.look()
        for rank, log in enumerate(self.logs):
            if rank not in judged:
                log.feed(self._unread[rank])
            self._unread[rank] = b""

    def finish(self) -> None:
        """Read the rest of the output, and tell the listener of a last line without its end."""
        while self._read_output():
            pass
        for rank, rest in enumerate(self._lines):
            if rest and self._listener is not None:
                self._listener(rank, rest.decode(errors="replace"))

    def returned(self, rank: int) -> Any:
        """What the program returned on `rank`; None if it did not return."""
        path = self.folder / return_name(rank)
        if not self.logs[rank].returned or not path.exists():
            return None
        kept = json.loads(path.read_text())
        return decode(kept["value"], lambda name: b64decode(kept["arrays"][name]))

    def close(self) -> None:
        """Close the files."""
        for tail in self._events:
            tail.close()
        for output in self.output:
            output.close()

    def _read_output(self) -> bool:
        news = False
        for rank, output in enumerate(self.output):
            data = output.read()
            news = news or bool(data)
            if data and self._listener is not None:
                *lines, rest = (self._lines[rank] + data).split(b"\n")
                if len(rest) > LINE:
                    lines, rest = [*lines, rest], b""
                self._lines[rank] = rest
                for line in lines:
                    self._listener(rank, line.decode(errors="replace"))
        return news


class Output:
    """What one rank prints, with its middle left out where it is long."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1
        self._kept = Kept()

    def read(self) -> bytes:
        """The next bytes, at most PORTION."""
        if self._fd < 0:
            try:
                self._fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
            except FileNotFoundError:
                return b""
        data = os.pread(self._fd, PORTION, self._kept.size)
        if self._kept.add(data):
            _give_back(self._fd, self._kept.size - KEPT)
        return data

    def last(self, size: int) -> str:
        """The last `size` bytes at most."""
        return self._kept.last(size)

    def text(self) -> str:
        """What is kept of it."""
        return self._kept.text()

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _give_back(fd: int, end: int) -> None:
    """Free the disk that the first `end` bytes of a file take; they read as zeros from then on."""
    if sys.platform == "linux":
        punch_hole, keep_size = 2, 1  # linux/falloc.h
        with suppress(AttributeError):
            ctypes.CDLL(None).fallocate(fd, punch_hole | keep_size, ctypes.c_int64(0), ctypes.c_int64(end))
