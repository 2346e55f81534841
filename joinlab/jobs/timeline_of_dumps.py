"""The dumps of one job's ranks, as one Timeline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median_low

import numpy as np
import numpy.typing as npt
import polars as pl

from joinlab.analysis.wording import ranks_text
from joinlab.errors import TimelineFileError
from joinlab.jobs import kineto
from joinlab.jobs.dump import Dump, Group, Kind, Texts
from joinlab.ops import FACTS, POINT_TO_POINT, Needs, Op, counted
from joinlab.program.labels import Frame, call_site, label
from joinlab.timeline import (
    CALL_COLUMNS,
    NOTHING_RECORDED,
    SPAN_COLUMNS,
    Clock,
    Ending,
    EndKind,
    GroupProgress,
    Meta,
    Timeline,
)

MOST_APART_NS = 86_400 * 10**9
"""Dumps whose last calls are more than a day apart are from two jobs: a watchdog ends a hanging job
long before."""


def timeline_of(dumps: Sequence[Dump], texts: Texts, problems: Iterable[str] = ()) -> Timeline:
    """The Timeline of the dumps of one job, at most one per rank. Raises TimelineFileError if they
    hold no call.

    texts     those that the dumps were read with
    problems  sentences about omitted files; meta["problems"] has these and those found here
    """
    notes = list(problems)
    dumps = _of_one_job(sorted(dumps, key=lambda dump: dump.rank), texts, notes)
    groups = _all_groups(dumps)
    world = {rank for _, ranks in groups.values() for rank in ranks} | {dump.rank for dump in dumps}
    notes += _folded(dumps)
    rows = _rows(dumps, groups, texts, notes)
    # Without calls, pg_status may still tell how far each rank was.
    if rows.is_empty() and not any(dump.status for dump in dumps):
        why = f" {notes[0]}." if notes else ""
        todo = "Set TORCH_FR_BUFFER_SIZE (TORCH_NCCL_TRACE_BUFFER_SIZE before 2.8) above 0 before the run."
        if dumps[0].form == kineto.FORM:
            todo = "Profile steps that communicate."
        raise TimelineFileError(f"cannot open {dumps[0].file!r}: it holds no call.{why} {todo}")
    origin = int(rows["enqueued_ns"].min() or 0)  # type: ignore[arg-type]
    size = max(world) + 1
    calls = _written(rows, texts, origin, size)
    # Groups name all their ranks, also those of which no dump was found.
    missing = sorted(world - {dump.rank for dump in dumps})
    if missing:
        notes.append(f"there is no record of {ranks_text(missing)}: what happened there is unknown")
    backend = _backend(rows, texts)
    clock: Clock = {"domain": "wall", "origin_ns": origin}
    if (rows["over"] & rows["completed_ns"].is_null()).any():
        clock["completed"] = "a lower bound: the record says that a call completed, not when"
    spans = _spans(rows)
    progress = _progress(dumps, texts)
    meta: Meta = {
        "program": "a recorded job",
        "engine": "imported",
        "format": dumps[0].form,
        "backend": backend,
        "world_size": size,
        "groups": {name: list(ranks) for name, (_, ranks) in groups.items()},
        "group_names": {
            name: description for name, (description, _) in groups.items() if description
        },
        "versions": {backend: library} if (library := dumps[0].library) else {},
        "clock": clock,
        "skipped": _skipped(spans, progress, groups, missing, notes),
        "progress": progress,
        "missing_ranks": missing,
        "problems": notes,
    }
    return Timeline(
        calls=calls,
        spans=pl.DataFrame(schema=dict(SPAN_COLUMNS)),
        ends=_ends(calls, size, missing),
        meta=meta,
    )


def _folded(dumps: Sequence[Dump]) -> list[str]:
    """One sentence per problem, with the dumps that have it."""
    files: dict[str, list[str]] = {}
    for dump in dumps:
        for problem in dump.problems:
            files.setdefault(problem, []).append(dump.file)
    return [
        f"{those[0]!r}{f' and {len(those) - 1} more' if those[1:] else ''}: {problem}"
        for problem, those in files.items()
    ]


def _of_one_job(dumps: Sequence[Dump], texts: Texts, notes: list[str]) -> list[Dump]:
    """The dumps of one job: one per rank, with the time and the size of the default group that most
    dumps have."""
    sizes = [
        max(map(len, (ranks for _, ranks in dump.groups.values())), default=0) for dump in dumps
    ]
    largest = max(sizes, key=lambda size: (sizes.count(size), size))
    ended = list(map(_last, dumps))
    # A time of some dump of that size (median_low), since all dumps may be too far from an average.
    usual = median_low(
        [end for end, size in zip(ended, sizes, strict=True) if end is not None and size == largest]
        or [0]
    )
    chosen: dict[int, Dump] = {}
    for dump, size, end in zip(dumps, sizes, ended, strict=True):
        if size == largest and end is not None and abs(end - usual) > MOST_APART_NS:
            days = abs(end - usual) // MOST_APART_NS
            distance, which = counted(days, "day"), "later" if end > usual else "earlier"
            notes.append(
                f"{dump.file!r} is of another job: its last call is {distance} {which} than those of most"
            )
        elif size != largest:
            notes.append(
                f"{dump.file!r} is of another job: its largest group has {size} ranks, not {largest}"
            )
        elif dump.rank in chosen:
            notes.append(
                f"{dump.file!r} is another dump of rank {dump.rank}: {chosen[dump.rank].file!r} was read"
            )
        else:
            chosen[dump.rank] = dump
    return _of_one_time(list(chosen.values()), texts, notes)


def _of_one_time(dumps: Sequence[Dump], texts: Texts, notes: list[str]) -> list[Dump]:
    """The dumps that can be of one run: when a rank completes a collective, every rank of its group
    has issued it.

    old run    rank 3    1 ... 90 completed, at 10:00
    new run    rank 0    issues 12 at 10:20: rank 3 cannot have completed 90 before
    """
    contradicting = np.zeros((len(dumps), len(dumps)), bool)  # those two contradict each other
    for group in {(name, ranks) for dump in dumps for name, (_, ranks) in dump.groups.items()}:
        kinds = []
        for kind in texts.kinds:
            kinds.append(kind.group == group[0] and FACTS[kind.op].needs is Needs.EVERYONE)
        members = [
            index
            for index, dump in enumerate(dumps)
            if dump.groups.get(group[0], ("", ()))[1] == group[1]
        ]
        reaches = [_reach(dumps[index], np.array(kinds, bool)) for index in members]
        first, begun, last, ended, number, over = np.array(reaches, np.int64).reshape(-1, 6).T
        # Rows: ranks that completed `number`. Columns: ranks that issued `first` later, or had not
        # issued it yet.
        late = (first <= number[:, None]) & (begun > over[:, None] + MOST_OFF_NS)
        never = (
            (last < first[:, None])
            & (ended + MOST_OFF_NS < begun[:, None])
            & (number >= first)[:, None]
        )
        contradicting[np.ix_(members, members)] |= (late | never) & (first > 0)
    contradicting |= contradicting.T
    np.fill_diagonal(contradicting, False)  # a damaged dump can contradict itself
    if not contradicting.any():
        return list(dumps)
    counts = contradicting.sum(axis=0)
    model = max(
        np.flatnonzero(counts == counts.min()).tolist(), key=lambda index: _last(dumps[index]) or 0
    )
    for dump, contradicts in zip(dumps, contradicting[model], strict=True):
        if contradicts:
            notes.append(
                f"{dump.file!r} is of another run than {dumps[model].file!r}: by their times, one of them completed "
                "collectives before the other issued them, or without it. Load each run from a folder of its own"
            )
    return [
        dump
        for dump, contradicts in zip(dumps, contradicting[model], strict=True)
        if not contradicts
    ]


MOST_OFF_NS = 60 * 10**9
"""Tolerance before dumps count as two runs: hosts' clocks may differ, and dumps may be written at
different times."""


def _reach(dump: Dump, kinds: npt.NDArray[np.bool_]) -> tuple[int, int, int, int, int, int]:
    """Number and time of the first and last issued and of the last completed collective of these
    kinds.

    Zeros if there are none, and for a profiler's trace, which holds only the profiled steps.
    """
    chosen = np.flatnonzero(kinds[np.asarray(dump.calls.kind)])
    if not len(chosen) or not dump.form.startswith("flight recorder"):
        return 0, 0, 0, 0, 0, 0
    first, last = int(chosen[0]), int(chosen[-1])
    done = chosen[np.asarray(dump.calls.completed_ns)[chosen] != 0]
    numbers, times, over = dump.calls.number, dump.calls.enqueued_ns, dump.calls.completed_ns
    ended = (numbers[done[-1]], over[done[-1]]) if len(done) else (0, 0)
    return numbers[first], times[first], numbers[last], times[last], *ended


def _last(dump: Dump) -> int | None:
    return int(np.asarray(dump.calls.enqueued_ns).max(initial=0)) or None


def _all_groups(dumps: Sequence[Dump]) -> dict[str, Group]:
    """Every group of the dumps, the largest first; groups of one name are distinguished by their
    ranks."""
    groups: dict[str, Group] = {}
    everyone = tuple(dump.rank for dump in dumps)
    for dump in dumps:
        for name, (description, ranks) in dump.groups.items():
            groups.setdefault(
                _key(name, ranks or everyone, groups), (description, ranks or everyone)
            )
    return dict(sorted(groups.items(), key=lambda item: (-len(item[1][1]), len(item[0]), item[0])))


def _rows(
    dumps: Sequence[Dump], groups: Mapping[str, Group], texts: Texts, notes: list[str]
) -> pl.DataFrame:
    """The calls of all dumps as numbers, with the group names of `_all_groups` and the dumps'
    times. Calls of one rank and group that are all collectives, or all sends and recvs, have one
    number in `series`."""
    kinds = [_renamed(dump, groups, texts) for dump in dumps]  # may add to texts.kinds
    data = {"rank": np.repeat([dump.rank for dump in dumps], [len(dump.calls) for dump in dumps])}
    data |= {"kind": np.concatenate(kinds)}
    for name in ("stack", "number", "paired", "seq", *_TIMES):
        data[name] = np.concatenate([np.asarray(getattr(dump.calls, name)) for dump in dumps])
    for name in _TIMES:
        wrong = (data[name] < 0) | (data[name] >= _LONG_NS)
        if wrong.any():
            ranks_named = ranks_text(sorted(set(data["rank"][wrong].tolist())))
            notes.append(
                f"{int(wrong.sum())} times of {ranks_named} were left out: they are impossible"
            )
            data[name] = np.where(wrong, 0, data[name])
    names = {name: index for index, name in enumerate(groups)}
    series_in_rank = [
        2 * names.get(kind.group, len(names)) + (kind.op in POINT_TO_POINT) for kind in texts.kinds
    ]
    data["series"] = (
        data["rank"] * 2 * (len(names) + 1) + np.array(series_in_rank, np.int64)[data["kind"]]
    )
    return pl.DataFrame(data).with_columns(
        *(
            pl.lit(
                pl.Series(name, [getattr(kind, name) for kind in texts.kinds], dtype=dtype)
            ).gather("kind")
            for name, dtype in (("group", pl.String()), ("op", pl.String()), ("over", pl.Boolean()))
        ),
        *(pl.when(pl.col(name) != 0).then(pl.col(name)).alias(name) for name in _TIMES),
    )


_TIMES = ("enqueued_ns", "started_ns", "completed_ns")
_LONG_NS = 1 << 62  # 146 years


def _renamed(dump: Dump, groups: Mapping[str, Group], texts: Texts) -> npt.NDArray[np.int32]:
    """The kinds of a dump's calls, under the names of `_all_groups`."""
    kinds = np.asarray(dump.calls.kind)
    names = {name: _key(name, ranks, groups) for name, (_, ranks) in dump.groups.items() if ranks}
    if any(name != key for name, key in names.items()):
        for number, kind in list(enumerate(texts.kinds)):
            if kind.group != names.get(kind.group, kind.group) and (kinds == number).any():
                kinds = np.where(
                    kinds == number, texts.kind(kind._replace(group=names[kind.group])), kinds
                )
    return kinds


