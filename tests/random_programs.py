"""Random programs from a seed: the same seed gives the same program in every process.

A program is a list of actions per rank: mostly the same on all, with some changed, missing or added on one of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

DTYPES = ("float32", "float64", "int64", "int32", "uint8", "float16", "bfloat16")
OPS = (
    "all_reduce", "all_reduce", "all_reduce", "broadcast", "broadcast", "all_gather", "barrier", "reduce", "gather",
    "scatter", "reduce_scatter", "all_to_all", "send_recv", "object",
)  # fmt: skip
REDUCE_OPS = ("SUM", "SUM", "SUM", "MAX", "MIN", "PRODUCT", "AVG")


@dataclass(frozen=True, slots=True)
class Action:
    """One collective: what, in which group (its index; None: all ranks), of which tensor, and from where."""

    op: str
    group: int | None = None
    dtype: str = "float32"
    count: int = 1
    reduce_op: str = "SUM"
    root: int = 0
    asynchronous: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """A drawn program: how many inputs each rank has, what they do around their loop, and in it after each input."""

    seed: int
    counts: tuple[int, ...]
    ddp: bool
    join: bool
    barrier: str | None  # "inside" or "after" the loop
    groups: tuple[tuple[int, ...], ...]
    before: tuple[tuple[Action, ...], ...]  # by rank
    during: tuple[tuple[Action, ...], ...]
    after: tuple[tuple[Action, ...], ...]


def draw(seed: int, ranks: Sequence[int] = (2, 3, 4), mismatch: float = 0.5) -> Plan:
    """The plan of that number. `mismatch` is how often its ranks disagree at all."""
    rng = random.Random(seed)
    n = rng.choice(ranks)
    even = rng.random() < 0.4
    counts = (rng.randint(0, 4),) * n if even else tuple(rng.randint(0, 4) for _ in range(n))
    groups = tuple(tuple(sorted(rng.sample(range(n), rng.randint(2, n)))) for _ in range(rng.choice((0, 0, 1, 2))))
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


def _action(rng: random.Random, n: int, groups: Sequence[tuple[int, ...]]) -> Action:
    group = rng.choice((None, *range(len(groups))))
    members = range(n) if group is None else groups[group]
    return Action(
        rng.choice(OPS), group, rng.choice(DTYPES), rng.choice((1, 1, 1, 2, 3, 5, 8)), rng.choice(REDUCE_OPS),
        rng.choice(members), rng.random() < 0.2,
    )  # fmt: skip


def _disturb(rng: random.Random, lane: list[Action], n: int, groups: Sequence[tuple[int, ...]]) -> None:
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
                lane[at], root=rng.choice(groups[lane[at].group] if lane[at].group is not None else range(n))
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

        def act(index: int, action: Action) -> None:
            members = range(dist.get_world_size()) if action.group is None else plan.groups[action.group]
            if rank not in members:
                return
            group = None if action.group is None else made[action.group]
            place, size, root = list(members).index(rank), len(members), action.root
            dtype = getattr(torch, action.dtype)
            value = torch.arange(action.count).add(rank + index + 1).to(dtype)
            like = [torch.zeros(action.count, dtype=dtype) for _ in members]
            reduce_op = getattr(dist.ReduceOp, action.reduce_op)
            options: dict[str, Any] = {"group": group, "async_op": action.asynchronous}
            work = None
            match action.op:
                case "all_reduce":
                    work = dist.all_reduce(value, reduce_op, **options)
                case "broadcast":
                    work = dist.broadcast(value, root, **options)
                case "all_gather":
                    work = dist.all_gather(like, value, **options)
                    value = like
                case "barrier":
                    work = dist.barrier(**options)
                case "reduce":
                    work = dist.reduce(value, root, reduce_op, **options)
                case "gather":
                    work = dist.gather(value, like if rank == root else None, root, **options)
                    value = like
                case "scatter":
                    work = dist.scatter(
                        value, [t + i for i, t in enumerate(like)] if rank == root else None, root, **options
                    )
                case "reduce_scatter":
                    work = dist.reduce_scatter(value, [t + i + rank for i, t in enumerate(like)], reduce_op, **options)
                case "all_to_all":
                    work = dist.all_to_all(like, [t + i + 10 * rank for i, t in enumerate(like)], **options)
                    value = like
                case "send_recv":  # around the group, the first one sends first
                    following, before = members[(place + 1) % size], members[(place - 1) % size]
                    if place == 0:
                        dist.send(value, following, group)
                        dist.recv(value, before, group)
                    else:
                        dist.recv(value, before, group)
                        dist.send(value, following, group)
                case "object":
                    found: list[Any] = [None] * size
                    dist.all_gather_object(found, (rank, index), group)
                    value = found
            if work is not None:
                pending.append(work)
            kept.append(value)

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
