"""The swimlanes as a Plotly figure, for people who want a picture that they can edit, combine and export.

This module draws what `lanes` has laid out and decides nothing itself but colours and pixels. The background
is transparent and the text outside boxes is of a grey that reads on white and on black alike, because a figure does
not know whether it will be shown in a light or a dark notebook.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from textwrap import wrap
from typing import Any

import plotly.graph_objects as go

from joinlab.analysis.reading import read
from joinlab.analysis.wording import good, title
from joinlab.picture.blocks import gathered, with_the_rest
from joinlab.picture.lanes import NARROW, Box, Lane, Lanes, lanes
from joinlab.picture.layout import HOST, STREAM, cap_lines, middle, outlines, sides
from joinlab.picture.rows import RowKind
from joinlab.picture.theme import (
    BAND,
    BAND_NAMES,
    BAND_OPACITY,
    BLACK,
    COMPLAINT,
    EDGE,
    INK,
    OUTLINE,
    PLATE,
    QUIET_EDGE,
    STYLES,
    WHITE,
    WRONG,
    faded,
)
from joinlab.timeline import Timeline

CONFIG: Mapping[str, Any] = {"showSendToCloud": False, "displaylogo": False, "responsive": True}
"""Pass it to `figure.show(config=...)`: without it Plotly offers to send the figure to a cloud service."""

HATCHING = {"fgcolor": faded(BLACK, 0.16), "fgopacity": 1, "size": 7, "solidity": 0.2}

LONGEST = 1200.0  # px of the clock, at most
CAPS = 46  # px below the lanes, for how each rank ended
FADE = (0.85, 0.65, 0.48, 0.32, 0.18, 0.08)  # opacities with which a call that never completes runs out


def figure(timeline: Timeline, axis: str = "logical", ranks_as: str = "columns", setup: bool = False) -> go.Figure:
    """The swimlanes of a Timeline.

    axis      "logical": one row per set of calls that met; "time": the recorded clock, in ms
    ranks_as  "columns": ranks side by side, the axis runs down; "rows": the axis runs to the right
    setup     True shows the calls of DDP's construction and bucket rebuild one by one, instead of folded

    Raises ValueError for another axis or arrangement.

        joinlab.figure(timeline, axis="time").show()
    """
    if ranks_as not in ("columns", "rows"):
        raise ValueError(f"ranks_as must be 'columns' or 'rows', not {ranks_as!r}")
    picture = lanes(timeline, axis, setup)
    if axis == "time":
        per_px = (picture.end - picture.begin) / LONGEST
        part = read(timeline).is_part
        picture = with_the_rest(picture, timeline, per_px) if part else gathered(picture, per_px)
    made = draw(picture, ranks_as)
    made.update_layout(
        title={"text": html.escape(title(timeline)), "x": 0.01, "y": 0.995, "yanchor": "top", "font": {"size": 15}}
    )
    return made


def draw(picture: Lanes, ranks_as: str = "columns") -> go.Figure:
    """Draw lanes as a figure without a title."""
    return _Drawing(picture, ranks_as == "columns").figure()


class _Drawing:
    """Turns positions along the axis, and across the ranks, into x and y of either arrangement."""

    def __init__(self, picture: Lanes, down: bool) -> None:
        self.picture = picture
        self.down = down
        self.narrow = picture.world_size >= NARROW
        per_unit = 1 if picture.unit == "rows" else 1e6 if picture.end - picture.begin >= 2e6 else 1e3
        self.clock = "ms" if per_unit == 1e6 else "µs"
        self.scale = 1 / per_unit
        extent = (picture.end - picture.begin) * self.scale
        if picture.unit == "rows":
            self.length = extent * (21 if self.narrow else 24)  # px
        else:
            self.length = max(420.0, min(LONGEST, 34.0 * len({box.slot for box in picture.boxes})))
        if not down:
            self.length = max(900.0, self.length)
        self.per_px = extent / self.length

    def figure(self) -> go.Figure:
        traces = [*self._bands(), *self._bars(), *self._fades(), *self._signs()]
        layout = go.Layout(
            template="none",
            paper_bgcolor=faded(BLACK, 0),
            plot_bgcolor=faded(BLACK, 0),
            font={"color": INK, "size": 12},
            barmode="overlay",
            bargap=0,
            hovermode="closest",
            hoverlabel={"align": "left", "bgcolor": WHITE, "bordercolor": OUTLINE, "font": {"color": BLACK}},
            legend={"orientation": "h", "yanchor": "bottom", "y": 1.0, "x": 0, "itemclick": False},
            dragmode="pan",
            shapes=list(self._shapes()),
            annotations=[*self._notes(), *self._inputs(), *self._caps()],
        )
        if self.picture.unit == "ns":  # short calls: rather no label than one that nobody can read
            layout.update(uniformtext={"minsize": 9, "mode": "hide"})
        legend_rows = -(-len([trace for trace in traces if trace.showlegend is not False]) // 4)
        top = 60 + 20 * legend_rows
        along = self._along_axis()
        across = self._across_axis()
        if self.down:
            height = self.length + CAPS + top + 12
            layout.update(xaxis=across, yaxis=along, height=height, margin={"l": 90, "r": 12, "t": top, "b": 12})
            layout.update(legend_y=1 + 26 / (self.length + CAPS))
            if self.picture.world_size > 8:  # rather scroll than squeeze
                layout.width = 102 + 110 * self.picture.world_size
        else:
            per_rank = 110 if self.narrow else 190
            height = per_rank * self.picture.world_size + top + 50
            layout.update(xaxis=along, yaxis=across, height=height, margin={"l": 70, "r": 20, "t": top, "b": 50})
            if self.length > 900:
                layout.width = self.length + 220
        return go.Figure(data=traces, layout=layout)

    # --- axes

    def _along_axis(self) -> dict[str, Any]:
        picture, scale = self.picture, self.scale
        below = (CAPS if self.down else 130) * self.per_px
        span = [picture.begin * scale, picture.end * scale + below]
        axis: dict[str, Any] = {"range": span[::-1] if self.down else span, "showgrid": False, "zeroline": False}
        if picture.unit == "rows":
            groups = [group for group in picture.groups if group.rank is None]
            axis |= {
                "tickvals": [(group.begin + group.end) / 2 for group in groups],
                "ticktext": ["<br>".join(wrap(group.label, 13)) for group in groups],
                "ticks": "",
            }
        else:
            clock = "modelled time" if picture.modelled else "recorded time"
            axis |= {
                "title": {"text": f"{clock}, {self.clock}"},
                "ticks": "outside",
                "tickcolor": INK,
                "showgrid": True,
            }
            axis |= {"gridcolor": faded(BAND, 0.25), "nticks": 12}
        return axis

    def _across_axis(self) -> dict[str, Any]:
        n = self.picture.world_size
        ticks = [(rank + (sum(STREAM) / 2), f"<b>{name}</b>") for rank, name in enumerate(self.picture.lanes)]
        if not self.narrow:
            ticks = sorted(ticks + [(rank + sum(HOST) / 2, "host") for rank in range(n)])
        axis = {
            "range": [0, n] if self.down else [n, 0],
            "tickvals": [at for at, _ in ticks],
            "ticktext": [text for _, text in ticks],
            "ticks": "",
            "showgrid": False,
            "zeroline": False,
            "fixedrange": True,
        }
        return axis | ({"side": "top"} if self.down else {})

    # --- boxes

    def _bars(self) -> Iterable[go.Bar]:
        for kind, (color, pattern) in STYLES.items():
            boxes = [box for box in self.picture.boxes if box.kind is kind]
            boxes.sort(key=lambda box: box.open or box.bad or box.failed)  # the first one is what the legend shows
            if not boxes:
                continue
            yield self._bar(
                boxes,
                [(box.begin, self._solid(box)) for box in boxes],
                text=[self._text(box) for box in boxes],
                textfont={"size": 11, "color": BLACK},
                insidetextanchor="middle",
                name=kind.value,
                marker={
                    "color": color,
                    "pattern": {"shape": pattern, "bgcolor": color, **HATCHING},
                    "line": {
                        "color": [EDGE if box.bad or box.failed else faded(BLACK, 0.6) for box in boxes],
                        "width": [0 if box.open else 2.5 if box.bad or box.failed else 0.8 for box in boxes],
                    },
                },
                zorder=0 if kind is RowKind.FOLD else 1,  # a block of many lies behind the few within it
            )

    def _fades(self) -> Iterable[go.Bar]:
        """What never completes is drawn solid at first, then in slices that fade out."""
        boxes, places, colors = [], [], []
        for box in self.picture.boxes:
            if not box.open:
                continue
            top = self._solid(box)
            cuts = [top + (box.end - top) * i / len(FADE) for i in range(len(FADE) + 1)]
            for i, opacity in enumerate(FADE):
                boxes.append(box)
                places.append((cuts[i], cuts[i + 1]))
                colors.append(faded(STYLES[box.kind][0], opacity))
        if boxes:
            marker = {"color": colors, "line": {"width": 0}}
            yield self._bar(boxes, places, marker=marker, name="never completes", showlegend=False, zorder=1)

    def _solid(self, box: Box) -> float:
        """Where the part of a box ends that is drawn solid."""
        return box.end - min((box.end - box.begin) * 0.6, 14 * self.per_px / self.scale) if box.open else box.end

    def _bar(self, boxes: Sequence[Box], places: Sequence[tuple[float, float]], **more: Any) -> go.Bar:
        edges = [sides(box) for box in boxes]
        middle = [box.rank + (low + high) / 2 for box, (low, high) in zip(boxes, edges, strict=True)]
        length = [(end - begin) * self.scale for begin, end in places]
        return go.Bar(
            x=middle if self.down else length,
            y=length if self.down else middle,
            base=[begin * self.scale for begin, _ in places],
            width=[high - low for low, high in edges],
            orientation="v" if self.down else "h",
            textposition="inside",
            textangle=0 if self.down else -90,
            constraintext="inside",
            customdata=[hover(box) for box in boxes],
            hovertemplate="%{customdata}<extra></extra>",
            **more,
        )

    def _text(self, box: Box) -> str:
        px = (box.end - box.begin) * self.scale / self.per_px
        if px < 11 or box.kind is RowKind.WAIT or (box.lane is Lane.HOST and (self.narrow or not self.down)):
            return ""
        label = box.short if self.narrow or not self.down or box.lane is Lane.HOST or box.tracks > 1 else box.label
        limit = (18 if self.narrow else 60 if self.down else 26) // box.tracks
        return html.escape(label if len(label) <= limit else label[: limit - 1] + "…", quote=False)

    # --- what met

    def _bands(self) -> Iterable[go.Scatter]:
        for bad, met in ((False, True), (True, True), (True, False)):
            x: list[float | None] = []
            y: list[float | None] = []
            for band in self.picture.bands:
                if (band.bad, band.met) != (bad, met):
                    continue
                for outline in outlines(band):
                    around = [*outline, outline[0]]
                    x += [across for across, _ in around] + [None]
                    y += [along * self.scale for _, along in around] + [None]
            if x:
                color = faded(WRONG if bad else BAND, BAND_OPACITY[bad, met])
                line = {"color": EDGE, "width": 2} if bad else {"color": faded(BAND, 0.8), "width": 0.8}
                yield go.Scatter(
                    x=x if self.down else y,
                    y=y if self.down else x,
                    mode="lines",
                    fill="toself",
                    fillcolor=color,
                    line=line | {"dash": "solid" if met else "dash"},
                    hoverinfo="skip",
                    name=BAND_NAMES[bad, met],
                    zorder=0,
                )

    def _signs(self) -> Iterable[go.Scatter]:
        """The sign of inequality on every band that joins what should not have met."""
        bands = [band for band in self.picture.bands if band.bad]
        if not bands:
            return
        x = [middle(band)[0] for band in bands]
        y = [middle(band)[1] * self.scale for band in bands]
        yield go.Scatter(
            x=x if self.down else y,
            y=y if self.down else x,
            mode="markers+text",
            marker={"size": 17, "color": WHITE, "line": {"color": EDGE, "width": 2}},
            text=["≠"] * len(bands),
            textfont={"color": BLACK, "size": 14},
            customdata=[_lines(band.text, 90) for band in bands],
            hovertemplate="%{customdata}<extra></extra>",
            showlegend=False,
            zorder=3,
        )

    # --- around the boxes

    def _shapes(self) -> Iterable[dict[str, Any]]:
        picture = self.picture
        for cap in picture.caps:
            for (low, high), opacity in ((STREAM, 0.10), (HOST, 0.16)):
                yield self._shape("rect", (cap.rank + low, cap.rank + high), (picture.begin, cap.at)) | {
                    "fillcolor": faded(BAND, opacity),
                    "line": {"width": 0},
                }
        for group in picture.groups:
            across = (0, picture.world_size) if group.rank is None else (group.rank, group.rank + 1)
            line = {"color": faded(BAND, 0.7), "width": 1, "dash": "dot"}
            shape = self._shape("line", across, (group.begin, group.begin)) | {"line": line}
            yield shape

    def _shape(self, kind: str, across: tuple[float, float], along: tuple[float, float]) -> dict[str, Any]:
        begin, end = (at * self.scale for at in along)
        names = ("x0", "x1", "y0", "y1") if self.down else ("y0", "y1", "x0", "x1")
        return {"type": kind, "layer": "below", **dict(zip(names, (*across, begin, end), strict=True))}

    def _notes(self) -> Iterable[dict[str, Any]]:
        if not self.down:  # sideways there is no room for a sentence: it is in the tooltip of the sign
            return
        for note in self.picture.notes:
            yield {
                "x": (note.rank or 0) + STREAM[0],
                "xanchor": "left",
                "y": (note.begin + note.end) / 2,
                "yanchor": "middle",
                "align": "left",
                "showarrow": False,
                "text": html.escape(note.text, quote=False).replace("\n", "<br>"),
                "font": {"size": 11, "color": BLACK},
                "bgcolor": COMPLAINT if note.bad else PLATE,
                "bordercolor": WRONG if note.bad else QUIET_EDGE,
                "borderpad": 1,
            }

    def _inputs(self) -> Iterable[dict[str, Any]]:
        """On the time axis each rank comes to an input in its own time: said in the gap beside its lanes."""
        for group in self.picture.groups:
            if group.rank is None or self.narrow or not self.down:
                continue
            yield {
                "x": group.rank + 1,
                "xanchor": "right",
                "y": group.begin * self.scale,
                "yanchor": "top",
                "showarrow": False,
                "text": html.escape(group.label),
                "font": {"size": 9, "color": BLACK},
                "bgcolor": faded(WHITE, 0.85),
                "borderpad": 1,
            }

    def _caps(self) -> Iterable[dict[str, Any]]:
        for cap in self.picture.caps:
            text = "<br>".join(map(html.escape, cap_lines(cap, 26 if self.narrow else 48)))
            center, at = cap.rank + sum(STREAM) / 2, cap.at * self.scale
            if self.down:
                place = {"x": center, "y": at, "yanchor": "top", "yshift": -4}
            else:
                place = {"x": at, "y": center, "xanchor": "left", "xshift": 4}
            yield place | {
                "text": text,
                "hovertext": _lines(cap.text, 90),
                "showarrow": False,
                "font": {"size": 12, "color": BLACK},
                "bgcolor": WHITE if good(cap.ending) else WRONG,
                "bordercolor": OUTLINE,
                "borderpad": 3,
            }


def hover(box: Box) -> str:
    """The tooltip of a box: every column of its call, one a line."""
    return "<br>".join(f"<b>{html.escape(name)}</b> {_lines(text, 100)}" for name, text in box.details)


def _lines(text: str, width: int) -> str:
    """Escaped and wrapped: Plotly reads tags in a label, and draws a long line out of the window."""
    lines = [part for line in text.splitlines() for part in wrap(line, width) or [""]]
    return "<br>".join(map(html.escape, lines))
