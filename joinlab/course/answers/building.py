"""Judges of notebooks 4 and 8: a small DDP and a small join(), each compared with PyTorch's own.

A judge emulates the answer and PyTorch's class on the same case and compares the two Timelines call
by call. Expected calls are never written here. Calls that DDP makes for itself (checking shapes,
rebuilding its buckets) are left out.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from joinlab.course.judge import KEPT, Answer, Judge, Wrong, call, compare, issued, run, uneven
from joinlab.emulator.scheduler import current
from joinlab.timeline import Timeline

BACKENDS = ("nccl", "gloo")
STEP = 0.05
SECOND = 10**9
INPUTS = 3


class Chain(torch.nn.Module):
    """The product of its parts; `backward` reaches the last-used part first. Each number has a
    weight of its own."""

    def __init__(self, sizes: Sequence[int], turned: bool = False) -> None:
        super().__init__()
        self.parts = torch.nn.ParameterList(torch.rand(size) + 0.5 for size in sizes)
        self._turned = turned

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = list(self.parts)
        for part in reversed(parts) if self._turned else parts:
            x = x * (part * torch.arange(1.0, len(part) + 1)).mean()
        return x


def difference(
    own: Sequence[Mapping[str, Any]], real: Sequence[Mapping[str, Any]]
) -> tuple[int, str]:
    """The number of the first call that differs, counted from 1, and the difference; (0, "") if all
    calls agree.

    >>> difference([{"op": "broadcast", "numbers": 3}], [{"op": "broadcast", "numbers": 5}])
    (1, 'numbers: expected 5, got 3')
    """
    for at, (mine, wanted) in enumerate(zip(own, real, strict=False), 1):
        for field, value in wanted.items():
            if mine[field] != value:
                return at, f"{field}: expected {value}, got {mine[field]}"
    if len(own) < len(real):
        return len(own) + 1, f"it is missing: expected {_words(real[len(own)])}"
    if len(own) > len(real):
        return len(real) + 1, f"it is one too many: {_words(own[len(real)])}"
    return 0, ""


def _words(fields: Mapping[str, Any]) -> str:
    return ", ".join(f"{field} {value}" for field, value in fields.items())


def _numbers(row: Mapping[str, Any]) -> int:
    return sum(prod(shape) for shape in row["shape"])


# ---- a small DDP


@dataclass(frozen=True, slots=True)
class Model:
    """Sizes of a model's parameters, numbers per bucket and number of ranks.

    turned  odd ranks use the parameters in reverse, so their gradients are computed in another order
    """

    sizes: tuple[int, ...]
    numbers: int
    ranks: int = 2
    turned: bool = False

    def __str__(self) -> str:
        turned = ", gradients in another order on odd ranks" if self.turned else ""
        sizes = ", ".join(map(str, self.sizes))
        return (
            f"parameters of {sizes} numbers, buckets of {self.numbers}, {self.ranks} ranks{turned}"
        )

    def module(self, rank: int) -> Chain:
        return Chain(self.sizes, self.turned and rank % 2 == 1)


def busy(_: torch.Tensor) -> None:
    """Let each gradient take a second of the virtual clock, so that times show which gradients
    precede a call."""
    current().waits.work_for(SECOND)


def _trained(
    wrap: Callable[[torch.nn.Module], Any], case: Model, backend: str, given: str
) -> Timeline:
    """Each rank returns its parameters after construction, and its gradients after each input."""

    def program(rank: int, inputs: Any) -> tuple[Any, Any]:
        module = case.module(rank)
        for parameter in module.parameters():
            parameter.register_post_accumulate_grad_hook(busy)  # type: ignore[no-untyped-call]
        model = wrap(module)
        begun = [parameter.tolist() for parameter in module.parameters()]
        found = []
        for i, _ in enumerate(inputs):
            module.zero_grad()
            model(torch.tensor([rank + i + 1.0])).sum().backward()
            found.append(
                [
                    parameter.grad.tolist()
                    for parameter in module.parameters()
                    if parameter.grad is not None
                ]
            )
        return begun, found

    return run(
        program, (INPUTS,) * case.ranks, given, backend=backend, seed=tuple(range(case.ranks))
    )


@lru_cache(KEPT)
def _by_ddp(case: Model, backend: str) -> Timeline:
    cap = case.numbers * 4 / 2**20
    return _trained(
        lambda module: DDP(module, bucket_cap_mb=cap), case, backend, f"{case} on {backend}"
    )


def _reductions(timeline: Timeline, rank: int) -> list[dict[str, Any]]:
    """A rank's calls from its second input on; for the first input DDP has a single bucket."""
    spans = timeline.spans.filter(
        timeline.spans["rank"] == rank, timeline.spans["name"] == "backward"
    )
    begun = dict(spans.select("input", "begin_ns").iter_rows())
    rows = [row for row in issued(timeline, rank) if row["input"]]
    return [
        {
            "input": row["input"],
            "op": row["op"],
            "numbers": _numbers(row),
            "gradients computed before it": (row["enqueued_ns"] - begun[row["input"]]) // SECOND,
        }
        for row in rows
    ]


