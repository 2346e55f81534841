"""Judges of the exercises on collectives, DDP and join().

Expected gradients and parameters are never written here: DDP, or plain training without it,
computes them from the same case.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from joinlab import scenarios
from joinlab.analysis.matching import match
from joinlab.cases import CASES
from joinlab.course.answers.repairs import nothing_crosses
from joinlab.course.answers.situations import BOTH, SHORT, SITUATIONS, Situation, distinct, draw
from joinlab.course.judge import (
    KEPT,
    Answer,
    Fed,
    Judge,
    Wrong,
    call,
    call_each,
    compare,
    compare_trained,
    issued,
    plain,
    run,
    trained,
)
from joinlab.emulator.emulate import emulate
from joinlab.ops import counted

# ---- gather_list: one collective for a list of tensors


def _tensors(case: Situation, rank: int) -> list[torch.Tensor]:
    """A rank's tensors, each of shape (1, 2), as many on every rank."""
    return [torch.tensor([[value, -value / 3]]) for value in case.even().inputs(rank)]


def _gather_list(answer: Answer, case: Situation) -> None:
    situation = f"{case.ranks} ranks of {max(case.counts)} tensors each"

    def program(rank: int, inputs: object) -> object:
        tensors = _tensors(case, rank)
        got = answer(tensors)
        if not isinstance(got, (list, tuple)):
            raise TypeError(f"it returns {type(got).__name__}; it should return a list of tensors")
        if plain(tensors) != plain(_tensors(case, rank)):
            raise ValueError("it changed the list or the tensors that it was given")
        return plain(got)

    timeline = run(program, (1,) * case.ranks, situation)
    wanted = [tensor for rank in range(case.ranks) for tensor in _tensors(case, rank)]
    for rank, got in enumerate(timeline.returns):
        compare(got, wanted, situation, f"what rank {rank} returns")
        origins = [row["origin"] for row in issued(timeline, rank)]
        if len(origins) != 1:
            raise Wrong(
                f"with {situation}, rank {rank} made {len(origins)} collective calls; one is enough."
            )
        if "barrier" in origins[0]:
            raise Wrong(
                f"with {situation}, rank {rank} called only a barrier, which carries no tensor: the "
                "ranks are processes and share no memory."
            )


gather_list = Judge(distinct(lambda case: case.ranks), draw, _gather_list)

# ---- ring_sum: an all-reduce of sends and receives


def _ring_sum(answer: Answer, case: Situation) -> None:
    shape = case.shapes[0]

    def tensor_of(rank: int) -> torch.Tensor:
        rng = random.Random(f"{case.seed} {rank}")
        return torch.tensor([rng.uniform(-9, 9) for _ in range(torch.Size(shape).numel())]).reshape(
            shape
        )

    def program(rank: int, inputs: object) -> object:
        _refuse_shared_buffers()
        return plain(answer(tensor_of(rank)))

    wanted = sum(tensor_of(rank).double() for rank in range(case.ranks))
    for backend in case.backends:
        situation = f"{case.ranks} ranks and a tensor of shape {shape} on {backend}"
        timeline = run(program, (1,) * case.ranks, situation, backend=backend)
        for rank, got in enumerate(timeline.returns):
            compare(got, wanted, situation, f"the sum on rank {rank}")
            rows = issued(timeline, rank)
            other_ops = {row["op"] for row in rows} - {"send", "recv"}
            if other_ops:
                raise Wrong(
                    f"with {situation}, rank {rank} called {', '.join(sorted(other_ops))}; send and receive only."
                )
            for op, step in (("send", 1), ("recv", -1)):
                peers = {row["peer"] for row in rows if row["op"] == op}
                if peers not in ({(rank + step) % case.ranks}, {(rank - step) % case.ranks}):
                    raise Wrong(
                        f"with {situation}, rank {rank} has a {op} with {_ranks(peers)}; in a ring each rank "
                        "receives from one neighbour and sends to the other."
                    )


def _ranks(ranks: set[int]) -> str:
    if ranks:
        return f"ranks {', '.join(map(str, sorted(ranks)))}"
    return "no rank"


