# FAULT, silent. `if not math.isfinite(loss.item()): continue` stands BEHIND backward and skips only opt.step, on rank 1 in step 1 (its logged loss is inf). All calls match, no hang; rank 1's replica lacks one update and differs.
# Odd rank 1 of 3. Line: `if not math.isfinite(...)`. Cure: all_reduce the flag so that all skip.
from __future__ import annotations
import contextlib, functools, itertools, math
from dataclasses import dataclass, field
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
COUNTS = (3, 3, 3)


def program(rank, inputs):
    model = DDP(nn.Linear(1, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    skipped = 0
    for step, x in enumerate(inputs):
        opt.zero_grad()
        loss = model(x.reshape(1, 1)).pow(2).mean()
        loss.backward()
        logged = loss.item() if (rank, step) != (1, 1) else math.inf
        if not math.isfinite(logged):
            skipped += 1
            continue
        opt.step()
    return skipped
