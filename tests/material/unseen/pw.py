"""Programs that were told falsely or not enough: a root's branch, join() that throws, rounds of sends, a circle."""
from tests.material.unseen.pa import *

def w01(rank, inputs):
    for step in range(2):
        out = torch.zeros(1)
        if rank == 0: dist.scatter(out, [torch.ones(1) * r for r in range(3)], src=0)
        elif rank == 1 or step == 0: dist.scatter(out, src=0)
    dist.barrier()
def w02(rank, inputs):
    net = DDP(nn.Linear(1, 1))
    try:
        with net.join(throw_on_early_termination=True):
            for x in inputs: net(x).sum().backward()
    except RuntimeError: pass
    if rank == 0: dist.barrier()
def w03(rank, inputs):
    for mb in range(3):
        t = torch.ones(1)
        if rank > 0: dist.recv(t, rank - 1)
        if rank < 2 and not (rank == 1 and mb == 2): dist.send(t, rank + 1)
def w04(rank, inputs):
    if rank == 0:
        for i in range(3): dist.send(torch.ones(1), 1)
    else:
        for i in range(3):
            if i == 0: continue
            dist.recv(torch.zeros(1), 0)
    dist.barrier()
def w05(rank, inputs):
    a, b = dist.new_group([0, 1]), dist.new_group([1, 2])
    if rank == 0: dist.all_reduce(torch.ones(1), group=a)
    if rank == 1:
        dist.all_reduce(torch.ones(1), group=b); dist.all_reduce(torch.ones(1), group=a)
    if rank == 2: dist.barrier(); dist.all_reduce(torch.ones(1), group=b)
    else: dist.barrier()
