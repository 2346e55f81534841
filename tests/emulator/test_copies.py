"""Each rank begins with a copy of every object that the program reaches; the originals stay
unchanged."""

from __future__ import annotations

import contextvars
import functools
import pickle
import threading
import weakref
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from joinlab import cases, emulate, launch
from joinlab.emulator import copies
from joinlab.emulator.rank_state import RankState
from joinlab.errors import ProgramError
from joinlab.timeline import EndKind

BACKENDS = pytest.mark.parametrize("backend", ["gloo", "nccl"])

# ---------------- instances


class Trainer:
    """The commonest shape of a training program."""

    def __init__(self, model=None):
        self.seen = []
        self.also_seen = self.seen
        self.model = model

    def run(self, rank, inputs):
        self.model = DDP(self.model or torch.nn.Linear(1, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        for x in inputs:
            self.optimizer.zero_grad()
            self.model(x * (rank + 1)).sum().backward()
            self.optimizer.step()
            self.seen.append(rank)
        return self.seen, self.also_seen is self.seen, self.model.module.weight.item()

    __call__ = run


def contents(trainer):
    return pickle.dumps(
        (trainer.seen, sorted(vars(trainer)), trainer.model and trainer.model.state_dict())
    )


@BACKENDS
@pytest.mark.parametrize("how", ["method", "instance", "partial", "closure", "default"])
def test_a_program_that_keeps_its_state_on_self_runs_as_launched(backend, how):
    trainer = Trainer(torch.nn.Linear(1, 1))
    before = contents(trainer)

    def worker(rank, inputs, mine=trainer):
        return (trainer if how == "closure" else mine).run(rank, inputs)

    alone = functools.partial(lambda mine, rank, inputs: mine.run(rank, inputs), trainer)
    program = {"method": trainer.run, "instance": trainer, "partial": alone}.get(how, worker)
    first, second = (emulate(program, (4, 4), backend, timeout=20) for _ in range(2))
    assert [end.kind for end in first.ends] == [EndKind.FINISHED] * 2
    assert [one[:2] for one in first.returns] == [([0] * 4, True), ([1] * 4, True)]
    assert first.returns[0][2] == first.returns[1][2]
    assert first.returns == second.returns and contents(trainer) == before
    if backend == "gloo":
        assert launch(program, (4, 4), "gloo").returns == first.returns
    assert emulate(cases.case_1, (1, 2)).returns == (1, 2)


# ---------------- closures, and other holders


def test_a_closure_over_none_has_it_on_every_rank() -> None:
    nothing = None
    assert emulate(lambda rank, inputs: (rank, nothing), (1, 1)).returns == ((0, None), (1, None))


def counter():
    count = 0

    def add():
        nonlocal count
        count += 1
        return count

    return add, lambda: count


def remember(value, seen=[]):  # noqa: B006
    seen.append(value)
    return list(seen)


@functools.lru_cache
def cached(size):
    return [size]


def doubled(function):
    calls = []

    @functools.wraps(function)
    def twice(*args):
        calls.append(args)
        return function(*args), function(*args), len(calls)

    return twice


@doubled
def again(value):
    return remember(value)


@torch.no_grad()
def under_no_grad():
    global total
    total += 1
    return total


total = 0


class Stage(Enum):
    FIRST = 1


def holders(rank, inputs):
    add, count = pair
    add()
    cached(3).append(rank)
    weak = referred()
    return (
        add(), count(), remember(rank), again(rank), cached(3), under_no_grad(), view.tolist(), base.tolist(),
        weak is target, Stage.FIRST is stage, lock.acquire(blocking=False), table["self"] is table, array.tolist(),
        [generator.initial_seed(), torch.rand(1, generator=generator).item()],
    )  # fmt: skip


pair = counter()
base = torch.zeros(3)
view = base[1:]
stage = Stage.FIRST
target = Trainer()
referred = weakref.ref(target)
lock = threading.Lock()
table: dict = {}
table["self"] = table
array = np.zeros(2)
generator = torch.Generator().manual_seed(7)


def changing(rank, inputs):
    view[0] = array[0] = rank + 1
    dist.barrier()
    return holders(rank, inputs)


def test_whatever_holds_a_value_holds_a_copy_and_shares_it_as_before():
    state = generator.get_state()
    first, second = (emulate(changing, (0, 0)) for _ in range(2))
    assert first.returns == second.returns
    for rank, found in enumerate(first.returns):
        mine = float(rank + 1)
        again_found = ([rank, rank], [rank] * 3, 1)
        assert found[:4] == (2, 2, [rank], again_found) and found[4:6] == ([3, rank], 1)
        assert found[6:8] == ([mine, 0.0], [0.0, mine, 0.0]) and found[8:12] == (True,) * 4
        assert found[12] == [mine, 0.0] and found[13][0] == 7
    assert pair[1]() == 0 and remember.__defaults__ == ([],) and cached.cache_info().misses == 0
    assert (total, base.tolist(), array.tolist()) == (0, [0.0] * 3, [0.0] * 2)
    assert torch.equal(generator.get_state(), state) and not lock.locked()


def test_a_method_of_any_kind_that_holds_a_value_holds_a_copy():
    held: list[int] = []

    class Holder:
        @staticmethod
        def static(rank):
            held.append(rank)
            return list(held)

        @classmethod
        def of_class(cls, rank):
            return cls.static(rank)

        @property
        def read(self):
            return list(held)

        @functools.lru_cache(maxsize=4)  # noqa: B019
        def remembered(self):
            return []

    def program(rank, inputs):
        one = Holder()
        one.remembered().append(rank)
        Holder.of_class(rank)
        dist.barrier()
        return Holder.static(rank), one.read, one.remembered()

    assert emulate(program, (0, 0)).returns == tuple(
        ([rank] * 2, [rank] * 2, [rank]) for rank in (0, 1)
    )
    assert held == [] and Holder.remembered.cache_info().misses == 0


def test_functions_that_refer_to_each_other_do_so_in_the_copy():
    def even(number):
        return number == 0 or odd(number - 1)

    def odd(number):
        calls.append(number)
        return number != 0 and even(number - 1)

    calls: list = []
    assert emulate(lambda rank, inputs: (even(4 + rank), calls), (0, 0)).returns == (
        (True, [3, 1]),
        (False, [4, 2, 0]),
    )
    assert calls == []


# ---------------- what cannot be copied


@pytest.mark.parametrize("where", ["closure", "self", "list", "global"])
def test_what_cannot_be_copied_is_named(where):
    trainer = Trainer()
    stream = (line for line in ())
    if where == "self":
        trainer.inner = {"out": stream}
    many = [1, stream]
    program, name = {
        "closure": (lambda rank, inputs: stream, "`stream`"),
        "self": (trainer.run, "`self.inner['out']`"),
        "list": (lambda rank, inputs: many, "`many[1]`"),
        "global": (lambda rank, inputs: numbers, "`numbers`"),
    }[where]
    with pytest.raises(ProgramError, match="begins with a copy") as caught:
        emulate(program, (1, 1))
    assert name in str(caught.value) and "make it inside the program" in str(caught.value)
    assert emulate(cases.case_1, (1, 2)).returns == (1, 2)


numbers = (number for number in range(3))


def test_large_data_says_so_and_what_exceeds_the_memory_is_refused(monkeypatch):
    data = torch.zeros(25_000_000)
    with pytest.warns(UserWarning, match="a copy of the 100 MB that .*lambda.* refers to"):
        emulate(lambda rank, inputs: data.add_(1)[0].item(), (0,))
    assert data[0] == 0
    monkeypatch.setattr(
        copies.psutil, "virtual_memory", lambda: type("Memory", (), {"available": 2**27})
    )
    with pytest.raises(
        ProgramError, match=r"reaches 95 MB of data, and each of 2 ranks .* 128 MB are free"
    ):
        emulate(lambda rank, inputs: data, (0, 0))


def test_a_program_that_holds_nothing_is_not_copied():
    found = copies.Copies(cases.case_4, 2)
    assert found.fresh(RankState(0, 2, 0)) == (cases.case_4, []) and found.nbytes < 100


# ---------------- the program's own module

counter = 0
seen = [0]
alias = seen
model = torch.nn.Linear(1, 1, bias=False)
torch.nn.init.ones_(model.weight)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)


class Tally:
    total = 0
    every: ClassVar = []

    def add(self):
        Tally.total += 1
        self.every.append(Tally.total)
        count()


@dataclass
class Settings:
    steps: int = 0


settings = Settings()


def count():
    global counter
    counter += 1


def own_module(rank, inputs):
    global made
    made = rank
    for _ in range(2 + rank):
        Tally().add()
        seen.append(counter)
        settings.steps += 1
        optimizer.zero_grad()
        (model(torch.ones(1)) * (rank + 1)).sum().backward()
        optimizer.step()
    dist.barrier()
    same = (
        alias is seen,
        isinstance(settings, Settings),
        pickle.loads(pickle.dumps(settings)) == settings,
    )
    return counter, seen, Tally.total, Tally.every, settings.steps, made, model.weight.item(), *same


def test_each_rank_has_the_names_of_the_program_s_modules_for_itself():
    before = model.weight.detach().clone()
    launched = launch(own_module, (0, 0)).returns
    assert [one[:6] for one in launched] == [
        (2, [0, 1, 2], 2, [1, 2], 2, 0),
        (3, [0, 1, 2, 3], 3, [1, 2, 3], 3, 1),
    ]
    for backend in ("gloo", "nccl", "nccl"):
        assert emulate(own_module, (0, 0), backend=backend).returns == launched
    assert (counter, seen, Tally.total, Tally.every, settings.steps) == (0, [0], 0, [], 0)
    assert "made" not in globals() and torch.equal(model.weight, before)


class Once:
    """A descriptor of the program's own that keeps state: what its first reader agreed on."""

    agreed = None

    def __get__(self, instance, owner):
        if self.agreed is None:
            self.agreed = everybody()
        return self.agreed


class Dataset:
    once = Once()

    @functools.cached_property
    def size(self):
        return everybody()


def everybody():
    total = torch.ones(1)
    dist.all_reduce(total)
    return total.item()


def described(rank, inputs):
    data = Dataset()
    return data.size, data.size, data.once, data.once


def test_each_rank_has_the_state_of_a_descriptor_for_itself():
    """Of Python up to 3.11, the lock that `cached_property` holds while it computes, too."""
    for _ in range(2):
        timeline = emulate(described, (0, 0), "gloo", timeout=5)
        assert timeline.returns == ((2.0,) * 4,) * 2
        assert timeline.calls["rank"].to_list().count(0) == 2
    assert "agreed" not in vars(vars(Dataset)["once"])


setting = contextvars.ContextVar("setting", default=0)


def test_each_rank_has_its_own_value_of_a_context_variable():
    def program(rank, inputs):
        setting.set(setting.get() + rank + 1)
        dist.barrier()
        return setting.get()

    setting.set(7)
    for _ in range(2):
        assert emulate(program, (1, 1)).returns == (1, 2)
    assert setting.get() == 7
