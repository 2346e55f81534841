# FAULT (a race on gloo). Rank 0 isends its result and returns without waiting for it. Rank 1 receives only after 1 s. If rank 0's process ends before, rank 1's recv may fail; the work is never waited for. Line: `dist.isend(result, dst=1)`. Cure: .wait(). If the backend finishes sends at its end: all finish.
from __future__ import annotations
import os, sys, time, random, threading, itertools
from datetime import timedelta
import torch
import torch.distributed as dist
from torch import nn

COUNTS = (1, 1)


def program(rank, inputs):
    if rank == 0:
        result = torch.ones(4)
        dist.isend(result, dst=1)
        return None
    time.sleep(1)
    buffer = torch.zeros(4)
    dist.recv(buffer, src=0)
    return buffer.sum().item()
