# HEALTHY. World 2. A dataset whose __len__ is an all_reduce, called by all ranks once; rank 0 loops over its items, rank 1 over the dataset itself (which calls no __len__).
import torch
import torch.distributed as dist

COUNTS = (2, 2)


class Shards:
    def __init__(self, items):
        self.items = items

    def __len__(self):
        total = torch.tensor([len(self.items)])
        dist.all_reduce(total)
        return int(total)

    def __iter__(self):
        return iter(self.items)


def program(rank, inputs):
    dataset = Shards(list(inputs))
    total = len(dataset)
    for x in dataset.items if rank == 0 else dataset:
        y = torch.stack([x, x])
        dist.all_reduce(y)
        total += 1
    return total
