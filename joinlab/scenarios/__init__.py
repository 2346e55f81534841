"""Scenarios: the programs beyond the six cases that the notebooks and the tests share.

Each is a function of two arguments, like a case: the caller sets up the process group and the
default device, and `inputs` holds this rank's inputs, tensors of one float each. Its docstring says
what it shows, and its source: the notes on DDP ("Distributed Data Parallel (DDP)": the toy model
and the collectives), PyTorch's pull requests 42577 (join() for DDP), 61555 (the generic Join) and
3435 (the first NCCL backend), or PyTorch's tutorials.

    timeline = joinlab.emulate(joinlab.scenarios.all_gather, inputs=(1, 1, 1))

This module needs PyTorch and nothing else of joinlab.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join, Joinable, JoinHook
from torch.nn.parallel import DistributedDataParallel as DDP

Inputs = Sequence[torch.Tensor]

# ---- collectives: the values of rank r begin at 10 (r + 1), so that a value shows its rank


def broadcast(rank: int, inputs: Inputs) -> torch.Tensor:
    """All ranks get one rank's tensor. PyTorch docs."""
    x = torch.tensor([10.0, 11.0]) + 10 * rank
    dist.broadcast(x, src=1)
    return x


def reduce(rank: int, inputs: Inputs) -> torch.Tensor:
    """One rank gets the sum of all tensors. PyTorch docs."""
    x = torch.tensor([10.0, 11.0]) + 10 * rank
    dist.reduce(x, dst=1)
    return x


def all_reduce(rank: int, inputs: Inputs) -> torch.Tensor:
    """All ranks get the sum of all tensors. PyTorch docs."""
    x = torch.tensor([10.0, 11.0]) + 10 * rank
    dist.all_reduce(x)
    return x


def gather(rank: int, inputs: Inputs) -> list[torch.Tensor] | None:
    """One rank gets every rank's tensor; the others pass None as the list. Notes on DDP."""
    x = torch.tensor([10.0, 11.0]) + 10 * rank
    places = [torch.zeros(2) for _ in range(dist.get_world_size())] if rank == 0 else None
    dist.gather(x, places, dst=0)
    return places


def gather_with_a_list_everywhere(rank: int, inputs: Inputs) -> None:
    """A rank that is not the destination passes a list anyway. Notes on DDP."""
    places = [torch.zeros(1) for _ in range(dist.get_world_size())]
    dist.gather(torch.ones(1), places, dst=0)


def all_gather(rank: int, inputs: Inputs) -> list[torch.Tensor]:
    """All ranks get every rank's tensor. Notes on DDP."""
    x = torch.tensor([10.0, 11.0]) + 10 * rank
    places = [torch.zeros(2) for _ in range(dist.get_world_size())]
    dist.all_gather(places, x)
    return places


def scatter(rank: int, inputs: Inputs) -> torch.Tensor:
    """One rank sends each rank a tensor of its list. PyTorch docs."""
    x = torch.zeros(1)
    dealt = [torch.tensor([10.0 + i]) for i in range(dist.get_world_size())] if rank == 0 else None
    dist.scatter(x, dealt, src=0)
    return x


def reduce_scatter(rank: int, inputs: Inputs) -> torch.Tensor:
    """Each rank gets one entry of the sum of all lists. PyTorch docs."""
    x = torch.zeros(1)
    dealt = [torch.tensor([10.0 * (rank + 1) + i]) for i in range(dist.get_world_size())]
    dist.reduce_scatter(x, dealt)
    return x


def all_to_all(rank: int, inputs: Inputs) -> list[torch.Tensor]:
    """Every rank sends each rank a tensor of its list. PyTorch docs."""
    dealt = [torch.tensor([10.0 * (rank + 1) + i]) for i in range(dist.get_world_size())]
    places = [torch.zeros(1) for _ in dealt]
    dist.all_to_all(places, dealt)
    return places


def send_and_recv(rank: int, inputs: Inputs) -> torch.Tensor:
    """One rank sends a tensor to one other; the rest make no call. PyTorch docs."""
    x = torch.tensor([10.0, 11.0]) + 10 * rank
    if rank == 0:
        dist.send(x, dst=1)
    if rank == 1:
        dist.recv(x, src=0)
    return x


def barrier(rank: int, inputs: Inputs) -> tuple[int, int]:
    """No rank goes on before all have called it. Returns when this rank called and went on, in ns.
    PyTorch docs."""
    came = time.monotonic_ns()
    dist.barrier()
    return came, time.monotonic_ns()


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


def _own_tensors(rank: int, count: int) -> list[torch.Tensor]:
    return [torch.tensor([[100.0 * rank + i, 100.0 * rank + i + 0.5]]) for i in range(count)]


