# Programs in which a function's result, or a new object, decides what a rank does; table.toml describes them.
import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

SAVED = {0: {"epoch": 1}, 1: {"epoch": 1}}


class Trainer:
    def __init__(self, rank):
        self.rank, self.level, self.model = rank, 0, DDP(nn.Linear(1, 1, bias=False))

    def step(self, x):
        self.model(x.reshape(1, 1)).sum().backward()


def load_state(rank):
    try:
        state = SAVED[rank]
    except KeyError:
        return {"epoch": 0}
    return state


def resumes_without_its_state(rank, inputs):
    trainer = Trainer(rank)
    trainer.state = load_state(rank)
    fit(trainer, inputs, 3)
    dist.all_reduce(torch.ones(2))


def fit(trainer, inputs, epochs):
    for _ in range(trainer.state["epoch"], epochs):
        for x in inputs:
            trainer.step(x)


class Levels:
    def __init__(self, trainer):
        self.trainer = trainer

    def __iter__(self):
        return iter(range(2 + self.trainer.level))


def raises_its_level(rank, inputs):
    trainer = Trainer(rank)
    for loss in (0.1 if rank == 1 else 0.9, 0.9):
        for _ in Levels(trainer):
            trainer.step(torch.ones(1))
        dist.barrier()
        if loss < 0.5:
            trainer.level += 1


class TwoHeads(nn.Module):
    def __init__(self, both):
        super().__init__()
        self.main, self.aux, self.both = nn.Linear(1, 1), nn.Linear(1, 1), both

    def forward(self, x):
        if self.both:
            return self.main(x), self.aux(x)
        return self.main(x), None


def loss_of(main, aux):
    return main.sum() if aux is None else main.sum() + aux.sum()


def leaves_a_head_out(rank, inputs):
    net = DDP(TwoHeads(rank == 0))
    for x in inputs:
        loss_of(*net(x.reshape(1, 1))).backward()


def alternate(*streams):
    streams = [iter(stream) for stream in streams]
    while True:
        for stream in streams:
            try:
                item = next(stream)
            except StopIteration:
                return
            yield item


def ends_with_its_shortest_stream(rank, inputs):
    trainer, batches = Trainer(rank), alternate(inputs, inputs[: 2 - (rank == 0)])
    for x in batches:
        trainer.step(x)
    dist.barrier()


def deals_by_norm(rank, inputs):
    weights = {name: torch.full((2,), float(n if rank else 3 - n)) for n, name in enumerate("abc")}
    order = sorted(weights, key=lambda name: weights[name].sum().item())
    owners = {name: index % 2 for index, name in enumerate(order)}
    for name, owner in owners.items():
        if owner == rank:
            weights[name] += 1
        dist.broadcast(weights[name], src=owner)


def forgets_rare_labels(rank, inputs):
    trainer, labels = Trainer(rank), {"cat": 3, "dog": 1 if rank == 1 else 3}
    for name, count in list(labels.items()):
        if count < 2:
            del labels[name]
    for name in ("cat", "dog"):
        trainer.step(torch.full((1,), float(labels[name])))


def handles_the_splits_it_has(rank, inputs):
    splits = {"val": inputs, "test": inputs} if rank == 0 else {"val": inputs}
    for command in (("eval", "val"), ("eval", "test"), ("sync", "")):
        match command:
            case ("eval", name) if name in splits:
                dist.all_reduce(torch.ones(3))
            case ("sync", _):
                dist.broadcast(torch.ones(1), src=0)


