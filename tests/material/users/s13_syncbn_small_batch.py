# FAULT. World 2. SyncBatchNorm; a batch of one sample is skipped ("BatchNorm needs more than one"): rank 1's second batch has 1 sample. So rank 1 makes one step fewer (2 and 3).
# Culprit: rank 1. Cause: `if batch.size(0) < 2:`. NCCL: rank 0's forward all_gather of statistics; at the end rank 0 waits in forward (rank 1 has finished or is in the barrier). gloo: SyncBatchNorm needs a GPU: refused or raises.
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

COUNTS = (3, 3)


def program(rank, inputs):
    net = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Linear(1, 2), nn.BatchNorm1d(2)))
    model = DDP(net)
    steps = 0
    for index, x in enumerate(inputs):
        batch = x.reshape(1, 1) if (rank, index) == (1, 1) else torch.stack([x, 2 * x])
        if batch.size(0) < 2:
            continue
        model(batch).sum().backward()
        steps += 1
    dist.barrier()
    return steps
