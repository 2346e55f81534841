"""Looks: colours, hatchings, proportions and words that the Plotly figure and the SVG picture have in common."""

from __future__ import annotations

import re
from collections.abc import Mapping
from textwrap import shorten, wrap

from joinlab.picture.lanes import Box, Cap, Lane
from joinlab.picture.rows import Kind
from joinlab.timeline import EndKind, Timeline

# The Okabe-Ito palette, which people with any common colour blindness can tell apart. Vermillion is kept for what
# went wrong. A colour never stands alone: every box says in words what it is, and some kinds are hatched besides.
WRONG = "#D55E00"
INK = "#7A7A7A"  # reads on white (4.3:1) and on the dark of JupyterLab (4.4:1)
STYLES: Mapping[Kind, tuple[str, str]] = {
    Kind.FORWARD: ("#56B4E9", ""),
    Kind.BACKWARD: ("#009E73", ""),
    Kind.JOIN: ("#E69F00", "/"),
    Kind.FINAL: ("#0072B2", ""),
    Kind.BARRIER: ("#CC79A7", "x"),
    Kind.OTHER: ("#F0E442", ""),
    Kind.SETUP: ("#D9D9D9", "."),
    Kind.WAIT: ("#FFFFFF", "-"),
    Kind.SPAN: ("#BFBFBF", ""),
}
SPAN = (0.02, 0.14)  # where a rank's lanes lie in its column, which is 1 wide
WAIT = (0.145, 0.19)  # spans and waits share the host lane
HOST = (SPAN[0], WAIT[1])
STREAM = (0.21, 0.93)
BAND_NAMES = {
    (False, True): "meet",
    (True, True): "met, but should not have",
    (True, False): "face each other, but can never meet",
}


def title(timeline: Timeline) -> str:
    """One line: which program, on what, with how many inputs.

    >>> from joinlab.timeline import Ending, timeline_from_rows
    >>> meta = {"program": "case_4", "inputs": [5, 6], "engine": "launched", "backend": "gloo"}
    >>> title(timeline_from_rows([], [Ending("finished")] * 2, meta))
    'case_4, inputs (5, 6), launched on gloo'
    """
    meta = timeline.meta
    inputs = meta.get("inputs")
    said = f", inputs ({', '.join(map(str, inputs))})" if inputs else ""
    return f"{meta.get('program', 'program')}{said}, {meta.get('engine', 'recorded')} on {meta.get('backend', '?')}"


def measured(timeline: Timeline) -> str:
    """Says whether what is shown was measured or modelled, and on what."""
    meta = timeline.meta
    backend, versions = meta.get("backend", "an unknown backend"), meta.get("versions") or {}
    torch = f", PyTorch {versions['torch']}" if versions.get("torch") else ""
    match meta.get("engine"):
        case "launched":
            return (
                f"Measured: {timeline.world_size} real processes on {backend}{torch}. Times are of the machine's clock."
            )
        case "emulated":
            return (
                f"Modelled: PyTorch's own code on a modelled {backend}{torch}{_barrier(timeline)}. "
                "Times are of a virtual clock."
            )
        case engine:
            return f"{str(engine or 'recorded').capitalize()}: {timeline.world_size} ranks on {backend}{torch}."


def _barrier(timeline: Timeline) -> str:
    """Which barrier was modelled: on NCCL, endings hang on it."""
    knobs = timeline.meta.get("emulation") or {}
    if timeline.meta.get("backend") != "nccl" or "era" not in knobs:
        return ""
    if knobs["era"] == "today":
        return ", with today's barrier, an all-reduce of a float zero"
    byte = knobs.get("barrier_value")
    pad = f", and {knobs['pad']} as the undefined half of a line" if knobs.get("pad") else ""
    return f", with the barrier of PyTorch 1.9, an all-reduce of one byte that nobody set, here {byte}{pad}"


def sides(box: Box) -> tuple[float, float]:
    """Where a box lies in the column of its rank, from 0 to 1."""
    low, high = STREAM if box.lane is Lane.STREAM else WAIT if box.kind is Kind.WAIT else SPAN
    width = (high - low) / box.tracks
    return low + width * box.track, low + width * (box.track + 1)


def good(cap: Cap) -> bool:
    """Whether a rank ended as one would wish."""
    return cap.ending.kind is EndKind.FINISHED and not cap.ending.pending


def sign(cap: Cap) -> str:
    """A rank's ending as a sign: it finished, left a call pending, did not finish, or nothing is known of it."""
    if cap.ending.kind is EndKind.UNKNOWN:
        return "?"
    return "✓" if good(cap) else "!" if cap.ending.pending else "✕"


def cap_lines(cap: Cap, width: int) -> list[str]:
    """The sign and words of an ending, in at most two lines; the full text of an exception is for the tooltip."""
    text = re.sub(r"\[[^]\s]+\.cc:\d+\] ?", "", cap.text)  # gloo begins with the path of its own source file
    return wrap(shorten(f"{sign(cap)} {text}", 2 * width, placeholder=" …"), width)
