"""Dumps of every version of PyTorch's flight recorder, field by field as its source writes them.

The fields are those of getCollectiveTrace, getPgConfig, getPgStatus, dump and dump_json:

    2.4   PyTorch 2.5 to 2.7    torch/csrc/distributed/c10d/NCCLUtils.cpp after v2.5.0, FlightRecorder.cpp after v2.6.0
    2.6   none                  2.4 and what pull request 151048 adds
    2.7   none                  FlightRecorder.hpp between v2.7.0 and v2.8.0
    2.9   PyTorch 2.8           FlightRecorderDetail.hpp, v2.8.0
    2.10  PyTorch 2.9 to 2.13   FlightRecorderDetail.hpp, v2.9.0 and v2.13.0

No source of 2.5 and 2.8 was found: they lie between forms that hold the same fields in the same
form.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import joinlab
from joinlab.analysis.matching import match
from joinlab.errors import TimelineFileError
from tests.dumps import quietly

VERSIONS = ("2.4", "2.6", "2.7", "2.9", "2.10")
NANOSECONDS = 10**18


def since(version: str, first: int) -> bool:
    return int(version.partition(".")[2]) >= first


def entry(
    version: str, at: int, title: str, numbers: tuple[int, int, int], over: bool, group: str
) -> dict[str, Any]:
    """One entry as getCollectiveTrace inserts it; `numbers`: collective_seq_id, p2p_seq_id and
    op_id."""
    pair = title.partition(":")[2][:4] in ("send", "recv")
    sizes = [] if title == "nccl:coalesced" else [[4, 2]]
    types = [] if title == "nccl:coalesced" else ["Float"]
    found: dict[str, Any] = {
        "frames": [{"name": "step", "filename": "train.py", "line": 7}],
        "record_id": at,
        "pg_id": int(group),
        "process_group": (group, "default_pg"),
    }
    if since(version, 9):
        found |= {"thread_name": "python", "thread_id": "139872"}
    found |= {
        "collective_seq_id": numbers[0],
        "p2p_seq_id": numbers[1],
        "op_id": numbers[2],
        "profiling_name": title,
    }
    found |= {"time_created_ns": NANOSECONDS + 1000 * at}
    if over:
        found |= {"duration_ms": 0.25}
    found |= {
        "input_sizes": sizes,
        "input_dtypes": types,
        "output_sizes": sizes,
        "output_dtypes": types,
    }
    found |= {"state": "completed" if over else "scheduled"}
    found |= {"time_discovered_started_ns": NANOSECONDS + 1000 * at + 100 if over else None}
    found |= {"time_discovered_completed_ns": NANOSECONDS + 1000 * at + 500 if over else None}
    return found | {"retired": over, "timeout_ms": 600_000, "is_p2p": pair}


def dump(
    version: str, entries: Iterable[dict[str, Any]], last: tuple[int, int], active: bool = False
) -> dict[str, Any]:
    """One rank's dump; `last`: the collectives that pg_status says were enqueued and completed."""
    found: dict[str, Any] = {
        "version": version,
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
    }
    if since(version, 10):
        found |= {"comm_lib_version": "2.27.3"}
    elif since(version, 6):
        found |= {"nccl_version": "2.27.3"}
    names = ("last_enqueued_collective", "last_started_collective", "last_completed_collective")
    found |= {"pg_status": {"0": dict(zip(names, (last[0], last[1], last[1]), strict=True))}}
    found |= {"entries": [one for one in entries if not (active and one["state"] == "completed")]}
    return found | {"nccl_comm_state": {"0xc0ffee": {"rank": "0"}}}


def as_json(content: Mapping[str, Any]) -> str:
    """What dump_json writes of the same: no frames, no null, numbers of pg_status as text."""
    entries = [
        {
            name: value or 0 if name.startswith("time_") else value
            for name, value in one.items()
            if name != "frames"
        }
        for one in content["entries"]
    ]
    status = {
        group: {name: str(value) for name, value in one.items()}
        for group, one in content["pg_status"].items()
    }
    return json.dumps({**content, "pg_status": status, "entries": entries})


