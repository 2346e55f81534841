# FAULT. World 2. A custom Joinable counts samples by an all-reduce of 2 values (samples, tokens); its join hook shadows it with 1 value. Rank 0 has 2 inputs, rank 1 has 4: rank 0's shadows have another size.
# Culprit: rank 0's hook (line `dist.all_reduce(torch.zeros(1))` in main_hook). Cause: the size 1 against 2. Met: CounterHook.main_hook's all-reduce with Counter.__call__'s.
# A fix: zeros(2) in main_hook.
import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join, Joinable, JoinHook

COUNTS = (2, 4)


class CounterHook(JoinHook):
    def __init__(self, counter):
        self.counter = counter

    def main_hook(self):
        dist.all_reduce(torch.zeros(1))


class Counter(Joinable):
    def __init__(self):
        super().__init__()
        self.total = torch.zeros(2)

    def __call__(self, tokens):
        Join.notify_join_context(self)
        t = torch.tensor([1.0, float(tokens)])
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
        for x in inputs:
            counter(tokens=3)
    return counter.total.tolist()
