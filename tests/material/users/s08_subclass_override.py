# FAULT. World 3. Rank 0 uses a subclass of the saver whose save() does not call super().save(), which has the barrier; the others wait in it.
# Culprit: rank 0. Cause: class choice `saver = MainSaver() if rank == 0 else Saver()`, seen at `saver.save(epoch)` (other functions are called). Met: the others' barrier (epoch 0) with rank 0's all_reduce (2 values) of epoch 1.
import torch
import torch.distributed as dist

COUNTS = (2, 2, 2)


class Saver:
    def __init__(self):
        self.saved = []

    def save(self, epoch):
        dist.barrier()


class MainSaver(Saver):
    def save(self, epoch):
        self.saved.append(epoch)


def train_epoch(inputs):
    total = torch.zeros(2)
    for x in inputs:
        total += x
    dist.all_reduce(total)
    return total[0].item()


def program(rank, inputs):
    saver = MainSaver() if rank == 0 else Saver()
    losses = []
    for epoch in range(2):
        losses.append(train_epoch(inputs))
        saver.save(epoch)
    return losses
