"""Folding: shows calls that agree only once, so that the calls in which ranks differ stand out.

Two folds, both of a Timeline alone. Ranks that did the same become one lane:

    ranks 0-4, 6, 7   all-reduce  broadcast  barrier       7 ranks: same calls, same meetings, same endings
    rank 5            all-reduce  broadcast  broadcast

and rounds that repeat become one row: "5 x forward, backward, barrier". Terminal, page, figure and
view all use these folds.

Never folded into a row: calls that met what they should not, that never completed or failed, that
met the same call from another line, that some rank of the group did not issue, and the last call of
every rank. Thus a folded row holds calls that matched, all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import polars as pl

from joinlab.analysis.hashing import Codes, hash_columns, mixed
from joinlab.analysis.matching import Matched, Slot, key_of
from joinlab.analysis.meanings import asks_of, is_setup
from joinlab.analysis.reading import Reading, read
from joinlab.analysis.wording import by_key, ranks_text
from joinlab.timeline import Timeline, derived

FEWEST = 3
"""Fewest rows that a fold hides, unless it is DDP's own setup."""

# periods tried at one place: the distances to the next places where the same row comes again
_CANDIDATES = 64

Classes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Fold:
    """Neighbouring rows that all matched, shown as one: `times` rounds.

    begin, end  the rows: those with begin <= index < end of Folding.slots
    times       how often the pattern is repeated; 1 for a stretch of DDP's own setup
    """

    begin: int
    end: int
    times: int

    def __len__(self) -> int:
        return self.end - self.begin


Part = int | Fold
"""A row of its own, by index of its slot, or a fold of several."""


@dataclass(frozen=True, slots=True, eq=False)
class Folding:
    """A Timeline folded.

    classes  ranks that did the same, one tuple a lane; every rank is in exactly one
    matched  the calls of the first rank of every class, matched. Their slots are the rows; `Slot.lost` names the
             ranks that issued the same call and are not shown
    parts    the rows from first to last, each of them once: by index of its slot, or within a Fold
    every    the calls of all ranks, matched
    """

    classes: tuple[tuple[int, ...], ...]
    matched: Matched
    parts: tuple[Part, ...]
    every: Matched

    @property
    def slots(self) -> tuple[Slot, ...]:
        return self.matched.slots

    @property
    def lanes(self) -> dict[int, tuple[int, ...]]:
        """The ranks of each lane, by the rank that stands for them."""
        return {ranks[0]: ranks for ranks in self.classes}

    @property
    def numbers(self) -> Sequence[int]:
        """The index of every row among all slots of the Timeline: what joinlab.match counts."""
        return self.matched.numbers

    def label(self, part: Fold, rank: int | None = None) -> str:
        """The content of a fold in words, of one lane or of all lanes.

        folding.label(folding.parts[0])         # "5 x forward, backward, barrier"
        """
        slots = self.slots[part.begin : part.end]
        rows = (
            row
            for slot in slots
            for issuer, row in self.matched.calls_of(slot).items()
            if rank in (None, issuer)
        )
        asked = ((asks_of(row), is_setup(row["origin"] or "")) for row in rows)
        both = ("forward 1", "forward 2")  # shown as one: both belong to a forward pass
        names = dict.fromkeys(
            ("forward" if word in both else word, setting_up) for word, setting_up in asked
        )
        setup, pattern = (
            [word for word, of_setup in names if of_setup is which] for which in (True, False)
        )
        text = ", ".join(pattern or setup)
        text += f", and {' and '.join(setup)}" if pattern and setup else ""
        if part.times > 1:
            return f"{part.times} × {text}"
        return text

    def name(self, rank: int) -> str:
        """The name of the lane that this rank stands for: "ranks 0-4, 6, 7"."""
        return ranks_text(self.lanes[rank])


def fold(timeline: Timeline, share_lanes: bool = True, whole: bool = False) -> Folding:
    """Fold a Timeline; if it has many calls, only the slots that are shown one by one.

    share_lanes  ranks that did the same have one lane; False: every rank has one of its own
    whole        all slots, however many

        [part for part in fold(timeline).parts if isinstance(part, int)]        # rows that stand by themselves
    """
    return _folded(
        timeline, share_lanes and timeline.world_size > 2, whole
    )  # two never share a lane


@derived
def _folded(timeline: Timeline, share_lanes: bool, whole: bool) -> Folding:
    if share_lanes:
        classes = rank_lanes(timeline)
    else:
        classes = tuple((rank,) for rank in range(timeline.world_size))
    slots = None if whole else read(timeline).listed
    unfolded = Matched(timeline, slots)
    fewer = len(classes) < timeline.world_size
    if fewer:
        matched = Matched(timeline, slots, [members[0] for members in classes])
    else:
        matched = unfolded
    return Folding(classes, matched, fold_rows(matched), unfolded)


