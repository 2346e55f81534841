"""The gallery: programs side by side, and below each a small picture of its run on every fabric; a
click fills the large picture above. One page for any browser, with no network; the scripts draw
small and large from the same boxes.
"""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from joinlab.analysis.source import SourceTexts
from joinlab.analysis.wording import good
from joinlab.picture.lane_data import LaneData
from joinlab.picture.page import document, still, write
from joinlab.timeline import EndKind, Timeline


class GalleryRun(NamedTuple):
    """A run, its ending in a few words, and a note above it."""

    timeline: Timeline
    ended: str
    note: str = ""


class Gallery(NamedTuple):
    """Content of a page.

    fabrics  name and engine of each
    runs     by inputs and program: its run on each fabric
    start    inputs, program and fabric of the run that is shown first
    """

    heading: str
    fabrics: Sequence[tuple[str, str]]
    runs: Mapping[tuple[int, ...], Mapping[str, Sequence[GalleryRun]]]
    start: tuple[tuple[int, ...], str, int]


def write_gallery(gallery: Gallery, path: str | os.PathLike[str]) -> Path:
    """Write the page and return its path."""
    data, table = LaneData(), dict[str, list[list[tuple[int, str, str]]]]()
    for inputs, programs in gallery.runs.items():
        table[",".join(map(str, inputs))] = [
            [(data.add(run.timeline), run.ended, run.note) for run in runs]
            for runs in programs.values()
        ]
    inputs = gallery.start[0]
    facts = {
        "programs": list(gallery.runs[inputs]),
        "fabrics": list(map(", ".join, gallery.fabrics)),
        "start": ",".join(map(str, inputs)),
        "runs": table,
    }
    body = _body(gallery)
    return write(
        Path(path),
        lambda: document(gallery.heading, body, data, name="gallery", quiet=True, gallery=facts),
    )


def _body(gallery: Gallery) -> Iterator[str]:
    inputs, program_first, fabric_first = gallery.start
    programs = gallery.runs[inputs]
    yield '<section class="run"><div class="run-view">\n'
    yield from still("run", programs[program_first][fabric_first].timeline)
    yield '<div class="live"></div>\n</div></section>\n<div class="gallery" role="radiogroup" aria-label="Runs">\n'
    yield '<div class="fabrics" aria-hidden="true">'
    word = program_first.partition(" ")[0] + " "
    common = word if all(program.startswith(word) for program in programs) else ""  # shown once
    yield f'<span class="loop"><b>{escape(common)}</b></span>'
    for name, engine in gallery.fabrics:
        yield f"<span><b>{escape(name)}</b> {escape(engine)}</span>"
    yield "</div>\n"
    texts = [loop(runs[0].timeline) for runs in programs.values()]
    for (program, runs), lines in zip(programs.items(), side_by_side(texts), strict=True):
        yield f'<div class="of-one"><div class="loop"><b>{escape(program.removeprefix(common))}</b><code>'
        for line, differs in lines:
            mark = " class=differs" if differs and line else ""
            yield f"<span{mark}>{escape(line)}</span>"
        yield "</code></div>\n"
        for index, (run, fabric) in enumerate(zip(runs, gallery.fabrics, strict=True)):
            sign = "✕"
            if all(map(good, run.timeline.ends)):
                sign = "✓"
            elif all(end.kind is EndKind.FINISHED for end in run.timeline.ends):
                sign = "…"
            checked = " checked" if (program, index) == (program_first, fabric_first) else ""
            yield f'<label><input type="radio" name="run"{checked}>'
            yield f'<span class="on">{escape(", ".join(fabric))}</span>'
            yield f'<span class="small">{sign} {escape(run.ended)}</span></label>\n'
        yield "</div>\n"
    yield "</div>\n"


def loop(timeline: Timeline) -> list[str]:
    """The loop of a program: from its first `with` or `for`, without counting and printing,
    indented by tabs."""
    program, lines = SourceTexts.of(timeline).program, list[str]()
    for line in program.lines if program else ():
        if line.strip() and (lines or line.strip().startswith(("with ", "for "))):
            lines.append(line)
    lines_kept = (line for line in lines if not _BESIDE.search(line))
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
    texts_by_row: list[dict[tuple[str, int], str]] = []
    for lines in texts:
        line_of: dict[tuple[str, int], str] = {}
        position = 0
        for line in lines:
            row = line.strip().partition("(")[0], 0
            while row in line_of:
                row = row[0], row[1] + 1
            line_of[row] = line
            if row not in rows:
                rows.insert(position, row)
            position = rows.index(row) + 1
        texts_by_row.append(line_of)
    for line_of in texts_by_row:
        yield [
            (line_of.get(row, ""), not all(row in lines for lines in texts_by_row)) for row in rows
        ]
