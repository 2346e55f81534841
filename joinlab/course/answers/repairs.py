"""Judges of repairs: each runs a learner's repaired version of a program that hangs.

A repair is right if every rank finishes on NCCL and on gloo, no call stays pending, no call meets
one that was not meant for it, and the program still does its job. Every input of every rank has a
value of its own, so the gradients and `trained` show which inputs were trained on.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import isclose
from typing import Any

import torch

from joinlab.analysis.matching import match
from joinlab.course.answers.situations import SITUATIONS, Situation, distinct, draw
from joinlab.course.judge import (
    KEPT,
    Answer,
    Fed,
    Judge,
    Wrong,
    compare,
    compare_trained,
    issued,
    plain,
    run,
    trained,
)
from joinlab.timeline import Timeline

GRADIENTS = "all-reduce (DDP backward())"


@dataclass(frozen=True, slots=True)
class PlayedAnswer:
    """An answer's run of a situation.

    given  the situation and the backend, as messages say them
    """

    timeline: Timeline
    case: Situation
    given: str

    @property
    def returns(self) -> list[object]:
        """What each rank returned, as lists and numbers."""
        return [returned for returned, _ in self.timeline.returns]

    def trained_on(self, expected: Sequence[Sequence[float]]) -> None:
        """Raise Wrong unless each rank trained once on each of these inputs of its."""
        for rank, (_, inputs) in enumerate(self.timeline.returns):
            compare_trained(inputs, expected[rank], self.given, f"rank {rank}")

    def exchanges(self) -> list[Mapping[str, object]]:
        """The calls in which the ranks' values differ, of the answer itself: those that DDP and
        join() did not make, but for the check that the answer asks join() for; of each, the row of
        one rank."""
        calls: dict[tuple[object, object], list[Mapping[str, Any]]] = {}
        for row in self.timeline.calls.rows(named=True):
            if "(" not in row["origin"] or re.search("object|throw check", row["origin"]):
                calls.setdefault((row["group"], row["seq"]), []).append(row)
        return [
            rows[0]
            for rows in calls.values()
            if len({row["value_in"] for row in rows}) > 1 or "object" in rows[0]["origin"]
        ]

    def in_second_input(self, row: Mapping[str, object]) -> bool:
        """Whether a call belongs to the rank's second input: it has read that one and no more, or,
        if it reads ahead, has run `forward` on that one and no more."""
        spans = self.timeline.spans
        forwards = spans.filter(spans["rank"] == row["rank"], spans["name"] == "forward")
        begun = (forwards["begin_ns"] <= row["enqueued_ns"]).sum()
        return bool(row["input"] == 1 or begun == 2)

    def after_training(self, row: Mapping[str, object]) -> bool:
        """Whether a call comes behind its rank's last reduction of gradients."""
        calls = self.timeline.calls
        reductions = calls.filter(calls["rank"] == row["rank"], calls["origin"] == GRADIENTS)
        return reductions.is_empty() or bool(
            (reductions["enqueued_ns"] <= row["enqueued_ns"]).all()
        )


Purpose = Callable[[PlayedAnswer], None]


def nothing_crosses(timeline: Timeline, situation: str) -> None:
    """Raise Wrong if calls met that were not meant for each other, even if nothing hung."""
    for slot in match(timeline):
        if slot.met and not slot.expected:
            calls = (
                f"{timeline.call(rank, seq)['origin']} of rank {rank}"
                for rank, seq in slot.calls.items()
            )
            raise Wrong(
                f"with {situation}, calls met that were not meant for each other: {' and '.join(calls)}."
            )


def _repair(
    purpose: Purpose,
    known: Sequence[Situation],
    drawn: Callable[[random.Random], Situation] = draw,
    feed: Callable[[Fed, Situation], object] = lambda inputs, case: inputs,
) -> Judge:
    """`feed` turns a rank's inputs into the answer's argument."""

    def hold(answer: Answer, case: Situation) -> None:
        def program(rank: int, inputs: object) -> object:
            fed = feed(Fed(inputs, case.inputs(rank)), case)
            with trained() as values:
                returned = plain(answer(rank, fed))
            return returned, values

        for backend in reversed(case.backends):  # gloo, which the notebook launches, comes first
            situation = f"{case} on {backend}"
            timeline = run(program, case.counts, situation, backend=backend)
            nothing_crosses(timeline, situation)
            purpose(PlayedAnswer(timeline, case, situation))

    return Judge(tuple(known), drawn, hold)


