"""The lanes as a Plotly figure, for people who want a picture that they can edit, combine and export.

It writes down the boxes of `scene`. The background is transparent and the text outside boxes is of a grey that reads on
white and on black alike: a figure does not know whether its notebook is light or dark.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping
from itertools import groupby
from math import inf
from textwrap import wrap
from typing import Any, NamedTuple

import plotly.graph_objects as go

from joinlab.analysis.reading import read
from joinlab.analysis.wording import sign, title
from joinlab.ops import CallRow
from joinlab.picture.columns import MARGIN
from joinlab.picture.details import call_details
from joinlab.picture.places import along
from joinlab.picture.rows import RowKind
from joinlab.picture.scene import Scene, scene
from joinlab.picture.theme import BLACK, EDGE, FILLS, INK, OUTLINE, WHITE, faded
from joinlab.timeline import Timeline

CONFIG: Mapping[str, Any] = {"showSendToCloud": False, "displaylogo": False, "responsive": True}
"""Pass it to `figure.show(config=...)`: without it Plotly offers to send the figure to a cloud service."""

CALL, HOST = (0.06, 0.84), (0.86, 0.94)  # where a lane's calls, and what its host did, lie in the room of the lane


class Bar(NamedTuple):
    """A box: its lane, its room there, from where to where it goes, what it says, and what it tells."""

    kind: RowKind
    lane: int
    room: tuple[float, float]
    begin: float
    end: float
    label: str
    told: str
    open: bool = False
    wrong: bool = False


def figure(timeline: Timeline, axis: str = "logical", setup: bool = False) -> go.Figure:
    """The lanes of a Timeline; of one with many calls, those that tell the story, and its title says so.

    axis   "logical": the calls that met beside each other, one below the other; "time": the recorded clock, in ms
    setup  True shows every call, instead of stacks of rounds in which all agree

    Raises ValueError for another axis.

        joinlab.figure(timeline, axis="time").show()
    """
    if axis not in ("logical", "time"):
        raise ValueError(f"axis must be 'logical' or 'time', not {axis!r}")
    time, found = axis == "time", read(timeline)
    made = scene(timeline, unfold=setup or time)
    bars, begin, end = _on_the_clock(timeline, made) if time else _in_order(made)
    part = f"; {len(found.told):,} of {found.count:,} rows: where ranks part, begin or end" if found.is_part else ""
    ends = (f"{sign(timeline.ends[ranks[0]])} {timeline.ends[ranks[0]]}" for ranks in made.ranks)
    said = zip(made.names, ends, strict=True)
    names = [f"<b>{name}</b><br>{'<br>'.join(wrap(html.escape(end), 26))}" for name, end in said]
    plain = {"showgrid": False, "zeroline": False, "ticks": ""}
    lanes = plain | {"tickvals": [at + 0.45 for at in range(len(names))], "ticktext": names, "fixedrange": True}
    lanes |= {"range": [0, len(names)], "side": "top"}
    clock = f"{'modelled' if timeline.meta.get('engine') == 'emulated' else 'recorded'} time, ms"
    following = plain | {"range": [end, begin], "showticklabels": time}
    following |= {"title": {"text": clock}, "showgrid": True, "gridcolor": faded(INK, 0.25)} if time else {}
    order = list(FILLS).index
    sorts = groupby(sorted(bars, key=lambda bar: order(bar.kind)), lambda bar: bar.kind)
    drawn = [_trace(kind, list(some)) for kind, some in sorts]
    layout = go.Layout(
        template="none", paper_bgcolor=faded(BLACK, 0), plot_bgcolor=faded(BLACK, 0), font={"color": INK, "size": 12},
        barmode="overlay", hovermode="closest", dragmode="pan", margin={"l": 110, "r": 20, "t": 110, "b": 60},
        title={"text": html.escape(title(timeline) + part), "x": 0.01, "y": 0.995, "yanchor": "top"},
        legend={"orientation": "h", "yanchor": "top", "y": -0.04}, xaxis=lanes, yaxis=following,
        height=180 + (900 if time else end - begin),
        width=110 * len(names) + 130 if len(names) > 8 else None,  # rather scroll than squeeze
    )  # fmt: skip
    return go.Figure([*drawn, *([] if time else _signs(made))], layout)


def _in_order(made: Scene) -> tuple[list[Bar], float, float]:
    places, length = along(made, inf, "column")
    bars = []
    for (at, long), one in zip(places, made.columns, strict=True):
        for lane, box in enumerate(one.boxes):
            if box is not None:
                label = one.stack or box.label
                told = f"<b>{html.escape(one.stack)}</b> {_lines(box.label)}" if box.row is None else hover(box.row)
                bars.append(Bar(box.kind, lane, CALL, at, at + long, label, told, box.open, box.bad or box.failed))
    return bars, 0.0, length or 1.0


def _on_the_clock(timeline: Timeline, made: Scene) -> tuple[list[Bar], float, float]:
    """Every call, and what the hosts did, in ms."""
    boxes = [(lane, box, box.row) for one in made.columns for lane, box in enumerate(one.boxes) if box and box.row]
    lane_of = {ranks[0]: lane for lane, ranks in enumerate(made.ranks)}
    spans = [span for span in timeline.rows("spans") if span["rank"] in lane_of]
    times = [at for *_, row in boxes for name, at in row.items() if name.endswith("_ns") and isinstance(at, int)]
    times += [at for span in spans for at in (span["begin_ns"], span["end_ns"]) if at is not None]
    begin, last = min(times, default=0) / 1e6, max(times, default=1) / 1e6
    end = last + max(last - begin, 1e-6) * MARGIN

    def ms(*some: int | None) -> float:
        """The first that is known."""
        return next((at / 1e6 for at in some if at is not None), end)

    bars = []
    for lane, box, row in boxes:
        waited, let_go = row["host_wait_begin_ns"], row["host_wait_end_ns"]
        from_ = ms(row["started_ns"], row["enqueued_ns"], waited, row["completed_ns"])
        to = ms(row["completed_ns"], let_go if box.failed else None)
        bars.append(Bar(box.kind, lane, CALL, from_, to, box.label, hover(row), box.open, box.bad or box.failed))
        if waited is not None:
            said = f"the host waits for {html.escape(box.label)}"
            bars.append(Bar(RowKind.WAIT, lane, HOST, ms(waited), ms(let_go), "", said, let_go is None))
    for span in spans:
        name, place = html.escape(str(span["name"])), (ms(span["begin_ns"]), ms(span["end_ns"]))
        bars.append(Bar(RowKind.SPAN, lane_of[span["rank"]], HOST, *place, "", name, span["end_ns"] is None))
    return bars, begin, end


def _trace(kind: RowKind, bars: list[Bar]) -> go.Bar:
    edges = {
        "color": [EDGE if bar.wrong else OUTLINE for bar in bars],
        "width": [2.5 if bar.wrong else 0 if bar.open else 0.8 for bar in bars],
    }
    return go.Bar(
        x=[bar.lane + sum(bar.room) / 2 for bar in bars], y=[bar.end - bar.begin for bar in bars], name=kind.value,
        base=[bar.begin for bar in bars], width=[bar.room[1] - bar.room[0] for bar in bars],
        text=[html.escape(bar.label, quote=False) for bar in bars],
        textposition="inside", insidetextanchor="middle", textangle=0, textfont={"size": 11, "color": BLACK},
        customdata=[bar.told for bar in bars], hovertemplate="%{customdata}<extra></extra>",
        marker={"color": FILLS[kind], "opacity": [0.45 if bar.open else 1.0 for bar in bars], "line": edges},
    )  # fmt: skip


def _signs(made: Scene) -> Iterator[go.Scatter]:
    """The sign of inequality between calls that do not belong together."""
    places, _ = along(made, inf, "column")
    for (at, long), one in zip(places, made.columns, strict=True):
        beside = [b - 0.03 for _, b in one.clashes]
        if beside:
            yield go.Scatter(
                x=beside, y=[at + long / 2] * len(beside), mode="markers+text", text=["≠"] * len(beside),
                textfont={"color": BLACK}, showlegend=False,
                marker={"size": 17, "color": WHITE, "line": {"color": EDGE, "width": 2}},
                customdata=[_lines(one.said)] * len(beside), hovertemplate="%{customdata}<extra></extra>",
            )  # fmt: skip


def hover(row: CallRow) -> str:
    """The tooltip of a call: every column, one a line."""
    facts = call_details(row, row["started_ns"] is not None)
    return "<br>".join(f"<b>{html.escape(name)}</b> {_lines(text)}" for name, text in facts)


def _lines(text: str) -> str:
    """Escaped and wrapped: Plotly reads tags in a label, and draws a long line out of the window."""
    return "<br>".join(html.escape(part) for line in text.splitlines() for part in wrap(line, 90) or [""])
