"""Jobs under a launcher, recorded over the stand-in for NCCL (tests/standin), against the same jobs
that nobody records."""

from __future__ import annotations

import json
import subprocess
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import joinlab
from joinlab.cli.main import main
from joinlab.errors import TimelineFileError
from joinlab.timeline import Timeline
from tests.forked import forked, starter
from tests.standin.server import standing_in

BEGIN = """
import json, os, sys
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from tests.standin.nccl import take_place, without_recorder

take_place()
if sys.argv[1] == "alone":
    without_recorder()
rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
torch.manual_seed(7)
"""

END = """
def hexed(value):
    return [part.hex() for part in value.detach().double().flatten().tolist()]

with open(f"{sys.argv[1]}-{rank}.json", "w") as file:
    json.dump([hexed(value) for value in results], file)
dist.destroy_process_group()
"""

TRAINS = """
model = DDP(torch.nn.Sequential(torch.nn.Linear(8, 300), torch.nn.ReLU(), torch.nn.Linear(300, 1)), bucket_cap_mb=0.005)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
losses = []
for step in range(6):
    optimizer.zero_grad()
    loss = model(torch.randn(4, 8) * (1 + rank)).square().mean()
    loss.backward()
    optimizer.step()
    shown = loss.detach().clone()
    dist.all_reduce(shown, op=dist.ReduceOp.AVG)
    losses.append(shown.clone())
    dist.barrier()
results = [*model.parameters(), *losses]
"""

JOINS = """
model = DDP(torch.nn.Linear(2, 1))
with model.join():
    for step in range(3 + 2 * rank):
        model(torch.randn(2) + rank).sum().backward()
results = [*model.parameters(), *(p.grad for p in model.parameters())]
"""

ACCUMULATES = """
model = DDP(torch.nn.Linear(3, 2), find_unused_parameters=True)
for step in range(4):
    context = model.no_sync() if step % 2 == 0 else torch.enable_grad()
    with context:
        model(torch.randn(5, 3) * (rank + 1)).sum().backward()
objects = [None, None]
dist.all_gather_object(objects, {"rank": rank, "steps": 4})
assert [one["rank"] for one in objects] == [0, 1]
halves = [torch.zeros(3), torch.zeros(3)]
dist.all_gather(halves, torch.full((3,), float(rank)))
results = [*(p.grad for p in model.parameters()), *halves]
"""

PASSES_ON = """
x = torch.arange(6.0) + rank
y = torch.zeros(6)
ops = [dist.P2POp(dist.isend, x, 1 - rank), dist.P2POp(dist.irecv, y, 1 - rank)]
for work in dist.batch_isend_irecv(ops):
    work.wait()
work = dist.all_reduce(x, async_op=True)
work.wait()
group = dist.new_group([0, 1])
scattered = torch.zeros(3)
dist.reduce_scatter_tensor(scattered, x * 2, group=group)
with dist._coalescing_manager():
    dist.all_reduce(y)
    dist.all_reduce(scattered)
results = [x, y, scattered]
"""

STOPS_EARLY = """
model = DDP(torch.nn.Linear(1, 1))
for step in range(4):
    model(torch.ones(1)).sum().backward()
    if step == 2 and rank == 0:
        break
    dist.barrier()
results = []
dist.barrier()
"""

JOBS = {"trains": TRAINS, "joins": JOINS, "accumulates": ACCUMULATES, "passes on": PASSES_ON}


@pytest.fixture(scope="module")
def ranks_from() -> Iterator[subprocess.Popen[bytes]]:
    with standing_in(), starter() as process:
        yield process


def until(folder: Path, wanted: Callable[[Timeline], bool]) -> Timeline:
    """Load until the Timeline is as wanted; a bound, not a measure."""
    give_up, timeline = time.monotonic() + 100, None
    while time.monotonic() < give_up:
        with suppress(TimelineFileError):  # no rank has begun to write yet
            timeline = loaded(folder)
            if wanted(timeline):
                return timeline
        time.sleep(0.05)
    raise AssertionError(f"never so: {timeline}")


def loaded(folder: Path) -> Timeline:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return joinlab.load(folder / "runs")


def results(folder: Path, name: str) -> list[Any]:
    return [json.loads((folder / f"{name}-{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("name", JOBS)
def test_a_recorded_job_computes_the_same_bits(
    name: str, ranks_from: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    (tmp_path / "job.py").write_text(BEGIN + JOBS[name] + END)
    for words in (["record", "--into", "runs", "job.py", "recorded"], ["job.py", "alone"]):
        with forked(ranks_from, tmp_path, 2, words) as job:
            assert job.wait(100) == 0
    assert results(tmp_path, "recorded") == results(tmp_path, "alone")
    timeline = loaded(tmp_path)
    assert [str(end) for end in timeline.ends] == ["finished"] * 2
    assert timeline.calls["completed_ns"].null_count() == 0
    assert timeline.calls["error"].null_count() == timeline.calls.height


def test_the_hang_of_a_recorded_job_is_proven_while_it_stands(
    ranks_from: subprocess.Popen[bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "job.py").write_text(BEGIN + STOPS_EARLY + END)
    with forked(ranks_from, tmp_path, 2, ["record", "--into", "runs", "job.py", "recorded"]) as job:
        timeline = until(tmp_path, lambda timeline: any(end.proven for end in timeline.ends))
        assert [str(end) for end in timeline.ends] == ["finished", "hung (proven)"]
        assert "nothing meets rank 1's backward" in str(joinlab.diagnose(timeline))
        assert main(["watch", str(tmp_path / "runs"), "--once", "--json"]) == 0
        story = json.loads(capsys.readouterr().out)
        assert story["state"] == "stuck"
        assert [rank["kind"] for rank in story["ranks"]] == ["finished", "hung"]
        assert job.poll() is None
