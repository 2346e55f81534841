"""Faulty training programs, a01 to a30: loops, branches, models. table.toml says what is so of each."""
import contextlib, copy, itertools, os, random, tempfile, time
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset, DistributedSampler, Dataset

# 1 uneven
def a01(rank, inputs):
    net = DDP(nn.Linear(1, 2)); opt = torch.optim.SGD(net.parameters(), lr=0.1); total = 0.0
    for x in inputs:
        opt.zero_grad()
        loss = net(x).pow(2).mean()
        loss.backward()
        opt.step()
        total += loss.item()
    return total

def a02(rank, inputs):
    net = DDP(nn.Linear(1, 2)); opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for x in inputs:
        opt.zero_grad(); net(x).pow(2).mean().backward(); opt.step()

def a03(rank, inputs):
    net = DDP(nn.Linear(1, 2))
    for x in inputs:
        net(x).sum().backward()

def a04(rank, inputs):
    net = DDP(nn.Linear(1, 1))
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    with net.join():
        for x in inputs:
            opt.zero_grad()
            loss = (net(x) - 3).abs().mean()
            loss.backward()
            opt.step()
            avg = loss.detach().clone()
            dist.all_reduce(avg)
            avg /= dist.get_world_size()

def a05(rank, inputs):
    net = DDP(nn.Linear(1, 1))
    with net.join(throw_on_early_termination=True):
        for x in inputs:
            net(x).sum().backward()

def a06(rank, inputs):
    net = DDP(nn.Linear(1, 1))
    with net.join(enable=(rank == 0)):
        for x in inputs:
            net(x).sum().backward()

def a07(rank, inputs):
    net = DDP(nn.Linear(1, 1))
    for i, x in enumerate(inputs):
        if rank == 2 and i == 2:
            return "done early"
        loss = net(x).sum()
        loss.backward()
        print(loss.item(), end=" ")

def a08(rank, inputs):
    net = DDP(nn.Linear(1, 1, bias=False)); opt = torch.optim.SGD(net.parameters(), lr=0.3)
    net.module.weight.data.fill_(1.0)
    for x in inputs:
        target = 4.0 if rank == 0 else 0.6
        loss = (net(x) - target).pow(2).mean()
        if loss.item() < 0.5:
            break
        opt.zero_grad(); loss.backward(); opt.step()
    return net.module.weight.item()

class EarlyStop:
    def __init__(self, patience): self.best, self.bad, self.patience = float("inf"), 0, patience
    def __call__(self, v):
        if v < self.best: self.best, self.bad = v, 0
        else: self.bad += 1
        return self.bad >= self.patience
def a09(rank, inputs):
    net = DDP(nn.Linear(1, 1)); stop = EarlyStop(2)
    for epoch in range(5):
        loss = net(torch.ones(2, 1)).mean(); loss.backward()
        val = 1.0 + epoch * (0.1 if rank == 1 else -0.1)
        val = torch.tensor(val).item()
        if stop(val):
            break
        net.module.weight.grad.norm().item()

def validate(net, rank, epoch):
    acc = torch.tensor([0.5 + rank])
    if acc.item() > 2:
        return acc
    dist.all_reduce(acc)
    return acc
def a10(rank, inputs):
    net = DDP(nn.Linear(1, 1))
    for epoch, x in enumerate(inputs):
        net(x).sum().backward()
    return validate(net, rank, 0).item()

# wrong order / rank tests
def a11(rank, inputs):
    net = DDP(nn.Linear(1, 1))
    net(inputs[0]).sum().backward()
    if rank == 0:
        torch.save(net.state_dict(), os.devnull)
        dist.barrier()
        print("saved")

def a12(rank, inputs):
    t = torch.zeros(1)
    if rank != 0:
        dist.broadcast(t, src=0)
    s = torch.ones(1)
    dist.all_reduce(s)
    print(s.item())

def a13(rank, inputs):
    gen = DDP(nn.Linear(2, 2)); dis = DDP(nn.Linear(2, 2))
    for x in inputs:
        z = torch.ones(1, 2) * (rank + 1)
        if rank % 2:
            gen(z).sum().backward(); dis(z).prod().backward()
        else:
            dis(z).prod().backward(); gen(z).sum().backward()
    return [p.grad.tolist() for p in gen.parameters()]

def a14(rank, inputs):
    gen = DDP(nn.Linear(2, 8)); dis = DDP(nn.Linear(8, 1))
    for x in inputs:
        steps = [lambda: gen(torch.ones(1, 2)).sum().backward(), lambda: dis(torch.ones(1, 8)).sum().backward()]
        for s in (steps if rank == 0 else reversed(steps)):
            s()
    return gen.module.weight.grad.sum().item()

def load(rank, i):
    if rank == 1 and i == 1:
        raise OSError("truncated image")
    return torch.ones(1)
def a15(rank, inputs):
    net = DDP(nn.Linear(1, 1)); seen = 0
    for i in range(3):
        try:
            net(load(rank, i)).sum().backward()
            seen += net.module.weight.grad.item()
        except OSError as e:
            print("skip", e)
    dist.barrier()
    return seen

