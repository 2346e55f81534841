"""Programs without a fault, c01 to c20."""
from tests.material.unseen.pa import *

def c01(rank, inputs):
    torch.manual_seed(1); net = DDP(nn.Linear(1, 2)); opt = torch.optim.SGD(net.parameters(), lr=.1)
    with net.join():
        for i, x in enumerate(inputs):
            opt.zero_grad(); (net(x * (i + rank + 1)) ** 2).mean().backward(); opt.step()
    return net.module.state_dict()

def c02(rank, inputs):
    torch.manual_seed(1); net = DDP(nn.Linear(1, 2)); opt = torch.optim.SGD(net.parameters(), lr=.1)
    for i, x in enumerate(inputs):
        opt.zero_grad(); loss = (net(x * .1 * (rank + 1)) ** 2).mean(); loss.backward(); opt.step()
        if rank == 0 and i % 2 == 0:
            print("step", i, loss.item()); torch.save(net.module.state_dict(), os.devnull)
    dist.barrier()
    return net.module.state_dict()

def c03(rank, inputs):
    ts = [torch.full((k + 1,), rank + k + .1) for k in range(5)]
    ws = [dist.all_reduce(t, async_op=True) for t in ts]
    z = sum(range(1000))
    for w in reversed(ws): w.wait()
    return ts

def c04(rank, inputs):
    net = DDP(nn.Linear(1, 1)); n = torch.tensor([len(inputs)]); dist.all_reduce(n, op=dist.ReduceOp.MIN)
    for x in itertools.islice(inputs, int(n)):
        net(x + rank).sum().backward()
    return net.module.weight.grad

def c05(rank, inputs):
    low, high = dist.new_group([0, 1]), dist.new_group([2, 3])
    t = torch.tensor([rank + .5]); dist.all_reduce(t, group=low if rank < 2 else high)
    if rank in (0, 2):
        pass
    heads = dist.new_group([0, 2])
    if rank in (0, 2): dist.all_reduce(t, group=heads)
    dist.broadcast(t, src=0 if rank < 2 else 2, group=low if rank < 2 else high)
    return t

def c06(rank, inputs):
    net = DDP(nn.Linear(1, 1)); dist.barrier()
    for x in inputs:
        dist.barrier(); net(x * rank).sum().backward(); dist.barrier()
        if rank == 1: time.sleep(0.05)
        dist.barrier()
    return net.module.weight.grad

def c07(rank, inputs):
    g1, g2 = dist.new_group(), dist.new_group()
    a, b = torch.ones(2) * rank, torch.ones(3) * rank
    def one(): return dist.all_reduce(a, group=g1, async_op=True)
    def two(): return dist.all_reduce(b, group=g2, async_op=True)
    ws = [one(), two()] if rank == 0 else [two(), one()]
    [w.wait() for w in ws]
    return [a, b]

def c08(rank, inputs):
    net = DDP(nn.Linear(1, 1))
    for x in inputs:
        if rank == 1: time.sleep(.2)
        net(x).sum().backward()
    return net.module.weight.grad

def c09(rank, inputs):
    def tree(ranks, t):
        g = dist.new_group(ranks)
        if rank in ranks: dist.all_reduce(t, group=g)
        if len(ranks) > 1:
            h = len(ranks) // 2
            tree(ranks[:h], t); tree(ranks[h:], t)
        return t
    return tree(list(range(4)), torch.tensor([1. + rank]))

def c10(rank, inputs):
    net = DDP(nn.Linear(1, 1)); opt = torch.optim.Adam(net.parameters(), lr=.01)
    def batches():
        for x in inputs: yield x * (rank + 1)
    def losses():
        for b in batches():
            opt.zero_grad(); l = net(b).pow(2).sum(); l.backward(); opt.step(); yield l.item()
    return [sum(losses()), net.module.state_dict()]

def c11(rank, inputs):
    net = DDP(nn.Linear(1, 1)); n = 0
    for x in inputs:
        try:
            net(x).sum().backward(); raise ValueError
        except ValueError: n += 1
    dist.barrier(); return net.module.weight.grad

def c12(rank, inputs):
    net = DDP(nn.Linear(1, 1)); done = 0
    for i in range(5):
        bad = torch.tensor([1.0 if rank == 1 and i == 3 else 0.0]); dist.all_reduce(bad, op=dist.ReduceOp.MAX)
        if bad.item(): continue
        net(torch.ones(1) * i).sum().backward(); done += 1
    return [done, net.module.weight.grad]

def c13(rank, inputs):
    t = torch.arange(3.) * (rank + 1)
    if rank == 0: dist.send(t, 1); dist.recv(t, 1)
    else:
        r = torch.zeros(3); dist.recv(r, 0); dist.send(r + t, 0); t = r
    return t

def c14(rank, inputs):
    r = torch.zeros(2)
    dist.scatter(r, [torch.ones(2) * i * .3 for i in range(5)] if rank == 0 else None, src=0)
    out = [torch.zeros(2) for _ in range(5)] if rank == 2 else None
    dist.gather(r * 2, out, dst=2)
    return out or r

def c15(rank, inputs):
    send = [rank + 1, 1, 2]; recv = [[1, 2, 3], [1, 1, 1], [2, 2, 2]][rank]
    out = torch.zeros(sum(recv)); dist.all_to_all_single(out, torch.arange(float(sum(send))) + 10 * rank, recv, send)
    return out

def c16(rank, inputs):
    net = DDP(nn.Linear(1, 1)); opt = torch.optim.SGD(net.parameters(), lr=.1, momentum=.9)
    for i, x in enumerate(inputs):
        with net.no_sync() if i % 3 < 2 else contextlib.nullcontext():
            (net(x * (rank + i)) ** 2).mean().backward()
        if i % 3 == 2: opt.step(); opt.zero_grad()
    return net.module.state_dict()

def c17(rank, inputs):
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.distributed.algorithms.join import Join
    net = DDP(nn.Sequential(nn.Linear(1, 2), nn.Linear(2, 1)))
    opt = ZeroRedundancyOptimizer(net.parameters(), optimizer_class=torch.optim.SGD, lr=0.1)
    with Join([net, opt]):
        for x in inputs:
            opt.zero_grad(); net(x * (rank + 1)).sum().backward(); opt.step()
    return net.module.state_dict()

def c18(rank, inputs):
    net = DDP(Branchy(), find_unused_parameters=True)
    for i, _ in enumerate(inputs):
        net(torch.ones(1, 2), (rank + i) % 2 == 0).sum().backward()
    return [p.grad for p in net.parameters()]

def c19(rank, inputs):
    if rank == 0:
        t = torch.linspace(0, 1, 7); dist.broadcast(t, 0)
    else:
        t = torch.empty(7); dist.broadcast(t, 0)
    t += rank * .1
    dist.all_reduce(t, op=dist.ReduceOp.MAX) if rank % 2 else dist.all_reduce(t, dist.ReduceOp.MAX)
    return t

def c20(rank, inputs):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    torch.manual_seed(rank)
    net = DDP(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)), bucket_cap_mb=1e-4, gradient_as_bucket_view=True)
    net.register_comm_hook(None, default_hooks.bf16_compress_hook)
    opt = torch.optim.SGD(net.parameters(), lr=.05)
    for i, _ in enumerate(inputs):
        opt.zero_grad(); net(torch.randn(5, 4) + rank).pow(2).mean().backward(); opt.step()
    return net.module.state_dict()
