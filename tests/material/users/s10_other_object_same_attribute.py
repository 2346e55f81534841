# FAULT. World 2. The train meter counts the samples of each batch (batches of 1, on rank 1 of 2: its data), and logs at every 2nd count; rank 1's *other* meter counts one in a branch (harmless).
# Culprit: either. Cause: `if self.count % 2 == 0:` with self.count = 1 and 2. The branch `if rank == 1 and step == 0:` on the eval meter is innocent.
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

COUNTS = (3, 3)


class Meter:
    def __init__(self):
        self.count = 0

    def add(self, n):
        self.count += n

    def log(self):
        if self.count % 2 == 0:
            t = torch.tensor([float(self.count)])
            dist.all_reduce(t)


def program(rank, inputs):
    train, evaluation = Meter(), Meter()
    model = DDP(nn.Linear(1, 1))
    for step, x in enumerate(inputs):
        if rank == 1 and step == 0:
            evaluation.add(1)
        batch = x.repeat(rank + 1).reshape(-1, 1)
        model(batch).sum().backward()
        train.add(len(batch))
        train.log()
    return train.count
