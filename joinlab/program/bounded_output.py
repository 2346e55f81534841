"""A rank's output: all of it, or the beginning and the end if it is long."""

from __future__ import annotations

KEPT = 2 << 20
"""Bytes kept of the beginning of a rank's output, and of its end."""


class BoundedOutput:
    """Takes bytes in any portions. `size` is their total number, `whole` whether all are kept."""

    def __init__(self) -> None:
        self.size = 0
        self._head = bytearray()
        self._tail = bytearray()

    @property
    def whole(self) -> bool:
        """Whether all bytes are kept."""
        return self.size <= 2 * KEPT

    def add(self, data: bytes) -> bool:
        """Take further bytes. True if bytes in the middle were dropped."""
        self.size += len(data)
        room = KEPT - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        if len(self._tail) <= 2 * KEPT:  # not at each portion: cutting copies
            return False
        del self._tail[:-KEPT]
        return True

    def last(self, size: int) -> str:
        """The last `size` bytes at most."""
        return (self._head + self._tail)[-size:].decode(errors="replace")

    def text(self) -> str:
        """All output, or its beginning and end, with a line between them that says how much is
        missing."""
        tail = self._tail[-KEPT:]
        left_out = self.size - len(self._head) - len(tail)
        if not left_out:
            return (self._head + tail).decode(errors="replace")
        parts = (self._head.decode(errors="replace"), tail.decode(errors="replace"))
        return f"\n[joinlab left out {left_out:,} bytes of {self.size:,} here]\n".join(parts)
