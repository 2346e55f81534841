# FAULT. A 2x2 DeviceMesh ("dp", "tp"): gradients are to be reduced over "dp", but rank 3 takes "tp" (its config file names the axis). dp groups: {0,2}, {1,3}; tp: {0,1}, {2,3}. Rank 1 waits in dp for rank 3; rank 3 waits in tp for rank 2, which is in the barrier after its reduce with 0. Culprit rank 3, `axis = "tp" if rank == 3`. Cure: one axis for all.
from __future__ import annotations
import os, sys, time, random, threading, itertools
from datetime import timedelta
import torch
import torch.distributed as dist
from torch import nn

COUNTS = (1, 1, 1, 1)


def program(rank, inputs):
    from torch.distributed.device_mesh import init_device_mesh

    kind = "cuda" if dist.get_backend() == "nccl" else "cpu"
    mesh = init_device_mesh(kind, (2, 2), mesh_dim_names=("dp", "tp"))
    axis = "tp" if rank == 3 else "dp"
    grad = torch.tensor([float(rank)])
    dist.all_reduce(grad, group=mesh.get_group(axis))
    dist.barrier()
    return grad.item()
