"""Programs for tests of emulated ranks as processes, in a file of its own: each rank imports it, and so
nothing but what the programs need."""

from __future__ import annotations

import ctypes
import itertools
import os
import random
import signal
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def deep(*sizes: int) -> torch.nn.Sequential:
    return torch.nn.Sequential(*(torch.nn.Linear(*pair) for pair in itertools.pairwise(sizes)))


def two_buckets(rank: int, inputs: Sequence[torch.Tensor]) -> list[float]:
    model = DistributedDataParallel(deep(1, 500, 500, 1), bucket_cap_mb=0.5)
    for x in inputs:
        model(x.view(1, 1)).sum().backward()
    return [float(weight.grad.sum()) for weight in model.parameters() if weight.grad is not None]


def hooked(rank: int, inputs: Sequence[torch.Tensor]) -> None:
    def halve(state: Any, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        assert work is not None
        halved: torch.futures.Future[torch.Tensor]
        halved = work.get_future().then(lambda future: future.value()[0] / 2)
        return halved

    model = DistributedDataParallel(deep(1, 20, 1), bucket_cap_mb=1e-4)
    model.register_comm_hook(None, halve)
    for x in inputs:
        model(x.view(1, 1)).sum().backward()


def static(rank: int, inputs: Sequence[torch.Tensor]) -> None:
    model = DistributedDataParallel(deep(1, 20, 1), static_graph=True)
    for x in inputs:
        model(x.view(1, 1)).sum().backward()


def grouped(rank: int, inputs: Sequence[torch.Tensor]) -> list[float]:
    seen = torch.tensor([float(rank), 1.0])
    group = dist.new_group([0, 1])
    dist.all_reduce(seen, group=group)
    return seen.tolist()


def paired(rank: int, inputs: Sequence[torch.Tensor]) -> float:
    token = torch.tensor([float(rank + 1)])
    if rank:
        dist.recv(token, 0)
    else:
        dist.send(token, 1)
    both = [torch.zeros(1), torch.zeros(1)]
    dist.all_gather(both, token)
    ops = [
        dist.P2POp(dist.isend, token, 1 - rank),
        dist.P2POp(dist.irecv, both[0], 1 - rank),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return float(both[0])


def stored(rank: int, inputs: Sequence[torch.Tensor]) -> str:
    store = dist.distributed_c10d._get_default_store()
    if rank:
        time.sleep(0.25)
        store.set("key", "value")
    found = store.get("key").decode()
    print(f"rank {rank} has {found} after 0.25 s: {time.monotonic() >= 0.25}")
    return found


def watched_barrier(rank: int, inputs: Sequence[torch.Tensor]) -> None:
    if rank == 0 or len(inputs) > 5:
        dist.monitored_barrier(timeout=timedelta(seconds=2))


def raising(rank: int, inputs: Sequence[torch.Tensor]) -> None:
    for x in inputs:
        dist.all_reduce(x.clone())
        if rank:
            raise ValueError(f"bad input {rank}")


def seeded(rank: int, inputs: Sequence[torch.Tensor]) -> tuple[float, float, float]:
    print(f"rank {rank} draws")
    return random.random(), float(np.random.rand()), float(torch.rand(1))


def crash(rank: int, inputs: Sequence[torch.Tensor]) -> None:
    dist.all_reduce(torch.ones(1))
    if rank:
        ctypes.string_at(0)
    last = torch.ones(1)
    dist.all_reduce(last)
    last.item()


def intrusive(rank: int, inputs: Sequence[torch.Tensor]) -> float:
    np.random.seed(5)
    os.chdir("/")
    os.environ["JOINLAB_TEST"] = "set"
    torch.set_default_dtype(torch.float64)
    dist.all_reduce = lambda *_: None
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return float(np.random.rand())


def endless(rank: int, inputs: Sequence[torch.Tensor]) -> None:
    dist.all_reduce(torch.ones(1))
    if rank:
        sum(range(10**12))  # one call of C, which no other thread can end
    dist.all_reduce(torch.ones(1))
