"""Programs that were told falsely or not enough: stages, halos, splits, tags, sizes of a gather, errors caught."""
from tests.material.unseen.pa import *
from datetime import timedelta

def pipe(rank, inputs, back=None):
    stage, copy = divmod(rank, 2)
    copies = [dist.new_group([0, 1]), dist.new_group([2, 3])][stage]
    weight = torch.ones(1)
    for x in inputs:
        if stage == 0:
            work = dist.isend(x * weight, rank + 2)
            grad = torch.zeros(1); dist.recv(grad, rank + 2)
            work.wait()
        else:
            act = torch.zeros(1); dist.irecv(act, rank - 2).wait()
            peer = rank - 2 if back is None else back
            dist.send(act * 2, peer)
            grad = act * 2
        dist.all_reduce(grad, group=copies)
        weight -= 0.1 * grad / 2
    return weight.item()
def j01(rank, inputs): return pipe(rank, inputs)
def j02(rank, inputs): return pipe(rank, inputs, 0 if rank == 3 else None)
def halo(rank, world, row, right=None):
    ops, left_edge, right_edge = [], torch.zeros(1), torch.zeros(1)
    if rank > 0:
        ops += [dist.P2POp(dist.isend, row[:1], rank - 1), dist.P2POp(dist.irecv, left_edge, rank - 1)]
    if rank < world - 1:
        ops += [dist.P2POp(dist.isend, row[-1:], rank + 1), dist.P2POp(dist.irecv, right_edge, right or rank + 1)]
    for work in dist.batch_isend_irecv(ops): work.wait()
    return left_edge.item() + right_edge.item()
def j04(rank, inputs):
    neighbour = {0: 2}.get(rank)
    return halo(rank, 3, torch.arange(4.0) + rank, neighbour)
HEADER, BODY = 1, 2
def j05(rank, inputs):
    if rank == 0:
        dist.send(torch.tensor([2.0]), 1, tag=HEADER)
        dist.send(torch.tensor([7.0]), 1, tag=BODY)
    else:
        body, header = torch.zeros(1), torch.zeros(1)
        dist.recv(body, 0, tag=BODY)
        dist.recv(header, 0, tag=HEADER)
        return header.item(), body.item()
def exchange(rank, counts, given):
    mine = torch.tensor(counts[rank]); theirs = torch.zeros(3, dtype=torch.long)
    dist.all_to_all_single(theirs, mine)
    tokens = torch.full((sum(counts[rank]),), float(rank))
    out = torch.zeros(sum(given or theirs.tolist()))
    dist.all_to_all_single(out, tokens, given or theirs.tolist(), counts[rank])
    return out.tolist()
COUNTS = [[1, 2, 0], [0, 1, 3], [2, 2, 1]]
def j17(rank, inputs): return exchange(rank, COUNTS, [2, 1, 1] if rank == 1 else None)
class Section:
    def __enter__(self): return self
    def __exit__(self, kind, error, trace):
        if kind is None: dist.barrier()
def j20(rank, inputs):
    for i, x in enumerate(inputs):
        try:
            with Section():
                if rank == 1 and i == 1: raise ValueError("bad sample")
                x *= 2
        except ValueError:
            print("skipped", i)
        dist.all_reduce(x)
    return x.item()
def j22(rank, inputs):
    for i, x in enumerate(inputs):
        if rank == 1 and i == 1:
            continue
        dist.monitored_barrier(timeout=timedelta(seconds=3))
        dist.all_reduce(x)
def j23(rank, inputs):
    try:
        if rank != 0:
            dist.barrier()
        if rank == 0:
            raise OSError("no space left")
        dist.barrier()
    except OSError as error:
        print("goes on without a cache:", error)
    for x in inputs: dist.all_reduce(x)
    return x.item()
def j24(rank, inputs):
    root = 1 if rank == 3 else 0
    for x in inputs:
        dist.reduce(x, root)
        dist.broadcast(x, 0)
    return x.item()
def j25(rank, inputs):
    part = torch.zeros(3 if rank == 2 else 2)
    chunks = [torch.ones(2) * r for r in range(3)] if rank == 0 else None
    dist.scatter(part, chunks, src=0)
    dist.barrier()
    return part.tolist()
def j26(rank, inputs):
    rows = [dist.new_group(list(range(4))), dist.new_group(list(range(4, 8)))]
    columns = [dist.new_group([c, c + 4]) for c in range(4)]
    row, column = rows[rank // 4], columns[rank % 3]
    t = torch.ones(1)
    dist.all_reduce(t, group=row)
    dist.all_reduce(t, group=column)
    dist.barrier()
    return t.item()
def j27(rank, inputs):
    rows = [torch.zeros(2) for _ in range(3)] if rank == 0 else None
    dist.gather(torch.ones(3 if rank == 2 else 2), rows, dst=0)
    dist.barrier()
