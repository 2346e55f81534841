"""Right and wrong answers that were written with the judges: each plausible mistake once."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join, JoinHook
from torch.nn.parallel import DistributedDataParallel as DDP

from joinlab.course.answers import solutions

# ---- gather_list


def one_call_a_tensor(tensors):
    places = [[torch.zeros_like(tensor) for _ in range(dist.get_world_size())] for tensor in tensors]
    for place, tensor in zip(places, tensors, strict=True):
        dist.all_gather(place, tensor)
    return [place[rank] for rank in range(dist.get_world_size()) for place in places]


def tensor_by_tensor(tensors):
    pieces = solutions.gather_list(tensors)
    return [pieces[r * len(tensors) + i] for i in range(len(tensors)) for r in range(dist.get_world_size())]


def not_cut_again(tensors):
    joined = torch.cat(tensors, -1)
    places = [torch.zeros_like(joined) for _ in range(dist.get_world_size())]
    dist.all_gather(places, joined)
    return places


def only_on_rank_0(tensors):
    joined = torch.cat(tensors, -1)
    places = [torch.zeros_like(joined) for _ in range(dist.get_world_size())] if dist.get_rank() == 0 else None
    dist.gather(joined, places)
    return [piece for place in places or [] for piece in torch.chunk(place, len(tensors), -1)]


def sorted_by_value(tensors):
    return sorted(solutions.gather_list(tensors), key=lambda tensor: tensor[0, 0].item())


def last_rank_first(tensors):
    return solutions.gather_list(tensors)[::-1]


def as_one_tensor(tensors):
    return torch.stack(solutions.gather_list(tensors))


# ---- ring_sum


def in_turns(x, first=lambda rank: rank % 2 == 0):
    """The even ranks send first, the odd ones receive first; where their number is odd, rank 0 waits for the last."""
    rank, size = dist.get_rank(), dist.get_world_size()
    passed = total = x
    for _ in range(size - 1):
        received = torch.empty_like(x)
        turns = [lambda out=passed: dist.send(out, (rank + 1) % size), lambda: dist.recv(received, (rank - 1) % size)]  # noqa: B023
        for turn in turns if first(rank) else turns[::-1]:
            turn()
        passed, total = received, total + received
    return total


def all_send_first(x):
    return in_turns(x, first=lambda rank: True)


def all_receive_first(x):
    return in_turns(x, first=lambda rank: False)


def reduced(x):
    dist.all_reduce(x)
    return x


def once_round_the_ring(x):
    rank, size = dist.get_rank(), dist.get_world_size()
    received = torch.empty_like(x)
    ends = [dist.P2POp(dist.isend, x, (rank + 1) % size), dist.P2POp(dist.irecv, received, (rank - 1) % size)]
    for work in dist.batch_isend_irecv(ends):
        work.wait()
    return x + received


# ---- even_out, in_step and mean_loss


def trained(inputs, barrier=True):
    model = DDP(torch.nn.Linear(1, 1))
    for input in inputs:
        model(input).backward()
    if barrier:
        dist.barrier()


def two_of_each(rank, inputs):
    trained(itertools.islice(inputs, 2))


def all_of_them(rank, inputs):
    trained(inputs)


def all_but_the_last(rank, inputs):
    trained(list(inputs)[:-1])


def none_at_all(rank, inputs):
    trained([])


def from_a_buffer(rank, stream):
    buffer = list(itertools.islice(stream, 64))
    count = torch.tensor(len(buffer))
    dist.all_reduce(count, op=dist.ReduceOp.MIN)
    trained(buffer[: int(count)], barrier=False)


def as_many_as_the_longest(rank, inputs):
    inputs = list(inputs)
    count = torch.tensor(len(inputs))
    dist.all_reduce(count, op=dist.ReduceOp.MAX)
    trained(inputs[: int(count)])


def the_last_of_each(rank, inputs):
    inputs = list(inputs)
    count = torch.tensor(len(inputs))
    dist.all_reduce(count, op=dist.ReduceOp.MIN)
    trained(inputs[-int(count) :])


def counted_before(rank, inputs):
    inputs = list(inputs)
    counts = [None] * dist.get_world_size()
    dist.all_gather_object(counts, len(inputs))
    trained(inputs[: min(counts)], barrier=False)


def loss_of(each=lambda sums: sums, all=lambda sums: sums):
    """The sum of its losses and their number, by rank, made into a mean."""

    def answer(rank, inputs):
        model = DDP(torch.nn.Linear(1, 1))
        sums = torch.zeros(2)
        with model.join():
            for input in inputs:
                loss = model(input)
                loss.backward()
                sums += torch.tensor([loss.item(), 1.0])
        sums = each(sums)
        dist.all_reduce(sums)
        sums = all(sums)
        return (sums[0] / sums[1]).item()

    return answer


def reduced_under_join(rank, inputs):
    model = DDP(torch.nn.Linear(1, 1))
    total = torch.zeros(2)
    with model.join():
        for input in inputs:
            loss = model(input)
            loss.backward()
            dist.all_reduce(part := torch.tensor([loss.item(), 1.0]))
            total += part
    return (total[0] / total[1]).item()


def its_own(rank, inputs):
    model = DDP(torch.nn.Linear(1, 1))
    losses = [0.0]
    with model.join():
        for input in inputs:
            loss = model(input)
            loss.backward()
            losses.append(loss.item())
    return sum(losses) / max(len(losses) - 1, 1)


def without_joining(rank, inputs):
    model = DDP(torch.nn.Linear(1, 1))
    total = torch.tensor([0.0, len(inputs)])
    for input in inputs:
        loss = model(input)
        loss.backward()
        total[0] += loss.item()
    dist.all_reduce(total)
    return (total[0] / total[1]).item()


# ---- accumulate


def one_backward_of_a_sum(model, inputs):
    sum(model(input) for input in inputs).backward()


def one_backward_of_the_summed_inputs(model, inputs):
    model(sum(inputs)).backward()


def the_mean_instead_of_the_sum(model, inputs):
    with model.no_sync():
        for input in inputs[:-1]:
            (model(input) / len(inputs)).backward()
    (model(inputs[-1]) / len(inputs)).backward()


def without_the_first(model, inputs):
    solutions.accumulate(model, inputs[1:])


def every_time(model, inputs):
    for input in inputs:
        model(input).backward()


def never(model, inputs):
    with model.no_sync():
        for input in inputs:
            model(input).backward()


def the_first_only(model, inputs):
    model(inputs[0]).backward()
    with model.no_sync():
        for input in inputs[1:]:
            model(input).backward()


def forward_outside(model, inputs):
    for input in inputs:
        loss = model(input)
        if input is not inputs[-1]:
            with model.no_sync():
                loss.backward()
        else:
            loss.backward()


# ---- gradient and last_joiner


def always_by_all(own, world_size, divide_by_initial_world_size):
    return sum(own) / world_size


def always_by_those_left(own, world_size, divide_by_initial_world_size):
    return sum(own) / len(own)


def the_other_way_round(own, world_size, divide_by_initial_world_size):
    return sum(own) / (len(own) if divide_by_initial_world_size else world_size)


def not_a_number(own, world_size, divide_by_initial_world_size):
    return float("nan")


def in_words(own, world_size, divide_by_initial_world_size):
    return "the mean"


def first_of_the_last(counts):
    return counts.index(max(counts))


def first_to_join(counts):
    return counts.index(min(counts))


def highest_rank(counts):
    return len(counts) - 1


def rank_0(counts):
    return 0


# ---- the Joinable, step by step


class Silent(solutions.Largest):
    """It never notifies."""

    def __call__(self, number):
        number = number.clone()
        dist.all_reduce(number, op=dist.ReduceOp.MAX)
        self.largest = torch.maximum(self.largest, number)


class Twice(solutions.Largest):
    def __call__(self, number):
        Join.notify_join_context(self)
        super().__call__(number)


class AfterTheCall(solutions.Largest):
    """It tells Join after its own collective."""

    def __call__(self, number):
        number = number.clone()
        dist.all_reduce(number, op=dist.ReduceOp.MAX)
        self.largest = torch.maximum(self.largest, number)
        Join.notify_join_context(self)


class OnlyOnce(solutions.Largest):
    def __init__(self):
        super().__init__()
        self.told = False

    def __call__(self, number):
        if not self.told:
            Join.notify_join_context(self)
            self.told = True
        Silent.__call__(self, number)


class NoInit(solutions.Largest):
    def __init__(self):
        self.largest = torch.tensor([-torch.inf])


class NotJoinable:
    largest = torch.zeros(1)

    def __call__(self, number):
        pass


class Hookless(solutions.Largest):
    def join_hook(self, **kwargs):
        return JoinHook()


class Zero(solutions.Largest):
    """It shadows with zero, which is larger than a negative number."""

    class Hook(solutions.LargestHook):
        def main_hook(self):
            dist.all_reduce(torch.zeros(1), op=dist.ReduceOp.MAX)

    def join_hook(self, **kwargs):
        return Zero.Hook(self)


class TwoCalls(solutions.Largest):
    class Hook(solutions.LargestHook):
        def main_hook(self):
            super().main_hook()
            super().main_hook()

    def join_hook(self, **kwargs):
        return TwoCalls.Hook(self)


class WrongShape(solutions.Largest):
    class Hook(solutions.LargestHook):
        def main_hook(self):
            dist.all_reduce(torch.full((100,), -torch.inf), op=dist.ReduceOp.MAX)

    def join_hook(self, **kwargs):
        return WrongShape.Hook(self)


class NoPostHook(solutions.Largest):
    class Hook(solutions.LargestHook):
        def post_hook(self, is_last_joiner):
            pass

    def join_hook(self, **kwargs):
        return NoPostHook.Hook(self)


class FromRank0(solutions.Largest):
    class Hook(solutions.LargestHook):
        def post_hook(self, is_last_joiner):
            dist.broadcast(self.owner.largest, src=0)

    def join_hook(self, **kwargs):
        return FromRank0.Hook(self)


class OnlyTheLast(solutions.Largest):
    """Only the last joiners take part in the post hook's call."""

    class Hook(solutions.LargestHook):
        def post_hook(self, is_last_joiner):
            if is_last_joiner:
                super().post_hook(is_last_joiner)

    def join_hook(self, **kwargs):
        return OnlyTheLast.Hook(self)


