# FAULT. Rank 0 raises KeyError in its own code at `table["b"]` before it sends; rank 1 waits in recv, rank 2 in recv from 1. Culprit rank 0. Cure: the key.
from __future__ import annotations
import os, sys, time, random, threading, itertools
from datetime import timedelta
import torch
import torch.distributed as dist
from torch import nn

COUNTS = (1, 1, 1)


def program(rank, inputs):
    table = {"a": 1.0}
    x = torch.zeros(1)
    if rank == 0:
        x += table["b"]
    else:
        dist.recv(x, src=rank - 1)
    if rank < 2:
        dist.send(x, dst=rank + 1)
    return x.item()
