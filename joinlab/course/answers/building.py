"""Judges of what learners build: a small DDP and a small join(), each compared with PyTorch's own.

A judge emulates the answer and PyTorch's class on the same case and compares the two Timelines call
by call. Expected calls are never written here. Calls that DDP makes for itself (checking shapes,
rebuilding its buckets) are left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from joinlab.course.answers.situations import SITUATIONS, Shape, Situation, distinct, draw
from joinlab.course.judge import KEPT, Answer, Fed, Judge, Wrong, call, compare, issued, run
from joinlab.emulator.scheduler import current
from joinlab.timeline import Timeline

STEP = 0.001
SECOND = 10**9
INPUTS = 3


class Chain(torch.nn.Module):
    """The product of its parts; `backward` reaches the last-used part first. Each number has a
    weight of its own."""

    def __init__(self, shapes: Sequence[Shape], turned: bool = False) -> None:
        super().__init__()
        self.parts = torch.nn.ParameterList(torch.rand(shape) + 0.5 for shape in shapes)
        self._turned = turned

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = list(self.parts)
        for part in reversed(parts) if self._turned else parts:
            weights = torch.arange(1.0, part.numel() + 1).view_as(part) * 2 / (part.numel() + 1)
            x = x * (part * weights).mean()
        return x


def difference(
    calls: Sequence[Mapping[str, object]], real: Sequence[Mapping[str, object]]
) -> tuple[int, str]:
    """The number of the first call that differs, counted from 1, and the difference; (0, "") if all
    calls agree.

    >>> difference([{"op": "broadcast", "numbers": 3}], [{"op": "broadcast", "numbers": 5}])
    (1, 'numbers: expected 5, got 3')
    """
    for number, (asked, wanted) in enumerate(zip(calls, real, strict=False), 1):
        for field, value in wanted.items():
            if asked[field] != value:
                return number, f"{field}: expected {value}, got {asked[field]}"
    if len(calls) < len(real):
        return len(calls) + 1, f"it is missing: expected {_words(real[len(calls)])}"
    if len(calls) > len(real):
        return len(real) + 1, f"it is one too many: {_words(calls[len(real)])}"
    return 0, ""


def _words(fields: Mapping[str, object]) -> str:
    return ", ".join(f"{field} {value}" for field, value in fields.items())


def _numbers(row: Mapping[str, Any]) -> int:
    return sum(map(prod, row["shape"]))


# ---- a small DDP


def _module(case: Situation, rank: int) -> Chain:
    return Chain(case.shapes, case.turned and rank % 2 == 1)


def _given(case: Situation) -> str:
    turned = ", gradients in another order on odd ranks" if case.turned else ""
    shapes = ", ".join("×".join(map(str, shape)) for shape in case.shapes)
    return f"parameters of {shapes} numbers, buckets of {case.bucket}, {case.ranks} ranks{turned}"


def busy(_: torch.Tensor) -> None:
    """Let each gradient take a second of the virtual clock, so that times show which gradients
    precede a call."""
    current().work_for(SECOND)


def _trained(
    wrap: Callable[[torch.nn.Module], Any],
    case: Situation,
    backend: str,
    situation: str,
    computes: Callable[[torch.Tensor], None] = busy,
) -> Timeline:
    """Each rank returns its parameters after construction, and its gradients after each input.

    computes  called with each parameter whose gradient has been computed
    """

    def program(rank: int, inputs: Any) -> tuple[Any, object]:
        module = _module(case, rank)
        for parameter in module.parameters():
            parameter.register_post_accumulate_grad_hook(computes)  # type: ignore[no-untyped-call]
        model = wrap(module)
        begun = [parameter.tolist() for parameter in module.parameters()]
        gradients = []
        for i, _ in enumerate(inputs):
            module.zero_grad()
            model(torch.tensor([rank + i + 1.0])).sum().backward()
            gradients.append(
                [
                    parameter.grad.tolist()
                    for parameter in module.parameters()
                    if parameter.grad is not None
                ]
            )
        return begun, gradients

    return run(
        program, (INPUTS,) * case.ranks, situation, backend=backend, seed=tuple(range(case.ranks))
    )


@lru_cache(KEPT)
def _by_ddp(case: Situation, backend: str) -> Timeline:
    cap = case.bucket * 4 / 2**20
    return _trained(
        lambda module: DDP(module, bucket_cap_mb=cap), case, backend, f"{_given(case)} on {backend}"
    )


def _reductions(timeline: Timeline, rank: int) -> list[dict[str, Any]]:
    """A rank's calls from its second input on; for the first input DDP has a single bucket."""
    spans = timeline.spans.filter(
        timeline.spans["rank"] == rank, timeline.spans["name"] == "backward"
    )
    begun = dict(spans.select("input", "begin_ns").iter_rows())
    described: list[dict[str, object]] = []
    for row in issued(timeline, rank):
        if row["input"]:
            computed = (row["enqueued_ns"] - begun[row["input"]]) // SECOND
            described.append(
                {
                    "input": row["input"],
                    "op": row["op"],
                    "numbers": _numbers(row),
                    "gradients computed before it": computed,
                }
            )
    return described


