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
    if text and "Invoked with: <" in text:  # what follows is an address
        return text.partition("Invoked with: <")[0]
    if text and "op.preamble.length" in text:
        return ABORTED
    return text


def differences(emulated: Timeline, launched: Timeline) -> list[str]:
    """Every difference between the two stories, in words; [] if there is none.

    Not compared is what is a race among real processes: in which call a rank finds that a peer's process has ended
    or that its backend aborts it (nothing is, from there on); whether a rank that is ended after the verdict on a
    hang first sees another one being ended; whether a call that nobody waits for (DDP's all-reduce at the beginning
    of forward() under join()) is complete when its rank raises. Nor what lies in memory that nobody had set: the
    emulator leaves that value out.
    """
    found = []
    judged = any(end.kind is EndKind.HUNG for end in launched.ends)
    for rank, (left, right) in enumerate(zip(story(emulated), story(launched), strict=True)):
        (end, *ours), (real_end, *real) = left, right
        open_calls = _nobody_waits_for(launched, rank) if end[0] == real_end[0] == EndKind.RAISED else set()
        if judged and end[0] == EndKind.HUNG and real_end[-1] == PEER_GONE:
            continue
        if end[-1] == real_end[-1] and end[-1] in (PEER_GONE, ABORTED):
            calls = min(next((at for at, call in enumerate(side) if not call[-2]), len(side)) for side in (ours, real))
            end, real_end, ours, real = end[:1], real_end[:1], ours[:calls], real[:calls]
        if end != real_end:
            found.append(f"rank {rank} ends {end} / {real_end}")
        for index, (one, other) in enumerate(zip(ours, real, strict=False)):
            if not _same_call(one, other) and index not in open_calls:
                found.append(f"rank {rank}, call {index}: {one} / {other}")
        if len(ours) != len(real):
            found.append(f"rank {rank}: {len(ours)} calls / {len(real)}")
    return found


def _nobody_waits_for(timeline: Timeline, rank: int) -> set[int]:
    """Which of the calls of `rank`, by place, are open at its end though its host waited for none of them."""
    rows = timeline.calls.filter(timeline.calls["rank"] == rank).rows(named=True)
    unknown = ("completed_ns", "host_wait_begin_ns", "error")
    return {index for index, row in enumerate(rows) if all(row[name] is None for name in unknown)}


def _same_call(one: tuple[object, ...], other: tuple[object, ...]) -> bool:
    *what_was_called, value_out, completed, error = one
    *what_was_really, real_value, really_completed, real_error = other
    unknown = value_out is None and completed
    never_waited_for = {error, real_error} == {None, PEER_GONE}
    return (
        (what_was_called, completed) == (what_was_really, really_completed)
        and (value_out == real_value or unknown)
        and (error == real_error or never_waited_for)
    )
