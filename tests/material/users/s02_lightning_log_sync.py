# FAULT. World 3. Lightning-like: log(name, value, sync_dist) collects; at the validation's end the trainer reduces every logged metric in sorted order. Rank 1's shard has no labelled batch, so `if labels is not None` never logs "acc": it makes one all_reduce fewer ("loss" only).
# Culprit: rank 1. Cause: `if labels is not None:` in validation_step (labels = None). Met: rank 1's reduce of "loss" with acc of others (same shape!), then rank 1's all_gather (or next) with "loss" of the others.
# The loop `for name in sorted(self.logged)` is where calls differ. Then on_validation_end: dist.barrier().
import torch
import torch.distributed as dist
from torch import nn

COUNTS = (2, 2, 2)


class Module(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(1, 1)
        self.trainer = None

    def log(self, name, value, sync_dist=False):
        self.trainer.record(name, value, sync_dist)

    def validation_step(self, batch, labels):
        out = self.net(batch.reshape(1, 1))
        self.log("loss", out.pow(2).mean().detach(), sync_dist=True)
        if labels is not None:
            self.log("acc", (out.sign() == labels).float().mean(), sync_dist=True)


class Trainer:
    def __init__(self, module):
        self.module = module
        module.trainer = self
        self.logged = {}

    def record(self, name, value, sync_dist):
        self.logged.setdefault(name, (sync_dist, []))[1].append(value)

    def reduce_logged(self):
        results = {}
        for name in sorted(self.logged):
            sync, values = self.logged[name]
            mean = torch.stack(values).mean()
            if sync:
                dist.all_reduce(mean)
                mean /= dist.get_world_size()
            results[name] = mean.item()
        return results

    def validate(self, loader):
        for batch, labels in loader:
            self.module.validation_step(batch, labels)
        results = self.reduce_logged()
        dist.barrier()
        return results


def program(rank, inputs):
    torch.manual_seed(0)
    loader = [(x, None if rank == 1 else torch.ones(1)) for x in inputs]
    return len(Trainer(Module()).validate(loader))
