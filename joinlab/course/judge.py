"""What every judge shares: its cases, the run of an answer, and how a wrong value is told.

A judge has two kinds of cases. The known ones are chosen so that each plausible mistake fails at least one of them,
whatever the seed; the drawn ones make sure that an answer is no list of the known ones.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isclose
from textwrap import shorten
from typing import Any

from joinlab.emulator.emulate import emulate
from joinlab.story.judge import diagnose
from joinlab.timeline import EndKind, Timeline

Answer = Callable[..., Any]

SECONDS = 10.0
"""Real seconds after which an answer that computes without end is ended."""

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
    timeline = emulate(program, counts, timeout=SECONDS, **options)
    for rank, end in enumerate(timeline.ends):
        # Of several ranks that raised, the first cause counts; on gloo the others only lose their connection to it.
        if end.kind is EndKind.RAISED and not end.text.startswith("RuntimeError: Connection"):
            raise Wrong(f"with {given}, rank {rank} raised {shorten(end.text, 300, placeholder=' ...')}")
    for rank, end in enumerate(timeline.ends):  # to diagnose those that finished would take a third of a check
        if end.kind is not EndKind.FINISHED or end.pending:
            raise Wrong(f"with {given}: {diagnose(timeline).told(rank)}")
    return timeline


def issued(timeline: Timeline, rank: int) -> list[Mapping[str, Any]]:
    """The collectives that the answer issued on a rank, without those of DDP's construction and bucket rebuild."""
    rows = timeline.calls.filter(timeline.calls["rank"] == rank).rows(named=True)
    return [row for row in rows if "construction" not in row["origin"] and "rebuild" not in row["origin"]]


def call(answer: Answer, arguments: Sequence[Any], given: str) -> Any:
    """What the answer returns; an exception in it becomes Wrong."""
    try:
        return answer(*arguments)
    except Exception as error:
        raise Wrong(f"with {given}, it raised {type(error).__name__}: {error}") from None


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
