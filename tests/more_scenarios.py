"""Further programs like those of joinlab.scenarios, which tests alone use. Each says what it shows,
and its source."""

from __future__ import annotations

import threading
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP

from joinlab.scenarios import Counter, Inputs, _parameters


def gather_with_a_list_everywhere(rank: int, inputs: Inputs) -> None:
    """A rank that is not the destination passes a list anyway. Notes on DDP."""
    places = [torch.zeros(1) for _ in range(dist.get_world_size())]
    dist.gather(torch.ones(1), places, dst=0)


def print_in_turn(rank: int, inputs: Inputs) -> int:
    """One rank prints at a time, with a barrier between the turns. Returns when, in ns. Notes on
    DDP."""
    printed = 0
    for turn in range(dist.get_world_size()):
        if turn == rank:
            print(f"Rank {rank}: it is my turn")
            printed = time.monotonic_ns()
        dist.barrier()
    return printed


def weights_before_and_after(rank: int, inputs: Inputs) -> tuple[float, float]:
    """A weight before and after DDP's constructor, which broadcasts the parameters of rank 0. Notes
    on DDP."""
    layer = torch.nn.Linear(1, 1)
    before = layer.weight.item()
    DDP(layer)
    return before, layer.weight.item()


def several_buckets(rank: int, inputs: Inputs) -> list[list[float]]:
    """Layers whose gradients fill several buckets; returns the gradients. PyTorch docs, "DDP:
    internal design"."""
    layers = [
        torch.nn.Linear(1, 20),
        torch.nn.Linear(20, 20),
        torch.nn.Linear(20, 20),
        torch.nn.Linear(20, 1),
    ]
    model = DDP(torch.nn.Sequential(*layers), bucket_cap_mb=0.0015)
    for input in inputs:
        model.zero_grad()
        model(input * (rank + 1)).sum().backward()
    return [
        parameter.grad.flatten().tolist()
        for parameter in model.parameters()
        if parameter.grad is not None
    ]


def count_inputs(rank: int, inputs: Inputs, to_all: bool = True) -> float:
    """Counts the inputs of all ranks; with to_all=False an early joiner keeps its own count.
    Tutorial on Join."""
    counter = Counter()
    with Join([counter], to_all=to_all):
        for _ in inputs:
            counter()
    return float(counter.count.item())


def no_hook(rank: int, inputs: Inputs) -> int:
    """The same counter without Join. Pull request 61555."""
    counter = Counter()
    for _ in inputs:
        counter()
    return int(counter.count.item())


def two_buckets_of_one_size(rank: int, inputs: Inputs) -> list[list[float]]:
    """The same with equal sizes: no hang, and wrong sums. Pull request 3435."""
    buckets = [torch.tensor([1.0]), torch.tensor([10.0])]
    ready = [0, 1] if rank == 0 else [1, 0]
    works = [dist.all_reduce(buckets[i], async_op=True) for i in ready]
    for work in works:
        work.wait()
    return [bucket.tolist() for bucket in buckets]


def buckets_from_threads(rank: int, inputs: Inputs) -> list[list[float]]:
    """A thread per bucket; the buckets become ready in different orders. Pull request 3435."""
    buckets = [torch.ones(1), torch.ones(3)]
    works: list[Any] = []

    def reduce_bucket(i: int) -> None:
        works.append(dist.all_reduce(buckets[i], async_op=True))

    for i in [0, 1] if rank == 0 else [1, 0]:
        thread = threading.Thread(target=reduce_bucket, args=(i,))
        thread.start()
        thread.join()  # keeps the order the same in every run
    for work in works:
        work.wait()
    return [bucket.tolist() for bucket in buckets]


def fixed_order(rank: int, inputs: Inputs) -> list[list[float]]:
    """The cure: a bucket that is ready waits for those before it, as in DDP today. Review of pull
    request 3435."""
    buckets = [torch.ones(1), torch.ones(3)]
    works: list[Any] = []
    ready = set()
    for i in [0, 1] if rank == 0 else [1, 0]:
        ready.add(i)
        while len(works) in ready:  # the next one in line
            works.append(dist.all_reduce(buckets[len(works)], async_op=True))
    for work in works:
        work.wait()
    return [bucket.tolist() for bucket in buckets]


