"""Reads the order of a communicator's ranks on the ring from NCCL's own log of one process.

If calls do not fit, that order decides which of them complete (nccl/ring.py), and no API returns
it. The first rank of each communicator prints it while NCCL creates the communicator:

    node7:4711:4890 [0] NCCL INFO Channel 00/02 :    0   3   2   1

A message of less than SMALL_BYTES runs on channel 0 alone (scheduleCollTasksToPlan in
src/enqueue.cc). The numbers are places in the group; a line too long for NCCL ends in "...".
Sources: dumpLine and ncclBuildRings in src/graph/rings.cc, ncclDebugInit and ncclDebugLog in
src/debug.cc, NCCL v2.29.7-1; the form of the line is the same in v2.7.8-1. Written from the source
and from published logs, without a GPU.
"""

from __future__ import annotations

import os
import re
from collections.abc import MutableMapping
from pathlib import Path

from joinlab.recorder.events import LogTail

_RING = re.compile(rb"NCCL INFO Channel 00/\d+ :((?:\s+\d+)+)\s*$")

OWN = ("NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS")
"""Variables that configure this log. If the user has set one of them, the recorder leaves the log
alone."""


def rings_in(text: bytes) -> list[tuple[int, ...]]:
    """The ring of channel 0 of each communicator in these lines.

    >>> rings_in(b"n:1:2 [0] NCCL INFO Channel 00/02 :    0   1   3   2")
    [(0, 1, 3, 2)]
    """
    matches = map(_RING.search, text.splitlines())
    return [tuple(map(int, match[1].split())) for match in matches if match]


class NcclLog:
    """Makes NCCL write its log into a file, and reads the new lines."""

    def __init__(
        self, folder: Path, rank: int, environ: MutableMapping[str, str] = os.environ
    ) -> None:
        """Create it before NCCL's first communicator: NCCL reads its variables then."""
        self._tail: LogTail | None = None
        if any(map(environ.get, OWN)):
            return
        if environ.get("TORCH_NCCL_USE_COMM_NONBLOCKING", "0") != "0":
            return  # lines may come after those of another communicator
        within, name = str(folder.absolute()), f"rank-{rank}.nccl-{{}}.log"
        # %p: another file for a child that uses NCCL
        path = os.path.join(within.replace("%", "%%"), name.format("%p"))
        environ.update(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT", NCCL_DEBUG_FILE=path)
        self._tail = LogTail(Path(within, name.format(os.getpid())))

    def ring(self, size: int) -> tuple[int, ...]:
        """The ring of the one communicator of `size` ranks created since the last call; () unless
        there is one."""
        if self._tail is None:
            return ()
        rings = [ring for ring in rings_in(self._tail.read()) if sorted(ring) == list(range(size))]
        if len(rings) == 1:
            return rings[0]
        return ()
