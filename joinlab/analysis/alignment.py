"""Alignment: where the calls of two ranks in one group are no longer meant for each other.

first   a  b  c  d            misaligned at 1; from there on each call of `first` fits the one behind it in `second`,
second  a  x  b  c  d         which has issued one more: `lead` is -1

first   a  b  c  d            misaligned at 1, where the next two calls come in another order: `turned` is 2
second  a  c  b  d
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import product, starmap
from typing import NamedTuple

from joinlab.analysis.meanings import FAMILY, parts
from joinlab.backend.calls import elements_of
from joinlab.program.labels import owner_of
from joinlab.timeline import CallRow

FURTHEST = 3
"""Most calls that one rank may be ahead of another while both still count as issuing the same
calls."""

LONGEST = 8
"""Most calls that may come in a different order."""

Identity = tuple[object, ...]
"""What calls share that are meant for each other: label, line, op and root, their data, and the
lines of the program that led to them."""

Fit = Callable[[Identity, Identity], bool]


class Misalignment(NamedTuple):
    """`begin`: index of the first calls that are not meant for each other; the rest as drawn above, 0
    without such."""

    begin: int
    lead: int
    turned: int


def align(first: Sequence[Identity], second: Sequence[Identity]) -> Misalignment | None:
    """The first misalignment of two sequences of calls; None if one is the beginning of the other.

    Calls are meant for each other if they are identical, or if each side has its own line for them:

        if rank == 0: broadcast(a, 0)           # each rank has only one of these lines
        else:         broadcast(b, 0)
    """
    both = {*first} & {*second}

    def fits(a: Identity, b: Identity) -> bool:
        return a == b or (not {a, b} & both and _are_alike(a, b))

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

    def leads(fit: Fit, ahead: Sequence[Identity], behind: Sequence[Identity], by: int) -> bool:
        rest = ahead[by:]
        if not (rest and behind and all(map(fit, rest, behind))):
            return False
        # Calls of `behind` that nothing is left for may be meant for those that seem to be too many:
        # then they come in another order, or are other calls in their place.
        unmatched = behind[len(rest) :]
        swapped = any(starmap(_are_alike, product(ahead[:by], unmatched)))
        return not (unmatched and (swapped or all(map(fit, ahead[1:], behind[1:]))))

    lead, first_rest, second_rest = 0, first[index:], second[index:]
    for fit, size in product((fits, _are_alike), range(1, FURTHEST + 1)):
        if leads(fit, second_rest, first_rest, size):
            lead = -size
        elif leads(fit, first_rest, second_rest, size):
            lead = size
        if lead:
            break
    # where one rank has issued more of them, the two that fit may be of different rounds
    equal = all(first.count(call) == second.count(call) for call in (first[index], second[index]))
    longest = min(LONGEST, len(first) - index, len(second) - index) if equal else 0
    turned = (
        size
        for size in range(2, longest + 1)
        if Counter(first[index : index + size]) == Counter(second[index : index + size])
    )
    return Misalignment(index, lead, next(turned, 0))


def _are_alike(first: Identity, second: Identity) -> bool:
    """Whether two calls have one label, op and root, if not one line."""
    return (first[0], *first[2:4]) == (second[0], *second[2:4])


def identity_of(row: CallRow, joins: bool = False) -> Identity:
    """The identity of a call. `joins`: a call that join() shadows, and its shadow, have the same."""
    label = row["origin"] or row["op"]
    op, source = parts(label)
    if joins and source in FAMILY:
        return f"{op} ({FAMILY[source]})", None, row["op"], row["root"]
    lines = [frame.rpartition(" ")[0] for frame in row["stack"] or () if _of_program(frame)]
    data = row["dtype"], elements_of(row["shape"])
    return label, row["call_site"], row["op"], row["root"], *data, *lines


@lru_cache(4096)
def _of_program(frame: str) -> bool:
    return owner_of(frame.rpartition(":")[0]) == "program"
