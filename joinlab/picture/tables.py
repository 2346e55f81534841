"""Tables for readers: plain words in cells, in the colours of the calls they speak of.

`table` makes one of any values, `slots` one of the calls that met. A table shows itself in Jupyter
as HTML, and as an SVG picture in a file, where no notebook runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import chain
from typing import Any

from joinlab.analysis.matching import Matched
from joinlab.analysis.meanings import asks_of, conclusion, number
from joinlab.analysis.thread import BesideThread
from joinlab.ops import CallRow, decode_values
from joinlab.picture.rows import RowKind
from joinlab.picture.rows import kind as kind_of
from joinlab.picture.theme import FILLS, LIGHT, drawing, ink_of
from joinlab.timeline import Timeline, expect_timeline

LETTER, LINE, PAD = 7.4, 19, 9
"""Of the picture: px of a letter, of a line and around the text of a cell."""

MOST_VALUES = 6
"""A tensor with more values than this is shown by the number of its values."""


@dataclass(frozen=True, slots=True)
class Cell:
    """The lines of one cell. The first is bold and in the colour of `kind`, if there is one. `html`: the
    same for a page that can show more of it."""

    lines: tuple[str, ...]
    kind: RowKind | None = None
    wrong: bool = False
    html: str = ""

    def __str__(self) -> str:
        return ", ".join(self.lines)


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells below a heading for each column; `caption` stands above all."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str = ""

    def __str__(self) -> str:
        texts = [self.columns, *(tuple(map(str, row)) for row in self.rows)]
        wide = [max(map(len, column)) for column in zip(*texts, strict=True)]
        lines = [self.caption] if self.caption else []
        for row in texts:
            cells = map(str.ljust, row, wide)
            lines.append("  ".join(cells).rstrip())
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        pad = "padding:.3em .8em;text-align:left;vertical-align:top"
        head, body, caption = "", "", ""
        for name in self.columns:
            head += f'<th scope="col" style="{pad}">{escape(name)}</th>'
        for first, *cells in self.rows:
            body += '<tr style="background:transparent">'
            body += f'<th scope="row" style="{pad};{_style(first)}">{_html(first)}</th>'
            for cell in cells:
                body += f'<td style="{pad};{_style(cell)}">{_html(cell)}</td>'
            body += "</tr>"
        if self.caption:
            look = "text-align:left;caption-side:top;color:inherit"
            caption = f'<caption style="{look}">{escape(self.caption)}</caption>'
        return (
            f'<table style="border-collapse:separate;border-spacing:3px">{caption}'
            f'<thead><tr style="background:transparent">{head}</tr></thead><tbody>{body}</tbody></table>'
        )

    def svg(self) -> str:
        """The table as a picture, with the colours of a light and of a dark page."""
        lefts, wide, x = [], [], float(PAD)
        for index, name in enumerate(self.columns):
            lines = [name, *(line for row in self.rows for line in row[index].lines)]
            lefts.append(x)
            wide.append(2 * PAD + LETTER * max(map(len, lines)))
            x += wide[-1] + 4
        width = x - 4
        parts = [_text(PAD, PAD + 13, self.caption, LIGHT["soft"])] if self.caption else []
        top = PAD + LINE * (1 + bool(self.caption)) + 6
        for x, name in zip(lefts, self.columns, strict=True):
            parts.append(_text(x + PAD, top - 10, name, LIGHT["ink"], bold=True))
        for row in self.rows:
            high = 2 * PAD + LINE * max(len(cell.lines) for cell in row)
            for x, cell_width, cell in zip(lefts, wide, row, strict=True):
                parts.append(_box(cell, x, top, cell_width, high))
            top += high + 4
        label = self.caption or ", ".join(self.columns)
        return drawing(width + PAD, top + PAD, label, parts)


def _box(cell: Cell, x: float, top: float, wide: float, high: float) -> str:
    fill, ink, edge = LIGHT["card"], LIGHT["ink"], ""
    if cell.kind is not None:
        fill, ink = FILLS[cell.kind], ink_of(cell.kind)
    if cell.wrong:
        edge = f' stroke="{LIGHT["bad"]}" stroke-width="2"'
    box = (
        f'<rect x="{x:.0f}" y="{top:.0f}" width="{wide:.0f}" height="{high:.0f}" rx="6" '
        f'fill="{fill}"{edge}/>'
    )
    for index, line in enumerate(cell.lines):
        bold = index == 0 and cell.kind is not None
        box += _text(x + PAD, top + PAD + 13 + LINE * index, line, ink, bold)
    return box


def _text(x: float, y: float, text: str, fill: str, bold: bool = False) -> str:
    weight = ' font-weight="600"' * bold
    return f'<text x="{x:.0f}" y="{y:.0f}" fill="{fill}"{weight}>{escape(text)}</text>'


def _style(cell: Cell) -> str:
    edge = f"outline:2px solid {LIGHT['bad']};" if cell.wrong else ""
    if cell.kind is None:
        return edge
    return f"{edge}border-radius:6px;background:{FILLS[cell.kind]};color:{ink_of(cell.kind)}"


def _html(cell: Cell) -> str:
    if cell.html:
        return cell.html
    lines = list(map(escape, cell.lines))
    if cell.kind is not None:
        lines[0] = f"<b>{lines[0]}</b>"
    return "<br>".join(lines)


def table(rows: Iterable[Sequence[object]], columns: Sequence[str], caption: str = "") -> Table:
    """A table of values: None is "-", floats have up to five digits, and sequences are listed.

    Raises ValueError if a row has more or fewer values than there are columns.

        joinlab.table([("SGD", 0, 0.36), ("Adam", 1, None)], ["optimizer", "rank", "weight"])
    """
    made = []
    for row in rows:
        if len(row) != len(columns):
            raise ValueError(
                f"a row has {len(row)} values, and there are {len(columns)} columns: {row!r:.80}"
            )
        made.append(tuple(Cell((_words(value),)) for value in row))
    return Table(tuple(columns), tuple(made), caption)


def thread_table(beside: BesideThread) -> Table:
    """A run beside the forum thread: a tick for each row that is alike, and sentences above."""
    rows = []
    for row in beside.rows:
        pairs = zip(row.here or (None, None), row.there or (None, None), strict=True)
        cells = [Cell((_words(call),), wrong=not row.alike) for pair in pairs for call in pair]
        rows.append((Cell((_words(row.input),)), *cells, Cell(("✓" if row.alike else "✗",))))
    ranks = ("rank 0, this run", "rank 0, the thread", "rank 1, this run", "rank 1, the thread")
    return Table(("input", *ranks, "alike"), tuple(rows), " ".join(beside.sentences))


def _words(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return number(value)
    if isinstance(value, list | tuple):
        return ", ".join(map(_words, value))
    return str(value)


def slots(timeline: Timeline, begin: int | None = None, end: int | None = None) -> Table:
    """The calls that met, one row per slot: what each rank called, what it put in and read, and what
    it concluded.

    begin, end  numbers of calls, counted from 1 as in the picture; of all slots without them

    Calls that met but were not meant for each other have an edge. Raises ProgramError for anything
    but a Timeline.

        joinlab.slots(run, 17, 19)
    """
    expect_timeline(timeline, "slots")
    rows, matched, ranks = [], Matched(timeline), range(timeline.world_size)
    for slot in matched.slots:
        number, calls = min(slot.calls.values()) + 1, matched.calls_of(slot)
        if (begin or 1) <= number <= (end or number):
            wrong = slot.met and not slot.expected
            cells = (_cell(calls.get(rank), wrong) for rank in ranks)
            rows.append((Cell((str(number),)), *cells))
    return Table(("call", *(f"rank {rank}" for rank in ranks)), tuple(rows))


def _cell(row: CallRow | None, wrong: bool) -> Cell:
    if row is None:
        return Cell(("no call",))
    return Cell((asks_of(row), *_exchanged(row)), kind_of(row), wrong)


def _exchanged(row: Mapping[str, Any]) -> Iterator[str]:
    """What a call put in, what it read, and what its rank concluded."""
    put_in = _values(row["value_in"])
    if put_in is not None:
        yield f"puts in {put_in}"
    if row["completed_ns"] is None:
        yield "never completes"
    elif (read := conclusion(row["origin"], row["value_out"])) is not None:
        value, _, concluded = read.partition(" and concluded that ")
        yield _NOW.get(value.partition(" ")[0], "") + value.partition(" ")[2]
        if concluded:
            yield f"so: {concluded}"


_NOW = {"read": "reads ", "took": "takes ", "got": "reads ", "discarded": "discards "}


def _values(text: str | None) -> str | None:
    values = list(chain.from_iterable(decode_values(text) or ()))
    if not values:
        return None
    if len(values) > MOST_VALUES:
        return f"{len(values)} numbers"
    return ", ".join(number(v) if isinstance(v, int | float) else str(v) for v in values)
