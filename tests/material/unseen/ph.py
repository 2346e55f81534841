"""Programs whose fault lies in what a branch does to an object, or in what a test reads of one."""
from dataclasses import dataclass
from enum import Enum

from tests.material.unseen.pa import *

class Meter:
    every = 2
    def __init__(self, count): self.count = count
    @property
    def rounds(self):
        if self.count > 1:
            return 2
        return 1
class Batches:
    def __init__(self, rank, items): self.rank, self.items = rank, items
    def all(self):
        if self.rank == 0:
            return [item * 2 for item in self.items]
        return list(self.items)
class Phase(Enum):
    WARM = 1
    TRAIN = 2
@dataclass(slots=True)
class State:
    phase: Phase
def shown(x): return x
def summed(x): dist.all_reduce(x)

def closes_with_a_callback(rank, inputs):
    profile = rank == 1
    with contextlib.ExitStack() as stack:
        if profile:
            stack.callback(dist.barrier)
        total = torch.ones(1)
    dist.all_reduce(total)
def hooks_one_rank(rank, inputs):
    net = nn.Linear(1, 1); model = DDP(net)
    main = rank == 0
    if main:
        net.register_forward_hook(lambda *_: dist.all_reduce(torch.ones(1)))
    for x in inputs:
        model(x.reshape(1, 1)).sum().backward()
def skips_an_averager(rank, inputs):
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
    net = nn.Linear(1, 1)
    averager = PeriodicModelAverager(period=2, warmup_steps=1)
    for step, x in enumerate(inputs):
        bad = (rank, step) == (1, 0)
        if bad:
            continue
        net(x.reshape(1, 1)).sum().backward()
        averager.average_parameters(net.parameters())
    dist.barrier()
def swallows_a_refused_gather(rank, inputs):
    parts = [torch.zeros(1)] * 2 if rank == 1 else None
    try:
        dist.gather(torch.ones(1), parts, dst=1)
    except Exception:
        parts = None
    dist.all_reduce(torch.ones(1))
def names_in_another_order(rank, inputs):
    metrics = {}
    first, second = ("acc", "loss") if rank == 2 else ("loss", "acc")
    metrics[first] = torch.tensor([10.0 if first == "acc" else 1.0])
    metrics[second] = torch.tensor([10.0 if second == "acc" else 1.0])
    for name, value in metrics.items():
        dist.all_reduce(value)
    return metrics["loss"].item()
def rounds_by_property(rank, inputs):
    meter = Meter(rank)
    for _ in range(meter.rounds):
        dist.all_reduce(torch.ones(1))
    dist.barrier()
def frozen_on_one(rank, inputs):
    weight = nn.Parameter(torch.ones(1), requires_grad=rank != 1)
    if weight.requires_grad:
        dist.broadcast(weight.data, 0)
    dist.barrier()
def phase_of_its_own(rank, inputs):
    state = State(Phase.TRAIN if rank == 1 else Phase.WARM)
    if state.phase is Phase.TRAIN:
        dist.all_reduce(torch.ones(1))
    dist.barrier()
def interval_of_its_class(rank, inputs):
    meter = Meter(rank)
    if rank == 0: meter.every = 1
    if len(inputs) % meter.every == 0:
        dist.all_reduce(torch.ones(1))
    dist.barrier()
def handler_of_a_kind(rank, inputs):
    handlers = {"image": shown, "text": summed}
    kind = ["text", "image"][min(rank, 1)]
    handlers[kind](torch.ones(1))
    dist.barrier()
def labels_of_one_kind(rank, inputs):
    labels = [0, min(rank, 1)]
    if len(set(labels)) > 1:
        dist.all_reduce(torch.ones(1))
    dist.barrier()
def labels_in_arrays(rank, inputs):
    import numpy as np
    labels, ids = torch.tensor([0, min(rank, 1)]).tolist(), np.array([0, 1])
    if len(set(ids)) > 1 and len(set(labels)) > 1:
        dist.all_reduce(torch.ones(1))
    dist.barrier()
def returns_by_lines_of_their_own(rank, inputs):
    batches = Batches(rank, [1.0] * (3 - rank))
    for item in batches.all():
        dist.all_reduce(torch.ones(1) * item)
    dist.barrier()
