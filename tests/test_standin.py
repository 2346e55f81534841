"""The launcher, the recorder and the proofs over a stand-in for NCCL on two GPUs: see
tests/standin. The endings are those of joinlab's model; the interface is ProcessGroupNCCL's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import polars as pl
import pytest

import joinlab
from joinlab.timeline import Timeline
from tests.agreement import what
from tests.standin.network import Network
from tests.standin.server import standing_in


@pytest.fixture(scope="module")
def standin() -> Iterator[Network]:
    with standing_in() as network:
        yield network


def run(program: Any, inputs: tuple[int, ...] = (1, 1), **options: Any) -> Timeline:
    return joinlab.launch(
        program, inputs, "nccl", **{"on_output": None, "progress": False, **options}
    )


COUNTS = [(1, 2), (2, 3), (5, 6), (3, 2), (6, 5), (4, 2), (2, 2), (1, 4), (0, 1)]
SEEN = ("rank", "seq", "number", "op", "origin", "dtype", "shape", "call_site", "error")


def calls(timeline: Timeline, *columns: str) -> list[Any]:
    return timeline.calls.sort("rank", "group", "seq").select(columns).rows()


def ends(timeline: Timeline) -> list[Any]:
    return [replace(end, text=what(end.text)) for end in timeline.ends]


def pending(timeline: Timeline) -> list[Any]:
    never = timeline.calls.filter(pl.col("completed_ns").is_null())
    return never.sort("rank", "group", "seq").select("rank", "seq", "op").rows()


@pytest.mark.parametrize("case", joinlab.cases.CASES)
def test_a_case_ends_as_modelled_with_its_calls_and_each_hang_is_proven(
    case: int, standin: Network
) -> None:
    program = joinlab.cases.CASES[case].program
    for counts in COUNTS:
        timeline, modelled = run(program, counts), joinlab.emulate(program, counts)
        assert ends(timeline) == ends(modelled), counts
        assert calls(timeline, *SEEN) == calls(modelled, *SEEN), counts
        assert timeline.returns == modelled.returns, counts
        assert pending(timeline) == pending(modelled), counts


@pytest.mark.parametrize("version", ["2.6", "2.7"])
def test_each_version_of_the_interface_gives_the_same_endings(version: str) -> None:
    with standing_in(version):
        for case in joinlab.cases.CASES.values():
            timeline, modelled = run(case.program, (2, 3)), joinlab.emulate(case.program, (2, 3))
            assert ends(timeline) == ends(modelled)
            assert calls(timeline, *SEEN) == calls(modelled, *SEEN)