def _reduces(
    played: PlayedAnswer,
    inputs: Sequence[Sequence[float]],
    reduces: Callable[[int], bool] = bool,
    partly: bool = False,
) -> None:
    """Raise Wrong unless each rank reduces as often as it should, and the reductions contain every
    input once.

    inputs   by rank, the inputs to train on, equally many
    reduces  whether gradients are reduced with the i-th input, counted from 1
    partly   only rank 0 uses a second layer

    The gradient of a layer's weight is its input and that of its bias is 1. Gradients may add up,
    or be zeroed after each reduction.
    """
    ranks, steps, situation = len(inputs), len(inputs[0]), played.given
    rows = [
        [row for row in issued(played.timeline, rank) if row["origin"] == GRADIENTS]
        for rank in range(ranks)
    ]
    wanted = list(filter(reduces, range(1, steps + 1)))
    quantity = "how often each rank reduced its gradients"
    compare(list(map(len, rows)), [len(wanted)] * ranks, situation, quantity)
    by_input = []
    for values in zip(*inputs, strict=True):
        by_input.append(
            [sum(values) / ranks, 1.0] + ([values[0] / ranks, 1 / ranks] if partly else [])
        )
    parts = [by_input[begin:end] for begin, end in zip([0, *wanted], wanted, strict=False)]
    separately = [sorted(map(sum, zip(*part, strict=True))) for part in parts]
    in_all = [sorted(map(sum, zip(*by_input[:end], strict=True))) for end in wanted]
    for rank, rank_rows in enumerate(rows):
        got = [sorted(json.loads(row["value_out"])[0]) for row in rank_rows]
        if not any(all(map(_same, got, means)) for means in (separately, in_all)):
            step = next((i for i, numbers in enumerate(got) if not _same(numbers, in_all[i])), 0)
            raise Wrong(
                f"with {situation}, reduction {step + 1} gives rank {rank} the gradients {_short(got[step])}; "
                f"expected {_short(in_all[step])}, the means over the ranks. Train every layer on every "
                "input of every rank, once."
            )


def _trains(played: PlayedAnswer, steps: int | None = None, **options: Any) -> None:
    """Raise Wrong unless all ranks train on their first `steps` inputs; None: on all. Options are
    those of `_reduces`."""
    inputs = [played.case.inputs(rank)[:steps] for rank in range(played.case.ranks)]
    played.trained_on([inputs[0] * (2 if options.get("partly") else 1), *inputs[1:]])
    _reduces(played, inputs, **options)


def _same(first: Sequence[float], second: Sequence[float]) -> bool:
    return len(first) == len(second) and all(
        isclose(a, b, rel_tol=1e-5) for a, b in zip(first, second, strict=True)
    )


def _short(numbers: Sequence[float]) -> str:
    return ", ".join(f"{number:.4g}" for number in numbers)


def _exchanged(
    played: PlayedAnswer, matches: Callable[[Mapping[str, Any]], bool] = bool, where: str = ""
) -> None:
    """Raise Wrong unless the program itself made a call, `matches` it should, in which the ranks'
    values differ. `where` says it in words."""
    if not any(map(matches, played.exchanges())):
        raise Wrong(
            f"with {played.given}, no call of yours{where} carries one rank's value to another, so the result "
            "cannot depend on all ranks. Reduce or gather the values."
        )


def _reports(played: PlayedAnswer) -> None:
    _trains(played)
    _exchanged(played, played.in_second_input, " in the second input")
    mean = (played.case.ranks + 1) / 2  # of the losses 1, 2, ...
    printed = [[*_numbers(text)] for text in played.timeline.output]
    right = []
    for line in printed[0]:
        if any(isclose(number, mean, rel_tol=5e-3) for number in line):
            right.append(line)
    if len(right) != 1 or len(printed[0]) != 1 or any(printed[1:]):
        lines = "; ".join(
            f"rank {rank} {text.strip()!r:.60}" for rank, text in enumerate(played.timeline.output)
        )
        raise Wrong(
            f"with {played.given}, rank 0 should print the mean loss, {mean:g}, once, and the other ranks no "
            f"number; printed is: {lines}."
        )


def _numbers(text: str) -> Iterator[list[float]]:
    """The numbers of each line that has some."""
    for line in text.splitlines():
        numbers = re.findall(r"-?\d+(?:\.\d+)?(?:e-?\d+)?", line)
        if numbers:
            yield list(map(float, numbers))


