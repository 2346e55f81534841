# Programs in which a function, a reply or a rank's role decides what is sent. table.toml says what each does.
import math

import torch
import torch.distributed as dist
from torch import nn


class EarlyExit(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.threshold = nn.Linear(2, 2), nn.Linear(2, 2), 2.0

    def forward(self, x):
        hidden = self.first(x)
        if x.mean() > self.threshold:
            return hidden
        return self.second(hidden)


def sync(grad):
    grad = grad.clone()
    dist.all_reduce(grad)
    return grad


def hooks_of_layers_that_ran(rank, inputs):
    net = EarlyExit()
    for p in net.parameters():
        p.register_hook(sync)
    batch = torch.full((1, 2), 3.0 if rank == 1 else 1.0)
    net(batch).sum().backward()
    dist.barrier()


class Frozen(nn.Module):
    def __init__(self, frozen):
        super().__init__()
        self.stem, self.head, self.frozen = nn.Linear(1, 1), nn.Linear(1, 1), frozen

    def forward(self, x):
        x = self.stem(x)
        x.register_hook(sync)
        if self.frozen:
            x = x.detach()
        return self.head(x)


def detaches_what_has_a_hook(rank, inputs):
    block = Frozen(frozen=rank == 2)
    block(torch.ones(1, 1)).sum().backward()
    dist.barrier()


def skips_and_saves(rank, inputs):
    for step, x in enumerate(inputs):
        empty = rank == 1 and step == 1
        if empty:
            continue
        t = x.clone()
        dist.all_reduce(t)
        save = rank == 2 and step == 2
        if save:
            dist.barrier()
    return rank


def first_stage(x, grad):
    dist.send(x, 1)
    dist.recv(grad, 1)


def second_stage(x, grad):
    dist.recv(x, 0)
    dist.recv(grad, 2)
    dist.send(grad.item() * x, 2)
    dist.send(grad, 0)


def last_stage(x, grad):
    dist.recv(x, 1)
    dist.send(grad * x.item(), 1)


def stage_waits_for_its_gradient(rank, inputs):
    x, grad = torch.zeros(1), torch.zeros(1)
    if rank == 0:
        return first_stage(x, grad)
    if rank == 1:
        return second_stage(x, grad)
    return last_stage(x, grad)


def actor():
    current, reply = math.nan, None
    while True:
        value = yield reply
        if value != current:
            current, reply = value, 1.0
        else:
            reply = None


def acknowledges_changes_only(rank, inputs):
    settings = [0.1, 0.5, 0.5, 0.2]
    if rank == 0:
        for value in settings:
            dist.send(torch.tensor([value]), 1)
            dist.recv(torch.zeros(1), 1)
        return
    handler = actor()
    next(handler)
    for _ in settings:
        setting = torch.zeros(1)
        dist.recv(setting, 0)
        reply = handler.send(setting.item())
        if reply is not None:
            dist.send(torch.tensor([reply]), 0)