def load(
    folder: Path, dumps: Mapping[int, Mapping[str, Any]], form: str = "pickle"
) -> tuple[joinlab.Timeline, list[str]]:
    for rank, content in dumps.items():
        data = as_json(content).encode() if form == "json" else pickle.dumps(content, protocol=2)
        (folder / f"nccl_trace_rank_{rank}").write_bytes(data)
    return quietly(folder)


@pytest.mark.parametrize("active", [False, True])
@pytest.mark.parametrize("form", ["pickle", "json"])
@pytest.mark.parametrize("version", VERSIONS)
def test_a_dump_of_each_version(tmp_path: Path, version: str, form: str, active: bool) -> None:
    found = {
        rank: dump(
            version,
            [
                entry(version, at, "nccl:all_reduce", (at + 1, 0, at + 1), at < 2, "0")
                for at in range(calls)
            ],
            (calls, 2),
            active,
        )
        for rank, calls in ((0, 4), (1, 3))
    }
    timeline, told = load(tmp_path, found, form)
    assert told == []
    assert timeline.meta["skipped"]["0"] == ({0: 2, 1: 2} if active else {0: 0, 1: 0})
    assert timeline.meta["versions"] == ({"nccl": "2.27.3"} if since(version, 6) else {})
    assert timeline.meta["progress"] == {
        "0": {0: {"enqueued": 4, "completed": 2}, 1: {"enqueued": 3, "completed": 2}}
    }
    rows = timeline.calls.filter(pl.col("rank") == 0).select(
        "op", "dtype", "shape", "started_ns", "completed_ns", "stack"
    )
    pending = (
        "all_reduce",
        "float32",
        [[4, 2]],
        None,
        None,
        None if form == "json" else ["train.py:7 step"],
    )
    assert rows.rows()[-1] == pending
    if not active:
        first = timeline.call(0, 0)
        assert (
            first["completed_ns"] - first["enqueued_ns"],
            first["started_ns"] - first["enqueued_ns"],
        ) == (500, 100)


@pytest.mark.parametrize("active", [False, True])
@pytest.mark.parametrize("form", ["pickle", "json"])
def test_a_batch_of_collectives_that_has_no_entries_of_its_own(
    tmp_path: Path, form: str, active: bool
) -> None:
    """ProcessGroupNCCL::collective, v2.6.0: a batch of two takes one number."""
    version, found = "2.4", {}
    for rank, over in ((0, False), (1, True)):
        calls = [
            entry(version, 0, "nccl:all_reduce", (1, 0, 1), True, "0"),
            entry(version, 1, "nccl:coalesced", (2, 0, 3), True, "0"),
            entry(version, 2, "nccl:coalesced", (3, 0, 5), over, "0"),
        ]
        calls += [entry(version, 3, "nccl:all_reduce", (4, 0, 6), False, "0")] * over
        found[rank] = dump(version, calls, (4, 2), active)
    timeline, told = load(tmp_path, found, form)
    named = "rank_0': " if active else "rank_0' and 1 more: "
    assert [one.partition(named)[2] for one in told] == [
        "batches of collectives are shown as all_gather: which calls they held was not recorded"
    ]
    pending = timeline.calls.filter(pl.col("completed_ns").is_null()).select("rank", "op").rows()
    assert pending == [(0, "all_gather"), (1, "all_reduce")]
    if not active:
        assert timeline.meta["skipped"]["0"] == {0: 0, 1: 0}
        assert [sorted(slot.calls) for slot in match(timeline)] == [[0, 1], [0, 1], [0, 1], [1]]


