"""Converts a dump of TorchComms' flight recorder into the format of c10d's.

TorchComms writes the keys of c10d's version 2.10 (torchcomms docs/source/hooks.rst: "the output
format matches the OSS FlightRecorder format"), but some have another meaning
(comms/torchcomms/hooks/fr/FlightRecorder.cpp, v0.2.0-rc3 to v0.3.1-rc1 and after:
FlightRecorder::record and retire_id, FlightRecorderHook::registerWithComm and onPreHook):

    collective_seq_id   counts the calls of all communicators together, from 0, including sends, recvs and splits
    op_id               the same, from 0
    process_group       the communicator's name and its backend, without a description
    pg_status           always empty
    profiling_name      "ncclx:all_reduce", before v0.3 "nccl:all_reduce" on any backend; it lacks the peer of a send or
                        recv, and the sends and recvs of a batch
    retired             the call is over, even if its state differs; then duration_ms, which not all versions write,
                        runs until the host noticed

So a call's number within its communicator must be counted, which needs a dump that lost no call.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from joinlab.errors import TimelineFileError

_NO_COLLECTIVES = ("send", "recv", "split", "new_window", "batch_op_issue")
_NCCL = {"ncclx": "nccl", "rccl": "nccl", "rcclx": "nccl"}
"""Backends of the NCCL family, where calls meet by their order alone."""

_BACKENDS = (*_NCCL, "nccl", "gloo", "xccl")


def is_torchcomms(content: dict[str, Any]) -> bool:
    """Whether TorchComms wrote a dump: without pg_status, and with a backend as the description of
    entries' groups."""
    entries = content.get("entries")
    if (
        content.get("pg_status")
        or not isinstance(entries, list)
        or not entries
        or type(entries[0]) is not dict
    ):
        return False
    group, title = entries[0].get("process_group"), entries[0].get("profiling_name")
    if not isinstance(group, (list, tuple)) or len(group) != 2 or not isinstance(title, str):
        return False
    return bool(group[1]) and title.partition(":")[0] in (
        group[1],
        "nccl" if group[1] in _BACKENDS else group[1],
    )


def as_c10d(path: Path, content: dict[str, Any]) -> dict[str, Any]:
    """The same dump with c10d's numbers. TimelineFileError if calls are missing and there are
    several communicators."""
    entries = content["entries"]
    found: list[dict[str, Any]] = []
    counts: dict[tuple[str, bool], int] = {}
    whole = [entry["collective_seq_id"] for entry in entries] == list(range(len(entries)))
    for entry in entries:
        op = str(entry["profiling_name"]).partition(":")[2]
        name, backend = map(str, entry["process_group"])
        collective = op not in _NO_COLLECTIVES
        if not whole and (not collective or len(content["pg_config"]) > 1):
            raise TimelineFileError(
                f"cannot open {str(path)!r}: TorchComms counts the calls of all communicators together, and this dump "
                "lacks some, so no call can be numbered. Dump completed calls, too, and set max_entries higher."
            )
        calls = counts[name, False] = counts.get((name, False), 0) + 1
        number = counts[name, True] = counts.get((name, True), 0) + collective
        found.append(
            {
                **entry,
                "profiling_name": f"{_NCCL.get(backend, backend)}:{op}",
                "collective_seq_id": number if whole else entry["collective_seq_id"] + 1,
                "p2p_seq_id": 0,
                "op_id": calls if whole else entry["collective_seq_id"] + 1,
                "state": "completed" if entry["retired"] else entry["state"],
                "time_discovered_completed_ns": _ended(entry),
            }
        )
    return {**content, "entries": found}


def _ended(entry: dict[str, Any]) -> Any:
    """The time at which a call was seen to be complete: its own, or else its creation time plus its
    duration."""
    if (
        entry["time_discovered_completed_ns"]
        or not entry["retired"]
        or not entry.get("duration_ms")
    ):
        return entry["time_discovered_completed_ns"]
    return entry["time_created_ns"] + round(entry["duration_ms"] * 1e6)
