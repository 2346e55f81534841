"""Cures and what was thought to be one: eNN changes the program that its comment names."""
from tests.material.unseen.pa import *
def allmin(n):
    t = torch.tensor([n]); dist.all_reduce(t, op=dist.ReduceOp.MIN); return int(t)
def stop(flag):
    t = torch.tensor([float(flag)]); dist.all_reduce(t, op=dist.ReduceOp.MAX); return bool(t.item())

# a01 join
def e01(rank, inputs):
    net = DDP(nn.Linear(1, 2)); opt = torch.optim.SGD(net.parameters(), lr=0.1); total = 0.0
    with net.join():
        for x in inputs:
            opt.zero_grad(); loss = net(x).pow(2).mean(); loss.backward(); opt.step(); total += loss.item()
    return net.module.state_dict()
# a02 min of counts
def e02(rank, inputs):
    net = DDP(nn.Linear(1, 2)); opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for x in inputs[:allmin(len(inputs))]:
        opt.zero_grad(); net(x).pow(2).mean().backward(); opt.step()
    return net.module.state_dict()
# a03 join
def e03(rank, inputs):
    net = DDP(nn.Linear(1, 2))
    with net.join():
        for x in inputs: net(x).sum().backward()
# a04 all-reduce behind the with block
def e04(rank, inputs):
    net = DDP(nn.Linear(1, 1)); opt = torch.optim.SGD(net.parameters(), lr=0.01)
    with net.join():
        for x in inputs:
            opt.zero_grad(); loss = (net(x) - 3).abs().mean(); loss.backward(); opt.step()
    avg = loss.detach().clone(); dist.all_reduce(avg); avg /= dist.get_world_size()
    return avg
# a07 flag
def e07(rank, inputs):
    net = DDP(nn.Linear(1, 1))
    for i, x in enumerate(inputs):
        if stop(rank == 2 and i == 2): return "done early"
        loss = net(x).sum(); loss.backward(); loss.item()
# a08 backward on every input / flag
def e08(rank, inputs):
    net = DDP(nn.Linear(1, 1, bias=False)); opt = torch.optim.SGD(net.parameters(), lr=0.3)
    net.module.weight.data.fill_(1.0)
    for x in inputs:
        target = 4.0 if rank == 0 else 0.6
        loss = (net(x) - target).pow(2).mean()
        if stop(loss.item() < 0.5): break
        opt.zero_grad(); loss.backward(); opt.step()
    return net.module.weight.item()
# a09 join
def e09(rank, inputs):
    net = DDP(nn.Linear(1, 1)); s = EarlyStop(2); n = 0
    with net.join():
        for epoch in range(5):
            loss = net(torch.ones(2, 1)).mean(); loss.backward(); n += 1
            val = 1.0 + epoch * (0.1 if rank == 1 else -0.1)
            if s(torch.tensor(val).item()): break
            net.module.weight.grad.norm().item()
    return n
# a11 out of the branch
def e11(rank, inputs):
    net = DDP(nn.Linear(1, 1)); net(inputs[0]).sum().backward()
    if rank == 0: torch.save(net.state_dict(), os.devnull)
    dist.barrier()
# a12 out of the branch
def e12(rank, inputs):
    t = torch.zeros(1); dist.broadcast(t, src=0)
    s = torch.ones(1); dist.all_reduce(s); return s
# a15 join
def e15(rank, inputs):
    net = DDP(nn.Linear(1, 1)); seen = 0
    with net.join():
        for i in range(3):
            try:
                net(load(rank, i)).sum().backward(); seen += net.module.weight.grad.item()
            except OSError as e: print("skip", e)
    dist.barrier(); return seen
# a17 flag before each step
def e17(rank, inputs):
    net = DDP(nn.Linear(1, 1)); bad = False
    for i, x in enumerate(inputs):
        if stop(bad): break
        try:
            if rank == 1 and i == 1: y = torch.ones(3) @ torch.ones(2)
            loss = net(x).sum(); loss.backward(); loss.item(); w = net.module.weight.grad.item()
        except RuntimeError: bad = True
# a19 join + no_sync
def e19(rank, inputs):
    net = DDP(nn.Linear(1, 1)); opt = torch.optim.SGD(net.parameters(), lr=.1); n = len(inputs)
    with net.join():
        for i, x in enumerate(inputs):
            last = i == n - 1; sync = (i + 1) % 2 == 0 or last
            with contextlib.nullcontext() if sync else net.no_sync(): net(x).sum().backward()
            if sync: opt.step(); opt.zero_grad()
    return net.module.weight.item()
