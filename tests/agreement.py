"""Whether an emulated Timeline and a launched one tell the same story: who called what, what came out, how it ended."""

from __future__ import annotations

import re

from joinlab import Timeline
from joinlab.timeline import EndKind

SAME = ("group", "seq", "op", "origin", "input", "dtype", "shape", "reduce_op", "root", "peer", "tag", "call_site")
GONE = re.compile(r"Connection closed by peer|Connection reset by peer|Socket closed|Broken pipe|[Rr]ead error|EOF")


def story(timeline: Timeline) -> list[list[object]]:
    """Per rank: its ending and its calls, without times and without what a backend's message happens to say."""
    told: list[list[object]] = []
    for rank, end in enumerate(timeline.ends):
        rows = timeline.calls.filter(timeline.calls["rank"] == rank).rows(named=True)
        calls: list[object] = []
        for row in rows:
            same = [str(row[name]) for name in SAME]
            calls.append(
                (*same, row["value_in"], row["value_out"], row["completed_ns"] is not None, what(row["error"]))
            )
        told.append([(str(end.kind), end.pending, end.call, end.group, what(end.text)), *calls])
    return told


def what(text: str | None) -> str | None:
    """The kind of an error: its exact words differ from run to run."""
    if text and GONE.search(text):
        return "the peer is gone"
    if text and "op.preamble.length" in text:
        return "aborted"
    return text


def differences(one: Timeline, other: Timeline) -> list[str]:
    """Every difference between two stories, in words; [] if there is none."""
    found = []
    for rank, (left, right) in enumerate(zip(story(one), story(other), strict=True)):
        for index, (a, b) in enumerate(zip(left, right, strict=False)):
            if a != b:
                found.append(f"rank {rank}, {'end' if not index else f'call {index - 1}'}: {a} / {b}")
        if len(left) != len(right):
            found.append(f"rank {rank}: {len(left) - 1} calls / {len(right) - 1}")
    return found


def ended(timeline: Timeline) -> list[EndKind]:
    """The kinds of all endings."""
    return [end.kind for end in timeline.ends]
