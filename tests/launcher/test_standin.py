"""The launcher, the recorder and the proofs over a stand-in for NCCL on two GPUs: see
tests/standin. The endings are those of joinlab's model; the interface is ProcessGroupNCCL's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import polars as pl
import pytest
import torch
import torch.distributed as dist

import joinlab
from joinlab.errors import LaunchError
from joinlab.timeline import Timeline
from tests.agreement import disagreements, what
from tests.nightly import sampled
from tests.recorder import test_recorder
from tests.recordings import Subject, launch, subjects
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
EVERY_DAY = [(1, 2), (3, 2), (2, 2), (0, 1)]
SEEN = ("rank", "seq", "number", "op", "origin", "dtype", "shape", "call_site", "error")


def calls(timeline: Timeline, *columns: str) -> list[Any]:
    return timeline.calls.sort("rank", "group", "seq").select(columns).rows()


def ends(timeline: Timeline) -> list[Any]:
    return [replace(end, text=what(end.text)) for end in timeline.ends]


def pending(timeline: Timeline) -> list[Any]:
    never = timeline.calls.filter(pl.col("completed_ns").is_null())
    return never.sort("rank", "group", "seq").select("rank", "seq", "op").rows()


@pytest.mark.parametrize(
    ("case", "counts"),
    sampled(product(joinlab.cases.CASES, COUNTS), lambda row: row[1] in EVERY_DAY),
)
def test_a_case_ends_as_modelled_with_its_calls_and_each_hang_is_proven(
    case: int, counts: tuple[int, int], standin: Network
) -> None:
    program = joinlab.cases.CASES[case].program
    timeline, modelled = run(program, counts), joinlab.emulate(program, counts)
    assert ends(timeline) == ends(modelled)
    assert calls(timeline, *SEEN) == calls(modelled, *SEEN)
    assert timeline.returns == modelled.returns
    assert pending(timeline) == pending(modelled)


RANDOM = [subject for subject in subjects("nccl", 14) if subject.seed is not None]
SUSPECTED = (3, 8)
"""A rank stands inside its first gather or send, where NCCL connects it to a peer that comes to other
calls of the group: that is no proof yet, see `_all_came` in proof.py."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "subject",
    sampled(
        (subject for subject in RANDOM if subject.seed not in SUSPECTED),
        lambda subject: subject.seed % 2 == 0,
    ),
    ids=str,
)
def test_the_emulator_agrees_with_what_is_launched(subject: Subject, standin: Network) -> None:
    timeline = launch(subject, "nccl")
    assert disagreements(subject.program, timeline) == []
    assert all(end.proven is not False for end in timeline.ends)


@pytest.mark.nightly
@pytest.mark.parametrize("version", ["2.6", "2.7"])
def test_each_version_of_the_interface_gives_the_same_endings(version: str) -> None:
    with standing_in(version):
        for case in joinlab.cases.CASES.values():
            timeline, modelled = run(case.program, (2, 3)), joinlab.emulate(case.program, (2, 3))
            assert ends(timeline) == ends(modelled)
            assert calls(timeline, *SEEN) == calls(modelled, *SEEN)


def test_a_hang_in_a_barrier_is_proven(standin: Network) -> None:
    """It blocks below Python; without a wait written before it there would be nothing to prove."""

    def two_groups(rank: int, inputs: Any) -> None:
        groups = [dist.new_group([0, 1]) for _ in range(2)]
        for group in groups:
            dist.all_reduce(torch.ones(1), group=group)
        dist.barrier(group=groups[rank])

    timeline = run(two_groups)
    assert [end.proven for end in timeline.ends] == [True, True]
    assert [end.group for end in timeline.ends] == list(timeline.meta["groups"])[1:]


@pytest.mark.parametrize("coalesced", ["sends", "all_reduces", "broadcasts"])
def test_calls_in_a_batch_complete_with_it_and_none_fails(coalesced: str, standin: Network) -> None:
    def program(rank: int, inputs: Any) -> Any:
        x, y = torch.full((2,), 1.0 + rank), torch.zeros(2)
        if coalesced == "sends":
            ops = [dist.P2POp(dist.isend, x, 1 - rank), dist.P2POp(dist.irecv, y, 1 - rank)]
            for work in dist.batch_isend_irecv(ops):
                work.wait()
        elif coalesced == "all_reduces":
            with dist._coalescing_manager():
                dist.all_reduce(x)
                dist.all_reduce(y)
        else:
            with dist._coalescing_manager(device=torch.device("cuda")):
                dist.broadcast(x, 0)
                dist.broadcast(y, 1)
        return x.tolist(), y.tolist()

    timeline = run(program).raise_for_ending()
    x, y = {
        "sends": ([1.0 + 1] * 2, [1.0] * 2),
        "all_reduces": ([3.0] * 2, [0.0] * 2),
        "broadcasts": ([1.0] * 2, [0.0] * 2),
    }[coalesced]
    assert timeline.returns[1] == (x, y)
    assert timeline.calls["completed_ns"].null_count() == 0
    assert timeline.calls["error"].null_count() == timeline.calls.height
    assert timeline.meta["nccl"]["coalesced"] == ["0"]
    outs = timeline.calls.filter(pl.col("op") != "send")["value_out"]
    assert outs.null_count() == 0


