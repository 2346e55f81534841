"""A solution of each exercise, under its name. `joinlab.solution("gather_list")` shows one."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join, Joinable, JoinHook
from torch.nn.parallel import DistributedDataParallel as DDP


def ring_sum(x: torch.Tensor) -> torch.Tensor:
    """Each rank sends on to the right the tensor that it received from the left, and adds up all of
    them."""
    rank, size = dist.get_rank(), dist.get_world_size()
    passed = total = x
    for _ in range(size - 1):
        received = torch.empty_like(x)
        send = dist.P2POp(dist.isend, passed, (rank + 1) % size)
        receive = dist.P2POp(dist.irecv, received, (rank - 1) % size)
        for work in dist.batch_isend_irecv([send, receive]):
            work.wait()
        passed, total = received, total + received
    return total


def gather_list(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Gathers all ranks' tensors, rank 0's first, in one call."""
    joined = torch.cat(tensors, -1)
    outputs = [torch.zeros_like(joined) for _ in range(dist.get_world_size())]
    dist.all_gather(outputs, joined)
    return [piece for output in outputs for piece in torch.chunk(output, len(tensors), -1)]


def accumulate(model: DDP, inputs: Sequence[torch.Tensor]) -> None:
    """All backwards but the last run without communication; the last one reduces the sum."""
    with model.no_sync():
        for input in inputs[:-1]:
            model(input).backward()
    model(inputs[-1]).backward()


def safe_loop(rank: int, inputs: Sequence[torch.Tensor]) -> None:
    """The barrier comes after the join() block, where every rank calls it once."""
    model = DDP(torch.nn.Linear(1, 1))
    with model.join():
        for input in inputs:
            model(input).backward()
    dist.barrier()


def even_out(rank: int, inputs: Sequence[torch.Tensor]) -> None:
    """All ranks train on the smallest count of inputs, so a barrier after the loop is safe."""
    model = DDP(torch.nn.Linear(1, 1))
    count = torch.tensor(len(inputs))
    dist.all_reduce(count, op=dist.ReduceOp.MIN)
    for input in inputs[: int(count)]:
        model(input).backward()


def in_step(rank: int, stream: Iterator[torch.Tensor]) -> None:
    """Before each step the ranks ask whether all of them have an input."""
    model = DDP(torch.nn.Linear(1, 1))
    while True:
        input = next(stream, None)
        flag = torch.tensor(float(input is not None))
        dist.all_reduce(flag, op=dist.ReduceOp.MIN)
        if not flag.item():
            break
        model(input).backward()


def as_float(byte: int) -> float:
    """The byte and three zero bytes, read as a float; the lowest byte comes first."""
    (number,) = struct.unpack("<f", bytes([byte, 0, 0, 0]))
    return number  # type: ignore[no-any-return]


def mean_loss(rank: int, inputs: Sequence[torch.Tensor]) -> float:
    """The loop collects the losses; one all-reduce follows after join()."""
    model = DDP(torch.nn.Linear(1, 1))
    total = torch.zeros(2)
    with model.join():
        for input in inputs:
            loss = model(input)
            loss.backward()
            total += torch.tensor([loss.item(), 1.0])
    dist.all_reduce(total)
    return (total[0] / total[1]).item()


def gradient(own: Sequence[float], world_size: int, divide_by_initial_world_size: bool) -> float:
    """The sum over the ranks that still have inputs, divided by all ranks or by the ranks left."""
    return sum(own) / (world_size if divide_by_initial_world_size else len(own))


def last_joiner(counts: Sequence[int]) -> int:
    """The highest of the ranks with the most inputs."""
    return max(rank for rank, count in enumerate(counts) if count == max(counts))