# ---------------- ranks


@derived
def rank_lanes(timeline: Timeline) -> Classes:
    """Ranks with the same calls, meetings and endings, in order of their first rank.

    A rank's own number counts as the same: ranks that each send to the next are alike, and so are
    ranks of groups that did the same. It works on columns, not on rows: two million calls take
    about a second.
    """
    signatures, groups = _signatures(timeline)
    lanes: dict[object, list[int]] = {}
    for rank, end in enumerate(timeline.ends):
        text = end.text.replace(f"rank {rank}", "this rank").replace(f"Rank {rank}", "This rank")
        group = groups.get((rank, end.group), -1)
        look = int(signatures[rank]), end.kind, end.pending, end.call, group, text, end.proven
        lanes.setdefault(look, []).append(rank)
    names = dict.fromkeys(str(name) for _, name in groups)
    return _split(map(tuple, lanes.values()), [{*read(timeline).groups[name]} for name in names])


def _split(lanes: Iterable[tuple[int, ...]], groups: Sequence[set[int]]) -> Classes:
    """The lanes, split until no group of which calls are shown has members in a lane of others: a
    row of it would have no call of theirs.

        groups  0, 1 and 2, 3      lanes  0 | 1, 3 | 2      ->      0 | 1 | 2 | 3
    """
    lane_of = {rank: ranks for ranks in lanes for rank in ranks}
    unchecked = [*groups]
    while unchecked:
        group = unchecked.pop()
        lanes_here = {lane_of[rank] for rank in group}
        outside = {ranks for ranks in lanes_here if ranks[0] not in group}
        if set() < outside < lanes_here:
            for ranks in outside:
                for part in by_key((rank in group, rank) for rank in ranks).values():
                    lane_of.update(dict.fromkeys(part, tuple(part)))
            unchecked = [*groups]
    return tuple(sorted({*lane_of.values()}))


def _signatures(timeline: Timeline) -> tuple[Codes, dict[tuple[int, str | None], int]]:
    """A number per rank; ranks with the same calls in the same order and the same meetings share
    it.

    Also the groups of each rank, numbered in the order in which the rank first used them.
    """
    reading, calls, world = read(timeline), timeline.calls, timeline.world_size
    if calls.is_empty():
        return np.zeros(world, np.uint64), {}
    ranks = reading.ranks
    local, groups = _local_groups(reading)
    away = ((pl.col("peer") - pl.col("rank")) % world).fill_null(world)
    waits = pl.col("host_wait_begin_ns").is_not_null() & pl.col("host_wait_end_ns").is_null()
    done = pl.col("completed_ns").is_not_null()
    columns = calls.select(away=away, done=done, waits=waits).with_columns(local=pl.Series(local))
    hashes = (
        reading.kinds
        + mixed(hash_columns(calls, "tag", "input", "error"))
        + hash_columns(columns, *columns.columns)
    )
    # Calls of an uneven slot are alike only within that slot; all others wherever they are.
    misfits = np.flatnonzero(reading.misfit[1])
    hashes[misfits] += mixed(ranks[misfits].astype(np.uint64))  # such a rank has its own lane
    mixed_hashes = mixed(
        hashes
        + np.where(
            reading.uneven[reading.slot], mixed(reading.slot.astype(np.uint64)), np.uint64(0)
        )
    )
    starts = np.searchsorted(ranks, np.arange(world + 1))
    positions = np.arange(len(ranks), dtype=np.uint64) - starts[ranks].astype(np.uint64)
    summed = np.concatenate(
        [
            np.zeros(1, np.uint64),
            np.cumsum(mixed_hashes * (mixed(positions) | np.uint64(1)), dtype=np.uint64),
        ]
    )
    return np.asarray(summed[starts[1:]] - summed[starts[:-1]], np.uint64), groups


