# FAULT. World 2. A lazy generator expression of reduced values, consumed by islice with the rank's own limit (3 and 2); then barrier.
# Culprit: rank 1 (or 0). Cause: `for value in itertools.islice(averages, limit):` limit. Met: rank 0's third all_reduce (2 values) with rank 1's barrier.
import itertools
import torch
import torch.distributed as dist

COUNTS = (4, 4)


def average(x):
    y = torch.cat([x, x])
    dist.all_reduce(y)
    return y[0].item()


def program(rank, inputs):
    limit = 3 - rank
    averages = (
        average(x) for x in inputs
    )
    total = 0.0
    for value in itertools.islice(averages, limit):
        total += value
    dist.barrier()
    return total
