"""Matching: which calls of the ranks met, and how they differ.

A backend pairs calls by its own rule, not by the program's intention. On NCCL the k-th collective
of one rank on a communicator meets the k-th of the other, of whatever kinds they are. On gloo they
must also be of the same kind, or they miss each other and both wait. Sends and recvs pair up by
sender, receiver and, on gloo, tag, outside that count. A `Slot` is one such pairing, met or missed;
`match` lists them all in an order that agrees with each rank's own.

Some calls with different labels are meant to meet: `join()` lets a rank without inputs shadow, call
by call, the forward and backward passes of the others. `meanings` lists these pairs. Any other two
labels should not meet.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from joinlab.analysis.hashing import Numbers
from joinlab.analysis.meanings import shadows
from joinlab.analysis.reading import Flags, Reading, read
from joinlab.analysis.splits import misfits
from joinlab.analysis.wording import by_key
from joinlab.backend.calls import IssuedCall, Key, call_of, elements_of
from joinlab.gloo.messages import kind as gloo_kind
from joinlab.ops import FACTS, POINT_TO_POINT, Op, decode_values
from joinlab.timeline import CallRow, Timeline, backend_of, derived


@dataclass(frozen=True, slots=True)
class Slot:
    """The calls at one place in the order of a group.

    group     name of the process group
    calls     seq of the call, by rank
    needs     ranks that have to take part: those of the group, of a send or recv the two sides
    lost      ranks that did issue a call here, of which the record no longer holds anything
    input     index of the input, as in the documented traces: the largest among the calls; where no call has one,
              that of the row above
    met       the calls exchanged data, or would have, had all of them been reached
    refused   the backend refused these calls when they were issued, so that no other rank saw anything of them
    pair      they are a send and a recv
    differs   in what they disagree that must agree: of "op", "dtype", "shape" (the number of elements), "reduce_op",
              "root" and "origin"; ["splits"]: a rank sends another one more or fewer elements than that one expects
    """

    group: str
    calls: dict[int, int]
    needs: tuple[int, ...]
    input: int | None
    met: bool
    pair: bool
    differs: tuple[str, ...]
    lost: tuple[int, ...]
    refused: bool

    @property
    def expected(self) -> bool:
        """Whether they should have met: they fit, and the lines that issued them meant each
        other."""
        return not self.differs

    @property
    def absent(self) -> tuple[int, ...]:
        """Ranks that have to take part, and issued no call here."""
        if self.refused:
            return ()
        return tuple(sorted({*self.needs}.difference(self.calls, self.lost)))


def key_of(row: CallRow) -> Key:
    """The rank, group and seq of a call."""
    return row["rank"], row["group"], row["seq"]


class Matched:
    """The calls of a Timeline, or some of them, as rows and by slots.

    rows     of timeline.calls, as dicts
    row_of   the same by rank, group and seq
    groups   global ranks of every group
    slots    what `match` finds
    numbers  of each slot, its index among all slots of the Timeline
    ends     the calls in which ranks ended, by rank, group and seq
    is_part  slots were left out
    """

    def __init__(
        self, timeline: Timeline, slots: Numbers | None = None, ranks: Collection[int] | None = None
    ) -> None:
        """All calls; or those in some `slots`; or those of some `ranks`: the others are `lost`
        in their slots."""
        reading = read(timeline)
        # a copy, since the Timeline caches what is made here, and each would keep the other alive
        self.timeline = replace(timeline)
        self.groups, self.ends = reading.groups, reading.ends
        slot, members_here = reading.slot, np.ones(len(reading.slot), bool)
        hidden: dict[int, list[int]] = {}
        self.is_part = slots is not None and len(slots) < reading.count
        if slots is not None and self.is_part:
            members_here = np.isin(np.arange(reading.count), slots)[slot]
        if ranks is not None:
            of_ranks = np.isin(reading.ranks, list(ranks))
            hidden_rows = members_here & ~of_ranks
            hidden = by_key(
                zip(slot[hidden_rows].tolist(), reading.ranks[hidden_rows].tolist(), strict=True)
            )
            members_here &= of_ranks
        self.rows: list[CallRow] = (
            timeline.rows("calls")
            if members_here.all()
            else timeline.calls.filter(members_here).rows(named=True)  # type: ignore[assignment]
        )
        self.row_of = {key_of(row): row for row in self.rows}
        members = by_key(zip(slot[members_here].tolist(), self.rows, strict=True))
        self.numbers = sorted(members)
        self.slots = tuple(
            _slots(((members[number], hidden.get(number, ())) for number in self.numbers), reading)
        )

    @cached_property
    def calls(self) -> list[IssuedCall]:
        """The same, as the matching rules read them."""
        return list(map(call_of, self.rows))

    @cached_property
    def index_of(self) -> dict[Key, int]:
        """By rank, group and seq of a call, the index of its slot in `slots`."""
        return {
            (rank, slot.group, seq): index
            for index, slot in enumerate(self.slots)
            for rank, seq in slot.calls.items()
        }

    def slot_of(self, key: Key) -> Slot:
        """The slot of a call."""
        return self.slots[self.index_of[key]]

    def calls_of(self, slot: Slot) -> dict[int, CallRow]:
        """The rows of a slot, by rank."""
        return {rank: self.row_of[rank, slot.group, seq] for rank, seq in slot.calls.items()}


def match(timeline: Timeline) -> tuple[Slot, ...]:
    """Every slot of every group, in an order that agrees with each rank's order of issue wherever
    there is one.

    [slot for slot in match(timeline) if slot.met and not slot.expected]      # what should not have met
    """
    return Matched(timeline).slots


def _slots(
    members_of_slots: Iterable[tuple[Sequence[CallRow], Sequence[int]]], reading: Reading
) -> Iterator[Slot]:
    """The slots, given the rows of each and the ranks that issued a call there and are not
    shown.

    A rank whose record lost 3 collectives is lost in those of numbers 1 to 3.
    """
    input: int | None = None
    skipped: Mapping[str, Mapping[int, int]] = reading.meta.get("skipped", {})
    for members, hidden in members_of_slots:
        group = members[0]["group"]
        number = members[0]["number"]
        pair = members[0]["op"] in POINT_TO_POINT
        lost = () if number is None else tuple(hidden)
        if number is not None and not pair and group in skipped:
            lost = (
                *(rank for rank in reading.groups[group] if skipped[group].get(rank, 0) >= number),
                *lost,
            )
        # A call outside the loop over inputs belongs to the last one before it.
        inputs = [row["input"] for row in members if row["input"] is not None]
        input = max(inputs) if inputs else input
        calls = {row["rank"]: row["seq"] for row in members}
        peers = [row["peer"] for row in members if row["peer"] is not None]
        yield Slot(
            group=group,
            calls=calls,
            needs=tuple({*calls, *peers}) if pair else reading.groups[group],
            input=input,
            met=number is not None and _meet(members, backend_of(reading.meta, group), lost),
            pair=pair,
            differs=() if number is None else _differs(members, reading.groups[group]),
            lost=lost,
            refused=number is None,
        )


@derived
def wrong(timeline: Timeline) -> Flags:
    """By slot: whether its calls met, or missed each other, by mistake."""
    reading = read(timeline)
    slots, examples, of_pattern = reading.patterns
    flags = np.zeros(reading.count, bool)
    if len(slots):
        judged = Matched(timeline, examples)
        bad = {
            number: not slot.expected
            for number, slot in zip(judged.numbers, judged.slots, strict=True)
        }
        flags[slots] = np.array([bad[number] for number in examples.tolist()])[of_pattern]
    return flags


def _differs(members: Sequence[CallRow], group: Sequence[int]) -> tuple[str, ...]:
    fields = differences(members)
    if not fields and any(misfits(members, group)):
        return ("splits",)
    return fields


def _meet(members: Sequence[CallRow], backend: object, lost: Sequence[int]) -> bool:
    if len(members) + len(lost) < 2 or any(row["op"] in POINT_TO_POINT for row in members):
        return len(members) + len(lost) == 2
    if backend == "nccl":
        return True
    return len({(gloo_kind(row["op"], row["dtype"]), row["root"]) for row in members}) == 1


def differences(members: Sequence[CallRow]) -> tuple[str, ...]:
    """In what calls that met differ, of what must be the same."""
    carried = {
        (
            row["op"],
            row["origin"] or "",
            row["dtype"],
            elements_in(row),
            row["reduce_op"],
            row["root"],
        )
        for row in members
    }
    if len(carried) == 1:
        return ()
    # Ranks may give an all-gather different sizes, if all expect them. Where one is not complete,
    # or got more or less than was given in all, they did not.
    sizes = [elements_of(row["shape"]) or 0 for row in members if row["op"] == Op.ALL_GATHER]
    fields = _differing(frozenset(carried))
    if fields or len(set(sizes)) < 2:
        return fields
    for row in members:
        received = decode_values(row["value_out"])
        fits = not received or sum(map(len, received)) == sum(sizes)
        if row["completed_ns"] is None or not fits:
            return ("shape",)
    return ()


def elements_in(row: CallRow) -> int | None:
    """Elements of a call's tensors; of a gather or scatter, those of one part, since only the root
    has the list.

    None if that is unknown: some records have the size of a scatter's list, and not its parts.
    """
    shape = row["shape"] or []
    if row["op"] == Op.SCATTER and (
        row["root"] is None or (row["rank"] == row["root"] and len(shape) < 2)
    ):
        return None
    return elements_of(
        shape[:1] if shape and row["op"] in (Op.GATHER, Op.SCATTER) else row["shape"]
    )


@lru_cache(1024)  # the same few calls meet again and again
def _differing(
    carried: frozenset[tuple[str, str, str | None, int | None, str | None, int | None]],
) -> tuple[str, ...]:
    """The properties that differ but must not, given each call's op, origin, dtype, elements,
    reduce_op and root."""
    ops, origins, *values = map(set, zip(*carried, strict=True))
    pair = ops <= POINT_TO_POINT
    fields = [] if pair or len(ops) == 1 else ["op"]
    must = set.intersection(*(set(FACTS[op].alike if op in FACTS else ()) for op in ops))
    names = ("dtype", "shape", "reduce_op", "root")
    for name, values_here in zip(names, values, strict=True):
        if name in must and len(values_here - {None}) > 1:
            fields.append(name)
    if not pair and not all(
        shadows(origin, other_origin) for origin in origins for other_origin in origins
    ):
        fields.append("origin")
    return tuple(fields)