def _local_groups(
    reading: Reading,
) -> tuple[npt.NDArray[np.int64], dict[tuple[int, str | None], int]]:
    """Of every call the number of its group, in the order in which its rank first used them; and by
    rank and group."""
    names, member, world = reading.names, reading.member, reading.world_size
    first = np.full(len(names) * world, len(member))
    first[member[::-1]] = np.arange(len(member))[::-1]
    # rank by rank: calls are sorted so
    used = np.argsort(first)[: np.count_nonzero(first < len(member))]
    ranks = used % world
    local = np.zeros(len(first), np.int64)
    local[used] = np.arange(len(used)) - np.searchsorted(ranks, ranks)
    return local[member], {
        (index % world, names[index // world]): int(local[index]) for index in used.tolist()
    }


# ---------------- rows


def fold_rows(matched: Matched) -> tuple[Part, ...]:
    """The rows of a matched Timeline, those that agree and repeat folded."""
    last = {row["rank"]: key_of(row) for row in matched.rows}  # calls are in order of issue
    ends = {*last.values(), *(end[:3] for end in matched.ends)}
    names: dict[object, int] = {}
    looks: list[int | None] = []  # by row the number of its look; None: it stays a row of its own
    setup: list[bool] = []
    for slot in matched.slots:
        rows = [*matched.calls_of(slot).values()]
        plain = _matched_fully(slot, rows) and ends.isdisjoint(map(key_of, rows))
        looks.append(names.setdefault(_look(rows), len(names)) if plain else None)
        setup.append(all(is_setup(row["origin"] or "") for row in rows))
    inputs = [slot.input for slot in matched.slots]
    parts: list[Part] = []
    begin = 0
    for end in (*(index for index, look in enumerate(looks) if look is None), len(looks)):
        parts += _stretch(begin, end, looks, setup, inputs)
        parts += [end] if end < len(looks) else []
        begin = end + 1
    return tuple(parts)


def _matched_fully(slot: Slot, rows: Sequence[Mapping[str, object]]) -> bool:
    """Whether all ranks of the group met here as meant, and every call completed and let its host
    go."""
    whole = slot.met or (len(slot.needs) == 1 and not slot.pair)
    done = all(
        row["completed_ns"] is not None
        and row["error"] is None
        and (row["host_wait_begin_ns"] is None or row["host_wait_end_ns"] is not None)
        for row in rows
    )
    lines = {(row["op"], row["origin"]): row["call_site"] for row in rows}
    one_line = all(lines[row["op"], row["origin"]] == row["call_site"] for row in rows)
    return slot.expected and whole and not slot.absent and done and one_line


def _look(rows: Sequence[Mapping[str, object]]) -> object:
    """Key of a row within a round. Values are not part of it."""
    names = (
        "rank",
        "group",
        "op",
        "origin",
        "dtype",
        "reduce_op",
        "root",
        "peer",
        "tag",
        "call_site",
    )
    return tuple((*(row[name] for name in names), str(row["shape"])) for row in rows)


def _stretch(
    begin: int,
    end: int,
    looks: Sequence[int | None],
    setup: Sequence[bool],
    inputs: Sequence[int | None],
) -> Iterator[Part]:
    """The rows from begin to end, which all matched, folded: round by round if the program marks
    inputs, else singly.

    DDP's own setup comes in the middle of a round (the bucket rebuild, in the second one). It
    counts as no part of the round's pattern, and goes into the fold of its round.

        setup | input 0 a b | input 1 a setup b | input 2 a b      ->      setup | 3 x a, b
    """
    first = next((row for row in range(begin, end) if not setup[row]), end)
    if first > begin + 1:
        yield Fold(begin, first, 1)
    elif first > begin:
        yield begin
    marked = any(number is not None for number in inputs)
    starts = [
        row
        for row in range(first, end)
        if row == first or (inputs[row] != inputs[row - 1] if marked else not setup[row])
    ]
    rounds = []
    for edges in pairwise((*starts, end)):
        rounds.append(tuple(looks[row] for row in range(*edges) if not setup[row]))
    yield from _repeats([*starts, end], rounds, looks if marked else None)


def _repeats(
    edges: Sequence[int], rounds: Sequence[object], looks: Sequence[int | None] | None = None
) -> Iterator[Part]:
    """Rounds, with runs of the same few folded.

    edges   the first row of each round, and the end
    rounds  the look of each round; those that are equal are alike
    looks   of all rows, to fold what repeats within a round that does not
    """
    names: dict[object, int] = {}
    codes = np.array([names.setdefault(look, len(names)) for look in rounds], np.int64)
    position = 0
    while position < len(rounds):
        period, times = _best_repeat(codes, position)
        until = position + period * times
        rows = range(edges[position], edges[position + 1])
        if times > 1 and edges[until] - edges[position] >= FEWEST:
            yield Fold(edges[position], edges[until], times)
            position = until
            continue
        if looks is None or len(rows) < FEWEST:
            yield from rows
        else:
            yield from _repeats([*rows, rows.stop], looks[rows.start : rows.stop])
        position += 1


def _best_repeat(codes: npt.NDArray[np.int64], position: int) -> tuple[int, int]:
    """The period and the number of repeats that cover most of what follows; the shortest period of
    several."""
    tail = codes[position:]
    best = (1, 1)
    for period in (np.flatnonzero(tail[1:] == tail[0])[:_CANDIDATES] + 1).tolist():
        equal = tail[period:] == tail[:-period]
        length = len(equal) if equal.all() else int(np.argmin(equal))
        times = length // period + 1
        if times > 1 and period * times > (best[0] * best[1] if best[1] > 1 else 0):
            best = (period, times)
    return best
