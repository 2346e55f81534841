"""What every judge shares: its cases, the run of an answer, and how a wrong value is told.

A judge has two kinds of cases. The known ones are chosen so that each plausible mistake fails at least one of them,
whatever the seed; the drawn ones make sure that an answer is no list of the known ones.
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
"""Real seconds after which a run of an answer that computes without end is ended."""

SECONDS_IN_ALL = 60.0
"""Real seconds after which a check gives up, though each run ends: all are slow."""

KEPT = 64
"""How many cases a judge remembers what PyTorch made of: every check of a session runs the known ones again."""


class Wrong(Exception):
    """What is wrong with an answer, in words."""


@dataclass(frozen=True, slots=True)
class Judge:
    """How one exercise is judged.

    known  the cases that tell the plausible mistakes apart; every check runs all of them, first
    draw   draws one more case
    hold   runs an answer on a case and raises Wrong if it fails
    """

    known: tuple[Any, ...]
    draw: Callable[[random.Random], Any]
    hold: Callable[[Answer, Any], None]


def uneven(rng: random.Random, ranks: int | None = None, least: int = 0, most: int = 4) -> tuple[int, ...]:
    """Uneven counts of inputs for 2 to 4 ranks."""
    while True:
        counts = tuple(rng.randint(least, most) for _ in range(ranks or rng.randint(2, 4)))
        if len(set(counts)) > 1:
            return counts


def run(program: Callable[[int, Any], Any], counts: Sequence[int], given: str, **options: Any) -> Timeline:
    """Emulate a program in which every rank should finish; raises Wrong, with who did not and why, if one does not."""
    try:
        timeline = emulate(program, counts, timeout=SECONDS, **options)
    except LaunchError as error:
        raise Wrong(f"with {given}: {error}") from None
    for rank, end in enumerate(timeline.ends):
        # Of several ranks that raised, the first cause counts; on gloo the others only lose their connection to it.
        if end.kind is EndKind.RAISED and not end.text.startswith("RuntimeError: Connection"):
            who = f"rank {rank}" if len(counts) > 1 else "it"
            raise Wrong(f"with {given}, {who} raised {shorten(end.text, 300, placeholder=' ...')}")
    for rank, end in enumerate(timeline.ends):  # to diagnose those that finished would take a third of a check
        if end.kind is not EndKind.FINISHED or end.pending:
            raise Wrong(f"with {given}: {tell(timeline).told(rank)}")
    return timeline


class Fed(Sequence[torch.Tensor]):
    """A rank's inputs with values of their own, 3 ** rank * 2 ** i: no two sums of them are equal by chance.

    Iterating over it marks the input at hand as iterating over the rank's own inputs does.
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
    """The collectives that the answer issued on a rank, without those of DDP's construction and bucket rebuild."""
    rows = timeline.calls.filter(timeline.calls["rank"] == rank).rows(named=True)
    return [row for row in rows if "construction" not in row["origin"] and "rebuild" not in row["origin"]]


def call(answer: Answer, arguments: Sequence[Any], given: str) -> Any:
    """What the answer returns, as lists and numbers; Wrong if it raises, exits, or computes without end.

    It runs as a rank does: whatever it does, the thread that called the check goes on.
    """
    return run(lambda rank, inputs: plain(answer(*arguments)), (1,), given).returns[0]


def compare(got: Any, expected: Any, given: str, what: str) -> None:
    """Raise Wrong at the first place where `got` differs from `expected`: lists by their elements, numbers nearly.

    >>> compare([1.0, 5.0], [1.0, 2.0], "2 ranks", "what rank 0 returns")
    Traceback (most recent call last):
    joinlab.course.judge.Wrong: with 2 ranks, what rank 0 returns is wrong: element 1: expected 2, got 5.
    """
    if difference := _difference(plain(got), plain(expected)):
        raise Wrong(f"with {given}, {what} is wrong: {difference}.")


def plain(value: Any) -> Any:
    """A value as lists and numbers: tensors become lists, those of one number in no list become that number."""
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value


def _difference(got: Any, expected: Any, path: tuple[int, ...] = ()) -> str:
    where = f"element {', '.join(map(str, path))}: " if path else ""
    if not isinstance(expected, list):
        same = isclose(got, expected, rel_tol=1e-3, abs_tol=1e-3) if _is_number(got) else got == expected
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
    return f"{value:.6g}" if isinstance(value, float) else shorten(repr(value), 80, placeholder=" ...")