def shadowing(tensor, op=dist.ReduceOp.MAX):
    """Largest, whose main hook reduces a copy of `tensor` with `op`."""

    class Hook(solutions.LargestHook):
        def main_hook(self):
            dist.all_reduce(tensor.clone(), op=op)

    class Shadowing(solutions.Largest):
        def join_hook(self, **kwargs):
            return Hook(self)

    return Shadowing


def ending(post):
    """Largest, whose post hook is `post(largest, is_last_joiner)`."""

    class Hook(solutions.LargestHook):
        def post_hook(self, is_last_joiner):
            post(self.owner.largest, is_last_joiner)

    class Ending(solutions.Largest):
        def join_hook(self, **kwargs):
            return Hook(self)

    return Ending


def broadcast_of_the_last(largest, is_last_joiner):
    last = torch.tensor([dist.get_rank() if is_last_joiner else -1])
    dist.all_reduce(last, op=dist.ReduceOp.MAX)
    dist.broadcast(largest, src=int(last.item()))


class Informed(solutions.Largest):
    """Its main hook takes part with what it knows, and so learns what the others learn: right without a post hook."""

    class Hook(JoinHook):
        def __init__(self, owner):
            self.owner = owner

        def main_hook(self):
            dist.all_reduce(self.owner.largest, op=dist.ReduceOp.MAX)

    def join_hook(self, **kwargs):
        return Informed.Hook(self)


