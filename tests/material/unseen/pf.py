"""More programs aimed at single claims, f01 to f14: epochs over uneven inputs above all."""
from tests.material.unseen.pd import *
def f01(rank, inputs):
    net = DDP(nn.Linear(1, 1))
    for epoch in range(2):
        for x in inputs:
            loss = net(x).sum(); loss.backward(); net.module.weight.grad.item()
def f02(rank, inputs):
    net = DDP(nn.Linear(1, 1)); opt = torch.optim.SGD(net.parameters(), lr=.1)
    for epoch in range(3):
        total = 0.
        for x in inputs:
            opt.zero_grad(); loss = net(x).pow(2).sum(); loss.backward(); opt.step(); total += loss.item()
def f03(rank, inputs):
    net = DDP(nn.Linear(2, 1))
    for epoch in range(3):
        n = 8 if epoch < 2 or rank else 12
        for b in DataLoader(Shard(n), batch_size=4):
            net(b).sum().backward()
        m = torch.ones(1, dtype=torch.float64); dist.all_reduce(m); m.item()
def f04(rank, inputs):
    t = torch.ones(1)
    if rank == 0:
        print("logging", t.item())
    else:
        dist.barrier()
def f05(rank, inputs):
    net = DDP(nn.Linear(1, 1))
    for x in inputs[rank::2]:
        net(x).sum().backward(); net.module.weight.grad.item()
def f06(rank, inputs):
    g = dist.new_group(timeout=timedelta(seconds=2)); t = torch.ones(1); dist.all_reduce(t, group=g); t.item()
    if rank == 1: time.sleep(5)
    dist.all_reduce(t, group=g); return t.item()
def f07(rank, inputs):
    net = DDP(nn.Linear(1, 1))
    for epoch in range(2 - (rank == 1)):
        for x in inputs: net(x).sum().backward(); net.module.weight.grad.item()
def f08(rank, inputs):
    net = DDP(nn.Linear(1, 1))
    for i, x in enumerate(inputs):
        out = net(x)
        if rank == 1 and i == 2: out = out.detach().requires_grad_()
        out.sum().backward()
        net.module.weight.grad.item()
def f09(rank, inputs):
    pair = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
    for i, x in enumerate(inputs):
        y = x * (3 if rank == 1 and i == 1 else 1)
        if y.item() < 2: dist.all_reduce(y, group=pair); y.item()
    dist.barrier()
def evaluate(net):
    with torch.no_grad():
        v = net.module(torch.ones(1)).item()
        dist.barrier()
    return v
def f10(rank, inputs):
    net = DDP(nn.Linear(1, 1))
    for x in inputs: net(x).sum().backward()
    if rank == 0: evaluate(net)
    m = torch.ones(1); dist.all_reduce(m); return m.item()
def f11(rank, inputs):
    m = nn.Linear(1, 1); 
    for x in inputs:
        m.zero_grad(); m(x).sum().backward()
        for p in m.parameters(): dist.all_reduce(p.grad)
        if rank: [p.grad.div_(3) for p in m.parameters()]
        with torch.no_grad(): [p.sub_(p.grad) for p in m.parameters()]
    return m.weight.item()
def f12(rank, inputs):
    a, b = torch.zeros(1), torch.zeros(1)
    if rank == 0: [w.wait() for w in (dist.isend(torch.tensor([1.]), 1), dist.isend(torch.tensor([2.]), 1))]
    else: [w.wait() for w in (dist.irecv(b, 0), dist.irecv(a, 0))]
    return a.item(), b.item()
def f13(rank, inputs):
    t = torch.full((3,), float(rank)); out = [torch.zeros(3) for _ in range(3)]
    w = dist.all_gather(out, t, async_op=True)
    s = sum(o.sum().item() for o in out)     # read before wait
    w.wait(); return s
def deep(x): return {}["k"]
def f14(rank, inputs):
    for i, x in enumerate(inputs):
        if rank == 1 and i == 1: deep(x)
        dist.all_reduce(x); x.item()
