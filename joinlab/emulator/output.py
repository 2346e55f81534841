"""sys.stdout, sys.stderr and sys.stdin during an emulation: those of a rank in its threads, the process's in others."""

from __future__ import annotations

import io
from typing import Any

from joinlab.emulator.scheduler import behind


class RankOutput:
    """sys.stdout or sys.stderr: what a rank prints is kept for its Timeline, and `close` closes it for that rank."""

    encoding = "utf-8"
    errors = "backslashreplace"

    def __init__(self, before: Any) -> None:
        self.before = before
        self._closed: set[int] = set()

    def write(self, text: str) -> int:
        """Keep it, or pass it on."""
        host = behind()
        if host is None:
            return int(self.before.write(text))
        if host.rank in self._closed:
            raise ValueError("I/O operation on closed file.")
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        host.printed(text)
        return len(text)

    def writelines(self, lines: Any) -> None:
        """As of a file."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """A rank's output needs none."""
        if behind() is None:
            self.before.flush()

    def close(self) -> None:
        """A rank closes its own, as quit() and some programs do; the process keeps its."""
        host = behind()
        if host is None:
            self.before.close()
        else:
            self._closed.add(host.rank)

    @property
    def closed(self) -> bool:
        """Whether it is closed for the rank that asks."""
        host = behind()
        return bool(self.before.closed) if host is None else host.rank in self._closed

    @property
    def buffer(self) -> Any:
        """What takes bytes."""
        return self.before.buffer if behind() is None else _Bytes(self)

    def isatty(self) -> bool:
        """A rank's output is no terminal: it is kept first, and shown later."""
        return behind() is None and bool(self.before.isatty())

    def reconfigure(self, **options: Any) -> None:
        """A rank's output needs no options."""
        if behind() is None:
            self.before.reconfigure(**options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.before, name)


class _Bytes(io.RawIOBase):
    def __init__(self, output: RankOutput) -> None:
        self._output = output

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._output.write(bytes(data).decode(errors="backslashreplace"))
        return len(data)


class RankInput:
    """sys.stdin: a rank reads the end of the file at once, and cannot close the process's."""

    def __init__(self, before: Any) -> None:
        self.before = before
        self._empty = io.StringIO()

    def close(self) -> None:
        """A rank closes nothing."""
        if behind() is None and self.before is not None:
            self.before.close()

    def __iter__(self) -> Any:
        return iter(self._empty if behind() is not None else self.before)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.before if behind() is None else self._empty, name)
