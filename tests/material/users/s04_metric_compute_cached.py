# FAULT. World 3. A torchmetrics-like Metric: compute() syncs its state by all_reduce and caches the result; rank 0's progress bar calls metric.compute() in step 1 (postfix), which syncs; at the end all call compute().
# Culprit: rank 0. Cause: `if self.rank == 0 and step % 2 == 1:`. Met: rank 0's all_reduce (2 values, compute) with the others' all_reduce of step's loss (1 value) in step 2... The steps: update() local, then dist.all_reduce(loss).
# COUNTS 3: rank 0 computes in step 1, between the loss reduce of steps 1 and 2.
import torch
import torch.distributed as dist

COUNTS = (3, 3, 3)


class Accuracy:
    def __init__(self):
        self.state, self._computed = torch.zeros(2), None

    def update(self, right, total):
        self._computed = None
        self.state += torch.tensor([right, total])

    def compute(self):
        if self._computed is None:
            synced = self.state.clone()
            dist.all_reduce(synced)
            self._computed = (synced[0] / synced[1]).item()
        return self._computed


class Loop:
    def __init__(self, rank):
        self.rank, self.metric, self.postfix = rank, Accuracy(), {}

    def step(self, index, x):
        self.metric.update(float(index % 2), 1.0)
        loss = x.clone()
        dist.all_reduce(loss)
        if self.rank == 0 and index % 2 == 1:
            self.postfix["acc"] = self.metric.compute()
        return loss.item()

    def run(self, inputs):
        losses = [self.step(index, x) for index, x in enumerate(inputs)]
        return round(self.metric.compute(), 3), len(losses)


def program(rank, inputs):
    return Loop(rank).run(inputs)
