"""Meanings: what a call of DDP or Join asks, which call it shadows, and what a rank concludes from
the value it got.

DDP and Join read very few of the values they exchange. If the wrong calls meet, a rank reads a
wrong value and takes a wrong branch: it reads the float of a barrier as "0 ranks have not joined",
and ends its join phase.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from joinlab.ops import CallRow, flat_values

Number = int | float


class Meaning(NamedTuple):
    """What calls of one documented label mean.

    asks       in a few words for a learner
    shadows    the labels of which a rank that has joined shadows calls with these
    concludes  what the issuer concludes from the one number that it reads
    takes      what the issuer takes the values for
    unread     PyTorch reduces the value, and never looks at the result
    """

    asks: str
    shadows: tuple[str, ...] = ()
    concludes: Callable[[Number], str] | None = None
    takes: str = ""
    unread: bool = False


def _not_joined(count: Number) -> str:
    if count == 0:
        return "all ranks have joined"
    if not _is_whole(count) or not 0 < count < 1e6:
        return "not all have joined"
    if count == 1:
        return "1 rank has not joined yet"
    return f"{number(count)} ranks have not joined yet"


def _last(rank: Number) -> str:
    if rank == -1:
        return "no rank has the final parameters"
    return f"rank {number(rank)} has the final parameters"


def _synced(ranks: Number) -> str:
    subject = "the other ranks" if ranks else "no rank"
    return f"{subject} will synchronise gradients in this iteration"


_SETUP = "DDP's setup"

MEANINGS: Mapping[str, Meaning] = {  # by the part of a label in brackets, or by all of it
    "DDP forward() 1": Meaning("forward 1", unread=True),
    "DDP forward() 2": Meaning("forward 2", unread=True),
    "DDP backward()": Meaning("backward", takes="the sum of all ranks' gradients"),
    "DDP backward(), unused parameters": Meaning("unused parameters"),
    "DDP backward(), comm hook": Meaning("backward (comm hook)"),
    "DDP forward(), buffers": Meaning("buffers"),
    "broadcast (DDP construction)": Meaning(_SETUP, takes="what rank 0's model holds"),
    "DDP construction": Meaning(_SETUP),
    "DDP bucket rebuild": Meaning("bucket rebuild"),
    "notify_join_context()": Meaning("I have an input"),
    "throw check": Meaning(
        "has any rank run out?",
        concludes=lambda value: (
            "every rank has an input left" if value == 0 else "a rank has run out of inputs"
        ),
    ),
    "join() throw check": Meaning("I have run out", ("throw check",)),
    "join() _get_num_nonjoined_procs()": Meaning(
        "anyone left?", ("DDP forward() 1", "notify_join_context()"), concludes=_not_joined
    ),
    "join() check bwd grad sync": Meaning(
        "sync gradients?", ("DDP forward() 2",), concludes=_synced
    ),
    "join() hook": Meaning("shadow gradient", ("DDP backward()",), unread=True),
    "join() hook, unused parameters": Meaning(
        "shadow unused parameters", ("DDP backward(), unused parameters",), unread=True
    ),
    "join() hook, buffers": Meaning("shadow buffers", ("DDP forward(), buffers",)),
    "_find_common_rank()": Meaning("who is last?", concludes=_last),
    "_find_common_rank(), DDP forward(), buffers": Meaning("whose buffers?"),
    "_find_common_rank(), join() hook, buffers": Meaning(
        "whose buffers?", ("_find_common_rank(), DDP forward(), buffers",)
    ),
    "sync final model params": Meaning("final parameters", takes="the final parameters"),
    "barrier": Meaning("barrier", unread=True),
    "ZeRO": Meaning("ZeRO step"),
    "ZeRO join() hook": Meaning("shadow ZeRO step", ("ZeRO",)),
}

FAMILY = {
    member: min(meaning.shadows)
    for name, meaning in MEANINGS.items()
    for member in (name, *meaning.shadows)
    if meaning.shadows
}
"""One name for a call that is shadowed and for its shadow, by the part of either's label in
brackets."""

_NONE = Meaning("")


def parts(label: str) -> tuple[str, str]:
    """The op of a label, and what stands in its brackets.

    >>> parts("all-reduce (join() hook)"), parts("send")
    (('all-reduce', 'join() hook'), ('send', ''))
    """
    op, bracket, source = label.partition(" (")
    return op, source.removesuffix(")") if bracket else ""


def _meaning(label: str) -> Meaning:
    return MEANINGS.get(label) or MEANINGS.get(parts(label)[1], _NONE)


def asks(origin: str | None, op: str) -> str:
    """What a call asks or does, in a few words for a learner. The documented label stays in
    `origin`.

    >>> asks("all-reduce (join() _get_num_nonjoined_procs())", "all_reduce"), asks("all-reduce", "all_reduce")
    ('anyone left?', 'all-reduce')
    """
    label = origin or op.replace("_", "-")
    return _meaning(label).asks or parts(label)[1] or label


def asks_of(row: Mapping[str, Any]) -> str:
    """The same of a row of a Timeline's calls."""
    return asks(row["origin"], row["op"])


