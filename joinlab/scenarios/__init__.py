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
    outputs = [torch.zeros(2) for _ in range(dist.get_world_size())] if rank == 0 else None
    dist.gather(x, outputs, dst=0)
    return outputs


def all_gather(rank: int, inputs: Inputs) -> list[torch.Tensor]:
    """All ranks get every rank's tensor. Notes on DDP."""
    x = torch.tensor([10.0, 11.0]) + 10 * rank
    outputs = [torch.zeros(2) for _ in range(dist.get_world_size())]
    dist.all_gather(outputs, x)
    return outputs


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
    outputs = [torch.zeros(1) for _ in dealt]
    dist.all_to_all(outputs, dealt)
    return outputs


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


def _own_tensors(rank: int, count: int) -> list[torch.Tensor]:
    return [torch.tensor([[100.0 * rank + i, 100.0 * rank + i + 0.5]]) for i in range(count)]


def gather_one_by_one(rank: int, inputs: Inputs) -> list[torch.Tensor]:
    """A list of tensors from each rank, with one all_gather for each tensor. Notes on DDP."""
    gathered: list[list[torch.Tensor]] = []
    for x in _own_tensors(rank, len(inputs)):
        outputs = [torch.zeros_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(outputs, x)
        gathered.append(outputs)
    return [outputs[owner] for owner in range(dist.get_world_size()) for outputs in gathered]


def gather_by_cat_and_chunk(rank: int, inputs: Inputs) -> list[torch.Tensor]:
    """The same list with a single all_gather: cat before it, chunk after it. Notes on DDP."""
    tensors = _own_tensors(rank, len(inputs))
    joined = torch.cat(tensors, -1)
    outputs = [torch.zeros_like(joined) for _ in range(dist.get_world_size())]
    dist.all_gather(outputs, joined)
    return [piece for output in outputs for piece in torch.chunk(output, len(tensors), -1)]


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


# ---- join(): every scenario that pull request 42577 tested


def _parameters(model: torch.nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in (*model.parameters(), *model.buffers())]


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


def without_ddp(rank: int, inputs: Inputs) -> list[torch.Tensor]:
    """Training without DDP, on the inputs of all ranks. Pull request 42577.

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
        # divided by the number of all ranks, as under join()
        loss: Any = sum(outputs) / len(counts)
        loss.backward()
        optimizer.step()
    return _parameters(model)


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
    def join_process_group(self) -> object:
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


# ---- order: pull request 3435, the first NCCL backend
