"""Programs aimed at single claims, d01 to d18."""
from tests.material.unseen.pa import *
import sys
from datetime import timedelta
def d01(rank, inputs):
    net = DDP(nn.Linear(1, 1))
    for epoch in range(2):
        with net.join():
            for x in inputs: net(x).sum().backward()
        acc = torch.ones(1)
        if len(inputs) > 0:
            dist.all_reduce(acc)

def d02(rank, inputs):
    g = dist.new_group([0, 1])
    for i, x in enumerate(inputs):
        value = x * (10 if rank == 1 and i == 3 else 1)
        if value.item() > 5:
            continue
        if rank < 2:
            dist.all_reduce(value, group=g); value.item()

def d03(rank, inputs):
    for i, x in enumerate(inputs):
        loss = x * (9 if rank == 1 and i == 2 else 1)
        if rank == 0 and i > 100:
            break
        if loss.item() > 5:
            break
        dist.all_reduce(loss)
        loss.item()

def d04(rank, inputs):
    net = DDP(Branchy())
    for i, _ in enumerate(inputs):   # TODO: use no_sync() one day
        net(torch.ones(1, 2), not (rank == 1 and i == 2)).sum().backward()

def d05(rank, inputs):
    for i, x in enumerate(inputs):
        if i == 1 and x.item() + rank > 1.5: sys.exit(0)
        dist.all_reduce(x); x.item()

def d06(rank, inputs):
    g = dist.new_group(timeout=timedelta(seconds=2))
    if rank == 1: time.sleep(5)
    t = torch.ones(1); dist.all_reduce(t, group=g)
    return t.item()

def d07(rank, inputs):
    m = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    def hook(g):
        dist.all_reduce(g); return g / dist.get_world_size()
    for i, p in enumerate(m.parameters()):
        if not (rank == 1 and i == 3): p.register_hook(hook)
    for _ in inputs:
        m(torch.ones(1, 2)).sum().backward(); m.zero_grad()

class Prefetch:
    def __init__(self, it): self.it = iter(it); self.nxt = next(self.it, None)
    def __iter__(self):
        while self.nxt is not None:
            cur, self.nxt = self.nxt, next(self.it, None)
            yield cur
def d08(rank, inputs):
    net = DDP(nn.Linear(1, 1)); tot = 0
    for x in Prefetch(inputs):
        loss = net(x).sum(); loss.backward(); tot += net.module.weight.grad.item()

def d09(rank, inputs):
    net = DDP(nn.Linear(1, 1)); tot = 0
    for x in list(inputs):
        loss = net(x).sum(); loss.backward(); tot += net.module.weight.grad.item()

def d10(rank, inputs):
    m = {"loss": torch.tensor(1.0), "acc": torch.tensor(100.0)}
    for k in sorted(m, reverse=rank == 1): dist.all_reduce(m[k])
    return {k: v.item() for k, v in m.items()}

def d11(rank, inputs):
    got = []
    for i, x in enumerate(inputs):
        if rank == 0:
            dist.send(torch.tensor([float(i)]), 1)
            if i == 0: dist.send(torch.tensor([-1.0]), 1)
        if rank == 1:
            t = torch.zeros(1); dist.recv(t, 0); got.append(t.item())
    dist.barrier()
    return got

def d12(rank, inputs):
    net = DDP(nn.Linear(1, 1))
    try:
        for i, x in enumerate(inputs):
            if rank == 1 and i == 2: raise ValueError("NaN loss")
            net(x).sum().backward(); net.module.weight.grad.item()
    except ValueError: pass
    if rank == 0: torch.save(net.state_dict(), os.devnull)

def helper(net, x, table, rank):
    try:
        return net(x * table[rank]).sum()
    except KeyError:
        return None
def d13(rank, inputs):
    net = DDP(nn.Linear(1, 1))
    for x in inputs:
        loss = helper(net, x, {0: 1.0, 2: 2.0}, rank)
        if loss is not None:
            loss.backward(); net.module.weight.grad.item()

def end_of_epoch(): dist.barrier()
def log(t): dist.all_reduce(t); return t.item()
def d14(rank, inputs):
    for x in inputs:
        if rank: end_of_epoch(); log(x)
        else: log(x); end_of_epoch()

def d15(rank, inputs):
    net = DDP(nn.Linear(1, 1)); first = {0: 0, 1: 0, 2: 1}[rank]
    for epoch in range(first, 3):
        for x in inputs: net(x).sum().backward()
        m = torch.ones(1); dist.all_reduce(m); m.item()

def d16(rank, inputs):
    a, b = DDP(nn.Linear(1, 1)), DDP(nn.Linear(1, 1))
    with a.join():
        for x in inputs: b(a(x)).sum().backward()

def d17(rank, inputs):
    g1, g2 = dist.new_group(), dist.new_group()
    w = torch.zeros(1); dist.all_reduce(w, group=g1); dist.all_reduce(w, group=g2); w.item()
    a, b = torch.ones(2) * rank, torch.ones(3) * rank
    def one(): return dist.all_reduce(a, group=g1, async_op=True)
    def two(): return dist.all_reduce(b, group=g2, async_op=True)
    ws = [one(), two()] if rank == 0 else [two(), one()]
    [w.wait() for w in ws]
    return [a, b]
def d18(rank, inputs):
    net = DDP(nn.Linear(1, 1)); opt = torch.optim.SGD(net.parameters(), lr=.1)
    for x in inputs:
        opt.zero_grad(); l = net(x * (rank + 1)).pow(2).sum(); l.backward()
        for g in opt.param_groups: g["lr"] = .1 if l.item() > .5 else .01
        opt.step()
    return net.module.weight.item()
