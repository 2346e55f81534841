# FAULT. World 3. download() retries up to 3 times; every attempt ends in a barrier. Rank 2's first attempt fails, so it makes 2 barriers, the others 1. Then an all_gather of sizes.
# Culprit: rank 2. Cause: `except OSError` -> next attempt (rank 2's mirror times out once). Met: rank 2's second barrier with the others' all_gather.
# A fix: barrier behind the loop / agree whether all have it.
import torch
import torch.distributed as dist

COUNTS = (1, 1, 1)


class Mirror:
    def __init__(self, rank):
        self.failures = 1 if rank == 2 else 0

    def fetch(self):
        if self.failures:
            self.failures -= 1
            raise OSError("connection timed out")
        return b"data"


def download(mirror, attempts=3):
    for attempt in range(attempts):
        data = None
        try:
            data = mirror.fetch()
        except OSError as error:
            print(f"attempt {attempt}: {error}")
        dist.barrier()
        if data is not None:
            return data
    raise RuntimeError("download failed")


def program(rank, inputs):
    data = download(Mirror(rank))
    sizes = [torch.zeros(1) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, torch.tensor([float(len(data))]))
    return [s.item() for s in sizes]
