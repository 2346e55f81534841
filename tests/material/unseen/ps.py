"""Programs that told something false, or were told too little of, s01 to s09: walrus, match, iterators, sends."""
from tests.material.unseen.pa import *

def s01(rank, inputs):
    net = DDP(nn.Linear(1, 1)); it = iter(inputs)
    while True:
        try:
            x = next(it)
        except StopIteration:
            break
        net(x).sum().backward()
    dist.barrier()
def s02(rank, inputs):
    queue = [0, 3, 2, 1] if rank == 0 else [5, 3, 0, 1]
    done = torch.zeros(1)
    while (n := queue.pop()):
        done += n; dist.all_reduce(done)
    dist.barrier()
    return done.item()
def s03(rank, inputs):
    mode = "max" if rank == 2 else "sum"; x = torch.tensor([float(rank)])
    match mode:
        case "sum": dist.all_reduce(x)
        case "max": dist.all_reduce(x, op=dist.ReduceOp.MAX)
    return x.item()
def tree_sum(values):
    if len(values) == 1:
        return values[0]
    half = len(values) // 2
    total = tree_sum(values[:half]) + tree_sum(values[half:])
    dist.all_reduce(total)
    return total
def s04(rank, inputs): return tree_sum(list(inputs)).item()
def s05(rank, inputs):
    net = nn.Linear(2, 2); names = [n for n, p in net.named_parameters() if not (rank == 1 and n == "bias")]
    params = dict(net.named_parameters())
    for n in names:
        t = params[n].detach().clone(); dist.all_reduce(t); t.sum().item()
    dist.barrier()
class Overlap:
    def __init__(self): self.works = []
    def start(self, x): self.works.append(dist.all_reduce(x, async_op=True))
    def finish(self):
        for work in self.works: work.wait()
def s06(rank, inputs):
    overlap = Overlap()
    for i, x in enumerate(inputs):
        if rank == 0 and i == 2: continue
        overlap.start(x)
    overlap.finish()
    dist.barrier()
def s07(rank, inputs):
    if rank == 0:
        for src in [1, 1, 2]:
            t = torch.zeros(1); dist.recv(t, src)
    else:
        for _ in range(rank): dist.send(torch.ones(1), 0)
def s08(rank, inputs):
    experts = [dist.new_group(list(range(4))), dist.new_group(list(range(4, 8)))][rank // 4]
    room = 3 if rank == 6 else 2
    out = torch.zeros(4 * room); dist.all_to_all_single(out, torch.ones(4 * room), group=experts)
def s09(rank, inputs):
    net = DDP(nn.Linear(1, 1))
    for epoch in range(2):
        for i, x in enumerate(inputs):
            loss = net(x).sum() / (0 if rank == 0 and epoch == 0 and i == 1 else 1)
            if not torch.isfinite(loss): break
            loss.backward(); net.module.weight.grad.item()
    dist.barrier()
