"""A warm emulation against a warm launch, against the bare work of all its ranks, and its growth with the ranks."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from statistics import median

import torch

import joinlab
from joinlab import cases
from tests.bench.figures import Figure, ms

N = 5
ROUNDS = 12
GROWTH = {64: "at most 60", 256: "at most 260"}
"""Ranks, and how many times as long as two of them they may take."""


def measure() -> list[Figure]:
    """All figures; both sides of a ratio in turn, so that what else the machine does meets both."""
    return [figure for number in cases.CASES for figure in _case(number)] + _growth()


def _case(number: int) -> list[Figure]:
    program = cases.CASES[number].program
    emulated, launched, bare = [], [], []
    for _ in range(ROUNDS + 1):
        emulated.append(_seconds(lambda: joinlab.emulate(program, (N, N + 1))))
        launched.append(_seconds(lambda: _launch(program)))
        bare.append(_seconds(lambda: _bare((N, N + 1))))
    emulated, launched, bare = emulated[1:], launched[1:], bare[1:]  # the first of each warms up
    quick, slow, least = median(emulated), median(launched), median(bare)
    real, work = f"{ms(launched)} / {ms(emulated)}", f"{ms(emulated)} / {ms(bare)}"
    return [
        Figure(f"launch (gloo) / emulate (NCCL), case {number}", real, f"{slow / quick:.1f}", "at least 15"),
        Figure(f"emulate / its bare passes, case {number}", work, f"{quick / least:.1f}", "at most 4"),
    ]


def _growth() -> list[Figure]:
    two = [_seconds(lambda: _many(2)) for _ in range(ROUNDS)]
    found = []
    for ranks, aim in GROWTH.items():
        many = [_seconds(partial(_many, ranks)) for _ in range(3)]
        both = f"{ms(many)} / {ms(two)}"
        found.append(Figure(f"emulate {ranks} ranks / 2 ranks, case 1", both, f"{median(many) / median(two):.0f}", aim))
    return found


def _launch(program: Callable[..., object]) -> None:
    joinlab.launch(program, (N, N + 1), backend="gloo", on_output=None, progress=False)


def _many(ranks: int) -> None:
    joinlab.emulate(cases.case_1, (1, *[2] * (ranks - 1)))


def _bare(inputs: tuple[int, ...]) -> None:
    """The forward and backward passes of all ranks, without DDP, in one process."""
    for count in inputs:
        model = torch.nn.Linear(1, 1)
        for _ in range(count):
            model(torch.ones(1)).backward()


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
