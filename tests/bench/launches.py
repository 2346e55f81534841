"""A repeated launch against torchrun on the same program, and the time from the last event to the
verdict."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import polars as pl

import joinlab
from joinlab import cases
from joinlab.timeline import Timeline
from tests.bench.figures import Figure, ms, seconds

LAUNCHES = 20
TORCHRUNS = 3
VERDICTS = 10
N = 5

SCRIPT = f"""
import os
import torch, torch.distributed as dist
from joinlab.cases import case_1
dist.init_process_group("gloo")
rank = dist.get_rank()
case_1(rank, [torch.ones(1) for _ in range({N} + rank)])
dist.barrier()
dist.destroy_process_group()  # without it torch sometimes aborts while the interpreter ends
"""


def measure() -> Iterator[Figure]:
    """Both figures."""
    # the first starts the fork server
    launched = [seconds(_launch) for _ in range(LAUNCHES + 1)][1:]
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "script.py"
        script.write_text(SCRIPT)
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node=2",
            str(script),
        ]
        torchrun = [seconds(lambda: _run(command)) for _ in range(TORCHRUNS)]
    ratio = median(torchrun) / median(launched)
    both = f"{ms(torchrun)} / {ms(launched)}"
    yield Figure(
        "torchrun / repeated launch, case 1, 2 ranks",
        both,
        f"{ratio:.0f} times",
        "40 times or more",
    )
    for case in (4, 5):
        after = [
            _silence(joinlab.launch(cases.CASES[case].program, (N, N + 1), "gloo", on_output=None))
            for _ in range(VERDICTS)
        ]
        yield Figure(
            f"last event to verdict, case {case}", ms(after), f"at most {max(after):.3f} s", "0.3 s"
        )


def _launch() -> None:
    joinlab.launch(cases.case_1, (N, N + 1), "gloo", on_output=None, progress=False)


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"torchrun failed:\n{done.stderr[-3000:]}")


def _silence(timeline: Timeline) -> float:
    """Seconds between the last recorded event of any rank and the verdict."""
    times = timeline.calls.select(pl.max_horizontal(pl.col("^.*_ns$"))).max().item()
    return float(timeline.meta["verdict_ns"] - times) / 1e9
