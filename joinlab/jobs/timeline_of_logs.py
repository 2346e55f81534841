"""The logs of a recorded job's ranks as one Timeline, whole or up to a cut."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Any

import psutil

from joinlab.analysis.matching import key_of
from joinlab.analysis.wording import ranks_text
from joinlab.backend.calls import setting_of
from joinlab.jobs.clocks import offsets
from joinlab.jobs.cut import ReadUntil
from joinlab.jobs.rank_process import is_alive, is_moving, recent_ns, traceback_of, wall_offset
from joinlab.ops import POINT_TO_POINT, CallRow, SpanRow
from joinlab.program.log_events import NOT_BEGUN
from joinlab.proof import BlockedThread, Proof, prove
from joinlab.recorder.rank_log import RankLog, about_calls, about_ranks, groups_of
from joinlab.recorder.recorded_traces import keep_traces
from joinlab.timeline import (
    INTERRUPTED,
    LOST,
    NO_END,
    NOTHING_RECORDED,
    RUNNING,
    Clock,
    Ending,
    EndKind,
    Meta,
    Process,
    Timeline,
    timeline_from_rows,
)

MOST_CALLS = 2000
"""Of a bounded log that has dropped segments, this many last calls per group and rank are read."""

NO_BEGINNING = "its record has no beginning yet"
NO_WORD = "its record has no end: it may still be running on its host"
GONE = "its process has been ended since"

TIMES = (
    "enqueued_ns",
    "completed_ns",
    "host_wait_begin_ns",
    "host_wait_end_ns",
    "begin_ns",
    "end_ns",
)
"""Columns of calls and spans that are times on the rank's clock."""


def timeline_of_logs(
    logs: dict[int, RankLog], problems: list[str], cut: ReadUntil | None = None
) -> Timeline:
    groups = groups_of(logs.values())
    world = max(log.begin.world_size or 0 for log in logs.values())
    size = max(world, 1 + max(chain(logs, *groups.values())))
    groups = groups or {"0": list(range(size))}
    backend = next(
        (group.backend for log in logs.values() for group in log.groups.values()), "unknown"
    )
    facts_of_ranks = about_ranks(logs.values(), backend)
    of_calls = about_calls(logs.values())  # before rows are copied, since it may reset their steps
    missing = sorted(set(range(size)) - set(logs))
    if missing:
        problems.append(
            f"there is no record of {ranks_text(missing)}: what happened there is unknown"
        )
    calls, skipped = _kept_calls(logs, problems)
    for call in calls:
        for name in ("peer", "root"):  # damaged lines may have other values
            if call.get(name) not in range(size):
                call[name] = None
    # While a job moves, its files were read at different moments. Unless a hang is proven all the same,
    # only what every rank had reached is shown.
    stops = cut is not None and cut.why != INTERRUPTED
    moves = not stops and all(map(is_moving, logs.values()))
    settled = _settled(calls, logs, groups) if moves else calls
    spans = [SpanRow(**span) for rank in sorted(logs) for span in logs[rank].spans.values()]
    clock = _align_clocks(logs, calls, spans, groups, problems)
    if any(skips for by_rank in skipped.values() for skips in by_rank.values()):
        problems.append(
            "only the last calls of each group and rank are kept; older ones are counted (--everything keeps all)"
        )
    for group, ranks in groups.items():
        for rank in set(missing).intersection(ranks):
            skipped.setdefault(group, {})[rank] = NOTHING_RECORDED
    command = next(iter(logs.values())).begin.command or []
    meta: Meta = {
        "program": os.path.basename(command[0]) if command else "a recorded job",
        "engine": "recorded",
        "backend": backend,
        "transport": "sockets" if backend == "gloo" else None,
        "world_size": size,
        "groups": groups,
        "clock": clock,
        "processes": {
            rank: Process(
                host=_host(log),
                pid=log.begin.pid,
                gpu=log.gpu,
                command=list(log.begin.command or ()),
                stopped=cut is None and log.process == psutil.STATUS_STOPPED,
            )
            for rank, log in logs.items()
        },
        "skipped": skipped,
        "missing_ranks": missing,
        "problems": problems,
    }
    meta.update({**facts_of_ranks, **of_calls})  # type: ignore[typeddict-item]
    if any(log.trace for log in logs.values()):
        meta["ways"] = True
    if cut is not None:
        moved = max((log.last_ns + wall_offset(log) for log in logs.values()), default=0)
        meta["cut"] = {"why": cut.why, "still_ns": max(0, cut.time_ns - moved)}
    prover = partial(prove, calls, backend=backend, setting=setting_of(meta))
    ends = _ends(logs, size, calls, groups, prover, cut)
    if moves and not any(end.proven for end in ends):
        calls = settled
        ends = _ends(logs, size, calls, groups, prover, cut)
    printed = [traceback_of(logs[rank]) if rank in logs else "" for rank in range(size)]
    timeline = timeline_from_rows(
        calls=calls, ends=ends, meta=meta, spans=spans, output=printed if any(printed) else ()
    )
    # a trace counts calls, so it is useless once some were dropped
    issued = Counter(row["rank"] for row in calls)
    return keep_traces(
        timeline, {rank: log.trace for rank, log in logs.items() if issued[rank] == len(log.calls)}
    )


