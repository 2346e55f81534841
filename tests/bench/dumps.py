"""Reading flight recorder dumps of many ranks: joinlab beside PyTorch's own torchfrtrace, on the
same files."""

from __future__ import annotations

import pickle
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.bench.figures import Figure

ENTRIES, ODD = 2000, 77
LOOK = """
import os, sys, time, joinlab, joinlab.jobs.load, joinlab.analysis.waiting, joinlab.story.judge
import joinlab.picture.page
def now():
    return time.perf_counter(), sum(os.times()[:4])
begin = now()
timeline = joinlab.load(sys.argv[1])
found = joinlab.analysis.waiting.who_waits(timeline)
read = now()
joinlab.story.judge.diagnose(timeline)
judged = now()
joinlab.picture.page.page([("a job", timeline)])
drawn = now()
print(*(b - a for a, b in (*zip(begin, read), *zip(read, judged), *zip(judged, drawn))), *found.ranks)
"""


def measure() -> Iterator[Figure]:
    """Jobs of 256 and of 1,024 ranks with 2,000 calls each, in which one rank stops ten calls
    before the others."""
    yield from _figures(256, "1.6 s all together", beside=True)
    yield from _figures(1024, "6 s all together", beside=False)


def _figures(ranks: int, aim: str, beside: bool) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for rank in range(ranks):
            (folder / f"nccl_trace_rank_{rank}").write_bytes(
                pickle.dumps(dump(rank, ranks), protocol=2)
            )
        look = [sys.executable, "-c", LOOK, name]
        ours, our_cpu, _, said = child(look)
        *times, blamed = said.split()
        assert int(blamed) == ODD, said
        read, read_cpu, judged, judged_cpu, drawn, drawn_cpu = map(float, times)
        both, ratio = f"{read:.2f} s, CPU {read_cpu:.2f} s, {together(look)} MB, all processes", ""
        if beside:
            trace = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", name]
            theirs, their_cpu, their_peak, _ = child(trace)
            ratio = f"{theirs / ours:.1f} times faster, CPU {their_cpu / our_cpu:.1f}"
            both += f" / torchfrtrace {theirs:.2f} s, CPU {their_cpu:.2f} s, {their_peak} MB"
    yield Figure(f"dumps of {ranks} x {ENTRIES}: load, match, graph", both, ratio, aim)
    fold = f"{judged:.2f} s, CPU {judged_cpu:.2f} s"
    yield Figure(f"dumps of {ranks} x {ENTRIES}: fold and verdict", fold, "", "included")
    picture = f"{drawn:.2f} s, CPU {drawn_cpu:.2f} s; all together {read + judged + drawn:.2f} s"
    yield Figure(
        f"dumps of {ranks} x {ENTRIES}: drawn as a page",
        picture,
        "",
        "included",
    )


def child(command: list[str]) -> tuple[float, float, int, str]:
    """Seconds, CPU seconds, peak memory in MB and the output of a process. The peak is of the
    largest child so far.

    Linux counts in a child's peak what its parent held when it was begun.
    """
    begin, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, cpu, after.ru_maxrss // 1024, done.stdout


def together(command: list[str]) -> int:
    """The most memory in MB that a process and its children hold at a time, in a run of its own:
    looking slows it down.

    It is their PSS: pages that several of them share count once, where the sum of RSS counts them
    for each.
    """
    most = 0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            most = max(most, sum(map(_held, (process.pid, *_children(process.pid)))))
            time.sleep(0.01)
    assert process.returncode == 0, command
    return most // 1024


def _held(pid: int) -> int:
    """PSS in kB; 0 of a process that has ended."""
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)
    return 0


def _children(pid: int) -> list[int]:
    with suppress(OSError):
        tasks = Path(f"/proc/{pid}/task").iterdir()
        return [int(one) for task in tasks for one in (task / "children").read_text().split()]
    return []


def dump(rank: int, size: int) -> dict[str, Any]:
    """One rank's dump: a ring buffer that lost its first 5,000 calls; the last ten never
    completed."""
    files = [f"site-packages/torch/file_{number}.py" for number in range(8)]
    inner = [
        {"name": f"f{number}", "filename": files[number % 8], "line": number}
        for number in range(60)
    ]
    outer = [{"name": "main", "filename": "train.py", "line": number} for number in range(20)]
    stacks = [
        [inner[(number * 7 + depth) % 60] for depth in range(8)] + [outer[number % 20]]
        for number in range(40)
    ]
    entries = [
        {
            "record_id": at, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": 5001 + at,
            "p2p_seq_id": 0, "op_id": 5001 + at, "profiling_name": "nccl:all_reduce", "duration_ms": 1.0,
            "time_created_ns": 10**18 + at * 10**6 + rank, "input_sizes": [[1024, at % 7]], "input_dtypes": ["Float"],
            "output_sizes": [[1024, at % 7]], "output_dtypes": ["Float"],
            "state": "completed" if at < ENTRIES - 10 else "scheduled",
            "time_discovered_started_ns": 10**18 + at * 10**6 + rank + 10 if at < ENTRIES - 10 else None,
            "time_discovered_completed_ns": 10**18 + at * 10**6 + rank + 5000 if at < ENTRIES - 10 else None,
            "retired": at < ENTRIES - 10, "timeout_ms": 600_000, "is_p2p": False, "thread_id": "1",
            "thread_name": "python", "frames": list(stacks[at % 40]),
        }
        for at in range(ENTRIES if rank != ODD else ENTRIES - 10)
    ]  # fmt: skip
    ranks = str(list(range(size)))
    last = entries[-1]["collective_seq_id"]
    status = {"last_enqueued_collective": last, "last_started_collective": -1}
    return {
        "version": "2.10",
        "comm_lib_version": "2.29.7",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": ranks}},
        "pg_status": {"0": {**status, "last_completed_collective": 5000 + ENTRIES - 10}},
        "entries": entries,
    }
