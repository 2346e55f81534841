"""What a rank's log says about its process: the time on its wall clock, whether it lives, what ended it."""

from __future__ import annotations

import socket

import psutil

from joinlab.program.log_events import RankBegins
from joinlab.recorder.rank_log import RankLog

MOVING_NS = 1_000_000_000
"""A job moves if each of its ranks has done something so short a time ago."""


def wall_offset(log: RankLog) -> int:
    """The wall clock at time 0 of a rank's own."""
    return wall_of(log.begin) - log.begin.time_ns


def wall_of(begun: RankBegins) -> int:
    return begun.wall_ns or 0


def recent_ns(log: RankLog) -> int:
    """By the rank's own clock, MOVING_NS before the job's records were read."""
    return log.read_ns - wall_offset(log) - MOVING_NS


def is_moving(log: RankLog) -> bool:
    """Whether a rank that has not ended did something in the second before it was read."""
    if log.returned or log.raised is not None or log.lost is not None:
        return False
    return log.last_ns > recent_ns(log)


def is_alive(log: RankLog) -> bool | None:
    """Whether the rank's process existed when its record was read; None if on another host."""
    return None if log.process is None else log.process not in ("gone", psutil.STATUS_ZOMBIE)


def process_status(begin: RankBegins) -> str | None:
    """The state of a rank's process, by psutil, or "gone"; None if it ran on another host."""
    if begin.host != socket.gethostname():
        return None
    try:
        process = psutil.Process(begin.pid or 0)
        is_same = abs(process.create_time() - (begin.process or 0)) < 1
        return str(process.status()) if is_same else "gone"
    except (psutil.Error, ValueError):
        return "gone"


def stopped_ns(log: RankLog) -> int | None:
    """When a SIGINT came behind the last call that the rank completed, by its own clock; None if none
    did."""
    done = (call for call in log.calls.values() if call.get("completed_ns") is not None)
    last = max((call["enqueued_ns"] or 0 for call in done), default=0)
    return next((at_ns for at_ns in log.interrupts if at_ns > last), None)


def traceback_of(log: RankLog) -> str:
    return "" if log.raised is None else log.raised.traceback or ""


def interrupted_at(log: RankLog) -> str | None:
    """The traceback of the KeyboardInterrupt that ended a rank, also if the program answered it by
    sys.exit; None if none did."""
    error = log.raised.text if log.raised else ""
    before, interrupted, _ = traceback_of(log).partition("\nKeyboardInterrupt\n")
    if error.startswith("KeyboardInterrupt") or (interrupted and error.startswith("SystemExit")):
        return before
    return None
