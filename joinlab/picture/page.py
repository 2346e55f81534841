"""One HTML page with any number of timelines, or with sliders, which needs nothing but a browser.

The page contains everything it shows: the script of the live view, the lanes as data, and the
sentences, the program and a static SVG for paper and for browsers without scripts. Its content
security policy forbids network requests. The same timelines always give the same bytes.
"""

from __future__ import annotations

import os
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from itertools import product
from pathlib import Path
from typing import NamedTuple

from joinlab.analysis.reading import read
from joinlab.analysis.source import CodeLine, SourceTexts
from joinlab.analysis.wording import by_key, measured, ranks_text, shown, title
from joinlab.archive import check_writable, write_whole
from joinlab.ops import counted
from joinlab.picture.assets import script, style
from joinlab.picture.compared import compared
from joinlab.picture.first_screen import first_screen, folded
from joinlab.picture.lane_data import LaneData
from joinlab.picture.svg import svg
from joinlab.story.judge import diagnose
from joinlab.story.writers import html_of
from joinlab.timeline import Timeline

MAX_OUTPUT = 20_000
"""Characters of a rank's output that a page shows, the last ones."""

SHEETS = ("view.css", "first.css", "map.css", "figures.css", "page.css")
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
)


class Position(NamedTuple):
    """A position of a page's controls: program, setting and inputs."""

    program: str
    setting: str
    inputs: tuple[int, ...]


def write_html(
    timelines: Timeline | Iterable[Timeline] | Mapping[str, Timeline],
    path: str | os.PathLike[str],
    *,
    compare: bool = False,
) -> Path:
    """Write a self-contained page and return its path.

    timelines  one Timeline, several, or a mapping from the title of each to it
    compare    of two Timelines: two pictures on one axis, below one sentence that says what differs

    Raises ValueError if there is no Timeline, or if compare=True gets more or fewer than two;
    TypeError for an object that is no Timeline; FileNotFoundError if the folder does not exist.
    Replaces an existing file in one step, or not at all.

        joinlab.write_html({"with a barrier": one, "without": other}, "cases.html")
    """
    named = _named(timelines)
    if compare and len(named) != 2:
        raise ValueError(f"compare=True takes two timelines; it got {len(named)}")
    return write(Path(path), lambda: _beside(*named) if compare else page(named))


def write_sliders(
    heading: str,
    runs: Iterable[tuple[Position, Timeline]],
    start: Position,
    path: str | os.PathLike[str],
    loop: Sequence[tuple[bool, str]] = (),
) -> Path:
    """Write a self-contained page that shows one run at a time, chosen by controls, and return its
    path.

    runs   every position that the controls can take, with the run that stands there; used up one by one
    start  where the controls stand at first
    loop   of each program whether it has join(), and where its barrier is, if all are one loop: its
           barrier can be dragged

    Raises like `write_html`, and ValueError if a position of the controls has no run.
    """
    return write(Path(path), lambda: slider_page(heading, runs, start, loop=loop))


def write(path: Path, text: Callable[[], str]) -> Path:
    """Write a page whole or not at all, and return its path."""
    check_writable(path)  # before the text is made, which can take a while
    return write_whole(path, text().encode())


def _named(
    timelines: Timeline | Iterable[Timeline] | Mapping[str, Timeline],
) -> list[tuple[str, Timeline]]:
    if isinstance(timelines, Timeline):
        timelines = [timelines]
    pairs = (
        timelines.items()
        if isinstance(timelines, Mapping)
        else ((None, timeline) for timeline in timelines)
    )
    named = []
    for name, timeline in pairs:
        if not isinstance(timeline, Timeline):
            raise TypeError(
                f"write_html takes timelines; it got a {type(timeline).__name__}: {timeline!r:.80}"
            )
        named.append((title(timeline) if name is None else str(name), timeline))
    if not named:
        raise ValueError("write_html needs at least one timeline; it got none")
    return named


def page(named: list[tuple[str, Timeline]]) -> str:
    """The text of the page, for pairs of title and timeline."""
    data = LaneData()
    for _, timeline in named:  # before it is drawn: it tries fixes, which the picture shows
        diagnose(timeline, folded(timeline))
    numbers = [data.add(timeline) for _, timeline in named]
    tab = named[0][0] if len(named) == 1 else HEADING
    body = _runs(named, numbers)
    quiet = len(named) == 1
    return document(tab, body, data, HEADING, quiet=quiet, shown=numbers)


