"""The map of endings: how a program ends for each of many input counts, each found by a real emulation.

found = joinlab.sweep(joinlab.cases.case_4)         # rank 0 x rank 1, 0 to 8 inputs each
found.hangs[0]                                      # the smallest inputs with which a rank hangs: (0, 1)
found.table                                         # polars: one row per emulation
found.figure()                                      # Plotly: a heatmap
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, assert_never

import polars as pl

from joinlab.analysis.matching import match as match_slots
from joinlab.errors import ProgramError
from joinlab.picture.theme import CHIPS, FINE, WRONG
from joinlab.program.program import Program, check_inputs, check_program, program_name
from joinlab.timeline import EndKind, Timeline

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

COUNTS = tuple(range(9))


class Overall(StrEnum):
    """How a run ended as a whole: the worst that holds."""

    FINISHES = "all ranks finish"
    LUCK = "all finish, by luck: calls met that should not have"
    HANGS = "a rank hangs"
    RAISES = "a rank raises or crashes"


SIGNS: Mapping[Overall, str] = {
    Overall.FINISHES: "✓",
    Overall.LUCK: "≠",
    Overall.HANGS: "✕",
    Overall.RAISES: "!",
}
"""Stands in a cell, so that colour never speaks alone."""

COLORS: Mapping[Overall, str] = {
    Overall.FINISHES: FINE,
    Overall.LUCK: CHIPS[4],
    Overall.HANGS: WRONG,
    Overall.RAISES: CHIPS[3],
}
"""Of the palette that the pictures have: every common colour blindness tells them apart."""


def overall_of(timeline: Timeline) -> Overall:
    """How a run ended as a whole.

    A finished rank that left a call pending finished; one that was ended from outside counts as one that crashed.
    """
    worst = Overall.FINISHES
    for ending in timeline.ends:
        match ending.kind:
            case EndKind.FINISHED:
                pass
            case EndKind.HUNG:
                return Overall.HANGS
            case EndKind.RAISED | EndKind.KILLED | EndKind.UNKNOWN:
                worst = Overall.RAISES
            case _:
                assert_never(ending.kind)
    if worst is Overall.FINISHES and any(slot.met and not slot.expected for slot in match_slots(timeline)):
        return Overall.LUCK
    return worst


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
        found = [counts for counts, how in self.overall.items() if how is Overall.HANGS]
        return sorted(found, key=lambda counts: (sum(counts), counts))

    @property
    def table(self) -> pl.DataFrame:
        """One row per run: inputs (a list), overall (the worst that holds), and the ending of each rank (a list)."""
        rows = [
            {"inputs": list(counts), "overall": str(how), "endings": [str(end) for end in self.timelines[counts].ends]}
            for counts, how in self.overall.items()
        ]
        schema: Any = {"inputs": pl.List(pl.Int64), "overall": pl.String, "endings": pl.List(pl.String)}
        return pl.DataFrame(rows, schema=schema)

    def figure(self) -> Figure:
        """The map as a Plotly heatmap, of two ranks: rank 0 across, rank 1 upward. Raises ProgramError for others."""
        import plotly.graph_objects as go

        found = self.overall
        if {len(counts) for counts in found} != {2}:
            raise ProgramError("a map is drawn for two ranks; .table has the endings of any number of them")
        across, upward = (sorted({counts[rank] for counts in found}) for rank in (0, 1))
        numbers = {how: number for number, how in enumerate(Overall)}
        cells = [[found.get((x, y)) for x in across] for y in upward]
        shown = sorted({numbers[how] for how in found.values()})
        legend = [f"{SIGNS[how]} {how}" for how in Overall]
        steps = len(Overall)
        scale = [(at / steps, color) for number, color in enumerate(COLORS.values()) for at in (number, number + 1)]
        drawn: Any = go.Heatmap(
            x=across,
            y=upward,
            z=[[None if how is None else numbers[how] for how in row] for row in cells],
            zmin=-0.5,
            zmax=steps - 0.5,
            colorscale=scale,
            text=[["" if how is None else SIGNS[how] for how in row] for row in cells],
            customdata=[["" if how is None else str(how) for how in row] for row in cells],
            texttemplate="%{text}",
            hovertemplate="rank 0: %{x}, rank 1: %{y} inputs<br>%{customdata}<extra></extra>",
            xgap=1,
            ygap=1,
            colorbar={
                "tickvals": shown,
                "ticktext": [legend[number] for number in shown],
            },
        )
        layout = {
            "title": f"{self.program}: how it ends",
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
        }
        axes = {
            f"{axis}axis": {"title": f"inputs of rank {rank}", "dtick": 1, "showgrid": False}
            for rank, axis in enumerate("xy")
        }
        return go.Figure(drawn, layout | axes | {"yaxis_scaleanchor": "x"})

    def __repr__(self) -> str:
        found = self.overall
        told = ", ".join(f"{list(found.values()).count(how)} x {how}" for how in Overall if how in found.values())
        return f"<Sweep of {self.program!r}: {told or 'nothing was asked'}>"


def pairs(counts: Iterable[Any], ranks: int = 2) -> list[tuple[int, ...]]:
    """What `counts=` asks for: every pair of whole numbers, or the tuples that it names.

    >>> pairs([0, 1])
    [(0, 0), (0, 1), (1, 0), (1, 1)]
    >>> pairs([(5, 6, 6)])
    [(5, 6, 6)]
    """
    try:
        found = list(counts)
    except TypeError:
        raise ProgramError(f"counts= is some numbers, as range(9), or some tuples of them; got {counts!r}") from None
    if all(isinstance(one, int) and not isinstance(one, bool) for one in found):
        found = [(one, other) for one in found for other in found]
    return [check_inputs(one) for one in found]


def sweep(
    program: Program,
    counts: Iterable[int] | Iterable[tuple[int, ...]] = COUNTS,
    *,
    progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> Sweep:
    """Emulate `program` for many input counts; return how each run ended.

    counts    numbers, for every pair of them on two ranks (81 runs of 20 to 30 ms each without more), or tuples with
              one number per rank
    progress  called with (runs done, runs in all) after each
    options   those of `emulate`: backend, era, timeout, ...

    `sweep(program).hangs[0]` are the smallest inputs that hang. Raises ProgramError for what is no program or count.

    >>> import joinlab
    >>> sweep(joinlab.cases.case_4, range(3)).hangs
    [(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)]
    """
    from joinlab.emulator.emulate import emulate  # it takes torch with it

    check_program(program)
    asked = pairs(counts)
    found: dict[tuple[int, ...], Timeline] = {}
    for inputs in asked:
        found[inputs] = emulate(program, inputs, **options)
        if progress is not None:
            progress(len(found), len(asked))
    return Sweep(program_name(program), found)
