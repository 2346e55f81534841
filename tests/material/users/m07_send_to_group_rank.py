# FAULT. A pipeline in the group [2, 3] of 4 ranks (group `tail`), with `dist.send(x, dst=1, group=tail)`: dst is a GLOBAL rank, 1 is not in the group, so rank 2 raises ValueError; rank 3 uses `group_src=0`, which is right, and waits for rank 2. Ranks 0 and 1 wait in the world barrier. Culprit rank 2. Cure: group_dst=1 or dst=3.
from __future__ import annotations
import os, sys, time, random, threading, itertools
from datetime import timedelta
import torch
import torch.distributed as dist
from torch import nn

COUNTS = (1, 1, 1, 1)


def program(rank, inputs):
    tail = dist.new_group([2, 3])
    x = torch.tensor([float(rank)])
    if rank == 2:
        dist.send(x, dst=1, group=tail)
    elif rank == 3:
        dist.recv(x, group_src=0, group=tail)
    dist.barrier()
    return x.item()
