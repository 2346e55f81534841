"""Judges of the exercises on collectives, DDP and join().

Expected gradients and parameters are never written here: DDP, or plain training without it,
computes them from the same case.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from joinlab import scenarios
from joinlab.analysis.matching import match
from joinlab.cases import CASES
from joinlab.course.answers.repairs import nothing_crosses
from joinlab.course.judge import (
    KEPT,
    Answer,
    Judge,
    Wrong,
    call,
    compare,
    issued,
    plain,
    run,
    uneven,
)
from joinlab.emulator.emulate import emulate
from joinlab.emulator.scheduler import current

# ---- gather_list: one collective for a list of tensors


@dataclass(frozen=True, slots=True)
class Tensors:
    """A number of ranks with `each` tensors per rank; `seed` draws their values, which do not
    reveal the rank."""

    ranks: int
    each: int
    seed: int = 0

    def own(self, rank: int) -> list[torch.Tensor]:
        """The tensors of a rank, each of shape (1, 2)."""
        rng = random.Random(f"{self.seed} {rank}")
        return [torch.tensor([[rng.uniform(-9, 9), rng.uniform(-9, 9)]]) for _ in range(self.each)]

    def __str__(self) -> str:
        return f"{self.ranks} ranks of {self.each} tensors each"


def _gather_list(answer: Answer, case: Tensors) -> None:
    def program(rank: int, inputs: Any) -> Any:
        found = answer(own := case.own(rank))
        if not isinstance(found, (list, tuple)):
            raise TypeError(
                f"it returns {type(found).__name__}; it should return a list of tensors"
            )
        if [one.tolist() for one in own] != [one.tolist() for one in case.own(rank)]:
            raise ValueError("it changed the list or the tensors that it was given")
        return plain(found)

    timeline = run(program, (1,) * case.ranks, str(case))
    wanted = [tensor for rank in range(case.ranks) for tensor in case.own(rank)]
    for rank, found in enumerate(timeline.returns):
        compare(found, wanted, str(case), f"what rank {rank} returns")
        if (made := len(issued(timeline, rank))) != 1:
            raise Wrong(f"with {case}, rank {rank} made {made} collective calls; one is enough.")


gather_list = Judge(
    (Tensors(2, 3), Tensors(3, 2), Tensors(4, 1)),
    lambda rng: Tensors(rng.randint(2, 4), rng.randint(2, 5), rng.randrange(10**9)),
    _gather_list,
)

# ---- ring_sum: an all-reduce of sends and receives


def _ring_sum(answer: Answer, ranks: int) -> None:
    for backend in ("nccl", "gloo"):
        given = f"{ranks} ranks on {backend}"

        def program(rank: int, inputs: Any) -> Any:
            return plain(answer(torch.tensor([rank + 1.0, 3.0**rank])))

        timeline = run(program, (1,) * ranks, given, backend=backend)
        wanted = [float(sum(range(1, ranks + 1))), sum(3.0**rank for rank in range(ranks))]
        for rank, found in enumerate(timeline.returns):
            compare(found, wanted, given, f"the sum on rank {rank}")
            if others := {row["op"] for row in issued(timeline, rank)} - {"send", "recv"}:
                raise Wrong(
                    f"with {given}, rank {rank} called {', '.join(sorted(others))}; send and receive only."
                )


ring_sum = Judge((2, 3, 4), lambda rng: rng.randint(2, 5), _ring_sum)

# ---- accumulate: several backwards, one reduction


class _Curved(torch.nn.Module):
    """(w x)²: the gradient of a sum of inputs is not the sum of their gradients, so each input
    needs a backward."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) ** 2  # type: ignore[no-any-return]