def test_two_ranks_on_one_gpu_are_refused_as_nccl_does(standin: Network) -> None:
    def program(rank: int, inputs: Any) -> None:
        torch.cuda.set_device(0)
        group = dist.new_group([0, 1])
        dist.all_reduce(torch.ones(1), group=group)

    timeline = run(program)
    assert all("Duplicate GPU detected" in end.text for end in timeline.ends)


def test_a_bound_gpu_is_known_to_the_group_that_the_program_gets(standin: Network) -> None:
    """split_group and barrier ask for it; torch gives it to the group that it drops for ours."""

    def program(rank: int, inputs: Any) -> Any:
        group = dist.group.WORLD
        group.bound_device_id = group.real.bound_device_id = torch.device("cuda", rank)  # type: ignore
        other = dist.new_group([0, 1], device_id=torch.device("cuda", rank))
        split = dist.split_group(split_ranks=[[0, 1]])
        x = torch.ones(2)
        dist.all_reduce(x, group=split)
        dist.barrier(group=other)
        return x.tolist(), str(other.bound_device_id), str(split.bound_device_id)  # type: ignore[union-attr]

    timeline = run(program).raise_for_ending()
    assert timeline.returns == tuple(([2.0, 2.0], f"cuda:{r}", f"cuda:{r}") for r in range(2))
    assert timeline.calls.height == 4 and timeline.calls["completed_ns"].null_count() == 0
    assert len(timeline.meta["eager_groups"]) == 2


def test_the_gpus_are_counted_as_the_environment_shows_them_now(
    standin: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank sees what the launcher's environment says at each launch, not what it said at the
    first one. One GPU is shared by two ranks only if NCCL is asked for."""

    def program(rank: int, inputs: Any) -> float:
        x = torch.ones(1)
        dist.all_reduce(x)
        return x.item()

    def launched(backend: str | None) -> Any:
        timeline = joinlab.launch(program, (1, 1), backend, on_output=None, progress=False)
        assert timeline.raise_for_ending().returns == (2.0, 2.0)
        return timeline.meta["backend"], timeline.meta["transport"]

    assert launched(None) == ("nccl", None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert launched(None) == ("gloo", "sockets")
    assert launched("nccl") == ("nccl", "sockets")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(LaunchError, match="needs an NVIDIA GPU"):
        launched("nccl")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert launched(None) == ("nccl", None)


def test_who_names_a_gpu_that_is_not_there_is_told_what_to_do(
    standin: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The forum's `.to(rank)`, where two ranks share the only GPU."""

    def program(rank: int, inputs: Any) -> None:
        if rank >= torch.cuda.device_count():
            raise RuntimeError("CUDA error: invalid device ordinal")

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    timeline = run(program)
    assert "this run has 1 for 2 ranks" in timeline.output[1] and not timeline.output[0]


def test_a_rank_alone_inside_the_first_call_of_a_group_is_proven_hung(standin: Network) -> None:
    """NCCL connects the ranks inside the first call, where the host waits for all of them."""

    def program(rank: int, inputs: Any) -> None:
        groups = [dist.new_group([0, 1]) for _ in range(2)]
        dist.all_reduce(torch.ones(1), group=groups[rank])

    timeline = run(program)
    assert [end.proven for end in timeline.ends] == [True, True]
    assert [end.group for end in timeline.ends] == list(timeline.meta["groups"])[1:]
    assert timeline.calls["host_wait_begin_ns"].null_count() == 0


def test_first_calls_that_do_not_fit_connect_their_ranks(standin: Network) -> None:
    """They never complete, but the hosts go on: to wait inside a call is no wait for it."""

    def program(rank: int, inputs: Any) -> str:
        group = dist.new_group([0, 1])
        x = torch.ones(1)
        dist.broadcast(x, 1, group=group) if rank else dist.all_reduce(x, group=group)
        return "went on"

    timeline = run(program)
    modelled = joinlab.emulate(program, (1, 1))
    assert ends(timeline) == ends(modelled) and timeline.returns == ("went on", "went on")
    assert timeline.calls["host_wait_begin_ns"].null_count() == 2


ON_NCCL_TOO = (
    "test_functional_and_coalesced_collectives_are_recorded",
    "test_a_hang_behind_the_reducers_own_wait_is_seen_and_proven",
    "test_a_compiled_program_runs_and_is_recorded",
    "test_a_rank_that_ends_inside_a_span_leaves_it_open",
    "test_several_buckets_overlap_the_backward_pass",
    "test_values_out_are_those_of_the_collective_even_if_overwritten_at_once",
    "test_a_call_with_the_same_input_but_another_output_is_measured_anew",
    "test_recording_keeps_no_large_tensor_alive",
)
"""Tests of the recorder on gloo that say nothing of gloo."""


@pytest.mark.parametrize("name", ON_NCCL_TOO)
def test_what_holds_of_the_recorder_on_gloo_holds_here(
    name: str, standin: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    def as_there(program: Any, inputs: tuple[int, ...] = (1, 2), **options: Any) -> Timeline:
        return run(program, inputs, **options)

    monkeypatch.setattr(test_recorder, "run", as_there)
    getattr(test_recorder, name)()
