"""The swimlanes as one static SVG picture, for places where no script runs: GitHub, a printed notebook, a mail.

It draws the same lanes as the Plotly figure, with the same colours, and carries every column of a call as a tooltip.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from textwrap import wrap

from joinlab.analysis.wording import good, shown
from joinlab.picture.lanes import NARROW, Box, Lane, Lanes
from joinlab.picture.layout import HOST, STREAM, cap_lines, middle, outlines, sides
from joinlab.picture.rows import RowKind
from joinlab.picture.theme import BAND, BAND_OPACITY, BLACK, COMPLAINT, EDGE, INK, OUTLINE, PLATE, STYLES, WHITE, WRONG

LEFT, TOP, CAPS = 100, 30, 46  # px beside, above and below the lanes
ROW = 24  # px a row
CHARACTER = 6.3  # px a character at font size 11, at most: what does not fit is cut


def svg(picture: Lanes, name: str = "joinlab", width: int = 980, tooltips: bool = True, heading: str = "") -> str:
    """The picture as an <svg> element.

    name      prefix of the ids in it; two pictures on one page need two names
    width     px; it shrinks to the width of the page. Eight ranks need about 1200
    tooltips  False leaves out the columns of the calls, which are most of the bytes
    heading   what to say above the lanes
    """
    return shown("".join(_Picture(picture, name, width, tooltips, heading).parts()))


class _Picture:
    def __init__(self, picture: Lanes, name: str, width: int, tooltips: bool, heading: str) -> None:
        self.picture = picture
        self.tooltips = tooltips
        self.name = escape(name, quote=True)
        self.narrow = picture.world_size >= NARROW
        self.column = max((width - LEFT) / max(picture.world_size, 1), 110.0)
        self.width = LEFT + self.column * picture.world_size
        extent = picture.end - picture.begin
        length = extent * ROW if picture.unit == "rows" else 700.0
        self.px = length / extent
        self.heading = wrap(heading, int(self.width / CHARACTER))
        self.top = TOP + 15 * len(self.heading)
        self.height = self.top + length + CAPS

    def parts(self) -> Iterator[str]:
        picture, n = self.picture, self.picture.world_size
        yield (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width:.0f} {self.height:.0f}" '
            f'width="{self.width:.0f}" height="{self.height:.0f}" style="max-width:100%;height:auto" role="img" '
            f'aria-label="Swimlanes of {n} rank{"s" * (n != 1)}" '
            f'font-family="system-ui, sans-serif" font-size="11" fill="{INK}">'
        )
        yield from self._hatchings()
        for i, line in enumerate(self.heading):
            yield f'<text x="4" y="{14 + 15 * i}">{escape(line)}</text>'
        for cap in picture.caps:
            for (low, high), opacity in ((STREAM, 0.10), (HOST, 0.16)):
                yield self._rect(cap.rank + low, cap.rank + high, picture.begin, cap.at, fill=INK, opacity=opacity)
            x, name = self._x(cap.rank + sum(STREAM) / 2), escape(picture.lanes[cap.rank])
            yield f'<text x="{x:.1f}" y="{self.top - 10}" text-anchor="middle">{name}</text>'
        yield from self._groups()
        yield from self._bands()
        for box in picture.boxes:
            yield from self._box(box)
        yield from self._words()
        yield "</svg>"

    def _hatchings(self) -> Iterator[str]:
        yield "<defs>"
        for kind, (color, pattern) in STYLES.items():
            line = {"/": "M0 7L7 0", "x": "M0 7L7 0M0 0L7 7", "-": "M0 3H7", ".": "M3 3h1"}.get(pattern)
            if line:
                yield (
                    f'<pattern id="{self._id(kind)}" width="7" height="7" patternUnits="userSpaceOnUse">'
                    f'<rect width="7" height="7" fill="{color}"/>'
                    f'<path d="{line}" stroke="{BLACK}" stroke-opacity="0.2" fill="none"/></pattern>'
                )
        yield "</defs>"

    def _id(self, kind: RowKind) -> str:
        return f"{self.name}-{kind.name.lower()}"

    def _fill(self, kind: RowKind) -> str:
        color, pattern = STYLES[kind]
        return f"url(#{self._id(kind)})" if pattern else color

    def _x(self, across: float) -> float:
        return LEFT + across * self.column

    def _y(self, along: float) -> float:
        return self.top + (along - self.picture.begin) * self.px

    def _rect(self, left: float, right: float, begin: float, end: float, **more: object) -> str:
        x, y = self._x(left), self._y(begin)
        attributes = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in more.items())
        return (
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{self._x(right) - x:.1f}" '
            f'height="{max(self._y(end) - y, 0.5):.1f}"{attributes}/>'
        )

    def _groups(self) -> Iterator[str]:
        for group in self.picture.groups:
            if group.rank is None:
                top, middle = self._y(group.begin), self._y((group.begin + group.end) / 2)
                yield f'<path d="M0 {top:.1f}H{self.width:.0f}" stroke="{INK}" stroke-dasharray="2 3"/>'
                lines = wrap(group.label, 14)
                for i, line in enumerate(lines):
                    y = middle + 4 + 13 * (i - (len(lines) - 1) / 2)
                    yield f'<text x="{LEFT - 8}" y="{y:.1f}" text-anchor="end">{escape(line)}</text>'

    def _bands(self) -> Iterator[str]:
        for band in self.picture.bands:
            color = WRONG if band.bad else BAND
            edge = f' stroke="{EDGE}" stroke-width="2"' + ("" if band.met else ' stroke-dasharray="6 4"')
            fill = f'fill="{color}" fill-opacity="{BAND_OPACITY[band.bad, band.met]}"'
            for outline in outlines(band):
                points = " ".join(f"{self._x(across):.1f},{self._y(along):.1f}" for across, along in outline)
                if len(outline) > 2:
                    yield f'<polygon points="{points}" {fill}{edge * band.bad}/>'
                else:
                    yield f'<polyline points="{points}" stroke="{color}" stroke-width="1.5" stroke-dasharray="2 3"/>'
            if band.bad:
                across, along = middle(band)
                x, y = self._x(across), self._y(along)
                yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="8" fill="{WHITE}" stroke="{EDGE}" stroke-width="2"/>'
                yield f'<text x="{x:.1f}" y="{y + 4:.1f}" text-anchor="middle" fill="{BLACK}">≠</text>'

    def _box(self, box: Box) -> Iterator[str]:
        left, right = (box.rank + side for side in sides(box))
        told = escape("\n".join(f"{name}: {text}" for name, text in box.details))
        yield f"<g><title>{told}</title>" if self.tooltips else "<g>"
        if box.open:  # what never completes has no lower edge, and fades out
            solid = box.end - (box.end - box.begin) * 0.4
            yield self._rect(left, right, box.begin, solid, fill=self._fill(box.kind))
            for i in range(5):
                cuts = [solid + (box.end - solid) * at / 5 for at in (i, i + 1)]
                yield self._rect(left, right, *cuts, fill=STYLES[box.kind][0], opacity=round(0.8 - 0.17 * i, 2))
        else:
            wrong = box.bad or box.failed
            edge = {"stroke": EDGE if wrong else OUTLINE, "stroke_width": 2.5 if wrong else 0.8}
            yield self._rect(left, right, box.begin, box.end, fill=self._fill(box.kind), **edge)
        room = int((self._x(right) - self._x(left)) / CHARACTER)
        high = self._y(box.end) - self._y(box.begin) >= 12
        if box.kind is not RowKind.WAIT and high and not (self.narrow and box.lane is Lane.HOST):
            label = box.label if len(box.label) <= room else box.short
            label = label if len(label) <= room else label[: max(room - 1, 0)] + "…"
            ink = BLACK
            x = self._x((left + right) / 2)
            y = (self._y(box.begin) + min(self._y(box.end), self._y(box.begin) + (20 if box.open else 9e9))) / 2 + 4
            yield f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="middle" fill="{ink}">{escape(label)}</text>'
        yield "</g>"

    def _words(self) -> Iterator[str]:
        for note in self.picture.notes:
            yield from self._plate(
                self._x((note.rank or 0) + STREAM[0]),
                self._y(note.begin),
                note.text.splitlines(),
                PLATE if not note.bad else COMPLAINT if note.line == note.whole else WHITE,
            )
        for cap in self.picture.caps:
            lines = cap_lines(cap, 16 if self.narrow else 48)
            fill = WHITE if good(cap.ending) else WRONG
            x = self._x(cap.rank + sum(STREAM) / 2) - max(map(len, lines)) * CHARACTER / 2
            yield from self._plate(x, self._y(cap.at) + 4, lines, fill)

    def _plate(self, x: float, y: float, lines: list[str], fill: str) -> Iterator[str]:
        width = max(map(len, lines)) * CHARACTER
        yield (
            f'<rect x="{x - 4:.1f}" y="{y:.1f}" width="{width + 8:.1f}" height="{14 * len(lines) + 4}" '
            f'fill="{fill}" stroke="{OUTLINE}"/>'
        )
        for i, line in enumerate(lines):
            yield f'<text x="{x:.1f}" y="{y + 13 + 14 * i:.1f}" fill="{BLACK}">{escape(line)}</text>'