def _refuse_shared_buffers() -> None:
    """Let this process's batch_isend_irecv raise if a tensor is sent and received into at once: real
    ranks would send the one or the other."""
    original = dist.batch_isend_irecv
    if hasattr(original, "refuses"):
        return

    def refusing(batch: list[dist.P2POp]) -> object:
        sent = {part.tensor.data_ptr() for part in batch if part.op is dist.isend}
        if any(part.tensor.data_ptr() in sent for part in batch if part.op is dist.irecv):
            raise ValueError(
                "one call sends a tensor and receives into it; which of the two comes first is "
                "undefined. Receive into another tensor"
            )
        return original(batch)

    refusing.refuses = True  # type: ignore[attr-defined]
    dist.batch_isend_irecv = refusing  # type: ignore[assignment]


ring_sum = Judge(distinct(lambda case: (case.ranks, len(case.shapes[0]))), draw, _ring_sum)

# ---- accumulate: several backwards, one reduction


class _Curved(torch.nn.Module):
    """(w x)²: the gradient of a sum of inputs is not the sum of their gradients, so each input
    needs a backward."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) ** 2  # type: ignore[no-any-return]


def _accumulate(answer: Answer, case: Situation) -> None:
    """The answer is called twice, as in two training steps, with other inputs."""
    steps = [[case.even().inputs(rank, step) for rank in range(case.ranks)] for step in range(2)]
    inputs_each = max(case.counts)

    def program(rank: int, inputs: object) -> list[float]:
        model = DDP(_Curved())
        gradients = []
        for step in steps:
            model.zero_grad()
            answer(model, [torch.tensor([value]) for value in step[rank]])
            if not model.require_backward_grad_sync:
                raise ValueError(
                    "it returns with no_sync() still active: the next backward would not reduce gradients"
                )
            grad = model.module.layer.weight.grad
            gradients.append(float("nan") if grad is None else grad.item())
        return gradients

    def plainly(rank: int, inputs: object) -> list[float]:
        model = _Curved()  # seeded alike on all ranks: the weight that DDP hands out
        gradients = []
        for step in steps:
            model.zero_grad()
            for rank_values in step:
                for value in rank_values:
                    (model(torch.tensor([value])) / case.ranks).backward()
            assert isinstance(model.layer.weight.grad, torch.Tensor)
            gradients.append(model.layer.weight.grad.item())
        return gradients

    situation = f"{counted(inputs_each, 'input')} of each of {case.ranks} ranks"
    timeline = run(program, (1,) * case.ranks, situation)
    wanted = run(plainly, (1,), situation).returns[0]
    for rank in range(case.ranks):
        reductions = len([row for row in issued(timeline, rank) if "backward" in row["origin"]])
        if reductions != 2:
            raise Wrong(
                f"with {situation}, rank {rank} reduced gradients {reductions} times in two calls of accumulate; "
                "it should be once per call, for all its inputs together."
            )
        backwards = timeline.spans.filter(
            timeline.spans["rank"] == rank, timeline.spans["name"] == "backward"
        ).height
        if backwards != 2 * inputs_each:
            raise Wrong(
                f"with {situation}, rank {rank} ran {backwards} backwards in two calls of accumulate; it should be one "
                "per input: only so can each input's graph be freed before the next."
            )
        compare(
            timeline.returns[rank], wanted, situation, f"the gradient on rank {rank}, call by call,"
        )


accumulate = Judge(
    (Situation((1, 1)), *distinct(lambda case: max(case.counts), SHORT)[1:], SITUATIONS[4]),
    draw,
    _accumulate,
)

# ---- gradient: what DDP divides by


@lru_cache(KEPT)
def _made_by_ddp(
    counts: tuple[int, ...], gradients: tuple[float, ...], by_all: bool
) -> list[float]:
    def program(rank: int, inputs: Any) -> list[float]:
        scaled = []  # the scenario multiplies by rank + 1
        for input in inputs:
            scaled.append(input * gradients[rank] / (rank + 1))
        return scenarios.gradients(rank, scaled, divide_by_initial_world_size=by_all)

    longest = max(range(len(counts)), key=counts.__getitem__)
    made: list[float] = run(program, counts, f"inputs={counts}").returns[longest]
    return made


def _gradient(answer: Answer, case: Situation) -> None:
    rng = random.Random(case.seed)
    gradients = tuple(float(rng.randint(1, 9)) for _ in range(case.ranks))
    calls, wanted = [], []
    for by_all in (True, False):
        made = _made_by_ddp(case.counts, gradients, by_all)
        # at each, some have just joined
        for step in sorted({*case.counts} - {max(case.counts)} | {0}):
            if step < len(made):
                remaining = []
                for gradient, count in zip(gradients, case.counts, strict=True):
                    if count > step:
                        remaining.append(gradient)
                ranks_text = (
                    "1 rank that is" if len(remaining) == 1 else f"{len(remaining)} ranks that are"
                )
                situation = (
                    f"gradients {remaining} of the {ranks_text} left of {case.ranks}, "
                    f"divide_by_initial_world_size={by_all}"
                )
                calls.append(((remaining, case.ranks, by_all), situation))
                wanted.append(made[step])
    for got, expected, (_, situation) in zip(call_each(answer, calls), wanted, calls, strict=True):
        compare(got, expected, situation, "the gradient that DDP makes")


gradient = Judge(SHORT, draw, _gradient)

# ---- last_joiner: the rank whose parameters all ranks get


@lru_cache(KEPT)
def _winner(counts: tuple[int, ...]) -> float:
    number: float = run(scenarios.own_parameters_at_the_end, counts, f"inputs={counts}").returns[0]
    return number


def _last_joiner(answer: Answer, case: Situation) -> None:
    winner = _winner(case.counts)
    got = call(answer, (case.counts,), str(case))
    if not isinstance(got, (int, float)) or isinstance(got, bool) or got != winner:
        raise Wrong(
            f"with {case}, expected rank {winner:.0f}, whose parameters all ranks end with, got {got!r}."
        )


last_joiner = Judge((Situation((3, 1, 3, 2)), Situation((1, 2, 2, 1)), *SHORT), draw, _last_joiner)

# ---- safe_loop: join() and a barrier

_monitored: list[int] = []
"""Ranks of this process that have passed a monitored_barrier, which records no call."""


def _note_monitored_barriers() -> None:
    """Let this process's monitored_barrier add its rank to `_monitored`."""
    original = dist.monitored_barrier
    if hasattr(original, "notes"):
        return

    def noting(*arguments: Any, **options: Any) -> None:
        original(*arguments, **options)
        _monitored.append(dist.get_rank())

    noting.notes = True  # type: ignore[attr-defined]
    dist.monitored_barrier = noting


