"""One HTML page with any number of timelines, which needs nothing but a browser.

The page holds everything it shows: Plotly's script once, the figures as data, a static SVG of each for readers
without scripts, the programs, the sentences and the tables. Its own content security policy forbids it to ask
anything of a network, and the same timelines always give the same bytes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from importlib.resources import files
from pathlib import Path

import plotly.io as pio
from plotly.offline import get_plotlyjs

from joinlab.diagnosis import diagnose
from joinlab.figures import draw
from joinlab.lanes import lanes
from joinlab.looks import measured, title
from joinlab.steps import plan, stretches
from joinlab.svg import svg
from joinlab.timeline import EndKind, Timeline

MAX_OUTPUT = 20_000
"""A page shows at most this many characters of what a rank printed, the last ones."""

POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


def write_html(timelines: Timeline | Iterable[Timeline] | Mapping[str, Timeline], path: str | os.PathLike[str]) -> Path:
    """Write a self-contained page and return its path.

    timelines  one Timeline, several, or a mapping from the title of each to it

    Raises ValueError if there is none, TypeError for what is no Timeline, FileNotFoundError if the folder does not
    exist. A file that was there is replaced in one step, or not at all.

        joinlab.write_html({"with a barrier": one, "without": other}, "cases.html")
    """
    named = _named(timelines)
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"cannot write {path}: there is no folder {path.parent}. Create it first.")
    if path.is_dir():
        raise IsADirectoryError(f"cannot write {path}: it is a folder. Name a file, such as {path / 'cases.html'}.")
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        draft.write_text(page(named), encoding="utf-8", newline="\n")
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    return path


def _named(timelines: Timeline | Iterable[Timeline] | Mapping[str, Timeline]) -> list[tuple[str, Timeline]]:
    if isinstance(timelines, Timeline):
        timelines = [timelines]
    pairs = timelines.items() if isinstance(timelines, Mapping) else ((None, one) for one in timelines)
    named = []
    for name, timeline in pairs:
        if not isinstance(timeline, Timeline):
            raise TypeError(f"write_html takes timelines; it got a {type(timeline).__name__}: {timeline!r:.80}")
        named.append((title(timeline) if name is None else str(name), timeline))
    if not named:
        raise ValueError("write_html needs at least one timeline; it got none")
    return named


def page(named: list[tuple[str, Timeline]]) -> str:
    """The text of the page, for pairs of title and timeline."""
    heading = named[0][0] if len(named) == 1 else "What every rank really called"
    return "".join(_page(heading, named))


def _page(heading: str, named: list[tuple[str, Timeline]]) -> Iterator[str]:
    own = files("joinlab") / "templates"
    yield (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(heading)}</title>\n<style>\n{(own / 'page.css').read_text('utf-8')}</style>\n</head>\n<body>\n"
        '<a class="skip" href="#runs">Skip to the runs</a>\n'
        f"<header>\n<h1>{escape(heading)}</h1>\n"
        '<p class="soft">Each rank has a column. A box is one collective call, a band joins the calls that met, and a '
        "call that never completes fades out. Point at a box for everything that is known of the call.</p>\n</header>\n"
    )
    if len(named) > 1:
        yield '<nav aria-label="Contents">\n<ol>\n'
        for number, (name, timeline) in enumerate(named, 1):
            ends = ", ".join(f"rank {rank} {end}" for rank, end in enumerate(timeline.ends))
            yield f'<li><a href="#run-{number}">{escape(name)}</a> <span class="soft">{escape(ends)}</span></li>\n'
        yield "</ol>\n</nav>\n"
    yield '<main id="runs">\n'
    for number, (name, timeline) in enumerate(named, 1):
        yield from _run(f"run-{number}", name, timeline)
    yield f"</main>\n<script>{get_plotlyjs()}</script>\n<script>\n{(own / 'page.js').read_text('utf-8')}</script>\n"
    yield "</body>\n</html>\n"


def _run(at: str, name: str, timeline: Timeline) -> Iterator[str]:
    said = diagnose(timeline)
    yield f'<section class="run" id="{at}" aria-labelledby="{at}-title">\n<h2 id="{at}-title">{escape(name)}</h2>\n'
    yield f'<p class="soft">{escape(measured(timeline))}</p>\n<div class="beside">\n<div>\n'
    yield f"<h3>How it ended, and why</h3>\n<p>{escape(said.sentence)}</p>\n<ul class='ranks'>\n"
    for one in said.ranks:
        wrong = one.ending.kind is not EndKind.FINISHED or one.ending.pending
        sign, style = ("✕", "wrong") if wrong else ("✓", "fine")
        yield (
            f'<li class="{style}"><strong>{sign} rank {one.rank}: {escape(str(one.ending))}</strong>'
            f"<br>{escape(one.sentence)}</li>\n"
        )
    yield "</ul>\n</div>\n"
    yield from _source(timeline)
    yield "</div>\n"
    yield from _picture(at, timeline)
    yield from _table(at, timeline)
    yield from _output(timeline)
    yield "</section>\n"


def _source(timeline: Timeline) -> Iterator[str]:
    source = timeline.meta.get("source") or {}
    text = str(source.get("text") or "").rstrip("\n")
    if not text:
        yield '<div>\n<h3>The program</h3>\n<p class="soft">Its source is not known.</p>\n</div>\n'
        return
    file, first = str(source.get("file") or "the program"), int(source.get("first_line") or 1)
    ended = _ended_at(timeline)
    shown = file.replace("\\", "/").rpartition("/")[2]
    yield f'<div>\n<h3>The program, from {escape(shown)}</h3>\n<pre tabindex="0"><code>'
    for number, line in enumerate(text.split("\n"), first):
        here = ended.get(f"{file}:{number}")
        mark = f'<span class="said">◂ {escape("; ".join(here))}</span>' if here else ""
        cited = " cited" if here else ""
        yield f'<span class="line{cited}"><span class="no">{number}</span>{escape(line) or " "}{mark}</span>'
    yield "</code></pre>\n</div>\n"


def _ended_at(timeline: Timeline) -> dict[str, list[str]]:
    """What to write beside the lines in whose call a rank ended, by "file:line"."""
    found: dict[str, list[str]] = {}
    for rank, end in enumerate(timeline.ends):
        if end.call is None:
            continue
        try:
            site = timeline.call(rank, end.call, end.group)["call_site"]
        except KeyError:  # the call it names was not recorded
            continue
        left = "left a call pending here" if end.pending else f"{end} here"
        found.setdefault(str(site), []).append(f"rank {rank} {left}")
    return found


def _picture(at: str, timeline: Timeline) -> Iterator[str]:
    name = f"{at}-picture"
    logical = lanes(timeline)
    clock = "modelled" if logical.modelled else "recorded"
    yield f'<fieldset data-picture="{name}" hidden>\n<legend>Downwards</legend>\n'
    for axis, words in (("logical", "one row for the calls that met"), ("time", f"{clock} time")):
        checked = " checked" if axis == "logical" else ""
        yield f'<label><input type="radio" name="{name}-axis" value="{axis}"{checked}> {words}</label>\n'
    still = svg(logical, name, tooltips=False)
    yield f'</fieldset>\n<div class="scroll">\n<div class="picture" id="{name}">\n'
    yield f'<div class="still">{still}</div>\n<div class="live"></div>\n</div>\n</div>\n'
    for axis, picture in (("logical", logical), ("time", lanes(timeline, "time"))):
        data = pio.to_json(draw(picture), engine="json").replace("<", "\\u003c")
        yield f'<script type="application/json" id="{name}-{axis}">{data}</script>\n'


def _table(at: str, timeline: Timeline) -> Iterator[str]:
    """The same as a table: for a screen reader, and for searching in the page."""
    calls, steps = timeline.calls.to_dicts(), plan(timeline)
    ranks = range(timeline.world_size)
    yield f"<details>\n<summary>The same as a table, {len(steps)} rows</summary>\n<div class='scroll'>\n<table>\n"
    yield "<caption>One row for the calls that met, with DDP's own setup unfolded.</caption>\n<thead><tr>"
    yield '<th scope="col">input</th>' + "".join(f'<th scope="col">rank {rank}</th>' for rank in ranks)
    yield '<th scope="col">remark</th></tr></thead>\n<tbody>\n'
    for step, stretch in zip(steps, stretches(calls, steps), strict=True):
        cell = {}
        for index in step.calls:
            call = calls[index]
            done = " (failed)" if call["error"] else " (never completes)" if call["completed_ns"] is None else ""
            cell[call["rank"]] = f"{call['origin'] or call['op']}{done}"
        yield f'<tr{" class=wrong" if step.bad else ""}><th scope="row">{escape(stretch)}</th>'
        yield "".join(f"<td>{escape(cell.get(rank, '—'))}</td>" for rank in ranks)
        yield f"<td>{escape(step.text)}</td></tr>\n"
    yield "</tbody>\n</table>\n</div>\n</details>\n"


def _output(timeline: Timeline) -> Iterator[str]:
    for rank, text in enumerate(timeline.output):
        if not text:
            continue
        cut = len(text) - MAX_OUTPUT
        shown = text if cut <= 0 else f"({cut} characters left out; timeline.output has them)\n{text[-MAX_OUTPUT:]}"
        lines = len(text.splitlines())
        yield f"<details>\n<summary>What rank {rank} printed, {lines} line{'s' * (lines != 1)}</summary>\n"
        yield f'<pre class="printed" tabindex="0">{escape(shown)}</pre>\n</details>\n'
