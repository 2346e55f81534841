"""Holdings: who holds what before and after a collective, as a small table.

Ranks are columns, "before" and "after" are rows, and every value is a chip. A chip that only
travelled keeps the colour of the rank that it came from; what was computed, such as a sum, is
white. The values say the same in digits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import chain
from typing import Any

from joinlab.analysis.matching import match
from joinlab.ops import POINT_TO_POINT, Op
from joinlab.picture.theme import BAND, BLACK, CHIPS, WHITE
from joinlab.timeline import Timeline, expect_timeline

MAX_CHIPS = 24
"""A tensor with more values than this is shown by its first and last ones."""

_TOO_LARGE = "too large to show"  # a Timeline keeps the values of small tensors only

Tensor = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Holding:
    """The tensors of one rank, or a word if there are none to show."""

    tensors: tuple[Tensor, ...] = ()
    words: str = ""

    def __str__(self) -> str:
        return self.words or " ".join(
            f"[{' '.join(map(_number, tensor))}]" for tensor in self.tensors
        )


@dataclass(frozen=True, slots=True)
class Holdings:
    """One slot of a Timeline: what was called, and what each rank held before and after. Jupyter
    shows it as a table.

    call     what the ranks called, such as "broadcast from rank 1"
    before   one Holding per rank
    after    the same
    owners   which rank a value was with before, for values that were with one rank alone; empty for a reduction
    """

    call: str
    before: tuple[Holding, ...]
    after: tuple[Holding, ...]
    owners: Mapping[float, int]

    def __str__(self) -> str:
        lines = [self.call]
        for name, row in (("before", self.before), ("after", self.after)):
            lines.append(
                f"  {name:6}  "
                + ";  ".join(f"rank {rank}: {holding}" for rank, holding in enumerate(row))
            )
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        cell = f'style="text-align:left;padding:.35em .9em;border:1px solid {BAND};background:transparent"'
        head = "".join(
            f'<th scope="col" {cell}>rank {rank}</th>' for rank in range(len(self.before))
        )
        rows = ""
        for name, row in (("before", self.before), ("after", self.after)):
            cells = (
                self._cell(holding, rank if name == "before" else None)
                for rank, holding in enumerate(row)
            )
            rows += f'<tr style="background:transparent"><th scope="row" {cell}>{name}</th>'
            rows += "".join(f"<td {cell}>{holding}</td>" for holding in cells) + "</tr>"
        return (
            '<table style="border-collapse:collapse;margin:.4em 0 .8em 0">'
            f'<caption style="text-align:left;caption-side:top;font-weight:600;padding:.2em 0;color:inherit">'
            f'{escape(self.call)}</caption><tr style="background:transparent"><td {cell}></td>{head}</tr>{rows}</table>'
        )

    def _cell(self, holding: Holding, rank: int | None) -> str:
        if holding.words:
            tensors = [f"<em>{escape(holding.words)}</em>"]
        else:
            tensors = []
        for tensor in holding.tensors:
            chips = [self._chip(value, rank) for value in tensor]
            if len(chips) > MAX_CHIPS:
                chips[MAX_CHIPS // 2 : -MAX_CHIPS // 2] = [" … "]
            tensors.append(
                f'<span style="white-space:nowrap;margin-right:.5em">{"".join(chips)}</span>'
            )
        return " ".join(tensors)

    def _chip(self, value: float, rank: int | None) -> str:
        owner = self.owners.get(value) if rank is None else rank
        color = WHITE if owner is None else CHIPS[owner % len(CHIPS)]
        if owner is None:
            source = "computed from several ranks"
        else:
            source = f"from rank {owner}"
        return (
            f'<span title="{source}" style="display:inline-block;min-width:1.6em;text-align:center;padding:0 .35em;'
            f'margin:1px;border:1px solid {BLACK};border-radius:3px;background:{color};color:{BLACK}">'
            f"{_number(value)}</span>"
        )


def who_holds(timeline: Timeline, index: int = 0) -> Holdings:
    """Who held what before and after the `index`-th slot of a Timeline: of its calls, those that
    faced each other.

    Raises ProgramError for anything but a Timeline, and IndexError if there is no such slot.

    >>> print(joinlab.who_holds(joinlab.emulate(joinlab.scenarios.broadcast, inputs=(1, 1, 1))))     # doctest: +SKIP
    broadcast from rank 1
      before  rank 0: [10 11];  rank 1: [20 21];  rank 2: [30 31]
      after   rank 0: [20 21];  rank 1: [20 21];  rank 2: [20 21]
    """
    expect_timeline(timeline, "who_holds")
    slots = match(timeline)
    if not -len(slots) <= index < len(slots):
        raise IndexError(f"this timeline has {len(slots)} slots, so there is no slot {index}")
    seqs, group = slots[index].calls, slots[index].group
    calls = []
    for rank in range(timeline.world_size):
        calls.append(timeline.call(rank, seqs[rank], group) if rank in seqs else None)
    before = tuple(map(_before, calls))
    after = tuple(_after(call, holding) for call, holding in zip(calls, before, strict=True))
    reduces = any(call is not None and call["reduce_op"] for call in calls)
    return Holdings(
        _title(list(filter(None, calls))), before, after, {} if reduces else _owners(before)
    )


def _before(call: Mapping[str, Any] | None) -> Holding:
    if call is None:
        return Holding(words="takes no part")
    if call["value_in"] is not None:
        return Holding(_tensors(call["value_in"]))
    if not call["shape"]:
        return Holding(words="no tensor")
    return Holding(words="nothing to give" if call["op"] in (Op.SCATTER, Op.RECV) else _TOO_LARGE)


def _after(call: Mapping[str, Any] | None, before: Holding) -> Holding:
    if call is None:
        return Holding(words="takes no part")
    if call["completed_ns"] is None:
        return Holding(words="never completed")
    untouched = (
        call["op"] == Op.REDUCE
        and call["rank"] != call["root"]
        and call["value_out"] == call["value_in"]
    )
    if call["value_out"] is not None and not untouched:
        return Holding(_tensors(call["value_out"]))
    return Holding(
        words="as before" if before.tensors else _TOO_LARGE if call["shape"] else "no tensor"
    )


def _owners(before: Sequence[Holding]) -> dict[float, int]:
    ranks_of: dict[float, set[int]] = {}
    for rank, holding in enumerate(before):
        for value in chain.from_iterable(holding.tensors):
            ranks_of.setdefault(value, set()).add(rank)
    return {value: ranks.pop() for value, ranks in ranks_of.items() if len(ranks) == 1}


def _tensors(text: str) -> tuple[Tensor, ...]:
    return tuple(tuple(map(float, tensor)) for tensor in json.loads(text))


def _title(calls: Sequence[Mapping[str, Any]]) -> str:
    ops = list(dict.fromkeys(call["op"].replace("_", "-") for call in calls))
    text = " meets ".join(ops)
    first = calls[0]
    if {call["op"] for call in calls} <= POINT_TO_POINT:
        return " and ".join(f"{call['op']} on rank {call['rank']}" for call in calls)
    if first["reduce_op"]:
        text += f" ({first['reduce_op']})"
    if len(ops) == 1 and first["root"] is not None:
        text += f" {'from' if ops[0] in ('broadcast', 'scatter') else 'to'} rank {first['root']}"
    return text


def _number(value: float) -> str:
    return f"{value:.6g}"
