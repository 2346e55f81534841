# FAULT. World 2. `results and dist.gather_object(...)`: short-circuit: rank 1 has no results, so rank 0 (dst) waits in gather_object.
# Culprit: rank 1 (empty results). Cause: `results and dist.gather_object(...)`.
import torch
import torch.distributed as dist

COUNTS = (3, 3)


def validate(rank, inputs):
    results = [float(i) for i, _ in enumerate(inputs) if i + 3 * rank < 3]
    gathered = [None, None] if rank == 0 else None
    results and dist.gather_object(results, gathered, dst=0)
    return gathered


def program(rank, inputs):
    gathered = validate(rank, inputs)
    flag = torch.ones(1)
    dist.all_reduce(flag)
    return gathered, flag.item()