def _runs(named: list[tuple[str, Timeline]], numbers: list[int]) -> Iterator[str]:
    if len(named) > 1:
        yield '<nav aria-label="Contents">\n<ol>\n'
        for index, (name, timeline) in enumerate(named, 1):
            ranks_by_ending = by_key((str(end), rank) for rank, end in enumerate(timeline.ends))
            ends = ", ".join(f"{ranks_text(ranks)} {end}" for end, ranks in ranks_by_ending.items())
            yield f'<li><a href="#run-{index}">{escape(name)}</a> <span class="soft">{escape(ends)}</span></li>\n'
        yield "</ol>\n</nav>\n"
    for index, ((name, timeline), number) in enumerate(zip(named, numbers, strict=True), 1):
        yield f'<section class="run" id="run-{index}" aria-labelledby="run-{index}-title">\n'
        yield f'<h2 id="run-{index}-title">{escape(name)}</h2>\n<div class="run-view" data-run="{number}">\n'
        yield from still(f"run-{index}", timeline)
        yield '<div class="live"></div>\n</div>\n<details>\n<summary>In words</summary>\n'
        yield from _table(timeline)
        yield from _output(timeline)
        yield "</details>\n</section>\n"


def _beside(first: tuple[str, Timeline], second: tuple[str, Timeline]) -> str:
    """The text of a page that compares two runs."""
    for _, timeline in (first, second):
        diagnose(timeline)  # tries fixes
    data, (both, sentence) = LaneData(), compared(first[1], second[1])
    number = data.add(first[1], beside=second[1])
    pictures = "".join(svg(screen, f"run-{index}") for index, screen in enumerate(both))
    body = (
        f'<section class="run">\n<div class="run-view" data-run="{number}">\n'
        f'<div class="still">\n<p>{escape(sentence)}</p>\n<div class="scroll">{pictures}</div>\n</div>\n'
        '<div class="live"></div>\n</div>\n</section>\n'
    )
    return document(f"{first[0]} and {second[0]}", [body], data, HEADING, quiet=True)


def framed(timeline: Timeline) -> str:
    """The page of one Timeline as an HTML element that needs nothing around it, for front ends
    without widgets."""
    name = title(timeline)
    return in_frame(name, page([(name, timeline)]))


def in_frame(name: str, text: str) -> str:
    """A page as an HTML element."""
    look = "width:100%;height:46rem;border:0"
    return f'<iframe title="{escape(shown(name))}" srcdoc="{escape(text)}" style="{look}"></iframe>'


def slider_page(
    heading: str,
    runs: Iterable[tuple[Position, Timeline]],
    start: Position,
    map_data: Mapping[str, object] | None = None,
    loop: Sequence[tuple[bool, str]] = (),
) -> str:
    """The text of the page with sliders. `map_data`: of endings, as static/map.js draws it, to move by a
    click; `loop`: as `write_sliders`."""
    data = LaneData()
    printed: dict[str, Timeline] = {}  # one run of each program
    run_numbers: dict[Position, int] = {}
    for position, timeline in runs:
        run_numbers[position] = data.add(timeline)
        if position[1:] == start[1:]:
            printed[position.program] = timeline
    if start.program not in printed:
        raise ValueError(f"the controls start at {start}, which has no run; add one to runs=")
    numbers: dict[str, dict[str, dict[str, int]]] = {}
    axes = map(dict.fromkeys, zip(*run_numbers, strict=True))
    for program, setting, inputs in product(*axes):
        position = Position(program, setting, inputs)
        if position not in run_numbers:
            raise ValueError(
                f"the controls can be moved to {position}, which has no run; add one to runs="
            )
        by_inputs = numbers.setdefault(program, {}).setdefault(setting, {})
        by_inputs[",".join(map(str, inputs))] = run_numbers[position]
    positions = {"runs": numbers, "map": map_data, "loop": loop, "start": start}
    body = _sliders(printed, start.program)
    quiet = map_data is not None  # in a cell
    return document(heading, body, data, quiet=quiet, positions=positions)


def _sliders(printed: Mapping[str, Timeline], program: str) -> Iterator[str]:
    yield '<noscript><p class="soft">Without scripts, this page shows one run alone.</p></noscript>\n'
    yield '<section class="run screen"><h2>What happens</h2>\n<div class="run-view">\n'
    yield from still("run", printed[program])
    yield '<div class="live"></div>\n</div>\n</section>\n'
    # on paper no control can be moved
    for number, (name, timeline) in enumerate(printed.items(), 1):
        yield f'<section class="run paper"><h2>{escape(name)}</h2>\n'
        yield from still(f"paper-{number}", timeline)
        yield "</section>\n"


HEADING = "What every rank really called"
"""Above the runs; each run has a title of its own below."""


