"""Programs distilled from real reports; table.toml names the report of each."""
import os, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

def best_loss(rank, inputs):
    model = DDP(torch.nn.Linear(1, 1)); best = 1e9
    for i, x in enumerate(inputs):
        model(x).sum().backward()
        loss = torch.tensor([float(rank + 2 - i)])
        dist.reduce(loss, dst=0)
        if loss.item() < best - 1.5:
            best = loss.item()
            parts = [torch.zeros(1) for _ in range(dist.get_world_size())]
            dist.all_gather(parts, torch.ones(1))

def exists_diverges(rank, inputs):
    there = rank == 0          # NFS attribute cache
    state = [None]
    if there:
        dist.broadcast_object_list(state, src=0)
    dist.barrier()

def gated_metric(rank, inputs):
    model = DDP(torch.nn.Linear(1, 1)); seen = []
    for x in inputs:
        model(x).sum().backward()
        if rank != 1: seen.append(1.0)
    if len(seen) > 0:
        parts = [torch.zeros(1) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, torch.ones(1))
    t = torch.ones(2); dist.all_reduce(t)

def list_states(rank, inputs):
    for x in inputs:
        parts = [torch.zeros(1) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x)

def stop_by_barrier(rank, inputs):
    model = DDP(torch.nn.Linear(1, 1)); should_stop = False
    for i, x in enumerate(inputs):
        model(x).sum().backward()
        if rank == 0 and i == 1: should_stop = True
        dist.barrier()
        if should_stop: break

def nan_skip(rank, inputs):
    model = DDP(torch.nn.Linear(1, 1))
    for i, x in enumerate(inputs):
        loss = model(x).sum()
        if rank == 1 and i == 1: continue
        loss.backward()

def nan_raise(rank, inputs):
    model = DDP(torch.nn.Linear(1, 1))
    for i, x in enumerate(inputs):
        loss = model(x).sum()
        if rank == 1 and i == 1: raise ValueError("loss is NaN")
        loss.backward()

def validate_rank0(rank, inputs):
    model = DDP(torch.nn.Sequential(torch.nn.Linear(1, 2), torch.nn.BatchNorm1d(2)))
    for x in inputs:
        model(torch.stack([x, x * 2])).sum().backward()
    if rank == 0:
        model(torch.stack([inputs[0], inputs[0] * 2]))
    dist.barrier()

def validate_rank0_eval(rank, inputs):
    model = DDP(torch.nn.Sequential(torch.nn.Linear(1, 2), torch.nn.BatchNorm1d(2)))
    for x in inputs:
        model(torch.stack([x, x * 2])).sum().backward()
    if rank == 0:
        model.eval()
        with torch.no_grad(): model(torch.stack([inputs[0], inputs[0] * 2]))
        model.train()
    dist.barrier()

def groups_by_members(rank, inputs):
    g = dist.new_group([0, 3]) if rank in (0, 3) else dist.new_group([1, 2])
    dist.barrier(group=g)

def group_of_one(rank, inputs):
    dist.new_group(ranks=[0]); dist.barrier()

def other_keys(rank, inputs):
    logs = {"loss": 1.0} | ({"acc": 1.0} if rank == 0 else {})
    for k in logs:
        t = torch.tensor([logs[k]]); dist.all_reduce(t)
    dist.barrier()

def save_broadcast(rank, inputs):
    model = DDP(torch.nn.Linear(1, 1))
    for i, x in enumerate(inputs):
        model(x).sum().backward()
        if rank == 0 and i == 1: dist.broadcast_object_list([1], src=0)

def shapes_then_barrier(rank, inputs):
    t = torch.zeros(3, 4) if rank == 0 else torch.tensor(0.0)
    dist.all_gather([torch.zeros_like(t) for _ in range(dist.get_world_size())], t)
    dist.barrier()

def other_dst(rank, inputs):
    t = torch.ones(4); dist.reduce(t, dst=rank); dist.all_reduce(t); t.sum().item()

def other_dtypes(rank, inputs):
    t = torch.ones(1, dtype=torch.float32 if rank else torch.bfloat16); dist.all_reduce(t); t.item()

