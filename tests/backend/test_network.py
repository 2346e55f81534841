"""What holds for every program on the modelled networks: values, times, and who waits for whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from joinlab.backend.calls import by_group, call_of
from joinlab.errors import LaunchError
from joinlab.gloo import rule as gloo_rule
from joinlab.gloo.fabric import GlooFabric
from joinlab.nccl import rule as nccl_rule
from joinlab.nccl.fabric import NcclFabric
from joinlab.ops import Op, waits_for
from tests.play import ALL, Call, Played, Sync, Wait, play

FABRICS = {"nccl": NcclFabric, "gloo": GlooFabric}
RULES = {"nccl": nccl_rule.blocked, "gloo": gloo_rule.blocked}
ON_BOTH = pytest.mark.parametrize("backend", FABRICS)

OPS = (
    "all_reduce", "all_reduce", "broadcast", "reduce", "all_gather", "gather", "scatter", "reduce_scatter",
    "all_to_all", "barrier",
)  # fmt: skip
DTYPES = ("float32", "float64", "float16", "int32", "int64", "uint8")
REDUCTIONS = {"sum": np.add, "product": np.multiply, "min": np.minimum, "max": np.maximum}


@dataclass(frozen=True)
class Planned:
    """A collective, before its tensors are made. `root` is a place in the group."""

    op: str
    group: str = ALL
    dtype: str = "float32"
    count: int = 1
    reduce_op: str = "sum"
    root: int = 0
    waits: bool = True


@dataclass(frozen=True)
class Program:
    """A list of collectives per rank. Values are small whole numbers, exact in every dtype."""

    groups: dict[str, tuple[int, ...]]
    lanes: tuple[tuple[Planned, ...], ...]

    def members(self, group: str) -> tuple[int, ...]:
        return tuple(range(len(self.lanes))) if group == ALL else self.groups[group]

    def played(self, backend: str, **knobs: Any) -> Played:
        """Play it: tensors are made anew; at its end each rank waits for what it has not waited
        for, and reads."""
        lanes = []
        for rank, planned in enumerate(self.lanes):
            calls = [self._call(rank, index, step) for index, step in enumerate(planned)]
            lanes.append([*calls, *[Wait([call]) for call in calls if not call.waits], Sync()])
        try:
            return play(lanes, FABRICS[backend], groups=self.groups, **knobs)
        except LaunchError:  # the model says that it cannot tell
            reject()

    def values(self, rank: int, index: int, step: Planned, part: int = 0) -> torch.Tensor:
        """What a rank puts into a call of its list."""
        first = 1 + (3 * rank + 2 * index + 5 * part) % 4
        return torch.arange(first, first + step.count).remainder(4).to(getattr(torch, step.dtype))

    def _call(self, rank: int, index: int, step: Planned) -> Call:
        members = self.members(step.group)
        at_root, size = members.index(rank) == step.root, len(members)
        one = self.values(rank, index, step)
        parts = [self.values(rank, index, step, part) for part in range(size)]
        outs = [torch.zeros_like(one) for _ in range(size)]
        sides: dict[str, Any] = {
            "barrier": ([], None),
            "all_gather": ([one], outs),
            "gather": ([one], outs if at_root else None),
            "scatter": (parts if at_root else [], outs[:1]),
            "reduce_scatter": (parts, outs[:1]),
            "all_to_all": (parts, outs),
        }
        ins, written = sides.get(step.op, ([one], None))
        root = members[step.root]
        return Call(
            step.op, ins, written, step.group, root, None, 0, step.reduce_op, "", step.waits
        )

    def expected(self, rank: int, index: int) -> bytes | None:
        """What a call whose ranks agree leaves in its outputs; None where that is not defined."""
        step = self.lanes[rank][index]
        members = self.members(step.group)
        place = members.index(rank)
        column = [lane_index(self.lanes[other], index, self.lanes[rank], step) for other in members]
        parts = [
            [self.values(other, at, step, part).numpy() for part in range(len(members))]
            for other, at in zip(members, column, strict=True)
        ]
        firsts = [own[0] for own in parts]

        def total(arrays: Sequence[Any]) -> Any:
            return REDUCTIONS[step.reduce_op].reduce(arrays, axis=0, dtype=arrays[0].dtype)

        match Op(step.op):
            case Op.ALL_REDUCE:
                found = total(firsts)
            case Op.BROADCAST:
                found = firsts[step.root]
            case Op.REDUCE if place == step.root:
                found = total(firsts)
            case Op.ALL_GATHER:
                found = np.concatenate(firsts)
            case Op.GATHER if place == step.root:
                found = np.concatenate(firsts)
            case Op.SCATTER:
                found = parts[step.root][place]
            case Op.REDUCE_SCATTER:
                found = total([own[place] for own in parts])
            case Op.ALL_TO_ALL:
                found = np.concatenate([own[place] for own in parts])
            case _:
                return None
        return found.tobytes()


def lane_index(lane: Sequence[Planned], index: int, own: Sequence[Planned], step: Planned) -> int:
    """Where the call that meets the one at `index` of `own` stands in another rank's list."""
    number = sum(other.group == step.group for other in own[:index])
    places = [at for at, other in enumerate(lane) if other.group == step.group]
    return places[number]