def _hand_out(answer: Answer, case: Model) -> None:
    def program(rank: int, inputs: Any) -> list[Any]:
        module = case.module(rank)
        answer(module)
        return [parameter.tolist() for parameter in module.parameters()]

    for backend in BACKENDS:
        given = f"{case} on {backend}"
        timeline = run(
            program, (1,) * case.ranks, given, backend=backend, seed=tuple(range(case.ranks))
        )
        _begins_alike([*timeline.returns], case, backend, given)


def _begins_alike(begun: Sequence[Any], case: Model, backend: str, given: str) -> None:
    for rank, parameters in enumerate(begun):
        wanted = _by_ddp(case, backend).returns[rank][0]
        compare(parameters, wanted, given, f"the list of parameters that rank {rank} begins with")


def _buckets_of(answer: Answer, case: Model) -> None:
    module = case.module(0)
    parameters = list(module.parameters())
    places = {id(parameter): at for at, parameter in enumerate(parameters)}

    def numbered(*arguments: Any) -> Any:
        found = answer(*arguments)
        if not isinstance(found, (list, tuple)) or not all(
            isinstance(bucket, (list, tuple)) for bucket in found
        ):
            raise TypeError(
                f"it returns {found!r:.60}; it should return a list of lists of parameters"
            )
        return [[places.get(id(one), -1) for one in bucket] for bucket in found]

    got = call(numbered, (module, case.numbers), str(case))
    left = len(parameters)
    wanted: list[list[int]] = []
    for row in _reductions(_by_ddp(case, "nccl"), 0):
        if row["input"] == 1:
            bucket: list[int] = []
            while sum(case.sizes[at] for at in bucket) < row["numbers"]:
                left -= 1
                bucket.append(left)
            wanted.append(bucket)
    compare(got, wanted, str(case), "the list of buckets, with the number of each parameter,")


def _small_ddp(answer: Answer, case: Model) -> None:
    for backend in BACKENDS:
        given = f"{case} on {backend}"
        own, real = (
            _trained(lambda module: answer(module, case.numbers), case, backend, given),
            _by_ddp(case, backend),
        )
        _begins_alike([begun for begun, _ in own.returns], case, backend, given)
        for rank in range(case.ranks):
            at, what = difference(_reductions(own, rank), _reductions(real, rank))
            if at:
                raise Wrong(
                    f"with {given}, rank {rank} and a rank of DDP differ from the second input on in their call {at}: "
                    f"{what}."
                )
            _waits_at_the_end(own, rank, given)
            compare(
                own.returns[rank][1],
                real.returns[rank][1],
                given,
                f"the list of rank {rank}'s gradients",
            )


