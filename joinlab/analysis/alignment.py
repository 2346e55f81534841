"""Alignment: where the calls of two ranks in one group part, by where in the program they came
from.

one     a  b  c  d            they part at 1; from there on each call of `one` fits the one behind it in `other`, which
other   a  x  b  c  d         has issued one more: `more` is -1

one     a  b  c  d            they part at 1, where the next two calls come in another order: `turned` is 2
other   a  c  b  d
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from joinlab.analysis.meanings import FAMILY, parts
from joinlab.program.labels import kind_of
from joinlab.timeline import CallRow

FURTHEST = 3
"""Most calls that one rank may be ahead of another while both still count as issuing the same
calls."""

LONGEST = 8
"""Most calls that may come in a different order."""

Place = tuple[object, ...]
"""Where a call came from: its label, op and root, and the lines of the program that led to it."""


class Misalignment(NamedTuple):
    """`at`: the first calls that are not meant for each other, by index; the rest as drawn above, 0
    without such."""

    at: int
    more: int
    turned: int


def departure(first: Sequence[Place], second: Sequence[Place]) -> Misalignment | None:
    """Where two sequences of calls part; None if one is the beginning of the other.

    Calls are meant for each other if they come from the same place, or if each side has its own
    line for them:

        if rank == 0: broadcast(a, 0)           # each rank has only one of these lines
        else:         broadcast(b, 0)
    """
    both = {*first} & {*second}

    def fits(a: Place, b: Place) -> bool:
        return a == b or (not {a, b} & both and (a[0], *a[2:4]) == (b[0], *b[2:4]))

    index = next(
        (
            position
            for position, (a, b) in enumerate(zip(first, second, strict=False))
            if not fits(a, b)
        ),
        None,
    )
    if index is None:
        return None
    lead = 0
    for by in (by for size in range(1, FURTHEST + 1) for by in (-size, size)):
        first_rest, second_rest = first[index + max(by, 0) :], second[index + max(-by, 0) :]
        if first_rest and second_rest and all(map(fits, first_rest, second_rest)):
            lead = by
            break
    sizes = range(2, min(LONGEST, len(first) - index, len(second) - index) + 1)
    turned = (
        size
        for size in sizes
        if Counter(first[index : index + size]) == Counter(second[index : index + size])
    )
    return Misalignment(index, lead, next(turned, 0))


def place_of(row: CallRow, joins: bool = False) -> Place:
    """The place of a call. `joins`: a call that join() shadows, and its shadow, have one place."""
    label = row["origin"] or row["op"]
    op, source = parts(label)
    if joins and source in FAMILY:
        return op, FAMILY[source], row["op"], row["root"]
    lines = [frame.rpartition(" ")[0] for frame in row["stack"] or () if _of_program(frame)]
    return label, row["call_site"], row["op"], row["root"], *lines


@lru_cache(4096)
def _of_program(frame: str) -> bool:
    return kind_of(frame.rpartition(":")[0]) == "program"