# a20 find_unused
def e20(rank, inputs):
    net = DDP(Branchy(), find_unused_parameters=True)
    for i, _ in enumerate(inputs): net(torch.ones(1, 2), rank == 0).sum().backward()
    return net.module.a.weight.grad
# a24 skip together
def e24(rank, inputs):
    net = DDP(nn.Linear(2, 1))
    if rank == 1: net.module.requires_grad_(False)
    for _ in inputs:
        out = net(torch.ones(1, 2)).sum()
        if stop(not out.requires_grad): continue
        out.backward(); net.module.weight.grad.sum().item()
# a25 join
def e25(rank, inputs):
    net = DDP(nn.Linear(1, 1)); start = 1 if rank == 1 else 0; n = 0
    with net.join():
        for step in range(start, 3):
            loss = net(torch.ones(1)).sum(); loss.backward(); g = net.module.weight.grad.item(); n += 1
    return n
# a26 drop_last
def e26(rank, inputs):
    net = DDP(nn.Linear(2, 1)); crit = nn.MSELoss()
    dl = DataLoader(Shard(9 if rank == 0 else 8), batch_size=4, drop_last=True)
    for epoch in range(2):
        for b in dl: crit(net(b), torch.zeros(len(b), 1)).backward()
    return net.module.weight.grad
# a26 join around the loop (over epochs)
def e26b(rank, inputs):
    net = DDP(nn.Linear(2, 1)); crit = nn.MSELoss()
    dl = DataLoader(Shard(9 if rank == 0 else 8), batch_size=4)
    for epoch in range(2):
        with net.join():
            for b in dl: crit(net(b), torch.zeros(len(b), 1)).backward()
    return net.module.weight.grad
# a29 wait
def e29(rank, inputs):
    t = torch.ones(2); w = dist.all_reduce(t, async_op=True); w.wait(); return t
# b01/b02 batch_isend_irecv
def e31(rank, inputs):
    n = dist.get_world_size(); buf = torch.zeros(1)
    for w in dist.batch_isend_irecv([dist.P2POp(dist.irecv, buf, (rank - 1) % n), dist.P2POp(dist.isend, torch.full((1,), float(rank)), (rank + 1) % n)]): w.wait()
    return buf
# b09 let every rank issue the all_gather_object
def e39(rank, inputs):
    got = [None] * 3; dist.all_gather_object(got, {"acc": 1.0})
    if rank != 0:
        box = [None]; dist.broadcast_object_list(box, src=0)
    dist.barrier()
# b20 find_unused_parameters=True on all (as advised)
def e50(rank, inputs):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    net = DDP(nn.Linear(4, 4), find_unused_parameters=True)
    if rank == 1: net.register_comm_hook(None, default_hooks.fp16_compress_hook)
    for _ in inputs: net(torch.ones(1, 4)).sum().backward()
# b21 find_unused_parameters=True with static_graph
def e51(rank, inputs):
    net = DDP(Branchy(), static_graph=True, find_unused_parameters=True)
    for i, _ in enumerate(inputs): net(torch.ones(1, 2), not (rank == 1 and i == 2)).sum().backward()
# b23 net(...) out of the branch
def e53(rank, inputs):
    net = DDP(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    for i, _ in enumerate(inputs):
        net.train(); net(torch.ones(3, 2)).sum().backward()
        net.train(False)
        with torch.no_grad(): v = net(torch.ones(3, 2)).sum().item()
# b25 min
def e55(rank, inputs):
    lin = nn.Linear(1, 1)
    for x in inputs[:allmin(len(inputs))]:
        h = x.clone()
        if rank > 0: dist.recv(h, src=rank - 1)
        h = lin(h).detach()
        if rank + 1 < dist.get_world_size(): dist.send(h, dst=rank + 1)
    return h
# b26 flag
def e56(rank, inputs):
    from torch.distributed.fsdp import fully_shard
    m = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)); fully_shard(m)
    opt = torch.optim.SGD(m.parameters(), lr=.1)
    for i, _ in enumerate(inputs):
        if stop(rank == 1 and i == 1): break
        m(torch.ones(2, 4)).sum().backward(); opt.step(); opt.zero_grad()
# b19 SyncBN, min of counts
def e49(rank, inputs):
    net = DDP(nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))))
    for _ in inputs[:allmin(len(inputs))]: net(torch.randn(4, 2)).sum().backward()
