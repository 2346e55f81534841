"""Matching: which calls of the ranks met, and in what they disagree.

A backend pairs calls by its own rule, not by what the program meant. On NCCL the k-th collective of one rank on a
communicator meets the k-th of the other, whatever the two are. On gloo they must also be of one kind, or they miss
each other and both wait. Sends and recvs pair up by sender, receiver and, on gloo, tag, outside that count. A `Slot`
is one such pairing, met or missed; `match` lists them all in an order that agrees with each rank's own.

Some calls meet that carry different labels, rightly so: `join()` lets a rank without inputs shadow, call by call,
the forward and backward passes of the others. SHADOWS lists those pairs. Two other labels that met should not have.
"""

from __future__ import annotations

import heapq
from bisect import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from joinlab.ops import FACTS, POINT_TO_POINT
from joinlab.rules import gloo as gloo_rule
from joinlab.rules.calls import ANY_SOURCE, IssuedCall, by_group, call_of, elements_of
from joinlab.timeline import CallRow, Timeline, backend_of

SHADOWS: Mapping[str, frozenset[str]] = {
    "(join() _get_num_nonjoined_procs())": frozenset({"(DDP forward() 1)", "(notify_join_context())"}),
    "(join() check bwd grad sync)": frozenset({"(DDP forward() 2)"}),
    "(join() hook)": frozenset({"(DDP backward())"}),
    "(join() hook, unused parameters)": frozenset({"(DDP backward(), unused parameters)"}),
    "(join() hook, buffers)": frozenset({"(DDP forward(), buffers)"}),
    "(_find_common_rank(), join() hook, buffers)": frozenset({"(_find_common_rank(), DDP forward(), buffers)"}),
    "(join() throw check)": frozenset({"(throw check)"}),
    "(ZeRO join() hook)": frozenset({"(ZeRO)"}),
}
"""What a rank that has joined issues, and which call it shadows with it, by the part of the label in brackets."""

SETUP = ("DDP construction", "DDP bucket rebuild")
"""Calls with these words in their label are left out of the documented traces."""


@dataclass(frozen=True, slots=True)
class Slot:
    """The calls that one place in the order of a group brought together.

    group     name of the process group
    index     this is the index-th slot of that group (a pair of send and recv is a slot too)
    calls     seq of the call, by rank; a rank of the group that issued none here is absent
    lost      ranks that did issue a call here, of which the record no longer holds anything
    input     index of the input, as in the documented traces: the largest among the calls; where no call has one,
              that of the row above
    met       the calls exchanged data, or would have, had all of them been reached
    refused   the backend refused these calls when they were issued, so that no other rank saw anything of them
    differs   in what they disagree that must agree: of "op", "dtype", "shape" (the number of elements), "reduce_op",
              "root" and "origin"
    expected  whether they should have met: they fit, and the lines that issued them meant each other
    """

    group: str
    index: int
    calls: dict[int, int]
    input: int | None
    met: bool
    differs: tuple[str, ...]
    expected: bool
    lost: tuple[int, ...] = ()
    refused: bool = False

    def absent(self, ranks: Iterable[int]) -> list[int]:
        """Those of `ranks`, the members of its group, that issued no call here, though this one needs them."""
        return [] if self.refused else sorted(set(ranks).difference(self.calls, self.lost))


Row = CallRow


class Matched:
    """A Timeline whose calls were read and matched: once, for all that look at it together.

    rows    of timeline.calls, as dicts
    row_of  the same by rank, group and seq
    calls   the same, as the matching rules read them
    groups  global ranks of every group
    slots   what `match` finds
    numbers what each slot is called: its index; of a part of a run (analysis.large), its index in the whole
    """

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self.rows = timeline.rows("calls")
        self.row_of = {(row["rank"], row["group"], row["seq"]): row for row in self.rows}
        self.calls = [call_of(row) for row in self.rows]
        self.groups = groups_of(timeline)
        self.slots = _match(self.rows, self.calls, self.groups, timeline.meta)
        self.numbers: Sequence[int] = range(len(self.slots))

    @property
    def is_part(self) -> bool:
        """Whether it holds a part of a run."""
        return not isinstance(self.numbers, range)


