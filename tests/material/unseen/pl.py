# Programs where a function, a reply or the rank's role decides which messages are sent; table.toml describes them.
import contextlib
import math
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class EarlyExit(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.threshold = nn.Linear(2, 2), nn.Linear(2, 2), 2.0

    def forward(self, x):
        hidden = self.first(x)
        if x.mean() > self.threshold:
            return hidden
        return self.second(hidden)


def sync(grad):
    grad = grad.clone()
    dist.all_reduce(grad)
    return grad


def hooks_of_layers_that_ran(rank, inputs):
    net = EarlyExit()
    for p in net.parameters():
        p.register_hook(sync)
    batch = torch.full((1, 2), 3.0 if rank == 1 else 1.0)
    net(batch).sum().backward()
    dist.barrier()


class Frozen(nn.Module):
    def __init__(self, frozen):
        super().__init__()
        self.stem, self.head, self.frozen = nn.Linear(1, 1), nn.Linear(1, 1), frozen

    def forward(self, x):
        x = self.stem(x)
        x.register_hook(sync)
        if self.frozen:
            x = x.detach()
        return self.head(x)


def detaches_what_has_a_hook(rank, inputs):
    block = Frozen(frozen=rank == 2)
    block(torch.ones(1, 1)).sum().backward()
    dist.barrier()


def skips_and_saves(rank, inputs):
    for step, x in enumerate(inputs):
        empty = rank == 1 and step == 1
        if empty:
            continue
        t = x.clone()
        dist.all_reduce(t)
        save = rank == 2 and step == 2
        if save:
            dist.barrier()
    return rank


def first_stage(x, grad):
    dist.send(x, 1)
    dist.recv(grad, 1)


def second_stage(x, grad):
    dist.recv(x, 0)
    dist.recv(grad, 2)
    dist.send(grad.item() * x, 2)
    dist.send(grad, 0)


def last_stage(x, grad):
    dist.recv(x, 1)
    dist.send(grad * x.item(), 1)


def stage_waits_for_its_gradient(rank, inputs):
    x, grad = torch.zeros(1), torch.zeros(1)
    if rank == 0:
        return first_stage(x, grad)
    if rank == 1:
        return second_stage(x, grad)
    return last_stage(x, grad)


def actor():
    current, reply = math.nan, None
    while True:
        value = yield reply
        if value != current:
            current, reply = value, 1.0
        else:
            reply = None


def acknowledges_changes_only(rank, inputs):
    settings = [0.1, 0.5, 0.5, 0.2]
    if rank == 0:
        for value in settings:
            dist.send(torch.tensor([value]), 1)
            dist.recv(torch.zeros(1), 1)
        return
    handler = actor()
    next(handler)
    for _ in settings:
        setting = torch.zeros(1)
        dist.recv(setting, 0)
        reply = handler.send(setting.item())
        if reply is not None:
            dist.send(torch.tensor([reply]), 0)


@contextlib.contextmanager
def in_turn(rank):
    for _ in range(rank):
        dist.barrier()
    yield
    for _ in range(rank, dist.get_world_size()):
        dist.barrier()


def read(rank, files):
    if rank not in files:
        raise FileNotFoundError(rank)
    return files[rank]


def turns_end_at_an_error(rank, inputs):
    try:
        with in_turn(rank):
            size = read(rank, {0: 10, 2: 12})
    except FileNotFoundError:
        size = 0
    dist.all_reduce(torch.tensor([float(size)]))


class Rewinding:
    def __init__(self, losses):
        self.model = DDP(nn.Linear(1, 1))
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.losses, self.step, self.saved = losses, 0, None

    def take(self, x):
        self.opt.zero_grad()
        self.model(x.reshape(1, 1)).sum().backward()
        self.opt.step()
        loss = self.losses.pop(0)
        if loss > 3:
            self.model.load_state_dict(self.saved)
            self.step -= 1
            return
        self.saved = {key: value.clone() for key, value in self.model.state_dict().items()}
        self.step += 1


def rewinds_at_a_spike(rank, inputs):
    trainer = Rewinding([1.0, 9.0 if rank == 1 else 1.0] + [1.0] * 9)
    while trainer.step < len(inputs):
        trainer.take(inputs[trainer.step])
    dist.all_reduce(torch.ones(1))


def meet(verbose):
    if verbose:
        dist.monitored_barrier(timeout=timedelta(seconds=3))
    else:
        dist.barrier()


def monitored_where_verbose(rank, inputs):
    meet(verbose=rank == 0)


class Victim:
    def __init__(self, queue):
        self.queue = queue

    def serve(self, thief):
        while self.queue:
            self.queue.pop()
            dist.recv(torch.zeros(1), thief)
            dist.send(torch.ones(1), thief)


class Thief:
    def steal(self, victim):
        while True:
            dist.send(torch.ones(1), victim)
            left = torch.zeros(1)
            dist.recv(left, victim)
            if left.item() < 0:
                return


def steals_from_a_rank_that_left(rank, inputs):
    if rank == 1:
        Victim(["a", "b"]).serve(thief=2)
    if rank == 2:
        Thief().steal(victim=1)
    dist.barrier()


def restores_momentum_on_one(rank, inputs):
    net = DDP(nn.Linear(1, 1))
    opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    if rank == 0:
        state = opt.state_dict()
        momenta = [{"momentum_buffer": torch.ones(1, 1)}, {"momentum_buffer": torch.ones(1)}]
        state["state"] = dict(enumerate(momenta))
        opt.load_state_dict(state)
    for x in inputs:
        net(x.reshape(1, 1)).pow(2).mean().backward()
        opt.step()
        opt.zero_grad()


def no_group_is_the_world(rank, inputs):
    pairs = {"pair0": dist.new_group([0, 1]), "pair_1": dist.new_group([2, 3])}
    dist.all_reduce(torch.ones(1), group=pairs.get(f"pair{rank // 2}"))
    dist.barrier()
