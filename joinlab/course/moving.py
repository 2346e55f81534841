"""A picture that moves by itself: a loop, the inputs of two ranks and the lanes of their run, frame after frame.

    python -m joinlab.course.moving data/one_more_input.svg     # README's

One SVG of emulated runs, in the colours of light and dark pages. Only CSS moves it, since an <img> runs no script;
who asked for reduced motion sees the frame that tells most.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from joinlab.cases import case_4
from joinlab.emulator.emulate import emulate
from joinlab.picture.first_screen import first_screen
from joinlab.picture.gallery import loop
from joinlab.picture.rows import RowKind
from joinlab.picture.svg import svg
from joinlab.picture.theme import LIGHT, in_both_themes, ink_of

PLACE = re.compile(r" \((?:\w+\.py:\d+|In \[\d+\], line \d+)\)|[:;] rank \d+ \w+\.py:\d+")
"""Where a call is made, in a headline or a tip: nobody who sees the picture has that file or cell at hand."""


FONT = "Inter, Helvetica Neue, Arial, Liberation Sans, sans-serif"


def drawing(width: float, height: float, label: str, parts: Iterable[str]) -> str:
    """A drawing of our own as <svg>."""
    return in_both_themes(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}" style="max-width:100%;height:auto" role="img" aria-label="{escape(label)}" '
        f'font-family="{FONT}" font-size="13"><rect width="100%" height="100%" rx="8" '
        f'fill="{LIGHT["paper"]}"/>{"".join(parts)}</svg>'
    )


def words(
    x: float, y: float, text: str, color: str = "ink", anchor: str = "start", attributes: str = ""
) -> str:
    return (
        f'<text x="{x:.0f}" y="{y:.0f}" fill="{LIGHT[color]}" text-anchor="{anchor}"{attributes}>'
        f"{escape(text)}</text>"
    )


def repaired(rank: int, inputs: Sequence[torch.Tensor]) -> None:
    """Case 4 with its barrier moved behind the block."""
    model = DDP(torch.nn.Linear(1, 1))
    with model.join():
        for input in inputs:
            loss = model(input)
            loss.backward()
    dist.barrier()


@dataclass(frozen=True, slots=True)
class MovingFrame:
    """What a moving picture shows for a while: a run, and what changed with it."""

    program: Callable[[int, Any], object]
    inputs: tuple[int, int]
    change: str


README: Sequence[MovingFrame] = (
    MovingFrame(case_4, (5, 6), "Rank 1 has one more input."),
    MovingFrame(case_4, (5, 5), "The same loop with equal inputs."),
    MovingFrame(case_4, (6, 5), "Now rank 0 has one more input."),
    MovingFrame(repaired, (5, 6), "The cure: the barrier behind the block."),
)
"""README's picture: case 4, how its ending depends on the inputs, and its cure."""

ONCE: Sequence[MovingFrame] = (
    MovingFrame(case_4, (5, 5), "Both ranks have five inputs."),
    MovingFrame(case_4, (5, 6), "Rank 1 has one more."),
)
"""The first picture of the essay, before any explanation."""

SECONDS = 3.0
"""How long a frame stands. README's picture, of four frames, takes 12 s and begins again."""

LETTER = 8.4
"""px of a monospaced letter of 14 px."""


def moving(frames: Sequence[MovingFrame] = README, once: bool = False) -> str:
    """The picture as an <svg> element.

    frames  what it shows; of the last program the barrier may stand outside the block
    once    it stops at the last frame, where it begins anew otherwise

    Who asked for reduced motion sees the first frame, or the last one if it moves only once.
    """
    runs = [emulate(frame.program, frame.inputs) for frame in frames]
    parts: list[str] = []
    for number, (frame, run) in enumerate(zip(frames, runs, strict=True)):
        picture = PLACE.sub("", svg(first_screen(run), f"frame-{number}"))
        parts.append(f'<g class="frame f{number}">{words(560, 38, frame.change, "soft")}')
        parts.extend(_dots(frame.inputs))
        parts.append(f'<g transform="translate(0 152)">{picture}</g></g>')
    *lines, barrier = loop(runs[0])
    *last_lines, last_barrier = loop(runs[-1])
    assert lines == last_lines and barrier.strip() == last_barrier.strip()
    code = ' font-family="monospace" font-size="14" xml:space="preserve"'
    for i, line in enumerate(lines):
        parts.append(words(32, 38 + 24 * i, line.replace("\t", " " * 4), attributes=code))
    indent = 4 * LETTER * barrier.count("\t")
    y = 38 + 24 * len(lines)
    mark = f'<rect x="{28 + indent:.0f}" y="{y - 17}" width="134" height="24" rx="4"'
    line = words(32 + indent, y, barrier.strip(), attributes=code + ' font-weight="700"')
    parts.append(f'<g class="barrier">{mark} fill="{LIGHT["mark"]}"/>{line}</g>')
    label = "A loop under join() with a barrier: with one more input on a rank, one rank hangs"
    moved = indent - 4 * LETTER * last_barrier.count("\t")
    return drawing(1012, 506, label, [_motion(len(frames), moved, once), *parts])


def _dots(inputs: tuple[int, int]) -> Iterator[str]:
    """A dot for each input of a rank; those that the other rank lacks have another colour."""
    for rank, count in enumerate(inputs):
        y = 76 + 34 * rank
        yield words(560, y, f"rank {rank}", attributes=' font-weight="700" font-size="15"')
        for i in range(count):
            if i < min(inputs):
                fill = ink_of(RowKind.BACKWARD)
            else:
                fill = LIGHT["bad"]
            yield f'<circle cx="{640 + 26 * i}" cy="{y - 5}" r="9" fill="{fill}"/>'
        yield words(640 + 26 * 6, y, f"{count} inputs", "soft")


def _motion(frames: int, moved: float, once: bool) -> str:
    """The style sheet that shows the frames in turn, and moves the barrier by `moved` px to the left
    in the last one."""
    share, still = 100 / frames, frames - 1 if once else 0
    often = "1 both" if once else "infinite"
    rules = [f".frame,.barrier{{animation:{SECONDS * frames:g}s {often}}}"]
    for number in range(frames):
        begin, end = share * number, share * (number + 1)
        first = 1 if number == 0 else 0
        last = 1 if number == still else 0  # so that the end of a loop is its beginning
        fades = f"{end - 1:g}%{{opacity:1}}{end:g}%,99%{{opacity:0}}100%{{opacity:{last}}}"
        if number == frames - 1:
            fades = f"99%{{opacity:1}}100%{{opacity:{last}}}"
        shows = (
            f"0%{{opacity:{first}}}{max(begin - 1, 0):g}%{{opacity:{first}}}{begin:g}%{{opacity:1}}"
        )
        rules.append(f"@keyframes f{number}{{{shows}{fades}}}")
        rules.append(f".f{number}{{opacity:{last};animation-name:f{number}}}")
    if moved:
        begin, out = 100 - share, f"translateX({-moved:.0f}px)"
        rules.append(
            f"@keyframes barrier{{0%,{begin - 1:g}%{{transform:none}}"
            f"{begin + 3:g}%,99%{{transform:{out}}}100%{{transform:none}}}}"
        )
        rules.append(".barrier{animation-name:barrier}")
    rules.append("@media(prefers-reduced-motion:reduce){.frame,.barrier{animation:none}}")
    return f"<style>{''.join(rules)}</style>"


def main(arguments: Sequence[str]) -> None:
    """Write README's picture into the file that the argument names."""
    Path(arguments[0]).write_text(f"{moving()}\n", "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
