"""Reading: facts derived from the columns of a Timeline, each computed once, at any size, and freed
with it.

Which calls met is one number a call, its slot. Collectives of one number share a slot; a send meets
its recv:

    rank     0           0           0       1           1           1
    call     all_reduce  send to 1   barrier all_reduce  recv from 0 barrier
    number   1           1           2       1           1           2
    slot     0           1           2       0           1           2

Slots are numbered in an order that agrees with each rank's own. A million calls take a second.

In a run with many calls, few slots are shown one by one: those where the ranks part, their
neighbours, and the first and last of every rank. They keep their numbers and meetings:

    slot     0 1 2 | 3 ...  59,998 | 59,999  60,000  60,001 | ...  124,998 | 124,999
    listed   x x x |               |    x    differs     x  |              |   hangs
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import polars as pl

from joinlab.analysis.hashing import Codes, Numbers, hash_columns, mixed
from joinlab.analysis.splits import misfits_of
from joinlab.backend.calls import ANY_SOURCE
from joinlab.ops import POINT_TO_POINT, Op
from joinlab.timeline import Timeline, backend_of, derived

MOST = 4000
"""Most calls of a run whose slots are all shown one by one."""

KEPT = 2000  # of a run with more, so many calls are listed, about
BESIDE = 3  # slots listed on either side of one that is listed
FEWEST = 24  # slots listed, however many ranks there are

Flags = npt.NDArray[np.bool_]


@derived
def read(timeline: Timeline) -> Reading:
    """The Reading of a Timeline.

    read(timeline).slot         # of every call, the index of its slot in joinlab.match(timeline)
    """
    return Reading(timeline)


class Reading:
    """Facts about the calls of a Timeline, as columns. The Timeline refers to it, not the reverse.

    calls   of the Timeline
    groups  global ranks of every group: those that meta names, and any other rank that issued a call in it
    names   the names of the groups, in that order
    group   of every call, the index of its group in `names`
    paired  of every call, whether it is a send or recv
    """

    def __init__(self, timeline: Timeline) -> None:
        self.calls, self.meta, self.world_size = timeline.calls, timeline.meta, timeline.world_size
        self.ranks: Numbers = self.calls["rank"].to_numpy()
        self.ends = [
            key for key in map(timeline.ended_in, range(self.world_size)) if key is not None
        ]
        self.groups = {
            str(name): tuple(ranks) for name, ranks in self.meta.get("groups", {}).items()
        }
        used = self.calls["group"].unique().to_list()
        self.groups |= dict.fromkeys(sorted({*used} - self.groups.keys()), ())
        self.names = [*self.groups]
        index = {name: number for number, name in enumerate(self.names)}
        old = pl.Series(used, dtype=pl.String())
        new = pl.Series([index[name] for name in used], dtype=pl.Int64())
        codes = self.calls["group"].replace_strict(old, new, return_dtype=pl.Int64())
        self.group: Numbers = codes.to_numpy().astype(np.int64)  # of no calls, they are objects
        for member in np.flatnonzero(np.bincount(self.member, minlength=1)).tolist():
            group, rank = divmod(member, self.world_size)
            name = self.names[group]
            if rank not in self.groups[name]:
                self.groups[name] = (*self.groups[name], rank)
        self.paired: Flags = self.calls["op"].is_in([*POINT_TO_POINT]).to_numpy()

    @cached_property
    def member(self) -> Numbers:
        """Of every call its group * world size + its rank."""
        return np.asarray(self.group * self.world_size + self.ranks, np.int64)

    @cached_property
    def skipped(self) -> Numbers:
        """By `member`: how many collectives the record of the rank lost before its first."""
        skips, world = self.meta.get("skipped", {}), range(self.world_size)
        return np.array(
            [skips.get(name, {}).get(rank, 0) for name in self.names for rank in world], np.int64
        )

    # ---------------- slots

    @cached_property
    def slot(self) -> Numbers:
        """Of every call the index of its slot, in an order that agrees with every rank's order of
        issue.

        Where those orders form a circle, it is broken at the slot that was issued earliest.
        """
        number = self.calls["number"]
        if not len(number):
            return np.zeros(0, np.int64)
        if self.paired.any() or number.null_count():
            slot = self._slots_of_all()
        else:
            k = number.to_numpy()
            slot = _dense((k - k.min()) + self.group * (int(k.max() - k.min()) + 1))
        if not self.paired.any() and (self.group == self.group[0]).all():
            return slot  # collectives of one group come in that group's order
        return np.argsort(list(self._order(slot)))[slot]

    def _slots_of_all(self) -> Numbers:
        """The slots group by group: first collectives, by number, then sends and recvs.

        A call that the backend refused takes no place in the order. Those that ranks issued at one
        place share a slot, which stands before that place; a send or recv is alone:

            rank 0   all_reduce   [refused]   barrier
            rank 1   all_reduce               barrier
        """
        calls, pair, numbers = self.calls, self.paired, np.arange(len(self.ranks))
        refused = calls["number"].is_null().to_numpy()
        lane = [pl.Series("member", self.member), pl.Series("pair", pair)]
        filled = calls.select(number=pl.col("number").forward_fill().over(lane)).to_series()
        k = filled.fill_null(pl.Series(self.skipped[self.member])).to_numpy() - ~refused
        lanes = pl.DataFrame([*lane, pl.Series("k", k), pl.Series("refused", refused)])
        nth = (
            lanes.select(pl.col("refused").cum_sum().over("member", "pair", "k"))
            .to_series()
            .to_numpy()
            * refused
        )

        peer = calls["peer"].fill_null(ANY_SOURCE).to_numpy()
        sends = (calls["op"] == Op.SEND.value).to_numpy()
        source, target = np.where(sends, self.ranks, peer), np.where(sends, peer, self.ranks)
        tagless = np.array([backend_of(self.meta, name) == "nccl" for name in self.names])[
            self.group
        ]
        tag = np.where(tagless & (source != ANY_SOURCE), -1, calls["tag"].fill_null(0).to_numpy())
        to_itself = source == target  # no backend takes that
        sides = {
            "group": self.group,
            "sends": sends,
            "source": source,
            "target": target,
            "tag": tag,
            "refused": refused,
        }
        kth = pl.DataFrame({name: pl.Series(column) for name, column in sides.items()})
        order = kth.select(pl.int_range(pl.len()).over([*sides])).to_series().to_numpy()

        keys = [
            self.group,
            pair * (1 + refused),
            np.where(pair, np.where(refused, numbers, source), k),
            np.where(pair, target, ~refused),
            np.where(pair, tag, nth),
            np.where(pair, to_itself * (1 + ~sends), 0),
            np.where(pair, order, 0),
        ]
        listed = np.lexsort(keys[::-1])
        fresh = np.zeros(len(listed), bool)
        for key in keys:
            fresh[1:] |= key[listed[1:]] != key[listed[:-1]]
        slot = np.zeros(len(listed), np.int64)
        slot[listed] = np.cumsum(fresh)
        return slot

    def _order(self, slot: Numbers) -> Iterator[int]:
        """The slots in order: one waits for those before it on each rank, and among its group's
        collectives.

        A graph of 500,000 calls has few distinct edges.
        """
        ranks, count = self.ranks, int(slot.max()) + 1
        issued = np.arange(len(ranks)) - np.searchsorted(ranks, ranks)
        earliest = np.full(count, len(ranks))  # where the first rank to issue it did so
        np.minimum.at(earliest, slot, issued)
        group_of, pair = np.zeros(count, np.int64), np.zeros(count, bool)
        group_of[slot], pair[slot] = self.group, self.paired
        chain = np.flatnonzero((group_of[1:] == group_of[:-1]) & ~pair[1:] & ~pair[:-1])
        one_rank = ranks[1:] == ranks[:-1]
        edges = np.unique(
            np.concatenate(
                [slot[:-1][one_rank] * count + slot[1:][one_rank], chain * count + chain + 1]
            )
        )
        before, after = edges // count, edges % count
        starts, follow = np.searchsorted(before, np.arange(count + 1)).tolist(), after.tolist()
        following = [follow[begin:end] for begin, end in pairwise(starts)]
        return in_order(following, np.bincount(after, minlength=count).tolist(), earliest.tolist())

    @cached_property
    def count(self) -> int:
        """How many slots there are."""
        if len(self.slot):
            return int(self.slot.max()) + 1
        return 0

    def calls_of(self, slot: int) -> pl.DataFrame:
        return self.calls[np.flatnonzero(self.slot == slot)]

    # ---------------- what differs

    @cached_property
    def kinds(self) -> Codes:
        """A number for each call's op, label, tensors, root and line."""
        calls = self.calls
        kinds = mixed(
            hash_columns(calls, "op", "origin", "dtype", "shape", "reduce_op", "call_site")
        )
        if calls["root"].null_count() == calls.height:
            return kinds
        # Number a root by its group rank, so that groups that did the same get equal numbers.
        root = calls["root"].fill_null(self.world_size).clip(0, self.world_size).to_numpy()
        roots = pl.Series(self._group_ranks[self.group, root])
        return mixed(kinds + hash_columns(pl.DataFrame({"root": roots}), "root"))

    @cached_property
    def _group_ranks(self) -> Numbers:
        """By group and rank the group rank: -2 outside of the group, and -1 at world size, for no
        rank."""
        numbers = np.full((len(self.names), self.world_size + 1), -2)
        numbers[:, -1] = -1
        for group, members in enumerate(self.groups.values()):
            numbers[group, np.array(members, np.int64)] = np.arange(len(members))
        return numbers

    @cached_property
    def uneven(self) -> Flags:
        """By slot: not every rank of the group issued the same call from the same line there, and
        completed it."""
        slot, first = self.slot, np.zeros(self.count, np.int64)
        first[slot] = np.arange(len(slot))  # any of its calls will do
        size = self._group_sizes[self.group[first]]
        # a send and its recv differ, as they should
        kinds = np.where(self.paired, np.uint64(0), self.kinds)
        unlike = (kinds != kinds[first][slot]) | self.calls["completed_ns"].is_null().to_numpy()
        return np.asarray(
            (np.bincount(slot, unlike) > 0)
            | (self.misfit[0] > 0)
            | (np.bincount(slot) < np.where(self.paired[first], 2, size))
        )

    @cached_property
    def misfit(self) -> tuple[Codes, Flags]:
        """By slot a number that tells one misfit of an all-to-all's parts from another, 0 without
        one; and of every call, whether it is on either side of one."""
        sizes, group_ranks = self._group_sizes[self.group], self._group_ranks
        return misfits_of(
            self.calls["splits"], self.slot, sizes, group_ranks[self.group, self.ranks]
        )

    @cached_property
    def _group_sizes(self) -> Numbers:
        return np.array(list(map(len, self.groups.values())), np.int64)

    # ---------------- slots as lists

    @cached_property
    def patterns(self) -> tuple[Numbers, Numbers, Numbers]:
        """The uneven slots; one slot of each pattern of calls; and the index of the pattern of each
        uneven slot.

        What the calls of a slot are, in any order: slots of one pattern are judged alike, so one of
        each is enough.
        """
        pattern = np.zeros(self.count, np.uint64)
        np.add.at(pattern, self.slot, self.kinds + self.calls["completed_ns"].is_null().to_numpy())
        pattern += self.misfit[0]
        slots = np.flatnonzero(self.uneven)
        _, example, of_pattern = np.unique(pattern[slots], return_index=True, return_inverse=True)
        return slots, slots[example], of_pattern

    @cached_property
    def listed(self) -> Numbers:
        """The slots that are listed one by one: all of them, or those where the ranks part, begin or
        end."""
        if self.calls.height <= MOST:
            return np.arange(self.count)
        uneven, examples, _ = self.patterns
        limit = max(KEPT // self.world_size, FEWEST)
        last = self.slot[np.flatnonzero(np.append(self.ranks[1:] != self.ranks[:-1], True))]
        names = ["rank", "group", "seq"]
        ends = pl.DataFrame(
            self.ends, {name: self.calls.schema[name] for name in names}, orient="row"
        )
        ended = self.calls.select(names).with_row_index("at").join(ends, on=names, how="semi")["at"]
        first = np.arange(min(BESIDE, self.count))
        flags = np.zeros(self.count, bool)
        for slots in (
            first,
            last,
            self.slot[ended.to_numpy()],
            uneven[:limit],
            uneven[-limit:],
            examples[:limit],
        ):
            for distance in range(-BESIDE, BESIDE + 1) if len(slots) <= limit // BESIDE else (0,):
                flags[np.clip(slots + distance, 0, self.count - 1)] = True
        return np.flatnonzero(flags)

    @property
    def is_part(self) -> bool:
        """Whether not all slots are listed one by one."""
        return len(self.listed) < self.count


def in_order(
    following: Sequence[Sequence[int]], waits_for: list[int], priority: Sequence[int]
) -> Iterator[int]:
    """Indices in topological order; among several candidates the one of lowest priority comes
    first.

    following  by index, those that come after it
    waits_for  how many come before it; used up
    """
    ready = [(priority[slot], slot) for slot in range(len(priority)) if not waits_for[slot]]
    # the next one is popped off the end
    by_priority = sorted(range(len(priority)), key=priority.__getitem__, reverse=True)
    heapq.heapify(ready)
    done: set[int] = set()
    while len(done) < len(priority):
        slot = heapq.heappop(ready)[1] if ready else by_priority.pop()
        if slot in done:
            continue
        done.add(slot)
        yield slot
        for after in following[slot]:
            waits_for[after] -= 1
            if not waits_for[after]:
                heapq.heappush(ready, (priority[after], after))


def left_out(wrong: Flags, last: int | None, slot: int) -> str:
    """The line for the rows left out between two listed ones; "" if there are none. `wrong`:
    matching.wrong."""
    begin = 0 if last is None else last + 1
    if slot <= begin:
        return ""
    bad = int(wrong[begin:slot].sum())
    position = "before" if last is None else "between"
    return f"… {slot - begin:,} rows {position}, {f'{bad:,} of them did not match' if bad else 'all matched'}"


def _dense(codes: Numbers) -> Numbers:
    """The same numbers without gaps: 7 9 9 30 is 0 1 1 2."""
    if codes.max() > 4 * len(codes) + 1000:  # records that begin far apart
        return np.asarray(np.unique(codes, return_inverse=True)[1], np.int64)
    return np.asarray((np.cumsum(np.bincount(codes) > 0) - 1)[codes], np.int64)