def match(timeline: Timeline) -> tuple[Slot, ...]:
    """Every slot of every group, in an order that agrees with each rank's order of issue wherever there is one.

    [slot.index for slot in match(timeline) if slot.met and not slot.expected]      # what should not have met
    """
    return Matched(timeline).slots


def _match(
    rows: Sequence[Row], calls: Sequence[IssuedCall], groups: Mapping[str, Sequence[int]], meta: Mapping[str, Any]
) -> tuple[Slot, ...]:
    slots: list[Slot] = []
    counts: dict[str, int] = {}
    input: int | None = None
    found = _slots(rows, calls, groups, meta)
    for at in _in_order([members for members, _, _ in found], rows):
        members, lost, refused = found[at]
        group = members[0]["group"]
        inputs = [row["input"] for row in members if row["input"] is not None]
        input = max(inputs) if inputs else input
        differs = () if refused else _differences(members)
        slots.append(
            Slot(
                group=group,
                index=counts.setdefault(group, 0),
                calls={row["rank"]: row["seq"] for row in members},
                input=input,
                met=not refused and _meet(members, backend_of(meta, group), lost),
                differs=differs,
                expected=not differs,
                lost=lost,
                refused=refused,
            )
        )
        counts[group] += 1
    return tuple(slots)


@lru_cache(maxsize=4)  # a page of 500,000 calls asks for it ten times, 10 ms each
def groups_of(timeline: Timeline) -> dict[str, tuple[int, ...]]:
    """Global ranks of every group: those that meta names, and any other rank that issued a call in it."""
    groups = {str(name): tuple(ranks) for name, ranks in timeline.meta.get("groups", {}).items()}
    names, place = group_places(timeline)
    found = [divmod(at, timeline.world_size) for at in np.flatnonzero(np.bincount(place)).tolist()]
    for name, rank in sorted((names[number], rank) for number, rank in found):
        if rank not in groups.get(name, ()):
            groups[name] = (*groups.get(name, ()), rank)
    return groups


@lru_cache(maxsize=4)
def group_places(timeline: Timeline) -> tuple[list[str], npt.NDArray[np.int64]]:
    """The groups that have calls, and of every call the number of its group among them * world size + its rank.

    To group 500,000 rows by that takes a tenth of grouping them by name and rank.
    """
    groups, ranks = timeline.calls["group"], timeline.calls["rank"]
    names = groups.unique(maintain_order=True).to_list()
    if not names:
        return [], np.zeros(0, np.int64)
    number = groups.replace_strict(names, range(len(names)), return_dtype=pl.Int64())
    return names, (number * timeline.world_size + ranks).to_numpy()


def label_table(timeline: Timeline, group: str | None = None, include_setup: bool = False) -> pl.DataFrame:
    """The matching as a table like the documented traces: columns "input", "rank 0", "rank 1", ...; null: no call.

    group          only its slots; None: all groups
    include_setup  with the calls of DDP's construction and bucket rebuild
    """
    labels = {(row["rank"], row["group"], row["seq"]): row["origin"] or row["op"] for row in _named(timeline)}
    ranks = range(timeline.world_size) if group is None else groups_of(timeline).get(group, ())
    found = []
    for slot in match(timeline):
        shown = {rank: labels[rank, slot.group, seq] for rank, seq in slot.calls.items()}
        if group not in (None, slot.group) or (not include_setup and all(map(is_setup, shown.values()))):
            continue
        found.append({"input": slot.input, **{f"rank {rank}": shown.get(rank) for rank in ranks}})
    schema = {"input": pl.Int64(), **{f"rank {rank}": pl.String() for rank in ranks}}
    return pl.DataFrame(found, schema=schema)


def is_setup(origin: str) -> bool:
    """Whether a call of this label belongs to DDP's own setup, which the documented traces leave out."""
    return any(words in origin for words in SETUP)


