"""Programs told falsely or too little: rounds that ranks count differently, a root of their own, a ring of sends."""
from tests.material.unseen.pa import *

def k01(rank, inputs):
    net = torch.nn.Linear(2, 1)
    ema, steps = torch.zeros(1), 0
    for i, x in enumerate(inputs):
        loss = net(torch.ones(1, 2)).sum() * (float("nan") if rank == 1 and i == 1 else 1.0)
        if torch.isnan(loss):
            print("skipping a batch")
            continue
        steps += 1
        if steps % 2 == 0:
            dist.all_reduce(ema)
    dist.barrier()
def k02(rank, inputs):
    loss = torch.tensor([float(len(inputs))])
    best = rank if loss > 2 else 0
    weights = torch.ones(2) * rank
    dist.broadcast(weights, src=best)
    dist.barrier()
    return weights.tolist()
def k03(rank, inputs):
    net = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Linear(1, 1))
    if rank == 1:
        for p in net[0].parameters(): p.requires_grad = False
    for x in inputs:
        net.zero_grad(); net(torch.ones(1, 1)).sum().backward()
        for name, p in net.named_parameters():
            if p.grad is not None: dist.all_reduce(p.grad)
    dist.barrier()
def k04(rank, inputs):
    n = dist.get_world_size(); t = torch.ones(1) * rank; r = torch.zeros(1)
    dist.send(t, (rank + 1) % n); dist.recv(r, (rank - 1) % n)
    return r.item()
def k05(rank, inputs):
    net = DDP(nn.Linear(1, 1))
    with net.join():
        for i, x in enumerate(inputs):
            if rank == 1 and i == 1: return "early"
            net(torch.ones(1, 1)).sum().backward()
    dist.barrier()
def k06(rank, inputs):
    net = DDP(nn.Linear(1, 1))
    for x in inputs:
        if rank == 1: net(torch.ones(1, 1)).sum().backward()
        else:
            with net.no_sync(): net(torch.ones(1, 1)).sum().backward()
    dist.barrier()
def k07(rank, inputs):
    dst = 0 if len(inputs) < 3 else 1
    outs = [torch.zeros(1) for _ in range(dist.get_world_size())] if rank == dst else None
    dist.gather(torch.ones(1), outs, dst=dst)
    dist.barrier()
def k08(rank, inputs):
    net = DDP(nn.Linear(1, 1)); opt = torch.optim.SGD(net.parameters(), 0.1)
    for i, x in enumerate(inputs):
        if rank == 0: print(i)
        opt.zero_grad(); net(torch.full((1, 1), float(i + rank))).sum().backward()
        if rank == 1 and i == 1: continue
        opt.step()
    dist.barrier()
def k09(rank, inputs):
    net = DDP(nn.Linear(1, 1)); opt = torch.optim.SGD(net.parameters(), 0.1)
    later = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=0)
    for i, x in enumerate(inputs):
        opt.zero_grad(); net(torch.ones(1, 1)).sum().backward(); opt.step()
        later.step(float(i) if rank == 1 else float(-i))
    dist.barrier()
def k10(rank, inputs):
    for i, x in enumerate(inputs):
        {0: summed, 1: left_out}[(i + rank) % 2](torch.ones(1))
    dist.barrier()
def summed(t): dist.all_reduce(t)
def left_out(t): pass
def k11(rank, inputs):
    if rank == 0: return
    if rank == 2: raise ValueError("no shard")
    dist.barrier()
def k12(rank, inputs):
    split = [1, 1, 1]
    if rank == 1: split = [2, 1, 1]
    dist.all_to_all_single(torch.zeros(3), torch.ones(sum(split)), [1, 1, 1], split)
    dist.barrier()
