"""Comparison: the calls of two Timelines row by row on one axis, and the first place where the two runs part.

The two may differ in anything: emulated and launched, with a barrier and without, PyTorch 1.9 and today, other
inputs. A row holds a slot (see matching) of the one, of the other, or of both: what stands before and after the
same slots stands in the same rows. Rows can differ in small things, such as the dtype of a barrier, long before
anything comes of it. The two part where a rank issues another call, or where a call ends in one run and not in the
other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import takewhile
from math import isclose, isnan
from typing import Any

from joinlab.analysis.conclusions import conclusion
from joinlab.analysis.matching import Matched, Slot
from joinlab.analysis.wording import at_input, elements, input_or_step, quoted, ranks_text, tensor
from joinlab.ops import decode_values
from joinlab.timeline import Ending, Timeline

Call = Mapping[str, Any]
Calls = dict[int, Call]
"""The calls of one slot, by rank."""

Key = tuple[Any, ...]
"""What makes a row the same in both runs; its place comes first."""

PARTING = ("calls", "completion")
"""Differences that make two runs part; the others are of what is carried."""


@dataclass(frozen=True, slots=True)
class ComparedRow:
    """One place on the common axis.

    left, right   index of the slot in joinlab.match of that Timeline; None: nothing stands here
    differs       in what the two differ: "calls" (a rank issues another one, or none), "completion" (a call ends in one
                  and not in the other), "read" (a rank concludes something else), "data" (dtype, shape or reduce
                  operation), "values"
    """

    left: int | None
    right: int | None
    differs: tuple[str, ...] = ()


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

    def other(self, slot: int, side: str = "left") -> int | None:
        """The slot of the other Timeline that stands in the row of this one."""
        row = next(row for row in self.rows if getattr(row, side) == slot)
        return row.right if side == "left" else row.left


def compare(left: Timeline, right: Timeline) -> Comparison:
    """Lay two Timelines beside each other and say where they first part.

    print(compare(joinlab.emulate(case_4, era="1.9"), joinlab.emulate(case_4)).sentence)
    """
    one, other = map(_Side, (left, right), map(_at, told_apart(left, right)))
    rows = tuple(
        ComparedRow(a, b, _differences(one.calls[a] if a is not None else {}, other.calls[b] if b is not None else {}))
        for a, b in _aligned(one.keys, other.keys)
    )
    parting = next((at for at, row in enumerate(rows) if set(PARTING) & set(row.differs)), None)
    return Comparison(rows, parting, _sentence(rows, parting, one, other))


def told_apart(left: Timeline, right: Timeline) -> tuple[str, str]:
    """What tells two runs apart, as names for them: the era, backend, engine, program or inputs of each.

    >>> import joinlab
    >>> case_4 = joinlab.cases.case_4
    >>> told_apart(joinlab.emulate(case_4, era="today"), joinlab.emulate(case_4, era="1.9"))
    ('today', '1.9')
    """

    def told(timeline: Timeline) -> list[str]:
        meta = timeline.meta
        engine = "really" if meta.get("engine") == "launched" else str(meta.get("engine", "recorded"))
        era = str((meta.get("emulation") or {}).get("era", "today"))
        return [
            era,
            str(meta.get("backend", "?")),
            engine,
            str(meta.get("program", "program")),
            f"inputs {tuple(meta.get('inputs') or ())}",
        ]

    pairs = [(one, other) for one, other in zip(told(left), told(right), strict=True) if one != other]
    if not pairs:
        return "left", "right"
    ones, others = zip(*pairs, strict=True)
    return ", ".join(ones), ", ".join(others)


class _Side:
    """One Timeline, with the columns that are asked for looked up once."""

    def __init__(self, timeline: Timeline, at: str) -> None:
        self.meta = timeline.meta
        self.at = at  # "on the left", "with 1.9"
        matched = Matched(timeline)
        rows = matched.row_of
        numbers = {name: at for at, name in enumerate(matched.groups)}  # the names are not the same in every run
        self.slots: tuple[Slot, ...] = matched.slots
        self.calls: list[Calls] = [
            {rank: rows[rank, slot.group, seq] for rank, seq in sorted(slot.calls.items())} for slot in self.slots
        ]
        self.keys: list[Key] = [
            (_place(slot, calls), numbers[slot.group], tuple((rank, _name(call)) for rank, call in calls.items()))
            for slot, calls in zip(self.slots, self.calls, strict=True)
        ]
        self.ends: tuple[Ending, ...] = timeline.ends


BEFORE, AFTER = -1, 1 << 62
"""The places of rows that no input was being processed in: before the first input, and after the last."""


def _place(slot: Slot, calls: Calls) -> int:
    """The input that a row belongs to."""
    inputs = [call["input"] for call in calls.values() if call["input"] is not None]
    return max(inputs) if inputs else BEFORE if slot.input is None else AFTER


def _name(call: Call) -> tuple[Any, ...]:
    """What makes a call the same in both runs. A barrier is one, whether it is an all-reduce (NCCL) or not (gloo)."""
    label = call["origin"] or call["op"]
    return ("barrier" if label == "all-reduce (barrier)" else label, call["root"], call["peer"])


def _aligned(left: Sequence[Key], right: Sequence[Key]) -> Iterator[tuple[int | None, int | None]]:
    """Indices side by side: equal ones stand together, those that begin alike always do."""
    same = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False))))
    yield from ((at, at) for at in range(same))
    for tag, a, a_end, b, b_end in SequenceMatcher(None, left[same:], right[same:], autojunk=False).get_opcodes():
        ours, theirs = list(range(same + a, same + a_end)), list(range(same + b, same + b_end))
        if tag == "equal":
            yield from zip(ours, theirs, strict=True)
            continue
        while ours and theirs:  # other calls at the same input still stand beside each other
            mine, yours = left[ours[0]][0], right[theirs[0]][0]
            yield (ours.pop(0) if mine <= yours else None, theirs.pop(0) if yours <= mine else None)
        yield from ((at, None) for at in ours)
        yield from ((None, at) for at in theirs)


def _differences(left: Calls, right: Calls) -> tuple[str, ...]:
    found = []
    both = [(left[rank], right[rank]) for rank in sorted(left.keys() & right.keys())]
    if left.keys() != right.keys() or any(_name(one) != _name(other) for one, other in both):
        found.append("calls")
    alike = [(one, other) for one, other in both if _name(one) == _name(other)]
    if any(_fate(one) != _fate(other) for one, other in alike):
        found.append("completion")
    if any(_read(one) != _read(other) for one, other in alike if _fate(one) == _fate(other)):
        found.append("read")
    if any(_data(one) != _data(other) for one, other in alike):
        found.append("data")
    if any(_values_differ(one, other) for one, other in alike):
        found.append("values")
    return tuple(found)


def _fate(call: Call) -> str:
    if call["error"] is not None:
        return "fails"
    return "completes" if call["completed_ns"] is not None else "never completes"


def _read(call: Call) -> str | None:
    """What a rank concluded, where it concluded anything; the numbers alone are values."""
    said = conclusion(call["origin"], call["value_out"]) if call["completed_ns"] is not None else None
    return said if said and " concluded that " in said else None


def _data(call: Call) -> tuple[Any, ...] | None:
    if call["dtype"] is None:  # a barrier of gloo
        return None
    return call["dtype"], elements(call), call["reduce_op"]


def _values_differ(one: Call, other: Call) -> bool:
    """Whether known values differ by more than the order of an addition can make."""
    for name in ("value_in", "value_out"):
        ours, theirs = decode_values(one[name]), decode_values(other[name])
        if ours is None or theirs is None:
            continue
        flat, other_flat = ([value for tensor in both for value in tensor] for both in (ours, theirs))
        if len(flat) != len(other_flat) or not all(map(_close, flat, other_flat)):
            return True
    return False


def _close(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return isclose(one, other, rel_tol=1e-4, abs_tol=1e-30) or (isnan(one) and isnan(other))
    return bool(one == other)


# ------------------------------------------------------------------------------------------------ in words


def _sentence(rows: Sequence[ComparedRow], parting: int | None, left: _Side, right: _Side) -> str:
    told = []
    if len(left.ends) != len(right.ends):
        told.append(f"{_ranks(left)} {left.at}, {_ranks(right)} {right.at}.")
    if parting is None:
        told.append("Both runs issue the same calls, and each call ends alike.")
        if len(left.ends) == len(right.ends) and [end.kind for end in left.ends] != [end.kind for end in right.ends]:
            told.append("Only how the ranks end differs.")
    else:
        row = rows[parting]
        ours, theirs = _calls(row, left, right)
        if "calls" in row.differs:
            said = f"{left.at} {_issued(ours, theirs)}; {right.at} {_issued(theirs, ours)}"
        else:
            said = _fates(ours, theirs, left.at, right.at)
        told.append(f"They part {_where(row, left, right)}: {said}.")
    before = rows if parting is None else rows[: parting + 1]
    for what, lead in (("read", "A rank read something else"), ("data", "What is carried differs")):
        found = next((row for row in before if what in row.differs), None)
        if found is not None:
            told.append(f"{lead} {_where(found, left, right)}: {_difference(found, what, left, right)}.")
    return " ".join(told)


def _at(name: str) -> str:
    return f"on the {name}" if name in ("left", "right") else f"with {name}"


def _ranks(side: _Side) -> str:
    return f"{len(side.ends)} rank{'s' * (len(side.ends) > 1)}"


def _calls(row: ComparedRow, left: _Side, right: _Side) -> tuple[Calls, Calls]:
    return (
        left.calls[row.left] if row.left is not None else {},
        right.calls[row.right] if row.right is not None else {},
    )


def _where(row: ComparedRow, left: _Side, right: _Side) -> str:
    places = [side.keys[at][0] for side, at in ((left, row.left), (right, row.right)) if at is not None]
    place = min(places)
    what = input_or_step(left.meta)
    outside = {BEFORE: f"before the first {what}", AFTER: f"after the last {what}"}
    return outside.get(place, f"at {at_input(place, left.meta)}")


def _issued(calls: Calls, others: Calls) -> str:
    """What the ranks issue that do something else than on the other side: "rank 0 issues barrier"."""
    told: dict[str, list[int]] = {}
    for rank in sorted(calls.keys() | others.keys()):
        mine, theirs = calls.get(rank), others.get(rank)
        if mine is not None and theirs is not None and _name(mine) == _name(theirs):
            continue
        told.setdefault("no call here" if mine is None else quoted(mine), []).append(rank)
    return ", ".join(f"{ranks_text(ranks)} issue{'s' * (len(ranks) == 1)} {what}" for what, ranks in told.items())


def _fates(left: Calls, right: Calls, here: str, there: str) -> str:
    told = []
    for rank in sorted(left.keys() & right.keys()):
        ours, theirs = _fate(left[rank]), _fate(right[rank])
        if ours != theirs:
            told.append(f"rank {rank}'s {quoted(left[rank])} {ours} {here} and {theirs} {there}")
    return "; ".join(told)


def _difference(row: ComparedRow, what: str, left: _Side, right: _Side) -> str:
    ours, theirs = _calls(row, left, right)
    for rank in sorted(ours.keys() & theirs.keys()):
        one, other = ours[rank], theirs[rank]
        if _name(one) != _name(other):
            continue
        if what == "read" and _fate(one) == _fate(other) and _read(one) != _read(other):
            return f"rank {rank} {_read(one)} {left.at}, and {_read(other)} {right.at}"
        if what == "data" and _data(one) != _data(other):
            return f"rank {rank}'s {quoted(one)} is {_carried(one)} {left.at}, {_carried(other)} {right.at}"
    raise AssertionError(f"no rank shows a difference in {what}")


def _carried(call: Call) -> str:
    reduced = f", {call['reduce_op']}" if call["reduce_op"] else ""
    return "without data" if call["dtype"] is None else f"{tensor(call)}{reduced}"
