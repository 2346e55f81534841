# FAULT. `for name in sorted(metrics): dist.all_reduce(metrics[name])`; rank 1 lacks "auc" (it saw one class only). The keys are acc, auc, loss on ranks 0 and 2; acc, loss on rank 1.
# Rank 1's "loss" meets the others' "auc" (same shape: silently mixed), then ranks 0, 2 wait in "loss". Odd rank 1. Line: `if len(set(labels)) > 1:` / the loop. Cure: the same keys on all ranks.
from __future__ import annotations
import contextlib, functools, itertools, math
from dataclasses import dataclass, field
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
COUNTS = (2, 2, 2)


def compute(labels, rank):
    metrics = {"loss": torch.tensor([1.0 + rank]), "acc": torch.tensor([0.5])}
    if len(set(labels)) > 1:
        metrics["auc"] = torch.tensor([0.9])
    return metrics


def program(rank, inputs):
    model = DDP(nn.Linear(1, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    for x in inputs:
        opt.zero_grad()
        model(x.reshape(1, 1)).pow(2).mean().backward()
        opt.step()
    labels = [0, 0] if rank == 1 else [0, 1]
    metrics = compute(labels, rank)
    for name in sorted(metrics):
        dist.all_reduce(metrics[name])
    return {k: v.item() for k, v in metrics.items()}
