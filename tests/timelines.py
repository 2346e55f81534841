"""Timelines for tests: the six documented cases, emulated once, and a builder for hand-made ones.

case_timeline(4, n=2)                               # gloo: both ranks hang
case_timeline(4, n=2, backend="nccl", era="1.9")    # as the thread's author saw it
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl

from joinlab.analysis.matching import match
from joinlab.analysis.meanings import is_setup
from joinlab.ops import encode_values
from joinlab.timeline import Ending, Timeline, timeline_from_rows

TICK_NS = 1_000
DOCUMENTED = {
    case["case"]: case
    for case in json.loads((Path(__file__).parent.parent / "data" / "six_cases.json").read_text())[
        "cases"
    ]
}
"""By case, what the thread documents."""

SIZES = (1, 2, 5)
"""The numbers of inputs of rank 0 with which the six cases are tried; rank 1 has one more."""


FOUND_ON_REQUEST = dict.fromkeys(("parting", "fixes", "fixes_cut"))
"""Keys of `meta` that a story adds."""


def same_timelines(first: Timeline, second: Timeline) -> bool:
    """Whether both hold the same calls, spans, endings, output and meta, and returns of one repr."""
    return (
        first.calls.equals(second.calls)
        and first.spans.equals(second.spans)
        and first.ends == second.ends
        and first.output == second.output
        and {**first.meta, **FOUND_ON_REQUEST} == {**second.meta, **FOUND_ON_REQUEST}
        and repr(first.returns) == repr(second.returns)
    )


class Writer:
    """Writes rows, each rank's calls in order; a call is complete and was waited for unless told
    otherwise."""

    def __init__(
        self, world_size: int = 2, backend: str = "gloo", groups: dict[str, list[int]] | None = None
    ) -> None:
        self.rows: list[dict[str, Any]] = []
        self.backend = backend
        self.groups = {"0": list(range(world_size))} if groups is None else groups
        self.world_size = world_size
        self._seqs: dict[tuple[int, str], int] = {}
        self._ticks = [0] * world_size

    def call(
        self,
        rank: int,
        op: str,
        origin: str | None = None,
        *,
        group: str = "0",
        values: tuple[Sequence[Any] | None, Sequence[Any] | None] = (None, None),
        done: bool = True,
        waits: bool = True,
        line: int | None = None,
        **columns: Any,
    ) -> int:
        """Add one call and return its seq. `values` are those in and out; `waits`: the host waited
        for it."""
        seq = self._seqs[rank, group] = self._seqs.get((rank, group), -1) + 1
        self._ticks[rank] += 1
        at = self._ticks[rank] * TICK_NS
        tensors: dict[str, Any] = {} if op == "barrier" else {"dtype": "float32", "shape": [[1]]}
        if op in ("all_reduce", "reduce", "reduce_scatter"):
            tensors["reduce_op"] = "sum"
        before, after = values
        self.rows.append(
            {
                "rank": rank,
                "group": group,
                "seq": seq,
                "op": op,
                "origin": origin or op.replace("_", "-"),
                "value_in": None if before is None else encode_values([before]),
                "value_out": None if after is None or not done else encode_values([after]),
                "call_site": f"train.py:{10 + self._ticks[rank] if line is None else line}",
                "enqueued_ns": at,
                "completed_ns": at + TICK_NS // 2 if done else None,
                "host_wait_begin_ns": at + 1 if waits else None,
                "host_wait_end_ns": at + TICK_NS // 2 if waits and done else None,
                **tensors,
                **columns,
            }
        )
        return seq

    def timeline(self, ends: Sequence[Ending], **meta: Any) -> Timeline:
        """The Timeline of what was written."""
        told = {
            "program": "hand-made",
            "engine": "launched",
            "backend": self.backend,
            "groups": self.groups,
            **meta,
        }
        return timeline_from_rows(self.rows, ends, told)


LINES = {"construction": 26, "forward()": 31, "rebuild": 31, "backward()": 32, "barrier": 33}
"""Lines of a program that has each loop, by a part of the label; the rest is join()'s."""


def case_timeline(case: int, n: int = 2, backend: str = "gloo", era: str = "today") -> Timeline:
    """Case `case` with n inputs on rank 0 and n + 1 on rank 1, as if it had been launched.

    era  "today", or "1.9", where the barrier is an all-reduce of one byte that is not 0 (the pad of a line is 0)
    """
    run = _emulated(case, n, backend, era)
    line = [
        next((LINES[part] for part in LINES if part in origin), 28)
        for origin in run.calls["origin"]
    ]
    calls = run.calls.with_columns(
        call_site=pl.concat_str(pl.lit("train.py:"), pl.Series(line).cast(pl.String)),
        stack=pl.lit(None, pl.List(pl.String)),
        started_ns=pl.lit(None, pl.Int64),
    )
    facts = {
        "program": f"case_{case}",
        "engine": "launched",
        "backend": backend,
        "inputs": [n, n + 1],
    }
    return Timeline(calls, run.spans.clear(), run.ends, {**facts, "groups": run.meta["groups"]})


@cache
def _emulated(case: int, n: int, backend: str, era: str) -> Timeline:
    from joinlab import cases, emulate  # they load torch

    return emulate(cases.CASES[case].program, (n, n + 1), backend, era=era)  # type: ignore[arg-type]


def documented_rows(timeline: Timeline, setup: bool = False) -> list[tuple[Any, ...]]:
    """The matching as the documented traces list it: the input, then each rank's call. `setup`:
    with DDP's own."""
    labels = {
        (row["rank"], row["group"], row["seq"]): row["origin"] or row["op"]
        for row in timeline.rows("calls")
    }
    found = []
    for slot in match(timeline):
        shown = {rank: labels[rank, slot.group, seq] for rank, seq in slot.calls.items()}
        if setup or not all(map(is_setup, shown.values())):
            found.append((slot.input, *(shown.get(rank) for rank in range(timeline.world_size))))
    return found
