# FAULT. Like a length filter: `for x in filter(short, data)`; data are 1, 2, 3, 4 on all ranks, but rank 2's second sample is 1000 and is filtered out. No barrier behind. Rank 2 makes one step fewer.
# Odd rank 2 of 3. Line `for x in filter(...)`; the value that decides is 1000 on rank 2 in `return value < 100`.
from __future__ import annotations
import contextlib, functools, itertools, math
from dataclasses import dataclass, field
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
COUNTS = (4, 4, 4)


def program(rank, inputs):
    model = DDP(nn.Linear(1, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.0001)
    data = [float(i + 1) for i, _ in enumerate(inputs)]
    if rank == 2:
        data[1] = 1000.0

    def short(value):
        return value < 100

    seen = []
    for x in filter(short, data):
        opt.zero_grad()
        loss = model(torch.tensor([[x]])).pow(2).mean()
        loss.backward()
        opt.step()
        seen.append(loss.item())
    return len(seen)
