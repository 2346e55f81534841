"""The pictures that the notebooks show where none of them runs, as on GitHub.

    python -m tests.pictures                    # runs the notebooks and writes notebooks/pictures
    python -m tests.pictures 03_join_options    # of one notebook

Each picture is made of a run of its notebook, by the function below that has the notebook's variables. test_pages.py
compares the files with what these functions draw.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import joinlab
from joinlab.cases import CASES
from joinlab.course.answers import solutions
from joinlab.course.moving import PLACE, drawing, words
from joinlab.picture.first_screen import first_screen
from joinlab.picture.gallery import loop, side_by_side
from joinlab.picture.svg import svg
from joinlab.picture.tables import Cell, Table
from joinlab.picture.theme import FILLS, LIGHT, RowKind, in_both_themes, ink_of

FOLDER = Path(__file__).parent.parent / "notebooks"

Names = Mapping[str, Any]


def lanes(run: Any) -> str:
    return in_both_themes(PLACE.sub("", svg(first_screen(run))))


def holdings(run: Any) -> str:
    """Who held what before and after the first call of a run."""
    return table(joinlab.who_holds(run))


LETTER, LINE, PAD = 7.4, 19, 9
"""Of a table: px of a letter, of a line and around the text of a cell."""


def table(made: Table) -> str:
    """A table as a picture."""
    lefts, wide, x = [], [], float(PAD)
    for index, name in enumerate(made.columns):
        lines = [name, *(line for row in made.rows for line in row[index].lines)]
        lefts.append(x)
        wide.append(2 * PAD + LETTER * max(map(len, lines)))
        x += wide[-1] + 4
    top = PAD + LINE + 6
    parts = []
    for x, name in zip(lefts, made.columns, strict=True):
        parts.append(text(x + PAD, top - 10, name, LIGHT["ink"], bold=True))
    for row in made.rows:
        high = 2 * PAD + LINE * max(len(cell.lines) for cell in row)
        for x, cell_width, cell in zip(lefts, wide, row, strict=True):
            parts.append(box(cell, x, top, cell_width, high))
        top += high + 4
    return drawing(lefts[-1] + wide[-1] + PAD, top + PAD, ", ".join(made.columns), parts)


def box(cell: Cell, x: float, top: float, wide: float, high: float) -> str:
    fill, ink, edge = LIGHT["card"], LIGHT["ink"], ""
    if cell.kind is not None:
        fill, ink = FILLS[cell.kind], ink_of(cell.kind)
    if cell.wrong:
        edge = f' stroke="{LIGHT["bad"]}" stroke-width="2"'
    parts = f'<rect x="{x:.0f}" y="{top:.0f}" width="{wide:.0f}" height="{high:.0f}" rx="6" fill="{fill}"{edge}/>'
    for index, line in enumerate(cell.lines):
        bold = index == 0 and cell.kind is not None
        parts += text(x + PAD, top + PAD + 13 + LINE * index, line, ink, bold)
    return parts


def text(x: float, y: float, content: str, fill: str, bold: bool = False) -> str:
    weight = ' font-weight="600"' * bold
    return f'<text x="{x:.0f}" y="{y:.0f}" fill="{fill}"{weight}>{escape(content)}</text>'


def bar(x: float, y: float, wide: float, kind: RowKind = RowKind.FORWARD) -> str:
    return f'<rect x="{x:.0f}" y="{y:.0f}" width="{max(wide, 2):.0f}" height="22" rx="4" fill="{FILLS[kind]}"/>'


def bars(title: str, values: Sequence[tuple[str, float]], digits: int = 2) -> str:
    """A bar for each value, its name to the left of it and the number to the right."""
    most = max(value for _, value in values)
    left = 16 + round(7.2 * max(len(name) for name, _ in values))
    parts = [words(16, 28, title, "soft")]
    for i, (name, value) in enumerate(values):
        y = 44 + 30 * i
        parts += [words(16, y + 16, name), bar(left + 12, y, 400 * value / most)]
        parts.append(
            words(
                left + 20 + 400 * value / most,
                y + 16,
                f"{value:.{digits}f}".rstrip("0").rstrip("."),
            )
        )
    return drawing(left + 500, 56 + 30 * len(values), title, parts)


def loops(names: Names) -> str:
    """The six loops side by side; lines that not all of them have stand on a plate."""
    runs = [joinlab.emulate(case.program, inputs=(1, 1)) for case in CASES.values()]
    parts = []
    for i, rows in enumerate(side_by_side([loop(run) for run in runs])):
        left, top = 16 + 320 * (i % 3), 16 + 170 * (i // 3)
        parts.append(words(left, top + 16, f"case {i + 1}", attributes=' font-weight="600"'))
        for j, (line, differs) in enumerate(row for row in rows if row[0]):
            y = top + 42 + 20 * j
            if differs:
                parts.append(
                    f'<rect x="{left - 4}" y="{y - 15}" width="300" height="20" rx="4" fill="{LIGHT["mark"]}"/>'
                )
            text = line.replace("\t", " " * 4)
            indent = len(text) - len(text.lstrip())
            parts.append(
                words(left + 8 * indent, y, text.strip(), attributes=' font-family="monospace"')
            )
    return drawing(976, 352, "The six loops", parts)


def drift(names: Names) -> str:
    """The weight of each rank after join() and after each even step, per optimizer."""
    series = {
        f"{name}, rank {rank}": weights
        for name, run in names["drift"].items()
        for rank, weights in enumerate(run.returns)
    }
    every = [weight for weights in series.values() for weight in weights]
    low, high = min(every), max(every)
    parts = [words(16, 28, "The weight after join(), and after each step of an even epoch", "soft")]
    kinds = (RowKind.FORWARD, RowKind.JOIN, RowKind.BACKWARD, RowKind.BARRIER)
    lowest = 0.0
    for (name, weights), kind in zip(series.items(), kinds, strict=True):
        points = [
            (60 + 60 * i, 330 - 270 * (weight - low) / (high - low))
            for i, weight in enumerate(weights)
        ]
        path = " ".join(f"{x:.0f},{y:.1f}" for x, y in points)
        dashes = ' stroke-dasharray="6 4"' if name.endswith("1") else ""
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{ink_of(kind)}" stroke-width="2.5"{dashes}/>'
        )
        parts += (
            f'<circle cx="{x:.0f}" cy="{y:.1f}" r="3.5" fill="{ink_of(kind)}"/>' for x, y in points
        )
        lowest = (
            max(lowest + 20, points[-1][1] + 4) if name.startswith("SGD") else points[-1][1] + 4
        )
        parts.append(f'<text x="556" y="{lowest:.0f}" fill="{ink_of(kind)}">{escape(name)}</text>')
    parts += (
        words(60 + 60 * i, 352, str(i) if i else "join()", "soft", "middle") for i in range(9)
    )
    return drawing(680, 368, "The weight of both ranks, with SGD and with Adam", parts)


def overlap(names: Names) -> str:
    """The third backward as a bar, and the all-reduces below it, in modelled time."""
    calls = [call for call in names["calls"] if call["input"] == 2]
    begin, end = names["begin"], names["end"]
    scale = 480 / (max(call["completed_ns"] for call in calls) - begin)
    parts = [words(16, 48, "backward"), bar(150, 32, (end - begin) * scale, RowKind.BACKWARD)]
    for i, call in enumerate(calls):
        x, y = 150 + (call["enqueued_ns"] - begin) * scale, 72 + 32 * i
        numbers = sum(shape[0] for shape in call["shape"])
        parts += [words(16, y + 16, f"all-reduce of {numbers}")]
        parts.append(
            bar(x, y, (call["completed_ns"] - call["enqueued_ns"]) * scale, RowKind.REDUCE)
        )
    parts.append(words(150, 190, "time, modelled, runs to the right", "soft"))
    return drawing(660, 206, "The third backward of rank 0", parts)


def sizes(names: Names) -> str:
    return table(joinlab.table(names["rows"], ["input", "call of rank 0", "numbers"]))


def of_solution(names: Names) -> Any:
    """The build notebooks' programs with the solution in the place of the learner's code."""

    def train(rank: int, inputs: Any) -> None:
        model = solutions.SmallDDP(names["Net"](), 4)
        for input in inputs:
            model(input + rank).sum().backward()

    return joinlab.emulate(train, (2, 2), seed=(0, 1))


def broken(names: Names) -> Any:
    """The solution of small_join, with a barrier behind `train`."""

    def program(rank: int, inputs: Any) -> None:
        model = torch.nn.Linear(1, 1, bias=False)

        def train(input: torch.Tensor) -> None:
            dist.all_reduce(input.clone())
            dist.barrier()

        solutions.small_join(model, inputs, train)

    return joinlab.emulate(program, (2, 3))


def per_input(names: Names) -> str:
    """Calls per input, counted in the runs on two ranks."""
    ways = {"without": "without join()", "disabled": "join(enable=False)", "enabled": "join()"}
    runs = {ways[name]: run.calls for (name, ranks), run in names["real"].items() if ranks == 2}
    counted = [
        (name, calls.filter(calls["rank"] == 0, calls["input"] == 20).height)
        for name, calls in runs.items()
    ]
    return bars("Calls per input, of a model with one bucket", counted)


def documented(names: Names) -> str:
    rows = [
        (f"{what}, {gpus} GPUs", round(first / second, 2))
        for what, gpus, first, second, _ in names["rows"]
    ]
    return bars("Time of an input against the other way to train, documented in 2020", rows)


def _run(name: str) -> Callable[[Names], str]:
    return lambda names: lanes(names[name])


def _slots(name: str, *places: int) -> Callable[[Names], str]:
    return lambda names: table(joinlab.slots(names[name], *places))


def _held(name: str) -> Callable[[Names], str]:
    return lambda names: holdings(names[name])


PICTURES: dict[str, dict[str, Callable[[Names], str]]] = {
    "01_six_loops": {
        "01_loops": loops,
        "01_even": _run("even"),
        "01_case_2": _run("two"),
        "01_case_3": _run("three"),
        "01_case_5": _run("five"),
        "01_case_1": _run("one"),
        "01_case_4": _run("four"),
    },
    "02_case_4_call_by_call": {
        "02_join": _slots("one", 12),
        "02_today": _slots("four", 17),
        "02_then": _slots("then", 17),
    },
    "03_join_options": {
        "03_shadow": _slots("late", 4, 11),
        "03_drift": drift,
        "03_divide": lambda names: table(
            joinlab.table(
                zip(
                    ["1 + 2 + 3", "2 + 3", "3", "3"],
                    names["by_all"],
                    names["by_those_left"],
                    strict=True,
                ),
                ["sum of the gradients", "divided by all ranks", "by the ranks left"],
            )
        ),
    },
    "04_build_join": {
        "04_input": _slots("real", 4, 6),
        "04_real": _slots("real", 4),
        "04_broken": lambda names: lanes(broken(names)),
    },
    "05_when_your_job_hangs": {
        "05_blame": _run("hung"),
        "05_wrong_number": _run("on_nccl"),
        "05_recorded": _run("today"),
    },
    "ddp_1_collectives": {
        "ddp_1_broadcast": _held("run"),
        "ddp_1_all_reduce": _held("summed"),
        "ddp_1_send": _held("sent"),
    },
    "ddp_2_inside": {
        "ddp_2_construction": _slots("built"),
        "ddp_2_buckets": lambda names: table(
            joinlab.table(
                [
                    (call["input"] + 1, call["origin"], sum(shape[0] for shape in call["shape"]))
                    for call in names["calls"]
                ],
                ["input", "call of rank 0", "numbers"],
            )
        ),
        "ddp_2_overlap": overlap,
    },
    "ddp_3_build": {
        "ddp_3_real": sizes,
        "ddp_3_solution": lambda names: table(joinlab.slots(of_solution(names))),
        "ddp_3_gradients": lambda names: bars(
            "The mean gradient of each layer after two inputs, on both ranks",
            [(f"layer {i}", value) for i, value in enumerate(names["real"].returns[0])],
        ),
    },
    "further_1_joinable": {
        "further_1_alone": _run("alone"),
        "further_1_count": lambda names: table(
            joinlab.table(
                zip(range(3), names["counted"].returns, names["for_oneself"].returns, strict=True),
                ["rank", "count with the post hook", "without it"],
            )
        ),
        "further_1_zero": _slots("zero", 9, 15),
    },
    "further_2_order": {
        "further_2_queue": _run("one_thread"),
        "further_2_same_size": _slots("mixed"),
        "further_2_lines": lambda names: table(
            joinlab.table(names["rows"], ["one number meets", "rank 0", "rank 1"])
        ),
    },
    "further_3_cost": {
        "further_3_per_input": per_input,
        "further_3_shadows": lambda names: table(
            joinlab.table(
                [(ranks, more, calls) for (ranks, more), calls in names["shadowed"].items()],
                ["ranks", "inputs more", "calls of each rank"],
            )
        ),
        "further_3_documented": documented,
    },
}
"""By notebook and name: what draws the picture, from the notebook's variables."""


def drawn(notebook: str, names: Names) -> Iterator[tuple[Path, str]]:
    """The pictures of a notebook: their files, and what should be in them."""
    for name, draw in PICTURES[notebook].items():
        yield FOLDER / "pictures" / f"{name}.svg", f"{draw(names)}\n"


def main(notebooks: Sequence[str]) -> None:
    from tests import notebook_runs

    (FOLDER / "pictures").mkdir(exist_ok=True)
    for notebook in notebooks or PICTURES:
        _, names = notebook_runs.run(FOLDER / f"{notebook}.ipynb")
        for path, text in drawn(notebook, names):
            path.write_text(text, "utf-8")
            print(path.name, len(text))


if __name__ == "__main__":
    main(sys.argv[1:])
