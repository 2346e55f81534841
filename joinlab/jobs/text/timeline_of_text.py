"""A Timeline of the facts of a text.

A paste may be cut and wrapped anywhere, so only explicit facts count: a call that no line names has
no row, and a rank that no line names is missing.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from operator import itemgetter

import polars as pl

from joinlab.errors import TimelineFileError
from joinlab.jobs.text.facts import DEFAULT_GROUP, LAST_ATTEMPT, OF_HOST, TextFacts
from joinlab.jobs.text.launchers import take_reports
from joinlab.ops import CallRow
from joinlab.program.log_events import MOST_RANKS
from joinlab.timeline import (
    FIRST_FAILED,
    FROM_TEXT,
    NOTHING_RECORDED,
    UNTOLD,
    Ending,
    EndKind,
    Meta,
    Timeline,
    timeline_from_rows,
)


def timeline_of(facts: TextFacts, source: str, problems: Iterable[str] = ()) -> Timeline:
    """The Timeline of all facts. Raises TimelineFileError if there is none about a rank."""
    take_reports(facts)
    ranks = _ranks(facts)
    if not any(rank < MOST_RANKS for rank in ranks):
        of_last = " of its last attempt" if LAST_ATTEMPT in facts.notes else ""
        message = f"cannot open {source}: no line{of_last} says what a rank did."
        for aside in facts.asides[:1]:
            message += f" {aside}"
        message += (
            " Lines that do: those of NCCL's watchdog, of TORCH_DISTRIBUTED_DEBUG=DETAIL, of NCCL_DEBUG=INFO "
            "with NCCL_DEBUG_SUBSYS=COLL, and torchrun's report."
        )
        if facts.dumped:
            message += (
                " A folder with one file of stacks per rank, rank_0.txt and so on, is read, too."
            )
        raise TimelineFileError(message)
    ranks = {rank for rank in ranks | facts.named if rank < MOST_RANKS}
    size = max(max(ranks) + 1, facts.size, *facts.sizes.values())
    rows = _rows(facts)
    meta = _meta(facts, size, ranks, list(problems))
    if meta["backend"] == "nccl" and not (rows or meta["progress"]):
        del meta["backend"]  # no line names one
    ends = [_ending(facts, rank, rows) for rank in range(size)]
    timeline = timeline_from_rows(rows, ends, meta)
    # null if the line has no number
    numbers = pl.Series("number", [row["number"] for row in rows], pl.Int64)
    return replace(timeline, calls=timeline.calls.with_columns(numbers))


def _ranks(facts: TextFacts) -> set[int]:
    """The ranks of which the text says what they did. Where it names none, but the local rank of the one
    process that failed first, that one."""
    ranks = {rank for _, rank, _ in facts.calls}.union(*facts.progress.values())
    ranks |= facts.late | facts.seen | set(facts.raised) | set(facts.ended) | set(facts.stands)
    if ranks or facts.named:
        return ranks
    for rank, exit_text in facts.first:
        if len(facts.first) == 1:
            facts.ended[rank] = f"{exit_text} ({FIRST_FAILED})"
            facts.notes.add(OF_HOST)
            return {rank}
        facts.asides.append(f"torchrun's local rank {rank} failed first: {exit_text}.")
    return ranks


def _rows(facts: TextFacts) -> list[CallRow]:
    """All calls in order, marked as completed where the text shows it."""
    met = _met(facts)
    for (group, rank, number), row in facts.calls.items():
        if not number:  # a monitored_barrier, which raised behind all others
            row["seq"] = max(facts.numbers(group, rank))
        completed = facts.progress[group].get(rank, (0, 0))[1]
        if (group, number) in met or 0 < number <= completed:
            row["completed_ns"] = 0
    return sorted(facts.calls.values(), key=itemgetter("rank", "group", "seq"))


def _meta(facts: TextFacts, size: int, ranks: set[int], problems: list[str]) -> Meta:
    groups = _groups(facts, size)
    program = f"text of {', '.join(dict.fromkeys(facts.sources))}"
    if facts.notes:
        program += f" ({'; '.join(sorted(facts.notes))})"
    return {
        "program": program,
        "engine": "imported",
        "format": FROM_TEXT,
        "backend": "gloo" if "gloo/transport" in str(facts.raised) else facts.backend,
        "world_size": size,
        "groups": groups,
        "group_names": {group: name for group, name in facts.names.items() if group in groups},
        "versions": {},
        "clock": {
            "domain": "wall",
            "completed": "unknown: calls that every rank issued alike count as completed",
        },
        "skipped": {
            group: {rank: _calls_before(facts, group, rank) for rank in members}
            for group, members in groups.items()
        },
        "progress": {
            group: {
                rank: {"enqueued": enqueued, "completed": completed}
                for rank, (enqueued, completed) in counts.items()
            }
            for group, counts in facts.progress.items()
            if counts
        },
        "missing_ranks": sorted(set(range(size)) - ranks),
        "heard": sorted(facts.heard.intersection(range(size))),
        "problems": problems,
        "counted": {group: name for group, name in facts.counted.items() if group in groups},
        "sends": {
            rank: " and ".join(f"a {op} (opCount {number})" for op, number in last.items())
            for rank, last in sorted(facts.sends.items())
        },
        "rank_names": facts.rank_names,
        "mismatched": sorted(facts.mismatched),
        "asides": [*dict.fromkeys(facts.asides)],
        "stood": {rank: facts.stood(rank) for rank in sorted(facts.stands)},
    }


def _met(facts: TextFacts) -> set[tuple[str, int]]:
    """(group, number) of calls that every rank of the group issued with the same op and
    shape."""
    kinds: dict[tuple[str, int], list[object]] = defaultdict(list)
    for (group, _, number), row in facts.calls.items():
        kinds[group, number].append((row["op"], row.get("shape")))
    met = set()
    for (group, number), kinds_issued in kinds.items():
        alike = kinds_issued.count(kinds_issued[0])
        if alike == len(kinds_issued) == facts.sizes.get(group):
            met.add((group, number))
    return met


def _groups(facts: TextFacts, size: int) -> dict[str, list[int]]:
    """Ranks by group: all ranks for the default group and any as large as the job; else those
    that lines name."""
    named: dict[str, set[int]] = {group: set(counts) for group, counts in facts.progress.items()}
    for group, rank, _ in facts.calls:
        named.setdefault(group, set()).add(rank)
    groups = {}
    for group, ranks in sorted(named.items()):
        whole = group == DEFAULT_GROUP or facts.sizes.get(group) == size
        groups[group] = list(range(size)) if whole else sorted(ranks)
    return groups or {DEFAULT_GROUP: list(range(size))}


def _calls_before(facts: TextFacts, group: str, rank: int) -> int:
    """How many calls the rank made in the group before the first that has a row."""
    numbers = facts.numbers(group, rank)
    if numbers:
        return max(min(numbers) - 1, 0)
    counts = facts.progress[group].get(rank)
    if counts:
        return counts[0]
    return 0 if rank in facts.late else NOTHING_RECORDED


def _ending(facts: TextFacts, rank: int, rows: Sequence[CallRow]) -> Ending:
    rank_rows = [row for row in rows if row["rank"] == rank]
    if rank in facts.raised:
        first = re.search(rf" \({FIRST_FAILED}[^)]*\)", facts.ended.get(rank, ""))
        return Ending.raised(rank_rows, facts.raised[rank] + (first[0] if first else ""))
    waits = next((row for row in rank_rows if row.get("completed_ns") is None), None)
    text = facts.ended.get(rank, facts.unread.get(rank, UNTOLD))
    return Ending.at(end_by(text), waits, text)


def end_by(text: str) -> EndKind:
    """How a rank ended of whose end a launcher says `text`."""
    killed = re.search(r"SIG|[a-z] \(srun", text)  # not "exit code 1 (srun)"
    return EndKind.KILLED if killed else EndKind.UNKNOWN
