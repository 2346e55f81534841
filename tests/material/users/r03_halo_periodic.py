# FAULT. World 5. Halo exchange by batch_isend_irecv: every rank posts neighbours by its own `periodic`; only rank 0 has periodic=True (its config), so it sends to and receives from rank 4, which posts nothing for it.
# Culprit: rank 0. Cause: `if 0 <= peer < world or periodic:` with periodic True on rank 0 alone. Waits: rank 0 for rank 4.
# A fix: the same `periodic` on all; the exchanged halos of neighbours kept.
import torch
import torch.distributed as dist

COUNTS = (1, 1, 1, 1, 1)


def exchange(field, rank, world, periodic):
    halos, ops = {}, []
    for side in (-1, +1):
        peer = rank + side
        if 0 <= peer < world or periodic:
            peer %= world
            halos[side] = torch.zeros(1)
            edge = field[:1].clone() if side < 0 else field[-1:].clone()
            ops.append(dist.P2POp(dist.isend, edge, peer))
            ops.append(dist.P2POp(dist.irecv, halos[side], peer))
    for request in dist.batch_isend_irecv(ops):
        request.wait()
    return halos


def program(rank, inputs):
    world = dist.get_world_size()
    periodic = {"boundary": "periodic" if rank == 0 else "open"}["boundary"] == "periodic"
    field = torch.arange(3.0) + 10 * rank
    for step in range(2):
        halos = exchange(field, rank, world, periodic)
        field = field + sum(h.item() for h in halos.values())
    return field.tolist()