def _hand_out(answer: Answer, case: Situation) -> None:
    def program(rank: int, inputs: object) -> list[object]:
        module = _module(case, rank)
        answer(module)
        return [parameter.tolist() for parameter in module.parameters()]

    for backend in case.backends:
        situation = f"{_given(case)} on {backend}"
        timeline = run(
            program, (1,) * case.ranks, situation, backend=backend, seed=tuple(range(case.ranks))
        )
        _begins_alike([*timeline.returns], case, backend, situation)


def _begins_alike(begun: Sequence[object], case: Situation, backend: str, situation: str) -> None:
    for rank, parameters in enumerate(begun):
        wanted = _by_ddp(case, backend).returns[rank][0]
        compare(
            parameters, wanted, situation, f"the list of parameters that rank {rank} begins with"
        )


def _buckets_of(answer: Answer, case: Situation) -> None:
    module = _module(case, 0)
    parameters = list(module.parameters())
    index_of = {id(parameter): index for index, parameter in enumerate(parameters)}

    def numbered(*arguments: object) -> object:
        buckets = answer(*arguments)
        if not isinstance(buckets, (list, tuple)) or not all(
            isinstance(bucket, (list, tuple)) for bucket in buckets
        ):
            raise TypeError(
                f"it returns {buckets!r:.60}; it should return a list of lists of parameters"
            )
        return [[index_of.get(id(parameter), -1) for parameter in bucket] for bucket in buckets]

    got = call(numbered, (module, case.bucket), _given(case))
    remaining = len(parameters)
    wanted: list[list[int]] = []
    for row in _reductions(_by_ddp(case, "nccl"), 0):
        if row["input"] == 1:
            bucket: list[int] = []
            while sum(parameters[index].numel() for index in bucket) < row["numbers"]:
                remaining -= 1
                bucket.append(remaining)
            wanted.append(bucket)
    compare(got, wanted, _given(case), "the list of buckets, with the number of each parameter,")


def _small_ddp(answer: Answer, case: Situation) -> None:
    if case in UNEQUAL:
        return _waits_for_all(answer, case)
    for backend in case.backends:
        situation = f"{_given(case)} on {backend}"
        built = _trained(lambda module: answer(module, case.bucket), case, backend, situation)
        real = _by_ddp(case, backend)
        _begins_alike([begun for begun, _ in built.returns], case, backend, situation)
        for rank in range(case.ranks):
            number, difference_text = difference(_reductions(built, rank), _reductions(real, rank))
            if number:
                raise Wrong(
                    f"with {situation}, rank {rank} and a rank of DDP differ "
                    f"from the second input on in their call {number}: "
                    f"{difference_text}."
                )
            _waits_at_the_end(built, rank, situation)
            compare(
                built.returns[rank][1],
                real.returns[rank][1],
                situation,
                f"the list of rank {rank}'s gradients",
            )


def _waits_at_the_end(timeline: Timeline, rank: int, situation: str) -> None:
    """Raise Wrong if a wait begins before the input's last call is issued; only gloo makes the host
    wait."""
    rows = [row for row in issued(timeline, rank) if row["input"] is not None]
    for row in rows:
        last = max(later["enqueued_ns"] for later in rows if later["input"] == row["input"])
        if (row["host_wait_begin_ns"] or last) < last:
            raise Wrong(
                f"with {situation}, rank {rank} waits for a bucket of input {row['input']} "
                "before it has issued the last "
                "one. DDP waits for all of them at the end, so that they overlap with backward."
            )