def shadows(one: str, other: str) -> bool:
    """Whether calls of these two labels are meant for each other: the same label, or a pair of SHADOWS.

    >>> shadows("all-reduce (join() hook)", "all-reduce (DDP backward())")
    True
    """
    if one == other:
        return True
    (op, _, who), (other_op, _, other_who) = one.partition(" "), other.partition(" ")
    return op == other_op and (other_who in SHADOWS.get(who, ()) or who in SHADOWS.get(other_who, ()))


def _named(timeline: Timeline) -> list[dict[str, Any]]:
    return timeline.calls.select("rank", "group", "seq", "op", "origin").rows(named=True)


def _slots(
    rows: Sequence[Row],
    calls: Sequence[IssuedCall],
    groups: Mapping[str, Sequence[int]],
    meta: Mapping[str, Any],
) -> list[tuple[list[Row], tuple[int, ...], bool]]:
    """The rows of each slot, the ranks whose call in it is lost, and whether its calls were refused: slots of one group
    in order, group by group.

    Collectives of one number share a slot. A rank that skipped 3 has its first recorded one in slot 3, and is lost in
    slots 0 to 2. A call that the backend refused has no number; those that ranks issued at one place share a slot:

        rank 0   all_reduce   [refused]   barrier
        rank 1   all_reduce               barrier
    """
    skipped: Mapping[str, Mapping[int, int]] = meta.get("skipped", {})
    row_of = {(row["group"], row["rank"], row["seq"]): row for row in rows}
    found: list[tuple[list[Row], tuple[int, ...], bool]] = []
    for name, group in by_group(calls, groups).items():
        first = {rank: skipped.get(name, {}).get(rank, 0) for rank in group.ranks}
        placed: dict[int, list[Row]] = {}
        refused: dict[int, list[list[Row]]] = {}  # by the place before which they stand, the n-th of each rank
        for rank, lane in group.collectives.items():
            k, n = first[rank], 0
            for call in lane:
                row = row_of[name, rank, call.seq]
                if row["number"] is not None:
                    placed.setdefault(row["number"] - 1, []).append(row)
                    k, n = row["number"], 0
                    continue
                here = refused.setdefault(k, [])
                here += [[]] if n == len(here) else []
                here[n].append(row)
                n += 1
        begins = sorted({0, *first.values()})
        lost_at: dict[int, tuple[int, ...]] = {}  # by the last of `begins` before a slot
        for k in sorted({*placed, *refused}):
            found += [(some, (), True) for some in refused.get(k, ())]
            begun = begins[bisect(begins, k) - 1]
            if begun not in lost_at:
                lost_at[begun] = tuple(rank for rank in group.ranks if first[rank] > begun)
            found += [(placed[k], lost_at[begun], False)] if k in placed else []
        alone = [call for side in (group.sends, group.recvs) for of in side.values() for call in of if call.refused]
        group = group.reached() if alone else group
        together: list[list[IssuedCall]] = []
        sends, recvs = (_per_pair(pairs, backend_of(meta, name)) for pairs in (group.sends, group.recvs))
        for pair in sorted(sends.keys() | recvs.keys()):
            out, into = sends.get(pair, []), recvs.get(pair, [])
            if pair[0] == pair[1]:  # to itself: no backend takes that, and a slot holds one call a rank
                together += [[call] for call in (*out, *into)]
                continue
            together += [[*out[k : k + 1], *into[k : k + 1]] for k in range(max(len(out), len(into)))]
        found += [([row_of[name, call.rank, call.seq] for call in calls], (), False) for calls in together]
        found += [([row_of[name, call.rank, call.seq]], (), True) for call in alone]
    return found