def _host(log: RankLog) -> str:
    return log.begin.host or "?"


def _kept_calls(
    logs: dict[int, RankLog], problems: list[str]
) -> tuple[list[CallRow], dict[str, dict[int, int]]]:
    """The last calls of each group and rank, and the number of collectives before them."""
    calls: list[CallRow] = []
    skipped: dict[str, dict[int, int]] = {}
    for rank, log in logs.items():
        by_group: dict[str, list[int]] = {}
        for id in sorted(log.calls):
            by_group.setdefault(log.calls[id]["group"], []).append(id)
        before = {group: number for group, number in log.issued.items() if group in log.groups}
        for group, ids in by_group.items():
            if log.issued:  # a preamble repeats open calls, but not later ones that had ended
                del ids[:-MOST_CALLS]
                seqs = [log.calls[id]["seq"] for id in ids]
                del ids[
                    : max(
                        (
                            index
                            for index in range(1, len(ids))
                            if seqs[index] > seqs[index - 1] + 1
                        ),
                        default=0,
                    )
                ]
            before[group] = log.before.get(ids[0], 0)
        for group, lost in before.items():
            if lost:
                skipped.setdefault(group, {})[rank] = lost
        repeated = 0
        numbers_seen: set[tuple[str, bool | None, int | None]] = set()
        for id in sorted(chain.from_iterable(by_group.values())):
            call = CallRow(**log.calls[id])  # a copy, since its times will be shifted
            pair, number = call["op"] in POINT_TO_POINT, call.get("number")
            names = {
                (call["group"], None, call["seq"]),
                *([(call["group"], pair, number)] if number else ()),
            }
            if names & numbers_seen:
                repeated += 1
            else:
                calls.append(call)
            numbers_seen |= names
        if repeated:  # a damaged line may have a wrong digit
            problems.append(
                f"{repeated} calls of rank {rank} were left out: other calls have the same numbers"
            )
    for group, by_rank in skipped.items():
        for rank, log in logs.items():
            if group in log.groups:
                by_rank.setdefault(rank, 0)
    return calls, skipped


def _settled(
    calls: list[CallRow], logs: dict[int, RankLog], groups: dict[str, list[int]]
) -> list[CallRow]:
    """The calls of a job that moves, without those that another rank of their group had not issued
    or ended when its record was read, and without sends and recvs since a second before that."""

    def is_new(call: CallRow) -> bool:
        recent = (call["enqueued_ns"] or 0) > recent_ns(logs[call["rank"]])
        return recent and (call["op"] in POINT_TO_POINT or call.get("completed_ns") is None)

    older = [call for call in calls if not is_new(call)]
    reached: dict[tuple[str, int], int] = {}
    for call in older:
        if call["op"] not in POINT_TO_POINT and call.get("number"):
            reached[call["group"], call["rank"]] = call["number"] or 0
    common = {
        group: min((reached.get((group, rank), 0) for rank in ranks), default=0)
        for group, ranks in groups.items()
    }
    return [
        call
        for call in older
        if call["op"] in POINT_TO_POINT or (call.get("number") or 0) <= common.get(call["group"], 0)
    ]


def _align_clocks(
    logs: dict[int, RankLog],
    calls: list[CallRow],
    spans: list[SpanRow],
    groups: dict[str, list[int]],
    problems: list[str],
) -> Clock:
    """Move the times of all rows onto one clock, whose 0 is the beginning of the first rank. Returns
    how each host's clock was moved."""
    host_of = {rank: _host(log) for rank, log in logs.items()}
    wall: dict[str, int] = {}
    for rank, log in logs.items():
        wall.setdefault(host_of[rank], wall_offset(log))
    shifts = offsets(calls, host_of, groups, wall, host_of[min(logs)])
    for host, shift in shifts.items():
        if shift.bound_ns is None:
            problems.append(
                f"no call bounds the clock of host {host}: its times come from its wall clock"
            )
    begins = [
        log.begin.time_ns + shifts[host_of[rank]].offset_ns
        for rank, log in logs.items()
        if log.begin is not NOT_BEGUN
    ]
    origin = min(begins, default=0)
    row: Any
    for row in (*calls, *spans):
        for name in TIMES:
            if row.get(name) is not None:
                row[name] += shifts[host_of[row["rank"]]].offset_ns - origin
    return {
        "domain": "monotonic",
        "origin_ns": origin,
        "hosts": {host: shift.offset_ns for host, shift in shifts.items()},
        "bounds_ns": {host: shift.bound_ns for host, shift in shifts.items()},
    }