def _accumulate(answer: Answer, case: Sequence[Sequence[float]]) -> None:
    """`case`: the inputs of each rank. The answer is called twice, as in two training steps."""

    def program(rank: int, inputs: Any) -> list[float]:
        model = DDP(_Curved())
        found = []
        for _ in range(2):
            model.zero_grad()
            answer(model, [torch.tensor([value]) for value in case[rank]])
            if not model.require_backward_grad_sync:
                raise ValueError(
                    "it returns with no_sync() still active: the next backward would not reduce gradients"
                )
            grad = model.module.layer.weight.grad
            found.append(float("nan") if grad is None else grad.item())
        return found

    def plainly(rank: int, inputs: Any) -> float:
        model = _Curved()  # seeded alike on all ranks: the weight that DDP hands out
        for own in case:
            for value in own:
                (model(torch.tensor([value])) / len(case)).backward()
        assert isinstance(model.layer.weight.grad, torch.Tensor)
        return model.layer.weight.grad.item()

    given = f"inputs {', '.join(str(list(own)) for own in case)} of {len(case)} ranks"
    timeline = run(program, (1,) * len(case), given)
    wanted = run(plainly, (1,), given).returns[0]
    for rank, own in enumerate(case):
        reductions = len([row for row in issued(timeline, rank) if "backward" in row["origin"]])
        if reductions != 2:
            raise Wrong(
                f"with {given}, rank {rank} reduced gradients {reductions} times in two calls of accumulate; "
                "it should be once per call, for all its inputs together."
            )
        backwards = timeline.spans.filter(
            timeline.spans["rank"] == rank, timeline.spans["name"] == "backward"
        ).height
        if backwards != 2 * len(own):
            raise Wrong(
                f"with {given}, rank {rank} ran {backwards} backwards in two calls of accumulate; it should be one "
                "per input: only so can each input's graph be freed before the next."
            )
        compare(
            timeline.returns[rank],
            [wanted, wanted],
            given,
            f"the gradient on rank {rank}, call by call,",
        )


def _draw_accumulate(rng: random.Random) -> list[list[float]]:
    count = rng.randint(2, 5)
    return [[float(rng.randint(1, 9)) for _ in range(count)] for _ in range(rng.randint(2, 3))]


accumulate = Judge(
    (((1.0, 2.0), (3.0, 5.0)), ((4.0,), (7.0,)), ((1.0, 2.0, 3.0),) * 3),
    _draw_accumulate,
    _accumulate,
)

# ---- gradient: what DDP divides by


@dataclass(frozen=True, slots=True)
class Gradients:
    """Counts of inputs, each rank's own gradient, and the option of join()."""

    counts: tuple[int, ...]
    own: tuple[float, ...]
    by_all: bool


@lru_cache(KEPT)
def _made_by_ddp(case: Gradients) -> list[float]:
    def program(rank: int, inputs: Any) -> list[float]:
        scaled = [
            input * case.own[rank] / (rank + 1) for input in inputs
        ]  # the scenario multiplies by rank + 1
        return scenarios.gradients(rank, scaled, divide_by_initial_world_size=case.by_all)

    longest = max(range(len(case.counts)), key=case.counts.__getitem__)
    made: list[float] = run(program, case.counts, f"inputs={case.counts}").returns[longest]
    return made


def _gradient(answer: Answer, case: Gradients) -> None:
    for step, expected in enumerate(_made_by_ddp(case)):
        own = [one for one, count in zip(case.own, case.counts, strict=True) if count > step]
        given = (
            f"gradients {own} of the {len(own)} ranks that are left of {len(case.counts)}, "
            f"divide_by_initial_world_size={case.by_all}"
        )
        said = call(answer, (own, len(case.counts), case.by_all), given)
        compare(said, expected, given, "the gradient that DDP makes")


gradient = Judge(
    tuple(
        Gradients(counts, own, by_all)
        for counts, own in (
            ((1, 2, 4), (2.0, 3.0, 7.0)),
            ((3, 0), (5.0, 4.0)),
            ((2, 2), (1.0, 6.0)),
        )
        for by_all in (True, False)
    ),
    lambda rng: Gradients(
        counts := uneven(rng), tuple(float(rng.randint(1, 9)) for _ in counts), rng.random() < 0.5
    ),
    _gradient,
)

# ---- last_joiner: the rank whose parameters all ranks get


