"""The files of a launched run's ranks, read while they run: event logs, output, return values; and
how each rank ended.

A rank's output is bounded: the first and the last KEPT bytes are kept, and the disk space between
them is freed while the rank goes on printing.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from base64 import b64decode
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from joinlab.launcher.terminal import Listener
from joinlab.program.kept import KEPT, Kept
from joinlab.program.plain_data import decode
from joinlab.recorder.events import LogTail, log_name, output_name, return_name
from joinlab.recorder.rank_log import RankLog
from joinlab.timeline import Ending, EndKind

PORTION = 1 << 20
"""Bytes read at once."""
LINE = 1 << 16
"""A longer line goes to the listener in pieces."""


class RunFiles:
    """The files of one run. `logs` has the records by rank, as far as `take_in` has read them."""

    def __init__(self, folder: Path, ranks: int, origin_ns: int, listener: Listener | None) -> None:
        self.folder = folder
        self.logs = [RankLog(rank, origin_ns) for rank in range(ranks)]
        self.output = [Output(folder / output_name(rank)) for rank in range(ranks)]
        self._listener = listener
        self._events = [LogTail(folder / log_name(rank)) for rank in range(ranks)]
        self._unread = [b""] * ranks  # events read from the files, not yet fed to the logs
        self._lines = [b""] * ranks  # each rank's last, unfinished line
        self._news = False  # something was read since the last look

    def look(self) -> bool:
        """Read the files; True if any rank has recorded or printed something since the last
        look."""
        self._read()
        news, self._news = self._news, False
        return news

    def _read(self) -> None:
        fresh = [tail.read() for tail in self._events]
        self._unread = [old + new for old, new in zip(self._unread, fresh, strict=True)]
        self._news = self._read_output() or any(fresh) or self._news

    def take_in(self, judged: set[int]) -> None:
        """Bring `logs` up to date, except those of `judged` ranks: their later events are effects
        of killing peers."""
        self._read()
        for rank, log in enumerate(self.logs):
            if rank not in judged:
                log.feed(self._unread[rank])
            self._unread[rank] = b""

    def finish(self) -> None:
        """Read the rest of the output, and pass unfinished last lines to the listener."""
        while self._read_output():
            pass
        for rank, rest in enumerate(self._lines):
            if rest and self._listener is not None:
                self._listener(rank, rest.decode(errors="replace"))

    def returned(self, rank: int) -> Any:
        """The program's return value on `rank`; None if it did not return."""
        path = self.folder / return_name(rank)
        if not self.logs[rank].returned or not path.exists():
            return None
        kept = json.loads(path.read_text())
        return decode(kept["value"], lambda name: b64decode(kept["arrays"][name]))

    def ending(self, rank: int, status: int, cut_short: str) -> Ending:
        """The ending of a rank whose process has ended. `cut_short`: why joinlab ended the process,
        if it did."""
        log = self.logs[rank]
        if log.returned:
            end = Ending.finished(log.calls.values())
            text = f"its program returned, but its process did not end; {cut_short}"
            return replace(end, text=text) if cut_short else end
        if log.raised is not None:
            return Ending.raised(log.calls.values(), log.raised.text)
        return Ending.at(EndKind.KILLED, log.awaited(), _cause(status, self.output[rank]))

    def close(self) -> None:
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


def _cause(status: int, output: Output) -> str:
    if not os.WIFSIGNALED(status):
        return f"its process ended with exit code {os.WEXITSTATUS(status)} before the program returned (os._exit?)"
    name = signal.Signals(os.WTERMSIG(status)).name
    lines = output.last(4000).splitlines()
    said = next(
        (
            line.strip()
            for line in reversed(lines)
            if "what():" in line or "terminate called" in line
        ),
        "",
    )
    return f"its process was killed by {name}" + (f": {said}" if said else "")


class Output:
    """The output of one rank, without its middle if it is long."""

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
        return self._kept.last(size)

    def text(self) -> str:
        return self._kept.text()

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _give_back(fd: int, end: int) -> None:
    """Free the disk space of a file's first `end` bytes, which then read as zeros."""
    if sys.platform == "linux":
        punch_hole, keep_size = 2, 1  # linux/falloc.h
        with suppress(AttributeError):
            ctypes.CDLL(None).fallocate(
                fd, punch_hole | keep_size, ctypes.c_int64(0), ctypes.c_int64(end)
            )
