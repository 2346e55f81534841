# HEALTHY. World 4. Two teams of two ranks train own DDP models in own groups for different numbers of steps; a world barrier at the end.
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

COUNTS = (2, 2, 3, 3)


def program(rank, inputs):
    teams = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    group = teams[rank // 2]
    model = DDP(nn.Linear(1, 1 + rank // 2), process_group=group)
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    steps = 0
    for x in inputs:
        opt.zero_grad()
        model(x.reshape(1, 1)).sum().backward()
        opt.step()
        steps += 1
    dist.barrier()
    return steps
