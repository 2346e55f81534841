"""The emulator is deterministic, leaves nothing behind in the process, and can always be ended."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

import joinlab
from joinlab import cases, emulate, launch
from joinlab.errors import LaunchInterrupted, ProgramError
from joinlab.timeline import EndKind
from tests.drill_programs import state
from tests.timelines import same_timelines

ROOT = Path(__file__).parents[2]


def noisy(rank, inputs):
    """Draws from every generator, sets every kind of state, and prints."""
    os.environ["JOINLAB_TEST_LEFT"] = str(rank)
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(rank)
    model = DDP(torch.nn.Linear(1, 1))
    dist.new_group([0, 1])
    drawn = [torch.rand(()).item(), np.random.rand(), random.random()]
    for input in inputs:
        model(input.double()).backward()
        dist.barrier()
    print(os.environ["JOINLAB_TEST_LEFT"], os.environ["RANK"], dist.get_rank())
    return drawn, torch.empty(4), torch.get_default_dtype()


def loops(rank, inputs):
    while rank:
        pass
    dist.barrier()


def test_an_interrupt_leaves_nothing_behind_and_gives_the_timeline():
    def interrupted(rank, inputs):
        dist.all_reduce(torch.ones(1))
        if rank:
            time.sleep(1)  # of virtual time: rank 0 comes to its barrier
            os.kill(os.getpid(), 0)
            threading.Thread(target=signal.raise_signal, args=(signal.SIGINT,)).start()
        while rank:
            pass
        dist.barrier()

    emulate(cases.case_1, (1, 1))  # imports what it needs
    before = state()
    with pytest.raises(LaunchInterrupted) as caught:
        emulate(interrupted, (1, 1), backend="gloo")
    assert [name for name, value in state().items() if before[name] != value] == []
    timeline = caught.value.timeline
    assert [(end.kind, end.text) for end in timeline.ends] == [
        (EndKind.KILLED, "interrupted by the user")
    ] * 2
    assert timeline.ends[0].call == 1
    assert timeline.calls.height == 3


def test_a_default_group_of_the_process_is_left_alone(tmp_path):
    dist.init_process_group(
        "gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1
    )
    try:
        group = dist.group.WORLD
        ends = emulate(cases.case_6, (1, 2)).ends
        assert [end.kind for end in ends] == ["finished", "finished"]
        assert dist.group.WORLD is group
        one = torch.ones(1)
        dist.all_reduce(one)
        assert dist.get_world_size() == 1
    finally:
        dist.destroy_process_group()


def test_an_endless_loop_ends_at_the_deadline():
    timeline = emulate(loops, (0, 0), timeout=0.2)
    assert [end.kind for end in timeline.ends] == ["killed", "killed"]
    assert timeline.ends[1].text == "ended by joinlab: still running after timeout=0.2 s"
    assert timeline.ends[0].call == 0


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_a_program_cannot_catch_its_end(backend):
    def catches(rank, inputs):
        try:
            dist.broadcast(torch.ones(1), 1 - rank)  # each waits for the other
            torch.zeros(1).item()
        except BaseException:
            print("caught")
            dist.barrier()

    timeline = emulate(catches, (0, 0), backend=backend)
    assert [str(end) for end in timeline.ends] == ["hung (proven)"] * 2
    assert timeline.output == ("", "")
    assert timeline.calls.height == 2


def test_what_a_rank_ends_by_ends_only_the_rank():
    def dies(rank, inputs):
        if rank == 1:
            os._exit(3)
        if rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        if rank == 3:
            os.abort()
        if rank == 4:
            sys.exit(5)
        if rank == 5:
            sys.exit()

    ends = emulate(dies, (0,) * 6).ends
    assert [(str(end.kind), end.text) for end in ends] == [
        ("finished", ""),
        ("killed", "its process ended with exit code 3 before the program returned (os._exit?)"),
        ("killed", "its process was killed by SIGKILL"),
        ("killed", "its process was killed by SIGABRT"),
        ("raised", "SystemExit: 5"),
        ("finished", ""),
    ]


@pytest.mark.slow
def test_a_fresh_process_with_another_hash_seed_saves_the_same(tmp_path):
    text = (
        "import sys, joinlab\n"
        "for backend in ('nccl', 'gloo'):\n"
        "    joinlab.emulate(joinlab.cases.case_4, (2, 3), backend=backend).save(sys.argv[1] + backend)\n"
    )
    env = {**os.environ, "PYTHONHASHSEED": str(hash("joinlab") % 1000)}
    subprocess.run(
        [sys.executable, "-c", text, str(tmp_path / "fresh-")], cwd=ROOT, env=env, check=True
    )
    for backend in ("nccl", "gloo"):
        here = emulate(cases.case_4, (2, 3), backend=backend).save(tmp_path / backend)
        assert (tmp_path / f"fresh-{backend}").read_bytes() == here.read_bytes()


def test_two_threads_do_not_meet(monkeypatch):
    # each emulation begins by clearing the cache
    monkeypatch.setattr("joinlab.emulator.host.MOST_KINDS", 1)
    found: list[joinlab.Timeline] = []
    alone = emulate(noisy, (2, 3))
    threads = [
        threading.Thread(target=lambda: found.append(emulate(noisy, (2, 3)))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [same_timelines(one, alone) for one in found] == [True] * 3


def test_an_emulation_inside_an_emulation_is_refused():
    def nested(rank, inputs):
        emulate(cases.case_1, (1, 1))

    (end,) = emulate(nested, (0,)).ends
    assert end.text.startswith(ProgramError.__name__)


def test_ranks_have_generators_of_their_own():
    def draw(rank, inputs):
        first = (torch.rand(()).item(), np.random.rand(), random.random())
        dist.barrier()
        return first, (torch.rand(()).item(), np.random.rand(), random.random())

    same, other = emulate(draw, (0, 0), seed=5).returns
    assert same == other
    same, other = emulate(draw, (0, 0), seed=(5, 6)).returns
    assert len({*same[0], *same[1], *other[0], *other[1]}) == 12
    launched = joinlab.launch(
        draw, (0, 0), backend="gloo", seed=(5, 6), on_output=None, progress=False
    )
    assert launched.returns == (same, other)


def test_output_is_kept_per_rank_and_passed_on_line_by_line():
    def speak(rank, inputs):
        print("one")
        dist.barrier()
        sys.stderr.write(f"two {rank}")

    told = []
    timeline = emulate(speak, (0, 0), on_output=lambda rank, line: told.append((rank, line)))
    assert timeline.output == ("one\ntwo 0", "one\ntwo 1")
    assert sorted(told) == [(0, "one"), (0, "two 0"), (1, "one"), (1, "two 1")]


def test_all_to_all_single_takes_one_tensor_in_emulations_and_launches_alike():
    def program(rank, inputs):
        ahead = dist.all_reduce(torch.ones(1), async_op=True)  # so that the other one waits in line
        dist.all_to_all_single(torch.zeros(2), torch.arange(2.0) + rank)
        ahead.wait()

    launched = launch(program, (1, 1), "gloo", on_output=None, progress=False)
    for backend in ("gloo", "nccl"):
        found = emulate(program, (1, 1), backend).calls
        assert found["value_in"].to_list() == launched.calls["value_in"].to_list()
        assert found["value_out"].to_list() == launched.calls["value_out"].to_list()
