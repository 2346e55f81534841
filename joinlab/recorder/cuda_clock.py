"""The clock of a GPU beside the host's.

Once a second an event is recorded on a stream where nothing else runs, and the host looks until it
has passed. It passed between the two looks, so the middle is its time on the host's clock, right
within half their distance. CUDA tells the time between two events of a GPU (cudaEventElapsedTime,
in ms as float32), so the time of any other event follows; over one second float32 is exact within
60 ns.
"""

from __future__ import annotations

from typing import Any

import torch

from joinlab.recorder.events import now

EVERY_NS = 1_000_000_000
LONGEST_NS = 200_000
"""A look that took longer than this says too little, and is not used."""


class GpuClock:
    """Host times of timing events on the current GPU."""

    def __init__(self) -> None:
        self._stream: object = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._looked_ns = -EVERY_NS
        self._known: tuple[Any, int] | None = None  # an event, and its time on the host's clock
        self.align()

    def align(self) -> None:
        """Look again if the last look is old. Waits LONGEST_NS at most, for nothing that the
        program does."""
        before = now()
        if before - self._looked_ns < EVERY_NS:
            return
        self._looked_ns = before
        event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(self._stream)
        while not event.query():
            if now() - before > LONGEST_NS:
                return
        after = now()
        if after - before <= LONGEST_NS:
            self._known = event, (before + after) // 2

    def ns(self, event: object) -> int | None:
        """When a timing event passed that has passed; None where the clock was never seen."""
        if self._known is None or event is None:
            return None
        reference, known_ns = self._known
        return int(known_ns + round(reference.elapsed_time(event) * 1e6))