# ---- endings

Prover = Callable[..., Proof | None]
"""`prove` with the job's calls: a function of the groups, of the waits and of the ranks that are gone."""


def has_open_call(timeline: Timeline) -> bool:
    """Whether some call has neither completed nor failed. A quiet job without one is computing or
    starting."""
    calls = timeline.calls
    return bool((calls["completed_ns"].is_null() & calls["error"].is_null()).any())


def is_over(timeline: Timeline) -> bool:
    """Whether a recorded job goes on no more."""
    over = (EndKind.FINISHED, EndKind.RAISED, EndKind.KILLED)
    return all(end.kind in over or end.text in (GONE, INTERRUPTED) for end in timeline.ends)


def _ends(
    logs: dict[int, RankLog],
    size: int,
    calls: list[CallRow],
    groups: dict[str, list[int]],
    prover: Prover,
    cut: ReadUntil | None,
) -> list[Ending]:
    """How each rank ended, by its record and its process; at a cut, all others were running."""
    over = {rank for rank, log in logs.items() if log.returned or log.raised is not None}
    lives = {
        rank: is_alive(log) if cut is None else True
        for rank, log in logs.items()
        if rank not in over
    }
    if len(logs) == size:
        stuck = _stuck(logs, over, lives, groups, prover)
    else:
        stuck = {}
    ends = []
    for rank in range(size):
        log = logs.get(rank)
        rank_calls = () if log is None else [call for call in calls if call["rank"] == rank]
        awaited = None if log is None else log.awaited()
        if awaited is not None and key_of(awaited) not in map(key_of, rank_calls):
            awaited = None  # it was left out
        if log is None:
            ends.append(Ending(EndKind.UNKNOWN, text="no record was found"))
        elif log.returned:
            ends.append(Ending.finished(rank_calls))
        elif log.raised is not None:
            ends.append(Ending.raised(rank_calls, log.raised.text))
        elif rank in stuck:
            if cut:
                gone = cut.why
            elif lives[rank] is not False:
                gone = ""
            else:
                gone = GONE
            ends.append(Ending.at(EndKind.HUNG, stuck[rank], gone, proven=True))
        elif cut is not None:
            ends.append(Ending.at(EndKind.UNKNOWN, awaited, cut.why))
        elif log.lost is not None or log.begin is NOT_BEGUN:
            ends.append(Ending(EndKind.UNKNOWN, text=NO_BEGINNING if log.lost is None else LOST))
        elif lives[rank] is False:
            ends.append(Ending.at(EndKind.KILLED, awaited, NO_END))
        else:
            ends.append(Ending.at(EndKind.UNKNOWN, awaited, RUNNING if lives[rank] else NO_WORD))
    return ends


def _stuck(
    logs: dict[int, RankLog],
    over: set[int],
    lives: dict[int, bool | None],
    groups: dict[str, list[int]],
    prover: Prover,
) -> dict[int, CallRow]:
    """The call that each rank waits for in a group of whose ranks none may go on, if the matching rule
    proves that none of them can ever complete.

    A rank whose process ended during a wait counts as waiting.
    """
    if any(log.lost is not None for log in logs.values()):
        return {}
    waits: list[BlockedThread] = []
    gone = set(over)
    for rank, alive in lives.items():
        log = logs[rank]
        standing = log.standing()
        if standing:
            waits += [BlockedThread(rank, calls_of, inside) for calls_of, inside in standing]
        elif alive is False:
            gone.add(rank)
    while True:
        standing_still = gone | {wait.rank for wait in waits}
        closed = {name: ranks for name, ranks in groups.items() if standing_still.issuperset(ranks)}
        open_ = {
            wait.rank
            for wait in waits
            if closed.keys().isdisjoint(group for group, _ in wait.calls)
        }
        if not open_:
            break
        waits = [wait for wait in waits if wait.rank not in open_]
    if prover(closed, waits=waits, gone=gone) is None:
        return {}
    awaited = {wait.rank: logs[wait.rank].awaited() for wait in waits}
    return {rank: call for rank, call in awaited.items() if call is not None}