def leaves_the_ring(rank, inputs):
    size, block = dist.get_world_size(), torch.ones(1)
    for hop in range(size - 1):
        if (rank - hop) % size > rank:
            break
        incoming = torch.empty(1)
        ops = [dist.P2POp(dist.isend, block, (rank + 1) % size), dist.P2POp(dist.irecv, incoming, (rank - 1) % size)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        block = incoming
    block.item()
    dist.barrier()


class Env:
    def __init__(self, horizon):
        self.horizon, self.t = horizon, 0

    @torch.no_grad()
    def collect(self, norm):
        self.t = 0
        while self.t < self.horizon:
            dist.all_reduce(norm)
            self.t += 1


def collects_unlike_episodes(rank, inputs):
    trainer, env = Trainer(rank), Env(2 if rank == 1 else 3)
    for x in inputs:
        env.collect(torch.ones(2))
        trainer.step(x)


def debugs_without_sync(rank, inputs):
    model = DDP(nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with quietly(model, debug=rank == 0):
        for x in inputs:
            model(x.reshape(1, 1)).sum().backward()
            optimizer.step()
    dist.barrier()


def quietly(model, debug):
    if debug:
        return model.no_sync()
    return contextlib.nullcontext()


def routes_by_old_counts(rank, inputs):
    router = Router()
    for size in (4, 4 if rank == 0 else 2):
        router.exchange(torch.ones(size))


class Router:
    size = None

    def exchange(self, tokens):
        if self.size != len(tokens):
            self.size, theirs = len(tokens), torch.empty(2, dtype=torch.int64)
            dist.all_to_all_single(theirs, torch.full((2,), len(tokens) // 2))
            self.theirs = theirs.tolist()
        got = torch.empty(sum(self.theirs))
        dist.all_to_all_single(got, tokens, self.theirs)


def shares_what_it_measured(rank, inputs):
    for epoch in range(3):
        metrics = {"loss": 1.0} if (rank, epoch) == (1, 1) else {"loss": 1.0, "acc": 0.5}
        try:
            dist.all_gather_object([None, None], metrics["acc"])
        except KeyError:
            pass
        dist.barrier()


def teaches_batch_by_batch(rank, inputs):
    teacher = nn.Linear(1, 2)
    for batch in torch.arange(4.0 if rank == 0 else 3.0).reshape(-1, 1).split(2):
        logits = torch.zeros(len(batch), 2)
        if rank == 0:
            logits = teacher(batch).detach()
        dist.broadcast(logits, src=0)


class Timed:
    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if kind is None:
            dist.all_reduce(torch.ones(1))


def times_what_it_loads(rank, inputs):
    trainer = Trainer(rank)
    for index, x in enumerate(inputs):
        with contextlib.suppress(OSError), Timed():
            if index == rank == 1:
                raise OSError("truncated file")
        trainer.step(x)


def spares_small_gradients(rank, inputs):
    model = nn.Linear(1, 1, bias=False)
    for index, x in enumerate(inputs):
        (model(x.reshape(1, 1)) * (0.0 if index == rank == 1 else 1.0)).sum().backward()
        for p in model.parameters():
            grad = p.grad
            if grad.abs().max() < 1e-6:
                continue
            dist.all_reduce(grad)
        model.zero_grad()
    dist.barrier()


def spares_broken_gradients(rank, inputs):
    weight = torch.ones(2)
    for index, x in enumerate(inputs):
        grad = weight * x * (float("nan") if index == rank == 1 else 1.0)
        if not torch.isfinite(grad).all():
            continue
        dist.all_reduce(grad)
        weight -= 0.1 * grad
    dist.barrier()


class Features:
    def __init__(self, known):
        self.known, self.asked = known, 0

    def mean(self, key):
        try:
            if key in self.known:
                return self.known[key]
        finally:
            self.asked += 1
        dist.all_reduce(torch.ones(4))


def returns_what_it_knows(rank, inputs):
    features = Features({"a": 1.0} if rank == 1 else {})
    for key in ("a", "b"):
        features.mean(key)
    dist.barrier()


def breaks_off_in_join(rank, inputs):
    model = DDP(nn.Linear(1, 1))
    with model.join():
        for index, x in enumerate(inputs):
            model(x.reshape(1, 1)).sum().backward()
            if index == rank == 1:
                break
            if index == 1:
                dist.barrier()
