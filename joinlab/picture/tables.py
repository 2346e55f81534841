"""Tables for readers: plain words in cells, in the colours of the calls they speak of.

`table` makes one of any values, `slots` one of the calls that met. A table shows itself in Jupyter
as HTML, and elsewhere as text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from joinlab.analysis.matching import Matched
from joinlab.analysis.meanings import asks_of, conclusion, number
from joinlab.analysis.thread import BesideThread
from joinlab.ops import CallRow, flat_values
from joinlab.picture.rows import RowKind
from joinlab.picture.rows import kind as kind_of
from joinlab.picture.theme import FILLS, LIGHT, ink_of
from joinlab.timeline import Timeline, expect_timeline

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
    elif (made := conclusion(row["origin"], row["value_out"])) is not None:
        yield f"{_NOW[made.verb]} {made.value}"
        if made.meaning:
            yield f"so: {made.meaning}"


_NOW = {"read": "reads", "took": "takes", "got": "reads", "discarded": "discards"}


def _values(text: str | None) -> str | None:
    values = flat_values(text)
    if not values:
        return None
    if len(values) > MOST_VALUES:
        return f"{len(values)} numbers"
    return ", ".join(number(v) if isinstance(v, int | float) else str(v) for v in values)