def _per_pair(
    pairs: Mapping[tuple[int, int, int], Sequence[IssuedCall]], backend: object
) -> dict[tuple[int, ...], list[IssuedCall]]:
    """Sends, or recvs, by what the backend pairs them by. A recv from any source stays alone."""
    found: dict[tuple[int, ...], list[IssuedCall]] = {}
    for (source, target, tag), calls in pairs.items():
        key = (source, target) if backend == "nccl" and source != ANY_SOURCE else (source, target, tag)
        found.setdefault(key, []).extend(calls)
    return {key: sorted(calls, key=lambda call: call.seq) for key, calls in found.items()}


def _in_order(slots: Sequence[list[Row]], rows: Sequence[Row]) -> Iterable[int]:
    """Indices of slots in a topological order that agrees with every rank's order of issue.

    Where those orders form a cycle, it is broken at the slot that was issued earliest.
    """
    slot_of = {(row["rank"], row["group"], row["seq"]): index for index, members in enumerate(slots) for row in members}
    following: list[list[int]] = [[] for _ in slots]
    waits_for = [0] * len(slots)
    place = [len(rows)] * len(slots)  # where the first rank to issue it did so; grows along the slots of a group
    last: dict[int | str, int] = {}
    for slot, members in enumerate(slots):
        if members[0]["op"] not in POINT_TO_POINT:
            if members[0]["group"] in last:
                following[last[members[0]["group"]]].append(slot)
                waits_for[slot] += 1
            last[members[0]["group"]] = slot
    issued: dict[int, int] = {}
    for row in rows:
        rank, slot = row["rank"], slot_of[row["rank"], row["group"], row["seq"]]
        issued[rank] = issued.get(rank, -1) + 1
        place[slot] = min(place[slot], issued[rank])
        if rank in last:
            following[last[rank]].append(slot)
            waits_for[slot] += 1
        last[rank] = slot
    return in_order(following, waits_for, place)


def in_order(following: Sequence[Sequence[int]], waits_for: list[int], place: Sequence[int]) -> Iterator[int]:
    """Indices in an order that agrees with a graph; of those that could come next, the one with the lowest place does.

    following  by index, those that come after it
    waits_for  how many come before it; used up
    """
    ready = [(place[slot], slot) for slot in range(len(place)) if not waits_for[slot]]
    rest = sorted(range(len(place)), key=place.__getitem__, reverse=True)  # the next one is popped off the end
    heapq.heapify(ready)
    done: set[int] = set()
    while len(done) < len(place):
        slot = heapq.heappop(ready)[1] if ready else rest.pop()
        if slot in done:
            continue
        done.add(slot)
        yield slot
        for after in following[slot]:
            waits_for[after] -= 1
            if not waits_for[after]:
                heapq.heappush(ready, (place[after], after))


def _meet(members: Sequence[Row], backend: object, lost: Sequence[int]) -> bool:
    if len(members) + len(lost) < 2 or any(row["op"] in POINT_TO_POINT for row in members):
        return len(members) == 2
    if backend == "nccl":
        return True
    return len({(gloo_rule.kind(row["op"], row["dtype"]), row["root"]) for row in members}) == 1


def _differences(members: Sequence[Row]) -> tuple[str, ...]:
    carried = {
        (row["op"], row["origin"] or "", row["dtype"], elements_of(row["shape"]), row["reduce_op"], row["root"])
        for row in members
    }
    return _differing(frozenset(carried)) if len(carried) > 1 else ()


@lru_cache(1024)  # the same few calls meet again and again
def _differing(carried: frozenset[tuple[str, str, str | None, int | None, str | None, int | None]]) -> tuple[str, ...]:
    """In what calls differ that must be the same, given each one's op, origin, dtype, elements, reduce_op and root."""
    ops, origins, *values = map(set, zip(*carried, strict=True))
    pair = ops <= POINT_TO_POINT
    found = [] if pair or len(ops) == 1 else ["op"]
    must = set.intersection(*(set(FACTS[op].alike if op in FACTS else ()) for op in ops))
    names = ("dtype", "shape", "reduce_op", "root")
    found += [name for name, those in zip(names, values, strict=True) if name in must and len(those) > 1]
    if not pair and not all(shadows(one, other) for one in origins for other in origins):
        found.append("origin")
    return tuple(found)
