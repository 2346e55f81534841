"""The calls of a picture: their kinds, which of them share a place, and the order of the places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from joinlab.analysis.matching import Matched, Slot, key_of
from joinlab.analysis.meanings import asks_of, is_setup, quoted, shadows
from joinlab.analysis.wording import listed, ranks_text, splits_text, tensor
from joinlab.backend.calls import elements_of
from joinlab.ops import COUNTERPART, FACTS, POINT_TO_POINT, CallRow, Needs, Op, op_of, peer_text
from joinlab.showing import short_site

Row = CallRow


class RowKind(StrEnum):
    """The kind of a box; the value is its text in the legend."""

    FORWARD = "DDP forward()"
    BACKWARD = "DDP backward()"
    JOIN = "join() of a rank that ran out"
    FINAL = "join() after the last input"
    BARRIER = "barrier"
    SETUP = "DDP construction, bucket rebuild"
    REDUCE = "all-reduce, reduce, reduce-scatter"
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
    return _kind(call["origin"] or "", call["op"])


@lru_cache(1024)
def _kind(origin: str, op: str) -> RowKind:
    if is_setup(origin):
        return RowKind.SETUP
    for word, kind in _KINDS:
        if word in origin:
            return kind
    op_known = op_of(op)
    return RowKind.OTHER if op_known is None else _own(op_known)


def _own(op: Op) -> RowKind:
    """The kind of a call of the program's own, by what it does with the ranks' data."""
    facts = FACTS[op]
    if facts.point_to_point:
        return RowKind.PAIR
    if not facts.alike:
        return RowKind.BARRIER
    if facts.reduces:
        return RowKind.REDUCE
    if facts.needs is Needs.FROM_ROOT:
        return RowKind.SPREAD
    return RowKind.COLLECT


def label(call: Row) -> str:
    """What a box says: what its call asks or does; of a send or recv, the peer, too."""
    return asks_of(call) + peer_text(call["op"], call["peer"], "")


class DrawnSlot(NamedTuple):
    """A place of the lanes: its calls (indices into Timeline.calls), its slot (an index into
    `matched.slots`).

    text  what is wrong, and boxes do not show: what differs, or who never came; "" where all is well
    """

    calls: tuple[int, ...]
    slot: int
    text: str = ""


Lanes = Mapping[int, Sequence[int]]
"""By lane: the ranks that its rank represents; a rank without an entry represents only itself."""


def plan(matched: Matched, lanes: Lanes = MappingProxyType({})) -> tuple[DrawnSlot, ...]:
    """A place for each slot, in an order that keeps every rank's own order of issue.

    Two ranks can issue calls of two groups crosswise, and then no such order exists: a slot that
    stands in the way is taken apart, and its calls get a place each.
    """
    calls = matched.rows
    index_of = {key_of(call): index for index, call in enumerate(calls)}
    drawn_of: dict[int, DrawnSlot] = {}
    written: set[tuple[str, str]] = set()  # a rank that never came is told of once
    for number, slot in enumerate(matched.slots):
        members = tuple(index_of[rank, slot.group, seq] for rank, seq in sorted(slot.calls.items()))
        rows = [calls[index] for index in members]
        text = _differing(rows, slot, lanes)
        if slot.expected and not slot.refused:
            text = _missing(rows, slot) or _other_lines(rows, lanes)
        if slot.expected and (slot.group, text) in written:
            text = ""
        written.add((slot.group, text))
        drawn_of.update(dict.fromkeys(members, DrawnSlot(members, number, text)))
    queues: dict[int, list[int]] = {}
    for index in range(len(calls) - 1, -1, -1):  # reversed: the next one is popped off the end
        queues.setdefault(calls[index]["rank"], []).append(index)
    ordered: list[DrawnSlot] = []
    while heads := {queue[-1] for queue in queues.values() if queue}:
        drawn_slots = sorted(
            {drawn_of[call] for call in heads},
            key=lambda drawn_slot: (drawn_slot.slot, drawn_slot.calls),
        )
        ready = next(
            (drawn_slot for drawn_slot in drawn_slots if heads.issuperset(drawn_slot.calls)), None
        )
        if ready is None:
            first, slot = drawn_slots[0], matched.slots[drawn_slots[0].slot]
            present = tuple(call for call in first.calls if call in heads)
            remaining = tuple(call for call in first.calls if call not in heads)
            ready = first._replace(
                calls=present,
                text=_elsewhere(first, slot, [calls[call] for call in remaining], lanes),
            )
            remainder = first._replace(
                calls=remaining,
                text=_elsewhere(first, slot, [calls[call] for call in present], lanes),
            )
            drawn_of.update(dict.fromkeys(remaining, remainder))
        for call in ready.calls:
            queues[calls[call]["rank"]].pop()
        ordered.append(ready)
    return tuple(ordered)


def _ranks(rows: Sequence[Row], lanes: Lanes) -> str:
    return ranks_text([rank for row in rows for rank in lanes.get(row["rank"], [row["rank"]])])


def _differing(rows: Sequence[Row], slot: Slot, lanes: Lanes) -> str:
    """That calls at one place do not belong together. Boxes name the calls; this tells what else
    differs."""
    rows_by_text: dict[str, list[Row]] = {}
    for row in rows:
        if {"dtype", "shape"} & set(slot.differs):
            carried = tensor(row)
        else:
            carried = ""
        if "reduce_op" in slot.differs:
            reduced = f"reduced by {row['reduce_op']}"
        else:
            reduced = ""
        root = f"root {row['root']}" if "root" in slot.differs else ""
        parts = splits_text(row["splits"] or ()) if "splits" in slot.differs else ""
        text = ", ".join(filter(None, (carried, reduced, root, parts)))
        rows_by_text.setdefault(text, []).append(row)
    list_text = "; ".join(
        f"{_ranks(rows_alike, lanes)} {text}" for text, rows_alike in rows_by_text.items() if text
    )
    if slot.met:
        verdict = "Met, but should not have"
    else:
        verdict = "Face each other, but can never meet"
    if slot.expected:
        return ""
    return f"{verdict}{list_text and ': '}{list_text}."


def _elsewhere(drawn_slot: DrawnSlot, slot: Slot, elsewhere: Sequence[Row], lanes: Lanes) -> str:
    """What is wrong with a part of a slot: where it went wrong, it names the calls that stand in
    another place."""
    calls_text = listed([f"{_ranks([row], lanes)}'s {quoted(row)}" for row in elsewhere])
    if slot.expected:
        return drawn_slot.text
    if slot.met:
        return f"Met {calls_text}, but should not have."
    return f"Faces {calls_text}, but can never meet it."


def _other_lines(rows: Sequence[Row], lanes: Lanes) -> str:
    """That ranks met in the same call of other lines: they may be in different rounds; "" where
    they are not."""
    rows_by_site: dict[str, list[Row]] = {}
    for row in rows:
        if (
            row["op"] in POINT_TO_POINT
            or row["origin"] != rows[0]["origin"]
            or not row["call_site"]
        ):
            return ""
        rows_by_site.setdefault(short_site(row["call_site"]), []).append(row)
    fewest_first = sorted(
        rows_by_site.items(),
        key=lambda line: sum(len(lanes.get(row["rank"], "1")) for row in line[1]),
    )
    sites_text = "; ".join(
        f"{_ranks(rows_there, lanes)} {site}" for site, rows_there in fewest_first
    )
    if len(rows_by_site) > 1:
        return f"Met from different lines: {sites_text}."
    return ""


def _missing(rows: Sequence[Row], slot: Slot) -> str:
    """That these ranks never issued their part of a call that is not complete; "" if none, or if it
    completed."""
    if not slot.absent or all(row["completed_ns"] is not None for row in rows):
        return ""
    if slot.pair:
        return f"Nothing meets this call: {ranks_text(slot.absent)} issued no {COUNTERPART[rows[0]['op']]} for it."
    return f"Nothing meets this call: {ranks_text(slot.absent)} never issued one."


def unlike(first: Row, second: Row, differs: Sequence[str]) -> bool:
    """Whether these two calls are among those that differ in a slot; others of the slot may be
    alike."""
    for name in differs:
        if name == "origin":
            if not shadows(first["origin"] or "", second["origin"] or ""):
                return True
        elif name == "shape":
            if elements_of(first["shape"]) != elements_of(second["shape"]):
                return True
        elif name == "splits" or first.get(name) != second.get(name):
            return True
    return False
