# FAULT. Gradient accumulation with no_sync; `State.sync_now` = every 2nd step or the last one. Inputs (5, 3, 5): rank 1 syncs in steps 2, 3; the others in 2, 4, 5. No join.
# Odd rank 1 has fewer inputs; parting in `sync_now`/the loop. Rank 1's step 3 meets the others' step 4; then the others wait in step 5. Cure: equal inputs or join().
from __future__ import annotations
import contextlib, functools, itertools, math
from dataclasses import dataclass, field
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
COUNTS = (5, 3, 5)


@dataclass
class State:
    total: int
    step: int = 0
    every: int = 2

    @property
    def sync_now(self):
        return self.step % self.every == 0 or self.step == self.total


def program(rank, inputs):
    model = DDP(nn.Linear(1, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    state = State(len(inputs))
    for x in inputs:
        state.step += 1
        with contextlib.nullcontext() if state.sync_now else model.no_sync():
            model(x.reshape(1, 1)).pow(2).mean().backward()
        if state.sync_now:
            opt.step()
            opt.zero_grad()
    return state.step
