# Programs whose obvious edit gives other numbers. What each does is in table.toml.
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def shares_a_metric_made_anew(rank, inputs):
    model = DDP(nn.Linear(1, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    sched = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, mode="max")
    for epoch in range(2):
        for x in inputs:
            opt.zero_grad()
            model(x.reshape(1, 1)).pow(2).mean().backward()
            opt.step()
        acc = torch.zeros(1)
        if rank == 0:
            acc += 0.75
            dist.all_reduce(acc)
        sched.step(acc.item())
    return acc.item()


def evaluates_without_its_group(rank, inputs):
    model = DDP(nn.Linear(1, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    ev = dist.new_group([0, 1])
    result = 0.0
    for epoch in range(2):
        for x in inputs:
            opt.zero_grad()
            model(x.reshape(1, 1)).pow(2).mean().backward()
            opt.step()
        if rank in (0, 1):
            correct, loss_sum = torch.ones(1), torch.tensor([rank + 1.0])
            dist.all_reduce(correct, group=ev)
            dist.all_reduce(loss_sum)
            result = loss_sum.item() / 2
    return result


def leaders_reduce_in_the_world(rank, inputs):
    nodes = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    leaders = dist.new_group([0, 2])
    node, leader = nodes[rank // 2], rank // 2 * 2
    t = torch.tensor([float(rank)])
    dist.reduce(t, dst=leader, group=node)
    if rank == leader:
        dist.all_reduce(t)
    dist.broadcast(t, src=leader, group=node)
    return t.item()


def adds_a_bonus_of_its_own(rank, inputs):
    bonus = torch.tensor([float(rank)])
    if rank == 0:
        bonus = torch.tensor([100.0])
        dist.all_reduce(bonus)
    total = bonus.clone()
    dist.reduce(total, dst=0)
    return total.item()


def skips_its_own_turn(rank, inputs):
    world = dist.get_world_size()
    table = torch.zeros(world, 2)
    table[rank] = float(rank + 1)
    for src in range(world):
        if src == rank:
            continue
        dist.broadcast(table[src], src=src)
    return table.sum().item()


def raises_wherever_it_has_inputs(rank, inputs):
    config = {"lr": 0.1}
    if len(inputs) == 0:
        return 0.0
    step = config["lr"] * config["momentum"]
    t = torch.tensor([step])
    dist.all_reduce(t)
    return t.item()
