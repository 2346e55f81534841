"""Hand-made Timelines: the six documented cases on gloo and NCCL, and a builder for others.

    case_timeline(4, n=2)                               # gloo: both ranks hang
    case_timeline(4, n=2, backend="nccl", era="1.9")    # as the thread's author saw it

No process is started. Labels, order, shapes and values are those of real runs; each call takes a microsecond.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from joinlab.analysis.matching import match
from joinlab.analysis.meanings import is_setup
from joinlab.ops import encode_values
from joinlab.timeline import Ending, EndKind, Timeline, timeline_from_rows

TICK_NS = 1_000
SIZES = (1, 2, 5)
"""The numbers of inputs of rank 0 with which the six cases are tried; rank 1 has one more."""


class Writer:
    """Writes rows, each rank's calls in order; a call is complete and was waited for unless told otherwise."""

    def __init__(self, world_size: int = 2, backend: str = "gloo", groups: dict[str, list[int]] | None = None) -> None:
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
        """Add one call and return its seq. `values` are those in and out; `waits`: the host waited for it."""
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
        told = {"program": "hand-made", "engine": "launched", "backend": self.backend, "groups": self.groups, **meta}
        return timeline_from_rows(self.rows, ends, told)


# Columns of DDP's and Join's calls, by the part of the label in brackets.
_KINDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "f1": ("all_reduce", "DDP forward() 1", {"line": 31}),
    "f2": ("all_reduce", "DDP forward() 2", {"line": 31}),
    "bwd": ("all_reduce", "DDP backward()", {"line": 32, "shape": [[2]]}),
    "getnum": ("all_reduce", "join() _get_num_nonjoined_procs()", {"line": 28}),
    "check": ("all_reduce", "join() check bwd grad sync", {"line": 28}),
    "hook": ("all_reduce", "join() hook", {"line": 28, "shape": [[2]]}),
    "common": ("all_reduce", "_find_common_rank()", {"line": 28, "dtype": "int64", "reduce_op": "max"}),
    "final": ("broadcast", "sync final model params", {"line": 28, "shape": [[2]], "root": 1}),
    "shapes": ("all_gather", "DDP construction", {"line": 26, "dtype": "int64"}),
    "params": ("broadcast", "DDP construction", {"line": 26, "shape": [[2]], "root": 0}),
    "rebuild": ("broadcast", "DDP bucket rebuild", {"dtype": "int32", "shape": [[3]], "root": 0}),
}
_VALUES: dict[str, dict[str, tuple[Sequence[Any], Sequence[Any]]]] = {  # in, and out once both are there
    "active": {"f1": ([1.0], [2.0]), "f2": ([1.0], [2.0]), "bwd": ([0.5, 1.0], [1.0, 2.0])},
    "alone": {"f1": ([1.0], [1.0]), "f2": ([1.0], [1.0]), "bwd": ([0.5, 1.0], [0.5, 1.0])},
    "joined": {"getnum": ([0.0], [1.0]), "check": ([0.0], [1.0]), "hook": ([0.0, 0.0], [0.5, 1.0])},
}


class _Case:
    def __init__(self, backend: str, era: str) -> None:
        self.writer = Writer(backend=backend)
        self.nccl = backend == "nccl"
        self.barrier_dtype = "uint8" if era == "1.9" else "float32"
        for rank in (0, 1):
            for what in ("shapes", "params"):
                self.issue(rank, what)

    def issue(self, rank: int, what: str, input: int | None = None, phase: str = "", **columns: Any) -> int:
        if what == "barrier" and not self.nccl:
            return self.writer.call(rank, "barrier", "barrier", line=33, input=input, **columns)
        if what == "barrier":
            dtype = {"dtype": self.barrier_dtype}
            return self.writer.call(rank, "all_reduce", "all-reduce (barrier)", line=33, input=input, **dtype | columns)
        op, who, fixed = _KINDS[what]
        known = _VALUES.get(phase, {}).get(what)
        values = {} if known is None else {"values": known}
        if self.nccl and what in ("f1", "f2", "bwd", "hook"):
            values["waits"] = False  # type: ignore[assignment]  # its stream waits, its host does not
        origin = f"{op.replace('_', '-')} ({who})"
        return self.writer.call(rank, op, origin, input=input, **{**fixed, **values, **columns})

    def both(self, what: str, input: int | None = None, phase: str = "active", **columns: Any) -> None:
        for rank in (0, 1):
            self.issue(rank, what, input, phase, **columns)

    def iteration(self, input: int, join: bool, barrier: bool) -> None:
        if join:
            self.both("f1", input)
        if input == 1:
            self.both("rebuild", input)
        if join:
            self.both("f2", input)
        self.both("bwd", input)
        if barrier:
            self.both("barrier", input)

    def shadowed(self, n: int) -> None:
        """Rank 1's last input, while rank 0 has joined."""
        self.issue(0, "getnum", None, "joined")
        self.issue(1, "f1", n, "alone")
        if n == 1:
            self.issue(0, "rebuild")
            self.issue(1, "rebuild", n)
        for mine, theirs in (("check", "f2"), ("hook", "bwd")):
            self.issue(0, mine, None, "joined")
            self.issue(1, theirs, n, "alone")

    def joined(self) -> None:
        self.both("getnum", values=([0.0], [0.0]))
        for rank in (0, 1):
            self.issue(rank, "common", values=([-1 if rank == 0 else 1], [1]))
        self.both("final", values=([0.25, 0.75], [0.25, 0.75]))


