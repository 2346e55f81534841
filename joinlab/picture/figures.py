"""The lanes on the clock as a Plotly figure, for people who want a picture that they can zoom,
combine and export.

It draws what the view draws on the clock. A figure does not know whether its notebook is light or
dark, so its background is transparent, and the grey of its text is readable on both.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from math import inf
from textwrap import wrap
from typing import NamedTuple

import numpy as np
import plotly.graph_objects as go
import polars as pl

from joinlab.analysis.meanings import asks_of
from joinlab.analysis.reading import read
from joinlab.analysis.wording import title
from joinlab.ops import CallRow
from joinlab.picture.columns import LEAST, MARGIN, call_times, mistaken
from joinlab.picture.details import UNITS, call_details, duration
from joinlab.picture.first_screen import first_screen, folded
from joinlab.picture.rows import RowKind, kind
from joinlab.picture.screen import FirstScreen
from joinlab.picture.theme import BLACK, EDGE, FILLS, INK, OUTLINE, THEME, WHITE
from joinlab.story.judge import diagnose
from joinlab.timeline import Meta, Timeline, expect_timeline

CALLS, PROGRAM = (0.08, 0.5), (0.64, 0.22)
"""Across time, where the two tracks of a lane begin, and how high they are; a lane is 1 high."""

MOST_AT_ONCE = 6  # calls in flight that share the height of their track; more share its last row
LANE, NAMED = 95, 18  # px: how high a lane is at least, and a bar that can show its name
CITED = 16  # px of a line of the program above the lanes
OUTLINED = 300  # bars of a kind; of more, an outline would be all that one sees


class FigureBar(NamedTuple):
    """A call, or what the program did: when, in ns, and where across time. `end`: -1: never; `slot`: of
    a call."""

    kind: RowKind
    begin: int
    end: int
    top: float
    high: float
    label: str
    hover: str
    wrong: bool = False
    slot: int = -1


def figure(timeline: Timeline) -> go.Figure:
    """The lanes of a Timeline on the clock: the calls of each rank, and below them its program, hatched
    where it waits. What never ends runs to the right edge. With many calls, only those of the story.
    Above them stand the lines of the program where ranks part, and the edit that was tried.
    Raises ProgramError for anything but a Timeline.

        joinlab.figure(timeline).show()
    """
    expect_timeline(timeline, "figure")
    folding = folded(timeline)
    diagnose(timeline, folding)  # it tries fixes, which the screen then shows
    reading, screen = read(timeline), first_screen(timeline)
    bad = mistaken(timeline, folding).tolist()
    lanes = [[*_bars(timeline, ranks[0], row, bad)] for row, ranks in enumerate(screen.ranks)]
    bars = [bar for lane in lanes for bar in lane]
    begin = min((bar.begin for bar in bars), default=0)
    end = max((max(bar.begin, bar.end) for bar in bars), default=0)
    whole = max(end - begin, LEAST)
    until = end + int(whole * MARGIN)
    unit, per = next((unit for unit in UNITS if until - begin >= 2 * unit[1]), ("ns", 1))
    bars.sort(key=lambda bar: bar.wrong)  # a legend has the first's edge
    traces: list[go.Bar | go.Scatter] = []
    for bar_kind in FILLS:
        of_kind = [bar for bar in bars if bar.kind is bar_kind]
        if of_kind:
            traces.append(_trace(bar_kind, of_kind, until, per))
    thin = min((bar.high for bar in bars), default=1)
    lanes_px = len(lanes) * max(LANE, round(NAMED / thin))
    part = f" · {len(reading.listed):,} of {reading.count:,} rows" if reading.is_part else ""
    names = []
    for name, (sign, word, _, detail) in zip(screen.names, screen.ends, strict=True):
        lines = f"<b>{html.escape(name)}</b>", html.escape(f"{sign} {word}"), html.escape(detail)
        names.append("<br>".join(filter(None, lines)))
    timed = timeline.calls["enqueued_ns"].null_count() < timeline.calls.height
    subtitle = [html.escape(title(timeline) + part), *_cited(screen)]
    above = 74 + CITED * len(subtitle)
    axis = f"{unit}, {screen.provenance}" if timed else "no times on record"
    layout = go.Layout(
        **THEME["figure"]["layout"], font_color=INK, height=150 + above + lanes_px, margin_t=above,
        title_text=_lines("".join(piece.text for piece in screen.headline)),
        title_subtitle_text="<br>".join(subtitle), legend_y=-60 / (100 + lanes_px),
        xaxis_title_text=axis, xaxis_showticklabels=timed,
        xaxis_range=[(begin - whole / 200) / per, until / per],
        yaxis_tickvals=[row + 0.45 for row in range(len(names))], yaxis_ticktext=names,
        yaxis_range=[len(names), 0],
    )  # fmt: skip
    return go.Figure([*traces, *_signs(screen, lanes, until, per)], layout)


def _cited(screen: FirstScreen) -> Iterator[str]:
    """The lines of the program that ranks stand at or an edit changes, and what came of the edit."""
    for line in screen.code:
        who = ", ".join(piece.text for piece in line.here)
        if who or line.sign:
            text = " ".join(filter(None, (str(line.number or ""), line.sign, line.text.strip())))
            yield html.escape(f"{text} ◂ {who}" if who else text)
    if screen.tried.text:
        yield _lines(screen.tried.text.replace("`", ""))


def _bars(timeline: Timeline, rank: int, row: int, bad: Sequence[bool]) -> Iterator[FigureBar]:
    """The bars of a rank in a row of the figure. `bad`: by slot, whether its calls met by mistake."""
    reading = read(timeline)
    drawn = np.flatnonzero((reading.ranks == rank) & np.isin(reading.slot, reading.listed))
    calls, slots = timeline.calls[drawn], reading.slot[drawn].tolist()
    program = row + PROGRAM[0], PROGRAM[1]
    begun, ended, waited, let_go, _ = (times.tolist() for times in call_times(calls))
    failed = calls["error"].is_not_null()  # when is not always known
    ended = [max(end, begun[index]) if failed[index] else end for index, end in enumerate(ended)]
    track_rows = _track_rows(begun, ended)
    rows: list[CallRow] = calls.rows(named=True)  # type: ignore[assignment]
    for index, (call, slot) in enumerate(zip(rows, slots, strict=True)):
        (track_row, shared), label = track_rows[index], asks_of(call)
        high = CALLS[1] / shared
        amiss = bool(bad[slot] or failed[index] or ended[index] < 0)
        yield FigureBar(
            kind(call), begun[index], ended[index], row + CALLS[0] + track_row * high, high * 0.96,
            label, hover(call, timeline.meta), amiss, slot,
        )  # fmt: skip
        if waited[index] >= 0:
            times = waited[index], let_go[index]
            text = _duration_text(f"waits in {label}", *times)
            yield FigureBar(RowKind.WAIT, *times, *program, "", text)
    spans = timeline.spans.filter(pl.col("rank") == rank)
    for span in spans.rows(named=True) if not reading.is_part else ():
        times = span["begin_ns"], -1 if span["end_ns"] is None else span["end_ns"]
        label = work = span["name"]
        if span["input"] is not None:
            work = f"{label} of input {span['input'] + 1}"
        yield FigureBar(RowKind.SPAN, *times, *program, label, _duration_text(work, *times))


def _duration_text(what: str, begin: int, end: int) -> str:
    return f"<b>{html.escape(what)}</b>: {'it never ends' if end < 0 else duration(end - begin)}"


def _track_rows(begun: Sequence[int], ended: Sequence[int]) -> Sequence[tuple[int, int]]:
    """Of each call its row, and how many share the track: calls in flight at once, below each other."""
    rows: list[tuple[int, list[float]]] = []  # and the ends of all rows that share the track
    row_ends: list[float] = []
    for begin, end in zip(begun, ended, strict=True):
        if all(row_end <= begin for row_end in row_ends):
            row_ends = []
        free = (row for row, row_end in enumerate(row_ends) if row_end <= begin)
        row = next(free, len(row_ends))
        row_ends[row : row + 1] = [inf if end < 0 else end]
        rows.append((min(row, MOST_AT_ONCE - 1), row_ends))
    return [(row, min(len(sharing), MOST_AT_ONCE)) for row, sharing in rows]


def _trace(bar_kind: RowKind, bars: Sequence[FigureBar], until: int, per: float) -> go.Bar:
    thin = 0.6 if len(bars) < OUTLINED else 0
    return go.Bar(
        **THEME["figure"]["bar"], name=bar_kind.value, y=[bar.top + bar.high / 2 for bar in bars],
        width=[bar.high for bar in bars], base=[bar.begin / per for bar in bars],
        x=[max((until if bar.end < 0 else bar.end) - bar.begin, 1) / per for bar in bars],
        text=[html.escape(bar.label, quote=False) for bar in bars], textfont_color=BLACK,
        customdata=[bar.hover for bar in bars], marker_color=FILLS[bar_kind],
        marker_pattern_shape="/" if bar_kind is RowKind.WAIT else "", marker_pattern_fgcolor=INK,
        marker_line_color=[EDGE if bar.wrong else OUTLINE for bar in bars],
        marker_line_width=[2.5 if bar.wrong else thin for bar in bars],
        marker_opacity=[0.55 if bar.end < 0 else 1.0 for bar in bars],
    )  # fmt: skip


def _signs(
    screen: FirstScreen, lanes: Sequence[Sequence[FigureBar]], until: int, per: float
) -> Iterator[go.Scatter]:
    """The sign of inequality, and left of it the names, between calls that do not belong together,
    where the ranks part."""
    if screen.focus is None:
        return
    column = screen.columns[screen.focus]
    for above, below in column.clashes:
        bars = [bar for bar in (*lanes[above], *lanes[below]) if bar.slot == column.slot]
        if len(bars) < 2:
            continue
        begin = max(bar.begin for bar in bars)
        end = min(until if bar.end < 0 else bar.end for bar in bars)
        names = html.escape(" ≠ ".join(bar.label for bar in bars))
        yield go.Scatter(
            **THEME["figure"]["sign"], x=[(begin + end) / 2 / per] * 2, y=[below - 0.02] * 2,
            text=[f"<b>{names}</b>{' ' * 5}", "≠"], textfont_color=[INK, BLACK],
            marker_color=WHITE, marker_line_color=EDGE, customdata=[_lines(column.remark)] * 2,
        )  # fmt: skip


def hover(row: CallRow, meta: Meta) -> str:
    """The tooltip of a call: one line per column."""
    facts = call_details(row, row["started_ns"] is not None, meta)
    return "<br>".join(f"<b>{html.escape(name)}</b> {_lines(text)}" for name, text in facts)


def _lines(text: str) -> str:
    """Escaped and wrapped: Plotly reads tags, and draws a long line out of the window."""
    return "<br>".join(
        html.escape(part, quote=False)
        for line in text.splitlines()
        for part in wrap(line, 90) or [""]
    )