def _stops(played: PlayedAnswer) -> None:
    steps, ranks, inputs = played.returns[0], played.case.ranks, played.case.counts[0]
    compare(played.returns, [steps] * ranks, played.given, "how many steps each rank returns")
    if steps not in (1, min(ranks, inputs)):
        raise Wrong(
            f"with {played.given}, the ranks stopped after {steps} steps. Stop when the first rank has learnt enough "
            f"(after 1), or when all have (after {ranks})."
        )
    _trains(played, steps)
    _exchanged(played)


def _skips(played: PlayedAnswer) -> None:
    inputs = list(map(played.case.inputs, range(played.case.ranks)))
    del inputs[1][1]  # the bad one
    played.trained_on(inputs)
    sums = [sum(map(sum, inputs)), sum(map(len, inputs))]
    wanted = [number / played.case.ranks for number in sums]
    for rank, got in enumerate(played.returns):
        quantity = f"the list of gradients that rank {rank} returns, with all inputs but the second of rank 1 in it,"
        compare(got, wanted, played.given, quantity)


def _saves(played: PlayedAnswer) -> None:
    _trains(played)
    wanted = list(map(float, range(played.case.ranks)))
    compare(played.returns[0], wanted, played.given, "what rank 0 returns")
    _exchanged(played, played.after_training, " after the last backward")


def _keeps_even(played: PlayedAnswer) -> None:
    _trains(played, min(played.case.counts))
    if len(set(played.case.counts)) > 1:  # else all have the same to say
        _exchanged(played)


@lru_cache(KEPT)
def _plain_mean(case: Situation) -> float:
    """The mean loss over all inputs of all ranks, without DDP."""

    def program(rank: int, _: object) -> list[float]:
        model = torch.nn.Linear(1, 1)  # seeded alike on all ranks
        inputs = [value for peer in range(case.ranks) for value in case.inputs(peer)]
        return [model(torch.tensor([value])).item() for value in inputs]

    losses = run(program, (1,), str(case)).returns[0]
    return float(sum(losses) / len(losses))


def _means(played: PlayedAnswer) -> None:
    inputs = list(map(played.case.inputs, range(played.case.ranks)))
    for rank, rank_inputs in enumerate(inputs):
        worked = sum(row["origin"] == GRADIENTS for row in issued(played.timeline, rank))
        quantity = f"of how many inputs rank {rank} reduced the gradients"
        compare(worked, len(rank_inputs), played.given, quantity)
    played.trained_on(inputs)
    wanted = [_plain_mean(played.case)] * played.case.ranks
    compare(played.returns, wanted, played.given, "the mean that each rank returns")
    _exchanged(played)


LONGER = 200
"""Inputs by which a rank's stream goes on after the shortest has ended; then it raises."""


def _stream(inputs: Fed, case: Situation) -> Iterator[torch.Tensor]:
    """A rank's inputs as a stream. One that is longer than the shortest does not end by itself."""
    yield from inputs
    if len(inputs) > min(case.counts):
        for i in range(LONGER):
            yield torch.tensor([float(i)])
        raise ValueError(
            f"it has read {LONGER + len(inputs)} inputs of its stream, and the shortest stream ended after "
            f"{min(case.counts)}: a stream may be endless, so do not read it to its end"
        )


READ_AHEAD = Situation((66, 65), seed=9, backends=("nccl",))
"""Streams of which no rank may read a buffer of 64 inputs and train on no others."""


def _even(multiple: int = 1, least: int = 1) -> dict[str, Any]:
    """Situations with equal counts, some of them twice, with other values."""
    even = [case.even(multiple, least) for case in SITUATIONS]
    first = distinct(lambda case: case.counts, tuple(even))
    repeated = distinct(lambda case: case.counts, tuple(case for case in even if case not in first))
    situations = (*first, *(replace(case, backends=case.backends[:1]) for case in repeated))
    return {"known": situations, "drawn": lambda rng: draw(rng).even(multiple, least)}


even_out = _repair(_keeps_even, SITUATIONS)
in_step = _repair(_keeps_even, (*SITUATIONS, READ_AHEAD), feed=_stream)
mean_loss = _repair(_means, SITUATIONS)
report = _repair(_reports, **_even(least=2))
stop_early = _repair(_stops, **_even())
skip_bad = _repair(_skips, **_even(least=3))
save_all = _repair(_saves, **_even())
every_second = _repair(
    lambda played: _trains(played, reduces=lambda i: i % 2 == 0), **_even(multiple=2)
)
unused = _repair(lambda played: _trains(played, partly=True), **_even())
