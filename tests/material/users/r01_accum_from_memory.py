# FAULT. World 2. Each rank picks the accumulation from its GPU memory: rank 0 has 4, rank 1 has 2. With 8 inputs rank 0 syncs 2 times, rank 1 4 times.
# Culprit: accum differs (rank 0: 4, rank 1: 2), set in `accum = 16 // memory_gb`. Seen at `if (step + 1) % accum != 0`. Met: the backward's all-reduce of rank 1's step 1 with rank 0's step 3; then rank 1 has 2 more.
# A fix must agree on accum, or reduce the flag; inputs kept.
import contextlib
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

COUNTS = (8, 8)
MEMORY = {0: 4, 1: 8}


def program(rank, inputs):
    memory_gb = MEMORY[rank]
    accum = 16 // memory_gb
    model = DDP(nn.Linear(1, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    updates = 0
    for step, x in enumerate(inputs):
        last = (step + 1) % accum == 0
        with contextlib.ExitStack() as stack:
            if not last:
                stack.enter_context(model.no_sync())
            (model(x.reshape(1, 1)).sum() / accum).backward()
        if last:
            opt.step()
            opt.zero_grad()
            updates += 1
    return updates
