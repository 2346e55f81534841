"""Random programs from a seed, with DDP and a loop: the same seed gives the same program in every
process.

A program is a list of collectives per rank: mostly the same on all, with some changed, missing or
added on one of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tests.wild_programs import Step, collective, tensor_of

DTYPES = ("float32", "float64", "int64", "int32", "uint8", "float16", "bfloat16")
OPS = (
    "all_reduce", "all_reduce", "all_reduce", "broadcast", "broadcast", "all_gather", "barrier", "reduce", "gather",
    "scatter", "reduce_scatter", "all_to_all", "send_recv", "object",
)  # fmt: skip
REDUCE_OPS = ("SUM", "SUM", "SUM", "MAX", "MIN", "PRODUCT", "AVG")


@dataclass(frozen=True, slots=True)
class Plan:
    """A drawn program: how many inputs each rank has, what they do around their loop, and in it
    after each input."""

    seed: int
    counts: tuple[int, ...]
    ddp: bool
    join: bool
    barrier: str | None  # "inside" or "after" the loop
    groups: tuple[tuple[int, ...], ...]
    before: tuple[tuple[Step, ...], ...]  # by rank
    during: tuple[tuple[Step, ...], ...]
    after: tuple[tuple[Step, ...], ...]


def draw(seed: int, ranks: Sequence[int] = (2, 3, 4), mismatch: float = 0.5) -> Plan:
    """The plan of that number. `mismatch` is how often its ranks disagree at all."""
    rng = random.Random(seed)
    n = rng.choice(ranks)
    even = rng.random() < 0.4
    counts = (rng.randint(0, 4),) * n if even else tuple(rng.randint(0, 4) for _ in range(n))
    groups = tuple(
        tuple(sorted(rng.sample(range(n), rng.randint(2, n))))
        for _ in range(rng.choice((0, 0, 1, 2)))
    )
    ddp = rng.random() < 0.7
    wrong = rng.random() < mismatch
    lists = []
    for most in (3, 1, 3):
        common = [_action(rng, n, groups) for _ in range(rng.randint(0, most))]
        lanes = [list(common) for _ in range(n)]
        if wrong and rng.random() < 0.6:
            _disturb(rng, lanes[rng.randrange(n)], n, groups)
        lists.append(tuple(tuple(lane) for lane in lanes))
    barrier = rng.choice((None, None, "inside", "after"))
    return Plan(seed, counts, ddp, ddp and rng.random() < 0.6, barrier, groups, *lists)


def _action(rng: random.Random, n: int, groups: Sequence[tuple[int, ...]]) -> Step:
    group = rng.choice((None, *range(len(groups))))
    members = range(n) if group is None else groups[group]
    return Step(
        rng.choice(OPS), group, rng.choice(DTYPES), rng.choice((1, 1, 1, 2, 3, 5, 8)), rng.choice(REDUCE_OPS),
        rng.choice(members), asynchronous=rng.random() < 0.2,
    )  # fmt: skip


def _disturb(
    rng: random.Random, lane: list[Step], n: int, groups: Sequence[tuple[int, ...]]
) -> None:
    if not lane or rng.random() < 0.3:
        lane.insert(rng.randint(0, len(lane)), _action(rng, n, groups))
        return
    at = rng.randrange(len(lane))
    match rng.randrange(5):
        case 0:
            del lane[at]
        case 1:
            lane[at] = _action(rng, n, groups)
        case 2:
            lane[at] = replace(lane[at], count=rng.choice((1, 2, 3, 5, 8)))
        case 3:
            lane[at] = replace(lane[at], dtype=rng.choice(DTYPES))
        case 4:
            lane[at] = replace(
                lane[at],
                root=rng.choice(groups[lane[at].group] if lane[at].group is not None else range(n)),
            )


def program_of(plan: Plan) -> Callable[[int, Sequence[Any]], Any]:
    """The plan as a program for joinlab.launch and joinlab.emulate."""

    def worker(rank, inputs):  # type: ignore[no-untyped-def]
        import torch
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel as DDP

        made = [dist.new_group(list(ranks)) for ranks in plan.groups]
        pending: list[Any] = []
        kept: list[Any] = []

        def act(index: int, action: Step) -> None:
            members = (
                range(dist.get_world_size()) if action.group is None else plan.groups[action.group]
            )
            if rank not in members:
                return
            group = None if action.group is None else made[action.group]
            if action.op == "send_recv":  # around the group, the first one sends first
                place = list(members).index(rank)
                value, following = (
                    tensor_of(action, rank + index),
                    members[(place + 1) % len(members)],
                )
                steps = [(dist.send, following), (dist.recv, members[place - 1])]
                for do, peer in steps if place == 0 else steps[::-1]:
                    do(value, peer, group)
                kept.append(value)
            elif (work := collective(action, rank, members, group, index, kept)) is not None:
                pending.append(work)

        def loop(model: Any) -> None:
            for index, input in enumerate(inputs):
                if model is not None:
                    model(input * (rank + 1)).sum().backward()
                for action in plan.during[rank]:
                    act(index, action)
                if plan.barrier == "inside":
                    dist.barrier()

        for index, action in enumerate(plan.before[rank]):
            act(index, action)
        model = DDP(torch.nn.Linear(1, 2)) if plan.ddp else None
        if model is not None and plan.join:
            with model.join():
                loop(model)
        else:
            loop(model)
        if plan.barrier == "after":
            dist.barrier()
        for index, action in enumerate(plan.after[rank]):
            act(index, action)
        for work in pending:
            work.wait()
        gradients = [] if model is None else [parameter.grad for parameter in model.parameters()]
        return kept, gradients

    worker.__name__ = f"random_{plan.seed}"
    return worker
