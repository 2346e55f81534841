"""Programs as people write them, q01 to q36: classes with state, callbacks, context managers, work handles, pipelines."""
from tests.material.unseen.pa import *
import functools

class Trainer:
    def __init__(self, rank, patience=2):
        torch.manual_seed(0)
        self.rank, self.model, self.best, self.bad, self.patience = rank, DDP(nn.Linear(1, 1)), float("inf"), 0, patience
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.sched = torch.optim.lr_scheduler.StepLR(self.opt, 1, 0.5)
    def step(self, x):
        self.opt.zero_grad()
        loss = self.model(x).pow(2).mean()
        loss.backward()
        self.opt.step()
        return loss.item()
    def epoch(self, inputs):
        total = sum(self.step(x) for x in inputs)
        self.sched.step()
        return total
    def improved(self, value):
        if value < self.best:
            self.best, self.bad = value, 0
            return True
        self.bad += 1
        return False

def q01(rank, inputs):
    trainer = Trainer(rank)
    for epoch in range(3):
        mean = torch.tensor(trainer.epoch(inputs))
        dist.all_reduce(mean)
        if rank == 0: print(epoch, mean.item() / dist.get_world_size())
def q02(rank, inputs):
    g, d = DDP(nn.Linear(1, 1)), DDP(nn.Linear(1, 1))
    for x in inputs:
        fake = g(x)
        if rank == 0:
            d(fake.detach()).sum().backward()
        else:
            (2 * d(fake.detach())).mean().backward()
        g.module.weight.sum().item()
        g(x).sum().backward()
def q03(rank, inputs):
    trainer = Trainer(rank)
    for epoch in range(6):
        value = trainer.epoch(inputs) * (1 if rank == 0 else epoch)
        if not trainer.improved(value) and trainer.bad >= trainer.patience:
            break
def q04(rank, inputs):
    trainer = Trainer(rank)
    for epoch in range(6):
        value = trainer.epoch(inputs)
        stop = torch.tensor([0])
        if rank == 0 and epoch == 2: stop[0] = 1
        dist.broadcast(stop, 0)
        if stop.item():
            break
def q05(rank, inputs):
    net = DDP(nn.Linear(1, 1))
    labels = [torch.ones(1)] * (3 - rank)
    for x, y in zip(inputs, labels):
        loss = (net(x) - y).pow(2).sum()
        loss.backward()
        loss.item(); net.module.weight.grad.item()
def q06(rank, inputs):
    seen = torch.zeros(1)
    try:
        for i, x in enumerate(inputs):
            if rank == 1 and i == 1: raise ValueError("bad record")
            dist.all_reduce(x)
            seen += x
    finally:
        dist.barrier()
def q07(rank, inputs):
    def mean(x):
        dist.all_reduce(x)
        return x.item() / dist.get_world_size()
    values = [mean(x) for x in inputs]
    dist.barrier()
    return values
def logged(function):
    @functools.wraps(function)
    def inner(rank, *given):
        result = function(*given)
        if rank < 1:
            dist.all_reduce(torch.tensor(result))
        return result
    return inner
@logged
def evaluate(net, x): return net.module(x).sum().item()
def q08(rank, inputs):
    net = DDP(nn.Linear(1, 1))
    for x in inputs:
        net(x).sum().backward()
        evaluate(rank, net, x)
def q09(rank, inputs):
    works = []
    for x in inputs:
        works.append(dist.all_reduce(x, async_op=True))
    dist.barrier()
    for work in works: work.wait()
    return [x.item() for x in inputs]
def q10(rank, inputs):
    works = []
    for i, x in enumerate(inputs):
        if rank == 1 and i == 1: continue
        works.append((x, dist.all_reduce(x, async_op=True)))
    for x, work in works:
        work.wait(); x.item()
def q11(rank, inputs):
    net = DDP(nn.Linear(1, 1)); scale, skipped = 1.0, 0
    for i, x in enumerate(inputs):
        loss = net(x).sum() * scale
        loss.backward()
        found_inf = rank == 1 and i == 1
        if found_inf:
            scale, skipped = scale / 2, skipped + 1
            continue
        total = loss.detach().clone(); dist.all_reduce(total)
        total.item()
