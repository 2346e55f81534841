# FAULT. Rank 0 sends header, data and checksum; rank 1 receives header and data only (old version of the reader), then both meet in a barrier. gloo: rank 0 hangs in its third send; NCCL: the small third send completes or is left behind, barrier passes. Line: `dist.send(checksum, dst=1)`/reader. Culprit: rank 1 lacks one recv. Cure: receive the checksum.
from __future__ import annotations
import os, sys, time, random, threading, itertools
from datetime import timedelta
import torch
import torch.distributed as dist
from torch import nn

COUNTS = (1, 1)


def write(data):
    dist.send(torch.tensor([float(len(data))]), dst=1)
    dist.send(data, dst=1)
    dist.send(data.sum().reshape(1), dst=1)


def read():
    header = torch.zeros(1)
    dist.recv(header, src=0)
    data = torch.zeros(int(header))
    dist.recv(data, src=0)
    return data


def program(rank, inputs):
    data = torch.arange(3.0)
    if rank == 0:
        write(data)
    else:
        data = read()
    dist.barrier()
    return data.tolist()
