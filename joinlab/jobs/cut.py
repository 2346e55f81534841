"""Where a recorded job is read up to: the first Ctrl-C, or the first record that broke off. What its ranks
did afterwards only follows from it."""

from __future__ import annotations

from itertools import chain
from typing import NamedTuple

from joinlab.jobs.rank_process import (
    interrupted_at,
    is_alive,
    is_moving,
    recent_ns,
    stopped_ns,
    traceback_of,
    wall_offset,
)
from joinlab.ops import NEEDS_ALL, POINT_TO_POINT, Stood
from joinlab.recorder.rank_log import RankLog
from joinlab.story.forms.fates import frames_of, raised_at
from joinlab.timeline import INTERRUPTED, LOST

LONG_AFTER_NS = 1_000_000_000
"""An interrupt whose signal is not in the record may have reached a rank this long before another had
ended by it."""


class ReadUntil(NamedTuple):
    """Where a job is read up to: what its ranks did afterwards only follows from it.

    time_ns  on the wall clock
    why      the ending of the ranks that had not ended before
    """

    time_ns: int
    why: str


def find_cut(logs: dict[int, RankLog]) -> ReadUntil | None:
    """The first Ctrl-C, or the first record that broke off; None without either. None, too, if a rank
    had failed before a moment that is only known roughly."""
    signals, cuts, failed = list[ReadUntil](), list[ReadUntil](), list[int]()
    done = _done_by_all(logs)
    for log in logs.values():
        last = log.last_ns + wall_offset(log)
        if log.lost is not None:
            cuts.append(ReadUntil(last, LOST))
        elif _is_short(log, done):
            cuts.append(ReadUntil(last + 1, LOST))
        elif (signal_ns := stopped_ns(log)) is not None and not log.returned:
            if _interrupted_itself(log, logs):
                failed.append(last)
            elif interrupted_at(log) is not None or not (log.raised or is_alive(log)):
                signals.append(ReadUntil(signal_ns + wall_offset(log), INTERRUPTED))
        elif log.raised is None:
            continue
        elif interrupted_at(log) is not None:
            cuts.append(ReadUntil(last - LONG_AFTER_NS, INTERRUPTED))
        else:
            failed.append(last)
    first = min(chain(cuts, signals), default=None)
    if first in signals or first is None or min(failed, default=first.time_ns) >= first.time_ns:
        return first
    return None


def _interrupted_itself(log: RankLog, logs: dict[int, RankLog]) -> bool:
    """Whether SIGINT came to this rank alone: others waited when it had ended, and would have
    received it."""
    peers = [peer for peer in logs.values() if peer is not log]
    return not any(peer.interrupts for peer in peers) and any(
        peer.awaited() is not None or peer.left_ns is not None for peer in peers
    )


def _done_by_all(logs: dict[int, RankLog]) -> dict[str, int]:
    """By group, the number of its last collective that needs every rank and that some rank completed
    a while ago: every rank of the group has issued it."""
    done: dict[str, int] = {}
    for log in logs.values():
        until = recent_ns(log)
        for call in log.calls.values():
            over = (call.get("completed_ns") or until) < until
            if over and call["op"] in NEEDS_ALL:
                done[call["group"]] = max(done.get(call["group"], 0), call.get("number") or 0)
    return done


def _is_short(log: RankLog, done: dict[str, int]) -> bool:
    """Whether a rank did more than its record has, as in a copy that broke off: its last line is cut
    and its process is gone, or it lacks calls that every rank has issued (`done`)."""
    alive = is_alive(log)
    if log.returned or log.raised or alive:
        return False
    if log.cut and alive is False:
        return True
    last = dict(log.issued)
    for call in log.calls.values():
        if call["op"] not in POINT_TO_POINT:
            last[call["group"]] = max(last.get(call["group"], 0), call.get("number") or 0)
    return any(done.get(group, 0) > number for group, number in last.items())


def has_only_ended(log: RankLog, before: RankLog) -> bool:
    """Whether a rank that waited, or had returned, did no more than end since `before`."""
    further = [call for id, call in log.calls.items() if id not in before.calls]
    return bool(
        (before.returned or before.standing())
        and (log.returned or log.raised or not is_alive(log))
        and all(call.get("completed_ns") is None for call in further)
    )


def place_at_interrupt(before: dict[int, RankLog], logs: dict[int, RankLog]) -> dict[int, str]:
    """Let ranks that wrote no stacks before a cut stand where KeyboardInterrupt came. Gives back that
    line of those that should have written some, since a rank of their host has that stood for no
    longer: they may not have run."""
    silent: dict[int, str] = {}
    wrote: dict[str | None, int] = {}
    for log in before.values():
        if log.stood:
            newest = max(wrote.get(log.begin.host, 0), log.last_ns + wall_offset(log))
            wrote[log.begin.host] = newest
    for rank, log in before.items():
        if log.stood or is_moving(log) or logs[rank].raised is None:
            continue
        traceback = interrupted_at(logs[rank]) or traceback_of(logs[rank])
        if log.last_ns + wall_offset(log) <= wrote.get(log.begin.host, 0):
            silent[rank] = next(iter(raised_at(traceback)), "")
        elif frames := frames_of(traceback):
            log.stood = [Stood(thread="MainThread", frames=list(map(str, frames)))]
    return silent