UNEQUAL = tuple(
    Situation((3, 3), shapes, bucket=1) for shapes in (((1,), (10_000,)), ((10_000,), (1,)))
)
"""One of two buckets takes much longer than the other."""


def _waits_for_all(answer: Answer, case: Situation) -> None:
    """Raise Wrong if a rank goes on before all of its reductions are done."""
    situation = f"{_given(case)} on gloo"
    timeline = _trained(
        lambda module: answer(module, case.bucket), case, "gloo", situation, computes=lambda _: None
    )
    for rank, input in product(range(case.ranks), range(INPUTS)):
        rows = [row for row in issued(timeline, rank) if row["input"] == input]
        waited = max((row["host_wait_end_ns"] or 0 for row in rows), default=0)
        if any(row["completed_ns"] > waited for row in rows):
            raise Wrong(
                f"with {situation}, rank {rank} goes on while a bucket of input {input} is still being reduced. Call "
                "wait() on the work of each bucket: a later one may be done before an earlier one."
            )


def _of_models(case: Situation) -> object:
    return (case.ranks, case.shapes, case.bucket, case.turned)


MODELS = distinct(_of_models)
hand_out = Judge(MODELS, draw, _hand_out)
buckets_of = Judge(distinct(lambda case: (case.shapes, case.bucket)), draw, _buckets_of)
small_ddp = Judge((*MODELS, *UNEQUAL), draw, _small_ddp)

# ---- a small join()


def _moved(model: torch.nn.Module) -> None:
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.data -= STEP * parameter.grad
        parameter.grad = None


@lru_cache(KEPT)
def _by_join(case: Situation, backend: str) -> Timeline:
    def program(rank: int, inputs: object) -> list[object]:
        model = DDP(Chain(case.shapes))
        with model.join():
            for value in Fed(inputs, case.inputs(rank)):
                model(value).sum().backward()
                _moved(model)
        return [parameter.tolist() for parameter in model.parameters()]

    return run(program, case.counts, f"{case} on {backend}", backend=backend)


def _asked(timeline: Timeline, rank: int) -> list[dict[str, object]]:
    """A rank's calls. Successive broadcasts from one root count as one, since DDP packs its
    parameters."""
    calls: list[dict[str, object]] = []
    for row in issued(timeline, rank):
        call = {"op": row["op"], "numbers": _numbers(row)}
        if row["op"] == "broadcast":
            call["root"] = row["root"]
            if calls and calls[-1]["op"] == "broadcast" and calls[-1]["root"] == row["root"]:
                calls[-1]["numbers"] += call["numbers"]
                continue
        elif call["numbers"] == 1:
            call["answer"] = json.loads(row["value_out"])[0][0]
        calls.append(call)
    return calls


def _small_join(answer: Answer, case: Situation) -> None:
    def program(rank: int, inputs: object) -> list[object]:
        model = Chain(case.shapes)

        def train(value: torch.Tensor) -> None:
            model(value).sum().backward()
            parameters = list(model.parameters())
            flat = torch.cat(
                [parameter.grad.flatten() for parameter in parameters if parameter.grad is not None]
            )
            dist.all_reduce(flat.div_(dist.get_world_size()))
            means = torch.split(flat, [parameter.numel() for parameter in parameters])
            for parameter, mean in zip(parameters, means, strict=True):
                parameter.grad = mean.view_as(parameter)
            _moved(model)

        answer(model, Fed(inputs, case.inputs(rank)), train)
        return [parameter.tolist() for parameter in model.parameters()]

    for backend in case.backends:
        situation = f"{case} on {backend}"
        built, real = run(program, case.counts, situation, backend=backend), _by_join(case, backend)
        for rank in range(case.ranks):
            number, difference_text = difference(_asked(built, rank), _asked(real, rank))
            if number:
                raise Wrong(
                    f"with {situation}, rank {rank} and a rank of DDP under join() differ "
                    f"in their call {number}: {difference_text}."
                )
            compare(
                built.returns[rank],
                real.returns[rank],
                situation,
                f"the list of rank {rank}'s parameters at the end",
            )


small_join = Judge(SITUATIONS, draw, _small_join)
