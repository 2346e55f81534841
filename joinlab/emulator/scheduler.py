"""The baton: ranks are threads, and exactly one of them runs at a time.

A rank keeps the baton until it must wait or ends. It then hands the baton to the runnable rank
whose virtual clock is furthest behind (the lower rank if two are level). Nothing else decides who
runs: no lock is contended and no real clock is read, so the same program takes the same turns in
every run. Code that runs in a rank needs no lock, because no other rank runs meanwhile. Two ranks,
with rank 0 waiting for a collective that rank 1 has not issued yet:

    rank 0   runs ──wait()──┐                          ┌── gate opens, wait() returns ── runs
                            │ hand over                │
    rank 1   at its gate    └─ gate opens ── runs ─────┴──wait() or end
                                      └ issues the collective: wake(rank 0)

Where a rank can be, and what moves it. Each arrow names the method that moves it:

               wake, doom                 _hand
    WAITING ────────────────► RUNNABLE ───────────► RUNNING ───► OVER
       ▲    (pushed on `ready`)       (gate opens)    │   _leave
       └───────────────────────────────────────────────┘
                              wait

Invariants, true whenever a rank runs:
- Exactly one living rank is RUNNING, and it is `_holder`. The gates of all others are closed.
- A rank is on the heap `turns.ready` exactly if it is RUNNABLE (`queued`), and it is there once.
- The gate of a rank is released only by `_hand`, once for each time that the rank acquires it.
- `_switched(old, new)` runs between two ranks, in the thread that gives the baton away.

When no rank is runnable, the one that stops last calls `stalled`, which finds that some rank can go
on after all, or that none ever can. It wakes ranks, or dooms them. A doomed rank is ended where it
waits, by `RankEnded`: a BaseException, so that no `except Exception` of a program swallows it.

A rank in an endless loop never hands over the baton. For such ranks there is a deadline in real
time, which the thread that called `run` keeps: once it has passed, `RankEnded` is put into the
running thread from outside, again and again until the thread has ended. The same is done on an
interrupt. A thread that is stuck in C code gets it when it returns to Python. Two places are
spared, because an exception there breaks more than one rank: an import (the module stays half
loaded, for the rest of the process) and the baton's own methods (the baton would be lost).

An interrupt (Ctrl-C, a notebook's stop button) never raises inside this machinery: `one_at_a_time`
records it, `run` ends the ranks, and only then does it raise. So a second one, or one while threads
start, leaves no rank behind.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from time import monotonic, sleep  # a program may replace those of the module
from types import CodeType
from typing import Any

from joinlab.backend.turns import ActingRank, RankTurn, Turns
from joinlab.errors import LaunchError
from joinlab.interrupts import LOOK_S, HeldInterrupts
from joinlab.program.labels import owner_of
from joinlab.program.outcome import is_silent

GRACE_S = 0.05
"""A rank that is to end gets this long to reach a wait by itself before it is interrupted."""

ABANDON_S = 5.0
"""A thread that has not ended this long after it was asked to is left alone: it is stuck in C
code."""

IMPORT_S = 60.0
"""A rank inside an import is given this long to finish it before it is ended all the same."""

Thread = threading.Thread

_here = threading.local()
_children: weakref.WeakKeyDictionary[Thread, object] = weakref.WeakKeyDictionary()
_turn = threading.Lock()
_interrupts = HeldInterrupts()  # of the emulation that holds `_turn`
# the file name of each frame of Python's import machinery
_IMPORTING = "<frozen importlib._bootstrap>"


class RankEnded(BaseException):
    """Ends a rank's thread from within, wherever it waits. Programs should not catch it."""


class RankThread(RankTurn):
    """One rank's thread, and where it is in the drawing above.

    host     whatever the rank is to the caller; `current()` returns it
    body     what the thread runs
    began    it has had a turn
    gate     closed (acquired) unless `_hand` has just given it the baton
    """

    __slots__ = ("began", "body", "gate", "host", "thread")

    def __init__(self, rank: int, host: object, body: Callable[[], None]) -> None:
        super().__init__(rank)
        self.host = host
        self.body = body
        self.began = False
        self.gate = threading.Lock()
        self.gate.acquire()
        self.thread: threading.Thread | None = None


def current() -> Any:
    """The `host` of the rank whose thread this is; None in any other thread."""
    return getattr(_here, "host", None)


def behind() -> Any:
    """The `host` of the rank whose thread this is, or whose program started this thread; None in
    any other."""
    host = getattr(_here, "host", None)
    if host is None:
        return _children.get(threading.current_thread())
    return host


