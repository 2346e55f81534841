# FAULT. World 2. Two coroutines reduce statistics of other sizes concurrently; each awaits its "download" first, and rank 1's downloads finish in the other order.
# Culprit: order; either rank. Cause: `await asyncio.sleep(delay)` in other order: rank 0 reduces "mean" (2 values) first, rank 1 "hist" (4 values) first; one line `dist.all_reduce(tensor)`.
# A fix: a fixed order (await one after the other / gather the downloads, then reduce in order).
import asyncio
import torch
import torch.distributed as dist

COUNTS = (1, 1)


async def reduce_statistic(name, tensor, turns, results):
    for _ in range(turns):
        await asyncio.sleep(0)
    dist.all_reduce(tensor)
    results[name] = tensor.tolist()


async def main(rank):
    results = {}
    mean, hist = torch.ones(2), torch.arange(4.0)
    fast, slow = (1, 5) if rank == 0 else (5, 1)
    await asyncio.gather(
        reduce_statistic("mean", mean, fast, results),
        reduce_statistic("hist", hist, slow, results),
    )
    return results


def program(rank, inputs):
    results = asyncio.run(main(rank))
    dist.barrier()
    return sorted(results.items())
