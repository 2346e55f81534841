# FAULT. World 2. Batches come from two generator streams of other shapes by a schedule; rank 1's schedule differs at its third draw ("text" again).
# Culprit: the schedule: third draw "image" on rank 0, "text" on rank 1. Cause: `for name in schedule` values. Met: images' all_reduce (1 value) with texts' (2).
import torch
import torch.distributed as dist

COUNTS = (1, 1)


def images():
    for i in range(3):
        dist.all_reduce(torch.ones(1))
        yield i


def texts():
    for i in range(3):
        dist.all_reduce(torch.ones(2))
        yield -i


def program(rank, inputs):
    streams = {"image": images(), "text": texts()}
    schedule = ["image", "text", "text", "image"] if rank == 1 else ["image", "text", "image", "text"]
    seen = []
    for name in schedule:
        batch = next(streams[name])
        seen.append(batch)
    dist.barrier()
    return seen
