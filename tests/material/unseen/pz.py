"""Programs that were told falsely or not enough: several lines, servers, keys of dicts, roots, sizes of sends."""
from tests.material.unseen.pa import *

def z02(rank, inputs):
    x = torch.ones(1) * rank
    if rank == 0:
        dist.all_reduce(x)
    elif rank == 1:
        print("worker"); dist.all_reduce(x)
    else:
        dist.barrier()
    dist.all_reduce(x)
    return x.item()
def z05(rank, inputs):
    if rank == 0:
        for step in range(2):
            for worker in range(1, 3):
                grad = torch.zeros(1); dist.recv(grad, worker)
            for worker in range(1, 3): dist.send(grad, worker)
    else:
        for step in range(2):
            if rank == 2 and step == 1: return "converged"
            dist.send(torch.ones(1), 0)
            weights = torch.zeros(1); dist.recv(weights, 0)
class Metrics:
    def __init__(self): self.sums = {}
    def add(self, name, value): self.sums[name] = self.sums.get(name, 0.0) + value
    def reduce(self):
        for name in self.sums:
            t = torch.tensor([self.sums[name]]); dist.all_reduce(t); self.sums[name] = t.item()
        return self.sums
def z16(rank, inputs):
    m = Metrics()
    if rank == 1: m.add("skipped", 1.0)
    m.add("loss", 2.0); m.add("skipped", 0.0)
    return m.reduce()
def z17(rank, inputs):
    m = Metrics()
    if rank == 1: m.add("skipped", 1.0)
    m.add("loss", 2.0); m.add("skipped", 0.0)
    m.sums = dict(sorted(m.sums.items()))
    return m.reduce()
def z18(rank, inputs):
    for mb, x in enumerate(inputs):
        if rank > 0: dist.recv(x, rank - 1)
        x = x * 2
        if rank == 1 and mb == 1: x = x.reshape(2, 2)
        if rank < 2: dist.send(x, rank + 1)
    dist.barrier()
def z21(rank, inputs):
    w = torch.ones(2) * rank
    dist.broadcast(w, src=rank)
    dist.barrier()
    return w.sum().item()
def z22(rank, inputs):
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mine = groups[rank // 2]
    t = torch.ones(1) * rank
    dist.broadcast(t, src=0, group=mine)
    return t.item()
def z26(rank, inputs):
    n = dist.get_world_size(); size = 3 if rank == 2 else 2
    out = {p: torch.zeros(2) for p in range(n) if p != rank}
    ops = [dist.P2POp(dist.isend, torch.ones(size), p) for p in out] + [dist.P2POp(dist.irecv, out[p], p) for p in out]
    for work in dist.batch_isend_irecv(ops): work.wait()
    return sum(t.sum().item() for t in out.values())
def z27(rank, inputs):
    dst = dist.get_world_size() - 1 if rank == 2 else 0
    got = [None] * 3 if rank == dst else None
    dist.gather_object({"rank": rank}, got, dst=dst)
    dist.barrier()
def z28(rank, inputs):
    grads = {"bias": torch.ones(2)} if rank == 1 else {}
    grads["weight"] = torch.ones(2); grads.setdefault("bias", torch.ones(2))
    for name, grad in grads.items():
        dist.all_reduce(grad)
        grad /= dist.get_world_size()
    return grads["weight"].sum().item()
def z29(rank, inputs):
    if rank == 0:
        for step in range(4):
            for worker in range(1, 3):
                grad = torch.zeros(1); dist.recv(grad, worker)
    else:
        for step in range(4):
            if rank == 2 and step == 1: return "converged"
            dist.send(torch.ones(1), 0)
def z30(rank, inputs):
    give = [4, 4, 4]; get = [4, 4, 400] if rank == 0 else [4, 4, 4]
    out = torch.zeros(sum(get)); dist.all_to_all_single(out, torch.arange(12.0), get, give)
    dist.barrier()
    return out.tolist()
