"""Layout: where the boxes of a first screen lie along time and across it, in px.

The scripts get SIZES and GIVES and compute the same for their own width. For one width,
static/picture.js and `svg` draw the same boxes.

    t0   a stack   slim slim slim     big      mid      behind
    rank 0  [5 inputs] [] [] []  [anyone left?] [...]    ✓ finished
"""

from __future__ import annotations

from math import ceil, sqrt
from typing import NamedTuple

from joinlab.picture.screen import FirstScreen
from joinlab.picture.theme import THEME

SIZES, GIVES = THEME["shared"]["sizes"], THEME["shared"]["gives"]
"""Lengths of columns along time, and which of them shrink first if lanes are too long, and how far."""

SIDE = 44  # px above the first lane
_NARROW, _WIDE = frozenset("iljtfrI.,:;'|!()[] "), frozenset("mwMWG@%—…✓✕")


def width_of(text: str, size: float) -> float:
    """About how wide a text is drawn, px."""
    return size * sum(map(_width, text))


def _width(character: str) -> float:
    """Of its height."""
    if character in _NARROW:
        return 0.32
    if character in _WIDE:
        return 0.86
    return 0.66 if character.isupper() else 0.56


def behind(screen: FirstScreen) -> int:
    """px past the last call, for how each rank ended."""
    wide = 0.0
    for sign, word, _, detail in screen.ends:
        wide = max(wide, width_of(f"{sign} {word} …", 17), width_of(detail, 13))
    return max(screen.least, 30 + round(wide))


DOTTED = 64
"""Of at most so many ranks, a lane that stands for several shows its own among all, as dots."""


def before(screen: FirstScreen) -> int:
    """px before the first call, for the name of each lane and what stands below it."""
    world, wide = sum(map(len, screen.ranks)), 88.0
    for lane in range(len(screen.ranks)):
        wide = max(wide, width_of(screen.short(lane), 16), width_of(screen.under(lane)[:25], 13))
    if len(screen.ranks) < world <= DOTTED:
        wide = max(wide, 18 * ceil(sqrt(world)) if world > 8 else 160)
    return round(min(wide + 24, 214))


class Rect(NamedTuple):
    """Where a box lies, px from the left and from the top of the picture, and how large it is."""

    x: float
    y: float
    w: float
    h: float


def along(screen: FirstScreen, room: float) -> tuple[list[tuple[float, float]], float]:
    """Where each column begins along time, and how long it is; and the length of them all, `room`
    if that can be."""
    sizes, columns = dict[str, float](SIZES["row"]), screen.columns

    def lay() -> tuple[list[tuple[float, float]], float]:
        offset, laid = 0.0, []
        for before, column in zip((None, *columns), columns, strict=False):
            if before is not None:
                gap = "gap" if column.size == before.size == "slim" else "wide"
                offset += sizes["far" if column.far or before.far else gap]
            laid.append((offset, sizes[column.size]))
            offset += sizes[column.size]
        return laid, offset

    spans, length = lay()
    for size, least in GIVES:
        if length > room:
            # the room between two is no column's size
            many = sum(column.size == size for column in columns) or len(columns)
            sizes[size] = max(least, sizes[size] - (length - room) / many)
            spans, length = lay()
    return spans, length


class Across:
    """Lanes that run across a picture of some width, as static/picture.js lays them out.

    t0, length, behind  px before the first column, of all columns, and for the endings
    thick, between      px of a lane, and between two of them
    """

    def __init__(self, screen: FirstScreen, width: float) -> None:
        self.screen, lanes = screen, len(screen.ranks)
        self.t0, self.behind = before(screen), behind(screen)
        if lanes < 5:
            self.thick, self.between = (58, 68) if lanes < 3 else (50, 44)
        else:
            roomy = lanes < 7 or any(column.clashes for column in screen.columns)
            self.thick, self.between = 40, 30 if roomy else 20
        self.spans, self.length = along(screen, width - self.t0 - self.behind)
        self.width = max(width, self.t0 + self.length + self.behind)
        self.height = self.lane(lanes - 1) + self.thick + 20

    def lane(self, lane: int) -> float:
        """px above a lane."""
        return SIDE + lane * (self.thick + self.between)

    def box(self, column: int, lane: int) -> Rect:
        """Where one box lies; the big ones stand out."""
        t, w = self.spans[column]
        grow = 4 if self.screen.columns[column].size == "big" else 0
        return Rect(self.t0 + t, self.lane(lane) - grow, w, self.thick + 2 * grow)

    def centre(self, column: int) -> float:
        """px of the middle of a column."""
        t, w = self.spans[column]
        return self.t0 + t + (w - 8 * bool(self.screen.columns[column].stack)) / 2
