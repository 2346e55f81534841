"""The swimlanes as a Plotly figure, for people who want a picture that they can edit, combine and export.

It writes down the boxes of `lanes` and decides nothing itself. The background is transparent and the text outside boxes
is of a grey that reads on white and on black alike: a figure does not know whether its notebook is light or dark.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Mapping
from textwrap import wrap
from typing import Any

import plotly.graph_objects as go

from joinlab.analysis.reading import read
from joinlab.analysis.wording import good, title
from joinlab.picture.lanes import NARROW, Box, Lane, Lanes, lanes
from joinlab.picture.layout import HOST, STREAM, cap_lines, middle, outlines, sides
from joinlab.picture.rows import RowKind
from joinlab.picture.theme import BAND, BAND_NAMES, BAND_OPACITY, BLACK, EDGE, INK, OUTLINE, STYLES, WHITE, WRONG, faded
from joinlab.timeline import Timeline

CONFIG: Mapping[str, Any] = {"showSendToCloud": False, "displaylogo": False, "responsive": True}
"""Pass it to `figure.show(config=...)`: without it Plotly offers to send the figure to a cloud service."""

ROW, LONGEST = 24, 1200  # px of a row, and of the clock
PLATE = {"showarrow": False, "bordercolor": OUTLINE, "borderpad": 3, "font": {"size": 12, "color": BLACK}}


def figure(timeline: Timeline, axis: str = "logical", ranks_as: str = "columns", setup: bool = False) -> go.Figure:
    """The swimlanes of a Timeline; of one with many calls, those that tell the story, and its title says so.

    axis      "logical": one row per set of calls that met; "time": the recorded clock, in ms
    ranks_as  "columns": ranks side by side, the axis runs down; "rows": the axis runs to the right
    setup     True shows the calls of DDP's construction and bucket rebuild one by one, instead of folded

    Raises ValueError for another axis or arrangement.

        joinlab.figure(timeline, axis="time").show()
    """
    if ranks_as not in ("columns", "rows"):
        raise ValueError(f"ranks_as must be 'columns' or 'rows', not {ranks_as!r}")
    made, found = draw(lanes(timeline, axis, setup), ranks_as), read(timeline)
    part = f"; {len(found.told):,} of {found.count:,} rows: where ranks part, begin or end" if found.is_part else ""
    made.update_layout(title={"text": html.escape(title(timeline) + part), "x": 0.01, "y": 0.995, "yanchor": "top"})
    return made


def draw(picture: Lanes, ranks_as: str = "columns") -> go.Figure:
    """Draw lanes as a figure without a title."""
    return _Drawing(picture, ranks_as == "columns").figure()


class _Drawing:
    """Turns places along the axis, and across the ranks, into x and y of either arrangement."""

    def __init__(self, picture: Lanes, down: bool) -> None:
        self.picture, self.down, self.rows = picture, down, picture.unit == "rows"
        extent = picture.end - picture.begin
        self.scale = 1.0 if self.rows else 1e-6 if extent >= 2e6 else 1e-3
        self.length = extent * ROW if self.rows else LONGEST  # px
        self.short = picture.world_size >= NARROW or not down

    def at(self, across: Iterable[float | None], along: Iterable[float | None]) -> dict[str, Any]:
        scaled = [None if one is None else one * self.scale for one in along]
        return dict(zip("xy" if self.down else "yx", (list(across), scaled), strict=True))

    def figure(self) -> go.Figure:
        picture, size = self.picture, self.picture.world_size
        clock = f"{'modelled' if picture.modelled else 'recorded'} time, {'ms' if self.scale == 1e-6 else 'µs'}"
        span = [picture.begin * self.scale, (picture.end + (picture.end - picture.begin) * 0.08) * self.scale]
        plain = {"ticks": "", "showgrid": False, "zeroline": False}
        groups = [group for group in picture.groups if group.rank is None]
        inputs: dict[str, Any] = {"tickvals": [(one.begin + one.end) / 2 for one in groups]}
        said = [one.label if self.down else "<br>".join(wrap(one.label, 8)) for one in groups]
        inputs |= {"ticktext": said, "tickangle": 0, "automargin": True}
        along = {**plain, "range": span[::-1] if self.down else span}
        along |= inputs if self.rows else {"title": {"text": clock}, "showgrid": True, "gridcolor": faded(BAND, 0.25)}
        ticks: dict[float, str] = {at + sum(STREAM) / 2: f"<b>{name}</b>" for at, name in enumerate(picture.lanes)}
        ticks.update({} if size >= NARROW else {rank + sum(HOST) / 2: "host" for rank in range(size)})
        across = {**plain, "range": [0, size] if self.down else [size, 0], "fixedrange": True}
        across |= {"tickvals": sorted(ticks), "ticktext": [ticks[at] for at in sorted(ticks)]}
        far, wide = self.length * 1.08 + 180, 110 * size if size > 8 else None  # rather scroll than squeeze
        layout = go.Layout(
            template="none",
            paper_bgcolor=faded(BLACK, 0),
            plot_bgcolor=faded(BLACK, 0),
            font={"color": INK, "size": 12},
            barmode="overlay",
            hovermode="closest",
            hoverlabel={"align": "left", "bgcolor": WHITE, "font": {"color": BLACK}},
            legend={"orientation": "h", "yanchor": "bottom", "y": 1.0 if not self.down else 1 + 26 / far},
            dragmode="pan",
            margin={"l": 90, "r": 20, "t": 130, "b": 50},
            xaxis={**across, "side": "top"} if self.down else along,
            yaxis=along if self.down else across,
            height=far if self.down else 130 * size + 180,
            width=wide if self.down else max(900, far),
            shapes=list(self._shapes()),
            annotations=[*self._notes(), *self._caps()],
        )
        return go.Figure(data=[*self._bands(), *self._bars(), *self._signs()], layout=layout)

    def _bars(self) -> Iterator[go.Bar]:
        for kind, (color, pattern) in STYLES.items():
            boxes = [box for box in self.picture.boxes if box.kind is kind]
            if not boxes:
                continue
            middles = [box.rank + sum(sides(box)) / 2 for box in boxes]
            yield go.Bar(
                **self.at(middles, [box.end - box.begin for box in boxes]),
                base=[box.begin * self.scale for box in boxes],
                width=[sides(box)[1] - sides(box)[0] for box in boxes],
                orientation="v" if self.down else "h",
                text=[self._text(box) for box in boxes],
                textposition="inside",
                insidetextanchor="middle",
                textangle=0 if self.down else -90,
                textfont={"size": 11, "color": BLACK},
                customdata=[hover(box) for box in boxes],
                hovertemplate="%{customdata}<extra></extra>",
                name=kind.value,
                marker={
                    "color": color,
                    "opacity": [0.45 if box.open else 1.0 for box in boxes],  # it never completes
                    "pattern": {"shape": pattern, "fgcolor": faded(BLACK, 0.16), "bgcolor": color},
                    "line": {
                        "color": [EDGE if box.bad or box.failed else OUTLINE for box in boxes],
                        "width": [0 if box.open else 2.5 if box.bad or box.failed else 0.8 for box in boxes],
                    },
                },
            )

    def _text(self, box: Box) -> str:
        high = (box.end - box.begin) / (self.picture.end - self.picture.begin) * self.length
        if high < 11 or box.kind is RowKind.WAIT or (box.lane is Lane.HOST and self.short):
            return ""
        label = box.short if self.short or box.lane is Lane.HOST or box.tracks > 1 else box.label
        return html.escape(label if self.down or len(label) < 20 else f"{label[:18]}…", quote=False)

    def _bands(self) -> Iterator[go.Scatter]:
        for (bad, met), name in BAND_NAMES.items():
            bands = [band for band in self.picture.bands if (band.bad, band.met) == (bad, met)]
            around = [corner for band in bands for one in outlines(band) for corner in (*one, one[0], (None, None))]
            if around:
                line = {"color": EDGE, "width": 2} if bad else {"color": faded(BAND, 0.8), "width": 0.8}
                fill = faded(WRONG if bad else BAND, BAND_OPACITY[bad, met])
                yield go.Scatter(
                    **self.at(*zip(*around, strict=True)), mode="lines", fill="toself", fillcolor=fill,
                    hoverinfo="skip", line=line | {"dash": "solid" if met else "dash"}, name=name, zorder=-1,
                )  # fmt: skip

    def _signs(self) -> Iterator[go.Scatter]:
        """The sign of inequality on every band that joins what should not have met."""
        bands = [band for band in self.picture.bands if band.bad]
        if bands:
            yield go.Scatter(
                **self.at(*zip(*map(middle, bands), strict=True)), mode="markers+text", text=["≠"] * len(bands),
                marker={"size": 17, "color": WHITE, "line": {"color": EDGE, "width": 2}}, textfont={"color": BLACK},
                customdata=[_lines(band.text, 90) for band in bands], hovertemplate="%{customdata}<extra></extra>",
                showlegend=False, zorder=3,
            )  # fmt: skip

    def _shapes(self) -> Iterator[dict[str, Any]]:
        names = ("x0", "x1", "y0", "y1") if self.down else ("y0", "y1", "x0", "x1")
        for cap in self.picture.caps:
            for (low, high), opacity in ((STREAM, 0.10), (HOST, 0.16)):
                place = (cap.rank + low, cap.rank + high, self.picture.begin * self.scale, cap.at * self.scale)
                look = {"type": "rect", "layer": "below", "fillcolor": faded(BAND, opacity), "line": {"width": 0}}
                yield look | dict(zip(names, place, strict=True))

    def _notes(self) -> Iterator[dict[str, Any]]:
        for note in self.picture.notes if self.down else ():  # sideways the tooltips of the signs say it
            place = {"x": (note.rank or 0) + STREAM[0], "y": (note.begin + note.end) / 2 * self.scale}
            text = html.escape(note.text, quote=False).replace("\n", "<br>")
            yield {**PLATE, **place, "xanchor": "left", "align": "left", "text": text, "bgcolor": WHITE}

    def _caps(self) -> Iterator[dict[str, Any]]:
        for cap in self.picture.caps:
            (x,), (y,) = self.at([cap.rank + sum(STREAM) / 2], [cap.at]).values()
            place = {"x": x, "y": y, "yanchor": "top"} if self.down else {"x": y, "y": x, "xanchor": "left"}
            text = "<br>".join(map(html.escape, cap_lines(cap, 26 if self.short else 48)))
            color = WHITE if good(cap.ending) else WRONG
            yield {**PLATE, **place, "text": text, "hovertext": _lines(cap.text, 90), "bgcolor": color}


def hover(box: Box) -> str:
    """The tooltip of a box: every column of its call, one a line."""
    return "<br>".join(f"<b>{html.escape(name)}</b> {_lines(text, 100)}" for name, text in box.details)


def _lines(text: str, width: int) -> str:
    """Escaped and wrapped: Plotly reads tags in a label, and draws a long line out of the window."""
    lines = [part for line in text.splitlines() for part in wrap(line, width) or [""]]
    return "<br>".join(map(html.escape, lines))
