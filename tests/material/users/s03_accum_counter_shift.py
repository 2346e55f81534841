# FAULT. World 3. Accumulation counter kept over epochs: rank 1 skips a bad batch in epoch 0 before `self.micro += 1`; from then on its phase of no_sync is shifted: it syncs one batch later.
# Culprit: rank 1. Cause: `if not torch.isfinite(x).all():` + continue (x is inf). Epoch 0, 4 batches: others sync at batch 2 and 4; rank 1 (skips its 2nd) syncs at its batch 3 and then in epoch 1 at batch 1, 3; total others 4, rank 1 3 syncs (7 micro: 2,4,6).
# So rank 1 issues one backward fewer (3 against 4). gloo: ranks 0, 2 raise (closed) / NCCL: they finish pending or hang.
import contextlib
import math
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

COUNTS = (4, 4, 4)


class Accumulator:
    def __init__(self, model, every):
        self.model, self.every, self.micro = model, every, 0

    @property
    def context(self):
        boundary = (self.micro + 1) % self.every == 0
        return contextlib.nullcontext() if boundary else self.model.no_sync()

    def advance(self):
        self.micro += 1
        return self.micro % self.every == 0


def program(rank, inputs):
    model = DDP(nn.Linear(1, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    accumulate = Accumulator(model, 2)
    batches = [x * math.inf if (rank, i) == (1, 1) else x for i, x in enumerate(inputs)]
    updates = 0
    for epoch in range(2):
        for x in batches if epoch == 0 else inputs:
            if not torch.isfinite(x).all():
                continue
            with accumulate.context:
                model(x.reshape(1, 1)).sum().backward()
            if accumulate.advance():
                opt.step()
                opt.zero_grad()
                updates += 1
    return updates
