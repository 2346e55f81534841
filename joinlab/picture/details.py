"""The tooltip of a call or a span: every column, in words, as (name, text) pairs.

A null means different things in different columns ("never completed", "the backend does not say"),
so the tooltip names the meaning instead of leaving the column out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from joinlab.analysis.meanings import conclusion
from joinlab.analysis.wording import at_input, input_or_step, shapes
from joinlab.backend.calls import elements_of
from joinlab.ops import MAX_VALUES, POINT_TO_POINT, decode_values
from joinlab.timeline import Meta

Details = tuple[tuple[str, str], ...]

# where pip puts things says nothing to a reader
_LIBRARY = re.compile(r"^.*[/\\](site|dist)-packages[/\\]")

MADE, OUTSIDE = "what the rank made of it", "none: before the first or after the last"

MAX_FRAMES = 8
"""A tooltip shows at most this many frames of a stack, the innermost ones."""


UNITS = (("s", 1_000_000_000), ("ms", 1_000_000), ("µs", 1_000))
"""Names of units and how many ns they are, the longest first."""


def duration(ns: int) -> str:
    """A duration in a suitable unit.

    >>> duration(850), duration(12_345), duration(85_200_000), duration(1_800_000_000_000)
    ('850 ns', '12.3 µs', '85.2 ms', '1800 s')
    """
    size = abs(ns)
    for unit, per in UNITS:
        if size >= per:
            if size < 1000 * per:
                return f"{ns / per:.3g} {unit}"
            return f"{ns / per:.0f} {unit}"
    return f"{ns} ns"


def moment(ns: int) -> str:
    """A point on the clock, in ms with µs resolution, so that two of them can be compared.

    >>> moment(85_200_400)
    '85.200 ms'
    """
    return f"{ns / 1_000_000:.3f} ms"


@lru_cache(4096)  # the same few values come again and again
def values(text: str | None) -> str | None:
    """Recorded values as text: "[[1.0]]" is "1.0", several tensors are joined by "; ".

    >>> values("[[1.0],[2,3]]")
    '1.0; 2, 3'
    """
    decoded = decode_values(text)
    if decoded is None:
        return None
    return "; ".join(", ".join(map(json.dumps, tensor_values)) for tensor_values in decoded)


def call_details(row: Mapping[str, Any], tells_start: bool, meta: Meta) -> Details:
    """Every column of one call (a row of Timeline.calls), without those that cannot apply, such as
    the root of an all-reduce. A value that is unknown, or an event that never happened, is named as
    such.

    tells_start  whether the backend says when it begins a call; gloo does not
    meta         of its Timeline: it says what the column `input` counts
    """
    done, peer = row["completed_ns"] is not None, None
    if row["op"] in POINT_TO_POINT:
        peer = "any rank" if row["peer"] is None else f"rank {row['peer']}"
    unknown = "not known" if row["dtype"] else "none"
    if row["dtype"] and (elements_of(row["shape"]) or 0) > MAX_VALUES:
        unknown = f"not kept (over {MAX_VALUES} elements)"
    value_out, made = "never: the call did not complete", None
    if done:
        value_out = values(row["value_out"]) or unknown
        if row["dtype"]:  # gloo's barrier has no value
            made = conclusion(row["origin"], row["value_out"])
    facts = (
        ("call", row["origin"] or row["op"]),
        ("rank", row["rank"]),
        ("group, number", _numbered(row)),
        ("op", row["op"]),
        (input_or_step(meta), OUTSIDE if row["input"] is None else at_input(row["input"], meta)),
        ("dtype", row["dtype"] or "none"),
        ("shape", shapes(row["shape"])),
        ("reduced by", row["reduce_op"]),
        ("root", None if row["root"] is None else f"rank {row['root']}"),
        ("peer", peer),
        ("tag", row["tag"]),
        ("value in", values(row["value_in"]) or unknown),
        ("value out", value_out),
        (MADE, made and f"it {made}"),
        *_times(row, tells_start),
        ("error", row["error"]),
        ("called from", row["call_site"] or "not known"),
        ("stack", _stack(row["stack"] or [])),
    )
    return tuple((name, str(fact)) for name, fact in facts if fact is not None)


def _stack(frames: Sequence[str]) -> str | None:
    """The innermost frames, which come last, as in a traceback."""
    if not frames:
        return None
    lines = list(map(_shorter, frames[-MAX_FRAMES:]))
    if len(frames) > MAX_FRAMES:
        lines.insert(0, f"({len(frames) - MAX_FRAMES} outer frames left out)")
    return "\n".join(lines)


def _numbered(row: Mapping[str, Any]) -> str:
    number = "none: it was refused" if row["number"] is None else row["number"]
    return f"{row['group']}, {number} (seq {row['seq']})"


@lru_cache(4096)
def _shorter(frame: str) -> str:
    return _LIBRARY.sub("", frame)


def _times(row: Mapping[str, Any], tells_start: bool) -> Details:
    enqueued, completed = row["enqueued_ns"], row["completed_ns"]
    unknown = "not known" if tells_start else "the backend does not say when it began"
    ended = "never" if completed is None else moment(completed)
    if enqueued is not None and completed is not None:
        ended += f" ({duration(completed - enqueued)} after it was enqueued)"
    return (
        ("enqueued", "not known" if enqueued is None else moment(enqueued)),
        ("started", unknown if row["started_ns"] is None else moment(row["started_ns"])),
        ("completed", ended),
        ("host waited", _waited(row)),
    )


def _waited(row: Mapping[str, Any]) -> str:
    begin, end = row["host_wait_begin_ns"], row["host_wait_end_ns"]
    if begin is None:
        return "the host did not wait for it"
    if end is None:
        return f"from {moment(begin)}, never let go"
    return f"from {moment(begin)} to {moment(end)} ({duration(end - begin)})"
