# FAULT. World 2. `if self.queue:` on a list that is empty on rank 1: it skips the step with the all_reduce (2 values).
# Culprit: rank 1. Cause: `if queue:` (len 0). Met: rank 0's all_reduce (2 values) with rank 1's all_reduce (1 value). A flag must not fail on a list.
import torch
import torch.distributed as dist

COUNTS = (2, 2)


def program(rank, inputs):
    done = 0
    for index, x in enumerate(inputs):
        queue = [] if (rank, index) == (1, 1) else [x]
        if queue:
            pair = torch.cat([queue.pop(), x])
            dist.all_reduce(pair)
            done += 1
        y = x.clone()
        dist.all_reduce(y)
    return done
