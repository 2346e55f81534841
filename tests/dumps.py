"""Flight recorder dumps of jobs that never ran, with a known culprit: a small simulation of hosts and streams.

Each rank has a list of collectives, in groups, in the same order on all members. Its host enqueues them; a group's
stream runs them in order, and a collective completes on all members once all have reached it. Then one rank breaks: its
host stops, or its GPU stops after it has sent its peers the data of one last call.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NAMES = ("nccl:all_reduce", "nccl:_all_gather_base", "nccl:_reduce_scatter_base", "nccl:all_to_all")


@dataclass(frozen=True, slots=True)
class Job:
    """A job: its groups, the calls in their order, as (group, name), and what breaks where.

    fault  "host" or "gpu"; None: the job is healthy
    at     the index in `calls` of the first call that the culprit does not enqueue (host) or complete (gpu)
    ahead  how many calls a host enqueues before it waits for its stream
    """

    groups: Mapping[str, tuple[int, ...]]
    calls: tuple[tuple[str, str], ...]
    culprit: int
    fault: str | None
    at: int
    ahead: int

    @property
    def size(self) -> int:
        return max(rank for ranks in self.groups.values() for rank in ranks) + 1


def draw(seed: int) -> Job:
    """A job of 2 to 4 rows and columns of ranks, with a group for each row, for each column and for all."""
    rng = random.Random(seed)
    rows, columns = rng.randint(2, 4), rng.randint(2, 4)
    size = rows * columns
    groups = {"0": tuple(range(size))}
    for row in range(rows):
        groups[str(len(groups))] = tuple(range(row * columns, (row + 1) * columns))
    for column in range(columns):
        groups[str(len(groups))] = tuple(range(column, size, columns))
    kinds = [["0"], [str(1 + row) for row in range(rows)], [str(1 + rows + column) for column in range(columns)]]
    step = [(kind, rng.choice(NAMES)) for kind in rng.choices(kinds, k=rng.randint(2, 6))]
    calls = tuple((group, name) for _ in range(rng.randint(2, 6)) for kind, name in step for group in kind)
    return Job(
        groups, calls, rng.randrange(size), rng.choice(("host", "gpu")), rng.randrange(len(calls)), rng.randint(1, 5)
    )


def run(job: Job) -> tuple[dict[int, list[int]], dict[int, set[int]]]:
    """What each rank has enqueued and completed, as indices into `job.calls`, once nothing can go on."""
    mine = {
        rank: [at for at, (group, _) in enumerate(job.calls) if rank in job.groups[group]] for rank in range(job.size)
    }
    enqueued: dict[int, list[int]] = {rank: [] for rank in mine}
    completed: dict[int, set[int]] = {rank: set() for rank in mine}
    frozen: set[int] = set()  # ranks whose GPU stands still
    moved = True
    while moved:
        moved = False
        for rank, calls in mine.items():
            open_ = len(enqueued[rank]) - len(completed[rank])
            if len(enqueued[rank]) == len(calls) or open_ >= job.ahead:
                continue
            at = calls[len(enqueued[rank])]
            if job.fault == "host" and rank == job.culprit and at >= job.at:
                continue
            enqueued[rank].append(at)
            moved = True
        for at, (group, _) in enumerate(job.calls):
            ranks = job.groups[group]
            if any(at in completed[rank] for rank in ranks) or not all(at in enqueued[rank] for rank in ranks):
                continue
            if any(rank in frozen or min(set(enqueued[rank]) - completed[rank]) != at for rank in ranks):
                continue
            for rank in ranks:
                if job.fault == "gpu" and rank == job.culprit and at >= job.at:
                    frozen.add(rank)
                else:
                    completed[rank].add(at)
            moved = True
    return enqueued, completed


def dumps(job: Job, whole: bool = True, ring: int = 1 << 30) -> dict[int, dict[str, Any]]:
    """The dump of each rank: the last `ring` entries, or, without `whole`, those alone that are not complete."""
    enqueued, completed = run(job)
    return {rank: _dump(job, rank, enqueued[rank], completed[rank], whole, ring) for rank in range(job.size)}


def _dump(job: Job, rank: int, enqueued: Sequence[int], completed: set[int], whole: bool, ring: int) -> dict[str, Any]:
    numbers: dict[str, int] = {}
    done: dict[str, int] = {}
    entries = []
    names = [name for name, ranks in job.groups.items() if rank in ranks]
    for at in enqueued:
        group, kind = job.calls[at]
        numbers[group] = numbers.get(group, 0) + 1
        over = at in completed
        if over:
            done[group] = numbers[group]
        if over and not whole:
            continue
        entries.append(
            {
                "record_id": at, "pg_id": names.index(group), "process_group": (group, f"GROUP_{group}"),
                "collective_seq_id": numbers[group], "p2p_seq_id": 0, "op_id": numbers[group], "profiling_name": kind,
                "time_created_ns": 1_000_000 + 1_000 * at + rank, "input_sizes": [[4, 2]], "input_dtypes": ["Float"],
                "output_sizes": [[4, 2]], "output_dtypes": ["Float"], "state": "completed" if over else "scheduled",
                "time_discovered_started_ns": None, "retired": over, "timeout_ms": 600_000, "is_p2p": False,
                "time_discovered_completed_ns": 1_000_500 + 1_000 * at if over else None,
                "frames": [{"filename": "train.py", "line": 10 + at % 7, "name": "step"}],
            }
        )  # fmt: skip
    return {
        "version": "2.10",
        "comm_lib_version": "2.29.7",
        "pg_config": {
            name: {"name": name, "desc": f"GROUP_{name}", "ranks": str(list(job.groups[name]))} for name in names
        },
        "pg_status": {
            str(at): {
                "last_enqueued_collective": numbers.get(name, -1),
                "last_started_collective": -1,
                "last_completed_collective": done.get(name, -1),
            }
            for at, name in enumerate(names)
        },
        "entries": entries[-ring:],
    }


def batches(rank: int, calls: list[tuple[str, int, int, str]]) -> dict[str, Any]:
    """A dump of one of two ranks: name, the two numbers and the state of each entry."""
    entries = [
        {
            "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": number, "p2p_seq_id": pair,
            "op_id": at + 1, "profiling_name": f"nccl:{name}", "time_created_ns": 1000 + at, "input_sizes": [[4 + at]],
            "input_dtypes": ["Float"], "state": state, "retired": False, "time_discovered_started_ns": None,
            "time_discovered_completed_ns": 2000 + at if state == "completed" else None, "frames": [],
        }
        for at, (name, number, pair, state) in enumerate(calls)
    ]  # fmt: skip
    last = {"last_enqueued_collective": 900, "last_completed_collective": 900}  # of a send
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    return {"version": "2.10", "pg_config": config, "pg_status": {"0": last}, "entries": entries}


def of_pairs() -> dict[int, dict[str, Any]]:
    """Two ranks, two batches of a send and a recv each: the first has completed."""
    found = {}
    for rank, other in ((0, 1), (1, 0)):
        first = [(f"send {rank}->{other}", 7, 1, "scheduled"), (f"recv {rank}<-{other}", 7, 1, "scheduled")]
        second = [(name, 7, 2, state) for name, _, _, state in first]
        found[rank] = batches(
            rank, [*first, ("coalesced", 7, 1, "completed"), *second, ("coalesced", 7, 2, "scheduled")]
        )
    return found


def write(folder: Path, dumps: Mapping[int, Mapping[str, Any]]) -> Path:
    """One pickle per rank, as PyTorch writes them."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank, dump in dumps.items():
        (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
    return folder


def nccl_trace(rank: int, seqs: tuple[int, ...]) -> dict[str, Any]:
    """A trace as libkineto writes it for NCCL: a call of the host, and the kernel that carried it out."""
    events: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}}]
    for number, seq in enumerate(seqs):
        told = {"Collective name": "_allgather_base", "dtype": "BFloat16", "In msg nelems": 12, "Group size": 2}
        told |= {"Process Group Name": "7", "Process Group Description": "mesh_dp", "Process Group Ranks": "[0, 1]"}
        told |= {"Seq": seq, "External id": number}
        host = {"ph": "X", "cat": "cpu_op", "name": "record_param_comms", "ts": 100.5 + seq, "dur": 3, "args": told}
        ran = {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllGather_RING_LL", "ts": 101.5 + seq, "dur": 2.25}
        events += [host, ran | {"args": {"External id": number, "stream": 20}}]
    wait = {"Collective name": "wait", "Process Group Name": "7", "External id": 99}
    events.append({"ph": "X", "cat": "cpu_op", "name": "record_param_comms", "ts": 999, "dur": 1, "args": wait})
    info = {"backend": "nccl", "rank": rank, "world_size": 2, "nccl_version": "2.29.7"}
    return {"schemaVersion": 1, "distributedInfo": info, "baseTimeNanoseconds": 10**18, "traceEvents": events}
