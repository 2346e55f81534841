"""One measured figure, and how samples are summed up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, quantiles


@dataclass(frozen=True, slots=True)
class Figure:
    """What was measured against what: both sides, their ratio, and the aim."""

    what: str
    measured: str
    ratio: str
    aim: str


def ms(seconds: Sequence[float]) -> str:
    """Median and quartiles in milliseconds."""
    low, _, high = quantiles(seconds, n=4) if len(seconds) > 1 else (seconds[0],) * 3
    return f"{1e3 * median(seconds):.2f} ms ({1e3 * low:.2f} to {1e3 * high:.2f})"
