"""Judges of repairs: each runs a learner's repaired version of a program that hangs.

A repair is right if every rank finishes on NCCL and on gloo, no call stays pending, no call meets
one that was not meant for it, and the program still does its job. Every input of every rank has a
distinct value, so the gradients show which inputs were trained on.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from math import isclose
from typing import Any

import torch

from joinlab.analysis.matching import match
from joinlab.course.judge import Answer, Fed, Judge, Wrong, compare, fed, issued, plain, run, uneven
from joinlab.timeline import Timeline

GRADIENTS = "all-reduce (DDP backward())"

Counts = tuple[int, ...]
Purpose = Callable[[Timeline, Counts, str], None]


def nothing_crosses(timeline: Timeline, given: str) -> None:
    """Raise Wrong if calls met that were not meant for each other, even if nothing hung."""
    for slot in match(timeline):
        if slot.met and not slot.expected:
            calls = (
                f"{timeline.call(rank, seq)['origin']} of rank {rank}"
                for rank, seq in slot.calls.items()
            )
            raise Wrong(
                f"with {given}, calls met that were not meant for each other: {' and '.join(calls)}."
            )


def _repair(
    purpose: Purpose,
    *known: Counts,
    draw: Callable[[random.Random], Counts] | None = None,
    feed: Callable[[Fed], Any] = lambda inputs: inputs,
) -> Judge:
    """`draw` draws counts of inputs; None draws even ones. `feed` turns a rank's inputs into the
    answer's argument."""

    def hold(answer: Answer, counts: Counts) -> None:
        for backend in ("gloo", "nccl"):
            given = f"inputs={counts} on {backend}"

            def program(rank: int, inputs: Any) -> Any:
                return plain(answer(rank, feed(Fed(inputs, fed(rank, len(inputs))))))

            timeline = run(program, counts, given, backend=backend)
            nothing_crosses(timeline, given)
            purpose(timeline, counts, given)

    return Judge(known, draw or _even, hold)


def _even(rng: random.Random) -> Counts:
    return (rng.choice((4, 6)),) * rng.randint(2, 3)


def _trains(
    timeline: Timeline,
    steps: int,
    given: str,
    reduces: Callable[[int], bool] = bool,
    partly: bool = False,
) -> None:
    """Raise Wrong unless each rank reduces as often as it should, and the reductions contain every
    input once.

    steps    number of inputs to train on
    reduces  whether gradients are reduced with the i-th input, counted from 1
    partly   only rank 0 uses a second layer

    The gradient of a layer's weight is its input and that of its bias is 1. Gradients may add up,
    or be zeroed after each reduction.
    """
    ranks = len(timeline.ends)
    rows = [
        [row for row in issued(timeline, rank) if row["origin"] == GRADIENTS]
        for rank in range(ranks)
    ]
    wanted = [i for i in range(1, steps + 1) if reduces(i)]
    compare(
        [len(own) for own in rows],
        [len(wanted)] * ranks,
        given,
        "how often each rank reduced its gradients",
    )
    inputs = [[fed(rank, steps)[i] for rank in range(ranks)] for i in range(steps)]
    by_input = [
        [sum(own) / ranks, 1.0] + ([own[0] / ranks, 1 / ranks] if partly else []) for own in inputs
    ]
    parts = [by_input[begin:end] for begin, end in zip([0, *wanted], wanted, strict=False)]
    alone = [sorted(map(sum, zip(*part, strict=True))) for part in parts]
    in_all = [sorted(map(sum, zip(*by_input[:end], strict=True))) for end in wanted]
    for rank, own in enumerate(rows):
        got = [sorted(json.loads(row["value_out"])[0]) for row in own]
        if not any(all(map(_same, got, means)) for means in (alone, in_all)):
            at = next((i for i, one in enumerate(got) if not _same(one, in_all[i])), 0)
            raise Wrong(
                f"with {given} and the values {fed(0, steps)} on rank 0, {fed(1, steps)} on rank 1 and so on, "
                f"reduction {at + 1} gives rank {rank} the gradients {_short(got[at])}; expected {_short(in_all[at])}, "
                "the means over the ranks. Train every layer on every input of every rank, once."
            )


def _same(one: Sequence[float], other: Sequence[float]) -> bool:
    return len(one) == len(other) and all(
        isclose(a, b, rel_tol=1e-5) for a, b in zip(one, other, strict=True)
    )


def _short(numbers: Sequence[float]) -> str:
    return ", ".join(f"{number:.4g}" for number in numbers)