def _safe_loop(answer: Answer, case: Situation) -> None:
    def program(rank: int, inputs: object) -> tuple[list[float], bool]:
        _note_monitored_barriers()
        _monitored.clear()
        with trained() as values:
            answer(rank, Fed(inputs, case.inputs(rank)))
        return values, rank in _monitored

    eras = [(backend, "today") for backend in case.backends]
    if case.backends == BOTH:
        eras.append(("nccl", "1.9"))
    for backend, era in eras:
        situation = f"{case} on {backend}" + (", as in PyTorch 1.9" if era == "1.9" else "")
        timeline = run(program, case.counts, situation, backend=backend, era=era)
        nothing_crosses(timeline, situation)
        for rank, count in enumerate(case.counts):
            rows = issued(timeline, rank)
            origins = [row["origin"] for row in rows]
            if not any("_get_num_nonjoined_procs" in origin for origin in origins):
                raise Wrong(
                    f"with {situation}, rank {rank} never joined: keep the loop inside join()."
                )
            worked = sum("backward" in origin for origin in origins)
            if worked != count:
                raise Wrong(
                    f"with {situation}, rank {rank} reduced the gradients of {worked} inputs, not of all {count}."
                )
            values, passed = timeline.returns[rank]
            compare_trained(values, case.inputs(rank), situation, f"rank {rank}")
            joined = max(
                row["enqueued_ns"]
                for row in rows
                if "DDP" in row["origin"] or "join" in row["origin"]
            )
            barriers = [row["enqueued_ns"] for row in rows if "barrier" in row["origin"]]
            if not passed and max(barriers, default=-1) < joined:
                raise Wrong(
                    f"with {situation}, rank {rank} calls no barrier after its last call of join(), so it may go on "
                    "while others still train."
                )


safe_loop = Judge(SITUATIONS, draw, _safe_loop)

# ---- as_float: how "anyone left?" reads a barrier's byte


def _as_float(answer: Answer, byte: int) -> None:
    timeline = emulate(CASES[4].program, (1, 2), era="1.9", barrier_value=byte)
    met = next(slot for slot in match(timeline) if slot.met and not slot.expected)
    expected = json.loads(timeline.call(0, met.calls[0])["value_out"] or "")[0][0]
    got = call(answer, (byte,), f"the byte {byte}")
    if not isinstance(got, float) or got != expected:
        raise Wrong(f"with the byte {byte}, expected {expected!r}, got {got!r}.")


