"""The rows of the picture. What each call is, which calls share a row, and in which order the rows come.

A row is a slot (a set of calls that met) or a fold: neighbouring slots that all matched, as analysis.folding finds
them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from itertools import groupby
from typing import assert_never

from joinlab.analysis.folding import Fold, Part
from joinlab.analysis.matching import Matched, Slot
from joinlab.analysis.meanings import is_setup, quoted, shadows
from joinlab.analysis.wording import at_input, counts_steps, input_or_step, listed, ranks_text, short_site, tensor
from joinlab.backend.calls import elements_of
from joinlab.ops import POINT_TO_POINT, CallRow, Op, op_of
from joinlab.timeline import Meta

Row = CallRow


class RowKind(StrEnum):
    """What a box stands for; the value is what a legend says."""

    FORWARD = "DDP forward()"
    BACKWARD = "DDP backward()"
    JOIN = "join() of a rank that ran out"
    FINAL = "join() after the last input"
    BARRIER = "barrier"
    SETUP = "DDP construction, bucket rebuild"
    REDUCE = "all-reduce, reduce"
    SPREAD = "broadcast, scatter"
    COLLECT = "gather, all-gather, all-to-all"
    PAIR = "send, recv"
    OTHER = "other call"
    FOLD = "folded: all matched"
    WAIT = "host waits"
    SPAN = "host works"


_KINDS = (  # the first that fits; "join()" stands in many labels, hence the order
    ("barrier", RowKind.BARRIER),
    ("(_find_common_rank())", RowKind.FINAL),
    ("final model", RowKind.FINAL),
    ("join()", RowKind.JOIN),
    ("forward()", RowKind.FORWARD),
    ("backward()", RowKind.BACKWARD),
)


def kind(call: Row) -> RowKind:
    """What sort of call this is, told by its label."""
    return _kind(call["origin"] or "", call["op"])


@lru_cache(1024)
def _kind(origin: str, op: str) -> RowKind:
    if is_setup(origin):
        return RowKind.SETUP
    for word, found in _KINDS:
        if word in origin:
            return found
    known = op_of(op)
    return RowKind.OTHER if known is None else _own(known)


def _own(op: Op) -> RowKind:
    """What sort of call of the program's own this is: told by what it does with the ranks' data."""
    match op:
        case Op.ALL_REDUCE | Op.REDUCE | Op.REDUCE_SCATTER:
            return RowKind.REDUCE
        case Op.BROADCAST | Op.SCATTER:
            return RowKind.SPREAD
        case Op.GATHER | Op.ALL_GATHER | Op.ALL_TO_ALL:
            return RowKind.COLLECT
        case Op.SEND | Op.RECV:
            return RowKind.PAIR
        case Op.BARRIER:
            return RowKind.BARRIER
        case _:
            assert_never(op)


@dataclass(frozen=True, slots=True)
class PictureRow:
    """One row: the calls in it (indices into Timeline.calls) and the slots that it stands for.

    met     they exchanged data, or would have
    bad     they do not belong together: they differ in `differs`, as in Slot
    text    what is wrong: what each rank issued, or who never came
    fold    the fold that the row stands for; None: it is a slot of its own
    """

    calls: tuple[int, ...]
    slots: tuple[int, ...]
    met: bool = True
    bad: bool = False
    differs: tuple[str, ...] = ()
    text: str = ""
    fold: Fold | None = None


def plan(
    matched: Matched, numbers: Sequence[int] | None = None, lanes: Mapping[int, Sequence[int]] | None = None
) -> tuple[PictureRow, ...]:
    """One row a slot, in an order that keeps every rank's own order of issue.

    Two ranks can issue calls of two groups crosswise, and then no such order exists: a slot that stands in the way
    is taken apart, and its calls get a row each.

    numbers  what the slots are to be called; None: by their index in matched.slots
    lanes    the ranks that each rank stands for; None: for itself
    """
    calls = matched.rows
    at = {(call["rank"], call["group"], call["seq"]): index for index, call in enumerate(calls)}
    step_of: dict[int, PictureRow] = {}
    said: set[tuple[str, str]] = set()  # a rank that never came is told of once
    for number, slot in enumerate(matched.slots):
        members = tuple(at[rank, slot.group, seq] for rank, seq in sorted(slot.calls.items()))
        rows = [calls[index] for index in members]
        bad = not slot.expected
        if bad:
            text = clash(rows, slot, lanes)
        else:
            text = "" if slot.refused else missing(rows, slot) or other_lines(rows, lanes)
        text = text if bad or (slot.group, text) not in said else ""
        said.add((slot.group, text))
        called = number if numbers is None else numbers[number]
        step_of.update(dict.fromkeys(members, PictureRow(members, (called,), slot.met, bad, slot.differs, text)))
    queues: dict[int, list[int]] = {}
    for index in range(len(calls) - 1, -1, -1):  # reversed: the next one is popped off the end
        queues.setdefault(calls[index]["rank"], []).append(index)
    found: list[PictureRow] = []
    while heads := {queue[-1] for queue in queues.values() if queue}:
        steps = sorted({step_of[call] for call in heads}, key=lambda step: (step.slots, step.calls))
        ready = next((step for step in steps if heads.issuperset(step.calls)), None)
        if ready is None:
            here = tuple(call for call in steps[0].calls if call in heads)
            rest = tuple(call for call in steps[0].calls if call not in heads)
            ready = _apart(steps[0], here, rest, calls, lanes)
            step_of.update(dict.fromkeys(rest, _apart(steps[0], rest, here, calls, lanes)))
        for call in ready.calls:
            queues[calls[call]["rank"]].pop()
        found.append(ready)
    return tuple(found)


def clash(rows: Sequence[Row], slot: Slot, lanes: Mapping[int, Sequence[int]] | None = None) -> str:
    """That calls at one place do not belong together. Boxes name the calls; this tells what else differs.

    lanes  the ranks that each rank stands for; None: for itself
    """
    told: dict[str, list[int]] = {}
    for row in rows:
        carried = tensor(row) if {"dtype", "shape"} & set(slot.differs) else ""
        reduced = f"reduced by {row['reduce_op']}" if "reduce_op" in slot.differs else ""
        root = f"root {row['root']}" if "root" in slot.differs else ""
        what = ", ".join(filter(None, (carried, reduced, root)))
        told.setdefault(what, []).extend([row["rank"]] if lanes is None else lanes[row["rank"]])
    said = "; ".join(f"{ranks_text(ranks)} {what}" for what, ranks in told.items() if what)
    return (
        f"≠ {'Met, but should not have' if slot.met else 'Face each other, but can never meet'}{said and ': '}{said}."
    )


def _apart(
    step: PictureRow,
    here: tuple[int, ...],
    rest: Sequence[int],
    calls: Sequence[Row],
    lanes: Mapping[int, Sequence[int]] | None,
) -> PictureRow:
    """The row of some calls of a slot whose other calls stand in another row: where it went wrong, it names those."""
    if not step.bad:
        return replace(step, calls=here)
    theirs = [
        f"{ranks_text([calls[at]['rank']] if lanes is None else lanes[calls[at]['rank']])}'s {quoted(calls[at])}"
        for at in rest
    ]
    met = "Met {}, but should not have" if step.met else "Faces {}, but can never meet it"
    return replace(step, calls=here, text=f"≠ {met.format(listed(theirs))}.")


def other_lines(rows: Sequence[Row], lanes: Mapping[int, Sequence[int]] | None = None) -> str:
    """That ranks met in the same call of other lines: they may be in different rounds; "" where they are not."""
    told: dict[str, list[int]] = {}
    for row in rows:
        if row["op"] in POINT_TO_POINT or row["origin"] != rows[0]["origin"] or not row["call_site"]:
            return ""
        ranks = [row["rank"]] if lanes is None else lanes[row["rank"]]
        told.setdefault(short_site(row["call_site"]), []).extend(ranks)
    if len(told) < 2:
        return ""
    fewest_first = sorted(told.items(), key=lambda line: len(line[1]))
    return f"Met from different lines: {'; '.join(f'{ranks_text(ranks)} {site}' for site, ranks in fewest_first)}."


def unlike(one: Row, other: Row, differs: Sequence[str]) -> bool:
    """Whether these two calls are among those that differ in a slot; others of the slot may be alike."""
    for name in differs:
        if name == "origin":
            if not shadows(one["origin"] or "", other["origin"] or ""):
                return True
        elif name == "shape":
            if elements_of(one["shape"]) != elements_of(other["shape"]):
                return True
        elif one.get(name) != other.get(name):
            return True
    return False


def missing(rows: Sequence[Row], slot: Slot) -> str:
    """That these ranks never issued their part of a call that is not complete; "" if none, or if it completed."""
    if slot.pair or not slot.absent or all(row["completed_ns"] is not None for row in rows):
        return ""
    return f"∅ Nothing meets this call: {ranks_text(slot.absent)} never issued one."


def fold(rows: Sequence[PictureRow], parts: Sequence[Part], numbers: Sequence[int]) -> tuple[PictureRow, ...]:
    """The same rows, those of each fold made one row.

    numbers  what the slots that the folds count are called in the rows
    """
    fold_of = {numbers[at]: part for part in parts if isinstance(part, Fold) for at in range(part.begin, part.end)}
    found: list[PictureRow] = []
    for part, run in groupby(rows, lambda row: fold_of.get(row.slots[0])):
        some = list(run)
        if part is None:
            found += some
        else:
            members = tuple(call for row in some for call in row.calls)
            found.append(PictureRow(members, tuple(slot for row in some for slot in row.slots), fold=part))
    return tuple(found)


def stretches(calls: Sequence[Row], steps: Sequence[PictureRow], meta: Meta) -> list[str]:
    """For each row the inputs it belongs to: "inputs[2]", or "step 2"; "" where neither is known.

    Where ranks that met are at different inputs, both are named.
    """
    what, by_step = input_or_step(meta), counts_steps(meta)
    if all(row["input"] is None for row in calls):
        return [""] * len(steps)
    found = []
    begun = False
    for step in steps:
        inputs = sorted({at for call in step.calls if (at := calls[call]["input"]) is not None})
        begun = begun or bool(inputs)
        outside = f"after the last {what}" if begun else f"before the first {what}"
        several = len(inputs) > 2 and inputs[-1] - inputs[0] == len(inputs) - 1
        if several:
            here = f"steps {inputs[0]} to {inputs[-1]}" if by_step else f"inputs[{inputs[0]}] to [{inputs[-1]}]"
        else:
            here = " and ".join(at_input(number, meta) for number in inputs)
        found.append(here or outside)
    return found