@pytest.mark.parametrize("version", ["2.4", "2.10"])
def test_a_batch_of_sends_is_not_a_collective(tmp_path: Path, version: str) -> None:
    """startCoalescing of v2.6.0: it has a number of its own."""
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"}}
    found = {}
    for rank in range(3):
        number, pair, op, at, calls = 0, 0, 0, 0, []
        for title in ["all_reduce", "batch", "all_reduce", "batch", "all_reduce"]:
            batch = {0: ["send 0->1", "coalesced"], 1: ["recv 1<-0", "coalesced"], 2: []}[rank]
            if title == "batch":
                pair += 1
            else:
                number, batch = number + 1, [title]
            for name in batch:
                op += name != "coalesced"
                # a send's own entry never changes its state
                over = name in (
                    "coalesced",
                    "all_reduce",
                )
                calls.append(entry(version, at, f"nccl:{name}", (number, pair, op), over, "0"))
                at += 1
        found[rank] = dump(version, calls, (number, number)) | {"pg_config": config}
    timeline, told = load(tmp_path, found)
    assert told == []
    assert set(timeline.meta["skipped"]["0"].values()) == {0}
    together = sorted(sorted(slot.calls) for slot in match(timeline))
    assert together == [[0, 1]] * 2 + [[0, 1, 2]] * 3


def test_every_name_that_gloo_gives_is_known(tmp_path: Path) -> None:
    """The names in ProcessGroupGloo.cpp, v2.13.0."""
    names = (
        "all_gather",
        "all_reduce",
        "all_to_all",
        "barrier",
        "broadcast",
        "gather",
        "recv",
        "recvAnySource",
    )
    names += ("reduce", "scatter", "send", "sparse_all_reduce")
    calls = [
        entry("2.10", at, f"gloo:{name}", (at + 1, 0, at + 1), False, "0")
        for at, name in enumerate(names)
    ]
    timeline, told = load(tmp_path, {rank: dump("2.10", calls, (-1, -1)) for rank in (0, 1)})
    assert not any("unknown kind" in one for one in told)
    assert timeline.calls.filter(pl.col("rank") == 0).height == len(names)


def test_gloo_counts_sends_and_writes_the_inputs_of_a_scatter_for_its_root_alone(
    tmp_path: Path,
) -> None:
    """As two ranks on PyTorch 2.13.0 dumped it: sends have no entries, but op_id and pg_status
    count them."""
    found = {}
    for rank in (0, 1):
        calls = [
            entry("2.10", 0, "gloo:all_reduce", (1, 0, 1), False, "0"),
            entry("2.10", 1, "gloo:scatter", (2, 0, 4), False, "0"),
            entry("2.10", 2, "gloo:all_reduce", (3, 0, 5), False, "0"),
        ]
        for one in calls[: 3 - rank]:
            one["retired"] = True
        calls[1]["input_sizes"], calls[1]["input_dtypes"] = (
            ([], []) if rank else ([[2, 4, 2]], ["Float"])
        )
        found[rank] = dump("2.10", calls, (5, 5 - rank)) | {
            "pg_config": {"": {"name": "", "desc": "", "ranks": "[]"}}
        }
    timeline, told = load(tmp_path, found)
    assert told == []
    assert timeline.meta["progress"]["0"] == {
        0: {"enqueued": 3, "completed": 3},
        1: {"enqueued": 3, "completed": 2},
    }
    assert (
        timeline.calls.filter(pl.col("op") == "scatter").select("dtype", "shape").rows()
        == [("float32", [[4, 2]])] * 2
    )
    assert "scatter" not in str(joinlab.diagnose(timeline))


@pytest.mark.parametrize("version", ["1.4", "2.3"])
def test_a_dump_of_before_pytorch_2_5_is_refused_by_its_version(
    tmp_path: Path, version: str
) -> None:
    """TraceUtils.h, v2.3.0: one seq_id counts all calls; v2.4.0: a batch of sends counts, where it
    is issued."""
    content = {
        "version": version,
        "pg_config": {0: [0, 1]},
        "entries": [{"record_id": 0, "pg_id": 0, "seq_id": 1}],
    }
    (tmp_path / "nccl_trace_rank_0").write_bytes(pickle.dumps(content, protocol=2))
    with pytest.raises(
        TimelineFileError, match=r"nccl_trace_rank_0': its version is '.*PyTorch 2\.5 and later"
    ):
        joinlab.load(tmp_path / "nccl_trace_rank_0")