as_float = Judge((7, 0, 1, 255), lambda rng: rng.randint(1, 255), _as_float)

# ---- shadows: the calls of a rank that has joined


@lru_cache(KEPT)
def _made_to_shadow(counts: tuple[int, ...], rebuild: bool) -> list[int]:
    timeline = run(scenarios.gradients, counts, f"inputs={counts}")
    made = []
    for rank in range(len(counts)):
        rows = timeline.calls.filter(timeline.calls["rank"] == rank).rows(named=True)
        asked = [
            index for index, row in enumerate(rows) if "_get_num_nonjoined_procs" in row["origin"]
        ]
        # the answer to the last question is that no rank is left
        shadows = rows[asked[0] : asked[-1]]
        made.append(sum(rebuild or "rebuild" not in row["origin"] for row in shadows))
    return made


def _shadows(answer: Answer, cases: tuple[Situation, ...]) -> None:
    """An answer may count the rebuild of DDP's buckets, which a rank with fewer than two inputs
    shadows too, or leave it out, but the same way in all cases."""
    got = call_each(answer, [((case.counts,), str(case)) for case in cases])
    if got != [_made_to_shadow(case.counts, rebuild=False) for case in cases]:
        for case, calls in zip(cases, got, strict=True):
            expected = _made_to_shadow(case.counts, rebuild=True)
            compare(calls, expected, str(case), "the list of each rank's shadow calls")


shadows = Judge((SHORT,), lambda rng: (Situation((1, 3)), draw(rng)), _shadows)

# ---- in_order: buckets in one order on all ranks


def _in_order(answer: Answer, orders: Sequence[Sequence[int]]) -> None:
    """`orders`: by rank, the order in which its buckets become ready."""
    buckets, ranks = len(orders[0]), len(orders)

    def program(rank: int, inputs: object) -> tuple[list[float], list[int], str]:
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
                # stops a loop that would repeat this until the timeout
                raise ValueError(mistakes[0])
            elif bucket not in ready:
                mistakes.append(f"reduced bucket {bucket} before it was ready")
            reduced.append(bucket)
            works.append(dist.all_reduce(tensors[bucket], async_op=True))

        answer(getting_ready(), reduce)
        for work in works:
            work.wait()
        return [tensor[0].item() for tensor in tensors], late, next(iter(mistakes), "")

    orders_text = ", ".join(f"{list(order)} on rank {rank}" for rank, order in enumerate(orders))
    situation = f"buckets that get ready in the order {orders_text}"
    if buckets > MANY:
        situation = f"{buckets} buckets that get ready in another order on each of {ranks} ranks"
    timeline = run(program, (1,) * len(orders), situation)
    for rank, (sums, late, mistake) in enumerate(timeline.returns):
        if mistake:
            raise Wrong(f"with {situation}, rank {rank} {mistake}.")
        compare(
            sums,
            [float(sum(range(1, len(orders) + 1)))] * buckets,
            situation,
            f"the sum of each bucket on rank {rank}",
        )
        if late:
            raise Wrong(
                f"with {situation}, rank {rank} kept bucket {late[0]} waiting, though it and all before it were ready: "
                "its reduction does not overlap with the rest of backward."
            )


def _in_line(ready: Sequence[int]) -> Iterator[int]:
    """0, 1, 2, ... as far as all of them are ready."""
    following = 0
    while following in ready:
        yield following
        following += 1


MANY = 12
"""A message lists the orders of no more buckets than this."""


def _orders(case: Situation) -> list[list[int]]:
    """By rank, the order in which its buckets become ready: as many as the most inputs of a rank."""
    buckets, rng = max(case.counts), random.Random(case.seed)
    orders = [rng.sample(range(buckets), buckets) for _ in range(case.ranks)]
    orders[1] = orders[0][::-1]
    return orders


in_order = Judge(
    (
        ((0, 1, 2), (2, 1, 0)),
        ((0,), (0,)),
        ((3, 1, 2, 0), (3, 1, 2, 0)),
        ((0, 1, 2),) * 2,
        *map(_orders, distinct(lambda case: max(case.counts), SHORT)),
    ),
    lambda rng: _orders(draw(rng)),
    _in_order,
)