@st.composite
def agreeing(draw: st.DrawFn, ranks: int = 4, calls: int = 6) -> Program:
    """Programs whose ranks agree."""
    size = draw(st.integers(2, ranks))
    subsets = st.lists(st.integers(0, size - 1), min_size=2, unique=True).map(sorted).map(tuple)
    groups = {f"g{at}": ranks for at, ranks in enumerate(draw(st.lists(subsets, max_size=2)))}
    names = st.sampled_from([ALL, *groups])
    lanes: list[list[Planned]] = [[] for _ in range(size)]
    for _ in range(draw(st.integers(1, calls))):
        step = draw(planned(names))
        members = range(size) if step.group == ALL else groups[step.group]
        step = replace(step, root=step.root % len(members))
        for rank in members:
            lanes[rank].append(replace(step, waits=draw(st.booleans())))
    return Program(groups, tuple(map(tuple, lanes)))


def planned(names: st.SearchStrategy[str]) -> st.SearchStrategy[Planned]:
    counts = st.sampled_from([1, 1, 2, 3, 5, 8, 40])
    reductions = st.sampled_from(list(REDUCTIONS))
    dtypes, ops = st.sampled_from(DTYPES), st.sampled_from(OPS)
    return st.builds(Planned, ops, names, dtypes, counts, reductions, st.integers(0, 3))


@st.composite
def disturbed(draw: st.DrawFn) -> Program:
    """Programs of which some ranks may leave a call out, add one, change one, or stop early."""
    program = draw(agreeing())
    lanes = [list(lane) for lane in program.lanes]
    for rank, lane in enumerate(lanes):
        if not lane or draw(st.booleans()):
            continue
        at = draw(st.integers(0, len(lane) - 1))
        mine = [ALL, *(name for name, ranks in program.groups.items() if rank in ranks)]
        other = draw(planned(st.sampled_from(mine)))
        other = replace(other, root=other.root % len(program.members(other.group)))
        match draw(st.sampled_from(["leave out", "add", "change", "resize", "stop"])):
            case "leave out":
                del lane[at]
            case "add":
                lane.insert(at, other)
            case "change":
                lane[at] = other
            case "resize":
                lane[at] = replace(lane[at], count=other.count)
            case "stop":
                del lane[at:]
    return Program(program.groups, tuple(map(tuple, lanes)))


def facts(played: Played) -> Any:
    """Everything in it but the tensors."""
    calls = [[(result.row, result.held) for result in results] for results in played.calls]
    return calls, played.ends, played.assumes