# ---- safe_loop


def barrier_in_the_loop(rank, inputs):
    model = DDP(torch.nn.Linear(1, 1))
    with model.join():
        for input in inputs:
            model(input).backward()
            dist.barrier()


def barrier_inside_join(rank, inputs):
    model = DDP(torch.nn.Linear(1, 1))
    with model.join():
        for input in inputs:
            model(input).backward()
        dist.barrier()


def no_barrier(rank, inputs):
    model = DDP(torch.nn.Linear(1, 1))
    with model.join():
        for input in inputs:
            model(input).backward()


def barrier_first(rank, inputs):
    dist.barrier()
    no_barrier(rank, inputs)


def barrier_of_rank_0(rank, inputs):
    no_barrier(rank, inputs)
    if rank == 0:
        dist.barrier()


def without_join(rank, inputs):
    model = DDP(torch.nn.Linear(1, 1))
    for input in inputs:
        model(input).backward()
    dist.barrier()


def join_that_is_off(rank, inputs):
    model = DDP(torch.nn.Linear(1, 1))
    with model.join(enable=False):
        for input in inputs:
            model(input).backward()
    dist.barrier()


def leaves_inputs_out(rank, inputs):
    solutions.safe_loop(rank, list(inputs)[:1])


def two_barriers(rank, inputs):
    solutions.safe_loop(rank, inputs)
    dist.barrier()


