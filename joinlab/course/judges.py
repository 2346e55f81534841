"""Judges: one for each exercise. A judge runs an answer on counts that it draws, and raises Wrong if it fails.

What is right is never typed in here: DDP itself says what a gradient is and whose parameters win, in the same run.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from textwrap import shorten
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join, Joinable
from torch.nn.parallel import DistributedDataParallel as DDP

from joinlab import scenarios
from joinlab.analysis.diagnosis import diagnose
from joinlab.emulator.emulate import emulate
from joinlab.timeline import EndKind, Timeline

Answer = Callable[..., Any]


class Wrong(Exception):
    """What is wrong with an answer, in words."""


# ---- what the judges share


def _counts(rng: random.Random, ranks: int | None = None, least: int = 0, most: int = 4) -> tuple[int, ...]:
    """Uneven counts for 2 to 4 ranks."""
    while True:
        counts = tuple(rng.randint(least, most) for _ in range(ranks or rng.randint(2, 4)))
        if len(set(counts)) > 1:
            return counts


def _finished(timeline: Timeline, given: str) -> Timeline:
    """The timeline, if all its ranks finished; else say which did not."""
    for rank, end in enumerate(timeline.ends):
        if end.kind is EndKind.RAISED and not end.text.startswith("RuntimeError: Connection"):
            raise Wrong(f"with {given}, rank {rank} raised {end.text}")
    for one in diagnose(timeline).ranks:
        if one.ending.kind is not EndKind.FINISHED or one.ending.pending:
            raise Wrong(f"with {given}: {one.sentence}")
    return timeline


def _issued(timeline: Timeline, rank: int) -> list[Mapping[str, Any]]:
    """The collectives that the answer itself issued on a rank, without those of DDP's setup."""
    rows = timeline.calls.filter(timeline.calls["rank"] == rank).rows(named=True)
    return [row for row in rows if "construction" not in row["origin"] and "rebuild" not in row["origin"]]


def _plain(value: Any) -> Any:
    return (
        [_plain(item) for item in value]
        if isinstance(value, (list, tuple))
        else getattr(value, "tolist", lambda: value)()
    )


def _compare(found: Any, wanted: Any, given: str, what: str) -> None:
    if _plain(found) != _plain(wanted):
        raise Wrong(f"with {given}, {what} should be {_short(wanted)}; it is {_short(found)}.")


def _short(value: Any) -> str:
    return shorten(str(_plain(value)), 150, placeholder=" ...")


# ---- the judges, one an exercise


def gather_list(answer: Answer, rng: random.Random) -> None:
    ranks, tensors = rng.randint(2, 4), rng.randint(2, 5)

    def own(rank: int) -> list[torch.Tensor]:
        return [torch.tensor([[100.0 * rank + i, 100.0 * rank + i + 0.5]]) for i in range(tensors)]

    def program(rank: int, inputs: Any) -> Any:
        return answer(own(rank))

    given = f"{ranks} ranks of {tensors} tensors each"
    timeline = _finished(emulate(program, (1,) * ranks), given)
    wanted = [tensor for rank in range(ranks) for tensor in own(rank)]
    for rank in range(ranks):
        _compare(timeline.returns[rank], wanted, given, f"what rank {rank} returns")
        if len(_issued(timeline, rank)) != 1:
            raise Wrong(f"with {given}, it made {len(_issued(timeline, rank))} collective calls a rank; one is enough.")


def accumulate(answer: Answer, rng: random.Random) -> None:
    ranks, count = rng.randint(2, 3), rng.randint(2, 5)
    scales = [[float(rng.randint(1, 9)) for _ in range(count)] for _ in range(ranks)]

    def program(rank: int, inputs: Any) -> float:
        model = DDP(torch.nn.Linear(1, 1, bias=False))
        answer(model, [torch.ones(1) * scale for scale in scales[rank]])
        return round(float(model.module.weight.grad.item()), 3)

    given = f"{ranks} ranks of {count} inputs each"
    timeline = _finished(emulate(program, (1,) * ranks), given)
    calls = len(_issued(timeline, 0))
    if calls != 1:
        raise Wrong(f"with {given}, the gradients were reduced {calls} times; it should be once, for all inputs.")
    wanted = round(sum(map(sum, scales)) / ranks, 3)
    for rank in range(ranks):
        _compare(timeline.returns[rank], wanted, given, f"the gradient on rank {rank}")


def gradient(answer: Answer, rng: random.Random) -> None:
    counts = _counts(rng)
    scales = [float(rng.randint(1, 9)) for _ in counts]
    by_all = rng.random() < 0.5

    def program(rank: int, inputs: Any) -> list[float]:
        rank_inputs = [input * scales[rank] / (rank + 1) for input in inputs]
        return scenarios.gradients(rank, rank_inputs, divide_by_initial_world_size=by_all)

    ran = max(range(len(counts)), key=counts.__getitem__)
    for step, found in enumerate(emulate(program, counts).raise_for_ending().returns[ran]):
        own = [scale for scale, count in zip(scales, counts, strict=True) if count > step]
        given = f"gradients {own} of {len(own)} ranks that are left of {len(counts)}"
        said = _call(answer, (own, len(counts), by_all), f"{given}, divide_by_initial_world_size={by_all}")
        if not isinstance(said, (int, float)) or abs(said - found) > 1e-3:
            raise Wrong(
                f"with {given} and divide_by_initial_world_size={by_all}, DDP made {found:.4g} of it; "
                f"you said {said!r}."
            )