@ON_BOTH
@given(program=agreeing())
def test_calls_that_agree_complete_with_the_values_that_numpy_computes(backend, program):
    played = program.played(backend)
    assert set(played.kinds) == {"finished"}
    for rank, results in enumerate(played.calls):
        for index, result in enumerate(results):
            assert result.completed
            expected = program.expected(rank, index)
            assert expected is None or result.held == expected, (rank, index, result.call)


@ON_BOTH
@given(program=disturbed())
def test_the_same_calls_give_the_same_bytes_and_times(backend, program):
    assert facts(program.played(backend)) == facts(program.played(backend))


@ON_BOTH
@given(program=disturbed())
def test_times_are_in_order(backend, program):
    played = program.played(backend)
    for results in played.calls:
        for result in results:
            times = (result.row["enqueued_ns"], result.row.get("started_ns"), result.completed_ns)
            known = [ns for ns in times if ns is not None]
            assert known == sorted(known)
        issued = [result.row["enqueued_ns"] for result in results]
        assert issued == sorted(issued)


@ON_BOTH
@given(program=agreeing(), data=st.data())
def test_no_call_completes_before_those_that_it_needs_have_issued_it(backend, program, data):
    """Each rank stops somewhere."""
    lanes = [lane[: data.draw(st.integers(0, len(lane)))] for lane in program.lanes]
    cut = Program(program.groups, tuple(lanes))
    played = cut.played(backend)
    for rank, results in enumerate(played.calls):
        for index, result in enumerate(results):
            step, members = lanes[rank][index], cut.members(lanes[rank][index].group)
            if not result.completed:
                continue
            needed = waits_for(Op(step.op), members.index(rank), step.root, range(len(members)))
            for place in needed:
                other = members[place]
                at = lane_index(program.lanes[other], index, program.lanes[rank], step)
                assert at < len(played.calls[other]), (rank, index, other)
                assert played.calls[other][at].row["enqueued_ns"] <= result.completed_ns


@ON_BOTH
@given(program=agreeing(), data=st.data())
def test_groups_that_share_no_rank_are_independent(backend, program, data):
    """Two programs side by side, in groups of their own: each ends as if it were alone."""
    size = len(program.lanes)
    other = data.draw(disturbed())
    whole = tuple(range(size, size + len(other.lanes)))

    def renamed(lanes, mine, offset, name):
        groups = {
            f"{name}{key}": tuple(offset + rank for rank in ranks)
            for key, ranks in mine.groups.items()
        }
        members = tuple(range(offset, offset + len(mine.lanes)))
        moved = tuple(
            tuple(replace(step, group=f"{name}{step.group}") for step in lane) for lane in lanes
        )
        return {f"{name}{ALL}": members, **groups}, moved

    left_groups, left = renamed(program.lanes, program, 0, "l")
    right_groups, right = renamed(other.lanes, other, size, "r")
    idle = ((),) * len(whole)
    alone = Program(left_groups, (*left, *idle)).played(backend)
    beside = Program({**left_groups, **right_groups}, (*left, *right)).played(backend)
    assert facts(alone)[0][:size] == facts(beside)[0][:size]
    assert alone.ends[:size] == beside.ends[:size]


@ON_BOTH
@settings(max_examples=3 * settings().max_examples)
@given(program=disturbed())
def test_what_the_rule_calls_stuck_never_completes(backend, program):
    """The rules prove hangs from issued calls alone, and they are not told what completed."""
    played = program.played(backend)
    groups = {ALL: range(len(program.lanes)), **program.groups}
    rows = [result.row for results in played.calls for result in results]
    gone = [rank for rank, kind in enumerate(played.kinds) if kind != "hung"]
    unseen = [call_of(row)._replace(completed=False) for row in rows]
    done = {(row["rank"], row["group"], row["seq"]) for row in rows if row.get("completed_ns")}
    for name, calls in by_group(unseen, groups).items():
        stuck = {(rank, name, seq) for rank, seq in RULES[backend](calls, gone)}
        assert not stuck & done
