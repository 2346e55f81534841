"""Holdings: who holds what before and after a collective, as a small table.

Ranks are columns, "before" and "after" are rows, and on a page every value is a chip. A chip that only
travelled keeps the colour of the rank that it came from; what was computed, such as a sum, is
white. The values say the same in digits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from itertools import chain
from typing import Any

from joinlab.analysis.matching import Matched
from joinlab.analysis.meanings import number
from joinlab.ops import POINT_TO_POINT, Op, decode_values
from joinlab.picture.tables import Cell, Table
from joinlab.picture.theme import BLACK, CHIPS, WHITE
from joinlab.timeline import Timeline, expect_timeline

MAX_CHIPS = 24
"""A tensor with more values than this is shown by its first and last ones."""

_TOO_LARGE = "too large to show"  # a Timeline keeps the values of small tensors only

Holding = list[list[Any]] | str
"""The tensors of one rank, or a word if there are none to show."""


def who_holds(timeline: Timeline, index: int = 0) -> Table:
    """Who held what before and after the `index`-th slot of a Timeline: of its calls, those that
    faced each other. Jupyter shows it as a table.

    Raises ProgramError for anything but a Timeline, and IndexError if there is no such slot.

    >>> print(joinlab.who_holds(joinlab.emulate(joinlab.scenarios.broadcast, inputs=(1, 1, 1))))     # doctest: +SKIP
    broadcast from rank 1  rank 0   rank 1   rank 2
    before                 [10 11]  [20 21]  [30 31]
    after                  [20 21]  [20 21]  [20 21]
    """
    expect_timeline(timeline, "who_holds")
    matched = Matched(timeline)
    slots = matched.slots
    if not -len(slots) <= index < len(slots):
        raise IndexError(f"this timeline has {len(slots)} slots, so there is no slot {index}")
    calls, ranks = matched.calls_of(slots[index]), range(timeline.world_size)
    before = [_before(calls.get(rank)) for rank in ranks]
    after = [_after(calls.get(rank), before[rank]) for rank in ranks]
    owners = {} if any(call["reduce_op"] for call in calls.values()) else _owners(before)
    rows = (
        (Cell(("before",)), *(_cell(before[rank], owners, rank) for rank in ranks)),
        (Cell(("after",)), *(_cell(holding, owners) for holding in after)),
    )
    return Table(
        (_title([calls[rank] for rank in sorted(calls)]), *(f"rank {rank}" for rank in ranks)), rows
    )


def _before(call: Mapping[str, Any] | None) -> Holding:
    if call is None:
        return "takes no part"
    if call["value_in"] is not None:
        return decode_values(call["value_in"]) or []
    if not call["shape"]:
        return "no tensor"
    return "nothing to give" if call["op"] in (Op.SCATTER, Op.RECV) else _TOO_LARGE


def _after(call: Mapping[str, Any] | None, before: Holding) -> Holding:
    if call is None:
        return before
    if call["completed_ns"] is None:
        return "never completed"
    unchanged = call["value_out"] == call["value_in"]
    untouched = unchanged and call["op"] == Op.REDUCE and call["rank"] != call["root"]
    if call["value_out"] is not None and not untouched:
        return decode_values(call["value_out"]) or []
    if not isinstance(before, str):
        return "as before"
    return _TOO_LARGE if call["shape"] else "no tensor"


def _cell(holding: Holding, owners: Mapping[float, int], rank: int | None = None) -> Cell:
    """What a rank holds; `rank`: whose own it is."""
    if isinstance(holding, str):
        return Cell((holding,), html=f"<em>{escape(holding)}</em>")
    texts, tensors = [], []
    for tensor in holding:
        texts.append(f"[{' '.join(map(number, tensor))}]")
        chips = [_chip(value, owners.get(value) if rank is None else rank) for value in tensor]
        if len(chips) > MAX_CHIPS:
            chips[MAX_CHIPS // 2 : -MAX_CHIPS // 2] = [" … "]
        look = "white-space:nowrap;margin-right:.5em"
        tensors.append(f'<span style="{look}">{"".join(chips)}</span>')
    return Cell((" ".join(texts),), html=" ".join(tensors))


def _chip(value: float, owner: int | None) -> str:
    color, source = WHITE, "computed from several ranks"
    if owner is not None:
        color, source = CHIPS[owner % len(CHIPS)], f"from rank {owner}"
    return (
        f'<span title="{source}" style="display:inline-block;min-width:1.6em;text-align:center;padding:0 .35em;'
        f'margin:1px;border:1px solid {BLACK};border-radius:3px;background:{color};color:{BLACK}">'
        f"{number(value)}</span>"
    )


def _owners(before: Sequence[Holding]) -> dict[float, int]:
    """Which rank a value was with before, for values that were with one rank alone."""
    ranks_of: dict[float, set[int]] = {}
    for rank, holding in enumerate(before):
        for value in () if isinstance(holding, str) else chain(*holding):
            ranks_of.setdefault(value, set()).add(rank)
    return {value: ranks.pop() for value, ranks in ranks_of.items() if len(ranks) == 1}


def _title(calls: Sequence[Mapping[str, Any]]) -> str:
    first, ops = calls[0], dict.fromkeys(call["op"] for call in calls)
    if ops.keys() <= POINT_TO_POINT:
        return " and ".join(f"{call['op']} on rank {call['rank']}" for call in calls)
    text = " meets ".join(ops).replace("_", "-")
    if first["reduce_op"]:
        text += f" ({first['reduce_op']})"
    if len(ops) == 1 and first["root"] is not None:
        text += f" {'from' if text in ('broadcast', 'scatter') else 'to'} rank {first['root']}"
    return text
