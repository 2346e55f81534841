"""Right answers to the exercises, one of each, by a reader who had not seen the solutions; and where the others go.

ANSWERS has (exercise, name, kind, answer), filled by first.py to fifth.py. Kinds: wrong, right, and cheat,
which gets by without solving anything.
"""

import sys, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.distributed.algorithms.join import Join, Joinable, JoinHook
import joinlab

def gather_list(tensors):
    mine = torch.cat(tensors)
    out = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(out, mine)
    return [p for o in out for p in o.chunk(len(tensors))]

def accumulate(model, inputs):
    with model.no_sync():
        for x in inputs[:-1]:
            model(x).backward()
    model(inputs[-1]).backward()

def safe_loop(rank, inputs):
    model = DDP(torch.nn.Linear(1, 1))
    with model.join():
        for input in inputs:
            model(input).backward()
    dist.barrier()

def gradient(own, world_size, divide_by_initial_world_size):
    return sum(own) / (world_size if divide_by_initial_world_size else len(own))

def last_joiner(counts):
    return max(range(len(counts)), key=lambda r: (counts[r], r))

class Base(Joinable):
    def __init__(self):
        super().__init__()
        self.largest = torch.tensor([-torch.inf])
    @property
    def join_device(self): return self.largest.device
    @property
    def join_process_group(self): return dist.group.WORLD
class Largest(Base):
    def __call__(self, number):
        Join.notify_join_context(self)
        number = number.clone()
        dist.all_reduce(number, op=dist.ReduceOp.MAX)
        self.largest = torch.maximum(self.largest, number)
    def join_hook(self, **kwargs): return LargestHook(self)
class LargestHook(JoinHook):
    def __init__(self, owner): self.owner = owner
    def main_hook(self):
        dist.all_reduce(torch.tensor([-torch.inf]), op=dist.ReduceOp.MAX)
    def post_hook(self, is_last_joiner):
        dist.all_reduce(self.owner.largest, op=dist.ReduceOp.MAX)

def in_order(ready, reduce):
    have, nxt = set(), 0
    for b in ready:
        have.add(b)
        while nxt in have:
            reduce(nxt); nxt += 1

def shadows(counts):
    return [3 * (max(counts) - c) for c in counts]

def report(rank, inputs):
    model = DDP(torch.nn.Linear(1, 1))
    for i, input in enumerate(inputs):
        model(input).backward()
        loss = torch.ones(1) * (rank + 1)
        if i == 1:
            dist.reduce(loss, dst=0)
            if rank == 0:
                print("mean loss", loss.item() / dist.get_world_size())

def stop_early(rank, inputs):
    model = DDP(torch.nn.Linear(1, 1))
    steps = 0
    for input in inputs:
        model(input).backward()
        steps += 1
        flag = torch.tensor([float(steps > rank)])
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        if flag.item():
            break
    return steps

def skip_bad(rank, inputs):
    model = DDP(torch.nn.Linear(1, 1))
    for i, input in enumerate(inputs):
        try:
            if rank == 1 and i == 1:
                raise ValueError("a bad input")
            out = model(input)
        except ValueError:
            out = model(input) * 0
        out.backward()
    return [p.grad.item() for p in model.parameters()]

def save_all(rank, inputs):
    model = DDP(torch.nn.Linear(1, 1))
    for input in inputs:
        model(input).backward()
    parts = [torch.zeros(1) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, torch.ones(1) * rank)
    if rank == 0:
        return [part.item() for part in parts]

def every_second(rank, inputs):
    model = DDP(torch.nn.Linear(1, 1))
    for i, input in enumerate(inputs):
        if i % 2 == 1:
            model(input).backward()
        else:
            with model.no_sync():
                model(input).backward()

class Branches(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    def forward(self, x):
        return self.a(x) + self.b(x) if dist.get_rank() == 0 else self.a(x)
def unused(rank, inputs):
    model = DDP(Branches(), find_unused_parameters=True)
    for input in inputs:
        model(input).backward()

def hand_out(module):
    for p in module.parameters():
        dist.broadcast(p.data, src=0)

def buckets_of(module, numbers):
    out, cur = [], []
    for p in reversed(list(module.parameters())):
        cur.append(p)
        if sum(q.numel() for q in cur) >= numbers:
            out.append(cur); cur = []
    if cur: out.append(cur)
    return out

class Begun(torch.nn.Module):
    def __init__(self, module, numbers):
        super().__init__()
        hand_out(module)
        self.module, self.buckets = module, buckets_of(module, numbers)
        self.ready, self.works = set(), []
        for parameter in module.parameters():
            parameter.register_post_accumulate_grad_hook(self.computed)
    def forward(self, x): return self.module(x)

class SmallDDP(Begun):
    def computed(self, parameter):
        self.ready.add(parameter)
        while len(self.works) < len(self.buckets) and all(p in self.ready for p in self.buckets[len(self.works)]):
            flat = torch.cat([p.grad.flatten() for p in self.buckets[len(self.works)]])
            self.works.append((flat, dist.all_reduce(flat, async_op=True)))
        if len(self.works) == len(self.buckets):
            self.finish()
    def finish(self):
        for bucket, (flat, work) in zip(self.buckets, self.works):
            work.wait()
            flat /= dist.get_world_size()
            at = 0
            for p in bucket:
                p.grad.copy_(flat[at:at + p.numel()].view_as(p)); at += p.numel()
        self.ready, self.works = set(), []

def ask(number, op=dist.ReduceOp.SUM):
    answer = torch.tensor([number])
    dist.all_reduce(answer, op=op)
    return answer.item()

def small_join(model, inputs, train):
    shadowed = False
    for input in inputs:
        ask(1.0); ask(1.0)
        train(input)
    n = sum(p.numel() for p in model.parameters())
    while ask(0.0):
        shadowed = True
        ask(0.0)
        dist.all_reduce(torch.zeros(n))
    src = ask(-1 if shadowed else dist.get_rank(), dist.ReduceOp.MAX)
    for p in model.parameters():
        dist.broadcast(p.data, src=int(src))

ANSWERS = []


def W(exercise, name, kind="wrong"):
    def keep(answer):
        ANSWERS.append((exercise, name, kind, answer))
        return answer

    return keep


def R(exercise, name):
    return W(exercise, name, "right")


def ws():
    return dist.get_world_size()