def q12(rank, inputs):
    net = DDP(nn.Linear(1, 1)); scale = 1.0
    for i, x in enumerate(inputs):
        loss = net(x).sum() * scale
        loss.backward()
        found = torch.tensor(float(rank == 1 and i == 1))
        dist.all_reduce(found, op=dist.ReduceOp.MAX)
        if found.item():
            scale /= 2
            continue
        total = loss.detach().clone(); dist.all_reduce(total)
        total.item()
def q13(rank, inputs):
    config = [None]
    if rank == 0:
        config = [{"lr": 0.1}]
        dist.broadcast_object_list(config, src=0)
    dist.barrier()
    return config[0]
def q14(rank, inputs):
    config = [{"lr": 0.1}, "run 7"] if rank == 0 else [None, None]
    dist.broadcast_object_list(config, src=0)
    dist.barrier()
    return config[1]
def batches(inputs, size, drop_last):
    batch = []
    for one in inputs:
        batch.append(one)
        if len(batch) == size:
            yield torch.stack(batch)
            batch = []
    if batch and not drop_last:
        yield torch.stack(batch)
def q15(rank, inputs):
    net = DDP(nn.Linear(1, 1))
    for batch in batches(inputs, 2, True):
        loss = net(batch).sum(); loss.backward(); loss.item()
def q16(rank, inputs):
    net = DDP(nn.Linear(1, 1))
    for batch in batches(inputs, 2, False):
        loss = net(batch).sum(); loss.backward(); net.module.weight.grad.item()
def q17(rank, inputs):
    net = DDP(nn.Linear(1, 1)); every = {0: 2, 1: 3}.get(rank, 2)
    for step, x in enumerate(inputs, 1):
        net(x).sum().backward()
        if step % every == 0:
            acc = torch.ones(1); dist.all_reduce(acc)
            acc.item()
def q18(rank, inputs):
    torch.manual_seed(0)
    net = DDP(nn.Linear(1, 1)); opt = torch.optim.SGD(net.parameters(), lr=0.1)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=0, factor=0.1)
    for i, x in enumerate(inputs):
        opt.zero_grad(); loss = net(x).pow(2).sum(); loss.backward(); opt.step()
        plateau.step(float(i) if rank == 1 else -float(i))