class Largest(Joinable):
    """Keeps the largest number that any rank was called with."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = torch.tensor([-torch.inf])

    def __call__(self, number: torch.Tensor) -> None:
        Join.notify_join_context(self)
        number = number.clone()
        dist.all_reduce(number, op=dist.ReduceOp.MAX)
        self.largest = torch.maximum(self.largest, number)

    def join_hook(self, **kwargs: object) -> JoinHook:
        return LargestHook(self)

    @property
    def join_device(self) -> torch.device:
        return self.largest.device

    @property
    def join_process_group(self) -> object:
        return dist.group.WORLD


class LargestHook(JoinHook):
    def __init__(self, owner: Largest) -> None:
        self.owner = owner

    def main_hook(self) -> None:
        # smaller than any number: changes nothing
        dist.all_reduce(torch.tensor([-torch.inf]), op=dist.ReduceOp.MAX)

    def post_hook(self, is_last_joiner: bool) -> None:
        dist.all_reduce(self.owner.largest, op=dist.ReduceOp.MAX)


def shadows(counts: Sequence[int]) -> list[int]:
    """For each input that a rank has fewer than the longest: two questions, and zeros for the
    gradients."""
    return [3 * (max(counts) - count) for count in counts]


def in_order(ready: Iterable[int], reduce: Callable[[int], None]) -> None:
    """A bucket that is ready waits for those before it, and follows them at once."""
    waiting: set[int] = set()
    following = 0
    for bucket in ready:
        waiting.add(bucket)
        while following in waiting:
            reduce(following)
            following += 1


# ---- the programs that hang, repaired


def report(rank: int, inputs: Sequence[torch.Tensor]) -> None:
    """Every rank calls reduce; one prints the sum."""
    model = DDP(torch.nn.Linear(1, 1))
    for i, input in enumerate(inputs):
        model(input).backward()
        if i == 1:
            loss = torch.ones(1) * (rank + 1)
            dist.reduce(loss, dst=0)
            if rank == 0:
                print("mean loss", loss.item() / dist.get_world_size())


def stop_early(rank: int, inputs: Sequence[torch.Tensor]) -> int:
    """The ranks reduce the condition, and so decide together."""
    model = DDP(torch.nn.Linear(1, 1))
    steps = 0
    for input in inputs:
        model(input).backward()
        steps += 1
        enough = torch.tensor([float(steps > rank)])
        dist.all_reduce(enough, op=dist.ReduceOp.MIN)
        if enough.item():
            break
    return steps


def skip_bad(rank: int, inputs: Sequence[torch.Tensor]) -> list[float]:
    """A rank that skips an input still makes its collectives, with a loss of zero."""
    model = DDP(torch.nn.Linear(1, 1))
    for i, input in enumerate(inputs):
        try:
            if rank == 1 and i == 1:
                raise ValueError("a bad input")
            loss = model(input)
        except ValueError:
            loss = model(torch.zeros(1)) * 0
        loss.backward()
    return [parameter.grad.item() for parameter in model.parameters() if parameter.grad is not None]


def save_all(rank: int, inputs: Sequence[torch.Tensor]) -> list[float] | None:
    """Every rank calls all_gather; one writes the file."""
    model = DDP(torch.nn.Linear(1, 1))
    for input in inputs:
        model(input).backward()
    parts = [torch.zeros(1) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, torch.ones(1) * rank)
    if rank == 0:
        return [part.item() for part in parts]
    return None


def every_second(rank: int, inputs: Sequence[torch.Tensor]) -> None:
    """All ranks skip the reduction for the same inputs."""
    model = DDP(torch.nn.Linear(1, 1))
    for i, input in enumerate(inputs):
        with model.no_sync() if i % 2 == 0 else nullcontext():
            model(input).backward()


class Branches(torch.nn.Module):
    """Rank 0 uses both layers, the others use one."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.a(x) + self.b(x) if dist.get_rank() == 0 else self.a(x)  # type: ignore[no-any-return]


def unused(rank: int, inputs: Sequence[torch.Tensor]) -> None:
    """find_unused_parameters lets a rank leave parameters unused."""
    model = DDP(Branches(), find_unused_parameters=True)
    for input in inputs:
        model(input).backward()


# ---- DDP and join(), built


def hand_out(module: torch.nn.Module) -> None:
    """One broadcast per parameter; DDP packs them into one."""
    for parameter in module.parameters():
        dist.broadcast(parameter.data, src=0)


def buckets_of(module: torch.nn.Module, numbers: int) -> list[list[torch.nn.Parameter]]:
    """From the last parameter to the first, the order in which backward computes their
    gradients."""
    buckets: list[list[torch.nn.Parameter]] = [[]]
    for parameter in reversed(list(module.parameters())):
        if sum(other.numel() for other in buckets[-1]) >= numbers:
            buckets.append([])
        buckets[-1].append(parameter)
    return buckets


class SmallDDP(torch.nn.Module):
    """Reduces each bucket as soon as it is full and the reductions of all before it have begun."""

    def __init__(self, module: torch.nn.Module, numbers: int) -> None:
        super().__init__()
        hand_out(module)
        self.module, self.buckets = module, buckets_of(module, numbers)
        self.ready: set[torch.nn.Parameter] = set()
        self.works: list[tuple[torch.Tensor, Any]] = []
        for parameter in module.parameters():
            parameter.register_post_accumulate_grad_hook(self.computed)  # type: ignore[no-untyped-call]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.module(x)  # type: ignore[no-any-return]

    def computed(self, parameter: torch.nn.Parameter) -> None:
        self.ready.add(parameter)
        for bucket in self.buckets[len(self.works) :]:
            if not self.ready.issuperset(bucket):
                return
            flat = torch.cat([one.grad.flatten() for one in bucket if one.grad is not None])
            self.works.append((flat, dist.all_reduce(flat, async_op=True)))
        self.finish()

    def finish(self) -> None:
        for bucket, (flat, work) in zip(self.buckets, self.works, strict=True):
            work.wait()
            for parameter, total in zip(
                bucket, torch.split(flat, [one.numel() for one in bucket]), strict=True
            ):
                parameter.grad = total.view_as(parameter) / dist.get_world_size()
        self.ready, self.works = set(), []


def ask(number: int, op: Any = dist.ReduceOp.SUM) -> int:
    """The sum of all ranks' numbers, or their maximum."""
    answer = torch.tensor([number])
    dist.all_reduce(answer, op=op)
    return int(answer.item())


def small_join(
    model: torch.nn.Module, inputs: Sequence[torch.Tensor], train: Callable[[torch.Tensor], None]
) -> None:
    """Asks before each input: anyone left? sync gradients? And once, at the end: who was the
    last?"""
    for input in inputs:
        ask(1)  # anyone left? I am
        ask(1)  # sync gradients? yes
        train(input)
    last = True
    while ask(0) > 0:
        last = False
        ask(0)
        dist.all_reduce(torch.zeros(sum(parameter.numel() for parameter in model.parameters())))
    root = ask(dist.get_rank() if last else -1, dist.ReduceOp.MAX)
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=root)