def document(
    tab: str,
    body: Iterable[str],
    data: LaneData,
    heading: str | None = None,
    name: str = "page",
    quiet: bool = False,
    **extra: object,
) -> str:
    """The text of a page around `body`.

    name   of its script and its style sheet
    quiet  whether what stands around the page says what it is
    extra  what the script gets beside the runs, as static/types.d.ts describes it
    """
    sheets = style(*dict.fromkeys((*SHEETS, f"{name}.css")))
    packed = b64encode(data.packed(**extra)).decode()
    text = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(tab)}</title>\n<style>\n{sheets}</style>\n</head>\n<body class=page>\n"
        '<a class="skip" href="#runs">Skip to the runs</a>\n'
        f"<header{' class=quiet' if quiet else ''}>\n"
        f'<h1>{escape(heading or tab)}</h1>\n</header>\n<main id="runs">\n{"".join(body)}'
        f'</main>\n<script type="text/plain" id="data">{packed}</script>\n'
        f'<script type="module">\n{script(f"{name}.js")}</script>\n</body>\n</html>\n'
    )
    return shown(text)


def runs_of(text: str, name: str) -> str:
    """The runs of a page with this text, as a script for pages that show them among other things:
    static/figures.js draws them. `name`: of the page's file."""
    packed = text.partition('id="data">')[2].partition("<")[0]
    return f'joinlab.keep("{name}","{packed}");\n'


def still(name: str, timeline: Timeline) -> Iterator[str]:
    """The content of the live view without scripts, for paper and for browsers without scripts."""
    story = diagnose(timeline, folded(timeline))
    picture = svg(first_screen(timeline), name)
    yield f'<div class="still">\n<div class="scroll"><div class="picture">{picture}</div></div>\n'
    yield f'<p class="soft">{escape(measured(timeline))}</p>\n'
    yield f'<div class="beside">\n<div>\n{html_of(story.lines)}\n</div>\n'
    yield from _source(timeline)
    yield "</div>\n</div>\n"


def _source(timeline: Timeline) -> Iterator[str]:
    """The program, and the other functions in which a rank ended."""
    sources, calls = SourceTexts.of(timeline), folded(timeline).every.row_of
    ended: dict[CodeLine, list[str]] = {}
    for rank, end in enumerate(timeline.ends):
        key = timeline.ended_in(rank)
        ending = "left a call pending here" if end.pending else f"{end} here"
        for line in sources.lines_of(calls[key]) if key in calls else ():
            ended.setdefault(line, []).append(f"rank {rank} {ending}")
    texts = dict.fromkeys(line.source for line in ended)
    if sources.program is not None:
        texts = {sources.program: None} | texts
    yield "<div>\n"
    if not any(source.lines for source in texts):
        yield '<h3>The program</h3>\n<p class="soft">Its source is not known.</p>\n'
    for source in texts:
        if not source.lines:
            continue
        heading = "The program" if source is sources.program else "A function"
        yield f'<h3>{heading}, from {escape(source.name)}</h3>\n<pre tabindex="0"><code>'
        for number, text in enumerate(source.lines, source.first_line):
            endings, cited, mark = ended.get(CodeLine(source, number)), "", ""
            if endings:
                cited, mark = " cited", f'<span class="said">◂ {escape("; ".join(endings))}</span>'
            yield f'<span class="line{cited}"><span class="no">{number}</span>{escape(text) or " "}{mark}</span>'
        yield "</code></pre>\n"
    yield "</div>\n"


def _table(timeline: Timeline) -> Iterator[str]:
    """The same as a table: for a screen reader, and for searching in the page."""
    made, reading = first_screen(timeline, unfold=True), read(timeline)
    yield f"<details>\n<summary>The same as a table, {len(made.columns)} rows</summary>\n<div class='scroll'>\n"
    scope = "all of them"
    if reading.is_part:
        scope = f"of {reading.count:,} rows those where ranks part, begin or end"
    yield f"<table>\n<caption>One row for the calls that met, {scope}.</caption>\n<thead><tr>"
    head = ("call", *made.names, "remark")
    yield "".join(f'<th scope="col">{name}</th>' for name in head) + "</tr></thead>\n<tbody>\n"
    for column in made.columns:
        yield f'<tr{" class=wrong" if column.flag in ("wrong", "apart") else ""}><th scope="row">{column.number}</th>'
        for lane in range(len(made.names)):
            box = column.boxes.get(lane)
            cell = "—"
            if box is not None and box.row is not None:
                cell = escape(box.row["origin"] or box.row["op"])
                if box.failed:
                    cell += " (failed)"
                elif box.open:
                    cell += " (never completes)"
            yield f"<td>{cell}</td>"
        yield f"<td>{escape(column.remark)}</td></tr>\n"
    yield "</tbody>\n</table>\n</div>\n</details>\n"


def _output(timeline: Timeline) -> Iterator[str]:
    for rank, text in enumerate(timeline.output):
        if not text:
            continue
        cut = len(text) - MAX_OUTPUT
        left_out = f"({cut} characters left out; timeline.output has them)\n" if cut > 0 else ""
        lines = counted(len(text.splitlines()), "line")
        yield f"<details>\n<summary>What rank {rank} printed, {lines}</summary>\n"
        yield f'<pre class="printed" tabindex="0">{left_out}{escape(text[-MAX_OUTPUT:])}</pre>\n</details>\n'
