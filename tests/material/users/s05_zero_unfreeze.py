# FAULT. World 2. ZeroRedundancyOptimizer: a plateau callback unfreezes the head on rank 1 alone (its local metric): add_param_group there; from then on ZeRO's step broadcasts other tensors.
# Culprit: rank 1. Cause: `if self.bad >= 1:` in Unfreeze.__call__, local metric. Met: rank 1's broadcast of more/larger parameters with rank 0's next call.
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer

COUNTS = (3, 3)


class Unfreeze:
    def __init__(self, head, opt):
        self.head, self.opt, self.best, self.bad, self.done = head, opt, float("inf"), 0, False

    def __call__(self, metric):
        self.bad = 0 if metric < self.best else self.bad + 1
        self.best = min(self.best, metric)
        if self.bad >= 1 and not self.done:
            self.opt.add_param_group({"params": list(self.head.parameters())})
            self.done = True


def program(rank, inputs):
    body, head = nn.Linear(1, 2), nn.Linear(2, 1)
    opt = ZeroRedundancyOptimizer(body.parameters(), torch.optim.SGD, lr=0.1)
    unfreeze = Unfreeze(head, opt)
    for step, x in enumerate(inputs):
        head(body(x.reshape(1, 1))).sum().backward()
        for p in body.parameters():
            dist.all_reduce(p.grad)
        opt.step()
        opt.zero_grad()
        unfreeze(3.0 - step if rank == 0 else 1.0 + step)
    return unfreeze.done
