"""The first screen as one static SVG picture, for where no script runs: GitHub, paper, a mail, a
saved notebook.

It draws the boxes of `first_screen` at the positions from `layout`, as static/picture.js does, with the
colours of a light page and its own background.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import escape
from itertools import combinations, pairwise

from joinlab.analysis.wording import shown
from joinlab.picture.layout import SIDE, Across, Rect, width_of
from joinlab.picture.screen import Box, Column, FirstScreen, ScreenPiece
from joinlab.picture.theme import FILLS, LIGHT, ink_of

TONES = {"": "ink", "good": "right", "warn": "warn", "bad": "bad"}
INK, SOFT, BAD = LIGHT["ink"], LIGHT["soft"], LIGHT["bad"]
PAPER, GROUND, THREAD, FAINT = LIGHT["paper"], LIGHT["ground"], LIGHT["line"], LIGHT["faint"]
WIDTH = 980  # px of the lanes; the picture shrinks to the width of the page
NO_CALL = "No call was recorded."
BESIDE = 150  # px right of the headline, where "modelled" stands
LEFT, BOLD = 16, 1.1  # px around the picture; how much wider bold letters are

HYPHEN = "(?<=[ -])"  # behind a space or a hyphen
LEAST = 11  # px: no smaller letters in a box
LONG = 4  # characters of a value that stand beside ≠
DASHED = ' stroke-dasharray="6 5"'
FILL = ' class="fill"'

Point = tuple[float, float]


def svg(screen: FirstScreen, name: str = "joinlab", heading: str = "") -> str:
    """The picture as an <svg> element.

    name     prefix of the ids in it; two pictures on one page need two names
    heading  what to say below the headline, in small letters
    """
    parts = _Picture(screen, WIDTH).parts(escape(name, quote=True), heading)
    return shown("".join(parts))


class _Picture(Across):
    def parts(self, name: str, heading: str) -> Iterator[str]:
        screen, self.fade = self.screen, f' mask="url(#{name}-fade)"'
        headline = list(_wrapped(screen.headline, self.width - BESIDE, 20 * BOLD))
        headings = list(_wrapped([ScreenPiece(heading)], self.width, 13))
        top = 20 + 27 * len(headline) + 18 * len(headings)
        wide, high = self.width + 2 * LEFT, top + self.height + LEFT
        label = "".join(piece.text for piece in screen.headline)
        yield (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:.0f} {high:.0f}" width="{wide:.0f}" '
            f'height="{high:.0f}" style="max-width:100%;height:auto" role="img" aria-label="{escape(label)}" '
            f'font-family="Inter, Helvetica Neue, Arial, Liberation Sans, sans-serif">{_fade(name)}'
            f'<rect width="100%" height="100%" rx="8" fill="{PAPER}"/><g transform="translate({LEFT} {LEFT})">'
        )
        for i, line in enumerate(headline):
            yield _pieces(line, 20 + 27 * i, 20, ' font-weight="700"')
        for i, line in enumerate(headings):
            yield _pieces(line, 27 * len(headline) + 16 + 18 * i, 13, color=SOFT)
        yield _text(self.width, 14, screen.provenance, 13, SOFT, anchor="end")
        yield f'<g class="lanes" transform="translate(0 {top})">'
        yield from self._focus()
        for lane in range(len(screen.ranks)):
            yield from self._head(lane)
            yield from self._end(lane)
        if not screen.columns:
            yield _text(self.t0, SIDE - 14, NO_CALL, 14, SOFT)
        for index, column in enumerate(screen.columns):
            remark = f". {column.remark}" if column.remark and not column.stack else ""
            yield f"<g><title>{escape(screen.title(column) + remark)}</title>"
            yield from self._column(index, column)
            yield "</g>"
        for index, lane, other_index, other_lane in screen.meant:
            near, far = (0.82, 0.18) if index < other_index else (0.18, 0.82)
            begin = self._edge(index, lane, other_lane, near)
            yield _line(begin, self._edge(other_index, other_lane, lane, far), SOFT, 1.8, "1 5")
        yield "</g></g></svg>"

    def _focus(self) -> Iterator[str]:
        """The loud column."""
        if self.screen.focus is not None:
            t, w = self.spans[self.screen.focus]
            last = self.lane(len(self.screen.ranks) - 1) + self.thick + 18
            yield _rect(Rect(self.t0 + t - 12, 0, w + 24, last), GROUND, 14)

    def _head(self, lane: int) -> Iterator[str]:
        y, screen = self.lane(lane) + self.thick / 2, self.screen
        color = BAD if screen.outlier == lane else INK
        yield _text(0, y, screen.short(lane), 15, color, bold=True)
        under = screen.under(lane)
        yield _text(0, y + 18, under if len(under) < 26 else f"{under[:24]}…", 12, SOFT)

    def _end(self, lane: int) -> Iterator[str]:
        ends = self.screen.ends
        sign, word, tone, detail = ends[lane]
        if len(ends) > 4 and lane and ends[lane] == ends[lane - 1]:
            word = detail = ""  # of lanes that end alike, the first tells
        middle = self.lane(lane) + self.thick / 2
        x, y = self.t0 + self.length + 22, middle + 5 - 8 * bool(detail)
        dots = "…" if "wait" in word else ""
        yield _text(x, y, f"{sign} {word}{dots}", 15, LIGHT[TONES[tone]], bold=True)
        yield _text(x, y + 19, detail, 12.5, LIGHT[TONES[tone]])
        end = None
        for column, (t, _) in zip(self.screen.columns, self.spans, strict=True):
            box = column.boxes.get(lane)
            if box is not None:
                end = t if box.open else self.length + 6
        if end is not None:
            yield _line((self.t0 + 20, middle), (self.t0 + end, middle), THREAD, 2)

    def _column(self, index: int, column: Column) -> Iterator[str]:
        centre, slim = self.centre(index), column.size == "slim"
        if column.flag == "met" or column.extra is not None:
            for above, below in pairwise(sorted(column.boxes)):
                end = self.lane(below) - (17 if column.stack else 9)
                yield _line((centre, self.lane(above) + self.thick + 9), (centre, end), FAINT, 6)
        for lane in range(len(self.screen.ranks)):
            rect, box = self.box(index, lane), column.boxes.get(lane)
            if box is not None and column.stack:
                yield from _stack(rect, column, box.stack or column.stack)
            elif box is not None:
                yield from self._call(index, column, lane, box, rect)
            elif column.missing and column.missing[0] == lane:
                yield from _ghost(rect, column.missing[1])
            elif lane in column.absent and not slim:
                yield from _ghost(rect, column.lacks or "nobody")
        number = "missing" if column.missing else column.number
        if index == self.screen.focus:
            call = f"call {number}" if column.numbers else number
            yield _text(centre, SIDE - 24, call, 13, BAD, bold=True, anchor="middle")
        elif not column.stack and (not slim or self.spans[index][1] > width_of(number, 12)):
            yield _text(centre, SIDE - 14, number, 12, SOFT, anchor="middle")
        yield from self._between(index, column)

    def _call(self, index: int, column: Column, lane: int, box: Box, rect: Rect) -> Iterator[str]:
        big, slim, extra = column.size == "big", column.size == "slim", column.extra == lane
        focus, loud = index == self.screen.focus, big and column.flag != "met"
        style, overhang = FILL, 0
        if extra:
            style += DASHED
        if box.open:
            style += self.fade
            if loud:
                overhang = 26
            elif index == len(self.screen.columns) - 1:
                overhang = 14
            under = min(overhang, 12) if focus else overhang
            yield _rect(rect._replace(w=rect.w + under), GROUND if focus else PAPER, 8)
        edge = BAD if extra or loud or box.failed else ""
        whole = rect._replace(w=rect.w + overhang)
        yield _rect(whole, FILLS[box.kind], 6 if slim else 8, edge, 2.4, style)
        size = {"big": 17, "slim": 12}.get(column.size, 14)
        sub = "extra" if extra else self.screen.below(index, lane)
        yield from _words(rect, box.label, ink_of(box.kind), size, loud or extra, sub)

    def _between(self, index: int, column: Column) -> Iterator[str]:
        """≠, and the value that goes wrong."""
        big = column.size == "big"
        first = next(iter(self.screen.readings), None)
        reads = big and first is not None and first.column == index
        radius = min(11, self.between / 2 - 5)
        if big and self.between > 40:
            radius = 17
        for above, below in column.clashes:
            x = self.centre(index) + (self.spans[index][1] * 0.2 if reads else 0)
            y = (self.lane(above) + self.thick + self.lane(below)) / 2
            look = f'fill="{PAPER}" stroke="{BAD}" stroke-width="2"'
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" {look}/>'
            y += radius * 0.42
            yield _text(x, y, "≠", radius * 1.2, BAD, bold=True, anchor="middle")
        if first is not None and reads:
            begin = self._edge(index, first.of, first.to, 0.3)
            tip = self._edge(index, first.to, first.of, 0.3)
            back = tip[1] + (-9 if tip[1] > begin[1] else 9)
            yield _line(begin, tip, BAD, 2.5, "1 6")
            for wing in (-6, 6):
                yield _line((tip[0] + wing, back), tip, BAD, 2.5)
            if len(first.value) <= LONG:  # else the box says what it reads
                x, y = begin[0] + 8 + len(first.value) * 5, (begin[1] + tip[1]) / 2 + 6
                yield _text(x, y, first.value, 17, BAD, bold=True, anchor="middle")

    def _edge(self, index: int, lane: int, towards: int, part: float) -> Point:
        """A point on the edge of a box that faces another lane."""
        t, w = self.spans[index]
        y = self.lane(lane) + (self.thick + 4 if towards > lane else -4)
        return self.t0 + t + w * part, y


def _fade(name: str) -> str:
    stops = ""
    for stop, opacity in ((0, 1), (0.55, 0.8), (1, 0)):
        stops += f'<stop offset="{stop}" stop-color="#fff" stop-opacity="{opacity}"/>'
    box = f'<rect x="-.05" y="-.1" width="1.05" height="1.2" fill="url(#{name}-f)"/>'
    mask = f'<mask id="{name}-fade" maskContentUnits="objectBoundingBox">{box}</mask>'
    return f'<defs><linearGradient id="{name}-f">{stops}</linearGradient>{mask}</defs>'


def _stack(rect: Rect, column: Column, label: str) -> Iterator[str]:
    sheet = rect._replace(w=rect.w - 8)
    for by in (8, 4, 0):
        yield _rect(sheet._replace(x=rect.x + by, y=rect.y - by), FAINT, 8, THREAD, 1, FILL)
    yield from _words(sheet, label, BAD if column.flag == "wrong" else SOFT, 14)


def _ghost(rect: Rect, label: str) -> Iterator[str]:
    yield _rect(rect, GROUND, 8, BAD, 2.4, DASHED)
    yield from _words(rect, label, BAD, 14, True)


def _words(
    rect: Rect, text: str, color: str, size: float, bold: bool = False, sub: str = ""
) -> Iterator[str]:
    """A label in a box, in up to three lines; nothing where it would have to be cut or too small."""
    room = (rect.w - (4 if size < 13 else 10)) / (BOLD if bold else 1)
    lines, fits = _broken(text, size, room, rect.h - 20 * bool(sub))
    if fits < LEAST:
        return
    sub = sub if width_of(sub, 13) < rect.w - 4 else ""
    x, y = rect.x + rect.w / 2, rect.y + rect.h / 2 - (9 if sub else 0)
    y += fits * 0.35 - (len(lines) - 1) * fits * 0.59
    for i, line in enumerate(lines):
        yield _text(x, y + i * fits * 1.18, line, fits, color, bold=bold, anchor="middle")
    yield _text(x, y + (len(lines) - 1) * fits * 1.18 + 20, sub, 13, color, anchor="middle")


def _text(
    x: float, y: float, text: str, size: float, color: str, *, bold: bool = False,
    anchor: str = "start",
) -> str:  # fmt: skip
    weight = ' font-weight="700"' if bold else ""
    look = f'font-size="{size:.3g}" fill="{color}" text-anchor="{anchor}"{weight}'
    return f'<text x="{x:.1f}" y="{y:.1f}" {look}>{escape(text)}</text>' if text else ""


def _pieces(
    pieces: Sequence[ScreenPiece], y: float, size: float, weight: str = "", color: str = ""
) -> str:
    """Words in the colours of their kinds and tones, or in one `color`."""
    spans = ""
    for piece in pieces:
        ink = LIGHT[TONES[piece.tone]] if piece.kind is None else ink_of(piece.kind)
        spans += f'<tspan fill="{color or ink}">{escape(piece.text.replace("`", ""))}</tspan>'
    return f'<text x="0" y="{y}" font-size="{size}" xml:space="preserve"{weight}>{spans}</text>'


def _rect(
    rect: Rect, fill: str, radius: float, edge: str = "", width: float = 1, attributes: str = ""
) -> str:
    stroke = f' stroke="{edge}" stroke-width="{width}"' if edge else ""
    x, y, w, h = rect
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}" rx="{radius}" fill="{fill}"'
        f"{stroke}{attributes}/>"
    )


def _line(begin: Point, end: Point, color: str, width: float, dashes: str = "") -> str:
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    ends = f'x1="{begin[0]:.1f}" y1="{begin[1]:.1f}" x2="{end[0]:.1f}" y2="{end[1]:.1f}"'
    return f'<line {ends} stroke="{color}" stroke-width="{width}" stroke-linecap="round"{dashed}/>'


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
        for word in piece.text.replace(" ", " \0").split("\0"):
            wide = width_of(word, size)
            if line and used + wide > width:
                yield line
                line, used = [], 0.0
            if line and (line[-1].kind, line[-1].tone) == (piece.kind, piece.tone):
                word = line.pop().text + word
            line.append(piece._replace(text=word))
            used += wide
    if used:
        yield line
