"""The pictures that the notebooks show where none of them runs, as on GitHub.

    python -m tests.pictures                    # runs the notebooks and writes notebooks/pictures
    python -m tests.pictures 03_join_options    # of one notebook
    python -m tests.pictures README             # README's moving picture, data/one_more_input.svg

Each picture is made of a run of its notebook, by the function below that has the notebook's variables. test_pages.py
compares the files with what these functions draw.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

import joinlab
from joinlab.cases import CASES, case_4
from joinlab.course.answers import solutions
from joinlab.picture.both_themes import in_both_themes
from joinlab.picture.gallery import loop, side_by_side
from joinlab.picture.scene import scene
from joinlab.picture.svg import svg
from joinlab.picture.tables import FONT, Cell, Table
from joinlab.picture.theme import FILLS, LIGHT, RowKind, ink_of

FOLDER = Path(__file__).parent.parent / "notebooks"

Names = Mapping[str, Any]


PLACE = re.compile(r" \((?:\w+\.py:\d+|In \[\d+\], line \d+)\)")
"""Where a call is made, in a headline: nobody who sees the picture has that file or cell at hand."""


def lanes(run: Any) -> str:
    return in_both_themes(PLACE.sub("", svg(scene(run))))


def holdings(run: Any) -> str:
    """Who held what before and after the first call of a run."""
    held = joinlab.who_holds(run)
    ranks = [f"rank {rank}" for rank in range(len(held.before))]
    rows = (("before", held.before), ("after", held.after))
    cells = tuple((Cell((name,)), *(Cell((str(one),)) for one in row)) for name, row in rows)
    return Table((held.call, *ranks), cells).svg()


def framed(width: int, height: int, label: str, parts: Sequence[str]) -> str:
    """A drawing of our own as <svg>."""
    return in_both_themes(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" style="max-width:100%;height:auto" role="img" aria-label="{escape(label)}" '
        f'font-family="{FONT}" font-size="13"><rect width="100%" height="100%" rx="8" '
        f'fill="{LIGHT["paper"]}"/>{"".join(parts)}</svg>'
    )


def words(
    x: float, y: float, text: str, color: str = "ink", anchor: str = "start", more: str = ""
) -> str:
    return (
        f'<text x="{x:.0f}" y="{y:.0f}" fill="{LIGHT[color]}" text-anchor="{anchor}"{more}>'
        f"{escape(text)}</text>"
    )


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
    return framed(left + 500, 56 + 30 * len(values), title, parts)


def loops(names: Names) -> str:
    """The six loops side by side; lines that not all of them have stand on a plate."""
    runs = [joinlab.emulate(case.program, inputs=(1, 1)) for case in CASES.values()]
    parts = []
    for i, rows in enumerate(side_by_side([loop(run) for run in runs])):
        left, top = 16 + 320 * (i % 3), 16 + 170 * (i // 3)
        parts.append(words(left, top + 16, f"case {i + 1}", more=' font-weight="600"'))
        for j, (line, differs) in enumerate(row for row in rows if row[0]):
            y = top + 42 + 20 * j
            if differs:
                parts.append(
                    f'<rect x="{left - 4}" y="{y - 15}" width="300" height="20" rx="4" fill="{LIGHT["mark"]}"/>'
                )
            text = line.replace("\t", " " * 4)
            indent = len(text) - len(text.lstrip())
            parts.append(words(left + 8 * indent, y, text.strip(), more=' font-family="monospace"'))
    return framed(976, 352, "The six loops", parts)


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
    return framed(680, 368, "The weight of both ranks, with SGD and with Adam", parts)


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
    return framed(660, 206, "The third backward of rank 0", parts)


def sizes(names: Names) -> str:
    return joinlab.table(names["rows"], ["input", "call of rank 0", "numbers"]).svg()


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
    return lambda names: joinlab.slots(names[name], *places).svg()


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
        "03_divide": lambda names: joinlab.table(
            zip(
                ["1 + 2 + 3", "2 + 3", "3", "3"],
                names["by_all"],
                names["by_those_left"],
                strict=True,
            ),
            ["sum of the gradients", "divided by all ranks", "by the ranks left"],
        ).svg(),
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
        "ddp_2_buckets": lambda names: joinlab.table(
            [
                (call["input"] + 1, call["origin"], sum(shape[0] for shape in call["shape"]))
                for call in names["calls"]
            ],
            ["input", "call of rank 0", "numbers"],
        ).svg(),
        "ddp_2_overlap": overlap,
    },
    "ddp_3_build": {
        "ddp_3_real": sizes,
        "ddp_3_solution": lambda names: joinlab.slots(of_solution(names)).svg(),
        "ddp_3_gradients": lambda names: bars(
            "The mean gradient of each layer after two inputs, on both ranks",
            [(f"layer {i}", value) for i, value in enumerate(names["real"].returns[0])],
        ),
    },
    "further_1_joinable": {
        "further_1_alone": _run("alone"),
        "further_1_count": lambda names: joinlab.table(
            zip(range(3), names["counted"].returns, names["for_oneself"].returns, strict=True),
            ["rank", "count with the post hook", "without it"],
        ).svg(),
        "further_1_zero": _slots("zero", 9, 15),
    },
    "further_2_order": {
        "further_2_queue": _run("one_thread"),
        "further_2_same_size": _slots("mixed"),
        "further_2_lines": lambda names: joinlab.table(
            names["rows"], ["one number meets", "rank 0", "rank 1"]
        ).svg(),
    },
    "further_3_cost": {
        "further_3_per_input": per_input,
        "further_3_shadows": lambda names: joinlab.table(
            [(ranks, more, calls) for (ranks, more), calls in names["shadowed"].items()],
            ["ranks", "inputs more", "calls of each rank"],
        ).svg(),
        "further_3_documented": documented,
    },
}
"""By notebook and name: what draws the picture, from the notebook's variables."""