def adopt(thread: Thread) -> None:
    """`thread` is about to be started: it belongs to the rank that this thread belongs to, if
    any."""
    host = behind()
    if host is not None:
        _children[thread] = host


def still_runs(host: object) -> bool:
    """Whether a thread that this rank's program has started is alive and may issue calls."""
    return any(
        of is host and thread.is_alive() and not is_silent(thread)
        for thread, of in list(_children.items())
    )


def forget_ranks() -> None:
    """In a process that was forked while ranks ran: no thread of it is a rank's, and no emulation
    has its turn."""
    _here.__dict__.clear()
    _children.clear()
    _turn._at_fork_reinit()  # type: ignore[attr-defined]


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Wait for this process's other emulations: they share torch's global state. Inside, interrupts
    are held back."""
    with _turn, _interrupts:
        yield


class Baton:
    """Runs the threads of ranks one at a time.

    switched  called as switched(old, new) whenever the baton passes between two hosts (None: to or from no rank)
    stalled   called as stalled(True) when every living rank waits: it wakes or dooms at least one of them; and as
              stalled(False) when all wait but one, which keeps asking: it may wake some
    """

    def __init__(
        self, switched: Callable[[object, object], None], stalled: Callable[[bool], None]
    ) -> None:
        self._switched = switched
        self.turns = Turns(stalled)
        self._ranks: Sequence[RankThread] = ()
        self._holder: RankThread | None = None
        self._all_over = threading.Event()
        self._ending = False

    # ---------------- called by ranks

    def wait(self, rank: RankThread, until: int | None = None) -> None:
        """Hand the baton on, and return when this rank has been woken and it is its turn again.

        With `until` it returns at that virtual time at the latest, and then with its clock there.
        The next rank may be this one (`stalled` has just woken it): it then keeps the baton, and no
        gate moves.
        """
        if rank.doomed:
            raise RankEnded
        self.turns.wait_until(rank, until)
        following = self._next()
        if following is not rank:
            self._hand(following)
            rank.gate.acquire()  # opened by the rank that hands the baton back
        rank.until = None
        if rank.doomed:
            raise RankEnded

    def doom(self, rank: RankThread) -> None:
        """End this rank where it waits: it gets a turn, in which `wait` raises."""
        rank.doomed = True
        self.turns.wake(rank)

    def _next(self) -> RankThread:
        following = self.turns.next()
        assert isinstance(following, RankThread)  # `stalled` wakes or dooms a rank
        return following

    def _hand(self, rank: RankThread) -> None:
        """Give the baton to `rank`. From `release` on this thread and that one both run: touch
        nothing after it."""
        old, self._holder = self._holder, rank
        self._switched(old.host if old is not None else None, rank.host)
        rank.gate.release()

    def _live(self, rank: RankThread) -> None:
        """A rank's thread, from its first turn to its end."""
        try:
            rank.gate.acquire()
            _here.host = rank.host
            rank.began = True
            if not rank.doomed:
                rank.body()
        except RankEnded:
            pass
        finally:
            self._leave(rank)
            _here.host = rank.host = None  # its end cuts the cycle of a rank and its thread

    def _leave(self, rank: RankThread) -> None:
        rank.over = True
        if self._ending and self._holder is not rank:
            return  # it was left alone, and the others were ended without it
        if all(one.over for one in self._ranks):
            self._holder = None
            self._switched(rank.host, None)
            self._all_over.set()
        else:
            self._hand(self._next())

    # ---------------- called by the caller's thread

    def run(
        self, ranks: Sequence[RankThread], deadline_s: float, give_up: Callable[[str], None]
    ) -> None:
        """Run all ranks to their ends, inside `one_at_a_time`.

        `give_up(reason)` is called, with every rank standing still or about to be ended, if the
        deadline passes ("deadline") or the user interrupts ("interrupt"). Raises LaunchError if the
        machine gives too few threads.
        """
        self.turns.ranks = self._ranks = list(ranks)
        try:
            for rank in ranks:
                rank.thread = threading.Thread(
                    target=self._live, args=(rank,), name=f"rank {rank.rank}", daemon=True
                )
                rank.thread.start()
                self.turns.wake(rank)
            until = monotonic() + deadline_s
            self._hand(self._next())
            while not self._all_over.wait(min(LOOK_S, max(0.0, until - monotonic()))):
                # An interrupt is only noted while ranks run: raised here, it would leave them running.
                if _interrupts.asked is not None or monotonic() >= until:
                    self._end_all(give_up, "deadline" if _interrupts.asked is None else "interrupt")
                    break
        except BaseException as error:
            self._end_all(give_up, "interrupt")
            if isinstance(error, RuntimeError) and not _started(ranks[-1]):
                count = sum(map(_started, ranks))
                raise LaunchError(
                    f"an emulation of {len(ranks)} ranks needs a thread for each, and this machine gave {count}. "
                    "Raise its limit of processes (ulimit -u), or take fewer ranks."
                ) from error
            raise
        finally:
            for rank in ranks:
                if rank.thread is not None and _started(rank):
                    rank.thread.join(ABANDON_S if self._ending else None)

    def _end_all(self, give_up: Callable[[str], None], reason: str) -> None:
        give_up(reason)
        self._ending = True
        for rank in self._ranks:
            rank.doomed = True
            rank.over = rank.over or not _started(rank)
        for rank in self._ranks:  # the holder ends first, and hands on to one that is doomed too
            if rank is not self._holder:
                self.turns.wake(rank)
        if self._holder is None and self.turns.ready:  # the first turn was never given
            self._hand(self._next())
        with ExitStack() as stack:
            ended = self._interrupt_holder(stack)
        if not ended:
            stuck, self._holder = self._holder, None
            if stuck is not None:
                stuck.over, stuck.thread = True, None
                _take_back_interrupt()
            if not all(rank.over for rank in self._ranks):
                self._hand(self._next())
                self._all_over.wait(ABANDON_S)

    def _interrupt_holder(self, stack: ExitStack) -> bool:
        """Interrupt the rank that holds the baton until all have ended; False if one does not."""
        until = monotonic() + ABANDON_S
        at_most = monotonic() + IMPORT_S
        while not all(rank.over for rank in self._ranks) and not self._all_over.wait(GRACE_S):
            holder = self._holder
            now = monotonic()
            if now > until:
                return False
            if holder is None or holder.over or holder.thread is None:
                continue
            if now < at_most and _importing(holder.thread):
                until = now + ABANDON_S  # it has this long once the import is over
            # before its first turn it sees that it is doomed
            elif holder.began and not _in_baton(holder.thread):
                _interrupt(holder.thread)
                if now > until - ABANDON_S / 2:
                    stack.enter_context(_raising_at_lines(holder.thread))
        return True


