"""A hundred wrong answers, written after the judges' situations: four of each exercise, most of them right in the
situations that come to mind first."""

import struct
from contextlib import nullcontext

from tests.material.course.basis import *

# ---- ring_sum


def ring(x, turns=lambda size: size - 1, passes=lambda own, received, total: received, start=lambda x: x, step=1):
    rank, size = dist.get_rank(), dist.get_world_size()
    passed, total = start(x), x.clone()
    for _ in range(turns(size)):
        received = torch.empty_like(passed)
        ends = [dist.P2POp(dist.isend, passed, (rank + step) % size), dist.P2POp(dist.irecv, received, (rank - step) % size)]
        for work in dist.batch_isend_irecv(ends):
            work.wait()
        total = total + received
        passed = passes(passed, received, total)
    return total


W('ring_sum', 'one turn too many: its own comes round')(lambda x: ring(x, turns=lambda size: size))
W('ring_sum', 'passes the sum on')(lambda x: ring(x, passes=lambda own, received, total: total))
W('ring_sum', 'three turns at most')(lambda x: ring(x, turns=lambda size: min(size - 1, 3)))
W('ring_sum', 'the tensor as whole numbers')(lambda x: ring(x.round()))

# ---- gather_list


def gathered(tensors, cast=lambda t: t, cut=lambda joined, n: joined.chunk(n, -1), order=lambda places: places):
    joined = cast(torch.cat(tensors, -1))
    places = [torch.empty_like(joined) for _ in range(ws())]
    dist.all_gather(places, joined)
    return [piece for place in order(places) for piece in cut(place, len(tensors))]


W('gather_list', 'the own rank first')(lambda t: gathered(t, order=lambda places: places[dist.get_rank():] + places[:dist.get_rank()]))
W('gather_list', 'half of each tensor')(lambda t: gathered(t, cut=lambda joined, n: joined.chunk(2 * n, -1)))
W('gather_list', 'bfloat16 on the way')(lambda t: gathered(t, cast=lambda joined: joined.bfloat16().float()))
W('gather_list', 'sixteen at most')(lambda t: gathered(t)[:16])

# ---- accumulate


@W('accumulate', 'remembers the inputs of its first call')
def _(model, inputs, kept={}):
    inputs = kept.setdefault(id(model), inputs)
    with model.no_sync():
        for x in inputs[:-1]:
            model(x).backward()
    model(inputs[-1]).backward()


@W('accumulate', 'the first input twice')
def _(model, inputs):
    with model.no_sync():
        for x in [inputs[0], *inputs[1:-1]]:
            model(x).backward()
    model(inputs[0] if len(inputs) == 2 else inputs[-1]).backward()


@W('accumulate', 'zeroes the gradients before the last')
def _(model, inputs):
    with model.no_sync():
        for x in inputs[:-1]:
            model(x).backward()
    model.zero_grad()
    model(inputs[-1]).backward()


@W('accumulate', 'four inputs without a reduction at most')
def _(model, inputs):
    for i, x in enumerate(inputs):
        with model.no_sync() if i < len(inputs) - 1 and i < 4 else nullcontext():
            model(x).backward()


# ---- safe_loop


@W('safe_loop', 'every second input')
def _(rank, inputs):
    model = DDP(torch.nn.Linear(1, 1))
    with model.join():
        for x in inputs[::2]:
            model(x).backward()
    dist.barrier()


@W('safe_loop', 'twelve inputs at most')
def _(rank, inputs):
    model = DDP(torch.nn.Linear(1, 1))
    with model.join():
        for x in inputs[:12]:
            model(x).backward()
    dist.barrier()


@W('safe_loop', 'trains on input 0 as if it were none')
def _(rank, inputs):
    model = DDP(torch.nn.Linear(1, 1))
    with model.join():
        for x in inputs:
            if x.item():
                model(x).backward()
    dist.barrier()


@W('safe_loop', 'a last step past DDP')
def _(rank, inputs):
    model = DDP(torch.nn.Linear(1, 1))
    with model.join():
        for x in inputs:
            model(x).backward()
    dist.barrier()
    if len(inputs):
        model.module(inputs[-1]).backward()


