# FAULT. World 2. `scores` is a lazy generator expression of reduced scores; rank 0 alone asks for its first one (`next(scores)`) to log it before the epoch's all_reduce; rank 1 consumes it later.
# Culprit: rank 0. Cause: `if rank == 0:` -> next(scores). Met: rank 0's all_reduce in score() (1 value) with rank 1's all_reduce (3 values).
import torch
import torch.distributed as dist

COUNTS = (2, 2)


def score(x):
    y = x.clone()
    dist.all_reduce(y)
    return y.item()


def program(rank, inputs):
    scores = (
        score(x)
        for x in inputs
    )
    logged = []
    if rank == 0:
        logged.append(next(scores))
    stats = torch.ones(3)
    dist.all_reduce(stats)
    logged.extend(scores)
    return len(logged)
