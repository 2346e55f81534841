# FAULT. World 2. An EMA of the activations is registered as a buffer on rank 0 only ("only main keeps statistics"), before DDP wraps the model: DDP's construction broadcasts parameters and buffers: 2 + 1 values on rank 0, 2 on rank 1... coalesced (all f32: one broadcast of 4 values: w, b, ema of 2).
# Culprit: rank 0. Cause: `if keep_statistics:` (keep = rank == 0). Met: DDP construction broadcast f32[4] with f32[2]. (verification of parameter shapes passes)
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

COUNTS = (2, 2)


class Net(nn.Module):
    def __init__(self, keep_statistics):
        super().__init__()
        self.fc = nn.Linear(1, 1)
        if keep_statistics:
            self.register_buffer("ema", torch.zeros(2))

    def forward(self, x):
        out = self.fc(x)
        if hasattr(self, "ema"):
            self.ema.mul_(0.9).add_(out.detach().mean(), alpha=0.1)
        return out


def program(rank, inputs):
    model = DDP(Net(keep_statistics=rank == 0))
    for x in inputs:
        model(x.reshape(1, 1)).sum().backward()
    return model.module.fc.weight.grad.item() > 0
