# FAULT. World 3. Manual gradient all-reduce over `if p.grad is not None`: with layer drop on rank 1 in step 1, block "1" has no gradient there (zero_grad sets None): rank 1 reduces 2 fewer tensors.
# Culprit: rank 1. Cause: `if p.grad is not None:` (or `if drop:` in Net.forward). Met: tensors of other parameters (same or other size) in one line `dist.all_reduce(p.grad)`.
# A fix: give zeros where no gradient is, so that every rank reduces every parameter.
import torch
import torch.distributed as dist
from torch import nn

COUNTS = (2, 2, 2)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(1, 1), nn.Linear(1, 1), nn.Linear(1, 3)])

    def forward(self, x, drop):
        for index, block in enumerate(self.blocks):
            if index == 1 and drop:
                continue
            x = block(x)
        return x


def sync_gradients(model):
    for p in model.parameters():
        if p.grad is not None:
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()


def program(rank, inputs):
    torch.manual_seed(0)
    model = Net()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, x in enumerate(inputs):
        opt.zero_grad()
        model(x.reshape(1, 1), drop=rank == 1 and step == 1).sum().backward()
        sync_gradients(model)
        opt.step()
    return round(sum(p.sum().item() for p in model.parameters()), 4)
