"""The parts that all judges share: cases, running an answer, and reporting a wrong value.

A judge has two kinds of cases, most of them made of the situations in answers/situations.py. Each
plausible mistake fails at least one of the known cases; the drawn cases catch an answer that only
lists the known results.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from math import isclose
from textwrap import shorten
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.modules.module import register_module_forward_hook

from joinlab.emulator.emulate import emulate
from joinlab.errors import LaunchError
from joinlab.program.process_group import values_in
from joinlab.story.judge import tell
from joinlab.timeline import EndKind, Timeline

Answer = Callable[..., Any]

SECONDS = 5.0
"""Real seconds after which one run of an answer is stopped, in case it computes forever."""

SECONDS_IN_ALL = 60.0
"""Real seconds after which a whole check gives up, in case every run is slow."""

KEPT = 64
"""Cached results of PyTorch's own classes per judge; every check runs the known cases again."""

CLOSE = 2e-5
"""Numbers may differ by this share. Sums of 60 float32 differ by less; three digits or half precision
by more."""


class Wrong(Exception):
    """A wrong answer; the text says why."""


@dataclass(frozen=True, slots=True)
class Judge:
    """The judge of one exercise.

    known   cases that catch the plausible mistakes; every check runs them first
    draw    draws a random case
    hold    runs an answer on a case and raises Wrong if it fails
    before  runs once, before all cases, and raises Wrong if an earlier step is not right
    """

    known: tuple[object, ...]
    draw: Callable[[random.Random], object]
    hold: Callable[[Answer, Any], None]
    before: Callable[[Answer], None] = lambda answer: None

    def hold_known(self, answer: Answer) -> None:
        """Raise Wrong if the answer fails a known case."""
        self.before(answer)
        for case in self.known:
            self.hold(answer, case)


def run(
    program: Callable[[int, Any], object], counts: Sequence[int], situation: str, **options: Any
) -> Timeline:
    """Emulate a program; raise Wrong with the rank and the reason if a rank does not finish."""
    try:
        timeline = emulate(program, counts, timeout=SECONDS, **options)
    except LaunchError as error:
        raise Wrong(f"with {situation}: {error}") from None
    for rank, end in enumerate(timeline.ends):
        # On gloo the peers of a rank that raised lose their connection to it; report the rank that
        # raised first.
        if end.kind is EndKind.RAISED and not end.text.startswith("RuntimeError: Connection"):
            subject = f"rank {rank}" if len(counts) > 1 else "it"
            raise Wrong(
                f"with {situation}, {subject} raised {shorten(end.text, 300, placeholder=' ...')}"
            )
    # diagnosing finished runs would take a third of a check
    for rank, end in enumerate(timeline.ends):
        if end.kind is not EndKind.FINISHED or end.pending:
            raise Wrong(f"with {situation}: {tell(timeline).ending(rank)}")
    return timeline


class Fed(Sequence[torch.Tensor]):
    """A rank's inputs: tensors of shape (1,) with these values.

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


@contextmanager
def trained() -> Iterator[list[float]]:
    """Within it, the inputs on which this rank computes gradients of a `Linear` that are not all
    zero, whichever way it calls the layer. Reading them makes no rank wait."""
    rank = dist.get_rank()
    inputs: list[float] = []

    def called(layer: torch.nn.Module, arguments: Any, output: Any) -> None:
        if isinstance(layer, torch.nn.Linear) and output.requires_grad and dist.get_rank() == rank:
            output.register_hook(lambda gradient: computed(arguments[0], gradient))

    def computed(argument: torch.Tensor, gradient: torch.Tensor) -> None:
        if any(chain.from_iterable(values_in([gradient]) or ())):
            inputs.extend(chain.from_iterable(values_in([argument]) or ()))

    handle = register_module_forward_hook(called)
    try:
        yield inputs
    finally:
        handle.remove()


def compare_trained(
    got: Sequence[float], expected: Sequence[float], situation: str, subject: str
) -> None:
    """Raise Wrong unless a rank trained once on each of these inputs, in any order."""
    if _difference(sorted(got), sorted(expected)):
        raise Wrong(
            f"with {situation}, {subject} has trained on the inputs {_list(got)}; expected "
            f"{_list(expected)}, each of them once."
        )


def _list(numbers: Sequence[float]) -> str:
    return shorten(", ".join(f"{number:.6g}" for number in numbers), 120, placeholder=" ...") or "-"


def issued(timeline: Timeline, rank: int) -> list[Mapping[str, Any]]:
    """The collectives that the answer issued on a rank, without those of DDP's construction and
    bucket rebuild."""
    rows = timeline.calls.filter(timeline.calls["rank"] == rank).rows(named=True)
    of_program: list[Mapping[str, Any]] = []
    for row in rows:
        if "construction" not in row["origin"] and "rebuild" not in row["origin"]:
            of_program.append(row)
    return of_program


def call(answer: Answer, arguments: Sequence[object], situation: str) -> object:
    """The value that the answer returns, as lists and numbers; Wrong if it raises, exits, or
    computes forever.

    It runs in an emulated rank, so the thread that called `check` survives it.
    """
    return run(lambda rank, inputs: plain(answer(*arguments)), (1,), situation).returns[0]


def call_each(answer: Answer, calls: Sequence[tuple[Sequence[object], str]]) -> list[object]:
    """The same for several calls, each with its arguments and what a message says of them; all in
    one emulated rank, as long as none of them fails."""
    try:
        together = run(
            lambda rank, inputs: [plain(answer(*arguments)) for arguments, _ in calls], (1,), "it"
        )
    except Wrong:
        return [call(answer, arguments, situation) for arguments, situation in calls]
    return list(together.returns[0])


def compare(
    got: object, expected: object, situation: str, quantity: str, close: float = CLOSE
) -> None:
    """Raise Wrong at the first difference: lists are compared by element, numbers within `close`.

    >>> compare([1.0, 5.0], [1.0, 2.0], "2 ranks", "what rank 0 returns")
    Traceback (most recent call last):
    joinlab.course.judge.Wrong: with 2 ranks, what rank 0 returns is wrong: element 1: expected 2, got 5.
    """
    difference = _difference(plain(got), plain(expected), close)
    if difference:
        raise Wrong(f"with {situation}, {quantity} is wrong: {difference}.")


def plain(value: object) -> object:
    """A value as lists and numbers: tensors become lists; scalar tensors, fractions and other
    numbers become floats."""
    if isinstance(value, (list, tuple)):
        return list(map(plain, value))
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, (bool, str)) or type(value) is int or not hasattr(value, "__float__"):
        return value
    if isinstance(value, int):
        return int(value)
    return float(value)


def _difference(got: Any, expected: Any, close: float = CLOSE, path: tuple[int, ...] = ()) -> str:
    if path:
        position_text = f"element {', '.join(map(str, path))}: "
    else:
        position_text = ""
    if not isinstance(expected, list):
        if _is_number(got) and _is_number(expected):
            equal = isclose(got, expected, rel_tol=close, abs_tol=close)
        else:
            equal = got == expected
        if equal:
            return ""
        return f"{position_text}expected {_short(expected)}, got {_short(got)}"
    if not isinstance(got, list):
        return f"{position_text}expected a list of {len(expected)}, got {_short(got)}"
    for index, (value, wanted) in enumerate(zip(got, expected, strict=False)):
        difference = _difference(value, wanted, close, (*path, index))
        if difference:
            return difference
    if len(got) != len(expected):
        return f"{position_text}expected {len(expected)} elements, got {len(got)}"
    return ""


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _short(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return shorten(repr(value), 80, placeholder=" ...")