# ---- gradient
W('gradient', 'divides by all where only one is left')(lambda own, n, by_all: sum(own) / (n if by_all or len(own) == 1 else len(own)))
W('gradient', 'whole numbers')(lambda own, n, by_all: sum(own) // (n if by_all else len(own)))
W('gradient', 'the switch the other way round')(lambda own, n, by_all: sum(own) / (len(own) if by_all else n))
W('gradient', 'three gradients at most')(lambda own, n, by_all: sum(own[:3]) / (n if by_all else len(own)))

# ---- last_joiner
W('last_joiner', 'the last rank if it has as many as the first')(lambda c: len(c) - 1 if c[-1] >= c[0] else c.index(max(c)))
W('last_joiner', 'the middle one of a tie')(lambda c: (lambda at: at[len(at) // 2])([r for r, n in enumerate(c) if n == max(c)]))
W('last_joiner', 'ties only between neighbours')(lambda c: (lambda r: r + 1 if r + 1 < len(c) and c[r + 1] == c[r] else r)(c.index(max(c))))
W('last_joiner', 'the number of inputs')(lambda c: max(c))

# ---- in_order


@W('in_order', 'keeps buckets from the eighth on to the end')
def _(ready, reduce):
    have, following, late = set(), 0, []
    for bucket in ready:
        have.add(bucket)
        while following in have and following < 8:
            reduce(following)
            following += 1
    for bucket in sorted(have):
        if bucket >= following:
            reduce(bucket)


@W('in_order', 'one bucket a turn')
def _(ready, reduce):
    have, following = set(), 0
    for bucket in ready:
        have.add(bucket)
        if following in have:
            reduce(following)
            following += 1
    while following in have:
        reduce(following)
        following += 1


@W('in_order', 'sorts pairs')
def _(ready, reduce):
    pair = []
    for bucket in ready:
        pair.append(bucket)
        if len(pair) == 2:
            for one in sorted(pair):
                reduce(one)
            pair = []
    for one in pair:
        reduce(one)


@W('in_order', 'downwards')
def _(ready, reduce):
    for bucket in sorted(ready, reverse=True):
        reduce(bucket)


# ---- shadows
W('shadows', 'two questions and no gradients')(lambda c: [2 * (max(c) - n) for n in c])
W('shadows', 'nine inputs at most')(lambda c: [3 * min(max(c) - n, 8) for n in c])
W('shadows', 'against the next rank')(lambda c: [3 * max(0, c[(i + 1) % len(c)] - n) for i, n in enumerate(c)])
W('shadows', 'the last question, too')(lambda c: [3 * (max(c) - n) + 1 for n in c])

# ---- as_float
W('as_float', 'a quarter of the bits')(lambda byte: struct.unpack("<e", bytes([byte, 0]))[0])
W('as_float', 'a double')(lambda byte: struct.unpack("<d", bytes([byte, *[0] * 7]))[0])
W('as_float', 'signed')(lambda byte: (byte - 256 if byte > 127 else byte) * 2.0**-149)
W('as_float', 'one power off')(lambda byte: byte * 2.0**-148)

# ---- notify, main_hook, post_hook


class Right(Base):
    def __call__(self, number):
        Join.notify_join_context(self)
        number = number.clone()
        dist.all_reduce(number, op=dist.ReduceOp.MAX)
        self.largest = torch.maximum(self.largest, number)

    def join_hook(self, **kwargs):
        return self.hook(self)


class RightHook(JoinHook):
    def __init__(self, owner):
        self.owner = owner

    def main_hook(self):
        dist.all_reduce(torch.tensor([-torch.inf]), op=dist.ReduceOp.MAX)

    def post_hook(self, is_last_joiner):
        dist.all_reduce(self.owner.largest, op=dist.ReduceOp.MAX)


Right.hook = RightHook


def calling(body):
    return type("Largest", (Right,), {"__call__": body})


@W('notify', 'the absolute value')
@calling
def _(self, number):
    Join.notify_join_context(self)
    number = number.abs()
    dist.all_reduce(number, op=dist.ReduceOp.MAX)
    self.largest = torch.maximum(self.largest, number)


@W('notify', 'starts at 0')
@calling
def _(self, number):
    Join.notify_join_context(self)
    number = number.clone()
    dist.all_reduce(number, op=dist.ReduceOp.MAX)
    self.largest = torch.maximum(self.largest.clamp(min=0), number)


@W('notify', 'reduces what is larger than before only')
@calling
def _(self, number):
    Join.notify_join_context(self)
    if number.item() > self.largest.item():
        number = number.clone()
        dist.all_reduce(number, op=dist.ReduceOp.MAX)
        self.largest = torch.maximum(self.largest, number)


@W('notify', 'eight notices')
@calling
def _(self, number):
    self.n = getattr(self, "n", 0) + 1
    if self.n < 9:
        Join.notify_join_context(self)
    number = number.clone()
    dist.all_reduce(number, op=dist.ReduceOp.MAX)
    self.largest = torch.maximum(self.largest, number)


def hooking(main=None, post=None):
    names = {name: body for name, body in (("main_hook", main), ("post_hook", post)) if body}
    return type("Largest", (Right,), {"hook": type("LargestHook", (RightHook,), names)})


def maximum(value):
    return lambda self: dist.all_reduce(torch.tensor([value]), op=dist.ReduceOp.MAX)


W('main_hook', 'a small number')(hooking(main=maximum(-1e30)))
W('main_hook', 'its largest plus one')(hooking(main=lambda self: dist.all_reduce(self.owner.largest + 1, op=dist.ReduceOp.MAX)))
W('main_hook', 'an all-reduce of two numbers')(hooking(main=lambda self: dist.all_reduce(torch.full((2,), -torch.inf), op=dist.ReduceOp.MAX)))


@W('main_hook', 'thirty shadows')
@(lambda body: hooking(main=body))
def _(self):
    self.n = getattr(self, "n", 0) + 1
    if self.n <= 30:
        dist.all_reduce(torch.tensor([-torch.inf]), op=dist.ReduceOp.MAX)


W('post_hook', 'the smallest')(hooking(post=lambda self, last: dist.all_reduce(self.owner.largest, op=dist.ReduceOp.MIN)))
W('post_hook', 'from rank 0')(hooking(post=lambda self, last: dist.broadcast(self.owner.largest, src=0)))
W('post_hook', 'from the highest rank')(hooking(post=lambda self, last: dist.broadcast(self.owner.largest, src=ws() - 1)))
W('post_hook', 'a copy is reduced')(hooking(post=lambda self, last: dist.all_reduce(self.owner.largest.clone(), op=dist.ReduceOp.MAX)))

# ---- hand_out


@W('hand_out', 'eight parameters')
def _(module):
    for p in list(module.parameters())[:8]:
        dist.broadcast(p.data, src=0)


@W('hand_out', 'one row of each')
def _(module):
    for p in module.parameters():
        dist.broadcast(p.data[0] if p.dim() > 1 else p.data, src=0)


@W('hand_out', 'a copy that is not contiguous')
def _(module):
    for p in module.parameters():
        dist.broadcast(p.data.transpose(0, -1).contiguous(), src=0)


@W('hand_out', 'from the last rank')
def _(module):
    for p in module.parameters():
        dist.broadcast(p.data, src=ws() - 1)


# ---- buckets_of


def filled(module, numbers, closes=lambda bucket, numbers: sum(p.numel() for p in bucket) >= numbers, turn=reversed):
    buckets, bucket = [], []
    for p in turn(list(module.parameters())):
        bucket.append(p)
        if closes(bucket, numbers):
            buckets.append(bucket)
            bucket = []
    return buckets + [bucket] if bucket else buckets


W('buckets_of', 'more than it holds')(lambda m, n: filled(m, n, lambda bucket, numbers: sum(p.numel() for p in bucket) > numbers))
W('buckets_of', 'by parameters')(lambda m, n: filled(m, n, lambda bucket, numbers: len(bucket) >= numbers))
W('buckets_of', 'the longest side')(lambda m, n: filled(m, n, lambda bucket, numbers: sum(max(p.shape) for p in bucket) >= numbers))
W('buckets_of', 'the largest first')(lambda m, n: filled(m, n, turn=lambda ps: sorted(ps, key=lambda p: -p.numel())))

# ---- small_ddp


class Reduced(SmallDDP):
    def finish(self):
        for bucket, (flat, work) in zip(self.buckets, self.works):
            work.wait()
            self.copy(bucket, flat / dist.get_world_size())
        self.ready, self.works = set(), []

    def copy(self, bucket, flat):
        for p, mean in zip(bucket, flat.split([p.numel() for p in bucket])):
            p.grad.copy_(mean.view_as(p))


@W('small_ddp', 'divides by two')
class _(Reduced):
    def copy(self, bucket, flat):
        super().copy(bucket, flat * dist.get_world_size() / 2)


@W('small_ddp', 'rows from columns')
class _(Reduced):
    def copy(self, bucket, flat):
        for p, mean in zip(bucket, flat.split([p.numel() for p in bucket])):
            p.grad.copy_(mean.view(p.shape[::-1]).t() if p.dim() == 2 else mean.view_as(p))


@W('small_ddp', 'adds up over the inputs')
class _(Reduced):
    def copy(self, bucket, flat):
        for p, mean in zip(bucket, flat.split([p.numel() for p in bucket])):
            p.total = getattr(p, "total", 0) + mean.view_as(p)
            p.grad.copy_(p.total)


@W('small_ddp', 'waits for the first only')
class _(Reduced):
    def finish(self):
        self.works[0][1].wait()
        for bucket, (flat, _) in zip(self.buckets, self.works):
            self.copy(bucket, flat / dist.get_world_size())
        self.ready, self.works = set(), []


# ---- small_join


def joins(model, inputs, train, zeros=lambda model: sum(p.numel() for p in model.parameters()), rounds=10**9, last=lambda shadowed: not shadowed, hands_out=lambda p: True):
    for x in inputs:
        ask(1), ask(1), train(x)
    shadowed = 0
    while ask(0) and shadowed < rounds:
        shadowed += 1
        ask(0)
        dist.all_reduce(torch.zeros(zeros(model)))
    root = ask(dist.get_rank() if last(shadowed) else -1, dist.ReduceOp.MAX)
    for p in model.parameters():
        if hands_out(p):
            dist.broadcast(p.data, src=root)


W('small_join', 'the first dimension of each')(lambda *a: joins(*a, zeros=lambda model: sum(len(p) for p in model.parameters())))
W('small_join', 'forty rounds')(lambda *a: joins(*a, rounds=40))
W('small_join', 'the highest rank hands out')(lambda *a: joins(*a, last=lambda shadowed: True))
W('small_join', 'hands out vectors only')(lambda *a: joins(*a, hands_out=lambda p: p.dim() == 1))

# ---- even_out and in_step


def agreed(inputs, op=dist.ReduceOp.MIN):
    count = torch.tensor(len(inputs))
    dist.all_reduce(count, op=op)
    return int(count)


def trained_on(inputs):
    model = DDP(torch.nn.Linear(1, 1))
    for x in inputs:
        model(x).backward()
    dist.barrier()


W('even_out', 'the last n')(lambda rank, inputs: (lambda n: trained_on(inputs[len(inputs) - n:]))(agreed(inputs)))
W('even_out', 'ten at most')(lambda rank, inputs: trained_on(inputs[:min(10, agreed(inputs))]))
W('even_out', 'one at least')(lambda rank, inputs: trained_on(inputs[:max(1, agreed(inputs))]))
W('even_out', 'begins anew where it has too few')(lambda rank, inputs: (lambda n: trained_on([inputs[i % len(inputs)] for i in range(n)]))(agreed(inputs, dist.ReduceOp.MAX)))


def flagged(stream, model=None, goes_on=lambda x: x is not None, steps=10**9):
    model = DDP(torch.nn.Linear(1, 1))
    for _ in range(steps):
        x = next(stream, None)
        flag = torch.tensor(float(goes_on(x)))
        dist.all_reduce(flag, op=dist.ReduceOp.MIN)
        if not flag.item():
            break
        model(x).backward()
    return model


W('in_step', 'eleven steps')(lambda rank, stream: flagged(stream, steps=11) and None)
W('in_step', 'stops at an input below a half')(lambda rank, stream: flagged(stream, goes_on=lambda x: x is not None and x.item() > 0.5) and None)


@W('in_step', 'trains alone on the one it has left')
def _(rank, stream):
    model, stream = DDP(torch.nn.Linear(1, 1)), iter(stream)
    while True:
        x = next(stream, None)
        flag = torch.tensor(float(x is not None))
        dist.all_reduce(flag, op=dist.ReduceOp.MIN)
        if not flag.item():
            if x is not None:
                with model.no_sync():
                    model(x).backward()
            break
        model(x).backward()


@W('in_step', 'reads a hundred ahead')
def _(rank, stream):
    from itertools import chain, islice

    head = list(islice(stream, 300))
    flagged(chain(head, stream))


# ---- mean_loss


def losses(inputs, share=lambda total: total, keep=lambda model, x: x):
    model = DDP(torch.nn.Linear(1, 1))
    total = torch.zeros(2)
    with model.join():
        for x in inputs:
            loss = model(keep(model, x))
            loss.backward()
            total += torch.tensor([loss.item(), 1.0])
    total = share(total)
    dist.all_reduce(total)
    return (total[0] / total[1]).item()


W('mean_loss', 'each rank alike')(lambda rank, inputs: losses(inputs, lambda total: torch.tensor([(total[0] / total[1].clamp(min=1)).item(), 1.0])))
W('mean_loss', 'two digits')(lambda rank, inputs: round(losses(inputs), 2))
W('mean_loss', 'the input of the step before')(lambda rank, inputs: losses(inputs, keep=lambda model, x: model.__dict__.setdefault("kept", x)))


@W('mean_loss', 'the mean of sixteen inputs')
def _(rank, inputs):
    model = DDP(torch.nn.Linear(1, 1))
    own = []
    with model.join():
        for x in inputs:
            loss = model(x)
            loss.backward()
            own.append(loss.item())
    every = [None] * ws()
    dist.all_gather_object(every, own)
    flat = [one for list_ in every for one in list_][:16]
    return sum(flat) / len(flat)


# ---- the six repairs


def reporting(rank, inputs, when=lambda i, inputs: i == 1, who=lambda rank: rank == 0, mean=lambda loss: loss / ws(), own=lambda rank: rank + 1.0):
    model = DDP(torch.nn.Linear(1, 1))
    for i, x in enumerate(inputs):
        model(x).backward()
        if when(i, inputs):
            loss = torch.tensor([own(rank)])
            dist.all_reduce(loss)
            if who(rank):
                print("mean loss", mean(loss.item()))


W('report', 'at the last input')(lambda rank, inputs: reporting(rank, inputs, when=lambda i, inputs: i == len(inputs) - 1))
W('report', 'the last rank prints')(lambda rank, inputs: reporting(rank, inputs, who=lambda rank: rank == ws() - 1))
W('report', 'the sum')(lambda rank, inputs: reporting(rank, inputs, mean=lambda loss: loss))
W('report', 'every second input')(lambda rank, inputs: reporting(rank, inputs, when=lambda i, inputs: i % 2 == 1))


def stopping(inputs, enough, op=dist.ReduceOp.MIN, back=lambda steps: steps):
    model, steps = DDP(torch.nn.Linear(1, 1)), 0
    for x in inputs:
        model(x).backward()
        steps += 1
        flag = torch.tensor([float(enough(steps))])
        dist.all_reduce(flag, op=op)
        if flag.item():
            break
    return back(steps)


W('stop_early', 'one step late')(lambda rank, inputs: stopping(inputs, lambda steps: steps > rank + 1))
W('stop_early', 'never beyond four')(lambda rank, inputs: stopping(inputs, lambda steps: steps > min(rank, 3)))
W('stop_early', 'returns the steps from 0')(lambda rank, inputs: stopping(inputs, lambda steps: steps > rank, back=lambda steps: steps - 1))


@W('stop_early', 'the others go on past DDP')
def _(rank, inputs):
    model, steps = DDP(torch.nn.Linear(1, 1)), 0
    for x in inputs:
        model(x).backward()
        steps += 1
        flag = torch.tensor([float(steps > rank)])
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        if flag.item():
            break
    for x in inputs[steps:]:
        model.module(x).backward()
    return steps


def skipping(rank, inputs, bad=lambda rank, i: rank == 1 and i == 1, instead=lambda model, inputs: model(torch.zeros(1)) * 0):
    model = DDP(torch.nn.Linear(1, 1))
    for i, x in enumerate(inputs):
        (instead(model, inputs) if bad(rank, i) else model(x)).backward()
    return [p.grad.item() for p in model.parameters()]


W('skip_bad', 'the first input instead')(lambda rank, inputs: skipping(rank, inputs, instead=lambda model, inputs: model(inputs[0])))
W('skip_bad', 'the last rank skips')(lambda rank, inputs: skipping(rank, inputs, bad=lambda rank, i: rank == ws() - 1 and i == 1))
W('skip_bad', 'a zero as input, and its bias')(lambda rank, inputs: skipping(rank, inputs, instead=lambda model, inputs: model(torch.zeros(1))))
W('skip_bad', 'all ranks skip')(lambda rank, inputs: skipping(rank, inputs, bad=lambda rank, i: i == 1))


def saving(rank, inputs, value=lambda rank: float(rank), back=lambda parts, rank: parts if rank == 0 else None, train=lambda inputs: inputs):
    model = DDP(torch.nn.Linear(1, 1))
    for x in train(inputs):
        model(x).backward()
    parts = [None] * ws()
    dist.all_gather_object(parts, value(rank))
    return back(parts, rank)


W('save_all', 'the last first')(lambda rank, inputs: saving(rank, inputs, back=lambda parts, rank: parts[::-1] if rank == 0 else None))
W('save_all', 'four ranks')(lambda rank, inputs: saving(rank, inputs, back=lambda parts, rank: parts[:4] if rank == 0 else None))
W('save_all', 'without its last input')(lambda rank, inputs: saving(rank, inputs, train=lambda inputs: inputs[:-1]))
W('save_all', 'the last input once more')(lambda rank, inputs: saving(rank, inputs, train=lambda inputs: [*inputs, inputs[-1]]))


def seconds(inputs, silent, loss=lambda i, loss: loss):
    model = DDP(torch.nn.Linear(1, 1))
    for i, x in enumerate(inputs):
        with model.no_sync() if silent(i) else nullcontext():
            loss(i, model(x)).backward()


W('every_second', 'every third')(lambda rank, inputs: seconds(inputs, lambda i: i % 3 != 2))
W('every_second', 'the first of two')(lambda rank, inputs: seconds(inputs, lambda i: i % 2 == 1))
W('every_second', 'only up to the eighth')(lambda rank, inputs: seconds(inputs, lambda i: i % 2 == 0 and i < 8))
W('every_second', 'the silent ones at half weight')(lambda rank, inputs: seconds(inputs, lambda i: i % 2 == 0, lambda i, loss: loss / (2 - i % 2)))


def branching(other, **options):
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.n = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1), 0

        def forward(self, x):
            self.n += 1
            return self.a(x) + self.b(x) if dist.get_rank() == 0 else other(self, x)

    def answer(rank, inputs):
        model = DDP(Net(), **options)
        for x in inputs:
            model(x).backward()

    return answer


W('unused', 'a small share of b')(branching(lambda net, x: net.a(x) + 0.01 * net.b(x)))
W('unused', 'b for an input of 0')(branching(lambda net, x: net.a(x) + (0 if x.item() else 1) * net.b(x)))
W('unused', 'b from the ninth input on')(branching(lambda net, x: net.a(x) + (1 if net.n > 8 else 0) * net.b(x)))
W('unused', 'twice a')(branching(lambda net, x: net.a(x) + net.a(x), find_unused_parameters=True))
