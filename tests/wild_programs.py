"""Wild random programs: anything that a program may do with gloo, from a seed.

Each rank has a list of steps. All ranks get the same collectives in the same order, a send and its
recv go to the same place in two lists, and every rank waits for its calls at places of its own:
soon, late, with a time limit, or after asking whether they are complete. Then, in half of the
programs, one rank's list is disturbed.

A rank's process imports this module, so it imports nothing heavy. against_gloo.py compares the
engines.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

DTYPES = (
    "float32", "float32", "float64", "int64", "int32", "uint8", "float16", "bfloat16", "bool", "complex64",
    "int16",
)  # fmt: skip
REDUCE_OPS = ("SUM", "SUM", "SUM", "MAX", "MIN", "PRODUCT", "AVG", "BOR", "BXOR")
COLLECTIVES = (
    "all_reduce", "all_reduce", "all_reduce", "broadcast", "broadcast", "barrier", "reduce", "gather", "scatter",
    "all_gather", "all_gather_into_tensor", "reduce_scatter", "reduce_scatter_tensor", "all_to_all",
    "all_to_all_single", "sparse", "coalesced", "object", "monitored_barrier",
)  # fmt: skip
LAYOUTS = ("plain", "plain", "plain", "column", "transposed", "gapped")
WAITS = ("oldest", "newest", "all", "poll", "brief")
BRIEF_S = 0.4
"""A time limit that ranks which do not sleep keep to, and that one which sleeps for LATE_S
breaks."""
LATE_S = 1.2


@dataclass(frozen=True, slots=True)
class Step:
    """One step of one rank: a collective, "send" or "recv", a wait, a sleep, or making a group.

    group   index of the group it is called in; None: all ranks
    count   elements of the tensor, or of each share
    splits  how many elements go to each place, for what can be split unevenly
    """

    op: str
    group: int | None = None
    dtype: str = "float32"
    count: int = 1
    reduce_op: str = "SUM"
    root: int = 0
    peer: int = 0
    tag: int = 0
    layout: str = "plain"
    splits: tuple[int, ...] = ()
    asynchronous: bool = False

    def __str__(self) -> str:
        """The op, and every field that is not as usual."""
        usual = Step(self.op)
        other = [f"{one.name}={getattr(self, one.name)}" for one in fields(self)[1:]]
        usually = [f"{one.name}={getattr(usual, one.name)}" for one in fields(self)[1:]]
        return f"{self.op}({', '.join(one for one in other if one not in usually)})"


@dataclass(frozen=True, slots=True)
class Plan:
    """A drawn program. `groups` that are not `early` are made by their members alone, where the
    list says "group"."""

    seed: int
    ranks: int
    groups: tuple[tuple[int, ...], ...]
    early: tuple[bool, ...]
    catches: bool  # it catches what a step raises, and goes on
    lists: tuple[tuple[Step, ...], ...] = field(default=())

    @property
    def counts(self) -> tuple[int, ...]:
        """Inputs for each rank: a wild program has a loop of its own, so one is enough."""
        return (1,) * self.ranks

    def __str__(self) -> str:
        """One line for each rank."""
        head = (
            f"{self.ranks} ranks, groups {self.groups}, early {self.early}, catches {self.catches}"
        )
        return "\n".join(
            [
                head,
                *(
                    f"  {rank}: " + ", ".join(map(str, steps))
                    for rank, steps in enumerate(self.lists)
                ),
            ]
        )


def draw(seed: int, mismatch: float = 0.5) -> Plan:
    """The plan of that number. `mismatch` is how often one rank's list is disturbed."""
    rng = random.Random(f"wild {seed}")
    n = rng.choice((2, 2, 3, 3, 4))
    groups = tuple(
        tuple(sorted(rng.sample(range(n), rng.randint(2, n))))
        for _ in range(rng.choice((0, 1, 1, 2, 3)))
    )
    plan = Plan(seed, n, groups, tuple(rng.random() < 0.7 for _ in groups), rng.random() < 0.3)
    lists: list[list[Step]] = [[] for _ in range(n)]
    for index, members in enumerate(groups):
        if not plan.early[index]:
            for rank in members:
                lists[rank].append(Step("group", index))
    for _ in range(rng.randint(2, 10)):
        if rng.random() < 0.25:
            _draw_pair(rng, plan, lists)
        else:
            step = _draw_collective(rng, plan)
            for rank in _members(plan, step.group):
                lists[rank].append(step)
        for rank in range(n):
            if rng.random() < 0.3:
                lists[rank].append(Step(rng.choice(WAITS)))
    if rng.random() < 0.1:
        late = lists[rng.randrange(n)]
        late.insert(rng.randint(0, len(late)), Step("sleep"))
    if rng.random() < mismatch:
        for _ in range(rng.choice((1, 1, 2))):
            _disturb(rng, plan, lists[rng.randrange(n)])
    return replace(plan, lists=tuple(tuple(steps) for steps in lists))


