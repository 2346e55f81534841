"""Programs that told something false, or were told too little of, u01 to u12: one-line conditions, generators, ZeRO."""
from tests.material.unseen.pa import *
import functools
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer

def mean(loss):
    shared = loss.detach().clone(); dist.all_reduce(shared)
    return shared.item()
def u01(rank, inputs):
    net = DDP(nn.Linear(1, 1))
    for x in inputs:
        loss = net(x).sum(); loss.backward()
        logged = mean(loss) if rank == 1 else loss.item()
def u02(rank, inputs):
    done = torch.ones(1)
    logged = rank == 0 and dist.all_reduce(done)
    dist.barrier()
@functools.lru_cache(maxsize=None)
def weight_of(label):
    count = torch.tensor([float(label + 1)]); dist.all_reduce(count)
    return count.item()
def u03(rank, inputs):
    weight_of.cache_clear()
    labels = [0, 1, 0, 1] if rank == 0 else [0, 1, 2, 1]
    weights = [weight_of(label) for label in labels]
    dist.barrier()
def micro(x, rank):
    parts = 3 if rank == 2 else 2
    while parts:
        yield x / parts
        parts -= 1
def stream(inputs, rank):
    for x in inputs: yield from micro(x, rank)
def u04(rank, inputs):
    net = DDP(nn.Linear(1, 1))
    for x in stream(inputs, rank):
        net(x).sum().backward(); net.module.weight.grad.item()
def u05(rank, inputs):
    net = DDP(nn.Linear(1, 1)); opt = ZeroRedundancyOptimizer(net.parameters(), torch.optim.SGD, lr=0.01)
    for x in inputs:
        net(x).pow(2).sum().backward()
        opt.step()
    if rank == 0:
        opt.consolidate_state_dict(to=0)
    dist.barrier()
def u06(rank, inputs):
    net = DDP(nn.Linear(1, 1)); opt = ZeroRedundancyOptimizer(net.parameters(), torch.optim.SGD, lr=0.01)
    with Join([net, opt]):
        for i, x in enumerate(inputs):
            net(x).pow(2).sum().backward()
            if rank == 1 and i % 2:
                continue
            opt.step()
def u07(rank, inputs):
    net = DDP(nn.Linear(1, 1)); state = {"epoch": 1} if rank == 0 else {}
    start = state.get("epoch", 0)
    for epoch in range(start, 3):
        for x in inputs:
            net(x).sum().backward(); net.module.weight.grad.item()
def u08(rank, inputs):
    g, d = DDP(nn.Linear(1, 1)), DDP(nn.Linear(1, 3)); every = 2 + rank
    for step, x in enumerate(inputs, 1):
        d(g(x).detach()).sum().backward()
        if step % every == 0:
            d(g(x)).sum().backward()
def u09(rank, inputs):
    for x in inputs: dist.all_reduce(x)
    dist.barrier()
def u10(rank, inputs):
    net = DDP(nn.Linear(1, 1))
    with net.join():
        for i, x in enumerate(inputs):
            if rank == 1 and i == 1: return "stopped"
            net(x).sum().backward()
    dist.barrier()
def u11(rank, inputs):
    net = DDP(nn.Linear(1, 1))
    for i, (x, last) in enumerate(lookahead(inputs), 1):
        with net.no_sync() if i % 2 and not last else contextlib.nullcontext():
            net(x).sum().backward()
    dist.barrier()
def lookahead(values):
    it = iter(values); now = next(it)
    for after in it:
        yield now, False
        now = after
    yield now, True
def u12(rank, inputs):
    net = DDP(nn.Linear(1, 1))
    for i, x in enumerate(inputs):
        if rank == 1 and i == 2: break
        if rank == 3 and i == 2: return
        net(x).sum().backward(); net.module.weight.grad.item()
    dist.barrier()
