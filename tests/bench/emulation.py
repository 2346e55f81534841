"""A warm emulation against a warm launch, against what DDP alone costs, and its growth with the
ranks."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from functools import partial
from io import StringIO
from statistics import median
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

import joinlab
from joinlab import cases
from joinlab.emulator.rank_state import World
from tests.bench.figures import Figure, ms, seconds

N = 5
ROUNDS = 12
GROWTH = {64: "at most 60", 256: "at most 260"}
"""Ranks, and how many times as long as two of them they may take."""


def measure() -> Iterator[Figure]:
    """All figures; both sides of a ratio in turn, so that other load on the machine affects both
    alike."""
    for number in cases.CASES:
        yield from _case(number)
    yield from _growth()


def _case(number: int) -> list[Figure]:
    program = cases.CASES[number].program
    emulated, launched, idle = [], [], []
    for _ in range(ROUNDS + 1):
        emulated.append(seconds(lambda: joinlab.emulate(program, (N, N + 1))))
        launched.append(seconds(lambda: _launch(program)))
        with _idle_group() as ranks:
            idle.append(seconds(lambda: ranks(program, (N, N + 1))))
    emulated, launched, idle = emulated[1:], launched[1:], idle[1:]  # the first of each warms up
    quick, slow, ddp = median(emulated), median(launched), median(idle)
    real, work = f"{ms(launched)} / {ms(emulated)}", f"{ms(emulated)} / {ms(idle)}"
    return [
        Figure(f"launch (gloo) / emulate (NCCL), case {number}", real, f"{slow / quick:.1f}", ""),
        Figure(
            f"emulate / DDP alone on an idle group, case {number}",
            work,
            f"{quick / ddp:.1f}",
            "at most 3",
        ),
    ]


def _growth() -> Iterator[Figure]:
    two = [seconds(lambda: _many(2)) for _ in range(ROUNDS)]
    for ranks, aim in GROWTH.items():
        many = [seconds(partial(_many, ranks)) for _ in range(3)]
        both = f"{ms(many)} / {ms(two)}"
        yield Figure(
            f"emulate {ranks} ranks / 2 ranks, case 1",
            both,
            f"{median(many) / median(two):.0f}",
            aim,
        )


def _launch(program: Callable[..., object]) -> None:
    joinlab.launch(program, (N, N + 1), backend="gloo", on_output=None, progress=False)


def _many(ranks: int) -> None:
    joinlab.emulate(cases.case_1, (1, *[2] * (ranks - 1)))


class _Done(dist.Work):
    """A call that was complete before it was issued."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        super().__init__()
        self._tensors = tensors

    def wait(self, timeout: object = None) -> bool:
        return True

    def get_future(self) -> Any:
        return torch._C.fork(lambda: self._tensors)


class _IdleGroup(dist.ProcessGroup):
    """Two ranks of which each is alone: what DDP itself costs, whatever lies below it."""

    group_name = "0"
    group_desc = "idle"

    def __init__(self) -> None:
        super().__init__(0, 2)  # type: ignore[call-arg]
        self.works: list[_Done] = []

    def getBackendName(self) -> str:
        return "idle"

    def _work(self, tensors: list[torch.Tensor]) -> _Done:
        self.works.append(_Done(tensors))
        return self.works[-1]

    def allreduce(self, tensors: list[torch.Tensor], opts: object = None) -> _Done:  # type: ignore[override]
        return self._work(tensors)

    broadcast = allreduce  # type: ignore[assignment]

    def allgather(self, outs: Any, ins: Any, opts: object = None) -> _Done:  # type: ignore[override]
        for out in outs[0]:
            out.copy_(ins[0])
        return self._work(outs[0])

    def barrier(self, opts: object = None) -> _Done:  # type: ignore[override]
        return self._work([])


@contextmanager
def _idle_group() -> Iterator[Callable[[Callable[..., object], Sequence[int]], None]]:
    """Gives a function that runs a program's ranks one after the other on an idle group."""
    before, c10d._world = c10d._world, World()  # type: ignore[assignment]
    group = _IdleGroup()
    c10d._register_pg_in_world(
        group,
        backend_name="gloo",
        store=dist.HashStore(),
        group_name=c10d.GroupName("0"),
        backend_config=str(c10d.BackendConfig(c10d.Backend("gloo"))),
        rank_mapping={0: 0, 1: 1},
        add_to_default_tag=True,
    )
    c10d._update_default_pg(group)

    count, others = itertools.count(), [0]
    ask, find = Join._get_num_nonjoined_procs, DistributedDataParallel._find_common_rank

    def left(join: Any) -> int:
        """In join(): how many ranks have inputs left, so that a rank that has run out makes its
        shadow calls."""
        ask(join)  # type: ignore[no-untyped-call]
        done = next(count)
        return sum(other > done for other in others)

    def last(model: Any, rank: int, condition: bool) -> Any:
        return find(model, rank, True)  # type: ignore[no-untyped-call]

    def run(program: Callable[..., object], inputs: Sequence[int]) -> None:
        nonlocal count, others
        others = list(inputs)
        for rank, mine in enumerate(inputs):
            count = itertools.count(mine)
            with redirect_stdout(StringIO()):
                program(rank, [torch.ones(1)] * mine)

    try:
        with (
            patch.object(Join, "_get_num_nonjoined_procs", left),
            patch.object(DistributedDataParallel, "_find_common_rank", last),
        ):
            yield run
    finally:
        c10d._world = before
        torch._C._distributed_c10d._unregister_process_group("0")