def _members(plan: Plan, group: int | None) -> Sequence[int]:
    return range(plan.ranks) if group is None else plan.groups[group]


def _draw_collective(rng: random.Random, plan: Plan) -> Step:
    group = rng.choice((None, None, *range(len(plan.groups))))
    members = _members(plan, group)
    return Step(
        rng.choice(COLLECTIVES),
        group,
        rng.choice(DTYPES),
        rng.choice((1, 1, 2, 3, 5, 8)),
        rng.choice(REDUCE_OPS),
        rng.choice(members),
        layout=rng.choice(LAYOUTS),
        splits=tuple(rng.randint(0, 3) for _ in members),
        asynchronous=rng.random() < 0.4,
    )


def _draw_pair(rng: random.Random, plan: Plan, lists: list[list[Step]]) -> None:
    source, target = rng.sample(range(plan.ranks), 2)
    dtype, count, tag = rng.choice(DTYPES), rng.choice((1, 2, 5)), rng.choice((0, 0, 1))
    for rank, op, peer in ((source, "send", target), (target, "recv", source)):
        lists[rank].append(
            Step(op, None, dtype, count, peer=peer, tag=tag, asynchronous=rng.random() < 0.6)
        )


def _disturb(rng: random.Random, plan: Plan, steps: list[Step]) -> None:
    if not steps or rng.random() < 0.2:
        step = _draw_collective(rng, plan)
        steps.insert(
            rng.randint(0, len(steps)), replace(step, group=None, root=rng.randrange(plan.ranks))
        )
        return
    at = rng.randrange(len(steps))
    match rng.randrange(6):
        case 0:
            del steps[at]
        case 1:
            steps[at] = replace(steps[at], count=rng.choice((1, 2, 3, 5, 8)))
        case 2:
            steps[at] = replace(steps[at], dtype=rng.choice(DTYPES))
        case 3:
            steps[at] = replace(steps[at], op=rng.choice(COLLECTIVES))
        case 4:
            steps[at] = replace(steps[at], root=rng.choice(_members(plan, steps[at].group)))
        case 5:
            other = rng.randrange(len(steps))
            steps[at], steps[other] = steps[other], steps[at]


def tensor_of(step: Step, start: int, count: int | None = None) -> Any:
    """The numbers from `start` on, in the dtype and layout of the step."""
    import torch

    count = step.count if count is None else count
    dtype = getattr(torch, step.dtype)
    match step.layout:
        case "column":
            whole = torch.arange(count * 2).add(start).to(dtype).view(count, 2)
            return whole[:, 0]
        case "gapped":
            return torch.arange(count * 2 + 1).add(start).to(dtype)[1::2]
        case "transposed":
            return torch.arange(count * 2).add(start).to(dtype).view(2, count).t()
        case _:
            return torch.arange(count).add(start).to(dtype)


