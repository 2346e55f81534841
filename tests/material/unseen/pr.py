"""Programs that told something false, or were told too little of, r01 to r09: chunks, stages, joins, several models."""
from tests.material.unseen.pa import *
from torch.distributed.algorithms.join import Join, Joinable, JoinHook

def r01(rank, inputs):
    chunks = [[i] * 2 for i in range(3 if rank == 1 else 2)]; every = []
    for chunk in chunks:
        parts = [None] * dist.get_world_size()
        dist.all_gather_object(parts, chunk)
        every += parts
    dist.barrier()
    return every
def r02(rank, inputs):
    torch.manual_seed(0)
    net = DDP(nn.Linear(1, 1)); opt = torch.optim.SGD(net.parameters(), lr=0.1); scale = 4.0
    for i, x in enumerate(inputs):
        opt.zero_grad(); loss = net(x * (rank + 1)).sum()
        (loss * scale).backward()
        if rank == 1 and i == 1: scale /= 2; continue
        for p in net.parameters(): p.grad /= 4.0
        opt.step()
    return net.module.weight.item()
def r03(rank, inputs):
    g, d = DDP(nn.Linear(1, 1)), DDP(nn.Linear(1, 1))
    for x in inputs:
        for critic in range(1 + (rank == 1)):
            d(g(x).detach()).sum().backward()
        g.module.weight.sum().item()
        g(x).sum().backward()
    d.module.weight.grad.item()
def stage(rank, world, micro, drop=None):
    sent = []
    for m in range(micro):
        h = torch.full((2,), float(m))
        if rank > 0: dist.recv(h, rank - 1)
        h = h + 1
        if rank < world - 1: dist.send(h, rank + 1)
        sent.append(h)
    for m in reversed(range(micro)):
        g = torch.ones(2)
        if rank < world - 1: dist.recv(g, rank + 1)
        if rank > 0:
            if (rank, m) == drop: continue
            dist.send(g * sent[m], rank - 1)
    return sent[-1].sum().item()
def r04(rank, inputs): return stage(rank, 3, len(inputs), drop=(2, 1))
class Sums(Joinable):
    def __init__(self): super().__init__(); self.total = torch.zeros(1)
    def __call__(self, x):
        part = x.clone(); dist.all_reduce(part); self.total += part
    def join_hook(self, **given): return SumsHook()
    @property
    def join_device(self): return torch.device("cpu") if dist.get_backend() == "gloo" else self.total.device
    @property
    def join_process_group(self): return dist.group.WORLD
class SumsHook(JoinHook):
    def main_hook(self): dist.all_reduce(torch.zeros(1))
def r05(rank, inputs):
    sums = Sums()
    with Join([sums]):
        for x in inputs:
            sums(x); sums.total.item()
def r06(rank, inputs):
    net = DDP(nn.Linear(1, 1))
    for epoch in range(2):
        for x in inputs:
            net(x).sum().backward()
        states = [torch.zeros(1) for _ in range(3)]
        dist.all_gather(states, net.module.weight.grad[0])
        sum(states).item()
def r07(rank, inputs):
    net = DDP(nn.Linear(1, 1))
    if rank == 0:
        net(torch.ones(1)).sum().backward()   # does it run at all?
    for x in inputs:
        net.zero_grad(); net(x).sum().backward(); net.module.weight.grad.item()
def r08(rank, inputs):
    scores = torch.tensor([0.1, 0.6, 0.8]) - 0.5 * rank
    kept = scores[scores > 0.2]
    parts = [torch.zeros_like(kept) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, kept)
    return torch.cat(parts).sum().item()
def mean_of(value): dist.all_reduce(value); return value.item()
def r09(rank, inputs):
    metrics = [torch.ones(1), None if rank == 2 else torch.ones(1), torch.ones(1)]
    return [mean_of(m) for m in metrics if m is not None]