def gather_one_by_one(rank: int, inputs: Inputs) -> list[torch.Tensor]:
    """A list of tensors from each rank, with one all_gather for each tensor. Notes on DDP."""
    gathered: list[list[torch.Tensor]] = []
    for x in _own_tensors(rank, len(inputs)):
        places = [torch.zeros_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(places, x)
        gathered.append(places)
    return [places[owner] for owner in range(dist.get_world_size()) for places in gathered]


def gather_by_cat_and_chunk(rank: int, inputs: Inputs) -> list[torch.Tensor]:
    """The same list with a single all_gather: cat before it, chunk after it. Notes on DDP."""
    tensors = _own_tensors(rank, len(inputs))
    joined = torch.cat(tensors, -1)
    places = [torch.zeros_like(joined) for _ in range(dist.get_world_size())]
    dist.all_gather(places, joined)
    return [piece for place in places for piece in torch.chunk(place, len(tensors), -1)]


def time_both_gathers(rank: int, inputs: Inputs) -> list[tuple[float, float]]:
    """Time both ways once per input; 20 inputs gather 20 tensors 20 times. Returns ms. Notes on
    DDP."""
    times = []
    for _ in inputs:
        dist.barrier()
        begin = time.perf_counter()
        gather_one_by_one(rank, inputs)
        middle = time.perf_counter()
        gather_by_cat_and_chunk(rank, inputs)
        times.append(((middle - begin) * 1e3, (time.perf_counter() - middle) * 1e3))
    return times


# ---- DDP from the inside


class ToyModel(torch.nn.Module):
    """Two linear layers with a ReLU between them, from PyTorch's DDP tutorial."""

    def __init__(self) -> None:
        super().__init__()
        self.net1 = torch.nn.Linear(10, 10)
        self.relu = torch.nn.ReLU()
        self.net2 = torch.nn.Linear(10, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """From shape (n, 10) to (n, 5)."""
        return self.net2(self.relu(self.net1(x)))  # type: ignore[no-any-return]


def toy_model(rank: int, inputs: Inputs) -> list[float]:
    """A step per input with a loss and an optimizer, each rank on its own data; returns the losses.
    Notes on DDP."""
    model = DDP(ToyModel())
    loss_fn = torch.nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    torch.manual_seed(rank)  # each rank draws its own data
    losses = []
    for _ in inputs:
        optimizer.zero_grad()
        loss = loss_fn(model(torch.randn(20, 10)), torch.randn(20, 5))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"Loss on rank {rank}: {losses[-1] if losses else 'none'}")
    return losses


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


# ---- join(): every scenario that pull request 42577 tested


def _parameters(model: torch.nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in (*model.parameters(), *model.buffers())]


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


def gradients(rank: int, inputs: Inputs, divide_by_initial_world_size: bool = True) -> list[float]:
    """DDP's gradient for each input; that of rank r alone is r + 1, which shows the divisor. Pull
    request 42577."""
    model = DDP(torch.nn.Linear(1, 1, bias=False))
    values = []
    with model.join(divide_by_initial_world_size=divide_by_initial_world_size):
        for input in inputs:
            model.zero_grad()
            model(input * (rank + 1)).backward()
            values.append(model.module.weight.grad.item())
    return values


def own_parameters_at_the_end(rank: int, inputs: Inputs) -> float:
    """Each rank writes its number into the weight before it joins; all end with the same. Pull
    request 42577."""
    model = DDP(torch.nn.Linear(1, 1))
    with model.join():
        for input in inputs:
            model(input).backward()
        with torch.no_grad():
            model.module.weight.fill_(rank)
    return float(model.module.weight.item())


def exception(rank: int, inputs: Inputs) -> None:
    """Rank 1 fails in its second input: join() lets its exception through. Pull request 42577."""
    model = DDP(torch.nn.Linear(1, 1))
    with model.join():
        for index, input in enumerate(inputs):
            if rank == 1 and index == 1:
                raise ValueError("a bad input")
            model(input).backward()


def join_disabled(rank: int, inputs: Inputs) -> list[torch.Tensor]:
    """join(enable=False) does nothing: for inputs known to be even. Pull request 42577."""
    return _train(DDP(torch.nn.Linear(1, 1)), inputs, scale=rank + 1, enable=False)


def throw_early(rank: int, inputs: Inputs) -> list[torch.Tensor]:
    """All ranks raise as soon as one has run out of inputs. PyTorch docs, pull request 61555."""
    return _train(DDP(torch.nn.Linear(1, 1)), inputs, throw_on_early_termination=True)


def without_ddp(rank: int, inputs: Inputs) -> list[torch.Tensor]:
    """The same training as `linear`, without DDP, on the inputs of all ranks. Pull request 42577.

    The ranks exchange only their numbers of inputs; then each trains the same model by itself.
    """
    counts = [torch.zeros(1) for _ in range(dist.get_world_size())]
    dist.all_gather(counts, torch.tensor([float(len(inputs))]))
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(int(max(count.item() for count in counts))):
        optimizer.zero_grad()
        outputs = [
            model(torch.ones(1) * (r + 1)) for r, count in enumerate(counts) if count.item() > step
        ]
        loss: Any = sum(outputs) / len(
            counts
        )  # divided by the number of all ranks, as under join()
        loss.backward()
        optimizer.step()
    return _parameters(model)


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


# ---- the generic Join: every behaviour of pull request 61555


class Counter(Joinable):
    """Counts the inputs of all ranks, one all-reduce per input. From PyTorch's tutorial on Join.

    to_all  a keyword of the context manager: whether the last rank to join broadcasts its count
    """

    def __init__(self) -> None:
        super().__init__()
        self.count = torch.zeros(1)

    def __call__(self) -> None:
        """Count one input of this rank."""
        Join.notify_join_context(self)
        increment = torch.ones(1)
        dist.all_reduce(increment)
        self.count += increment

    def join_hook(self, **kwargs: Any) -> JoinHook:
        """The hook that a rank runs for this object once it has joined."""
        return CounterHook(self, kwargs.get("to_all", True))

    @property
    def join_device(self) -> torch.device:
        """The device of Join's own tensors."""
        return self.count.device

    @property
    def join_process_group(self) -> Any:
        """The process group in which Join communicates."""
        return dist.group.WORLD


class CounterHook(JoinHook):
    """Shadows the all-reduce of a Counter."""

    def __init__(self, counter: Counter, to_all: bool) -> None:
        self.counter, self.to_all = counter, to_all

    def main_hook(self) -> None:
        """Once per input of the others: their all-reduce, with a zero."""
        dist.all_reduce(torch.zeros(1))

    def post_hook(self, is_last_joiner: bool) -> None:
        """When all have joined, broadcast the count of the last to join."""
        if self.to_all:
            last = torch.tensor([dist.get_rank() if is_last_joiner else -1])
            dist.all_reduce(last, op=dist.ReduceOp.MAX)
            dist.broadcast(self.counter.count, src=int(last.item()))


def count_inputs(rank: int, inputs: Inputs, to_all: bool = True) -> float:
    """Counts the inputs of all ranks; with to_all=False an early joiner keeps its own count.
    Tutorial on Join."""
    counter = Counter()
    with Join([counter], to_all=to_all):
        for _ in inputs:
            counter()
    return float(counter.count.item())


def two_counters(rank: int, inputs: Inputs) -> tuple[float, float]:
    """Two Joinables: only the first one notifies, and the hooks run in the order of the list. Pull
    request 61555."""
    first, second = Counter(), Counter()
    with Join([first, second]):
        for _ in inputs:
            first()
            second()
    return float(first.count.item()), float(second.count.item())


def ddp_and_zero(rank: int, inputs: Inputs) -> list[torch.Tensor]:
    """DDP and ZeroRedundancyOptimizer under one Join. Pull request 61555."""
    from torch.distributed.optim import ZeroRedundancyOptimizer  # slow to import

    model = DDP(torch.nn.Linear(1, 1))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    with Join([model, optimizer]):
        for input in inputs:
            optimizer.zero_grad()
            model(input * (rank + 1)).sum().backward()
            optimizer.step()
    return _parameters(model.module)


def two_process_groups(rank: int, inputs: Inputs) -> None:
    """Join refuses Joinables of two process groups. Pull request 61555."""
    first = DDP(torch.nn.Linear(1, 1))
    second = DDP(torch.nn.Linear(1, 1), process_group=dist.new_group())
    with Join([first, second]):
        pass


def nothing_to_join(rank: int, inputs: Inputs) -> None:
    """Join refuses an empty list. Pull request 61555."""
    with Join([]):
        pass


class _NoInit(Counter):
    def __init__(self) -> None:
        self.count = torch.zeros(1)  # and no super().__init__()


def without_init(rank: int, inputs: Inputs) -> None:
    """A Joinable that does not call Joinable.__init__(). Pull request 61555."""
    counter = _NoInit()
    for _ in inputs:
        counter()


class _Forgetful(Counter):
    def __call__(self) -> None:
        super().__call__()
        dist.all_reduce(torch.ones(3))  # a second call per input, unknown to the hook


def forgetful_hook(rank: int, inputs: Inputs) -> float:
    """Two all-reduces per input, and a hook that shadows only one of them. Pull request 61555."""
    counter = _Forgetful()
    with Join([counter]):
        for _ in inputs:
            counter()
    return float(counter.count.item())


def no_hook(rank: int, inputs: Inputs) -> int:
    """The same counter without Join. Pull request 61555."""
    counter = Counter()
    for _ in inputs:
        counter()
    return int(counter.count.item())


# ---- order: pull request 3435, the first NCCL backend


def two_buckets(rank: int, inputs: Inputs) -> list[list[float]]:
    """Two buckets of different sizes, reduced as they become ready: rank 1 has the other order.
    Pull request 3435."""
    buckets = [torch.ones(1), torch.ones(3)]
    ready = [0, 1] if rank == 0 else [1, 0]
    works = [dist.all_reduce(buckets[i], async_op=True) for i in ready]
    for work in works:
        work.wait()
    return [bucket.tolist() for bucket in buckets]


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
