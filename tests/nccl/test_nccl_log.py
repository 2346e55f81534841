"""The recorder reads NCCL's own log, and the rule uses its facts."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from joinlab.backend.calls import by_group, setting_of
from joinlab.recorder.nccl_log import NcclLog, rings_in
from joinlab.recorder.rank_log import RankLog, about_ranks

# Lines that others published: pytorch/pytorch#75658, and NVIDIA/nccl#514, whose NCCL cut long
# lines.
LOG = b"""\
eudoxus:4055975:4056038 [0] NCCL INFO Channel 00/04 :    0   1   2   3
eudoxus:4055976:4056040 [1] NCCL INFO Trees [0] 3/-1/-1->1->0 [1] 0/-1/-1->1->3 [2] 3/-1/-1->1->0 [3] 0/-1/-1->1->3
eudoxus:4055975:4056038 [0] NCCL INFO Channel 01/04 :    0   1   2   3
eudoxus:4055976:4056040 [1] NCCL INFO Channel 00 : 1[25000] -> 2[41000] via P2P/IPC
"""
CUT = b"""\
ip-172-31-0-226:4886:4946 [0] NCCL INFO Channel 00/08 :    0   7   6   5   4   3   2   1   8  15  14  13  12  11
"""


def log_of(folder: Path, environ: dict[str, str]) -> tuple[NcclLog, Path]:
    log = NcclLog(folder, 3, environ)
    return log, Path(environ.get("NCCL_DEBUG_FILE", "").replace("%p", str(os.getpid())))


def test_the_ring_of_channel_0_is_read_from_real_lines():
    assert rings_in(LOG) == [(0, 1, 2, 3)]
    assert rings_in(b"n:1:2 [0] NCCL INFO Channel 00/02 : 0 1 2 3 4...\n") == []


def test_each_look_sees_what_is_new_and_only_a_whole_ring_of_that_size(tmp_path):
    log, path = log_of(tmp_path, environ := {})
    assert environ["NCCL_DEBUG"] == "INFO" and path.parent == tmp_path
    assert log.ring(4) == ()  # NCCL has not begun
    path.write_bytes(LOG)
    assert log.ring(4) == (0, 1, 2, 3)
    assert log.ring(4) == ()
    with path.open("ab") as file:
        file.write(CUT)
    assert log.ring(32) == ()
    with path.open("ab") as file:
        file.write(LOG + LOG)
    assert log.ring(4) == ()  # of two that were made since, neither is known to be this one


@pytest.mark.parametrize(
    "asked",
    [{"NCCL_DEBUG": "WARN"}, {"NCCL_DEBUG_FILE": "mine"}, {"TORCH_NCCL_USE_COMM_NONBLOCKING": "1"}],
)
def test_a_log_that_the_user_asked_for_is_left_alone(tmp_path, asked):
    log, _ = log_of(tmp_path, environ := dict(asked))
    assert environ == asked
    assert log.ring(4) == ()


def events(rank: int, *more: dict, **begin) -> RankLog:
    log = RankLog(rank)
    group = {"e": "group", "name": "0", "ranks": [4, 5, 6], "backend": "nccl", "t": 1}
    for event in ({"e": "begin", "t": 0, "rank": rank, "host": "h", **begin}, group, *more):
        log.feed(json.dumps(event).encode() + b"\n")
    assert not log.damaged
    return log


def test_what_the_records_tell_reaches_the_rule():
    ring = {"e": "ring", "g": "0", "r": [4, 6, 5], "t": 2}
    old = {"e": "gpu", "x": "cuda:0 (Tesla P100)", "cc": 6, "t": 2}
    logs = [
        events(4, ring, old),
        events(5, old),
        events(6, old),
    ]

    def told(**more):
        return by_group([], {"0": (4, 5, 6)}, setting_of({**about_ranks(logs, "nccl"), **more}))[
            "0"
        ]

    group = told(versions={"nccl": "2.29.7"})
    assert (group.ring, group.version, group.uncoalesced, group.eager) == (
        (4, 6, 5),
        (2, 29, 7),
        True,
        False,
    )
    assert (
        group.setting.one_node and not group.setting.warps_apart and group.setting.threads is None
    )
    logs[1].feed(b'{"e":"coalesced","g":"0","t":3}\n')
    assert not told().uncoalesced
    logs[2] = RankLog(6)  # what stood in its beginning is not known
    assert told().setting.coalesced is None and told().setting.warps_apart