def _key(name: str, ranks: tuple[int, ...], groups: Mapping[str, Group]) -> str:
    if name not in groups or groups[name][1] == ranks:
        return name
    return f"{name}:{','.join(map(str, ranks))}"


def _written(rows: pl.DataFrame, texts: Texts, origin: int, size: int) -> pl.DataFrame:
    """`rows` with the columns of a Timeline: texts in place of numbers, and labels found from the
    stacks."""
    kinds, stacks = list(texts.kinds), [(), *texts.stacks]  # number -1 is no stack
    shapes = [list(map(list, shape)) for shape in texts.shapes]
    pair = rows["kind"].to_numpy().astype(np.int64) * len(stacks) + rows["stack"].to_numpy() + 1
    occurs = np.bincount(pair) > 0  # ten times as fast as finding the distinct ones by sorting
    labels = [
        _label(kinds[index // len(stacks)], stacks[index % len(stacks)])
        for index in np.flatnonzero(occurs).tolist()
    ]
    title = pl.lit(pl.Series((np.cumsum(occurs) - 1)[pair]))
    kind = pl.col("kind")
    stack = pl.col("stack") + 1
    # distinct values, and the number of each call's
    sources: dict[str, tuple[Sequence[object], pl.Expr]] = {
        "origin": (labels, title),
        "dtype": ([kind_facts.dtype for kind_facts in kinds], kind),
        "shape": ([shapes[kind_facts.shape] for kind_facts in kinds], kind),
        "peer": (
            [kind_facts.peer if kind_facts.peer in range(size) else None for kind_facts in kinds],
            kind,
        ),
        "call_site": ([call_site(frames) if frames else None for frames in stacks], stack),
        "stack": ([list(map(str, reversed(frames))) or None for frames in stacks], stack),
    }
    # Gather each column: a join takes three times as long.
    columns = {
        name: pl.lit(pl.Series(values, dtype=CALL_COLUMNS[name])).gather(index)
        for name, (values, index) in sources.items()
    }
    over = (
        pl.when(pl.col("over"))
        .then(pl.coalesce("completed_ns", "enqueued_ns"))
        .otherwise("completed_ns")
    )
    times = {
        "enqueued_ns": pl.col("enqueued_ns"),
        "started_ns": pl.col("started_ns"),
        "completed_ns": over,
    }
    columns |= {name: time - origin for name, time in times.items()}
    columns |= {name: pl.col(name) for name in ("rank", "group", "seq", "op")}
    columns["number"] = _number()
    absent = {name: pl.lit(None, dtype) for name, dtype in CALL_COLUMNS.items()}
    return rows.select((columns.get(name, empty)).alias(name) for name, empty in absent.items())


def _number() -> pl.Expr:
    """The column `number`: the dump's; if numbers are missing or repeat, a rank's calls of one
    group are counted."""
    pair = pl.col("op").is_in(list(POINT_TO_POINT))
    number, nth = pl.col("number"), pl.int_range(1, pl.len() + 1).over("series")
    repeats = (number.n_unique() < pl.len()).over("series")
    collective = pl.when(repeats).then(number.min().over("series") - 1 + nth).otherwise(number)
    number_or_nth = (
        pl.when(pair)
        .then(pl.when(pl.col("paired") > 0).then("paired").otherwise(nth))
        .otherwise(collective)
    )
    return pl.when(number_or_nth > 0).then(number_or_nth)  # a damaged dump has other numbers


def _label(kind: Kind, stack: tuple[Frame, ...]) -> str:
    return label(
        Op(kind.op),
        stack,
        asynchronous=True,
        dtype=kind.dtype,
        all_reduce_barrier=kind.backend == "nccl",
    )


def _backend(rows: pl.DataFrame, texts: Texts) -> str:
    """The backend that most calls name; a job of two backends has groups of both."""
    counts: dict[str, int] = {}
    for kind, count in zip(
        texts.kinds, np.bincount(rows["kind"].to_numpy(), minlength=len(texts.kinds)), strict=True
    ):
        counts[kind.backend] = counts.get(kind.backend, 0) + int(count)
    if rows.height:
        return min(counts, key=lambda name: (-counts[name], name))
    return "nccl"


def _skipped(
    spans: pl.DataFrame,
    progress: Mapping[str, Mapping[int, GroupProgress]],
    groups: Mapping[str, Group],
    missing: Sequence[int],
    notes: list[str],
) -> dict[str, dict[int, int]]:
    """Per group and rank: the number of collectives before the first one in its dump."""
    lost = {}
    for name, (_, ranks) in groups.items():
        lost[name] = {
            rank: NOTHING_RECORDED
            if rank in missing
            else progress.get(name, {}).get(rank, _NONE)["enqueued"]
            for rank in ranks
        }
    odd = []
    for group, rank, first, last, count in spans.iter_rows():
        lost[group][rank] = first - 1
        if last - first + 1 < count:
            odd.append(
                f"rank {rank} has {count} calls under the numbers {first} to {last} of group {group!r:.60}"
            )
    notes += odd if len(odd) < 4 else [f"{odd[0]}; {len(odd) - 1} more ranks or groups are like it"]
    return lost


_NONE: GroupProgress = {"enqueued": 0, "completed": 0}


def _spans(rows: pl.DataFrame) -> pl.DataFrame:
    """Per group and rank: the first and last number of a collective, and how many there are."""
    number = pl.col("number")
    spans = rows.filter(~pl.col("op").is_in([Op.SEND, Op.RECV])).group_by("group", "rank")
    return spans.agg(
        number.min().alias("first"), number.max().alias("last"), pl.len().alias("count")
    ).sort("group", "rank")


def _progress(dumps: Sequence[Dump], texts: Texts) -> dict[str, dict[int, GroupProgress]]:
    """Per group and rank: the number of collectives enqueued and completed, from pg_status.

    In an NCCL group with sends or recvs, pg_status may hold the number of a send
    (ProcessGroupNCCL.cpp, initWork and workEnqueue: that of the last work, of either kind). There
    the entries are used, since each has the number of the collective before it; a rank without an
    entry counts as level with the furthest. Gloo's pg_status counts sends and recvs, too, as op_id
    does; they have no entries.
    """
    counts: dict[str, dict[int, GroupProgress]] = {}
    reached = _reached(dumps, texts)
    on_gloo = {kind.group for kind in texts.kinds if kind.backend == "gloo"}
    for dump in dumps:
        names = _status_names(dump)
        for number, status in dump.status.items():
            if number in names:
                group = names[number]
                enqueued, completed = (
                    status.get(f"last_{event}_collective", 0) for event in ("enqueued", "completed")
                )
                if group in reached:
                    enqueued = completed = reached[group].get(
                        dump.rank, max(reached[group].values())
                    )
                elif group in on_gloo:
                    enqueued, completed = (
                        _collectives_among(dump, group, texts, count)
                        for count in (enqueued, completed)
                    )
                counts.setdefault(group, {})[dump.rank] = {
                    "enqueued": max(enqueued, 0),
                    "completed": max(completed, 0),
                }
    return counts


def _reached(dumps: Sequence[Dump], texts: Texts) -> dict[str, dict[int, int]]:
    """Per rank and NCCL group with sends or recvs: the largest collective number of an entry."""
    names = sorted(
        {kind.group for kind in texts.kinds if kind.op in POINT_TO_POINT and kind.backend == "nccl"}
    )
    index_of = {name: index for index, name in enumerate(names)}
    group_of = np.array([index_of.get(kind.group, -1) for kind in texts.kinds])
    highest: dict[str, dict[int, int]] = {}
    for dump in dumps if names else ():
        group, number = group_of[np.asarray(dump.calls.kind)], np.asarray(dump.calls.number)
        for index in {*group.tolist()} - {-1}:
            highest.setdefault(names[index], {})[dump.rank] = int(number[group == index].max())
    return highest


def _collectives_among(dump: Dump, group: str, texts: Texts, count: int) -> int:
    """How many of the first `count` calls of a gloo group are collectives; `count` if the dump has
    none of them."""
    kinds = np.array([kind.group == group and kind.backend == "gloo" for kind in texts.kinds], bool)
    chosen = kinds[np.asarray(dump.calls.kind)]
    number, seq = np.asarray(dump.calls.number)[chosen], np.asarray(dump.calls.seq)[chosen]
    if chosen.any():
        return int(number[seq < count].max(initial=min(count, number.min() - 1)))
    return count


def _status_names(dump: Dump) -> dict[str, str]:
    """Names of groups by the process's number for them.

    Entries have both. Numbers and names both follow the order in which groups were created, so if
    there are equally many, they pair up in order, unless an entry contradicts that.
    """
    names_by_number = dump.numbers
    names, numbers = list(dump.groups), list(dump.status)
    if len(names) == len(numbers) and all(text.isdigit() for text in (*names, *numbers)):
        paired = dict(zip(sorted(numbers, key=int), sorted(names, key=int), strict=True))
        if all(paired.get(number, name) == name for number, name in names_by_number.items()):
            return paired
    return names_by_number


def _ends(calls: pl.DataFrame, size: int, missing: Sequence[int]) -> tuple[Ending, ...]:
    first = (
        calls.filter(pl.col("completed_ns").is_null())
        .sort("enqueued_ns")
        .group_by("rank", maintain_order=True)
        .agg(pl.col("group").first(), pl.col("seq").first())
    )
    pending = {rank: (group, seq) for rank, group, seq in first.iter_rows()}
    ends, unseen = [], set(missing)
    for rank in range(size):
        group, seq = pending.get(rank, (None, None))
        text = "no record was found" if rank in unseen else "the record was written before the end"
        ends.append(Ending(EndKind.UNKNOWN, call=seq, group=group, text=text))
    return tuple(ends)
