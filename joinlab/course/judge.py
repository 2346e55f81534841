"""The parts that all judges share: cases, running an answer, and reporting a wrong value.

A judge has two kinds of cases. Each plausible mistake fails at least one of the known cases; the
drawn cases catch an answer that only lists the known results.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isclose
from textwrap import shorten
from typing import Any

import torch

from joinlab.emulator.emulate import emulate
from joinlab.errors import LaunchError
from joinlab.story.judge import tell
from joinlab.timeline import EndKind, Timeline

Answer = Callable[..., Any]

SECONDS = 5.0
"""Real seconds after which one run of an answer is stopped, in case it computes forever."""

SECONDS_IN_ALL = 60.0
"""Real seconds after which a whole check gives up, in case every run is slow."""

KEPT = 64
"""Cached results of PyTorch's own classes per judge; every check runs the known cases again."""


class Wrong(Exception):
    """A wrong answer; the text says why."""


@dataclass(frozen=True, slots=True)
class Judge:
    """The judge of one exercise.

    known  cases that catch the plausible mistakes; every check runs them first
    draw   draws a random case
    hold   runs an answer on a case and raises Wrong if it fails
    """

    known: tuple[Any, ...]
    draw: Callable[[random.Random], Any]
    hold: Callable[[Answer, Any], None]


def uneven(
    rng: random.Random, ranks: int | None = None, least: int = 0, most: int = 4
) -> tuple[int, ...]:
    """Uneven counts of inputs for 2 to 4 ranks."""
    while True:
        counts = tuple(rng.randint(least, most) for _ in range(ranks or rng.randint(2, 4)))
        if len(set(counts)) > 1:
            return counts


def run(
    program: Callable[[int, Any], Any], counts: Sequence[int], given: str, **options: Any
) -> Timeline:
    """Emulate a program; raise Wrong with the rank and the reason if a rank does not finish."""
    try:
        timeline = emulate(program, counts, timeout=SECONDS, **options)
    except LaunchError as error:
        raise Wrong(f"with {given}: {error}") from None
    for rank, end in enumerate(timeline.ends):
        # On gloo the peers of a rank that raised lose their connection to it; report the rank that
        # raised first.
        if end.kind is EndKind.RAISED and not end.text.startswith("RuntimeError: Connection"):
            who = f"rank {rank}" if len(counts) > 1 else "it"
            raise Wrong(f"with {given}, {who} raised {shorten(end.text, 300, placeholder=' ...')}")
    for rank, end in enumerate(
        timeline.ends
    ):  # diagnosing finished runs would take a third of a check
        if end.kind is not EndKind.FINISHED or end.pending:
            raise Wrong(f"with {given}: {tell(timeline).told(rank)}")
    return timeline


class Fed(Sequence[torch.Tensor]):
    """A rank's inputs with distinct values, 3 ** rank * 2 ** i, so that sums do not coincide by
    chance.

    Iterating over it also advances the rank's own inputs, so calls get the number of their input.
    """

    def __init__(self, inputs: Any, values: Sequence[float]) -> None:
        self._inputs, self.values = inputs, values

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return Fed(self._inputs[index], self.values[index])
        return torch.tensor([self.values[index]])

    def __iter__(self) -> Iterator[torch.Tensor]:
        for _, value in zip(self._inputs, self.values, strict=True):
            yield torch.tensor([value])


def fed(rank: int, count: int) -> list[float]:
    """The values of a rank's inputs."""
    return [3.0**rank * 2.0**i for i in range(count)]


def issued(timeline: Timeline, rank: int) -> list[Mapping[str, Any]]:
    """The collectives that the answer issued on a rank, without those of DDP's construction and
    bucket rebuild."""
    rows = timeline.calls.filter(timeline.calls["rank"] == rank).rows(named=True)
    return [
        row
        for row in rows
        if "construction" not in row["origin"] and "rebuild" not in row["origin"]
    ]


def call(answer: Answer, arguments: Sequence[Any], given: str) -> Any:
    """The value that the answer returns, as lists and numbers; Wrong if it raises, exits, or
    computes forever.

    It runs in an emulated rank, so the thread that called `check` survives it.
    """
    return run(lambda rank, inputs: plain(answer(*arguments)), (1,), given).returns[0]


def compare(got: Any, expected: Any, given: str, what: str) -> None:
    """Raise Wrong at the first difference: lists are compared by element, numbers within 1e-3.

    >>> compare([1.0, 5.0], [1.0, 2.0], "2 ranks", "what rank 0 returns")
    Traceback (most recent call last):
    joinlab.course.judge.Wrong: with 2 ranks, what rank 0 returns is wrong: element 1: expected 2, got 5.
    """
    if difference := _difference(plain(got), plain(expected)):
        raise Wrong(f"with {given}, {what} is wrong: {difference}.")


def plain(value: Any) -> Any:
    """A value as lists and numbers: tensors become lists, and scalar tensors become numbers."""
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value


def _difference(got: Any, expected: Any, path: tuple[int, ...] = ()) -> str:
    where = f"element {', '.join(map(str, path))}: " if path else ""
    if not isinstance(expected, list):
        same = (
            isclose(got, expected, rel_tol=1e-3, abs_tol=1e-3)
            if _is_number(got)
            else got == expected
        )
        return "" if same else f"{where}expected {_short(expected)}, got {_short(got)}"
    if not isinstance(got, list):
        return f"{where}expected a list of {len(expected)}, got {_short(got)}"
    for at, (one, other) in enumerate(zip(got, expected, strict=False)):
        if found := _difference(one, other, (*path, at)):
            return found
    if len(got) != len(expected):
        return f"{where}expected {len(expected)} elements, got {len(got)}"
    return ""


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _short(value: Any) -> str:
    return (
        f"{value:.6g}" if isinstance(value, float) else shorten(repr(value), 80, placeholder=" ...")
    )