def a16(rank, inputs):
    try:
        if rank == 1:
            raise RuntimeError("CUDA out of memory (pretend)")
        t = torch.ones(4); dist.all_reduce(t); t.sum().item()
    except RuntimeError as e:
        print(e)
        dist.barrier()
        raise

def a17(rank, inputs):
    net = DDP(nn.Linear(1, 1))
    for i, x in enumerate(inputs):
        if rank == 1 and i == 1:
            y = torch.ones(3) @ torch.ones(2)
        loss = net(x).sum(); loss.backward(); loss.item()
        w = net.module.weight.grad.item()

def a18(rank, inputs):
    net = DDP(nn.Linear(1, 1)); opt = torch.optim.SGD(net.parameters(), lr=.1)
    for i, x in enumerate(inputs):
        accumulate = (i + (rank == 2)) % 2 == 0
        with net.no_sync() if accumulate else contextlib.nullcontext():
            net(x).sum().backward()
        if not accumulate:
            opt.step(); opt.zero_grad()
    dist.barrier()

def a19(rank, inputs):
    net = DDP(nn.Linear(1, 1)); opt = torch.optim.SGD(net.parameters(), lr=.1); n = len(inputs)
    for i, x in enumerate(inputs):
        last = i == n - 1
        sync = (i + 1) % 2 == 0 or last
        with contextlib.nullcontext() if sync else net.no_sync():
            net(x).sum().backward()
        if sync:
            opt.step(); opt.zero_grad()
    return net.module.weight.item()

class Branchy(nn.Module):
    def __init__(self): super().__init__(); self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)
    def forward(self, x, use_b): return self.b(self.a(x)) if use_b else self.a(x)
def a20(rank, inputs):
    net = DDP(Branchy())
    for i, _ in enumerate(inputs):
        net(torch.ones(1, 2), rank == 0).sum().backward()

def a21(rank, inputs):
    m = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    if rank == 1:
        for p in m[0].parameters(): p.requires_grad = False
    net = DDP(m)
    for _ in inputs:
        net(torch.ones(1, 2)).sum().backward()

def a22(rank, inputs):
    net = DDP(nn.Linear(2, 3 if rank == 0 else 4))
    for _ in inputs:
        net(torch.ones(1, 2)).sum().backward()

def a23(rank, inputs):
    layers = [nn.Linear(2, 3), nn.Linear(3, 2)]
    net = DDP(nn.Sequential(*(layers if rank == 0 else [nn.Linear(3, 2), nn.Linear(2, 3)])))
    for _ in inputs:
        net(torch.ones(1, 2 if rank == 0 else 3)).sum().backward()

def a24(rank, inputs):
    net = DDP(nn.Linear(2, 1))
    if rank == 1:
        net.module.requires_grad_(False)
    for _ in inputs:
        out = net(torch.ones(1, 2)).sum()
        if out.requires_grad:
            out.backward()
            net.module.weight.grad.sum().item()

def a25(rank, inputs):
    net = DDP(nn.Linear(1, 1)); path = None
    start = 0
    if rank == 1:
        start = 1          # only this rank found checkpoint.pt
    for step in range(start, 3):
        loss = net(torch.ones(1)).sum(); loss.backward()
        g = net.module.weight.grad.item()
    return g

class Shard(Dataset):
    def __init__(self, n): self.n = n
    def __len__(self): return self.n
    def __getitem__(self, i): return torch.full((2,), float(i))
def a26(rank, inputs):
    net = DDP(nn.Linear(2, 1)); crit = nn.MSELoss()
    dl = DataLoader(Shard(9 if rank == 0 else 8), batch_size=4, drop_last=False)
    for epoch in range(2):
        for b in dl:
            loss = crit(net(b), torch.zeros(len(b), 1)); loss.backward()
    return net.module.weight.grad.tolist()

def a27(rank, inputs):
    ds = TensorDataset(torch.arange(10.0).view(-1, 1)); s = DistributedSampler(ds, seed=rank)
    net = DDP(nn.Linear(1, 1)); seen = []
    for epoch in range(2):
        for (b,) in DataLoader(ds, batch_size=2, sampler=s):
            seen += b.flatten().tolist(); net(b).sum().backward()
    got = [None] * 3; dist.all_gather_object(got, seen)
    return got

def a28(rank, inputs):
    net = DDP(nn.Linear(1, 1))
    for i, x in enumerate(inputs):
        loss = net(x * (1 + 5 * rank)).sum(); loss.backward()
        norm = torch.tensor(float(rank * 5))
        if norm > 4:
            dist.all_reduce(norm)
            net.module.weight.grad.div_(norm)
        w = net.module.weight.grad.item()

def a29(rank, inputs):
    t = torch.ones(2)
    w = dist.all_reduce(t, async_op=True)
    return t.tolist()

def a30(rank, inputs):
    a, b = torch.ones(2), torch.ones(3)
    ws = [dist.all_reduce(a, async_op=True), dist.all_reduce(b, async_op=True)]
    for w in (ws if rank == 0 else ws[::-1]): w.wait()
    return a.tolist() + b.tolist()
