"""Random Timelines for the tests of pictures: any calls, in any state, of several groups."""

from __future__ import annotations

import gzip
import json
from typing import Any

from hypothesis import strategies as st

from joinlab.timeline import Ending, Timeline, timeline_from_rows

LABELS = (
    ("all_reduce", "all-reduce (DDP forward() 1)"),
    ("all_reduce", "all-reduce (join() _get_num_nonjoined_procs())"),
    ("broadcast", "broadcast (DDP construction)"),
    ("barrier", "barrier"),
    ("all_reduce", None),
)
ENDS = (
    Ending("finished"),
    Ending("hung", proven=False),
    Ending("raised", text="ValueError: <b>\nmore"),
    Ending("killed"),
)
GROUPS = {"0": [0, 1, 2], "<i>": [0, 1]}


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    """Three ranks, two groups, up to eight calls a rank and up to three spans."""
    rows, spans = [], []
    for rank in range(3):
        at, seqs = draw(st.integers(0, 9)), dict.fromkeys(GROUPS, 0)
        for _ in range(draw(st.integers(0, 8))):
            group = draw(st.sampled_from([name for name, ranks in GROUPS.items() if rank in ranks]))
            op, origin = draw(st.sampled_from(LABELS))
            at += draw(st.integers(1, 5))
            done = draw(st.none() | st.integers(at, at + 9))
            wait = draw(st.none() | st.integers(at, at + 9))
            woken = None if wait is None else draw(st.none() | st.integers(wait, wait + 9))
            error = "RuntimeError: <script>" if done is None and draw(st.booleans()) else None
            row = {
                "rank": rank,
                "group": group,
                "seq": seqs[group],
                "op": op,
                "origin": origin,
                "error": error,
            }
            row |= {
                "input": draw(st.none() | st.integers(0, 2)),
                "enqueued_ns": at,
                "completed_ns": done,
            }
            row |= {
                "started_ns": draw(st.none() | st.integers(at, at + 9 if done is None else done))
            }
            row |= {"host_wait_begin_ns": wait, "host_wait_end_ns": woken}
            row |= (
                {"dtype": None, "shape": []}
                if op == "barrier"
                else {"dtype": "float32", "shape": [[1]]}
            )
            rows.append(row)
            seqs[group] += 1
        for _ in range(draw(st.integers(0, 3))):
            begin = draw(st.integers(0, 40))
            end = draw(st.none() | st.integers(begin, 50))
            spans.append({"rank": rank, "name": "forward", "begin_ns": begin, "end_ns": end})
    ends = [draw(st.sampled_from(ENDS)) for _ in range(3)]
    meta = {
        "program": "any",
        "engine": "launched",
        "backend": draw(st.sampled_from(["gloo", "nccl"])),
        "groups": GROUPS,
    }
    return timeline_from_rows(rows, ends, meta, spans)


def unzipped(packed: bytes) -> bytes:
    """Decompressed lane data; small data was not compressed."""
    return gzip.decompress(packed) if packed.startswith(b"\x1f") else packed


def lane_data(packed: bytes) -> tuple[dict[str, Any], bytes]:
    """The data that the view's script gets, as data.js reads it: the JSON, and the columns after a
    NUL."""
    text, _, columns = unzipped(packed).partition(b"\0")
    return json.loads(text), columns