def cross_groups(rank, inputs):
    a = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
    b = [dist.new_group([0, 2]), dist.new_group([1, 3])][rank % 2]
    order = (a, b) if rank in (0, 3) else (b, a)
    for g in order:
        t = torch.ones(1); dist.all_reduce(t, group=g); t.item()

def generate_sharded(rank, inputs):
    from torch.distributed.fsdp import fully_shard
    model = torch.nn.Sequential(torch.nn.Linear(1, 4), torch.nn.Linear(4, 1))
    fully_shard(model)
    with torch.no_grad():
        for x in inputs: model(x.reshape(1, 1))     # one decode step each
    dist.all_reduce(torch.ones(1))                  # the teacher / the next phase

def fsdp_uneven(rank, inputs):
    from torch.distributed.fsdp import fully_shard
    model = torch.nn.Linear(1, 4); fully_shard(model)
    for x in inputs: model(x.reshape(1, 1)).sum().backward()

def moe_empty(rank, inputs):
    class A2A(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = torch.empty_like(x); dist.all_to_all_single(y, x.contiguous()); return y
        @staticmethod
        def backward(ctx, g):
            y = torch.empty_like(g); dist.all_to_all_single(y, g.contiguous()); return y
    expert = torch.nn.Linear(1, 1)
    for i, x in enumerate(inputs):
        h = (torch.ones(2, 1) * x).requires_grad_()
        d = A2A.apply(h)
        out = torch.zeros(2, 1, requires_grad=True) if (rank == 1 and i == 1) else expert(d)
        A2A.apply(out).sum().backward()

def no_image(rank, inputs):
    class M(torch.nn.Module):
        def __init__(s):
            super().__init__(); s.vision, s.text = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
        def forward(s, x, image): return s.text(x) + (s.vision(x) if image else 0)
    model = DDP(M())
    for i, x in enumerate(inputs): model(x, not (rank == 1 and i == 1)).sum().backward()

def no_image_cured(rank, inputs):
    class M(torch.nn.Module):
        def __init__(s):
            super().__init__(); s.vision, s.text = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
        def forward(s, x, image): return s.text(x) + (s.vision(x) if image else 0)
    model = DDP(M(), find_unused_parameters=True)
    for i, x in enumerate(inputs): model(x, not (rank == 1 and i == 1)).sum().backward()

def join_no_sync(rank, inputs):
    model = DDP(torch.nn.Linear(1, 1))
    with model.join():
        for i, x in enumerate(inputs):
            if i % 2 == 0:
                with model.no_sync(): model(x).sum().backward()
            else: model(x).sum().backward()

def accumulate_own_end(rank, inputs):
    model = DDP(torch.nn.Linear(1, 1))
    for i, x in enumerate(inputs):
        if i + 1 == len(inputs): model(x).sum().backward()
        else:
            with model.no_sync(): model(x).sum().backward()

def sync_bn_join(rank, inputs):
    model = DDP(torch.nn.SyncBatchNorm(2))
    with model.join():
        for x in inputs: model(x.expand(3, 2)).sum().backward()

def barrier_as_cure(rank, inputs):
    model = DDP(torch.nn.Linear(1, 1))
    for x in inputs: model(x).sum().backward(); dist.barrier()

def join_plain_optimizer(rank, inputs):
    from torch.distributed.algorithms.join import Join
    model = DDP(torch.nn.Linear(1, 1)); opt = torch.optim.SGD(model.parameters(), 0.1)
    with Join([model, opt]):
        for x in inputs: model(x).sum().backward(); opt.step()

def join_logs(rank, inputs):
    model = DDP(torch.nn.Linear(1, 1))
    with model.join():
        for x in inputs:
            loss = model(x).sum(); loss.backward()
            l = loss.detach().clone(); dist.all_reduce(l)

def gather_object_rank0(rank, inputs):
    out = [None] * dist.get_world_size() if rank == 0 else None
    if rank == 0: dist.gather_object({"r": rank}, out, dst=0)
    dist.barrier()

def p2p_uneven(rank, inputs):
    for x in inputs:
        t = torch.ones(1)
        if rank == 1: dist.send(t, 0)
        else: dist.recv(t, 1)
    dist.barrier()

def slow_rank0(rank, inputs):
    from datetime import timedelta
    g = dist.new_group(timeout=timedelta(seconds=2))
    if rank == 0: time.sleep(4)
    dist.barrier(group=g)
