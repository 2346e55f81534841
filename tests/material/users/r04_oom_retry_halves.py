# FAULT. World 2. On an out-of-memory error in step 1 rank 0 retries the batch in two halves, each with its backward: one backward more than rank 1.
# Culprit: rank 0. Cause: `except MemoryError` -> `for half in batch.chunk(2)`. Met: rank 0's second half with rank 1's step 2; in the end rank 0 has one backward more.
# A fix must keep both halves' gradients: no_sync for the first half.
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

COUNTS = (3, 3)


class Runner:
    def __init__(self, rank):
        self.rank = rank
        self.model = DDP(nn.Linear(1, 1))
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.limit = 3 if rank == 0 else 8

    def loss(self, batch):
        if len(batch) > self.limit:
            raise MemoryError(f"tried to allocate {len(batch)} rows")
        return self.model(batch).pow(2).sum()

    def step(self, batch):
        self.opt.zero_grad()
        try:
            self.loss(batch).backward()
        except MemoryError:
            for half in batch.chunk(2):
                self.loss(half).backward()
        self.opt.step()


def program(rank, inputs):
    runner = Runner(rank)
    for i, x in enumerate(inputs):
        rows = 4 if i == 1 else 2
        runner.step(x.reshape(1, 1).repeat(rows, 1))
    return 0
