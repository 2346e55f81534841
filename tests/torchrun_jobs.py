"""Checks the stories of 34 jobs under torchrun against tests/material/jobs, which has the scripts
and the facts.

    python -m tests.unseen --jobs [NAMES] [--tell] [--ways]

Each is recorded as a user would: torchrun -m joinlab record SCRIPT. Its story is read once the job
has ended or stood still for a while; while a healthy job runs, it must never be called hung.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import psutil

import joinlab
from joinlab.errors import TimelineFileError
from joinlab.jobs.recording import RecordedFolder
from joinlab.jobs.timeline_of_logs import has_open_call, is_over
from joinlab.story.story import Story
from joinlab.timeline import EndKind, Timeline
from tests.unseen import KINDS, Check, Row, place_in, row_of, summary, worst_of

ROOT = Path(__file__).parent.parent
JOBS = Path(__file__).parent / "material" / "jobs"
Start = Callable[[Path, int, Sequence[str]], AbstractContextManager[Any]]
"""Starts a job's ranks: a folder, their number, and the words behind `python -m joinlab`."""
STILL_S, QUIET_S, LONGEST_S = 4.0, 20.0, 240.0
"""A rank says after so long where it stands; without any move for so long a job is read; none runs
longer."""


@cache
def jobs() -> dict[str, Row]:
    """The rows by name, "13_slow_io"."""
    found = {}
    for name, row in tomllib.loads((JOBS / "table.toml").read_text(encoding="utf-8")).items():
        found[name] = row_of(name, {**row, "inputs": [1] * row["world"]})
    return found


def place(name: str, text: str) -> str:
    """The place of a line of a script, without the folder that it was copied into."""
    found = place_in(JOBS / f"{name}.py", text)
    assert found, f"{name}: no line has {text!r}"
    return found


@contextmanager
def under_torchrun(
    folder: Path, ranks: int, words: Sequence[str]
) -> Iterator[subprocess.Popen[bytes]]:
    """`ranks` processes that run `python -m joinlab WORDS` in the folder; ended in the end."""
    torchrun = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={ranks}",
        "-m",
        "joinlab",
    ]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [sys.executable, *torchrun, *words], cwd=folder, env=environ, **quiet
    ) as job:
        try:
            yield job
        finally:
            everyone = (
                psutil.Process(job.pid).children(recursive=True) if job.poll() is None else []
            )
            for process in (*everyone, job):
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(everyone, timeout=60)


@contextmanager
def running(name: str, folder: Path, start: Start, ways: bool = False) -> Iterator[Any]:
    """The job, recorded into folder/runs; `ways` records its branches, too."""
    shutil.copy(JOBS / f"{name}.py", folder)
    (folder / "scratch").mkdir()
    os.mkfifo(folder / "scratch" / "nfs.fifo")
    record = ["record", "--into", "runs", "--still", str(STILL_S), *["--ways"][:ways], f"{name}.py"]
    with start(folder, jobs()[name].world, record) as job:
        yield job


def followed(name: str, start: Start, ways: bool = False) -> tuple[Timeline, Story, list[str]]:
    """Run a job: the Timeline and the story that are read of it, and alarms while it ran."""
    with tempfile.TemporaryDirectory() as scratch, running(name, Path(scratch), start, ways) as job:
        folder = Path(scratch) / "runs"
        begun = moved = time.monotonic()
        recorded = RecordedFolder(folder)
        timeline, alarms = None, []
        while time.monotonic() - begun < LONGEST_S:
            time.sleep(0.5)
            ended = job.poll() is not None
            with suppress(TimelineFileError, FileNotFoundError):
                if recorded.refresh():
                    moved = time.monotonic()
                timeline = recorded.timeline()
                if jobs()[name].healthy and any(end.kind is EndKind.HUNG for end in timeline.ends):
                    alarms.append("ALARM: it is called hung while it runs")
            if ended or (timeline is not None and is_over(timeline)):
                break
            quiet = time.monotonic() - moved > QUIET_S and not jobs()[name].healthy
            if quiet and timeline is not None and has_open_call(timeline):
                break
        assert timeline is not None, f"{name}: nothing was recorded"
        return timeline, joinlab.diagnose(timeline), alarms


def check(name: str, start: Start = under_torchrun, ways: bool = False) -> tuple[list[str], Story]:
    """Run a job: what is wrong with its story."""
    timeline, story, alarms = followed(name, start, ways)
    checked = Check(jobs()[name], lambda text: place(name, text), timeline, story)
    return list(dict.fromkeys([*alarms, *checked.problems()])), story


def main(names: Sequence[str], tell: bool, ways: bool = False) -> int:
    """Run the jobs; 1 if anything false is said."""
    warnings.filterwarnings("ignore")
    runs, counts = 0, dict.fromkeys(KINDS, 0)
    for name, row in jobs().items():
        if names and name not in names and name.partition("_")[0] not in names:
            continue
        if row.needs and importlib.util.find_spec(row.needs) is None:
            print(f"{name}: not run, {row.needs} is not installed")
            continue
        problems, story = check(name, ways=ways)
        runs += 1
        if worst := worst_of(problems):
            counts[worst] += 1
        print(f"{name}: {'; '.join(problems) or 'so'}", flush=True)
        if tell:
            print("    " + str(story).replace("\n", "\n    "), flush=True)
    print(summary(runs, counts))
    return int(any(counts[kind] for kind in KINDS if kind != "SILENT"))
