"""What the recorder does where the backend answers without a Work, as NCCL does since PyTorch 2.8,
and where the recorder itself fails: the program goes on as without it."""

from __future__ import annotations

import json
import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import joinlab
from joinlab.timeline import Timeline
from tests.forked import forked, starter


class LikeNccl:
    """In place of the group below the recorder: gloo, but a call with asyncOp=False waits by itself
    and gives None ("asyncOp ? work : nullptr", ProcessGroupNCCL::collective since PyTorch 2.8)."""

    def __init__(self, real: Any, always: bool = False) -> None:
        self.real = real
        self.always = always

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.real, name)
        if name not in ("allreduce", "barrier", "broadcast", "allgather", "allreduce_coalesced"):
            return method

        def call(*args: Any, **kwargs: Any) -> Any:
            work = method(*args, **kwargs)
            opts = kwargs.get("opts", args[-1] if args else None)
            if not self.always and getattr(opts, "asyncOp", True):
                return work
            work.wait()
            return None

        return call


def behind(program: Any, always: bool = False) -> Any:
    """The program, on ranks whose group answers as LikeNccl does."""

    def on_like_nccl(rank: int, inputs: Any) -> Any:
        group: Any = dist.group.WORLD
        group.real = LikeNccl(group.real, always)
        return program(rank, inputs)

    return on_like_nccl


def run(program: Any, inputs: tuple[int, ...] = (1, 1)) -> Timeline:
    return joinlab.launch(program, inputs, "gloo", on_output=None, progress=False)


SEEN = ("rank", "op", "origin", "value_in", "value_out", "error")


@pytest.mark.parametrize(("case", "inputs"), [(1, (2, 3)), (3, (2, 2)), (6, (1, 4))])
def test_a_case_runs_and_is_recorded_as_with_works(case: int, inputs: tuple[int, ...]) -> None:
    program = joinlab.cases.CASES[case].program
    timeline = run(behind(program), inputs).raise_for_ending()
    plain = run(program, inputs).raise_for_ending()
    order = ("rank", "seq")
    assert (
        timeline.calls.sort(order).select(SEEN).rows()
        == plain.calls.sort(order).select(SEEN).rows()
    )
    assert timeline.calls["completed_ns"].null_count() == 0


def test_cpp_that_calls_the_group_gets_a_work_that_is_complete() -> None:
    """Functional collectives wait for what the group gives them, in C++ and without a guard."""

    def program(rank: int, inputs: Any) -> tuple[float, float]:
        import torch.distributed._functional_collectives as functional

        total = functional.all_reduce(torch.tensor([1.0 + rank]), "sum", dist.group.WORLD)
        buffer = torch.full((3,), 5.0 + rank)
        dist._broadcast_coalesced(dist.group.WORLD, [buffer], 1 << 20, 0)  # type: ignore[attr-defined]
        return float(total), float(buffer[0])

    timeline = run(behind(program, always=True)).raise_for_ending()
    assert timeline.returns == ((3.0, 5.0), (3.0, 5.0))
    assert timeline.calls["completed_ns"].null_count() == 0


def test_who_calls_the_group_itself_gets_a_work_that_is_complete() -> None:
    def program(rank: int, inputs: Any) -> Any:
        opts = dist.AllreduceOptions()
        opts.asyncOp = False
        x = torch.tensor([1.0 + rank])
        work = dist.group.WORLD.allreduce([x], opts)  # type: ignore[union-attr]
        return work.wait(), work.is_completed(), x.tolist(), work.get_future().value()[0].tolist()

    assert run(behind(program)).raise_for_ending().returns[1] == (True, True, [3.0], [3.0])


PIECES = {
    "Recorder.describe": "recorder",
    "Recorder.track": "recorder",
    "Recorder.refuse": "recorder",
    "Recorder.begin_step": "recorder",
    "RecordingGroup.__init__": "group",
    "WaitRecorder.begin": "waits",
    "WaitRecorder.end": "waits",
    "WaitRecorder.begin_expected": "waits",
    "WaitRecorder.noting": "waits",
    "Completions.watch": "completions",
    "Completions.finish": "completions",
    "ReducerWaits.expect": "reducer",
    "ReducerWaits.bracket": "reducer",
    "ReducerWaits._before": "reducer",
    "Spanned._look_up": "spans",
}
"""Parts of the recorder that a program's calls use, with their module."""

BROKEN = """
import importlib, json, os, sys, warnings
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from joinlab.recorder.events import harmless

owner, _, name = sys.argv[1].partition(".")
owner = getattr(importlib.import_module("joinlab.recorder." + sys.argv[2]), owner)
failures = []
def fails(*args, **kwargs):
    failures.append(1)
    raise LookupError("a fault of the recorder")

dist.init_process_group("gloo")
x = torch.ones(1)
dist.all_reduce(x)
guarded = hasattr(getattr(owner, name), "__wrapped__")
setattr(owner, name, harmless(fails) if guarded else fails)
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    model = DDP(torch.nn.Linear(1, 1), process_group=dist.new_group())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        with model.join():
            model(torch.ones(1)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.all_reduce(x, async_op=True).wait()
    dist.all_reduce(x, async_op=True).get_future().then(lambda future: future.value()).wait()
    dist.barrier()
    try:
        dist.all_reduce(torch.ones(1).to_sparse(), op=dist.ReduceOp.AVG)
    except Exception as error:
        refused = type(error).__name__
warned = [str(one.message) for one in seen if "joinlab" in str(one.message)]
weight = next(model.parameters()).item()
with open(f"{os.environ['RANK']}.json", "w") as file:
    json.dump([x.item(), weight, refused, bool(failures), warned], file)
"""


@pytest.fixture(scope="module")
def ranks_from() -> Iterator[subprocess.Popen[bytes]]:
    with starter() as process:
        yield process


@pytest.mark.parametrize("piece", PIECES)
def test_an_error_of_the_recorder_never_reaches_the_job(
    piece: str, ranks_from: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    words = ["record", "--into", "runs", "broken.py", piece, PIECES[piece]]
    with forked(ranks_from, tmp_path, 2, words) as job:
        assert job.wait(100) == 0
    said = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    for rank, (total, weight, refused, failed, warned) in enumerate(said):
        assert (total, weight, refused, failed) == (8.0, said[0][1], "RuntimeError", True)
        assert warned == [
            f"joinlab cannot record rank {rank}: LookupError: a fault of the recorder. "
            "The job goes on unrecorded."
        ]
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        timeline = joinlab.load(tmp_path / "runs")
    assert "a fault of the recorder" in " ".join(str(one.message) for one in seen)
    assert timeline.calls.height >= 2  # what was recorded before stays