def case_timeline(case: int, n: int = 2, backend: str = "gloo", era: str = "today") -> Timeline:
    """Case `case` with n inputs on rank 0 and n + 1 on rank 1.

    era  "today", or "1.9", where the barrier is an all-reduce of one byte that is not 0 (the pad of a line is 0)
    """
    made = _Case(backend, era)
    join, inside = case in (1, 4, 6), case in (3, 4)
    for input in range(n):
        made.iteration(input, join, inside)
    ends = (_with_join if join else _without_join)(made, case, n, era)
    return made.writer.timeline(ends, program=f"case_{case}", inputs=[n, n + 1])


def documented_rows(timeline: Timeline, setup: bool = False) -> list[tuple[Any, ...]]:
    """The matching as the documented traces list it: the input, then each rank's call. `setup`: with DDP's own."""
    labels = {(row["rank"], row["group"], row["seq"]): row["origin"] or row["op"] for row in timeline.rows("calls")}
    found = []
    for slot in match(timeline):
        shown = {rank: labels[rank, slot.group, seq] for rank, seq in slot.calls.items()}
        if setup or not all(map(is_setup, shown.values())):
            found.append((slot.input, *(shown.get(rank) for rank in range(timeline.world_size))))
    return found


_FINISHED = Ending(EndKind.FINISHED)


def _hung(seq: int) -> Ending:
    return Ending(EndKind.HUNG, call=seq, group="0", proven=True)


def _with_join(made: _Case, case: int, n: int, era: str) -> list[Ending]:
    made.shadowed(n)
    if case != 4:
        made.joined()
        if case == 6:
            made.both("barrier")
        return [_FINISHED, _FINISHED]
    if not made.nccl:
        waits = made.issue(0, "getnum", done=False), made.issue(1, "barrier", n, done=False)
        return [_hung(waits[0]), _hung(waits[1])]
    if era == "today":  # the barrier's zero tells rank 0 that all have joined
        made.issue(0, "getnum", values=([0.0], [0.0]))
        made.issue(1, "barrier", n, values=([0.0], [0.0]))
        made.issue(0, "common", values=([-1], [0]))
        made.issue(1, "getnum", values=([0.0], [0.0]))
        made.issue(0, "final", root=0, values=([0.25, 0.75], [0.25, 0.75]))
        return [_FINISHED, _hung(made.issue(1, "common", values=([1], None), done=False))]
    made.issue(0, "getnum", values=([0.0], [9.8e-45]))
    made.issue(1, "barrier", n, values=([7], [7]))
    made.issue(0, "check", values=([0.0], [0.0]))
    made.issue(1, "getnum", values=([0.0], [0.0]))
    made.issue(0, "getnum", values=([0.0], [1.401298464324817e-45]))
    made.issue(1, "common", values=([1], [1]))
    made.issue(0, "check", values=([0.0], [0.25]))
    made.issue(1, "final", values=([0.25, 0.75], [0.25, 0.75]))
    made.issue(0, "hook", values=([0.0, 0.0], None), done=False)
    return [_hung(made.issue(0, "getnum", values=([0.0], None), done=False)), _FINISHED]


def _without_join(made: _Case, case: int, n: int, era: str) -> list[Ending]:
    after = case == 5
    waits = made.issue(0, "barrier", done=not after or (made.nccl and n > 1)) if after else None
    extra = "rebuild" if n == 1 else "bwd"  # the second forward pass rebuilds the buckets, and the host waits for it
    if not made.nccl:
        error = "RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4711"
        if after:
            assert waits is not None
            return [_hung(waits), _hung(made.issue(1, extra, n, done=False))]
        seq = made.issue(1, extra, n, done=False, error=error)
        return [_FINISHED, Ending(EndKind.RAISED, call=seq, group="0", text=error)]
    if n == 1:
        seq = made.issue(1, extra, n, done=False)
        return [_FINISHED if waits is None else _hung(waits), _hung(seq)]
    seq = made.issue(1, extra, n, phase="alone", done=after)
    if case == 2:
        return [_FINISHED, Ending(EndKind.FINISHED, pending=True, call=seq, group="0")]
    return [_FINISHED, _hung(made.issue(1, "barrier", n if case == 3 else None, done=False))]