# ---- shadows


def inputs_that_are_missing(counts):
    return [max(counts) - count for count in counts]


def all_calls(counts):
    return [3 * max(counts)] * len(counts)


def own_calls(counts):
    return [3 * count for count in counts]


def with_the_last_question(counts):
    return [3 * (max(counts) - count) + 1 for count in counts]


def in_one_number(counts):
    return 3 * (max(counts) - min(counts))


# ---- in_order


def as_they_get_ready(ready, reduce):
    for bucket in ready:
        reduce(bucket)


def all_at_the_end(ready, reduce):
    for bucket in sorted(ready):
        reduce(bucket)


def without_those_behind(ready, reduce):
    following = 0
    for bucket in ready:
        if bucket == following:
            reduce(bucket)
            following += 1


def from_the_back(ready, reduce):
    for bucket in reversed(list(ready)):
        reduce(bucket)


def numbered(ready, reduce):
    for number, _ in enumerate(ready):
        reduce(number)


def twice(ready, reduce):
    def two(bucket):
        reduce(bucket)
        reduce(bucket)

    solutions.in_order(ready, two)


def with_a_list(ready, reduce):
    done = []
    seen = []
    for bucket in ready:
        seen.append(bucket)
        for following in range(len(done), len(seen)):
            if following in seen and following == len(done):
                reduce(following)
                done.append(following)


# ---- the six programs of notebook 10


def does_nothing(rank, inputs):
    return None


def only_trains(rank, inputs):
    model = DDP(torch.nn.Linear(1, 1))
    for input in inputs:
        model(input).backward()
    return len(inputs)


def prints_its_own_loss(rank, inputs):
    only_trains(rank, inputs)
    if rank == 0:
        print("mean loss", 1.0)


def prints_on_every_rank(rank, inputs):
    solutions.report(0, inputs)


def all_print(rank, inputs):
    only_trains(rank, inputs)
    loss = torch.ones(1) * (rank + 1)
    dist.all_reduce(loss)
    print("mean loss", loss.item() / dist.get_world_size())


def each_by_itself(rank, inputs):
    return only_trains(rank, list(inputs)[: rank + 1])


def after_two(rank, inputs):
    return only_trains(rank, list(inputs)[:2]) + 1


def skips_on_both(rank, inputs):
    only_trains(rank, list(inputs)[1:])


def drops_what_follows(rank, inputs):
    only_trains(rank, list(inputs)[:1])


def saves_its_own(rank, inputs):
    only_trains(rank, inputs)
    return [float(rank)] * dist.get_world_size()


def saves_without_training(rank, inputs):
    return solutions.save_all(rank, [])


def saves_twice_on_rank_0(rank, inputs):
    found = solutions.save_all(rank, inputs)
    if rank == 0:
        dist.barrier()
    return found


def never_reduces(rank, inputs):
    model = DDP(torch.nn.Linear(1, 1))
    with model.no_sync():
        for input in inputs:
            model(input).backward()


def branches_without_the_option(rank, inputs):
    model = DDP(solutions.Branches())
    for input in inputs:
        model(input).backward()


# ---- notebooks 12 and 13: a small DDP, a small join()


def from_rank_1(module):
    for parameter in module.parameters():
        dist.broadcast(parameter.data, src=1)


def of_copies(module):
    for parameter in module.parameters():
        dist.broadcast(parameter.detach().clone(), src=0)


def the_first_alone(module):
    dist.broadcast(next(module.parameters()).data, src=0)


def the_mean_of_all(module):
    for parameter in module.parameters():
        dist.all_reduce(parameter.data)
        parameter.data /= dist.get_world_size()


def given_by_rank_0_alone(module):
    if dist.get_rank() == 0:
        solutions.hand_out(module)