def quoted(row: Mapping[str, object]) -> str:
    """What a call asks, in quotes if it is more than one word.

    >>> quoted({"origin": "all-reduce (join() _get_num_nonjoined_procs())", "op": "all_reduce"})
    '"anyone left?"'
    """
    name = asks_of(row)
    if " " in name:
        return f'"{name}"'
    return name


def is_setup(origin: str) -> bool:
    """Whether a call of this label belongs to DDP's own setup, which the documented traces leave
    out."""
    return any(phase in origin for phase in ("DDP construction", "DDP bucket rebuild"))


def is_own(origin: str) -> bool:
    """Whether a program issues calls of this label itself: DDP, Join and ZeRO issue the others.

    >>> is_own("all-reduce (barrier)"), is_own("all-reduce (DDP backward())")
    (True, False)
    """
    return parts(origin)[1] not in MEANINGS.keys() - {"barrier"}


def shadows(label: str, other_label: str) -> bool:
    """Whether calls of these two labels are meant for each other: the same label, or a call and its
    shadow.

    >>> shadows("all-reduce (join() hook)", "all-reduce (DDP backward())")
    True
    """
    if label == other_label:
        return True
    (op, source), (other_op, other_who) = parts(label), parts(other_label)
    return op == other_op and (
        other_who in _meaning(label).shadows or source in _meaning(other_label).shadows
    )


def number(value: Number) -> str:
    """A number as text: 1.0 is "1", a stray bit pattern stays "1.4013e-45", and 3.00000167 is not
    rounded to "3".

    >>> number(1.0), number(0.5), number(1.401298464324817e-45), number(3.0000016689300537)
    ('1', '0.5', '1.4013e-45', '3.00000167')
    """
    if isinstance(value, int) or _is_whole(value):
        return str(int(value))
    text = f"{value:.5g}"
    # a small difference from a whole number may matter
    if _is_whole(float(text)):
        return f"{value:.9g}"
    return text


def _is_whole(value: Number) -> bool:
    return abs(value) < 1e15 and value == int(value)


class Conclusion(NamedTuple):
    """What a rank made of the value of its call.

    verb     "read", "took", "got" or "discarded"
    value    that value, with what it was taken for
    meaning  what the rank concluded, to follow "that"; "" if nothing
    """

    verb: str
    value: str
    meaning: str = ""

    def __str__(self) -> str:
        """Words to follow "rank 0"."""
        text = f"{self.verb} {self.value}"
        if self.meaning:
            text += f" and concluded that {self.meaning}"
        return text


@lru_cache(4096)  # the same few values come again and again
def conclusion(origin: str | None, value_out: str | None) -> Conclusion | None:
    """The issuer's conclusion from the value it got; None if unknown.

    origin     label of the call
    value_out  as in Timeline.calls

    >>> print(conclusion("all-reduce (join() _get_num_nonjoined_procs())", "[[0.0]]"))
    read 0 and concluded that all ranks have joined
    >>> print(conclusion("all-reduce (barrier)", "[[0.0]]"))
    discarded the value
    """
    meaning = _meaning(origin or "")
    if meaning.unread:
        return Conclusion("discarded", "the value")
    values = flat_values(value_out)
    if not values or any(not isinstance(value, int | float) for value in values):
        return None
    if meaning.concludes and len(values) == 1:
        return Conclusion("read", number(values[0]), meaning.concludes(values[0]))
    got = ", ".join(map(number, values))
    if meaning.takes:
        return Conclusion("took", f"{got} for {meaning.takes}")
    return Conclusion("got", got)


def averages_gradients(row: CallRow) -> bool:
    """Whether DDP issued this call to average gradients."""
    return AVERAGES in (row["origin"] or "")


AVERAGES = "(DDP backward())"
"""In the label of a call by which DDP averages gradients."""
