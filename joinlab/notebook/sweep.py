"""The map of endings: how a program ends for each of many input counts, each found by a real
emulation.

found = joinlab.sweep(joinlab.cases.case_4)         # rank 0 x rank 1, 0 to 8 inputs each
found.hangs[0]                                      # the smallest inputs with which a rank hangs: (0, 1)
found.overall                                       # how each ended
found                                               # in a notebook: the map, and the run of the cell one clicks
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from joinlab.analysis.matching import match
from joinlab.errors import ProgramError
from joinlab.picture.page import Position, in_frame, slider_page
from joinlab.picture.theme import CHIPS, FINE, WRONG
from joinlab.program.program import Program, check_inputs, check_program, program_name
from joinlab.story.judge import diagnose
from joinlab.timeline import EndKind, Timeline

COUNTS = tuple(range(9))


class Overall(StrEnum):
    """How a run ended as a whole: the worst that holds."""

    FINISHES = "all ranks finish"
    LUCK = "all finish, by luck: calls met that should not have"
    HANGS = "a rank hangs"
    RAISES = "a rank raises or crashes"


LOOKS: Mapping[Overall, tuple[str, str]] = {
    Overall.FINISHES: ("·", FINE),
    Overall.LUCK: ("≠", CHIPS[4]),
    Overall.HANGS: ("✕", WRONG),
    Overall.RAISES: ("!", CHIPS[3]),
}
"""A cell's sign and its colour, one of the pictures' palette; each colour has its own sign."""


def drawn_map(most: int, overall: Mapping[tuple[int, ...], Overall]) -> dict[str, object]:
    """A map of 0 to `most` inputs per rank, for static/map.js, which draws the first kind without
    emphasis."""
    kinds = [
        {"name": str(kind), "sign": sign, "color": color} for kind, (sign, color) in LOOKS.items()
    ]
    numbers = list(Overall)
    cells = {",".join(map(str, counts)): numbers.index(kind) for counts, kind in overall.items()}
    return {"most": most, "kinds": kinds, "cells": cells}


MOST_CELLS = 289
"""A map of more runs is not sent to a notebook: 17 x 17 of a small program take about 1 MB."""


def overall_of(timeline: Timeline) -> Overall:
    """How a run ended as a whole.

    A rank that finished with a call pending counts as finished, one that was killed from outside as
    crashed.
    """
    kinds = {end.kind for end in timeline.ends}
    if EndKind.HUNG in kinds:
        return Overall.HANGS
    if kinds != {EndKind.FINISHED}:
        return Overall.RAISES
    if any(slot.met and not slot.expected for slot in match(timeline)):
        return Overall.LUCK
    return Overall.FINISHES


@dataclass(frozen=True, slots=True)
class Sweep:
    """How a program ended for each of many input counts.

    program    its name
    timelines  the run of each tuple of input counts, in the order asked
    """

    program: str
    timelines: Mapping[tuple[int, ...], Timeline]

    @property
    def overall(self) -> dict[tuple[int, ...], Overall]:
        """How the run of each tuple of counts ended as a whole."""
        return {counts: overall_of(timeline) for counts, timeline in self.timelines.items()}

    @property
    def hangs(self) -> list[tuple[int, ...]]:
        """The counts with which a rank hangs, fewest inputs first."""
        hanging = [counts for counts, overall in self.overall.items() if overall is Overall.HANGS]
        return sorted(hanging, key=lambda counts: (sum(counts), counts))

    def _repr_html_(self) -> str | None:
        """The map of two ranks, which highlights failures; a click on a cell shows its run."""
        if not self._is_map or len(self.timelines) > MOST_CELLS:
            return None
        counts = (self.hangs or list(self.timelines))[0]
        # tries fixes: the picture shows one of the run that it begins with
        diagnose(self.timelines[counts])
        start = Position(self.program, "", counts)
        runs = [(Position(self.program, "", counts), run) for counts, run in self.timelines.items()]
        map_data = drawn_map(max(map(max, self.timelines)), self.overall)
        name = f"{self.program}: how it ends"
        return in_frame(name, slider_page(name, runs, start, map_data))

    @property
    def _is_map(self) -> bool:
        return set(map(len, self.timelines)) == {2}

    def __repr__(self) -> str:
        endings = self.overall
        counts_text = ", ".join(
            f"{list(endings.values()).count(overall)} x {overall}"
            for overall in Overall
            if overall in endings.values()
        )
        lines = [f"<Sweep of {self.program!r}: {counts_text or 'no runs'}>"]
        if self._is_map:
            axis = range(max(map(max, endings)) + 1)
            signs = {counts: LOOKS[overall][0] for counts, overall in endings.items()}
            for y in reversed(axis):
                lines.append(f"{y:>3} {' '.join(f'{signs.get((x, y), chr(32)):>2}' for x in axis)}")
            lines.append(
                f"    {' '.join(f'{x:>2}' for x in axis)}   inputs: rank 0 across, rank 1 upward"
            )
        return "\n".join(lines)


def pairs(counts: Iterable[object]) -> list[tuple[int, ...]]:
    """The tuples of `counts=`: every pair of its numbers, or its tuples themselves.

    >>> pairs([0, 1])
    [(0, 0), (0, 1), (1, 0), (1, 1)]
    >>> pairs([(5, 6, 6)])
    [(5, 6, 6)]
    """
    try:
        items = list(counts)
    except TypeError:
        raise ProgramError(
            f"counts= takes numbers, such as range(9), or tuples of numbers; got {counts!r}"
        ) from None
    if all(isinstance(item, int) and not isinstance(item, bool) for item in items):
        items = [(item, second) for item in items for second in items]
    return list(map(check_inputs, items))


def sweep(
    program: Program, counts: Iterable[int] | Iterable[tuple[int, ...]] = COUNTS, **options: Any
) -> Sweep:
    """Emulate `program` for many input counts; return how each run ended.

    counts    numbers, for every pair of them on two ranks (81 runs of 20 to 30 ms each without more), or tuples with
              one number per rank
    options   those of `emulate`: backend, era, timeout, ...

    `sweep(program).hangs[0]` are the smallest inputs that hang. Raises ProgramError for an invalid
    program or count.

    >>> import joinlab
    >>> sweep(joinlab.cases.case_4, range(3)).hangs
    [(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)]
    """
    from joinlab.emulator.emulate import emulate  # imports torch

    check_program(program)
    timelines = {inputs: emulate(program, inputs, **options) for inputs in pairs(counts)}
    return Sweep(program_name(program), timelines)
