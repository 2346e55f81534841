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
from joinlab.ops import peer_text
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
    first_difference   number of the first row in which they differ; None if they never do
    sentence  the same in words

        comparison.rows[comparison.first_difference].left        # index into joinlab.match(left)
    """

    rows: tuple[ComparedRow, ...]
    first_difference: int | None
    sentence: str


def compare(left: Timeline, right: Timeline) -> Comparison:
    """Align two Timelines and find where they first part.

    print(compare(joinlab.emulate(case_4, era="1.9"), joinlab.emulate(case_4)).sentence)
    """
    left_run, right_run = (f"with {name}" for name in distinct_names(left, right))
    left_side, right_side = _ComparedRun(left), _ComparedRun(right)
    rows = tuple(ComparedRow(*pair) for pair in _aligned(left_side.keys, right_side.keys))
    first: dict[str, tuple[str, str]] = {}  # by kind: where the first such difference is, and what
    first_difference = None
    left_start = right_start = 0
    for index, row in enumerate(rows):
        calls = (
            {} if row.left is None else left_side.calls[row.left],
            {} if row.right is None else right_side.calls[row.right],
        )
        starts = (left_side, left_start), (right_side, right_start)
        for kind, text in _differences(*calls, starts, left_run, right_run):
            if kind not in first:
                first[kind] = _where(row, starts, left), text
        left_start += row.left is not None
        right_start += row.right is not None
        if "parts" in first:
            first_difference = index
            break
    # what a rank read led it elsewhere
    for kind in ("read", "parts") if first_difference is not None else ("data",):
        if kind in first:
            where, text = first[kind]
            if kind == "data":
                lead = "What is carried differs"
            else:
                lead = "They part"
            return Comparison(rows, first_difference, f"{lead} {where}: {text}.")
    ends = [[end.kind for end in side.ends] for side in (left, right)]
    if ends[0] == ends[1]:
        but = "."
    else:
        but = "; only how the ranks end differs."
    return Comparison(
        rows, first_difference, f"Both runs issue the same calls, and each call ends alike{but}"
    )


def distinct_names(left: Timeline, right: Timeline) -> tuple[str, str]:
    """Names for two runs: those of era, backend, engine, program and inputs in which they differ.

    >>> import joinlab
    >>> case_4 = joinlab.cases.case_4
    >>> distinct_names(joinlab.emulate(case_4, era="today"), joinlab.emulate(case_4, era="1.9"))
    ('today', '1.9')
    """

    def facts(timeline: Timeline) -> list[str]:
        meta = timeline.meta
        if meta.get("engine") == "launched":
            engine = "really"
        else:
            engine = str(meta.get("engine", "recorded"))
        era = str((meta.get("emulation") or {}).get("era", "today"))
        return [
            era,
            str(meta.get("backend", "?")),
            engine,
            str(meta.get("program", "program")),
            f"inputs {tuple(meta.get('inputs') or ())}",
        ]

    pairs = []
    for left_text, right_text in zip(facts(left), facts(right), strict=True):
        if left_text != right_text:
            pairs.append((left_text, right_text))
    if not pairs:
        return "the first", "the second"
    left_texts, right_texts = zip(*pairs, strict=True)
    return ", ".join(left_texts), ", ".join(right_texts)


class _ComparedRun:
    """One Timeline: the calls and the key of each slot."""

    def __init__(self, timeline: Timeline) -> None:
        matched = Matched(timeline)
        numbers = {}  # the names are not the same in every run
        for index, name in enumerate(matched.groups):
            numbers[name] = index
        self.calls: list[Calls] = [
            dict(sorted(matched.calls_of(slot).items())) for slot in matched.slots
        ]
        self.keys: list[Key] = [
            (
                _input(slot, calls),
                numbers[slot.group],
                tuple((rank, _name(call)) for rank, call in calls.items()),
            )
            for slot, calls in zip(matched.slots, self.calls, strict=True)
        ]

    def issued(self, start: int, ranks: Sequence[int]) -> str:
        """What each of these ranks issues next, from this slot on: "rank 0 issues barrier"."""
        first: Calls = {}
        for calls in self.calls[start:]:
            first = {**calls, **first}
        names = {}
        for rank, call in first.items():
            names[rank] = quoted(call) + peer_text(call["op"], call["peer"])
        ranks_by_call = by_key((names.get(rank, "no more calls"), rank) for rank in ranks)
        return ", ".join(
            f"{ranks_text(issuers)} {'issues' if len(issuers) == 1 else 'issue'} {name}"
            for name, issuers in ranks_by_call.items()
        )


BEFORE, AFTER = -1, 1 << 62
"""Places of the rows before the first input and after the last."""


def _input(slot: Slot, calls: Calls) -> int:
    """The input that a row belongs to."""
    inputs: list[int] = [call["input"] for call in calls.values() if call["input"] is not None]
    if inputs:
        return max(inputs)
    if slot.input is None:
        return BEFORE
    return AFTER


def _name(call: Call) -> tuple[object, ...]:
    """Key of a call. A barrier has one key, whether it is an all-reduce (NCCL) or gloo's own
    call."""
    label = call["origin"] or call["op"]
    return ("barrier" if label == "all-reduce (barrier)" else label, call["root"], call["peer"])


def _aligned(left: Sequence[Key], right: Sequence[Key]) -> Iterator[tuple[int | None, int | None]]:
    """Pairs of indices of equal keys; a common beginning is always paired."""
    common = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False))))
    yield from ((index, index) for index in range(common))
    matcher = SequenceMatcher(None, left[common:], right[common:], autojunk=False)
    for tag, left_begin, left_end, right_begin, right_end in matcher.get_opcodes():
        left_indices = [*range(common + left_begin, common + left_end)]
        right_indices = [*range(common + right_begin, common + right_end)]
        if tag == "equal":
            yield from zip(left_indices, right_indices, strict=True)
            continue
        # other calls at the same input still stand beside each other
        while left_indices and right_indices:
            left_input, right_input = left[left_indices[0]][0], right[right_indices[0]][0]
            yield (
                left_indices.pop(0) if left_input <= right_input else None,
                right_indices.pop(0) if right_input <= left_input else None,
            )
        yield from ((index, None) for index in left_indices)
        yield from ((None, index) for index in right_indices)


def _differences(
    left_calls: Calls,
    right_calls: Calls,
    starts: Sequence[tuple[_ComparedRun, int]],
    left_run: str,
    right_run: str,
) -> Iterator[tuple[str, str]]:
    """Differences in a row, each with its kind: "parts" (a rank issues another call, or a call ends
    in only one run). `starts`: both runs, and the slot that each has come to.

    The others are "read" (a rank concludes something else) and "data" (dtype, shape or reduce
    operation).
    """
    pairs: dict[int, tuple[Call, Call]] = {}
    for rank in sorted(left_calls.keys() & right_calls.keys()):
        left_call, right_call = left_calls[rank], right_calls[rank]
        if _name(left_call) == _name(right_call):
            pairs[rank] = left_call, right_call
    ranks = sorted((left_calls.keys() | right_calls.keys()) - pairs.keys())
    if ranks:
        left_text, right_text = (run.issued(start, ranks) for run, start in starts)
        yield "parts", f"{left_run} {left_text}; {right_run} {right_text}"
    ranks_by_fates: dict[tuple[str, str], list[int]] = {}
    for rank, (left_call, right_call) in pairs.items():
        fates = _fate(left_call), _fate(right_call)
        if fates[0] != fates[1]:
            ranks_by_fates.setdefault(fates, []).append(rank)
    texts = []
    for (left_fate, right_fate), unlike in ranks_by_fates.items():
        ranks_by_call = by_key((quoted(pairs[rank][0]), rank) for rank in unlike)
        names = (f"{ranks_text(callers)}'s {name}" for name, callers in ranks_by_call.items())
        pronoun, plural = ("they", "s") if len(unlike) > 1 else ("it", "")
        verbs = left_fate.removesuffix(plural), right_fate.removesuffix(plural)
        texts.append(
            f"{left_run} {' and '.join(names)} {verbs[0]}, {right_run} {pronoun} {verbs[1]}"
        )
    if texts:
        yield "parts", "; ".join(texts)
    for rank, (left_call, right_call) in pairs.items():
        if _fate(left_call) == _fate(right_call) and _read(left_call) != _read(right_call):
            reads = f"reads {_read(left_call)} {left_run}, and {_read(right_call)} {right_run}"
            yield "read", f"rank {rank} {reads}"
        if _carried(left_call) != _carried(right_call):
            carries = f"is {_carried(left_call)} {left_run}, {_carried(right_call)} {right_run}"
            yield "data", f"rank {rank}'s {quoted(left_call)} {carries}"


def _where(row: ComparedRow, starts: Sequence[tuple[_ComparedRun, int]], timeline: Timeline) -> str:
    """Where two runs differ: at a call, if it has one number in both; else at the input that the row
    belongs to."""
    numbers = set[int | None]()
    inputs = []
    for (side, start), index in zip(starts, row, strict=True):
        if start < len(side.calls):
            _, group, _ = side.keys[start]
            for call in side.calls[start].values():
                numbers.add(None if group or call["peer"] is not None else call["number"])
        if index is not None:
            inputs.append(side.keys[index][0])
    if len(numbers) == 1 and None not in numbers:
        return f"at call {numbers.pop()}"
    first_input = min(inputs)
    unit = input_or_step(timeline.meta)
    outside = {BEFORE: f"before the first {unit}", AFTER: f"after the last {unit}"}
    return outside.get(first_input, f"at {at_input(first_input, timeline.meta)}")


def _fate(call: Call) -> str:
    if call["error"] is not None:
        return "fails"
    if call["completed_ns"] is not None:
        return "completes"
    return "never completes"


def _read(call: Call) -> str | None:
    """The value that a rank read, and its conclusion; None without a conclusion."""
    made = conclusion(call["origin"], call["value_out"])
    if call["completed_ns"] is not None and made and made.meaning:
        return f"{made.value} ({made.meaning})"
    return None


def _carried(call: Call) -> str:
    if call["dtype"] is None:
        return "without data"
    return ", ".join(filter(None, (tensor(call), call["reduce_op"])))
