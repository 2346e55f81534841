"""Flight recorder dumps of batches, traces of the profiler, and the files that dumps are written to
and read from."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import joinlab


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
        first = [
            (f"send {rank}->{other}", 7, 1, "scheduled"),
            (f"recv {rank}<-{other}", 7, 1, "scheduled"),
        ]
        second = [(name, 7, 2, state) for name, _, _, state in first]
        found[rank] = batches(
            rank,
            [*first, ("coalesced", 7, 1, "completed"), *second, ("coalesced", 7, 2, "scheduled")],
        )
    return found


def write(folder: Path, dumps: Mapping[int, Mapping[str, Any]]) -> Path:
    """One pickle per rank, as PyTorch writes them."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank, dump in dumps.items():
        (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
    return folder


def quietly(path: Path) -> tuple[joinlab.Timeline, list[str]]:
    """The Timeline of `path`, and what `load` warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        timeline = joinlab.load(path)
    return timeline, [str(one.message) for one in caught]


def nccl_trace(rank: int, seqs: tuple[int, ...]) -> dict[str, Any]:
    """A trace as libkineto writes it for NCCL: a call of the host, and the kernel that carried it
    out."""
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}}
    ]
    for number, seq in enumerate(seqs):
        told = {
            "Collective name": "_allgather_base",
            "dtype": "BFloat16",
            "In msg nelems": 12,
            "Group size": 2,
        }
        told |= {
            "Process Group Name": "7",
            "Process Group Description": "mesh_dp",
            "Process Group Ranks": "[0, 1]",
        }
        told |= {"Seq": seq, "External id": number}
        host = {
            "ph": "X",
            "cat": "cpu_op",
            "name": "record_param_comms",
            "ts": 100.5 + seq,
            "dur": 3,
            "args": told,
        }
        ran = {
            "ph": "X",
            "cat": "kernel",
            "name": "ncclDevKernel_AllGather_RING_LL",
            "ts": 101.5 + seq,
            "dur": 2.25,
        }
        events += [host, ran | {"args": {"External id": number, "stream": 20}}]
    wait = {"Collective name": "wait", "Process Group Name": "7", "External id": 99}
    events.append(
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": "record_param_comms",
            "ts": 999,
            "dur": 1,
            "args": wait,
        }
    )
    info = {"backend": "nccl", "rank": rank, "world_size": 2, "nccl_version": "2.29.7"}
    return {
        "schemaVersion": 1,
        "distributedInfo": info,
        "baseTimeNanoseconds": 10**18,
        "traceEvents": events,
    }
