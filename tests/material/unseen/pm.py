"""Programs told too little: names made earlier, of other names or in a generator; sends behind other calls."""
from tests.material.unseen.pa import *

def m01(rank, inputs):
    net = DDP(nn.Linear(1, 1))
    start = 0
    if rank == 0:
        saved = {"epoch": 1}
        start = saved["epoch"]
    epoch = start
    while epoch < 3:
        for x in inputs: net(torch.ones(1, 1)).sum().backward()
        seen = torch.tensor([float(epoch)]); dist.all_reduce(seen); seen.item()
        epoch += 1
def batches(rank, inputs):
    for i, x in enumerate(inputs):
        if i % 2 == rank and rank == 1: continue
        yield torch.ones(1, 1)
def m02(rank, inputs):
    net = DDP(nn.Linear(1, 1))
    for x in batches(rank, inputs): net(x).sum().backward()
    dist.barrier()
def m03(rank, inputs):
    names = ["loss", "acc", "f1"]; shards = {n: torch.ones(1) * i for i, n in enumerate(names)}
    if rank == 1: names = sorted(names)
    for name in names:
        whole = [torch.zeros(1) for _ in range(dist.get_world_size())]
        dist.all_gather(whole, shards[name])
    return float(sum(whole))
def m04(rank, inputs):
    net = DDP(nn.Linear(1, 1)); metrics = {"n": 0}
    for x in inputs:
        net(torch.ones(1, 1)).sum().backward(); metrics["n"] += 1
        if rank == 1: metrics.setdefault("warn", 0)
    for key in sorted(metrics):
        t = torch.tensor(float(metrics[key])); dist.all_reduce(t); t.item()
    dist.barrier()
def m05(rank, inputs):
    t, r = torch.ones(1), torch.zeros(1)
    if rank == 0: dist.recv(r, 2); dist.send(t, 2)
    elif rank == 1: dist.send(t, 0); dist.recv(r, 2)
    else: dist.send(t, 0); dist.send(t, 1); dist.recv(r, 0)
    return r.item()
def m06(rank, inputs):
    t, r = torch.ones(1), torch.zeros(1)
    if rank < 2:
        dist.send(t, 1 - rank)
        dist.recv(r, 1 - rank)
    dist.barrier()
def m07(rank, inputs):
    net = DDP(nn.Linear(1, 1)); opt = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    for epoch in range(2):
        for i, x in enumerate(inputs):
            opt.zero_grad(); net(torch.ones(1, 1)).sum().backward()
            try:
                if rank == 1 and i == 1: raise FloatingPointError("inf")
                opt.step()
            except FloatingPointError:
                print("skipped")
def m08(rank, inputs):
    works = [dist.all_reduce(torch.ones(1), async_op=True) for x in inputs]
    for w in works: w.wait()
    dist.barrier()
def m09(rank, inputs):
    net = DDP(nn.Linear(1, 1))
    for x in inputs:
        net(torch.ones(1, 1)).sum().backward()
        match rank:
            case 0: dist.all_reduce(torch.ones(3))
            case _: pass
    dist.barrier()
