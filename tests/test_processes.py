"""Emulated ranks as processes (launcher/emulate.py): the same Timeline as with threads, cell by cell,
and what a process gets right by being one."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import psutil
import pytest
import torch
import torch.distributed as dist

from joinlab import cases
from joinlab.backend.clock import check_costs
from joinlab.backend.model import Knobs
from joinlab.emulator.emulate import emulate
from joinlab.errors import LaunchInterrupted, ProgramError
from joinlab.launcher import apart
from joinlab.launcher.emulate import EmulatedRun, run_all
from joinlab.launcher.forkclient import ForkServer
from joinlab.launcher.spares import SPARES
from joinlab.program.program import Program
from joinlab.timeline import EndKind, Timeline
from tests.process_programs import (
    crash,
    endless,
    grouped,
    hooked,
    intrusive,
    paired,
    raising,
    seeded,
    static,
    stored,
    two_buckets,
    watched_barrier,
)

BACKENDS = ("nccl", "gloo")


def run_of(
    program: Program,
    counts: Sequence[int],
    backend: str,
    era: str = "today",
    seed: int | None = 0,
    timeout: float = 60.0,
) -> EmulatedRun:
    costs = check_costs(len(counts), 1e-3, 20e-6, 10e9)
    knobs = Knobs(backend, era, 7, 0, costs, timeout, "A100")
    return EmulatedRun(program, tuple(counts), (seed,) * len(counts), knobs)


def in_processes(
    program: Program, counts: Sequence[int], backend: str = "nccl", **settings: Any
) -> Timeline:
    return run_of(program, counts, backend, **settings).go()


def differences(one: Timeline, other: Timeline) -> list[str]:
    """What two Timelines have different."""
    parts = {
        "ends": one.ends == other.ends,
        "calls": one.calls.equals(other.calls),
        "spans": one.spans.equals(other.spans),
        "meta": one.meta == other.meta,
        "output": list(one.output) == list(other.output),
        "returns": repr(one.returns) == repr(other.returns),
    }
    return [name for name, equal in parts.items() if not equal]


PROGRAMS: tuple[tuple[Callable[..., Any], tuple[int, ...], tuple[str, ...]], ...] = (
    (two_buckets, (2, 2), BACKENDS),
    (two_buckets, (2, 3), BACKENDS),
    (hooked, (2, 2), BACKENDS),
    (hooked, (1, 2), BACKENDS),
    (static, (2, 2), BACKENDS),
    (static, (3, 2), BACKENDS),
    (grouped, (1, 1), BACKENDS),
    (paired, (1, 1), BACKENDS),
    (stored, (1, 1), BACKENDS),
    (raising, (2, 2), BACKENDS),
    (seeded, (1, 1), BACKENDS),
    (watched_barrier, (5, 5), ("gloo",)),
    (watched_barrier, (5, 6), ("gloo",)),
)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("number", range(1, 7))
def test_a_case_has_the_same_timeline_as_with_threads(number: int, backend: str) -> None:
    program = getattr(cases, f"case_{number}")
    counts = [(5, 6), (3, 3)]
    found = list(run_all(run_of(program, inputs, backend) for inputs in counts))
    for inputs, timeline in zip(counts, found, strict=True):
        assert differences(emulate(program, inputs, backend), timeline) == [], inputs


@pytest.mark.parametrize(
    ("program", "counts", "backend"),
    [(program, counts, backend) for program, counts, backends in PROGRAMS for backend in backends],
)
def test_a_program_has_the_same_timeline_as_with_threads(
    program: Program, counts: tuple[int, ...], backend: str
) -> None:
    assert (
        differences(emulate(program, counts, backend), in_processes(program, counts, backend)) == []
    )


def test_the_barrier_of_1_9_and_eight_ranks() -> None:
    for counts, era in (((5, 6), "1.9"), ((2,) * 7 + (3,), "today")):
        expected = emulate(cases.case_4, counts, era=era)
        assert differences(expected, in_processes(cases.case_4, counts, era=era)) == []


def test_the_same_call_gives_the_same_timeline_while_others_run() -> None:
    runs = [run_of(two_buckets, (2, 3), "gloo") for _ in range(5)]
    first, *others = run_all(runs)
    assert [differences(first, other) for other in others] == [[]] * 4


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_crash_in_c_ends_its_rank_alone(backend: str) -> None:
    ends = in_processes(crash, (1, 1), backend).ends
    assert ends[1].kind is EndKind.KILLED
    assert "SIGSEGV" in ends[1].text
    kinds = {"nccl": EndKind.HUNG, "gloo": EndKind.RAISED}
    assert ends[0].kind is kinds[backend]
    assert in_processes(cases.case_2, (2, 2)).ends[0].kind is EndKind.FINISHED


def test_what_a_program_does_to_its_process_stays_there() -> None:
    folder, function = os.getcwd(), dist.all_reduce
    returned = in_processes(intrusive, (1, 1)).returns
    expected = np.random.RandomState(5).rand()
    assert list(returned) == [expected, expected]
    assert (os.getcwd(), dist.all_reduce) == (folder, function)
    assert "JOINLAB_TEST" not in os.environ
    assert torch.get_default_dtype() is torch.float32


def test_the_timeout_ends_a_rank_that_is_in_a_call_of_c() -> None:
    timeline = in_processes(endless, (1, 1), timeout=2)
    assert [end.kind for end in timeline.ends] == [EndKind.KILLED] * 2
    assert "timeout=2 s" in timeline.ends[1].text
    assert timeline.calls.height == 3
    assert timeline.calls["completed_ns"].null_count() == 1


def test_an_interrupted_emulation_has_its_timeline_so_far() -> None:
    here = os.getpid()

    def interrupting(rank: int, inputs: Sequence[torch.Tensor]) -> None:
        dist.all_reduce(torch.ones(1))
        dist.all_reduce(torch.ones(1), async_op=True)
        if rank:
            os.kill(here, signal.SIGINT)
            sum(range(10**12))

    with pytest.raises(LaunchInterrupted) as raised:
        in_processes(interrupting, (1, 1), "gloo")
    timeline = raised.value.timeline
    assert timeline.ends[1].text == "interrupted by the user"
    assert timeline.calls.filter(rank=1)["completed_ns"].is_null().to_list() == [False, True]


def test_what_cannot_be_sent_is_named() -> None:
    lock = threading.Lock()

    def locked(rank: int, inputs: Sequence[torch.Tensor]) -> None:
        with lock:
            pass

    with pytest.raises(ProgramError, match="lock"):
        in_processes(locked, (1, 1))


def test_a_function_and_a_class_of_this_test_come_back_by_value() -> None:
    scale = 3

    class Held:
        def __init__(self, value: int) -> None:
            self.value = value

    def local(rank: int, inputs: Sequence[torch.Tensor]) -> dict[str, Any]:
        found: list[Any] = [None, None]
        dist.all_gather_object(found, {"rank": rank * scale})
        return {"seen": found, "held": Held(rank).value, "tensor": torch.ones(2) * rank}

    timeline = in_processes(local, (1, 1))
    assert timeline.returns[1]["seen"] == [{"rank": 0}, {"rank": 3}]
    assert timeline.returns[1]["held"] == 1


def test_no_process_stays_but_the_run_that_waits() -> None:
    in_processes(cases.case_4, (2, 3))
    SPARES.close()
    apart.leave()  # a check of another test may have left its process for the next one
    server = psutil.Process(ForkServer.get().process.pid)
    give_up = time.monotonic() + 10
    while server.children(recursive=True) and time.monotonic() < give_up:
        time.sleep(0.01)
    assert server.children(recursive=True) == []
