"""One measured figure, and how samples are summed up."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median, quantiles


@dataclass(frozen=True, slots=True)
class Figure:
    """What was measured against what: both sides, their ratio, and the aim."""

    what: str
    measured: str
    ratio: str
    aim: str


def seconds(work: Callable[[], object]) -> float:
    """How long `work` takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def ms(samples: Sequence[float]) -> str:
    """Median and quartiles in milliseconds."""
    low, _, high = quantiles(samples, n=4) if len(samples) > 1 else (samples[0],) * 3
    return f"{1e3 * median(samples):.2f} ms ({1e3 * low:.2f} to {1e3 * high:.2f})"
