# FAULT. World 2. `loss` is first scaled by a conditional expression for a log line, then overwritten by the rank's own value from a table; the test of that value decides on an all_reduce.
# Culprit: rank 1. Cause: `if loss > 3:` (5 on rank 1, 1 on rank 0), from the table. The conditional expression is innocent: it is overwritten.
import torch
import torch.distributed as dist

COUNTS = (2, 2)
TABLE = {0: 1.0, 1: 5.0}


def program(rank, inputs):
    log = []
    for x in inputs:
        loss = x.item() * (2.0 if rank == 0 else 1.0)
        log.append(loss)
        loss = TABLE[rank]
        if loss > 3:
            t = torch.tensor([loss, 1.0])
            dist.all_reduce(t)
        y = x.clone()
        dist.all_reduce(y)
    return len(log)
