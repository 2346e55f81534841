# FAULT. World 2. An attribute set in a branch, then overwritten on both by other values, decides.
# Culprit: either. Cause: `if self.flag:` with flag from `self.flag = values[rank]`. `if rank == 0: self.flag = False` is innocent.
import torch
import torch.distributed as dist

COUNTS = (2, 2)


class Loop:
    def __init__(self, rank):
        self.rank, self.flag = rank, False

    def prepare(self, values):
        if self.rank == 0:
            self.flag = False
        self.flag = values[self.rank]

    def step(self, x):
        if self.flag:
            t = torch.cat([x, x])
            dist.all_reduce(t)
        y = x.clone()
        dist.all_reduce(y)


def program(rank, inputs):
    loop = Loop(rank)
    loop.prepare([True, False])
    for x in inputs:
        loop.step(x)
    return True
