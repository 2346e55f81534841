"""The hand-out: the six cases as one page with sliders, for a reader without Python.

Every position of the controls was emulated beforehand and ships with the package: two ranks, each
with 0 to 8 inputs, with the barrier of today's PyTorch and of PyTorch 1.9, on which the cases were
first reported.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import product
from pathlib import Path

from tqdm.auto import tqdm

from joinlab.cases import CASES
from joinlab.documentation import DOCUMENTED
from joinlab.emulator.emulate import ERAS, emulate
from joinlab.emulator.shipped_runs import MOST, shipped_run
from joinlab.picture.page import Position, write_sliders
from joinlab.timeline import Timeline

BARRIERS = {
    "today": "barrier of today: an all-reduce of a float zero",
    "1.9": "barrier of PyTorch 1.9: an all-reduce of one byte that was never set, here 7",
}


def write_handout(path: str | os.PathLike[str], most: int = MOST, progress: bool = True) -> Path:
    """Write the page, which takes a few seconds, and return its path.

    most      most inputs of a rank; each case has (most + 1)² positions per barrier
    progress  show a progress bar

    Raises FileNotFoundError if the folder does not exist.

        write_handout("cases.html")    # what `python -m joinlab handout cases.html` runs
    """
    start = Position(_name(4), BARRIERS["today"], (min(5, most), min(6, most)))
    count = len(CASES) * len(ERAS) * (most + 1) ** 2
    runs = tqdm(_runs(most), "positions", count, disable=not progress, leave=False)
    return write_sliders(
        "Six training loops with uneven inputs, on a modelled NCCL",
        runs,
        start,
        path,
        [case.switches for case in DOCUMENTED.values()],
    )


def _runs(most: int) -> Iterator[tuple[Position, Timeline]]:
    for (number, case), (era, barrier) in product(CASES.items(), BARRIERS.items()):
        for inputs in product(range(most + 1), repeat=2):
            run = shipped_run(number, inputs, "nccl", era) or emulate(case.program, inputs, era=era)
            yield Position(_name(number), barrier, inputs), run


def _name(number: int) -> str:
    return f"{CASES[number].title}."
