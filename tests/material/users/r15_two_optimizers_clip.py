# FAULT. World 2. Gradient clipping over ranks: `if norm > self.max_norm:` all-reduces the norm to agree on a scale: only rank 0's local norm exceeds it in step 1.
# Culprit: rank 0. Cause: `if norm > self.max_norm:` local norm. Met: rank 0's all_reduce (1 value) with rank 1's next backward (2 values).
# A fix: all-reduce the norm always (out), or decide together.
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

COUNTS = (3, 3)


class Clipper:
    def __init__(self, max_norm):
        self.max_norm = max_norm
        self.clipped = 0

    def __call__(self, parameters, extra):
        norm = torch.tensor([extra])
        if norm > self.max_norm:
            dist.all_reduce(norm, op=dist.ReduceOp.MAX)
            for p in parameters:
                p.grad *= self.max_norm / norm
            self.clipped += 1


def program(rank, inputs):
    model = DDP(nn.Linear(1, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    clip = Clipper(2.0)
    for step, x in enumerate(inputs):
        opt.zero_grad()
        model(x.reshape(1, 1)).sum().backward()
        clip(list(model.parameters()), 3.0 if (rank, step) == (0, 1) else 1.0)
        opt.step()
    return clip.clipped
