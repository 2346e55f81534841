"""Where a rank stands that writes nothing: the stacks of its threads, once per stand-still.

A rank in a lock, a sleep, a subprocess or a dead mount issues no call, so that its record cannot say where it is. Its
peers wait meanwhile. Whether they do is not known here, and a rank that only computes for so long gets a line in its
record that nobody reads.
"""

from __future__ import annotations

import _thread
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from joinlab.program.labels import walk
from joinlab.recorder.events import now, to_json

if TYPE_CHECKING:
    from joinlab.recorder.events import EventLog
    from joinlab.recorder.recorder import Recorder

STILL_S = 5.0
"""Without an event for so long, a rank writes where it stands."""
MOST_THREADS = 16
MOST_NAME = 40
LATE_S = 1.0
"""Stacks that took longer than this to collect are left out: the machine is busy with something else."""


def watch(recorder: Recorder, still_s: float) -> None:
    """Begin to write stacks into the log whenever it gets no other event for so long.

    It is a bare thread, which the program does not see in `threading`.
    """
    recorder.waits.own_threads += 1
    _thread.start_new_thread(follow, (recorder.log, still_s))


def follow(log: EventLog, still_s: float) -> None:
    """Write them, until the log is closed."""
    seen, since, told = log.place, time.monotonic(), False
    while not log.failed:
        time.sleep(still_s / 4)
        if log.place != seen:
            seen, since, told = log.place, time.monotonic(), False
        elif not told and time.monotonic() - since >= still_s:
            told = True
            begun = time.monotonic()
            line = to_json({"e": "stacks", "at": now(), "th": stacks()}) + "\n"
            if time.monotonic() - begun <= LATE_S:
                log.write_text(line)
            seen = log.place


def stacks() -> list[dict[str, Any]]:
    """Name and frames of the program's threads, the main thread first: files, lines and functions alone."""
    names = {thread.ident: thread.name[:MOST_NAME] for thread in threading.enumerate()}
    main, mine = threading.main_thread().ident, threading.get_ident()
    found = sorted(sys._current_frames().items(), key=lambda one: (one[0] != main, one[0]))
    threads = [
        {"n": names.get(ident, ""), "f": [str(frame) for frame in reversed(walk(frame))]}
        for ident, frame in found[:MOST_THREADS]
        if ident != mine
    ]
    return [thread for thread in threads if thread["f"]]
