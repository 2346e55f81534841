# FAULT. World 2. Two workers in a dict; rank 1 disables worker "b" in a branch, and the loop asks each worker's `active`; worker "a" is toggled on rank 0 twice (no effect).
# Culprit: rank 1. Cause: `if rank == 1:` -> workers["b"].active = False, seen at `if worker.active:`. The toggling branch `if rank == 0:` is innocent.
import torch
import torch.distributed as dist

COUNTS = (2, 2)


class Worker:
    def __init__(self, size):
        self.size, self.active = size, True

    def toggle(self):
        self.active = not self.active

    def run(self):
        t = torch.ones(self.size)
        dist.all_reduce(t)


def program(rank, inputs):
    workers = {"a": Worker(2), "b": Worker(3)}
    if rank == 1:
        workers["b"].active = False
    if rank == 0:
        workers["a"].toggle()
        workers["a"].toggle()
    for x in inputs:
        for worker in workers.values():
            if worker.active:
                worker.run()
        y = x.clone()
        dist.all_reduce(y)
    return len(workers)
