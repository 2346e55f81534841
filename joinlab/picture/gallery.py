"""The gallery: programs side by side, and below each a small picture of its run on every fabric; a
click fills the large picture above. One page for any browser, with no network; the scripts draw
small and large from the same boxes.
"""

from __future__ import annotations

import json
import os
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from joinlab.analysis.source import SourceTexts
from joinlab.analysis.wording import good, shown
from joinlab.picture.lane_data import LaneData
from joinlab.picture.page import document, still, write
from joinlab.timeline import EndKind, Timeline

Place = tuple[str, tuple[str, str], tuple[int, ...]]
"""Program, fabric with engine, and inputs of a picture."""


@dataclass(frozen=True, slots=True)
class GalleryRun:
    """A run, its ending in a few words, and a note above it."""

    timeline: Timeline
    ended: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Gallery:
    """Content of a page: pictures by their places, and the first one shown. Every program has one
    on every fabric."""

    heading: str
    pictures: Mapping[Place, GalleryRun]
    start: Place


def write_gallery(gallery: Gallery, path: str | os.PathLike[str]) -> Path:
    """Write the page and return its path."""
    data = LaneData()
    numbers = {place: data.add(picture.timeline) for place, picture in gallery.pictures.items()}
    text = document(gallery.heading, _body(gallery, numbers), data, name="gallery")
    return write(Path(path), lambda: shown("".join(text)))


def _body(gallery: Gallery, numbers: Mapping[Place, int]) -> Iterator[str]:
    programs, fabrics, inputs = (
        list(dict.fromkeys(part)) for part in zip(*gallery.pictures, strict=True)
    )
    yield '<section class="run"><div class="run-view">\n'
    yield from still("run", gallery.pictures[gallery.start].timeline)
    yield '<div class="live"></div>\n</div></section>\n<div class="gallery" role="radiogroup" aria-label="Runs">\n'
    yield '<div class="fabrics" aria-hidden="true">'
    first = programs[0].partition(" ")[0] + " "
    common = first if all(program.startswith(first) for program in programs) else ""  # said once
    yield f'<span class="loop"><b>{escape(common)}</b></span>'
    yield (
        "".join(f"<span><b>{escape(name)}</b> {escape(engine)}</span>" for name, engine in fabrics)
        + "</div>\n"
    )
    texts = [
        loop(gallery.pictures[program, fabrics[0], inputs[0]].timeline) for program in programs
    ]
    for program, lines in zip(programs, side_by_side(texts), strict=True):
        yield f'<div class="of-one"><div class="loop"><b>{escape(program.removeprefix(common))}</b><code>'
        yield "".join(
            f"<span{' class=differs' * (differs and line != '')}>{escape(line)}</span>"
            for line, differs in lines
        )
        yield "</code></div>\n"
        for fabric in fabrics:
            picture = gallery.pictures[program, fabric, gallery.start[2]]
            ends = picture.timeline.ends
            if all(map(good, ends)):
                sign = "✓"
            elif {end.kind for end in ends} == {EndKind.FINISHED}:
                sign = "…"
            else:
                sign = "✕"
            yield f'<label><input type="radio" name="run"{" checked" * ((program, fabric) == gallery.start[:2])}>'
            yield f'<span class="on">{escape(", ".join(fabric))}</span>'
            yield f'<span class="small">{sign} {escape(picture.ended)}</span></label>\n'
        yield "</div>\n"
    yield "</div>\n"

    def facts_of(*at: Any) -> tuple[int, str, str]:
        return numbers[at], gallery.pictures[at].ended, gallery.pictures[at].note

    runs = {}
    for counts in inputs:
        runs[",".join(map(str, counts))] = [
            [facts_of(program, fabric, counts) for fabric in fabrics] for program in programs
        ]
    data = {
        "programs": programs,
        "fabrics": [f"{name}, {engine}" for name, engine in fabrics],
        "start": ",".join(map(str, gallery.start[2])),
        "runs": runs,
    }
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    yield f'<script type="application/json" id="gallery">{text}</script>\n'


def loop(timeline: Timeline) -> list[str]:
    """The loop of a program: from its first `with` or `for`, without counting and printing,
    indented by tabs."""
    program = SourceTexts.of(timeline).program
    if program is None:
        lines = []
    else:
        lines = [line for line in program.lines if line.strip()]
    begin = next(
        (i for i, line in enumerate(lines) if line.strip().startswith(("with ", "for "))), 0
    )
    lines_kept = [line for line in lines[begin:] if not _BESIDE.search(line)]
    return textwrap.dedent("\n".join(lines_kept)).replace(" " * 4, "\t").splitlines()


_BESIDE = re.compile(r"num_inputs|^\s*(print\(|return\b)")


def side_by_side(texts: Sequence[Sequence[str]]) -> Iterator[list[tuple[str, bool]]]:
    """Of each text its lines in rows that all texts share, "" where it has none, and whether not
    all have that row.

    A row is known by what its line says before the first parenthesis: barriers stand beside each
    other wherever the loop ends.

    >>> list(side_by_side([["step()", "barrier()"], ["step(2)"]]))
    [[('step()', False), ('barrier()', True)], [('step(2)', False), ('', True)]]
    """
    rows: list[tuple[str, int]] = []
    keyed_lines: list[dict[tuple[str, int], str]] = []
    for lines in texts:
        keys = [line.strip().partition("(")[0] for line in lines]
        line_of = {
            (key, keys[:index].count(key)): line
            for index, (key, line) in enumerate(zip(keys, lines, strict=True))
        }
        position = 0
        for row in line_of:
            if row not in rows:
                rows.insert(position, row)
            position = rows.index(row) + 1
        keyed_lines.append(line_of)
    common = {row for row in rows if all(row in line_of for line_of in keyed_lines)}
    for line_of in keyed_lines:
        yield [(line_of.get(row, ""), row not in common) for row in rows]
