"""sys.stdout, sys.stderr and sys.stdin during an emulation: a rank's own in its threads, the
process's in others."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any

from joinlab.emulator.scheduler import behind


class RankStreams:
    """Stands for the stream `before`. `make` makes a rank's own, which the rank may close, as
    quit() does."""

    def __init__(self, before: object, make: Callable[[object], object]) -> None:
        self.before = before
        self._make = make
        self._own: dict[int, object] = {}  # by rank

    def __getattr__(self, name: str) -> Any:
        return getattr(self._here(), name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._here())

    def _here(self) -> Any:
        host = behind()
        if host is None:
            return self.before
        return self._own.get(host.rank) or self._own.setdefault(host.rank, self._make(self.before))


def output(before: object) -> io.TextIOBase:
    """What a rank prints is kept for its Timeline."""
    return io.TextIOWrapper(
        _KeptStream(before), "utf-8", "backslashreplace", newline="", write_through=True
    )  # type: ignore[type-var]


def no_input(before: object) -> io.TextIOBase:
    """A rank that reads its stdin is at the end of it at once."""
    return io.StringIO()


class _KeptStream(io.RawIOBase):
    def __init__(self, before: Any) -> None:
        self._before = before

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return int(self._before.fileno())

    def write(self, data: Any) -> int:
        behind().printed(bytes(data).decode(errors="backslashreplace"))
        return len(data)
