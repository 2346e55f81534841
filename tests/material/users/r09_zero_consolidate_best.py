# FAULT. World 2. ZeroRedundancyOptimizer: consolidate_state_dict (collective) runs where the local validation loss improves: in epoch 1 only on rank 0.
# Culprit: rank 0. Cause: `if val < self.best:` (rank 0: 0.5 < 0.9; rank 1: 0.9 not < 0.9). Waits: rank 0 in consolidate_state_dict's broadcasts; rank 1 goes to the next epoch's backward.
# A fix: decide on a reduced val (all ranks).
import torch
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP

COUNTS = (2, 2)
VAL = {0: [0.9, 0.5, 0.4], 1: [0.9, 0.9, 0.3]}


class Trainer:
    def __init__(self, rank):
        self.rank, self.best, self.saved = rank, float("inf"), []
        self.model = DDP(nn.Linear(1, 1))
        self.opt = ZeroRedundancyOptimizer(self.model.parameters(), torch.optim.SGD, lr=0.01)

    def epoch(self, number, data):
        for x in data:
            self.opt.zero_grad()
            self.model(x.reshape(1, 1)).sum().backward()
            self.opt.step()
        val = VAL[self.rank][number]
        if val < self.best:
            self.best = val
            self.opt.consolidate_state_dict(to=0)
            self.saved.append(number)


def program(rank, inputs):
    trainer = Trainer(rank)
    for number in range(3):
        trainer.epoch(number, inputs)
    return trainer.saved
