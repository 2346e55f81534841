# FAULT. As p33b on 2 ranks: group g of both, 3 and 2 inputs, then a world barrier. Culprit rank 1 (or: uneven), line `for x in inputs`. Cure: agree on the number of steps.
from __future__ import annotations
import os, sys, time, random, threading, itertools
from datetime import timedelta
import torch
import torch.distributed as dist
from torch import nn

COUNTS = (3, 2)


def program(rank, inputs):
    g = dist.new_group([0, 1])
    for x in inputs:
        loss = x.sum().reshape(1).float()
        dist.all_reduce(loss, group=g)
    dist.barrier()
    return loss.item()
