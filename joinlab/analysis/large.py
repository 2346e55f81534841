"""Large Timelines, read by columns: a million calls are matched in a second, where row by row they take a minute.

What a reader needs of them is told by few: `Large.short` holds the calls where the ranks part, those beside them, and
the first and last of every rank, matched and told as any Timeline is. Whole slots are left out, of all ranks, so
those that stay meet as before.

    slot      0 1 2 | 3 ...  59,998 | 59,999  60,000  60,001 | ...  124,998 | 124,999
    kept      x x x |               |    x    differs     x  |              |   hangs
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import polars as pl

from joinlab.analysis.folding import Codes, Folding, fold, places, rank_lanes
from joinlab.analysis.matching import Matched, group_places, in_order
from joinlab.ops import POINT_TO_POINT
from joinlab.timeline import Timeline

LARGE = 4000
"""A Timeline with more calls than these is read by columns."""

KEPT = 2000  # calls that a short Timeline holds, about
BESIDE = 3  # slots kept on either side of one that is kept
FEWEST = 24  # slots kept, however many ranks there are

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Large:
    """A large Timeline.

    timeline  the whole of it
    slot      of every call, the index of its slot among those that `match` lists
    odd       by slot: not every rank of the group issued the same call from the same line there, and completed it
    wrong     by slot: its calls met, or miss each other, and should not have
    short     some of its slots, matched; `short.numbers` names them by their index in the whole
    folding   `short`, folded; its lanes are those of the whole
    """

    timeline: Timeline
    slot: Numbers
    odd: Flags
    wrong: Flags
    short: Matched
    folding: Folding

    @classmethod
    def of(cls, timeline: Timeline, ranks: bool = True) -> Large:
        """Read a Timeline. `ranks`: those that did the same share a lane."""
        classes, late = rank_lanes(timeline) if ranks else (tuple((rank,) for rank in range(timeline.world_size)), ())
        found, odd_calls, kinds = places(timeline)
        slot = _numbers(timeline, found)
        odd = np.bincount(slot, odd_calls) > 0
        # What the calls of a slot are, in any order: slots of one pattern are judged alike, so one of each is enough.
        pattern = np.zeros(len(odd), np.uint64)
        np.add.at(pattern, slot, kinds)
        where = np.flatnonzero(odd)
        _, example, of_pattern = np.unique(pattern[where], return_index=True, return_inverse=True)
        short = _short(timeline, slot, where, where[example])
        number_of = {number: at for at, number in enumerate(short.numbers)}
        bad = [not short.slots[number_of[at]].expected if at in number_of else True for at in where[example].tolist()]
        wrong = np.zeros(len(odd), bool)
        wrong[where] = np.array(bad, bool)[of_pattern] if len(where) else False
        folding = fold(short.timeline, ranks=classes, matched=short, late=late)
        return cls(timeline, slot, odd, wrong, short, folding)

    def calls(self, slot: int) -> pl.DataFrame:
        """The calls of a slot."""
        return self.timeline.calls[np.flatnonzero(self.slot == slot)]


def is_large(timeline: Timeline) -> bool:
    """Whether a Timeline is to be read by columns."""
    return timeline.calls.height > LARGE


def large(timeline: Timeline, ranks: bool = True) -> Large:
    """Large.of(timeline, ranks), kept for those who ask again."""
    return _large(timeline, ranks and timeline.world_size > 2)  # two never share a lane


@lru_cache(maxsize=2)  # a view asks for the same Timeline again and again
def _large(timeline: Timeline, ranks: bool) -> Large:
    return Large.of(timeline, ranks)


def tellable(timeline: Timeline, ranks: bool = True) -> tuple[Matched, Folding]:
    """What a reader is told of a Timeline, matched and folded: all of its calls; of a large one, those in `short`.

    ranks  False gives every rank a lane of its own
    """
    if is_large(timeline):
        whole = large(timeline, ranks)
        return whole.short, whole.folding
    matched = Matched(timeline)
    return matched, fold(timeline, ranks=ranks, matched=matched)


def left_out(odd: Flags, last: int | None, slot: int) -> str:
    """The line that stands for the rows between two listed ones; "" if there are none. `odd` is that of Large."""
    begin = 0 if last is None else last + 1
    if slot <= begin:
        return ""
    bad = int(odd[begin:slot].sum())
    where = "before" if last is None else "between"
    return f"… {slot - begin:,} rows {where}, {f'{bad:,} of them not alike' if bad else 'all matched'}"


def _numbers(timeline: Timeline, found: Codes) -> Numbers:
    """The index of every call's slot in the order in which `match` lists them."""
    calls = timeline.calls
    paired = calls["op"].is_in(list(POINT_TO_POINT))
    peers, ranks = calls["peer"].filter(paired), calls["rank"].filter(paired)
    alone = peers.null_count() or (peers < 0).any() or (peers == ranks).any()  # from any source, or to itself
    two_rules = paired.any() and "group_backends" in timeline.meta  # pairs of gloo have tags
    if alone or two_rules or calls["number"].null_count():  # rare, and row by row
        at = {
            (rank, slot.group, seq): number
            for number, slot in enumerate(Matched(timeline).slots)
            for rank, seq in slot.calls.items()
        }
        return np.array([at[key] for key in calls.select("rank", "group", "seq").rows()], np.int64)
    present = np.bincount(found.astype(np.int64)) > 0
    slot = np.asarray((np.cumsum(present) - 1)[found], np.int64)
    names, place = group_places(timeline)
    if len(names) == 1 and not paired.any():
        return slot  # collectives of one group come in that group's order
    return np.argsort(list(_order(calls, slot, place // timeline.world_size, paired.to_numpy())))[slot]


def _order(calls: pl.DataFrame, slot: Numbers, group: Numbers, paired: Flags) -> Iterator[int]:
    """The slots in the order of `match`: one waits for those before it on each rank, and among its group's collectives.

    A graph of 500,000 calls has few distinct edges: this takes a tenth of the time that matching their rows takes.
    """
    ranks, count = calls["rank"].to_numpy(), int(slot.max()) + 1
    issued = np.arange(len(ranks)) - np.searchsorted(ranks, ranks)
    earliest = np.full(count, len(ranks))
    np.minimum.at(earliest, slot, issued)
    group_of, pair = np.zeros(count, np.int64), np.zeros(count, bool)
    group_of[slot], pair[slot] = group, paired
    chain = np.flatnonzero((group_of[1:] == group_of[:-1]) & ~pair[1:] & ~pair[:-1])
    one_rank = ranks[1:] == ranks[:-1]
    edges = np.unique(np.concatenate([slot[:-1][one_rank] * count + slot[1:][one_rank], chain * count + chain + 1]))
    before, after = edges // count, edges % count
    starts, follow = np.searchsorted(before, np.arange(count + 1)).tolist(), after.tolist()
    following = [follow[begin:end] for begin, end in pairwise(starts)]
    return in_order(following, np.bincount(after, minlength=count).tolist(), earliest.tolist())


def _short(timeline: Timeline, slot: Numbers, odd: Numbers, examples: Numbers) -> Matched:
    """The slots worth telling, matched: the first and last, each rank's last, and odd ones, with those beside them."""
    calls = timeline.calls
    count, most = int(slot.max()) + 1, max(KEPT // timeline.world_size, FEWEST)
    ranks = calls["rank"].to_numpy()
    last = slot[np.flatnonzero(np.append(ranks[1:] != ranks[:-1], True))]
    ends = [
        (rank, timeline.default_group if end.group is None else end.group, end.call)
        for rank, end in enumerate(timeline.ends)
        if end.call is not None
    ]
    names = ["rank", "group", "seq"]
    of_ends = pl.DataFrame(ends, schema={name: calls.schema[name] for name in names}, orient="row")
    ended = calls.select(names).with_row_index("at").join(of_ends, on=names, how="semi")["at"]
    wanted = [np.arange(min(BESIDE, count)), last, slot[ended.to_numpy()], odd[:most], odd[-most:], examples[:most]]
    kept = np.zeros(count, bool)
    for some in wanted:
        for beside in range(-BESIDE, BESIDE + 1) if len(some) <= most // BESIDE else (0,):
            kept[np.clip(some + beside, 0, count - 1)] = True
    numbers = np.flatnonzero(kept)
    here = kept[slot]
    matched = Matched(replace(timeline, calls=calls.filter(pl.Series(here))))
    places = zip(matched.rows, slot[here].tolist(), strict=True)
    whole = {(row["rank"], row["group"], row["seq"]): number for row, number in places}
    assert len(numbers) == len(matched.slots)
    number = [whole[rank, one.group, seq] for one in matched.slots for rank, seq in list(one.calls.items())[:1]]
    # Keep the order of the whole run: a call that is left out may decide which of two slots comes first.
    matched.slots = tuple(matched.slots[at] for at in np.argsort(number))
    matched.numbers = sorted(number)
    return matched