def collective(
    step: Step, rank: int, members: Sequence[int], group: Any, index: int, kept: list[Any]
) -> Any:
    """Call it in `group`; returns the Work, if it is asynchronous. The tensors that are looked at
    are added to `kept`.

    index  which of the rank's calls it is: tensors begin with other values in each
    """
    import torch
    import torch.distributed as dist

    place, size, root = list(members).index(rank), len(members), step.root
    reduce_op = getattr(dist.ReduceOp, step.reduce_op)
    options: dict[str, Any] = {"group": group, "async_op": step.asynchronous}
    value = tensor_of(step, rank + index)
    like = [tensor_of(step, 0).zero_() for _ in members]
    splits = list(step.splits)[:size] + [1] * (size - len(step.splits))
    match step.op:
        case "barrier":
            return dist.barrier(**options)
        case "monitored_barrier":
            return dist.monitored_barrier(group) if step.group is None else None
        case "object":
            found: list[Any] = [None] * size
            dist.all_gather_object(found, (rank, index), group)
            kept.append(found)
            return None
        case "sparse":
            sparse = torch.sparse_coo_tensor(
                [[rank, 0]], torch.tensor([1.0, 2.0]), (step.count + 5,)
            )
            kept.append(sparse)
            return dist.all_reduce(sparse, **options)
    kept.append(value)
    match step.op:
        case "all_reduce":
            return dist.all_reduce(value, reduce_op, **options)
        case "coalesced":
            kept.append(like[0])
            # async it gives a future
            return dist.all_reduce_coalesced([value, like[0]], reduce_op, group)
        case "broadcast":
            return dist.broadcast(value, root, **options)
        case "reduce":
            return dist.reduce(value, root, reduce_op, **options)
        case "gather":
            kept.append(like)
            return dist.gather(value, like if rank == root else None, root, **options)
        case "scatter":
            ins = [tensor_of(step, place) for place in range(size)]
            return dist.scatter(value, ins if rank == root else None, root, **options)
        case "all_gather":
            kept.append(like)
            return dist.all_gather(like, value, **options)
        case "all_gather_into_tensor":
            out = torch.zeros(size * value.size(0), *value.shape[1:], dtype=value.dtype)
            kept.append(out)
            return dist.all_gather_into_tensor(out, value, **options)
        case "reduce_scatter":  # of unequal shares
            ins = [tensor_of(step, rank, count + 1) for count in splits]
            out = tensor_of(step, 0, splits[place] + 1)
            kept.append(out)
            return dist.reduce_scatter(out, ins, reduce_op, **options)
        case "reduce_scatter_tensor":
            whole = tensor_of(step, rank, step.count * size)
            return dist.reduce_scatter_tensor(value, whole, reduce_op, **options)
        case "all_to_all":
            kept.append(like)
            return dist.all_to_all(
                like, [tensor_of(step, 10 * rank + i) for i in range(size)], **options
            )
        case "all_to_all_single":  # everyone sends splits[i] elements to place i
            flat = torch.arange(sum(splits)).add(100 * rank).to(value.dtype)
            out = torch.zeros(size * splits[place], dtype=value.dtype)
            kept.append(out)
            return dist.all_to_all_single(out, flat, [splits[place]] * size, splits, **options)
    raise ValueError(step.op)


def program_of(plan: Plan) -> Callable[[int, Any], Any]:
    """The plan as a program for joinlab.launch and joinlab.emulate: it returns what its steps gave,
    at the end."""

    def worker(rank: int, inputs: Any) -> Any:
        import time
        from datetime import timedelta

        import torch
        import torch.distributed as dist

        made: list[Any] = [
            dist.new_group(list(members)) if early else None
            for members, early in zip(plan.groups, plan.early, strict=True)
        ]
        # a Work, and which of `kept` its call may still write to
        pending: list[tuple[Any, int, int]] = []
        kept: list[Any] = []

        def wait(which: str) -> None:
            if not pending:
                return
            match which:
                case "oldest":
                    pending.pop(0)[0].wait()
                case "newest":
                    pending.pop()[0].wait()
                case "all":
                    while pending:
                        pending.pop(0)[0].wait()
                case "poll":
                    pending[0][0].is_completed()
                case "brief":
                    pending.pop(0)[0].wait(timedelta(seconds=BRIEF_S))

        def run(step: Step, index: int) -> None:
            first = len(kept)
            if step.op in WAITS:
                wait(step.op)
            elif step.op == "sleep":
                time.sleep(LATE_S)
            elif step.op == "group":
                members = plan.groups[step.group or 0]
                made[step.group or 0] = dist.new_group(
                    list(members), use_local_synchronization=True
                )
            elif step.op in ("send", "recv"):
                value = tensor_of(step, 7 * rank + index)
                kept.append(value)
                post = {
                    ("send", False): dist.send, ("send", True): dist.isend,
                    ("recv", False): dist.recv, ("recv", True): dist.irecv,
                }[step.op, step.asynchronous]  # fmt: skip
                work: Any = post(value, step.peer, tag=step.tag)
                if step.asynchronous and work is not None:
                    pending.append((work, first, len(kept)))
            else:
                members = range(plan.ranks) if step.group is None else plan.groups[step.group]
                if rank in members:
                    group = None if step.group is None else made[step.group]
                    work = collective(step, rank, members, group, index, kept)
                    if work is not None:
                        pending.append((work, first, len(kept)))

        for index, step in enumerate([*plan.lists[rank], Step("all")]):
            try:
                run(step, index)
            except RuntimeError:
                if not plan.catches:
                    raise
                kept.append("raised")
        for _, first, last in pending:  # whether these calls have written by now is a race
            kept[first:last] = ["in flight"] * (last - first)
        return [
            one.to_dense() if isinstance(one, torch.Tensor) and one.is_sparse else one
            for one in kept
        ]

    worker.__name__ = f"wild_{plan.seed}"
    return worker
