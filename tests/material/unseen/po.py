# Programs that wait outside of collectives, and for the wrong part of a group. What each does is in table.toml.
import time
from datetime import timedelta

import torch
import torch.distributed as dist


def publishes_under_another_key(rank, inputs):
    store = dist.PrefixStore("run", dist.distributed_c10d._get_default_store())
    if rank == 1:
        store.set("ckpt/1", "/data/step100")
    else:
        store.get("ckpt_1")
    dist.barrier()
    return rank


def gives_up_on_a_key(rank, inputs):
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        try:
            store.wait(["warm"], timedelta(seconds=2))
        except dist.DistStoreError:
            return "cold"
    t = torch.ones(1)
    dist.all_reduce(t)
    return t.item()


def asks_again_for_a_late_key(rank, inputs):
    store = dist.PrefixStore("mine", dist.distributed_c10d._get_default_store())
    if rank == 1:
        time.sleep(1)
        store.set("ready", "1")
    else:
        while True:
            try:
                store.wait(["ready"], timedelta(milliseconds=300))
                break
            except dist.DistStoreError:
                pass
        store.delete_key("ready")
    t = torch.ones(1)
    dist.all_reduce(t)
    return t.item()


def makes_its_group_again(rank, inputs):
    failures = [rank == 1]
    for attempt in range(2):
        group = dist.new_group([0, 1, 2])
        try:
            if failures and failures.pop():
                raise OSError("disk full")
            t = torch.tensor([1.0])
            dist.all_reduce(t, group=group)
            return t.item()
        except OSError:
            continue
    return None


def receives_more_objects_than_were_sent(rank, inputs):
    if rank == 0:
        dist.send_object_list([{"lr": 0.1}, "go"], dst=1)
        return 2
    got = [None] * 3
    dist.recv_object_list(got, src=0)
    return got


def one_worker_gets_no_job(rank, inputs):
    workers = dist.new_group([1, 2, 3])
    job = torch.zeros(1)
    if rank == 0:
        for worker in range(1, dist.get_world_size() - 1):
            dist.send(torch.tensor([float(worker)]), worker)
    else:
        dist.recv(job, 0)
        dist.monitored_barrier(workers, timeout=timedelta(seconds=3))
    dist.barrier()
    return job.item()


def shares_an_embedding(rank, inputs):
    embedding = dist.new_group([0, 3])
    x = torch.ones(1)
    if rank > 0:
        dist.recv(x, rank - 1)
    y = x * 1e30
    if rank < 3:
        dist.send(y, rank + 1)
    loss = y * 1e30 if rank == 3 else y
    grad = torch.ones(2) * rank
    if rank == 0:
        dist.all_reduce(grad, group=embedding)
    if rank == 3 and loss.isfinite():
        dist.all_reduce(grad, group=embedding)
    dist.barrier()
    return grad.sum().item()


def hands_on_no_masked_block(rank, inputs):
    world = dist.get_world_size()
    kv = torch.full((2,), rank + 1.0)
    for step in range(world):
        owner = (rank - step) % world
        if owner > rank:
            continue
        incoming = torch.empty(2)
        ops = [dist.P2POp(dist.isend, kv, (rank + 1) % world), dist.P2POp(dist.irecv, incoming, (rank - 1) % world)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        kv = incoming
    total = kv.sum()
    dist.all_reduce(total)
    return total.item()