_BATON: set[CodeType] = {
    method.__code__
    for method in (
        Baton.wait,
        ActingRank.yield_turn,
        Baton.doom,
        Baton._next,
        Baton._hand,
        Baton._leave,
    )
}


def _started(rank: RankThread) -> bool:
    return rank.thread is not None and rank.thread.ident is not None


def _codes_of(thread: threading.Thread) -> Iterator[CodeType]:
    """The code of each Python frame of another thread, innermost first."""
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None:
        yield frame.f_code
        frame = frame.f_back


def _importing(thread: threading.Thread) -> bool:
    return any(code.co_filename == _IMPORTING for code in _codes_of(thread))


def _in_baton(thread: threading.Thread) -> bool:
    return not _BATON.isdisjoint(_codes_of(thread))


def _interrupt(thread: threading.Thread) -> None:
    """Raise RankEnded in a thread, before the next Python instruction that looks for such
    requests."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread.ident or 0), ctypes.py_object(RankEnded)
    )


_TOOL = 3


@contextmanager
def _raising_at_lines(thread: threading.Thread) -> Iterator[None]:
    """From Python 3.12 on each line of a rank's program raises RankEnded meanwhile; the first rank
    asked for is it.

    Since 3.13 a thread that hands over the GIL looks for a request at its next check only
    (_Py_HandlePending in ceval_gil.c). In `while True: try: sleep(1) except BaseException:
    continue` that is always within the `try`; the `except` has a line of its own.
    """
    monitoring = getattr(sys, "monitoring", None)
    if monitoring is None or monitoring.get_tool(_TOOL) is not None:
        yield
        return

    def line(code: CodeType, _: int) -> None:
        if threading.get_ident() == thread.ident and owner_of(code.co_filename) == "program":
            raise RankEnded

    monitoring.use_tool_id(_TOOL, "joinlab ends a rank")
    try:
        monitoring.register_callback(_TOOL, monitoring.events.LINE, line)
        monitoring.set_events(_TOOL, monitoring.events.LINE)
        yield
    finally:
        monitoring.set_events(_TOOL, 0)
        monitoring.free_tool_id(_TOOL)


def _take_back_interrupt() -> None:
    """Let the process forget a request that a thread stuck in C code has not taken; that thread
    still finds it.

    One flag of the process says that some thread has such a request, until a thread takes one.
    While it is set, Python 3.11 stands still at the next line that sys.settrace follows (DO_TRACING
    and handle_eval_breaker in ceval.c, v3.11.7): so this thread takes one.
    """
    with suppress(RankEnded):
        _interrupt(threading.current_thread())
        sleep(0)
