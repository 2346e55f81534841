"""Comparison: the calls of two Timelines row by row on one axis, and the first place where the two
runs part.

The two may differ in anything: emulated and launched, with a barrier and without, PyTorch 1.9 and
today, other inputs. A row has a slot (see matching) of one run, or the same slot of both. Rows can
differ in small things, such as the dtype of a barrier, long before these matter. The runs part
where a rank issues another call, or where a call ends in only one of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import takewhile
from typing import Any, NamedTuple

from joinlab.analysis.matching import Matched, Slot
from joinlab.analysis.meanings import conclusion, quoted
from joinlab.analysis.wording import at_input, by_key, input_or_step, ranks_text, tensor
from joinlab.timeline import Timeline

Call = Mapping[str, Any]
Calls = dict[int, Call]
"""The calls of one slot, by rank."""

Key = tuple[Any, ...]
"""Key by which rows of both runs are paired; the place comes first."""


class ComparedRow(NamedTuple):
    """A row of the common axis: the slot's index in joinlab.match of each Timeline, or None."""

    left: int | None
    right: int | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two Timelines on one axis.

    rows      every slot of both, in the order of each
    parting   the row where they part; None if they never do
    sentence  the same in words

        comparison.rows[comparison.parting].left        # index into joinlab.match(left)
    """

    rows: tuple[ComparedRow, ...]
    parting: int | None
    sentence: str


def compare(left: Timeline, right: Timeline) -> Comparison:
    """Align two Timelines and find where they first part.

    print(compare(joinlab.emulate(case_4, era="1.9"), joinlab.emulate(case_4)).sentence)
    """
    here, there = (f"with {name}" for name in told_apart(left, right))
    one, other = _Side(left), _Side(right)
    rows = tuple(ComparedRow(*pair) for pair in _aligned(one.keys, other.keys))
    first: dict[
        str, tuple[ComparedRow, str]
    ] = {}  # by kind: the first row with such a difference, and what it is
    parting = None
    for at, row in enumerate(rows):
        calls = (
            {} if row.left is None else one.calls[row.left],
            {} if row.right is None else other.calls[row.right],
        )
        for kind, text in _differences(*calls, here, there):
            first.setdefault(kind, (row, text))
        if "parts" in first:
            parting = at
            break
    for kind in (
        ("read", "parts") if parting is not None else ("data",)
    ):  # what a rank read led it elsewhere
        if kind in first:
            row, text = first[kind]
            places = [
                side.keys[at][0]
                for side, at in ((one, row.left), (other, row.right))
                if at is not None
            ]
            lead = "What is carried differs" if kind == "data" else "They part"
            return Comparison(rows, parting, f"{lead} {_where(min(places), left)}: {text}.")
    ends = [[end.kind for end in side.ends] for side in (left, right)]
    but = "." if ends[0] == ends[1] else "; only how the ranks end differs."
    return Comparison(
        rows, parting, f"Both runs issue the same calls, and each call ends alike{but}"
    )


def told_apart(left: Timeline, right: Timeline) -> tuple[str, str]:
    """Names for two runs: those of era, backend, engine, program and inputs in which they differ.

    >>> import joinlab
    >>> case_4 = joinlab.cases.case_4
    >>> told_apart(joinlab.emulate(case_4, era="today"), joinlab.emulate(case_4, era="1.9"))
    ('today', '1.9')
    """

    def told(timeline: Timeline) -> list[str]:
        meta = timeline.meta
        engine = (
            "really" if meta.get("engine") == "launched" else str(meta.get("engine", "recorded"))
        )
        era = str((meta.get("emulation") or {}).get("era", "today"))
        return [
            era,
            str(meta.get("backend", "?")),
            engine,
            str(meta.get("program", "program")),
            f"inputs {tuple(meta.get('inputs') or ())}",
        ]

    pairs = [
        (one, other) for one, other in zip(told(left), told(right), strict=True) if one != other
    ]
    if not pairs:
        return "the first", "the second"
    ones, others = zip(*pairs, strict=True)
    return ", ".join(ones), ", ".join(others)


class _Side:
    """One Timeline: the calls and the key of each slot."""

    def __init__(self, timeline: Timeline) -> None:
        matched = Matched(timeline)
        numbers = {
            name: at for at, name in enumerate(matched.groups)
        }  # the names are not the same in every run
        self.calls: list[Calls] = [
            dict(sorted(matched.calls_of(slot).items())) for slot in matched.slots
        ]
        self.keys: list[Key] = [
            (
                _place(slot, calls),
                numbers[slot.group],
                tuple((rank, _name(call)) for rank, call in calls.items()),
            )
            for slot, calls in zip(matched.slots, self.calls, strict=True)
        ]


BEFORE, AFTER = -1, 1 << 62
"""Places of the rows before the first input and after the last."""


def _place(slot: Slot, calls: Calls) -> int:
    """The input that a row belongs to."""
    inputs = [call["input"] for call in calls.values() if call["input"] is not None]
    return max(inputs) if inputs else BEFORE if slot.input is None else AFTER


def _name(call: Call) -> tuple[Any, ...]:
    """Key of a call. A barrier has one key, whether it is an all-reduce (NCCL) or gloo's own
    call."""
    label = call["origin"] or call["op"]
    return ("barrier" if label == "all-reduce (barrier)" else label, call["root"], call["peer"])


def _aligned(left: Sequence[Key], right: Sequence[Key]) -> Iterator[tuple[int | None, int | None]]:
    """Pairs of indices of equal keys; a common beginning is always paired."""
    same = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False))))
    yield from ((at, at) for at in range(same))
    for tag, a, a_end, b, b_end in SequenceMatcher(
        None, left[same:], right[same:], autojunk=False
    ).get_opcodes():
        ours, theirs = list(range(same + a, same + a_end)), list(range(same + b, same + b_end))
        if tag == "equal":
            yield from zip(ours, theirs, strict=True)
            continue
        while ours and theirs:  # other calls at the same input still stand beside each other
            mine, yours = left[ours[0]][0], right[theirs[0]][0]
            yield (ours.pop(0) if mine <= yours else None, theirs.pop(0) if yours <= mine else None)
        yield from ((at, None) for at in ours)
        yield from ((None, at) for at in theirs)


def _differences(ours: Calls, theirs: Calls, here: str, there: str) -> Iterator[tuple[str, str]]:
    """Differences in a row, each with its kind: "parts" (a rank issues another call, or a call ends
    in only one run).

    The others are "read" (a rank concludes something else) and "data" (dtype, shape or reduce
    operation).
    """
    both = sorted(ours.keys() & theirs.keys())
    alike = {
        rank: (ours[rank], theirs[rank])
        for rank in both
        if _name(ours[rank]) == _name(theirs[rank])
    }
    if other := sorted((ours.keys() | theirs.keys()) - alike.keys()):
        yield "parts", f"{here} {_issued(ours, other)}; {there} {_issued(theirs, other)}"
    fates = [
        f"rank {rank}'s {quoted(one)} {_fate(one)} {here} and {_fate(two)} {there}"
        for rank, (one, two) in alike.items()
        if _fate(one) != _fate(two)
    ]
    if fates:
        yield "parts", "; ".join(fates)
    for rank, (one, two) in alike.items():
        if _fate(one) == _fate(two) and _read(one) != _read(two):
            yield "read", f"rank {rank} reads {_read(one)} {here}, and {_read(two)} {there}"
        if _carried(one) != _carried(two):
            yield (
                "data",
                f"rank {rank}'s {quoted(one)} is {_carried(one)} {here}, {_carried(two)} {there}",
            )


def _issued(calls: Calls, ranks: Sequence[int]) -> str:
    """Which calls these ranks issue: "rank 0 issues barrier"."""
    told = by_key(
        (quoted(calls[rank]) if rank in calls else "no call here", rank) for rank in ranks
    )
    return ", ".join(
        f"{ranks_text(some)} issue{'s' * (len(some) == 1)} {what}" for what, some in told.items()
    )


def _where(place: int, timeline: Timeline) -> str:
    what = input_or_step(timeline.meta)
    outside = {BEFORE: f"before the first {what}", AFTER: f"after the last {what}"}
    return outside.get(place, f"at {at_input(place, timeline.meta)}")


def _fate(call: Call) -> str:
    if call["error"] is not None:
        return "fails"
    return "completes" if call["completed_ns"] is not None else "never completes"


def _read(call: Call) -> str | None:
    """The value that a rank read, and its conclusion; None without a conclusion."""
    said = (
        conclusion(call["origin"], call["value_out"]) if call["completed_ns"] is not None else None
    )
    value, _, concluded = (said or "").partition(" and concluded that ")
    return f"{value.removeprefix('read ')} ({concluded})" if concluded else None


def _carried(call: Call) -> str:
    return (
        "without data"
        if call["dtype"] is None
        else ", ".join(filter(None, (tensor(call), call["reduce_op"])))
    )
