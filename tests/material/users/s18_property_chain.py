# FAULT. World 3. Two-level state: config -> schedule -> trainer. rank 2's config overrides `warmup` in a branch of load(); the schedule reads config.warmup in a property; the trainer logs where `self.schedule.warm` is False.
# Culprit: rank 2. Cause: `if override is not None:` (config.warmup = 1), seen at `if not self.schedule.warm:`.
import torch
import torch.distributed as dist

COUNTS = (3, 3, 3)


class Config:
    def __init__(self):
        self.warmup = 2


class Schedule:
    def __init__(self, config):
        self.config, self.step = config, 0

    @property
    def warm(self):
        return self.step <= self.config.warmup


class Trainer:
    def __init__(self, config):
        self.schedule = Schedule(config)

    def train(self, inputs):
        logged = 0
        for x in inputs:
            y = torch.cat([x, x])
            dist.all_reduce(y)
            self.schedule.step += 1
            if not self.schedule.warm:
                t = torch.ones(1)
                dist.all_reduce(t)
                logged += 1
        return logged


def load(config, override):
    if override is not None:
        config.warmup = override
    return config


def program(rank, inputs):
    return Trainer(load(Config(), {2: 1}.get(rank))).train(inputs)
