"""The baton: ranks are threads, and exactly one of them runs.

A rank keeps the baton until it must wait or has ended; then it hands it to the runnable rank whose virtual clock is
furthest behind (the lower rank, if two are level). Nothing else decides who runs, no lock is contended and no clock
is read, so the same program takes the same turns every time. A rank that waits sleeps on a gate of its own; whoever
hands the baton over opens that gate. So code that runs in a rank needs no lock: nobody else is running.

When no rank is runnable, the one that stops last asks `stalled`, which may find that somebody can go on after all,
or that nobody ever can. It answers by waking ranks, or by dooming them. A doomed rank is ended where it waits, by
`RankEnded`: a BaseException, so that no `except Exception` of a program swallows it.

A rank in an endless loop never hands the baton over. For this there is the deadline, which is real time, kept by the
thread that called `run`: once it has passed, the exception is put into the running thread from outside, as often as
it takes. The same is done on an interrupt. A thread that is stuck in C code gets it when it returns to Python.
"""

from __future__ import annotations

import ctypes
import heapq
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

GRACE_S = 0.05
"""A rank that should end gets this long to come to a wait by itself before it is interrupted."""

LOOK_S = 0.1
"""An interrupt that the operating system hands to another thread is seen this much later."""

ABANDON_S = 5.0
"""A thread that has not ended so long after its end was asked for is left alone: it is stuck in C code."""

Thread = threading.Thread

_here = threading.local()
_children: weakref.WeakKeyDictionary[Thread, Any] = weakref.WeakKeyDictionary()
_turn = threading.Lock()


class RankEnded(BaseException):
    """Ends a rank's thread from within, wherever it waits. The program has no business catching it."""


class Lane:
    """One rank's thread. `host` is whatever the rank is to the caller; `now` is its virtual clock, in ns."""

    __slots__ = ("body", "doomed", "gate", "host", "index", "now", "over", "queued", "thread")

    def __init__(self, index: int, host: Any, body: Callable[[], None]) -> None:
        self.index = index
        self.host = host
        self.body = body
        self.now = 0
        self.doomed = False
        self.over = False
        self.queued = False
        self.gate = threading.Lock()
        self.gate.acquire()
        self.thread: threading.Thread | None = None


def current() -> Any:
    """The `host` of the rank whose thread this is; None in any other thread."""
    lane = getattr(_here, "lane", None)
    return None if lane is None else lane.host


def behind() -> Any:
    """The `host` of the rank whose thread this is, or that started this thread; None in any other."""
    host = current()
    return _children.get(threading.current_thread()) if host is None else host


def adopt(thread: Thread) -> None:
    """`thread` is about to be started: whoever is behind this one is behind it, too."""
    host = behind()
    if host is not None:
        _children[thread] = host


def one_at_a_time() -> threading.Lock:
    """The lock that one emulation of this process holds at a time: they share torch's global state."""
    return _turn


class Baton:
    """Runs lanes one at a time.

    switched  called as switched(old, new) whenever the baton passes between two hosts (None: nobody)
    stalled   called as stalled(True) when every living lane waits: it wakes or dooms at least one of them; and as
              stalled(False) when all but one do, which keeps asking: it may wake some
    """

    def __init__(self, switched: Callable[[Any, Any], None], stalled: Callable[[bool], None]) -> None:
        self._switched = switched
        self._stalled = stalled
        self._lanes: list[Lane] = []
        self._ready: list[tuple[int, int]] = []
        self._holder: Lane | None = None
        self._all_over = threading.Event()
        self._ending = False

    # ------------------------------------------------------------------------------------ called by ranks

    def wait(self, lane: Lane) -> None:
        """Hand the baton on, and return when somebody has woken this lane and it is its turn again."""
        if lane.doomed:
            raise RankEnded
        following = self._next()
        if following is not lane:
            self._hand(following)
            lane.gate.acquire()
        if lane.doomed:
            raise RankEnded

    def wake(self, lane: Lane) -> None:
        """Make a waiting lane runnable."""
        if not lane.queued and not lane.over:
            lane.queued = True
            heapq.heappush(self._ready, (lane.now, lane.index))

    def yield_turn(self, lane: Lane) -> None:
        """Let every other runnable lane that is not ahead of this one run first."""
        if not self._ready:
            self._stalled(False)
        self.wake(lane)
        self.wait(lane)

    @property
    def somebody_is_ready(self) -> bool:
        """Whether any lane could run now."""
        return bool(self._ready)

    def doom(self, lane: Lane) -> None:
        """End this lane where it waits."""
        lane.doomed = True
        self.wake(lane)

    def _next(self) -> Lane:
        while True:
            if not self._ready:
                self._stalled(True)
            _, index = heapq.heappop(self._ready)
            lane = self._lanes[index]
            lane.queued = False
            if not lane.over:
                return lane

    def _hand(self, lane: Lane) -> None:
        old, self._holder = self._holder, lane
        self._switched(old.host if old is not None else None, lane.host)
        lane.gate.release()

    def _live(self, lane: Lane) -> None:
        lane.gate.acquire()
        _here.lane = lane
        try:
            if not lane.doomed:
                lane.body()
        except RankEnded:
            pass
        finally:
            self._leave(lane)
            _here.lane = None

    def _leave(self, lane: Lane) -> None:
        lane.over = True
        if self._ending and self._holder is not lane:
            return  # it was left alone, and everybody else is gone
        if all(one.over for one in self._lanes):
            self._holder = None
            self._switched(lane.host, None)
            self._all_over.set()
        else:
            self._hand(self._next())

    # ------------------------------------------------------------------------------------ called by the one who runs it

    def run(self, lanes: Sequence[Lane], deadline_s: float, give_up: Callable[[str], None]) -> None:
        """Run all lanes to their ends.

        `give_up(reason)` is called, with every rank standing still or about to be ended, if the deadline passes
        ("deadline") or the user interrupts ("interrupt"); the interrupt is then raised again.
        """
        self._lanes = list(lanes)
        for lane in lanes:
            self.wake(lane)
            lane.thread = threading.Thread(target=self._live, args=(lane,), name=f"rank {lane.index}", daemon=True)
            lane.thread.start()
        try:
            until = time.monotonic() + deadline_s
            self._hand(self._next())
            while not self._all_over.wait(min(LOOK_S, max(0.0, until - time.monotonic()))):
                if time.monotonic() >= until:
                    self._end_all(give_up, "deadline")
                    break
        except KeyboardInterrupt:
            self._end_all(give_up, "interrupt")
            raise
        for lane in lanes:
            if lane.thread is not None:
                lane.thread.join(ABANDON_S if self._ending else None)

    def _end_all(self, give_up: Callable[[str], None], reason: str) -> None:
        give_up(reason)
        self._ending = True
        for lane in self._lanes:
            lane.doomed = True
        for lane in self._lanes:  # the holder ends first, and hands on to one that is doomed too
            if lane is not self._holder:
                self.wake(lane)
        if not self._interrupt_holder():
            stuck, self._holder = self._holder, None
            if stuck is not None:
                stuck.over = True
            if not all(lane.over for lane in self._lanes):
                self._hand(self._next())
                self._all_over.wait(ABANDON_S)

    def _interrupt_holder(self) -> bool:
        """Interrupt whoever holds the baton until all have ended; False if one does not."""
        until = time.monotonic() + ABANDON_S
        while not self._all_over.wait(GRACE_S) and time.monotonic() < until:
            holder = self._holder
            if holder is not None and holder.thread is not None and not holder.over:
                _interrupt(holder.thread)
        return self._all_over.is_set()


def _interrupt(thread: threading.Thread) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(RankEnded))
