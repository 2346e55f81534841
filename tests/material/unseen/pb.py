"""Faulty programs, b01 to b30: sends, groups, roots, sizes, joins, DDP's options."""
from tests.material.unseen.pa import *
from datetime import timedelta

def b01(rank, inputs):
    n = dist.get_world_size(); buf = torch.zeros(1)
    dist.recv(buf, (rank - 1) % n)
    dist.send(torch.full((1,), float(rank)), (rank + 1) % n)
    return buf.item()

def b02(rank, inputs):
    n = dist.get_world_size(); buf = torch.zeros(1)
    dist.send(torch.full((1,), float(rank)), (rank + 1) % n)
    dist.recv(buf, (rank - 1) % n)
    return buf.item()

def b03(rank, inputs):
    n = 3; out = torch.zeros(2)
    ops = [dist.P2POp(dist.isend, torch.ones(2) * rank, (rank + 1) % n)]
    if rank != 1:
        ops.append(dist.P2POp(dist.irecv, out, (rank - 1) % n))
    for w in dist.batch_isend_irecv(ops): w.wait()
    return out.sum().item()

def b04(rank, inputs):
    cfg = torch.tensor([float(rank)])
    leader = 0 if rank < 2 else 2
    dist.broadcast(cfg, src=leader)
    return cfg.item()

def b05(rank, inputs):
    dst = 1 if rank == 2 else 0
    t = torch.ones(1) * rank
    out = [torch.zeros(1) for _ in range(3)] if rank == dst else None
    dist.gather(t, out, dst=dst)
    dist.barrier()
    return None if out is None else [o.item() for o in out]

def b06(rank, inputs):
    if rank < 2:
        g = dist.new_group([0, 1])
        t = torch.ones(1); dist.all_reduce(t, group=g)
        return t.item()
    return 0

def b07(rank, inputs):
    g = dist.new_group([0, 1, 2])
    t = torch.ones(1)
    dist.all_reduce(t, group=g)
    dist.barrier()
    return t.item()

def b08(rank, inputs):
    if rank == 2:
        return "left"
    dist.monitored_barrier(timeout=timedelta(seconds=3))

def b09(rank, inputs):
    if rank == 0:
        got = [None] * 3
        dist.all_gather_object(got, {"acc": 1.0})
    else:
        box = [None]
        dist.broadcast_object_list(box, src=0)
    dist.barrier()

def b10(rank, inputs):
    send = [1, 2, 1] if rank == 0 else [1, 1, 1]
    recv = [1, 1, 1]
    out = torch.zeros(sum(recv)); inp = torch.arange(float(sum(send)))
    dist.all_to_all_single(out, inp, recv, send)
    return out.tolist()

def b11(rank, inputs):
    out = torch.zeros(3)
    dist.reduce_scatter_tensor(out, torch.arange(4.0))
    return out.tolist()

def b12(rank, inputs):
    n = 2 + rank
    out = torch.zeros(n)
    dist.reduce_scatter_tensor(out, torch.ones(2 * n))
    return out.tolist()

def b13(rank, inputs):
    v = torch.full((4,), 1.5, dtype=torch.float16 if rank == 2 else torch.float32)
    dist.all_reduce(v)
    return v.tolist()

def b14(rank, inputs):
    stat = torch.tensor([3, 4]) if rank == 0 else torch.tensor([3.0, 4.0])
    dist.all_reduce(stat)
    return stat.tolist()

def b15(rank, inputs):
    a, b = DDP(nn.Linear(1, 1)), DDP(nn.Linear(1, 1))
    with a.join():
        with b.join():
            for x in inputs:
                a(x).sum().backward(); b(x).sum().backward()

def b16(rank, inputs):
    from torch.distributed.optim import ZeroRedundancyOptimizer
    net = DDP(nn.Sequential(nn.Linear(1, 2), nn.Linear(2, 1)))
    opt = ZeroRedundancyOptimizer(net.parameters(), optimizer_class=torch.optim.SGD, lr=0.1)
    with net.join():
        for x in inputs:
            net(x).sum().backward(); opt.step(); opt.zero_grad()

