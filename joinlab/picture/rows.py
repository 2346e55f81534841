"""The calls of a picture: their kinds, and the order of their slots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

from joinlab.analysis.matching import Matched, Slot, key_of
from joinlab.analysis.meanings import asks_of, is_setup, quoted
from joinlab.analysis.wording import by_key, listed, ranks_text
from joinlab.ops import COUNTERPART, FACTS, POINT_TO_POINT, CallRow, Needs, Op, op_of, peer_text
from joinlab.showing import short_site
from joinlab.story.forms.meeting import given


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


def kind(call: CallRow) -> RowKind:
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


def label(call: CallRow) -> str:
    """What a box says: what its call asks or does; of a send or recv, the peer, too."""
    return asks_of(call) + peer_text(call["op"], call["peer"], "")


class DrawnSlot(NamedTuple):
    """The calls of a slot (an index into `matched.slots`), by rank, or some of them.

    text  what is wrong, and boxes do not show: what differs, or who never came; "" where all is well
    """

    rows: tuple[CallRow, ...]
    slot: int
    text: str


Lanes = Mapping[int, Sequence[int]]
"""By lane: the ranks that its rank represents; a rank without an entry represents only itself."""


def plan(matched: Matched, lanes: Lanes) -> list[DrawnSlot]:
    """The slots in an order that keeps every rank's own order of issue.

    Two ranks can issue calls of two groups crosswise, and then no such order exists: a slot that
    stands in the way is taken apart.
    """
    texts = list(_texts(matched, lanes))
    queues: dict[int, list[int]] = {}  # by rank the slots of its calls, the next one last
    for row in reversed(matched.rows):
        queues.setdefault(row["rank"], []).append(matched.index_of[key_of(row)])
    calls_left = Counter(chain(*queues.values()))
    ordered: list[DrawnSlot] = []
    while queues:
        ranks_at = by_key((queue[-1], rank) for rank, queue in queues.items())
        ready = (index for index, ranks in ranks_at.items() if len(ranks) == calls_left[index])
        index = min(ready, default=min(ranks_at))
        slot, text, ranks = matched.slots[index], texts[index], ranks_at[index]
        calls = matched.calls_of(slot)
        elsewhere = [row for rank, row in calls.items() if rank not in ranks]
        if elsewhere and slot.differs:
            named = listed([f"{_ranks([row], lanes)}'s {quoted(row)}" for row in elsewhere])
            text = f"Faces {named}, but can never meet it."
            if slot.met:
                text = f"Met {named}, but should not have."
        ordered.append(DrawnSlot(tuple(calls[rank] for rank in sorted(ranks)), index, text))
        calls_left[index] -= len(ranks)
        for rank in ranks:
            queues[rank].pop()
            if not queues[rank]:
                del queues[rank]
    return ordered


def _ranks(rows: Sequence[CallRow], lanes: Lanes) -> str:
    return ranks_text([rank for row in rows for rank in lanes.get(row["rank"], [row["rank"]])])


def _texts(matched: Matched, lanes: Lanes) -> Iterator[str]:
    """What is wrong with each slot beyond what its boxes show."""
    written: set[tuple[str, str]] = set()  # a rank that never came is told of once
    for slot in matched.slots:
        rows = [row for _, row in sorted(matched.calls_of(slot).items())]
        text = ""
        if not slot.expected:
            text = _differing(rows, slot, lanes)
        elif not slot.refused:
            text = _missing(rows, slot) or _other_lines(rows, lanes)
        yield text if not slot.expected or (slot.group, text) not in written else ""
        written.add((slot.group, text))


def _differing(rows: Sequence[CallRow], slot: Slot, lanes: Lanes) -> str:
    """That calls of one slot do not belong together. Boxes name the calls; this tells what else
    differs."""
    rows_by_text = by_key((given(row, slot.differs), row) for row in rows)
    texts = [f"{_ranks(alike, lanes)} with {text}" for text, alike in rows_by_text.items() if text]
    verdict = "Met, but should not have" if slot.met else "Face each other, but can never meet"
    return ": ".join(filter(None, (verdict, "; ".join(texts)))) + "."


def _other_lines(rows: Sequence[CallRow], lanes: Lanes) -> str:
    """That ranks met in the same call of other lines: they may be in different rounds; "" where
    they are not."""
    same_call = len({row["origin"] for row in rows}) == 1
    rows_by_site = by_key((short_site(row["call_site"] or ""), row) for row in rows)
    comparable = "" not in rows_by_site and rows[0]["op"] not in POINT_TO_POINT
    if not (same_call and comparable) or len(rows_by_site) < 2:
        return ""

    def count(site: str) -> int:
        return sum(len(lanes.get(row["rank"], [row["rank"]])) for row in rows_by_site[site])

    fewest_first = sorted(rows_by_site, key=count)
    texts = [f"{_ranks(rows_by_site[site], lanes)} {site}" for site in fewest_first]
    return f"Met from different lines: {'; '.join(texts)}."


def _missing(rows: Sequence[CallRow], slot: Slot) -> str:
    """That these ranks never issued their part of a call that is not complete; "" if none, or if it
    completed."""
    if not slot.absent or all(row["completed_ns"] is not None for row in rows):
        return ""
    if slot.pair:
        return f"Nothing meets this call: {ranks_text(slot.absent)} issued no {COUNTERPART[rows[0]['op']]} for it."
    return f"Nothing meets this call: {ranks_text(slot.absent)} never issued one."
