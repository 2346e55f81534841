"""Meanings: what a rank concludes from the value that a collective gave it.

DDP and Join read very few of the values they exchange. What they conclude from those few is what a wrong meeting
turns into a wrong turn: the one float of a barrier, read as "0 ranks have not joined", ends a rank's join phase.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache

from joinlab.ops import decode_values

Number = int | float


def _ranks(count: Number) -> str:
    return "1 rank has" if count == 1 else f"{number(count)} ranks have"


_CONCLUSIONS: Mapping[str, Callable[[Number], str]] = {  # by the part of the label in brackets
    "join() _get_num_nonjoined_procs()": lambda v: (
        "all ranks have joined" if v == 0 else f"{_ranks(v)} not joined yet" if _is_count(v) else "not all have joined"
    ),
    "join() check bwd grad sync": lambda v: (
        "no rank will synchronise gradients in this iteration"
        if v == 0
        else "the other ranks will synchronise gradients in this iteration"
    ),
    "_find_common_rank()": lambda v: (
        "no rank has the final parameters" if v == -1 else f"rank {number(v)} has the final parameters"
    ),
    "throw check": lambda v: "every rank has an input left" if v == 0 else "a rank has run out of inputs",
}

_UNREAD = {  # PyTorch reduces them and never looks at the result
    "DDP forward() 1",
    "DDP forward() 2",
    "join() hook",
    "join() hook, unused parameters",
    "barrier",
}

_TAKEN = {
    "DDP backward()": "the sum of all ranks' gradients",
    "sync final model params": "the final parameters",
    "broadcast (DDP construction)": "what rank 0's model holds",
}


def number(value: Number) -> str:
    """A value as it is read: 1.0 is "1", a stray bit pattern stays "1.4013e-45", and nothing is rounded off to "3".

    >>> number(1.0), number(0.5), number(1.401298464324817e-45), number(3.0000016689300537)
    ('1', '0.5', '1.4013e-45', '3.00000167')
    """
    if isinstance(value, int) or _is_whole(value):
        return str(int(value))
    said = f"{value:.5g}"
    return f"{value:.9g}" if _is_whole(float(said)) else said  # the little that it is off by may be the point


@lru_cache(4096)  # the same few values come again and again
def conclusion(origin: str | None, value_out: str | None) -> str | None:
    """What the issuer of a call made of the value it got, to be said after "rank 0"; None if that is not known.

    origin     label of the call
    value_out  as in Timeline.calls

    >>> conclusion("all-reduce (join() _get_num_nonjoined_procs())", "[[0.0]]")
    'read 0 and concluded that all ranks have joined'
    >>> conclusion("all-reduce (barrier)", "[[0.0]]")
    'discarded the value'
    """
    who = _who(origin)
    if who in _UNREAD:
        return "discarded the value"
    values = [value for tensor in decode_values(value_out) or () for value in tensor]
    if not values or any(not isinstance(value, int | float) for value in values):
        return None
    if who in _CONCLUSIONS and len(values) == 1:
        return f"read {number(values[0])} and concluded that {_CONCLUSIONS[who](values[0])}"
    if taken := _TAKEN.get(who) or _TAKEN.get(origin or ""):
        return f"took {', '.join(map(number, values))} for {taken}"
    return f"got {', '.join(map(number, values))}"


def _who(origin: str | None) -> str:
    _, bracket, inner = (origin or "").partition(" (")
    return inner.removesuffix(")") if bracket else inner or (origin or "")


def _is_whole(value: Number) -> bool:
    return abs(value) < 1e15 and value == int(value)


def _is_count(value: Number) -> bool:
    return _is_whole(value) and 0 < value < 1e6