def b17(rank, inputs):
    torch.manual_seed(0)
    net = DDP(nn.Linear(1, 1)); opt = torch.optim.SGD(net.parameters(), lr=.1)
    with net.join(divide_by_initial_world_size=(rank == 0)):
        for x in inputs:
            opt.zero_grad(); net(x).sum().backward(); opt.step()
    return net.module.weight.item()

def b18(rank, inputs):
    m = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)))
    net = DDP(m)
    for _ in inputs:
        net(torch.randn(4, 2) + rank).sum().backward()
    return net.module[0].weight.grad.sum().item()

def b19(rank, inputs):
    m = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)))
    net = DDP(m)
    for _ in inputs:
        net(torch.randn(4, 2)).sum().backward()
    return net.module[0].weight.grad.sum().item()

def b20(rank, inputs):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    net = DDP(nn.Linear(4, 4))
    if rank == 1:
        net.register_comm_hook(None, default_hooks.fp16_compress_hook)
    for _ in inputs:
        net(torch.ones(1, 4)).sum().backward()
    return net.module.weight.grad.sum().item()

def b21(rank, inputs):
    net = DDP(Branchy(), static_graph=True)
    for i, _ in enumerate(inputs):
        net(torch.ones(1, 2), not (rank == 1 and i == 2)).sum().backward()

def b22(rank, inputs):
    net = DDP(Branchy(), find_unused_parameters=rank == 0)
    for i, _ in enumerate(inputs):
        net(torch.ones(1, 2), True).sum().backward()
    return net.module.a.weight.grad.sum().item()

def b23(rank, inputs):
    net = DDP(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    for i, _ in enumerate(inputs):
        net.train(); net(torch.ones(3, 2)).sum().backward()
        if rank == 0:
            net.train(False)
            with torch.no_grad(): v = net(torch.ones(3, 2)).sum().item()
    return 1

def b24(rank, inputs):
    w = nn.Linear(2, 2)
    for mb in range(2):
        x = torch.ones(1, 2)
        if rank > 0: dist.recv(x, rank - 1)
        y = w(x).detach()
        if rank < 2: dist.send(y, rank + 1)
        if rank == 1 and mb == 1: dist.send(y, rank + 1)
    dist.barrier()

def b25(rank, inputs):
    lin = nn.Linear(1, 1)
    for x in inputs:
        h = x.clone()
        if rank > 0: dist.recv(h, src=rank - 1)
        h = lin(h).detach()
        if rank + 1 < dist.get_world_size(): dist.send(h, dst=rank + 1)
    return h.item()

def b26(rank, inputs):
    from torch.distributed.fsdp import fully_shard
    m = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)); fully_shard(m)
    opt = torch.optim.SGD(m.parameters(), lr=.1)
    for i, _ in enumerate(inputs):
        if rank == 1 and i == 1: break
        m(torch.ones(2, 4)).sum().backward(); opt.step(); opt.zero_grad()

def b27(rank, inputs):
    from torch.distributed.device_mesh import init_device_mesh
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    t = torch.ones(1) * rank
    dist.all_reduce(t, group=mesh.get_group("dp" if rank == 3 else "tp"))
    dist.barrier()
    return t.item()

def b28(rank, inputs):
    shard = list(range(rank, 7, 8))
    if not shard:
        return None
    out = [torch.zeros(1) for _ in range(8)]
    dist.all_gather(out, torch.tensor([float(shard[0])]))
    return [o.item() for o in out]

def b29(rank, inputs):
    net = DDP(nn.Linear(1, 1)); lr = torch.tensor(0.1)
    for i, x in enumerate(inputs):
        loss = net(x * rank).pow(2).sum(); loss.backward()
        if loss.item() > 3 and i == 1:
            lr *= 0.5
            dist.broadcast(lr, src=4)
    return lr.item()

def b30(rank, inputs):
    t = torch.ones(2) * (rank + 1)
    dist.reduce(t, dst=0 if rank < 2 else 2)
    dist.barrier()
    return t.tolist()
