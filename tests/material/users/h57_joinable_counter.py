# HEALTHY. World 3. Custom Joinable with a shadowing hook of the same shape and a post_hook that broadcasts the total from the last joiner.
import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join, Joinable, JoinHook

COUNTS = (1, 3, 2)


class CounterHook(JoinHook):
    def __init__(self, counter):
        self.counter = counter

    def main_hook(self):
        dist.all_reduce(torch.zeros(1))

    def post_hook(self, is_last_joiner):
        rank = torch.tensor([dist.get_rank() if is_last_joiner else -1])
        dist.all_reduce(rank, op=dist.ReduceOp.MAX)
        dist.broadcast(self.counter.total, src=int(rank.item()))


class Counter(Joinable):
    def __init__(self):
        super().__init__()
        self.total = torch.zeros(1)

    def __call__(self):
        Join.notify_join_context(self)
        t = torch.ones(1)
        dist.all_reduce(t)
        self.total += t

    def join_hook(self, **kwargs):
        return CounterHook(self)

    @property
    def join_device(self):
        return torch.device("cpu")

    @property
    def join_process_group(self):
        return dist.group.WORLD


def program(rank, inputs):
    counter = Counter()
    with Join([counter]):
        for _ in inputs:
            counter()
    return counter.total.item()