def in_one_broadcast(module):
    flat = torch.cat([parameter.data.flatten() for parameter in module.parameters()])
    dist.broadcast(flat, src=0)
    torch.nn.utils.vector_to_parameters(flat, module.parameters())


def by_gathering(module):
    for parameter in module.parameters():
        places = [torch.zeros_like(parameter.data) for _ in range(dist.get_world_size())]
        dist.all_gather(places, parameter.data)
        parameter.data.copy_(places[0])


def first_parameter_first(module, numbers):
    buckets = [[]]
    for parameter in module.parameters():
        if sum(other.numel() for other in buckets[-1]) >= numbers:
            buckets.append([])
        buckets[-1].append(parameter)
    return buckets


def never_above_the_limit(module, numbers):
    buckets = [[]]
    for parameter in reversed(list(module.parameters())):
        if buckets[-1] and sum(other.numel() for other in buckets[-1]) + parameter.numel() > numbers:
            buckets.append([])
        buckets[-1].append(parameter)
    return buckets


def one_bucket_each(module, numbers):
    return [[parameter] for parameter in reversed(list(module.parameters()))]


def with_an_empty_bucket(module, numbers):
    return [*solutions.buckets_of(module, numbers), []]


def without_the_last_bucket(module, numbers):
    return solutions.buckets_of(module, numbers)[:-1]


def buckets_of_sizes(module, numbers):
    return [sum(parameter.numel() for parameter in bucket) for bucket in solutions.buckets_of(module, numbers)]


class AsTheyGetFull(solutions.SmallDDP):
    """It reduces each bucket when it is full, whatever comes before it."""

    def computed(self, parameter):
        self.ready.add(parameter)
        for bucket in self.buckets:
            if any(one is parameter for one in bucket) and self.ready.issuperset(bucket):
                flat = torch.cat([one.grad.flatten() for one in bucket])
                self.works.append((bucket, flat, dist.all_reduce(flat, async_op=True)))
        if len(self.works) == len(self.buckets):
            self.buckets = [bucket for bucket, _, _ in self.works]
            self.works = [(flat, work) for _, flat, work in self.works]
            self.finish()


class AllAtTheEnd(solutions.SmallDDP):
    """It begins when all gradients are there: nothing overlaps."""

    def computed(self, parameter):
        self.ready.add(parameter)
        if self.ready.issuperset(self.module.parameters()):
            super().computed(parameter)


class WaitsForEach(solutions.SmallDDP):
    def computed(self, parameter):
        super().computed(parameter)
        for _, work in self.works:
            work.wait()


class TheSum(solutions.SmallDDP):
    """It forgets to divide."""

    def finish(self):
        super().finish()
        for parameter in self.module.parameters():
            parameter.grad = parameter.grad * dist.get_world_size()


class NotCopiedBack(solutions.SmallDDP):
    def finish(self):
        for _, work in self.works:
            work.wait()
        self.ready, self.works = set(), []


class OneParameterEach(solutions.SmallDDP):
    """It reduces every parameter by itself."""

    def __init__(self, module, numbers):
        super().__init__(module, 1)


class OnlyOnceReady(solutions.SmallDDP):
    """It is not ready for a second backward."""

    def finish(self):
        super().finish()
        self.works = list(self.buckets)


class WithoutHandingOut(solutions.SmallDDP):
    def __init__(self, module, numbers):
        begun = [parameter.data.clone() for parameter in module.parameters()]
        super().__init__(module, numbers)
        for parameter, own in zip(module.parameters(), begun, strict=True):
            parameter.data.copy_(own)


class DividedBefore(solutions.SmallDDP):
    """It divides before it reduces, as DDP does."""

    def computed(self, parameter):
        parameter.grad /= dist.get_world_size()
        super().computed(parameter)

    def finish(self):
        for flat, work in self.works:
            work.wait()
            flat *= dist.get_world_size()
        super().finish()


class FinishedByTheEngine(solutions.SmallDDP):
    """It waits in a callback that autograd runs when backward is over, as DDP does."""

    def finish(self):
        torch.autograd.Variable._execution_engine.queue_callback(super().finish)


