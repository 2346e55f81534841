"""Whether an emulated Timeline and a launched one tell the same story: who called what, what came out, how it ended."""

from __future__ import annotations

import re

from joinlab import Timeline
from joinlab.timeline import EndKind

SAME = ("group", "seq", "op", "origin", "input", "dtype", "shape", "reduce_op", "root", "peer", "tag", "call_site")
GONE = re.compile(r"Connection closed by peer|Connection reset by peer|Socket closed|Broken pipe|[Rr]ead error|EOF")

PEER_GONE = "the peer is gone"
ABORTED = "aborted"


def story(timeline: Timeline) -> list[list[tuple[object, ...]]]:
    """Per rank: its ending and its calls, without times and without what a backend's message happens to say."""
    told: list[list[tuple[object, ...]]] = []
    for rank, end in enumerate(timeline.ends):
        rows = timeline.calls.filter(timeline.calls["rank"] == rank).rows(named=True)
        calls: list[tuple[object, ...]] = []
        for row in rows:
            same = [str(row[name]) for name in SAME]
            calls.append(
                (*same, row["value_in"], row["value_out"], row["completed_ns"] is not None, what(row["error"]))
            )
        told.append(
            [
                (str(end.kind), end.pending, end.call, end.group, None if end.kind is EndKind.HUNG else what(end.text)),
                *calls,
            ]
        )
    return told


def what(text: str | None) -> str | None:
    """The kind of an error: its exact words differ from run to run."""
    if text and GONE.search(text):
        return PEER_GONE
    if text and "op.preamble.length" in text:
        return ABORTED
    return text


def differences(one: Timeline, other: Timeline) -> list[str]:
    """Every difference between two stories, in words; [] if there is none.

    When exactly a peer's process is found to have ended is a race with what it still sends: a rank that ends by that
    may do so a call sooner or later, so from there on its calls are not compared. `one` is the emulated Timeline.
    """
    found = []
    launcher_ended_it = any(end.proven for end in other.ends)
    for rank, (left, right) in enumerate(zip(story(one), story(other), strict=True)):
        if left[0][-1] == right[0][-1] == PEER_GONE and left[0][0] == right[0][0]:
            length = min(
                next(index for index, call in enumerate(side) if PEER_GONE in call) for side in (left[1:], right[1:])
            )
            left, right = left[1 : length + 1], right[1 : length + 1]
        for index, (a, b) in enumerate(zip(left, right, strict=False)):
            if index and a[-3] is None and b[-3] is not None:
                a = (*a[:-3], b[-3], *a[-2:])  # the emulator does not know what is in memory that nobody has set
            if a != b:
                found.append(f"rank {rank}, {'end' if not index else f'call {index - 1}'}: {a} / {b}")
        if len(left) != len(right):
            found.append(f"rank {rank}: {len(left) - 1} calls / {len(right) - 1}")
    return found
