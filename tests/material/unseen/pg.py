"""g01 to g06: f02, two cures, one cure that is none, and more epochs."""
from tests.material.unseen.pf import *
g01 = f02
def g02(rank, inputs):
    net = DDP(nn.Linear(2, 1))
    for epoch in range(3):
        n = 8 if epoch < 2 or rank else 12
        with net.join():
            for b in DataLoader(Shard(n), batch_size=4): net(b).sum().backward()
        m = torch.ones(1, dtype=torch.float64); dist.all_reduce(m); m.item()
    return net.module.weight.grad
def g03(rank, inputs):
    net = DDP(nn.Linear(1, 1))
    for epoch in range(2):
        with net.join():
            for x in inputs: net(x).sum().backward()
        acc = torch.ones(1); dist.all_reduce(acc)
def g04(rank, inputs):
    g = dist.new_group([0, 1])
    for i, x in enumerate(inputs):
        value = x * (10 if rank == 1 and i == 3 else 1)
        if value.item() > 5: continue
        dist.all_reduce(value, group=g); value.item()
def g05(rank, inputs):
    net = DDP(nn.Linear(1, 1))
    for epoch in range(3):
        for x in inputs: net(x).sum().backward(); net.module.weight.grad.item()
def g06(rank, inputs):
    net = DDP(nn.Linear(1, 1))
    for epoch in range(5):
        for x in inputs: net(x).sum().backward(); net.module.weight.grad.item()
