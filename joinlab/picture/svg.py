"""The first screen as one static SVG picture, for where no script runs: GitHub, paper, a mail, a
saved notebook.

It draws the boxes of `first_screen` at the positions from `places`, as static/scene.js does, with the
colours of a light page and its own background.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from html import escape
from itertools import combinations, pairwise

from joinlab.analysis.wording import shown
from joinlab.picture.first_screen import Column, FirstScreen, ScreenPiece
from joinlab.picture.places import SIDE, Across, Rect, width_of
from joinlab.picture.theme import FILLS, LIGHT, ink_of

TONES = {"": "ink", "good": "right", "warn": "warn", "bad": "bad"}
NO_CALL = "No call was recorded."
BESIDE = 150  # px right of the headline, where "modelled" stands
LEFT, BOLD = 16, 1.1  # px around the picture; how much wider bold letters are

HYPHEN = "(?<=[ -])"  # behind a space or a hyphen
LEAST = 11  # px: no smaller letters in a box
LONG = 4  # characters of a value that stand beside ≠


def svg(
    screen: FirstScreen, name: str = "joinlab", width: int = 980, heading: str = "", behind: int = 0
) -> str:
    """The picture as an <svg> element.

    name     prefix of the ids in it; two pictures on one page need two names
    width    px of the lanes; the picture shrinks to the width of the page
    heading  what to say below the headline, in small letters
    behind   px past the last call, at least, for how the ranks ended
    """
    return shown(
        "".join(_Picture(screen, escape(name, quote=True), width, heading, behind).parts())
    )


class _Picture:
    def __init__(
        self, screen: FirstScreen, name: str, width: int, heading: str, behind: int
    ) -> None:
        self.screen, self.name = screen, name
        self.across = Across(screen, width, behind)
        room = self.across.width - BESIDE
        self.headline = list(_wrapped(screen.headline, room, 20 * BOLD))
        self.heading = [
            line for line in _wrapped([ScreenPiece(heading)], self.across.width, 13) if heading
        ]
        self.top = 20 + 27 * len(self.headline) + 18 * len(self.heading)

    def parts(self) -> Iterator[str]:
        wide, high = self.across.width + 2 * LEFT, self.top + self.across.height + LEFT
        headline = "".join(piece.text for piece in self.screen.headline)
        yield (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:.0f} {high:.0f}" width="{wide:.0f}" '
            f'height="{high:.0f}" style="max-width:100%;height:auto" role="img" aria-label="{escape(headline)}" '
            f'font-family="Inter, Helvetica Neue, Arial, Liberation Sans, sans-serif">{self._fade()}'
            f'<rect width="100%" height="100%" rx="8" fill="{LIGHT["paper"]}"/><g transform="translate({LEFT} {LEFT})">'
        )
        for i, line in enumerate(self.headline):
            yield self._pieces(line, 0, 20 + 27 * i, 20, bold=True)
        for i, line in enumerate(self.heading):
            yield self._pieces(
                line, 0, 27 * len(self.headline) + 16 + 18 * i, 13, color=LIGHT["soft"]
            )
        yield self._text(
            self.across.width, 14, self.screen.provenance, 13, LIGHT["soft"], anchor="end"
        )
        yield f'<g class="lanes" transform="translate(0 {self.top})">'
        yield from self._focus()
        for lane in range(len(self.screen.ranks)):
            yield from self._head(lane)
            yield from self._end(lane)
        if not self.screen.columns:
            yield self._text(self.across.t0, SIDE - 14, NO_CALL, 14, LIGHT["soft"])
        for index, column in enumerate(self.screen.columns):
            remark = f". {column.said}" if column.said and not column.stack else ""
            yield f"<g><title>{escape(self.screen.title(column) + remark)}</title>"
            yield from self._column(index, column)
            yield "</g>"
        for index, lane, other_at, other_lane in self.screen.meant:
            near, far = (0.82, 0.18) if index < other_at else (0.18, 0.82)
            p, q = (
                self._edge(index, lane, other_lane, near),
                self._edge(other_at, other_lane, lane, far),
            )
            yield self._line(p, q, LIGHT["soft"], 1.8, "1 5")
        yield "</g></g></svg>"

    def _fade(self) -> str:
        stops = "".join(
            f'<stop offset="{stop}" stop-color="#fff" stop-opacity="{opacity}"/>'
            for stop, opacity in ((0, 1), (0.55, 0.8), (1, 0))
        )
        box = f'<rect x="-.05" y="-.1" width="1.05" height="1.2" fill="url(#{self.name}-f)"/>'
        mask = f'<mask id="{self.name}-fade" maskContentUnits="objectBoundingBox">{box}</mask>'
        return f'<defs><linearGradient id="{self.name}-f">{stops}</linearGradient>{mask}</defs>'

    def _focus(self) -> Iterator[str]:
        """The one loud place."""
        if self.screen.focus is not None:
            t, w = self.across.places[self.screen.focus]
            last = self.across.lane(len(self.screen.ranks) - 1) + self.across.thick + 18
            yield self._rect(self.across.t0 + t - 12, 0, w + 24, last, LIGHT["ground"], 14)

    def _head(self, lane: int) -> Iterator[str]:
        y, odd = self.across.lane(lane) + self.across.thick / 2, self.screen.odd == lane
        yield self._text(
            0, y, self.screen.short(lane), 15, LIGHT["bad" if odd else "ink"], bold=True
        )
        under = self.screen.under(lane)
        yield self._text(
            0, y + 18, under if len(under) < 26 else f"{under[:24]}…", 12, LIGHT["soft"]
        )

    def _end(self, lane: int) -> Iterator[str]:
        sign, word, tone, detail = self.screen.ends[lane]
        if (
            len(self.screen.ends) > 4
            and lane
            and self.screen.ends[lane] == self.screen.ends[lane - 1]
        ):
            word = detail = ""  # of lanes that end alike, the first tells
        t0, length, middle = (
            self.across.t0,
            self.across.length,
            self.across.lane(lane) + self.across.thick / 2,
        )
        x, y = t0 + length + 22, middle + 5 - 8 * bool(detail)
        dots = "…" if "wait" in word else ""
        yield self._text(x, y, f"{sign} {word}{dots}", 15, LIGHT[TONES[tone]], bold=True)
        yield self._text(x, y + 19, detail, 12.5, LIGHT[TONES[tone]])
        drawn = []
        for index, column in enumerate(self.screen.columns):
            if column.boxes[lane] is not None:
                drawn.append((index, column.boxes[lane]))
        if drawn and (box := drawn[-1][1]) is not None:
            if box.open:
                end = self.across.places[drawn[-1][0]][0]
            else:
                end = length + 6
            yield self._line((t0 + 20, middle), (t0 + end, middle), LIGHT["line"], 2)

    def _column(self, index: int, column: Column) -> Iterator[str]:
        lanes = [lane for lane, box in enumerate(column.boxes) if box is not None]
        if column.flag == "met" or column.extra is not None:
            t = self.across.centre(index)
            for a, b in pairwise(lanes):
                begin, end = (
                    self.across.lane(a) + self.across.thick + 9,
                    self.across.lane(b) - (17 if column.stack else 9),
                )
                yield self._line((t, begin), (t, end), LIGHT["faint"], 6)
        for lane in range(len(column.boxes)):
            rect, label = self.across.box(index, lane), self._box_texts(index, lane)
            if rect.box is None:
                yield self._ghost(rect, label[0]) if any(label) and column.size != "slim" else ""
            else:
                yield from (
                    self._stack(rect, column, label[0])
                    if column.stack
                    else self._call(rect, column, *label)
                )
        loud = index == self.screen.focus
        if loud or (
            not column.stack
            and (
                column.size != "slim" or self.across.places[index][1] > width_of(column.number, 12)
            )
        ):
            if loud and column.number:
                number = f"call {column.number}"
            else:
                number = column.number
            number = "missing" if column.missing else number
            color = LIGHT["bad" if loud else "soft"]
            y = SIDE - (24 if loud else 14)
            yield self._text(
                self.across.centre(index),
                y,
                number,
                13 if loud else 12,
                color,
                bold=loud,
                anchor="middle",
            )
        yield from self._between(index, column)

    def _box_texts(self, index: int, lane: int) -> tuple[str, str]:
        """What a column says in a lane, and below it."""
        column = self.screen.columns[index]
        box = column.boxes[lane]
        if box is None:
            if column.missing and column.missing[0] == lane:
                missing = column.missing[1]
            else:
                missing = ""
            return missing or (column.lacks or "nobody") * (lane in column.absent), ""
        sub = "extra" if column.extra == lane else self.screen.below(index, lane)
        return box.stack or column.stack or box.label, sub

    def _stack(self, rect: Rect, column: Column, label: str) -> Iterator[str]:
        for by in (8, 4, 0):
            yield self._rect(
                rect.x + by,
                rect.y - by,
                rect.w - 8,
                rect.h,
                LIGHT["faint"],
                8,
                LIGHT["line"],
                1,
                "fill",
            )
        yield from self._words(
            replace(rect, w=rect.w - 8),
            label,
            LIGHT["bad" if column.flag == "wrong" else "soft"],
            14,
        )

    def _call(self, rect: Rect, column: Column, label: str, sub: str) -> Iterator[str]:
        box, big, extra = rect.box, column.size == "big", column.extra == rect.lane
        assert box is not None
        loud = big and column.flag != "met"
        if box.open and loud:
            overhang = 26
        elif box.open and rect.column == len(self.screen.columns) - 1:
            overhang = 14
        else:
            overhang = 0
        edge = LIGHT["bad"] if extra or loud or box.failed else ""
        fade = f' mask="url(#{self.name}-fade)"' if box.open else ""
        style = f' stroke-dasharray="6 5"{fade}' if extra else fade
        if box.open:
            ground = LIGHT["ground" if rect.column == self.screen.focus else "paper"]
            under = rect.w + (min(overhang, 12) if rect.column == self.screen.focus else overhang)
            yield self._rect(rect.x, rect.y, under, rect.h, ground, 8)
        slim, fill = column.size == "slim", FILLS[box.kind]
        yield self._rect(
            rect.x,
            rect.y,
            rect.w + overhang,
            rect.h,
            fill,
            6 if slim else 8,
            edge,
            2.4,
            "fill",
            style,
        )
        size = 17 if big else 12 if slim else 14
        yield from self._words(rect, label, ink_of(box.kind), size, loud or extra, sub)

    def _ghost(self, rect: Rect, label: str) -> str:
        bad, place = LIGHT["bad"], (rect.x, rect.y, rect.w, rect.h)
        dashed = self._rect(*place, LIGHT["ground"], 8, bad, 2.4, "", ' stroke-dasharray="6 5"')
        return dashed + "".join(self._words(rect, label, bad, 14, True))

    def _between(self, index: int, column: Column) -> Iterator[str]:
        """≠, and the value that goes wrong."""
        first = next(iter(self.screen.readings), None)
        reads = first is not None and first.column == index and column.size == "big"
        radius = (
            17
            if column.size == "big" and self.across.between > 40
            else min(11, self.across.between / 2 - 5)
        )
        for a, b in column.clashes:
            x = self.across.centre(index) + (self.across.places[index][1] * 0.2 if reads else 0)
            y = (self.across.lane(a) + self.across.thick + self.across.lane(b)) / 2
            look = f'fill="{LIGHT["paper"]}" stroke="{LIGHT["bad"]}" stroke-width="2"'
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" {look}/>'
            yield self._text(
                x, y + radius * 0.42, "≠", radius * 1.2, LIGHT["bad"], bold=True, anchor="middle"
            )
        if first is not None and reads:
            p, q = (
                self._edge(index, first.of, first.to, 0.3),
                self._edge(index, first.to, first.of, 0.3),
            )
            down = 1 if q[1] > p[1] else -1
            yield self._line(p, q, LIGHT["bad"], 2.5, "1 6")
            yield self._line((q[0] - 6, q[1] - 9 * down), q, LIGHT["bad"], 2.5)
            yield self._line((q[0] + 6, q[1] - 9 * down), q, LIGHT["bad"], 2.5)
            x, y = p[0] + 8 + len(first.value) * 5, (p[1] + q[1]) / 2 + 6
            value = first.value if len(first.value) <= LONG else ""  # the box says what it reads
            yield self._text(x, y, value, 17, LIGHT["bad"], bold=True, anchor="middle")

    def _edge(self, index: int, lane: int, towards: int, part: float) -> tuple[float, float]:
        """A point on the edge of a box that faces another lane."""
        t, w = self.across.places[index]
        return self.across.t0 + t + w * part, self.across.lane(lane) + (
            self.across.thick + 4 if towards > lane else -4
        )

    # ---- marks

    def _words(
        self, rect: Rect, text: str, color: str, size: float, bold: bool = False, sub: str = ""
    ) -> Iterator[str]:
        """A label in a box, in up to three lines; nothing where it would have to be cut or too
        small."""
        room = (rect.w - (4 if size < 13 else 10)) / (BOLD if bold else 1)
        lines, fits = _broken(text, size, room, rect.h - 20 * bool(sub))
        if fits < LEAST:
            return
        sub = sub if width_of(sub, 13) < rect.w - 4 else ""
        x, middle = rect.x + rect.w / 2, rect.y + rect.h / 2 - (9 if sub else 0)
        top = middle + fits * 0.35 - (len(lines) - 1) * fits * 0.59
        for i, line in enumerate(lines):
            yield self._text(
                x, top + i * fits * 1.18, line, fits, color, bold=bold, anchor="middle"
            )
        yield self._text(
            x, top + (len(lines) - 1) * fits * 1.18 + 20, sub, 13, color, anchor="middle"
        )

    def _text(
        self,
        x: float,
        y: float,
        text: str,
        size: float,
        color: str,
        *,
        bold: bool = False,
        anchor: str = "start",
    ) -> str:
        weight = ' font-weight="700"' if bold else ""
        look = f'font-size="{size:.3g}" fill="{color}" text-anchor="{anchor}"{weight}'
        if text:
            return f'<text x="{x:.1f}" y="{y:.1f}" {look}>{escape(text)}</text>'
        return ""

    def _pieces(
        self,
        pieces: Sequence[ScreenPiece],
        x: float,
        y: float,
        size: float,
        bold: bool = False,
        color: str = "",
    ) -> str:
        spans = ""
        for piece in pieces:
            if piece.kind is None:
                ink = LIGHT[TONES[piece.tone]]
            else:
                ink = ink_of(piece.kind)
            spans += f'<tspan fill="{color or ink}">{escape(piece.text.replace("`", ""))}</tspan>'
        weight = ' font-weight="700"' if bold else ""
        return (
            f'<text x="{x}" y="{y}" font-size="{size}" xml:space="preserve"{weight}>{spans}</text>'
        )

    def _rect(
        self, x: float, y: float, w: float, h: float, fill: str, radius: float, edge: str = "", width: float = 1,
        name: str = "", attributes: str = "",
    ) -> str:  # fmt: skip
        if edge:
            stroke = f' stroke="{edge}" stroke-width="{width}"'
        else:
            stroke = ""
        called = f' class="{name}"' if name else ""
        return (
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}" rx="{radius}" fill="{fill}"'
            f"{stroke}{called}{attributes}/>"
        )

    def _line(
        self,
        p: tuple[float, float],
        q: tuple[float, float],
        color: str,
        width: float,
        dashes: str = "",
    ) -> str:
        dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
        ends = f'x1="{p[0]:.1f}" y1="{p[1]:.1f}" x2="{q[0]:.1f}" y2="{q[1]:.1f}"'
        return (
            f'<line {ends} stroke="{color}" stroke-width="{width}" stroke-linecap="round"{dashed}/>'
        )


def _broken(
    text: str, size: float, wide: float, high: float, gap: str = "(?<= )"
) -> tuple[list[str], float]:
    """A label in the fewest lines that let its letters be large, and their size; behind a hyphen it
    breaks only where it would be too small otherwise."""
    parts, lines, fits = re.split(gap, text), [text], 0.0
    for count in range(1, min(3, len(parts)) + 1):
        if count > 1 and count * size * 1.18 >= high:
            break
        cuts = ([0, *cut, len(parts)] for cut in combinations(range(1, len(parts)), count - 1))
        layouts = [["".join(parts[a:b]).rstrip() for a, b in pairwise(cut)] for cut in cuts]
        longest = [max(width_of(line, size) for line in layout) for layout in layouts]
        least = min(longest)
        now = min(size, size * wide / max(least, 1))
        if now > fits * 1.03:
            lines, fits = layouts[longest.index(least)], now
    if fits < LEAST and gap != HYPHEN:
        return _broken(text, size, wide, high, HYPHEN)
    return lines, fits


def _wrapped(
    pieces: Sequence[ScreenPiece], width: float, size: float
) -> Iterator[list[ScreenPiece]]:
    """Pieces in lines that are about as wide as that."""
    line: list[ScreenPiece] = []
    used = 0.0
    for piece in pieces:
        parts = piece.text.replace(" ", " \0").split("\0")
        for word in parts:
            wide = width_of(word, size)
            if line and used + wide > width:
                yield line
                line, used = [], 0.0
            if line and (line[-1].kind, line[-1].tone) == (piece.kind, piece.tone):
                word = line.pop().text + word
            line.append(ScreenPiece(word, piece.kind, piece.tone))
            used += wide
    if line:
        yield line
