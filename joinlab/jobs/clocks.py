"""Aligns the clocks of several hosts by calls that met.

Each host has its own monotonic clock. A call that needs the data of every rank, such as an
all-reduce, completes on no rank before every rank has issued it. With `o` for the offset to add to
a host's clock:

    issued(a) + o(a)  <=  completed(b) + o(b)        so  o(a) - o(b)  <=  completed(b) - issued(a)
    issued(b) + o(b)  <=  completed(a) + o(a)        so  o(b) - o(a)  <=  completed(a) - issued(b)

Every such call bounds the difference from both sides; the tightest bounds count, including those
through a third host.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from joinlab.ops import NEEDS_ALL, CallRow


@dataclass(frozen=True, slots=True)
class Offset:
    """Added to a host's times; wrong by at most `bound_ns`. None: no call met, so it comes from the
    wall clocks."""

    offset_ns: int
    bound_ns: int | None


def offsets(
    calls: Iterable[CallRow],
    host_of: Mapping[int, str],
    groups: Mapping[str, list[int]],
    wall: Mapping[str, int],
    reference: str,
) -> dict[str, Offset]:
    """The offset of each host, by name, to the clock of the host `reference`.

    calls    rows with times of their rank's host, each rank's in its order of issue
    host_of  by rank
    wall     by host: wall time minus monotonic time, when its first rank began
    """
    hosts = sorted(wall)
    offset_of = {host: Offset(wall[host] - wall[reference], None) for host in hosts}
    offset_of[reference] = Offset(0, 0)
    if len(hosts) == 1:
        return offset_of
    index_of = {host: i for i, host in enumerate(hosts)}
    bounds = _bounds(calls, host_of, groups, index_of)
    zero = index_of[reference]
    for host, i in index_of.items():
        high, low = bounds[i, zero], -bounds[zero, i]  # o(host) - o(reference) lies between
        if host != reference and np.isfinite(high) and np.isfinite(low):
            offset_of[host] = Offset(round((high + low) / 2), round(abs(high - low) / 2) + 1)
    return offset_of


def _bounds(
    calls: Iterable[CallRow],
    host_of: Mapping[int, str],
    groups: Mapping[str, list[int]],
    index_of: Mapping[str, int],
) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """most[a, b]: the upper bound of o(a) - o(b); inf if no call bounds it."""
    met: dict[tuple[str, int], list[CallRow]] = {}
    for call in calls:
        number = call.get("number")  # collectives with the same number met
        if (
            number
            and call["op"] in NEEDS_ALL
            and call.get("completed_ns") is not None
            and call["rank"] in host_of
        ):
            met.setdefault((call["group"], number), []).append(call)
    bounds = np.full((len(index_of), len(index_of)), np.inf)
    np.fill_diagonal(bounds, 0.0)
    for (group, _), rows in met.items():
        if len(rows) < len(groups.get(group, ())) or len({row["op"] for row in rows}) > 1:
            continue
        issued: dict[int, int] = {}  # by host: the last to issue, the first to complete
        completed: dict[int, int] = {}
        for row in rows:
            host = index_of[host_of[row["rank"]]]
            began, done = row["enqueued_ns"], row["completed_ns"]
            assert began is not None
            assert done is not None
            issued[host] = max(issued.get(host, began), began)
            completed[host] = min(completed.get(host, done), done)
        for a, last in issued.items():
            for b, first in completed.items():
                if a != b:
                    bounds[a, b] = min(bounds[a, b], first - last)
    # Floyd and Warshall: a bound through a third host may be tighter
    for via in range(len(index_of)):
        bounds = np.minimum(bounds, bounds[:, via, None] + bounds[None, via, :])
    return bounds