def _exchanged(timeline: Timeline, given: str, input: int | None = None) -> None:
    """Raise Wrong unless the program itself made a call in which the ranks' values differ."""
    rows = [
        row
        for row in timeline.calls.rows(named=True)
        if "DDP" not in row["origin"] and (input is None or row["input"] == input)
    ]
    told = {(row["seq"], row["value_in"]) for row in rows}
    if len(told) == len({seq for seq, _ in told}) and not any(
        "object" in row["origin"] for row in rows
    ):
        place = "" if input is None else " in the second input"
        raise Wrong(
            f"with {given}, no call of yours{place} carries one rank's value to another, so the result cannot depend "
            "on all ranks. Reduce or gather the values."
        )


def _reports(timeline: Timeline, counts: Counts, given: str) -> None:
    _trains(timeline, counts[0], given)
    _exchanged(timeline, given, input=1)
    mean = sum(range(1, len(counts) + 1)) / len(counts)
    said = [[_number(word) for word in text.split()] for text in timeline.output]
    compare(
        said,
        [["mean", "loss", mean]] + [[]] * (len(counts) - 1),
        given,
        "the words that each rank printed",
    )


def _number(word: str) -> str | float:
    try:
        return float(word)
    except ValueError:
        return word


def _stops(timeline: Timeline, counts: Counts, given: str) -> None:
    steps = timeline.returns[0]
    compare(
        list(timeline.returns), [steps] * len(counts), given, "how many steps each rank returns"
    )
    if steps not in (1, len(counts)):
        raise Wrong(
            f"with {given}, the ranks stopped after {steps} steps. Stop when the first rank has learnt enough "
            f"(after 1), or when all have (after {len(counts)})."
        )
    _trains(timeline, steps, given)
    _exchanged(timeline, given)


def _skips(timeline: Timeline, counts: Counts, given: str) -> None:
    ranks = len(counts)
    weight = sum(sum(fed(rank, counts[0])) for rank in range(ranks)) - fed(1, 2)[1]
    wanted = [weight / ranks, counts[0] - 1 / ranks]
    for rank, found in enumerate(timeline.returns):
        what = f"the list of gradients that rank {rank} returns, with all inputs but the second of rank 1 in it,"
        compare(found, wanted, given, what)


def _saves(timeline: Timeline, counts: Counts, given: str) -> None:
    _trains(timeline, counts[0], given)
    compare(
        timeline.returns[0],
        [float(rank) for rank in range(len(counts))],
        given,
        "what rank 0 returns",
    )
    _exchanged(timeline, given)


def _keeps_even(timeline: Timeline, counts: Counts, given: str) -> None:
    _trains(timeline, min(counts), given)
    _exchanged(timeline, given)


def _means(timeline: Timeline, counts: Counts, given: str) -> None:
    def plainly(rank: int, inputs: Any) -> list[float]:
        model = torch.nn.Linear(1, 1)  # seeded alike on all ranks
        return [
            model(torch.tensor([value])).item()
            for of, count in enumerate(counts)
            for value in fed(of, count)
        ]

    for rank, count in enumerate(counts):
        worked = sum(row["origin"] == GRADIENTS for row in issued(timeline, rank))
        compare(worked, count, given, f"of how many inputs rank {rank} reduced the gradients")
    losses = run(plainly, (1,), given).returns[0]
    compare(
        list(timeline.returns),
        [sum(losses) / len(losses)] * len(counts),
        given,
        "the mean that each rank returns",
    )


UNEVEN = ((2, 3), (3, 1), (1, 2, 4))

even_out = _repair(_keeps_even, *UNEVEN, draw=lambda rng: uneven(rng, least=1))
in_step = _repair(_keeps_even, *UNEVEN, draw=lambda rng: uneven(rng, least=1), feed=iter)
mean_loss = _repair(_means, *UNEVEN, draw=uneven)
report = _repair(_reports, (2, 2), (3, 3, 3))
stop_early = _repair(_stops, (4, 4), (5, 5, 5))
skip_bad = _repair(_skips, (3, 3), (4, 4, 4))
save_all = _repair(_saves, (2, 2), (1, 1, 1))
every_second = _repair(
    lambda timeline, counts, given: _trains(timeline, counts[0], given, lambda i: i % 2 == 0),
    (4, 4),
    (2, 2, 2),
)
unused = _repair(
    lambda timeline, counts, given: _trains(timeline, counts[0], given, partly=True),
    (3, 3),
    (2, 2, 2),
)