def matched_by_name(rank: int, inputs: Inputs) -> list[list[float]]:
    """With a process group per bucket, calls meet by group: on gloo, any order works. After pull
    request 3435."""
    names = [dist.new_group() for _ in range(2)]
    buckets = [torch.ones(1), torch.ones(3)]
    ready = [0, 1] if rank == 0 else [1, 0]
    works = [dist.all_reduce(buckets[i], group=names[i], async_op=True) for i in ready]
    for work in works:
        work.wait()
    return [bucket.tolist() for bucket in buckets]


def destroy_behind_a_call(rank: int, inputs: Inputs) -> str:
    """destroy_process_group() after a call without a partner. Pull request 3435 introduced it."""
    if rank == 1:
        dist.all_reduce(torch.ones(1), async_op=True)
        dist.destroy_process_group()
    return "got past destroy_process_group()"


def _train(model: DDP, inputs: Inputs, scale: float = 1.0, **options: Any) -> list[torch.Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.join(**options):
        for input in inputs:
            optimizer.zero_grad()
            model(input * scale).sum().backward()
            optimizer.step()
    return _parameters(model)


def linear(rank: int, inputs: Inputs) -> list[torch.Tensor]:
    """Trains a linear model and returns its parameters. Pull request 42577."""
    return _train(DDP(torch.nn.Linear(1, 1)), inputs, scale=rank + 1)


def convolutional(rank: int, inputs: Inputs) -> list[torch.Tensor]:
    """A larger convolutional model, whose gradients fill several buckets. Pull request 42577."""
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 16, 3), torch.nn.ReLU(), torch.nn.Conv2d(16, 32, 3), torch.nn.ReLU(), torch.nn.Flatten(),
        torch.nn.Linear(32 * 16, 8),
    )  # fmt: skip
    ddp = DDP(model, bucket_cap_mb=0.01)
    with ddp.join():
        for input in inputs:
            ddp(input.expand(2, 1, 8, 8) * (rank + 1)).sum().backward()
    return _parameters(model)


def batch_norm(rank: int, inputs: Inputs) -> list[torch.Tensor]:
    """A model with buffers, like ResNet: every forward broadcasts them. Returns them too. Pull
    request 42577."""
    model = DDP(
        torch.nn.Sequential(torch.nn.Linear(1, 2), torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 1))
    )
    with model.join():
        for input in inputs:
            model(torch.stack([input, input * (rank + 2)])).sum().backward()
    return _parameters(model)


def join_disabled(rank: int, inputs: Inputs) -> list[torch.Tensor]:
    """join(enable=False) does nothing: for inputs known to be even. Pull request 42577."""
    return _train(DDP(torch.nn.Linear(1, 1)), inputs, scale=rank + 1, enable=False)


def throw_early(rank: int, inputs: Inputs) -> list[torch.Tensor]:
    """All ranks raise as soon as one has run out of inputs. PyTorch docs, pull request 61555."""
    return _train(DDP(torch.nn.Linear(1, 1)), inputs, throw_on_early_termination=True)


class _OwnCollective(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layer(x)
        dist.all_reduce(y.detach().clone())  # no hook shadows this
        return y


def own_collective_in_forward(rank: int, inputs: Inputs) -> list[torch.Tensor]:
    """A limit: join() does not shadow a collective that the model calls in forward. Pull request
    42577."""
    return _train(DDP(_OwnCollective()), inputs)


def two_buckets(rank: int, inputs: Inputs) -> list[list[float]]:
    """Two buckets of different sizes, reduced as they become ready: rank 1 has the other order.
    Pull request 3435."""
    buckets = [torch.ones(1), torch.ones(3)]
    ready = [0, 1] if rank == 0 else [1, 0]
    works = [dist.all_reduce(buckets[i], async_op=True) for i in ready]
    for work in works:
        work.wait()
    return [bucket.tolist() for bucket in buckets]


def accumulate(rank: int, inputs: Inputs) -> list[float]:
    """no_sync(): one all-reduce for the added gradients of two inputs. Returns the gradients.
    PyTorch docs."""
    model = DDP(torch.nn.Linear(1, 1, bias=False))
    gradients = []
    for index, input in enumerate(inputs):
        if index % 2 == 0:
            with model.no_sync():
                model(input * (rank + 1)).backward()
        else:
            model(input * (rank + 1)).backward()
            gradients.append(model.module.weight.grad.item())
            model.zero_grad()
    return gradients


def exception(rank: int, inputs: Inputs) -> None:
    """Rank 1 fails in its second input: join() lets its exception through. Pull request 42577."""
    model = DDP(torch.nn.Linear(1, 1))
    with model.join():
        for index, input in enumerate(inputs):
            if rank == 1 and index == 1:
                raise ValueError("a bad input")
            model(input).backward()