def last_joiner(answer: Answer, rng: random.Random) -> None:
    counts = _counts(rng, ranks=4, most=3)
    (found, *_) = emulate(scenarios.own_parameters_at_the_end, counts).raise_for_ending().returns
    said = _call(answer, (counts,), f"inputs={counts}")
    if said != found:
        raise Wrong(
            f"with inputs={counts}, all ranks ended with the parameters of rank {found:.0f}; you said {said!r}."
        )


def _call(answer: Answer, arguments: Sequence[Any], given: str) -> Any:
    try:
        return answer(*arguments)
    except Exception as error:
        raise Wrong(f"with {given}, it raised {type(error).__name__}: {error}") from None


def _joinable(answer: Answer, rng: random.Random, counts: Sequence[int]) -> tuple[Timeline, list[list[float]], str]:
    numbers = [[float(rng.randint(-99, -9)) for _ in range(count)] for count in counts]
    numbers[counts.index(max(counts))][-1] = -float(
        rng.randint(1, 8)
    )  # the largest comes last, when others have joined

    def program(rank: int, inputs: Any) -> Any:
        joinable = answer()
        if not isinstance(joinable, Joinable):
            raise TypeError(f"{type(joinable).__name__} is no Joinable")
        with Join([joinable]):
            for number, _ in zip(numbers[rank], inputs, strict=True):
                joinable(torch.tensor([number]))  # type: ignore[operator]
        return float(joinable.largest.item())  # type: ignore[attr-defined]

    given = f"inputs={tuple(counts)} and the numbers {numbers}"
    return _finished(emulate(program, counts), given), numbers, given


def notify(answer: Answer, rng: random.Random) -> None:
    ranks, count = rng.randint(2, 3), rng.randint(1, 3)
    timeline, numbers, given = _joinable(answer, rng, (count,) * ranks)
    notified = [row for row in _issued(timeline, 0) if "notify_join_context" in row["origin"]]
    if len(notified) != count:
        raise Wrong(
            f"with {given}, rank 0 told Join {len(notified)} times that it still has inputs; it should, once an input."
        )
    for rank in range(ranks):
        _compare(timeline.returns[rank], max(map(max, numbers)), given, f"largest on rank {rank}")

    def without_join(rank: int, inputs: Any) -> None:
        answer()(torch.tensor([1.0]))

    _finished(emulate(without_join, (1,) * ranks), "no Join around it")


def main_hook(answer: Answer, rng: random.Random) -> None:
    counts = _counts(rng)
    timeline, numbers, given = _joinable(answer, rng, counts)
    for rank, count in enumerate(counts):
        if count == max(counts):  # it was there to the end; of the others, the next exercise asks
            _compare(timeline.returns[rank], max(map(max, filter(None, numbers))), given, f"largest on rank {rank}")


def post_hook(answer: Answer, rng: random.Random) -> None:
    ranks = rng.randint(2, 4)
    for early in range(ranks):  # each rank is the first to join once
        counts = [rng.randint(1, 4) if rank != early else 0 for rank in range(ranks)]
        timeline, numbers, given = _joinable(answer, rng, counts)
        for rank in range(ranks):
            _compare(timeline.returns[rank], max(map(max, filter(None, numbers))), given, f"largest on rank {rank}")


def in_order(answer: Answer, rng: random.Random) -> None:
    ranks, buckets = rng.randint(2, 3), rng.randint(3, 5)
    orders = [rng.sample(range(buckets), buckets) for _ in range(ranks)]
    orders[1] = orders[0][::-1]

    def program(rank: int, inputs: Any) -> tuple[list[float], list[int]]:
        tensors = [torch.full((3 * i + 1,), float(rank + 1)) for i in range(buckets)]
        works: list[Any] = []
        ready: list[int] = []
        late: list[int] = []

        def getting_ready() -> Iterator[int]:
            for bucket in orders[rank]:
                ready.append(bucket)
                yield bucket
                late.extend(i for i in _in_line(ready) if i >= len(works))

        def reduce(bucket: int) -> None:
            works.append(dist.all_reduce(tensors[bucket], async_op=True))

        answer(getting_ready(), reduce)
        for work in works:
            work.wait()
        return [tensor[0].item() for tensor in tensors], late

    given = "buckets that get ready in the orders " + ", ".join(
        f"{order} on rank {r}" for r, order in enumerate(orders)
    )
    timeline = _finished(emulate(program, (1,) * ranks), given)
    for rank, (sums, late) in enumerate(timeline.returns):
        _compare(
            sums, [float(sum(range(1, ranks + 1)))] * buckets, given, f"the first value of each bucket on rank {rank}"
        )
        if late:
            raise Wrong(
                f"with {given}, rank {rank} kept bucket {late[0]} waiting, though it and all before it were ready: "
                "nothing is reduced while the others are still being computed."
            )


def _in_line(ready: Sequence[int]) -> Iterator[int]:
    """0, 1, 2, ... as far as all of them are ready."""
    following = 0
    while following in ready:
        yield following
        following += 1