def q19(rank, inputs):
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mine = groups[rank // 2]
    for x in inputs:
        dist.all_reduce(x, group=mine); x.item()
    dist.barrier()
def fetch(rank, i, x):
    try:
        if (rank, i) == (1, 1): raise OSError("truncated")
        return x
    except OSError:
        return None
def q20(rank, inputs):
    net = DDP(nn.Linear(1, 1))
    for i, x in enumerate(inputs):
        batch = fetch(rank, i, x)
        if batch is None: continue
        net(batch).sum().backward(); net.module.weight.grad.item()
def q21(rank, inputs):
    net = DDP(nn.Linear(1, 1))
    good = (x for i, x in enumerate(inputs) if not (rank == 1 and i == 0))
    for x in good:
        net(x).sum().backward(); net.module.weight.grad.item()
def q22(rank, inputs):
    total, target, steps = 0, 4, 0
    while total < target:
        total += 1 + rank
        steps += 1
        t = torch.tensor(float(total)); dist.all_reduce(t); t.item()
    dist.barrier()
    return steps
def q23(rank, inputs):
    total = torch.zeros(1)
    while total.item() < 6:
        mine = torch.tensor([1.0 + rank]); dist.all_reduce(mine)
        total += mine
    dist.barrier()
    return total.item()
@contextlib.contextmanager
def first(rank):
    if rank != 0:
        dist.barrier()
    yield
    if rank == 0:
        dist.barrier()
def q24(rank, inputs):
    with first(rank):
        data = [x * 2 for x in inputs]
    for x in data:
        dist.all_reduce(x)
    return data[0].item()
def q25(rank, inputs):
    if rank < 2:
        with first(rank):
            print("prepares")
    for x in inputs:
        dist.all_reduce(x); x.item()
def q26(rank, inputs):
    results = [x.item() for x in inputs if x.item() + rank < 3]
    if results:
        gathered = [None] * dist.get_world_size()
        dist.all_gather_object(gathered, results)
    dist.barrier()
def q27(rank, inputs):
    for x in inputs:
        if rank == 0:
            parts = [torch.zeros(1) for _ in range(dist.get_world_size())]
            dist.gather(x, parts)
            x = torch.stack(parts).mean(0)
        else:
            dist.gather(x)
        dist.barrier()
def tree(rank, value, world, wrong=False):
    by = 1
    while by < world:
        if rank % (2 * by) == by:
            dist.send(value, rank - by)
            break
        if rank % (2 * by) == 0:
            part = torch.zeros(1)
            dist.recv(part, rank + (3 - by if wrong and rank == 0 and by == 2 else by))
            value = value + part
        by *= 2
    return value
def q28(rank, inputs):
    total = tree(rank, torch.ones(1) * rank, 4)
    dist.barrier()
    return total.item()
def q29(rank, inputs):
    total = tree(rank, torch.ones(1) * rank, 4, wrong=True)
    return total.item()
def log(x): x.item()
def validate(x): dist.all_reduce(x); x.item()
def q30(rank, inputs):
    callbacks = [log] + ([validate] if rank == 0 else [])
    net = DDP(nn.Linear(1, 1))
    for x in inputs:
        net(x).sum().backward(); net.module.weight.grad.item()
        for callback in callbacks: callback(x.clone())
def q31(rank, inputs):
    rounds = 3 if rank else 2
    for i in range(rounds):
        t = torch.ones(1); dist.all_reduce(t)
        t.item()
def q32(rank, inputs):
    net = DDP(nn.Linear(1, 1))
    for i, x in enumerate(inputs):
        last = (i + 1) % 2 == 0 or i + 1 == len(inputs)
        with contextlib.nullcontext() if last else net.no_sync():
            net(x).sum().backward()
def q33(rank, inputs):
    mode = "train" if rank else "serve"
    match mode:
        case "train":
            dist.barrier()
        case "serve":
            dist.all_reduce(torch.ones(1))
def q34(rank, inputs):
    net = DDP(nn.Linear(1, 1)); best = 0.0
    for epoch in range(2):
        for x in inputs: net(x).sum().backward()
        net.module.weight.grad.item()
        acc = 1.0 + epoch if rank == 0 else 1.0
        if acc > best:
            best = acc
            states = [torch.zeros(1) for _ in range(dist.get_world_size())]
            dist.all_gather(states, torch.tensor([acc])); states[0].item()
def q35(rank, inputs):
    group = dist.new_group([0, 2])
    for x in inputs:
        if rank in (0, 2):
            dist.all_reduce(x, group=group)
        dist.all_reduce(x); x.item()
    if rank == 0: torch.save({}, os.devnull)
    dist.barrier()
def q36(rank, inputs):
    queue, done = list(inputs), 0
    while queue:
        x = queue.pop()
        if rank == 2 and len(queue) == 1: queue.clear()
        dist.all_reduce(x); x.item(); done += 1
    return done
def q37(rank, inputs):
    net = DDP(nn.Linear(1, 1))
    for i, x in enumerate(inputs):
        if (i + rank) % 2:
            net(x + 0.1).sum().backward()
        else:
            loss = net(x).sum()
            loss.backward()
def q38(rank, inputs):
    nets = [DDP(nn.Linear(1, 1)), DDP(nn.Linear(1, 1))]
    for x in inputs:
        for net in nets if rank else nets[::-1]:
            net(x).sum().backward()
def q39(rank, inputs):
    a, b = DDP(nn.Linear(1, 1)), DDP(nn.Linear(1, 1))
    for x in inputs:
        if rank == 0:
            a(x).sum().backward()
            b(x).sum().backward()
        else:
            b(2 * x).sum().backward()
            a(2 * x).sum().backward()
