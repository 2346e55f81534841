"""monitored_barrier of gloo: rank 0 hears from every rank in turn, and says who has not come in
time.

    every other rank   send(t1) to rank 0, recv(t2) from it
    rank 0             recv(t1) from each, waiting for one after the other; then send(t2) to each, likewise

t1 and t2 are numbers of the group's collectives, used as tags of sends and recvs. No other rank has
a time limit, so that rank 0 is the one to report. A wait of it that times out closes its
connections, which is what the others see.

Source: ProcessGroupGloo::monitoredBarrier in torch/csrc/distributed/c10d/ProcessGroupGloo.cpp,
PyTorch v2.13.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import cast

import torch

from joinlab.backend.model import EmulatedCall, Group
from joinlab.backend.payload import CallPart
from joinlab.backend.turns import ActingRank
from joinlab.gloo.fabric import GlooFabric
from joinlab.ops import CallRow, Op
from joinlab.program.kinds import CallKind

DEFAULT_TIMEOUT = timedelta(minutes=30)
"""default_pg_timeout in torch/distributed/constants.py, PyTorch v2.13.0.

As everywhere in an emulation, a wait with that limit counts as one without: it is a hang.
"""


def monitored_barrier(
    fabric: GlooFabric, host: ActingRank, group: Group, timeout_ns: int, all_ranks: bool
) -> None:
    """Run this rank's part of it. RuntimeError says who has not come, or what the others see of
    that.

    host  the rank, by a weak reference: the calls that it keeps refer to it
    """
    arrived, leave = fabric.next_numbers(group.group_rank, 2)
    limit_ms = timeout_ns // 1_000_000
    if group.group_rank:
        sent = _post(fabric, host, group, Op.SEND, 0, arrived)
        leaving = _post(fabric, host, group, Op.RECV, 0, leave)
        try:
            host.for_host([sent])
            host.for_host([leaving])
        except RuntimeError as error:
            raise RuntimeError(
                f"Rank {group.group_rank} successfully reached monitoredBarrier, but received errors while waiting for "
                f"send/recv from rank 0. Please check rank 0 logs for faulty rank.\n Original exception: \n{error}"
            ) from None
        return
    if timeout_ns >= DEFAULT_TIMEOUT.total_seconds() * 1e9:
        limit_ns = None
    else:
        limit_ns = timeout_ns
    begin = host.now
    # Rank 0 hears from all before it lets one go.
    for op, tag in ((Op.RECV, arrived), (Op.SEND, leave)):
        calls = [
            _post(fabric, host, group, op, group_rank, tag)
            for group_rank in range(1, len(group.ranks))
        ]
        _wait_for_each(calls, host, begin, limit_ns, limit_ms, all_ranks)


def _wait_for_each(
    calls: Sequence[EmulatedCall],
    host: ActingRank,
    begin: int,
    limit_ns: int | None,
    limit_ms: int,
    all_ranks: bool,
) -> None:
    come: list[int] = []
    missing: list[int] = []
    for group_rank, call in enumerate(calls, 1):
        # With wait_all_ranks each rank has the whole limit, else all share it.
        if all_ranks or limit_ns is None:
            remaining_ns = limit_ns
        else:
            remaining_ns = begin + limit_ns - host.now
        if remaining_ns is not None and remaining_ns <= 0:
            if come:
                text = f"Successfully processed ranks: {', '.join(map(str, come))}"
            else:
                text = "No ranks successfully processed in monitoredBarrier."
            raise RuntimeError(f"Rank 0 timed out in monitoredBarrier after {limit_ms} ms.\n{text}")
        try:
            host.wait([call], timeout_ns=remaining_ns or 0)
            come.append(group_rank)
        except RuntimeError as error:
            if not all_ranks:
                text = (
                    f"[Rank 0]: Rank {group_rank} failed to pass monitoredBarrier in {limit_ms} ms"
                )
                raise RuntimeError(f"{text}\n Original exception: \n{error}") from None
            missing.append(group_rank)
    if missing:
        ranks = ", ".join(map(str, missing))
        raise RuntimeError(
            f"[Rank 0]: Ranks {ranks} failed to pass monitoredBarrier in {limit_ms} ms"
        )


def _post(
    fabric: GlooFabric, host: ActingRank, group: Group, op: Op, peer: int, tag: int
) -> EmulatedCall:
    """A send or recv of 8 bytes that is no call of the program, and so not in its Timeline."""
    part = CallPart([torch.zeros(1, dtype=torch.int64)], [torch.zeros(1, dtype=torch.int64)])
    row = cast(
        CallRow,
        {"rank": host.rank, "group": group.label, "seq": -1, "peer": group.ranks[peer], "tag": tag},
    )
    kind = CallKind(op, {"origin": None, "dtype": None, "shape": []}, nbytes=8)
    # a number that the rank's log does not know
    call = EmulatedCall(host, group, kind, -1, row, [part])
    fabric.check_connection(call)
    host.open_calls += 1
    call.ready_ns = host.now
    fabric.submit([call])
    return call