def joining(
    first=1, second=True, second_as_shadow=True, zeros=None, last=None, final=True, source=None, loops=True, again=True
):
    """small_join with something else in one place; without arguments it is right."""

    def answer(model, inputs, train):
        for input in inputs:
            if first is not None:
                solutions.ask(first)
            if second:
                solutions.ask(1)
            train(input)
        was_last = True
        while loops and solutions.ask(0) > 0:
            was_last = False
            if second_as_shadow:
                solutions.ask(0)
            size = sum(parameter.numel() for parameter in model.parameters())
            dist.all_reduce(torch.zeros(size) if zeros is None else zeros(size))
            if not again:
                break
        rank = dist.get_rank()
        root = solutions.ask((rank if was_last else -1) if last is None else last(rank), dist.ReduceOp.MAX)
        for parameter in model.parameters() if final else ():
            dist.broadcast(parameter.data, src=root if source is None else source)

    return answer


def asked_behind(model, inputs, train):
    """The questions come after the input's own calls."""
    joined = joining()
    for input in inputs:
        train(input)
        solutions.ask(1)
        solutions.ask(1)
    joined(model, [], train)


def with_floats(model, inputs, train):
    """The questions as floats, and the parameters in one broadcast, as in DDP."""

    def ask(number, op=dist.ReduceOp.SUM):
        answer = torch.tensor([float(number)])
        dist.all_reduce(answer, op=op)
        return answer.item()

    for input in inputs:
        ask(1), ask(1)
        train(input)
    shadowed = 0
    while ask(0):
        shadowed += 1
        ask(0)
        dist.all_reduce(torch.zeros(sum(parameter.numel() for parameter in model.parameters())))
    root = ask(-1 if shadowed else dist.get_rank(), dist.ReduceOp.MAX)
    flat = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
    dist.broadcast(flat, src=int(root))
    torch.nn.utils.vector_to_parameters(flat, model.parameters())


OF_SHARES = [two_of_each, all_of_them, all_but_the_last, none_at_all, as_many_as_the_longest, the_last_of_each]

