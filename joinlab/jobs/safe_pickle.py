"""Reads the pickle of a flight recorder dump without letting it run anything.

A pickle is a program for a small stack machine: by naming a global it can call any function of this
process. A genuine dump holds dicts, lists, tuples, strings and numbers only, so every global is
refused.
"""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

MEMORY_PER_BYTE = 64
"""In memory, dumps of real jobs took at most 20 times their file size."""

LEAST_MEMORY = 1 << 30
"""Bytes that reading any file may take, enough that other threads' memory does not exceed the
limit."""

UNREADABLE = (
    pickle.UnpicklingError,
    AttributeError,
    EOFError,
    ImportError,
    IndexError,
    KeyError,
    MemoryError,
    OverflowError,
    RecursionError,
    TypeError,
    UnicodeDecodeError,
    ValueError,
)
"""Exceptions that damaged or hostile pickles cause."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it names {module}.{name}, and a dump holds plain data only")

    def persistent_load(self, pid: object) -> NoReturn:
        raise pickle.UnpicklingError(
            "it refers to an object outside of itself, and a dump holds plain data only"
        )


def load(data: bytes) -> object:
    """The plain data in a pickle. Raises one of UNREADABLE for anything else, and runs nothing."""
    with _bounded(LEAST_MEMORY + MEMORY_PER_BYTE * len(data)):
        # Buffered: a reader that can peek lets the unpickler fetch more than one opcode at a time;
        # 9 times faster.
        return _Unpickler(io.BufferedReader(io.BytesIO(data), 1 << 17)).load()


@contextmanager
def _bounded(growth: int) -> Iterator[None]:
    """Let this process grow by at most `growth` bytes meanwhile.

    A pickle of 10 bytes can ask for a memo table of 64 GiB. Then this limit makes Python raise
    MemoryError, instead of the system ending the process. Where there are no such limits (not on
    Linux), reading is unbounded.
    """
    try:
        import resource

        with open("/proc/self/statm", "rb") as file:
            now = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        before = resource.getrlimit(resource.RLIMIT_AS)
        if before[0] == resource.RLIM_INFINITY:
            limit = now + growth
        else:
            limit = min(before[0], now + growth)
        resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
    except (ImportError, OSError, ValueError):
        yield
        return
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
