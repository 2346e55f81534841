"""The files of a launched run's ranks, read while they run: event logs, output, return values; and
how each rank ended.

A rank's output is bounded: the first and the last KEPT bytes are kept, and the disk space between
them is freed while the rank goes on printing.
"""

from __future__ import annotations

import json
from base64 import b64decode
from dataclasses import replace
from pathlib import Path
from typing import Any

from joinlab.launcher.rank_output import Output, cause_of_death
from joinlab.launcher.terminal import Listener
from joinlab.program.plain_data import decode
from joinlab.recorder.events import LogTail, log_name, output_name, return_name
from joinlab.recorder.rank_log import RankLog
from joinlab.timeline import Ending, EndKind

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
        for rank, unfinished in enumerate(self._lines):
            if unfinished and self._listener is not None:
                self._listener(rank, unfinished.decode(errors="replace"))

    def returned(self, rank: int) -> Any:
        """The program's return value on `rank`; None if it did not return."""
        path = self.folder / return_name(rank)
        if not self.logs[rank].returned or not path.exists():
            return None
        stored = json.loads(path.read_text())
        return decode(stored["value"], lambda name: b64decode(stored["arrays"][name]))

    def ending(self, rank: int, status: int, cut_short: str) -> Ending:
        """The ending of a rank whose process has ended. `cut_short`: why joinlab ended the process,
        if it did."""
        log = self.logs[rank]
        if log.returned:
            end = Ending.finished(log.calls.values())
            text = f"its program returned, but its process did not end; {cut_short}"
            if cut_short:
                return replace(end, text=text)
            return end
        if log.raised is not None:
            return Ending.raised(log.calls.values(), log.raised.text)
        text = cause_of_death(status, self.output[rank].last(4000))
        return Ending.at(EndKind.KILLED, log.awaited(), text)

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
                *lines, unfinished = (self._lines[rank] + data).split(b"\n")
                if len(unfinished) > LINE:
                    lines, unfinished = [*lines, unfinished], b""
                self._lines[rank] = unfinished
                for line in lines:
                    self._listener(rank, line.decode(errors="replace"))
        return news
