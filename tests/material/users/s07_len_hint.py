# FAULT. World 2. A dataset's __len__ sums the shard sizes by an all_reduce; rank 0 makes a list of it (`list(dataset)` asks __len__ as a hint), rank 1 iterates directly.
# Culprit: rank 0. Cause: `if rank == 0:` -> `items = list(dataset)`. Met: rank 0's all_reduce i64[1] in __len__ with rank 1's all_reduce f32[1] of its first item. Both "all_reduce"s, other dtype: gloo aborts or garbage; NCCL completes.
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
    if rank == 0:
        items = list(dataset)
    else:
        items = dataset
    for x in items:
        y = torch.stack([x, x])
        dist.all_reduce(y)
    return True