@lru_cache(KEPT)
def _winner(counts: tuple[int, ...]) -> float:
    number: float = run(scenarios.own_parameters_at_the_end, counts, f"inputs={counts}").returns[0]
    return number


def _last_joiner(answer: Answer, counts: tuple[int, ...]) -> None:
    winner = _winner(counts)
    said = call(answer, (counts,), f"inputs={counts}")
    if not isinstance(said, (int, float)) or isinstance(said, bool) or said != winner:
        raise Wrong(
            f"with inputs={counts}, expected rank {winner:.0f}, whose parameters all ranks end with, got {said!r}."
        )


last_joiner = Judge(
    ((3, 1, 3, 2), (1, 2, 2, 1), (4, 0), (2, 2, 2), (0, 1, 0, 0), (1, 2, 3)),
    lambda rng: uneven(rng, ranks=4, most=3),
    _last_joiner,
)

# ---- safe_loop: join() and a barrier


def _safe_loop(answer: Answer, counts: tuple[int, ...]) -> None:
    met: dict[int, int] = {}  # when each rank passed a monitored_barrier, which records no call

    def monitored(*arguments: Any, **options: Any) -> None:
        of_torch(*arguments, **options)
        met[dist.get_rank()] = current().waits.now

    of_torch = dist.monitored_barrier
    for backend, era in (("nccl", "today"), ("nccl", "1.9"), ("gloo", "today")):
        given = f"inputs={counts} on {backend}" + (", as in PyTorch 1.9" if era == "1.9" else "")
        met.clear()
        with patch.object(dist, "monitored_barrier", monitored):
            timeline = run(answer, counts, given, backend=backend, era=era)
        nothing_crosses(timeline, given)
        for rank, count in enumerate(counts):
            rows = issued(timeline, rank)
            origins = [row["origin"] for row in rows]
            if not any("_get_num_nonjoined_procs" in origin for origin in origins):
                raise Wrong(f"with {given}, rank {rank} never joined: keep the loop inside join().")
            worked = sum("backward" in origin for origin in origins)
            if worked != count:
                raise Wrong(
                    f"with {given}, rank {rank} reduced the gradients of {worked} inputs, not of all {count}."
                )
            joined = max(
                row["enqueued_ns"]
                for row in rows
                if "DDP" in row["origin"] or "join" in row["origin"]
            )
            barriers = [row["enqueued_ns"] for row in rows if "barrier" in row["origin"]]
            if max([*barriers, met.get(rank, -1)], default=-1) < joined:
                raise Wrong(
                    f"with {given}, rank {rank} calls no barrier after its last call of join(), so it may go on "
                    "while others still train."
                )


safe_loop = Judge(((2, 2), (2, 3), (3, 1), (0, 2), (1, 2, 4)), lambda rng: uneven(rng), _safe_loop)

# ---- as_float: how "anyone left?" reads a barrier's byte


def _as_float(answer: Answer, byte: int) -> None:
    timeline = emulate(CASES[4].program, (1, 2), era="1.9", barrier_value=byte)
    met = next(slot for slot in match(timeline) if slot.met and not slot.expected)
    expected = json.loads(timeline.call(0, met.calls[0])["value_out"] or "")[0][0]
    said = call(answer, (byte,), f"the byte {byte}")
    if not isinstance(said, float) or said != expected:
        raise Wrong(f"with the byte {byte}, expected {expected!r}, got {said!r}.")


as_float = Judge((7, 0, 1, 255), lambda rng: rng.randint(1, 255), _as_float)

# ---- shadows: the calls of a rank that has joined


@lru_cache(KEPT)
def _made_to_shadow(counts: tuple[int, ...], rebuild: bool) -> list[int]:
    timeline = run(scenarios.gradients, counts, f"inputs={counts}")
    made = []
    for rank in range(len(counts)):
        rows = timeline.calls.filter(timeline.calls["rank"] == rank).rows(named=True)
        asked = [at for at, row in enumerate(rows) if "_get_num_nonjoined_procs" in row["origin"]]
        shadows = rows[
            asked[0] : asked[-1]
        ]  # the answer to the last question is that no rank is left
        made.append(sum(rebuild or "rebuild" not in row["origin"] for row in shadows))
    return made