def _waits_at_the_end(timeline: Timeline, rank: int, given: str) -> None:
    """Raise Wrong if a wait begins before the input's last call is issued; only gloo makes the host
    wait."""
    rows = [row for row in issued(timeline, rank) if row["input"] is not None]
    for row in rows:
        last = max(other["enqueued_ns"] for other in rows if other["input"] == row["input"])
        if (row["host_wait_begin_ns"] or last) < last:
            raise Wrong(
                f"with {given}, rank {rank} waits for a bucket of input {row['input']} before it has issued the last "
                "one. DDP waits for all of them at the end, so that they overlap with backward."
            )


def _draw_model(rng: random.Random) -> Model:
    sizes = tuple(rng.randint(1, 9) for _ in range(rng.randint(2, 5)))
    return Model(sizes, rng.randint(1, 15), rng.randint(2, 3), rng.random() < 0.5)


MODELS = (
    Model((4, 2, 3, 1), 4),
    Model((2, 2, 2), 100),
    Model((3, 5, 2), 1, ranks=3),
    Model((2, 6, 1, 3), 4, turned=True),
)
hand_out = Judge(MODELS[:3], _draw_model, _hand_out)
buckets_of = Judge(
    MODELS[:3], lambda rng: Model(_draw_model(rng).sizes, rng.randint(1, 15)), _buckets_of
)
small_ddp = Judge(MODELS, _draw_model, _small_ddp)

# ---- a small join()


def _moved(model: torch.nn.Module) -> None:
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.data -= STEP * parameter.grad
        parameter.grad = None


def _values(rank: int, inputs: Any) -> list[torch.Tensor]:
    return [torch.tensor([rank + i + 1.0]) for i, _ in enumerate(inputs)]


@lru_cache(KEPT)
def _by_join(counts: tuple[int, ...], backend: str) -> Timeline:
    def program(rank: int, inputs: Any) -> list[Any]:
        model = DDP(Chain((2, 3)))
        with model.join():
            for value in _values(rank, inputs):
                model(value).sum().backward()
                _moved(model)
        return [parameter.tolist() for parameter in model.parameters()]

    return run(program, counts, f"inputs={counts} on {backend}", backend=backend)


def _asked(timeline: Timeline, rank: int) -> list[dict[str, Any]]:
    """A rank's calls. Successive broadcasts from one root count as one, since DDP packs its
    parameters."""
    found: list[dict[str, Any]] = []
    for row in issued(timeline, rank):
        one = {"op": row["op"], "numbers": _numbers(row)}
        if row["op"] == "broadcast":
            one["root"] = row["root"]
            if found and found[-1]["op"] == "broadcast" and found[-1]["root"] == row["root"]:
                found[-1]["numbers"] += one["numbers"]
                continue
        elif one["numbers"] == 1:
            one["answer"] = json.loads(row["value_out"])[0][0]
        found.append(one)
    return found


def _small_join(answer: Answer, counts: tuple[int, ...]) -> None:
    def program(rank: int, inputs: Any) -> list[Any]:
        model = Chain((2, 3))

        def train(value: torch.Tensor) -> None:
            model(value).sum().backward()
            flat = torch.cat(
                [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
            )
            dist.all_reduce(flat.div_(dist.get_world_size()))
            for parameter, mean in zip(model.parameters(), torch.split(flat, [2, 3]), strict=True):
                parameter.grad = mean
            _moved(model)

        answer(model, _values(rank, inputs), train)
        return [parameter.tolist() for parameter in model.parameters()]

    for backend in BACKENDS:
        given = f"inputs={counts} on {backend}"
        own, real = run(program, counts, given, backend=backend), _by_join(counts, backend)
        for rank in range(len(counts)):
            at, what = difference(_asked(own, rank), _asked(real, rank))
            if at:
                raise Wrong(
                    f"with {given}, rank {rank} and a rank of DDP under join() differ in their call {at}: {what}."
                )
            compare(
                own.returns[rank],
                real.returns[rank],
                given,
                f"the list of rank {rank}'s parameters at the end",
            )


small_join = Judge(
    ((2, 3), (3, 1), (0, 2), (2, 2), (1, 3, 3), (2, 0, 1)), lambda rng: uneven(rng), _small_join
)
