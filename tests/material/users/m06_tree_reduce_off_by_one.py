# FAULT. A tree reduction on 8 ranks: `partner < world - 1` should be `partner < world`: rank 6 does not receive from rank 7. Rank 7 sends to 6 and is never received (gloo: hangs in the send). The others go on without rank 7's value, and wait in the last broadcast for rank 7 (on gloo rank 0's root send waits). Line: `if partner < world - 1`. Culprit rank 6. Cure: partner < world.
from __future__ import annotations
import os, sys, time, random, threading, itertools
from datetime import timedelta
import torch
import torch.distributed as dist
from torch import nn

COUNTS = (1, 1, 1, 1, 1, 1, 1, 1)


def program(rank, inputs):
    world = dist.get_world_size()
    t, other = torch.tensor([float(rank)]), torch.zeros(1)
    step = 1
    while step < world:
        partner = rank ^ step
        if rank & step:
            dist.send(t, dst=partner)
            break
        if partner < world - 1:
            dist.recv(other, src=partner)
            t += other
        step *= 2
    dist.broadcast(t, src=0)
    return t.item()