WRONG: dict[str, list[Callable[..., Any]]] = {
    "ring_sum": [all_send_first, all_receive_first, reduced, once_round_the_ring, lambda x: x * dist.get_world_size()],
    "even_out": OF_SHARES,
    "in_step": [*OF_SHARES, counted_before, from_a_buffer],
    "as_float": [
        float,
        lambda byte: 0.0,
        lambda byte: struct.unpack(">f", bytes([byte, 0, 0, 0]))[0],
        lambda byte: struct.unpack("<f", bytes([0, 0, 0, byte]))[0],
        lambda byte: struct.unpack("<f", bytes([byte] * 4))[0],
    ],
    "mean_loss": [
        reduced_under_join,
        its_own,
        without_joining,
        loss_of(each=lambda sums: torch.stack([sums[0] / sums[1].clamp(min=1), torch.ones(())])),
        loss_of(all=lambda sums: torch.stack([sums[0], torch.ones(())])),
        loss_of(all=lambda sums: torch.stack([sums[0], torch.tensor(float(dist.get_world_size()))])),
    ],
    "gather_list": [
        one_call_a_tensor,
        tensor_by_tensor,
        not_cut_again,
        only_on_rank_0,
        sorted_by_value,
        last_rank_first,
        as_one_tensor,
    ],
    "accumulate": [
        every_time,
        never,
        the_first_only,
        forward_outside,
        one_backward_of_a_sum,
        one_backward_of_the_summed_inputs,
        the_mean_instead_of_the_sum,
        without_the_first,
    ],
    "safe_loop": [
        barrier_in_the_loop,
        barrier_inside_join,
        no_barrier,
        barrier_first,
        barrier_of_rank_0,
        without_join,
        join_that_is_off,
        leaves_inputs_out,
    ],
    "gradient": [always_by_all, always_by_those_left, the_other_way_round, not_a_number, in_words],
    "last_joiner": [first_of_the_last, first_to_join, highest_rank, rank_0, max, lambda counts: True],
    "notify": [Silent, Twice, NoInit, NotJoinable, AfterTheCall, OnlyOnce],
    "main_hook": [
        Hookless,
        Zero,
        TwoCalls,
        WrongShape,
        AfterTheCall,
        shadowing(torch.tensor([-1000.0])),
        shadowing(torch.full((2,), -torch.inf)),
        shadowing(torch.tensor([-(2**62)])),
        shadowing(torch.tensor([-torch.inf]), dist.ReduceOp.SUM),
        shadowing(torch.tensor([-torch.inf], dtype=torch.float64)),
    ],
    "post_hook": [
        NoPostHook,
        FromRank0,
        OnlyTheLast,
        Zero,
        AfterTheCall,
        ending(lambda largest, last: dist.broadcast(largest, src=dist.get_world_size() - 1)),
        ending(lambda largest, last: dist.all_reduce(largest)),
        ending(lambda largest, last: largest.zero_()),
    ],
    "in_order": [as_they_get_ready, numbered, all_at_the_end, without_those_behind, from_the_back, twice],
    "shadows": [inputs_that_are_missing, all_calls, own_calls, with_the_last_question, in_one_number],
    "report": [does_nothing, only_trains, prints_its_own_loss, prints_on_every_rank, all_print],
    "stop_early": [lambda rank, inputs: only_trains(rank, list(inputs)[:1]), does_nothing, only_trains, each_by_itself, after_two, drops_what_follows],
    "skip_bad": [does_nothing, each_by_itself, skips_on_both, drops_what_follows, never_reduces],
    "save_all": [does_nothing, only_trains, saves_its_own, saves_without_training, saves_twice_on_rank_0],
    "every_second": [does_nothing, only_trains, never_reduces, each_by_itself, drops_what_follows],
    "unused": [only_trains, does_nothing, branches_without_the_option, never_reduces, each_by_itself, drops_what_follows],
    "hand_out": [from_rank_1, of_copies, the_first_alone, the_mean_of_all, given_by_rank_0_alone],
    "buckets_of": [
        first_parameter_first,
        never_above_the_limit,
        one_bucket_each,
        with_an_empty_bucket,
        without_the_last_bucket,
        buckets_of_sizes,
        lambda module, numbers: [list(reversed(list(module.parameters())))],
    ],
    "small_ddp": [
        DDP,
        AsTheyGetFull,
        AllAtTheEnd,
        WaitsForEach,
        TheSum,
        NotCopiedBack,
        OneParameterEach,
        OnlyOnceReady,
        WithoutHandingOut,
    ],
    "small_join": [
        asked_behind,
        joining(first=None),
        joining(first=2),
        joining(second=False),
        joining(second_as_shadow=False),
        joining(second=False, second_as_shadow=False),
        joining(zeros=lambda size: torch.zeros(1)),
        joining(zeros=torch.ones),
        joining(last=lambda rank: rank),
        joining(last=lambda rank: 0),
        joining(final=False),
        joining(source=0),
        joining(loops=False),
        joining(again=False),
    ],
}
"""Plausible mistakes. The starters of the notebooks are tested beside them, as they stand there."""

RIGHT: dict[str, list[Callable[..., Any]]] = {
    "ring_sum": [in_turns],
    "even_out": [counted_before],
    "in_step": [],
    "as_float": [lambda byte: byte * 2.0**-149],
    "mean_loss": [loss_of()],
    "gather_list": [lambda tensors: tuple(solutions.gather_list(tensors))],
    "accumulate": [],
    "safe_loop": [two_barriers],
    "gradient": [lambda own, size, by_all: torch.tensor(own).sum() / (size if by_all else len(own))],
    "last_joiner": [lambda counts: len(counts) - 1 - list(counts)[::-1].index(max(counts))],
    "notify": [Hookless, Zero, NoPostHook],
    "main_hook": [NoPostHook, Informed, shadowing(torch.tensor([torch.finfo(torch.float32).min]))],
    "post_hook": [Informed, ending(broadcast_of_the_last)],
    "in_order": [with_a_list],
    "shadows": [lambda counts: tuple(3 * max(counts) - 3 * count for count in counts)],
    "report": [],
    "save_all": [],
    "every_second": [],
    "stop_early": [],
    "skip_bad": [],
    "unused": [],
    "hand_out": [in_one_broadcast, by_gathering],
    "buckets_of": [lambda module, numbers: tuple(map(tuple, solutions.buckets_of(module, numbers)))],
    "small_ddp": [DividedBefore, FinishedByTheEngine],
    "small_join": [joining(), with_floats],
}
"""Right answers beside the solution, some of them odd."""