def _shadows(answer: Answer, cases: tuple[tuple[int, ...], ...]) -> None:
    """`cases`: counts of inputs. An answer may count the rebuild of DDP's buckets, which a rank
    with fewer than two inputs shadows too, or leave it out, but the same way in all cases."""
    said = [call(answer, (counts,), f"inputs={counts}") for counts in cases]
    if said != [_made_to_shadow(counts, rebuild=False) for counts in cases]:
        for counts, one in zip(cases, said, strict=True):
            compare(
                one,
                _made_to_shadow(counts, rebuild=True),
                f"inputs={counts}",
                "the list of each rank's shadow calls",
            )


shadows = Judge(
    (((2, 3), (5, 1), (3, 3)), ((2, 5), (0, 4, 2), (1, 1, 7))),
    lambda rng: ((1, 3), uneven(rng, most=6)),
    _shadows,
)

# ---- in_order: buckets in one order on all ranks


def _in_order(answer: Answer, orders: Sequence[Sequence[int]]) -> None:
    """`orders`: by rank, the order in which its buckets become ready."""
    buckets = len(orders[0])

    def program(rank: int, inputs: Any) -> tuple[list[float], list[int], str]:
        tensors = [torch.full((3 * i + 1,), float(rank + 1)) for i in range(buckets)]
        works: list[Any] = []
        ready: list[int] = []
        late: list[int] = []
        mistakes: list[str] = []

        def getting_ready() -> Iterator[int]:
            for bucket in orders[rank]:
                ready.append(bucket)
                yield bucket
                late.extend(i for i in _in_line(ready) if i >= len(works))

        reduced: list[int] = []

        def reduce(bucket: int) -> None:
            if bucket in reduced:
                mistakes.append(f"reduced bucket {bucket} twice")
                raise ValueError(
                    mistakes[0]
                )  # stops a loop that would repeat this until the timeout
            elif bucket not in ready:
                mistakes.append(f"reduced bucket {bucket} before it was ready")
            reduced.append(bucket)
            works.append(dist.all_reduce(tensors[bucket], async_op=True))

        answer(getting_ready(), reduce)
        for work in works:
            work.wait()
        return [tensor[0].item() for tensor in tensors], late, next(iter(mistakes), "")

    given = "buckets that get ready in the order " + ", ".join(
        f"{list(o)} on rank {r}" for r, o in enumerate(orders)
    )
    timeline = run(program, (1,) * len(orders), given)
    for rank, (sums, late, mistake) in enumerate(timeline.returns):
        if mistake:
            raise Wrong(f"with {given}, rank {rank} {mistake}.")
        compare(
            sums,
            [float(sum(range(1, len(orders) + 1)))] * buckets,
            given,
            f"the sum of each bucket on rank {rank}",
        )
        if late:
            raise Wrong(
                f"with {given}, rank {rank} kept bucket {late[0]} waiting, though it and all before it were ready: "
                "its reduction does not overlap with the rest of backward."
            )


def _in_line(ready: Sequence[int]) -> Iterator[int]:
    """0, 1, 2, ... as far as all of them are ready."""
    following = 0
    while following in ready:
        yield following
        following += 1


def _draw_in_order(rng: random.Random) -> list[list[int]]:
    ranks, buckets = rng.randint(2, 3), rng.randint(3, 5)
    orders = [rng.sample(range(buckets), buckets) for _ in range(ranks)]
    orders[1] = orders[0][::-1]
    return orders


in_order = Judge(
    (
        ((0, 1, 2), (2, 1, 0)),
        ((1, 0, 2), (0, 2, 1)),
        ((0,), (0,)),
        ((3, 1, 2, 0), (3, 1, 2, 0)),
        ((0, 1, 2),) * 2,
    ),
    _draw_in_order,
    _in_order,
)
