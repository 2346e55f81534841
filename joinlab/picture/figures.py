"""The lanes as a Plotly figure, for people who want a picture that they can edit, combine and
export.

It draws the boxes of `scene`. A figure does not know whether its notebook is light or dark, so its
background is transparent, and the grey of the text outside boxes is readable on both white and
black.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from math import inf
from textwrap import wrap
from typing import Any, NamedTuple

import plotly.graph_objects as go

from joinlab.analysis.reading import read
from joinlab.analysis.wording import sign, title
from joinlab.ops import CallRow
from joinlab.picture.details import call_details
from joinlab.picture.places import along
from joinlab.picture.rows import RowKind
from joinlab.picture.scene import Scene, scene
from joinlab.picture.theme import BLACK, EDGE, FILLS, INK, OUTLINE, WHITE
from joinlab.timeline import Timeline

CONFIG: Mapping[str, Any] = {"showSendToCloud": False, "displaylogo": False, "responsive": True}
"""Pass it to `figure.show(config=...)`: without it Plotly offers to send the figure to a cloud
service."""

WIDE = 0.78  # of the room of a lane: its boxes


class Bar(NamedTuple):
    """A box: its lane, begin, length, label and tooltip."""

    kind: RowKind
    lane: int
    begin: float
    length: float
    label: str
    told: str
    open: bool
    wrong: bool


def figure(timeline: Timeline, setup: bool = False) -> go.Figure:
    """The lanes of a Timeline, with calls that met side by side; with many calls, only those of the
    story.

    setup  True shows every call, instead of stacks of rounds in which all agree

        joinlab.figure(timeline).show()
    """
    reading, made = read(timeline), scene(timeline, unfold=setup)
    places, length = along(made, inf, "column")
    bars = list(_bars(made, places))
    part = (
        f"; {len(reading.told):,} of {reading.count:,} rows: where ranks part, begin or end"
        if reading.is_part
        else ""
    )
    ends = (f"{sign(timeline.ends[ranks[0]])} {timeline.ends[ranks[0]]}" for ranks in made.ranks)
    lane_labels = zip(made.names, ends, strict=True)
    names = [
        f"<b>{name}</b><br>{'<br>'.join(wrap(html.escape(end), 26))}" for name, end in lane_labels
    ]
    plain = {"showgrid": False, "zeroline": False, "ticks": ""}
    lanes = plain | {
        "tickvals": [index + 0.45 for index in range(len(names))],
        "ticktext": names,
        "fixedrange": True,
    }
    lanes |= {"range": [0, len(names)], "side": "top"}
    following = plain | {"range": [length or 1.0, 0.0], "showticklabels": False}
    order = list(FILLS).index
    sorts = groupby(sorted(bars, key=lambda bar: order(bar.kind)), lambda bar: bar.kind)
    drawn = [_trace(kind, list(bars_of_kind)) for kind, bars_of_kind in sorts]
    layout = go.Layout(
        template="none", paper_bgcolor="rgba(0,0,0,0)", plot_bgcolor="rgba(0,0,0,0)", font={"color": INK, "size": 12},
        barmode="overlay", hovermode="closest", dragmode="pan", margin={"l": 110, "r": 20, "t": 110, "b": 60},
        title={"text": html.escape(title(timeline) + part), "x": 0.01, "y": 0.995, "yanchor": "top"},
        legend={"orientation": "h", "yanchor": "top", "y": -0.04}, xaxis=lanes, yaxis=following,
        height=180 + (length or 1.0),
        width=110 * len(names) + 130 if len(names) > 8 else None,  # rather scroll than squeeze
    )  # fmt: skip
    return go.Figure([*drawn, *_signs(made, places)], layout)


def _bars(made: Scene, places: Sequence[tuple[float, float]]) -> Iterator[Bar]:
    for (offset, long), column in zip(places, made.columns, strict=True):
        for lane, box in enumerate(column.boxes):
            if box is not None:
                text = (
                    f"<b>{html.escape(column.stack)}</b> {_lines(box.label)}"
                    if box.row is None
                    else hover(box.row)
                )
                yield Bar(
                    box.kind,
                    lane,
                    offset,
                    long,
                    column.stack or box.label,
                    text,
                    box.open,
                    box.bad or box.failed,
                )


def _trace(kind: RowKind, bars: list[Bar]) -> go.Bar:
    edges = {
        "color": [EDGE if bar.wrong else OUTLINE for bar in bars],
        "width": [2.5 if bar.wrong else 0 if bar.open else 0.8 for bar in bars],
    }
    return go.Bar(
        x=[bar.lane + 0.45 for bar in bars], y=[bar.length for bar in bars], name=kind.value,
        base=[bar.begin for bar in bars], width=WIDE,
        text=[html.escape(bar.label, quote=False) for bar in bars],
        textposition="inside", insidetextanchor="middle", textangle=0, textfont={"size": 11, "color": BLACK},
        customdata=[bar.told for bar in bars], hovertemplate="%{customdata}<extra></extra>",
        marker={"color": FILLS[kind], "opacity": [0.45 if bar.open else 1.0 for bar in bars], "line": edges},
    )  # fmt: skip


def _signs(made: Scene, places: Sequence[tuple[float, float]]) -> Iterator[go.Scatter]:
    """The sign of inequality between calls that do not belong together."""
    for (offset, long), column in zip(places, made.columns, strict=True):
        lane_edges = [b - 0.03 for _, b in column.clashes]
        if lane_edges:
            yield go.Scatter(
                x=lane_edges, y=[offset + long / 2] * len(lane_edges),
                mode="markers+text", text=["≠"] * len(lane_edges),
                textfont={"color": BLACK}, showlegend=False,
                marker={"size": 17, "color": WHITE, "line": {"color": EDGE, "width": 2}},
                customdata=[_lines(column.said)] * len(lane_edges), hovertemplate="%{customdata}<extra></extra>",
            )  # fmt: skip


def hover(row: CallRow) -> str:
    """The tooltip of a call: one line per column."""
    facts = call_details(row, row["started_ns"] is not None)
    return "<br>".join(f"<b>{html.escape(name)}</b> {_lines(text)}" for name, text in facts)


def _lines(text: str) -> str:
    """Escaped and wrapped: Plotly reads tags in a label, and draws a long line out of the
    window."""
    return "<br>".join(
        html.escape(part) for line in text.splitlines() for part in wrap(line, 90) or [""]
    )