def repaired(rank: int, inputs: Sequence[torch.Tensor]) -> None:
    """Case 4 with its barrier moved behind the block."""
    model = DDP(torch.nn.Linear(1, 1))
    with model.join():
        for input in inputs:
            loss = model(input)
            loss.backward()
    dist.barrier()


FRAMES: Sequence[tuple[Any, tuple[int, int], str]] = (
    (case_4, (5, 6), "Rank 1 has one more input."),
    (case_4, (5, 5), "The same loop with equal inputs."),
    (case_4, (6, 5), "Now rank 0 has one more input."),
    (repaired, (5, 6), "The cure: the barrier behind the block."),
)
"""What README's moving picture shows: the program, the inputs of both ranks, and what changed."""

SECONDS = 12.0
"""How long its loop takes; each frame stands for an equal part of it."""

LETTER = 8.4
"""px of a monospaced letter of 14 px."""


def moving() -> str:
    """README's picture: the loop, its inputs and its lanes, frame after frame, then again.

    Only CSS moves it, since an <img> runs no script. The first frame is what a reader sees who asked
    for reduced motion.
    """
    parts = []
    programs = []
    for number, (program, inputs, change) in enumerate(FRAMES):
        run = joinlab.emulate(program, inputs)
        programs.append(loop(run))
        picture = PLACE.sub("", svg(scene(run), f"frame-{number}"))
        parts.append(f'<g class="frame f{number}">{words(560, 38, change, "soft")}')
        for rank, count in enumerate(inputs):
            y = 76 + 34 * rank
            parts.append(words(560, y, f"rank {rank}", more=' font-weight="700" font-size="15"'))
            for i in range(count):
                fill = FILLS[RowKind.BACKWARD] if i < min(inputs) else LIGHT["bad"]
                parts.append(f'<circle cx="{640 + 26 * i}" cy="{y - 5}" r="9" fill="{fill}"/>')
            parts.append(words(640 + 26 * 6, y, f"{count} inputs", "soft"))
        parts.append(f'<g transform="translate(0 152)">{picture}</g></g>')
    *lines, barrier = programs[0]
    assert [*lines, barrier.strip()] == programs[
        -1
    ]  # the repair moves one line, as the picture does
    code = ' font-family="monospace" font-size="14" xml:space="preserve"'
    for i, line in enumerate(lines):
        parts.append(words(32, 38 + 24 * i, line.replace("\t", " " * 4), more=code))
    indent = 4 * LETTER * barrier.count("\t")
    y = 38 + 24 * len(lines)
    mark = f'<rect x="{28 + indent:.0f}" y="{y - 17}" width="134" height="24" rx="4" fill="{LIGHT["mark"]}"/>'
    line = words(32 + indent, y, barrier.strip(), more=code + ' font-weight="700"')
    parts.append(f'<g class="barrier">{mark}{line}</g>')
    label = "A loop under join() with a barrier: with one more input on a rank, that rank hangs"
    return framed(1012, 470, label, [_motion(indent), *parts])


def _motion(indent: float) -> str:
    """The style sheet that shows the frames in turn, and moves the barrier left in the last one."""
    share = 100 / len(FRAMES)
    rules = [
        f".frame{{opacity:0}}.f0{{opacity:1}}.frame,.barrier{{animation:{SECONDS:g}s infinite}}"
    ]
    for number in range(len(FRAMES)):
        begin, end = share * number, share * (number + 1)
        before = f"0%,{begin - 1:g}%{{opacity:0}}" * bool(number)
        after = f"{end:g}%,100%{{opacity:0}}" if end < 100 else "100%{opacity:0}"
        shows = f"{before}{begin:g}%,{end - 1:g}%{{opacity:1}}"
        if not number:
            after = f"{end:g}%,99%{{opacity:0}}100%{{opacity:1}}"
        rules.append(
            f"@keyframes f{number}{{{shows}{after}}}.f{number}{{animation-name:f{number}}}"
        )
    last = 100 - share
    out = f"translateX({-indent:.0f}px)"
    rules.append(
        f"@keyframes barrier{{0%,{last - 1:g}%{{transform:none}}{last + 3:g}%,99%{{transform:{out}}}"
        f"100%{{transform:none}}}}.barrier{{animation-name:barrier}}"
    )
    rules.append("@media(prefers-reduced-motion:reduce){.frame,.barrier{animation:none}}")
    return f"<style>{''.join(rules)}</style>"


MOVING = FOLDER.parent / "data" / "one_more_input.svg"


def drawn(notebook: str, names: Names) -> Iterator[tuple[Path, str]]:
    """The pictures of a notebook: their files, and what should be in them."""
    for name, draw in PICTURES[notebook].items():
        yield FOLDER / "pictures" / f"{name}.svg", f"{draw(names)}\n"


def main(notebooks: Sequence[str]) -> None:
    from tests import running

    (FOLDER / "pictures").mkdir(exist_ok=True)
    if not notebooks or "README" in notebooks:
        MOVING.write_text(f"{moving()}\n", "utf-8")
    for notebook in PICTURES:
        if notebooks and notebook not in notebooks:
            continue
        _, names = running.run(FOLDER / f"{notebook}.ipynb")
        for path, text in drawn(notebook, names):
            path.write_text(text, "utf-8")
            print(path.name, len(text))


if __name__ == "__main__":
    main(sys.argv[1:])
