"""Programs that were told falsely or not enough: one-line branches, retries, items, tags, generators, contexts."""
from tests.material.unseen.pa import *

def v01(rank, inputs):
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
    copies = [dist.new_group([0, 2]), dist.new_group([1, 3])][rank % 2]
    for step in range(3):
        a = torch.ones(1); dist.all_reduce(a, group=pairs)
        g = torch.ones(2)
        if not (rank == 3 and step == 1): dist.all_reduce(g, group=copies)
        b = torch.ones(1); dist.all_gather([torch.zeros(1), torch.zeros(1)], b, group=pairs)
def v02(rank, inputs):
    net = DDP(nn.Linear(1, 1))
    for i, x in enumerate(inputs):
        for attempt in range(2):
            try:
                net(x).sum().backward()
                if rank == 2 and i == 1 and attempt == 0: raise RuntimeError("out of memory")
                break
            except RuntimeError: continue
    dist.barrier()
def v03(rank, inputs):
    net = DDP(nn.Linear(1, 1)); flag = [False]
    for i, x in enumerate(inputs):
        net(x).sum().backward()
        if rank == 0 and i == 1: flag[0] = True
        if flag[0]: dist.broadcast_object_list(flag, src=0)
        if flag[0]: break
def v04(rank, inputs):
    for step in range(3):
        if rank == 0: dist.send(torch.ones(1), 1, tag=step)
        else: dist.recv(torch.zeros(1), 0, tag=step + (step == 2))
def v05(rank, inputs):
    mine = list(range(7))[rank::2]; net = DDP(nn.Linear(1, 1)); opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for epoch in range(2):
        for n in range(len(mine)):
            net(torch.ones(1, 1) * mine[n]).sum().backward(); opt.step(); opt.zero_grad()
        seen = torch.tensor([1.0]); dist.all_reduce(seen)
def rounds(net, inputs):
    for i, x in enumerate(inputs):
        net(x).sum().backward(); yield i
def v06(rank, inputs):
    net = DDP(nn.Linear(1, 1))
    for i in rounds(net, inputs):
        if rank == 0 and i == 1: break
    dist.barrier()
def v07(rank, inputs):
    stage, copy = divmod(rank, 2); copies = [dist.new_group([2 * s, 2 * s + 1]) for s in range(4)][stage]
    for mb in range(3):
        t = torch.zeros(1)
        if stage: dist.recv(t, rank - 2)
        if stage < 3: dist.send(t + 1, rank + 2)
    for mb in range(2):
        if (stage, copy, mb) == (2, 1, 1): continue
        dist.all_reduce(torch.ones(4), group=copies)
    dist.barrier()
class Profile:
    def __enter__(self): return self
    def __exit__(self, *error): dist.barrier()
def v08(rank, inputs):
    net = DDP(nn.Linear(1, 1))
    for i, x in enumerate(inputs):
        with (Profile() if i % 2 == 0 and rank < 2 else contextlib.nullcontext()):
            net(x).sum().backward()
def v09(rank, inputs):
    net = DDP(nn.Linear(1, 1)); texts = ["1", "2", "x" if rank == 1 else "3"]
    for number in map(float, texts):
        net(torch.full((1, 1), number)).sum().backward()
