"""Writes the stacks of a rank's threads, once per standstill, if the rank writes no other event.

A rank that is stuck in a lock, a sleep, a subprocess or a dead mount issues no call, so its record
would not show where it is. A rank that computes for a long time gets this line, too; readers ignore
it when the next event follows.
"""

from __future__ import annotations

import _thread
import asyncio
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import PurePath
from types import FrameType
from typing import TYPE_CHECKING, Any

from joinlab.ops import Stood
from joinlab.program.labels import Frame, walk
from joinlab.program.log_events import ThreadsStand
from joinlab.recorder.events import line_of, now

if TYPE_CHECKING:
    from joinlab.recorder.events import EventLog
    from joinlab.recorder.recorder import Recorder

STILL_S = 5.0
"""A rank without an event for so long writes its stacks."""
MOST_THREADS = 16
MOST_NAME = 40
MOST_TEXT = 200
LATE_S = 1.0
"""Stacks that took longer to collect are not written: the machine is busy with something else."""


def watch(recorder: Recorder, still_s: float) -> None:
    """Start a thread that writes stacks whenever the log gets no other event for `still_s` seconds.

    It is a bare thread, which `threading` does not show to the program.
    """
    recorder.waits.own_threads += 1
    _thread.start_new_thread(follow, (recorder.log, still_s))


def follow(log: EventLog, still_s: float) -> None:
    """Write stacks until the log is closed."""
    position, since, written = log.position, time.monotonic(), False
    while not log.failed:
        time.sleep(still_s / 4)
        if log.position != position:
            position, since, written = log.position, time.monotonic(), False
        elif not written and time.monotonic() - since >= still_s:
            written = True
            begun = time.monotonic()
            line = line_of(ThreadsStand.of(stacks(), at_ns=now()))
            if time.monotonic() - begun <= LATE_S:
                log.write_text(line)
            position = log.position


def stacks() -> list[Stood]:
    """Names and frames of the program's threads, the main thread first, and what each of them
    raises; frames are file, line and function."""
    names = {thread.ident: thread.name[:MOST_NAME] for thread in threading.enumerate()}
    main, own_thread = threading.main_thread().ident, threading.get_ident()
    frames_of = sorted(sys._current_frames().items(), key=lambda item: (item[0] != main, item[0]))
    errors = sys._current_exceptions()
    threads = list[Stood]()
    for ident, frame in frames_of[:MOST_THREADS]:
        if ident != own_thread:
            frames = list(map(str, (*reversed(walk(frame)), *_awaiting(frame))))
        else:
            frames = []
        if not frames:
            continue
        threads.append(Stood(thread=names.get(ident, ""), frames=frames))
        error = _text_of(errors.get(ident))
        if error:
            threads[-1]["error"] = error
    return threads


def _awaiting(frame: FrameType | None) -> Iterator[Frame]:
    """Where the coroutine waits that a thread has asyncio run to its end: no thread's stack shows it."""
    while frame is not None and frame.f_code.co_name != "run_until_complete":
        frame = frame.f_back
    task: Any = frame and frame.f_locals.get("future")
    coroutine: Any = task.get_coro() if isinstance(task, asyncio.Task) else None
    while getattr(coroutine, "cr_suspended", False):
        inner = coroutine.cr_frame
        yield Frame(inner.f_code.co_filename, inner.f_lineno, inner.f_code.co_name)
        coroutine = coroutine.cr_await


def _text_of(error: object) -> str:
    """An exception and its line, as an Ending says it; "" without one."""
    from joinlab.program.outcome import site_of, text_of  # loads torch, as every rank has

    error = error[1] if isinstance(error, tuple) else error  # a triple before Python 3.12
    if not isinstance(error, BaseException):
        return ""
    site = site_of(error)
    return text_of(error)[:MOST_TEXT] + (f" ({PurePath(site).name})" if site else "")
