"""Whose turn it is, and what a rank waits for: the same for the threads of an emulation
(emulator/scheduler.py) and the greenlets of its tests that play lists of calls (tests/modelled_ranks.py).

One rank acts at a time until it has to wait. Then it is the turn of the one furthest behind on its
virtual clock (the lower rank, if two are level):

    rank 0   acts ──for_host()──┐                              ┌── acts
                                │                              │
    rank 1                      └─ acts ── submit() ───────────┴── for_host(), or its end
                                              └ the call completes: wake()
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from joinlab.backend.clock import POLL_NS
from joinlab.backend.model import EmulatedCall, Group
from joinlab.ops import POINT_TO_POINT, Op
from joinlab.program.log_events import Event

NAPS = 1_000
"""After so many sleeps without a call, a rank counts as waiting in a loop for another rank.

Before that it may still issue a call, so no other rank's stream is given up. The number is our own.
"""


class RankTurn:
    """A rank's place in the order of turns.

    now     its virtual clock, ns
    queued  it can go on, and waits for its turn
    until   when its wait ends by itself, on its virtual clock; None: it does not
    doomed  it is to end where it next waits
    over    it has ended, or is no longer waited for
    """

    __slots__ = ("doomed", "now", "over", "queued", "rank", "until")

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.now = 0
        self.queued = False
        self.until: int | None = None
        self.doomed = False
        self.over = False


class Turns:
    """The order in which ranks act.

    stalled  called as stalled(True) when every living rank waits: it wakes those that can go on after all; and as
             stalled(False) when all wait but one, which keeps asking
    listen   called before a rank gets its turn: where ranks act elsewhere, waits for them
    """

    def __init__(
        self, stalled: Callable[[bool], None], listen: Callable[[], None] = lambda: None
    ) -> None:
        self.ranks: Sequence[RankTurn] = ()
        self.ready: list[tuple[int, int]] = []  # a heap of (virtual clock, rank)
        self._timers: list[tuple[int, int]] = []  # another: waits that end by themselves
        self.stalled = stalled
        self._listen = listen

    def wake(self, turn: RankTurn) -> None:
        """Let a rank that waits have a turn."""
        if not turn.queued and not turn.over:
            turn.queued = True
            heapq.heappush(self.ready, (turn.now, turn.rank))

    def wait_until(self, turn: RankTurn, until: int | None) -> None:
        """A rank waits, at most until that virtual time."""
        turn.until = until
        if until is not None:
            heapq.heappush(self._timers, (until, turn.rank))

    def next(self) -> RankTurn | None:
        """The rank that can go on and is furthest behind; None if all are over, or wait for ever."""
        while True:
            self._listen()
            timed_out = self._timer_due()
            if timed_out is not None:
                return timed_out
            if not self.ready:
                self.stalled(True)
            if not self.ready:
                return None
            turn = self.ranks[heapq.heappop(self.ready)[1]]
            turn.queued = False
            if not turn.over:  # it may have been ended while it was on the heap
                return turn

    def _timer_due(self) -> RankTurn | None:
        """The rank whose wait with a time limit ends before any that can go on has its turn; its
        clock is set to then.

        Ranks that are not there yet may hold messages back that others do not need: `stalled` lets
        those go first.
        """
        while self._timers:
            until, rank = self._timers[0]
            turn = self.ranks[rank]
            if turn.over or turn.queued or turn.until != until:  # it has been woken meanwhile
                heapq.heappop(self._timers)
            elif self.ready and self.ready[0][0] <= until:
                return None
            else:
                self.stalled(False)
                if not turn.queued and not (self.ready and self.ready[0][0] <= until):
                    heapq.heappop(self._timers)
                    turn.now = max(turn.now, until)
                    return turn
        return None


@dataclass(slots=True)
class HostWait:
    """A wait of a rank: until all of `calls` end, or for something else, which `why` names.

    of_stream  only the stream waits; the real host would run on
    let_go     every rank waits, so this one goes on as that host would
    called     every rank waits, so this one runs the callbacks of its futures, as gloo's own threads would
    """

    calls: Sequence[EmulatedCall] = ()
    of_stream: bool = False
    why: str = ""
    let_go: bool = False
    called: bool = False

    @property
    def over(self) -> bool:
        """Whether all its calls are done."""
        return not self.why and all(call.done for call in self.calls)


class ActingRank:
    """A rank as a host and its stream: two clocks in virtual ns, and every kind of wait.

    calls       all that it has issued
    open_calls  how many of them are neither complete nor failed
    ending      how it ended; None: it still acts
    gone        its process has ended
    stuck       its stream waits for ever, while its host has run on: nothing that it issues is carried out
    standing    what it waits for now

    A subclass says how a rank stops (`pause`), and what else happens at its waits. All methods are
    called in its turn, but `wake`, `ended` and `completed`.
    """

    take: Callable[[Event], None]
    """Takes an event of the rank."""

    def __init__(self, turn: RankTurn, turns: Turns) -> None:
        self.turn = turn
        self.rank = turn.rank
        self.calls: list[EmulatedCall] = []
        self.open_calls = 0
        self.ending: object = None
        self.gone = False
        self.stream_ns = 0
        self.stuck = False
        self.standing: HostWait | None = None
        self._turns = turns
        self._naps = 0  # how often it has slept since its last call
        self._streamed: dict[EmulatedCall, None] = {}  # its stream has been made to wait for these
        # of them, the ids of those that it was stuck at, since its last call
        self._stuck_at: list[int] = []

    # ---------------- a subclass's own

    def pause(self, until: int | None = None) -> None:
        """Let the others act; return when this rank has been woken and it is its turn again, or at that
        virtual time. Raises what ends a rank that is doomed."""
        raise NotImplementedError

    def begins(self, calls: Sequence[EmulatedCall]) -> None:
        """Its host begins to wait for these."""

    def ends(self, calls: Sequence[EmulatedCall]) -> None:
        """Its host is let go."""

    def goes_on(self) -> None:
        """A wait is over."""

    def overtaken(self, call: EmulatedCall) -> None:
        """Its stream was let go, and would have moved on after all, by this call."""

    def killed(self, text: str, calls: Sequence[EmulatedCall] = ()) -> None:
        """Its process is killed, in the first of these calls, or of those that it waits for."""
        raise NotImplementedError

    # ---------------- issuing

    def enter(self, call: EmulatedCall) -> None:
        """Its host issues a call, which its backend can begin with once the stream is there."""
        self.open_calls += 1
        self.calls.append(call)
        streams = call.group.fabric.streams
        call.ready_ns = max(self.now, self.stream_ns) if streams else self.now

    def ended(self, call: EmulatedCall) -> None:
        """One of its calls is no longer open."""
        self.open_calls -= 1

    # ---------------- clocks

    @property
    def now(self) -> int:
        """The host's virtual clock, ns."""
        return self.turn.now

    def work_for(self, ns: int) -> None:
        """The host is busy for so long."""
        self.turn.now += ns

    def reach(self, ns: int) -> None:
        """The host has come to this time, if it was not there yet."""
        self.turn.now = max(self.turn.now, ns)

    # ---------------- stopping, going on

    def stand_still(self, wait: HostWait, until: int | None = None) -> None:
        """Stop until the wait is over (never, if the stream is stuck before it), or until that time."""
        if wait.over and not self.turn.doomed:
            return
        self.standing = wait
        self.pause(until)
        self.standing = None
        if wait.let_go:
            self.stuck = True

    def wake(self) -> None:
        """Let it have a turn."""
        self._turns.wake(self.turn)

    def end(self) -> None:
        """End it in its wait, or, if it acts, in its next one."""
        self.turn.doomed = True
        if self.standing is not None:
            self.wake()

    def wait_inside(
        self, calls: Sequence[EmulatedCall], why: str, until: int | None = None
    ) -> None:
        """Its host waits inside these calls, not for them: until `wake`, or that time."""
        self.stand_still(HostWait(calls, why=why), until)

    def yield_turn(self, asks: bool) -> None:
        """Let every rank that can go on and is not ahead act first. One that `asks` in a loop never waits,
        so others may have to be let go here."""
        if asks and not self._turns.ready:
            self._turns.stalled(False)
        self.wake()
        self.pause()

    def yield_if_ready(self) -> None:
        """Let the others act, where any can."""
        if self._turns.ready:
            self.yield_turn(asks=False)

    @property
    def awaited(self) -> list[EmulatedCall]:
        """The open calls that it waits for."""
        if self.standing is None:
            return []
        return [call for call in self.standing.calls if not call.done]

    def let_go(self) -> bool:
        """Every rank waits: go on if only the stream does. False if the host waits, too, or the
        wait is for no call."""
        wait = self.standing
        if wait is None or not wait.of_stream or not wait.calls or self.stuck:
            return False
        wait.let_go = True
        self.wake()
        return True

    def completed(self, call: EmulatedCall) -> None:
        """One of its calls is complete, or has failed, which may end its wait."""
        wait = self.standing
        if self.stuck and call in self._streamed:
            self.overtaken(call)
        elif wait is not None and wait.calls and all(waited.done for waited in wait.calls):
            self.wake()

    # ---------------- waits of a program

    def wait(self, calls: Sequence[EmulatedCall], timeout_ns: int = 0) -> None:
        """Work.wait(): the host waits, or its stream; raises what the backend raises."""
        if not self.within_limit(calls, timeout_ns):
            self.await_end(calls, explicit=bool(timeout_ns))

    def await_end(self, calls: Sequence[EmulatedCall], explicit: bool = False) -> None:
        """Make the host wait for these, or its stream; raises the backend's error."""
        if explicit or any(call.host_waits for call in calls):
            self.for_host(calls)
        else:
            self.for_stream(calls)

    def for_host(self, calls: Sequence[EmulatedCall]) -> None:
        """Make the host wait until all of `calls` are complete; raises the backend's error."""
        late = [
            call
            for call in calls
            if not (call.done and call.error is None and call.ended_ns <= self.now)
        ]
        if late:
            streams = late[0].group.fabric.streams
            if streams:  # it waits for the stream, and so for all that this was made to wait for
                late += [call for call in self._streamed if not call.done and call not in late]
            self.begins(late)
            self.stand_still(HostWait(late))
            until = max(call.ended_ns for call in late)
            self.reach(until)
            if streams:
                self.stream_ns = max(self.stream_ns, until)
            self.ends(late)
        self.goes_on()
        for call in late:
            if call.error is not None:
                raise RuntimeError(call.error)
        for call in calls:
            call.settle()

    def _for_host_until(self, call: EmulatedCall, until: int) -> bool:
        """The host waits for `call`, but not longer than until then. False if it was not complete
        in time."""
        self.begins([call])
        if not call.done:
            self.stand_still(HostWait([call]), until)
        if call.done and call.ended_ns <= until:
            self.for_host([call])
            return True
        self.reach(until)
        self.ends([call])
        return False

    def within_limit(self, calls: Sequence[EmulatedCall], timeout_ns: int) -> bool:
        """Work.wait(timeout), or a wait in a group of gloo that has a timeout: virtual time passes, up to
        it. False, and no wait, if there is no limit.

        A group's timeout counts from when the call is issued, and is that of its worker, which then
        fails. A LambdaWork takes no time limit (reduce_scatter, ProcessGroupGloo.cpp, PyTorch v2.13.0).
        """
        group, fabric = calls[0].group, calls[0].group.fabric
        of_call = timeout_ns and (fabric.streams or calls[0].op is not Op.REDUCE_SCATTER)
        if not of_call and not group.limit_ns:
            return False
        for call in calls:
            if of_call:
                limit_ns, until = timeout_ns, self.now + timeout_ns
            else:
                limit_ns, until = group.limit_ns, call.ready_ns + group.limit_ns
            if self._for_host_until(call, until):
                continue
            fabric.flush()  # what needs no other rank is done by now
            if call.done and call.ended_ns <= until:
                self.for_host([call])
                continue
            timed_out = fabric.timed_out if of_call else fabric.group_timed_out
            error = timed_out(call, limit_ns // 10**6)
            call.expire(error)
            raise error
        return True

    def for_stream(self, calls: Sequence[EmulatedCall]) -> None:
        """The stream waits until all of `calls` are complete."""
        late = [call for call in calls if not call.done]
        if (late or self.turn.doomed) and not self.stuck:
            self.stand_still(HostWait(late, of_stream=True))
        for call in calls:
            self._streamed[call] = None
            if call.done:
                self.stream_ns = max(self.stream_ns, call.ended_ns)
            else:
                self._stuck_at.append(call.id)
        self.goes_on()

    def sync(self) -> None:
        """The host waits for its stream: .item(), .cpu(), print(tensor)."""
        late = [call for call in self._streamed if not (call.done and call.ended_ns <= self.now)]
        self._streamed = {}
        if late:
            self.for_host(late)
        self.reach(self.stream_ns)

    def synchronize(self) -> None:
        """torch.cuda.synchronize(): the host waits for all its streams, so for each call on NCCL,
        awaited or not."""
        self._for_all(
            call
            for call in self.calls
            if call.group.fabric.streams
            and call.error is None
            and not (call.done and call.ended_ns <= self.now)
        )
        self.sync()

    def flush(self, group: Group) -> None:
        """destroy_process_group: the host waits for all that is pending in the group."""
        if group.fabric.streams:
            calls = [call for call in self.calls if call.group.label == group.label]
            self._for_all(call for call in calls if call.error is None)
        else:
            self.drain(group)

    def _for_all(self, calls: Iterable[EmulatedCall]) -> None:
        awaited = list(calls)
        if awaited:
            self.for_host(awaited)

    def drain(self, group: Group | None = None) -> None:
        """Wait for the collectives on gloo that are in flight (of `group`).

        A group's destructor waits for its worker threads: when it is destroyed, or when the process
        ends.
        """
        for call in self.calls:
            in_group = group is None or call.group.label == group.label
            worker = call.op not in POINT_TO_POINT and not call.group.fabric.streams
            if in_group and worker and not call.settled and not call.expired:
                with suppress(RuntimeError):  # the destructor tells no one that it has failed
                    self.for_host([call])

    def poll(self, calls: Sequence[EmulatedCall]) -> bool:
        """Work.is_completed(). Asking takes time, so that a program that keeps asking lets the
        others come."""
        if all(
            call.done and (call.error is not None or call.ended_ns <= self.now) for call in calls
        ):
            return True
        if all(call.done for call in calls):
            self.reach(max(call.ended_ns for call in calls))
        else:
            self.work_for(POLL_NS)
            if not self.stuck:
                self.yield_turn(asks=True)
        return False

    def begin_issue(self) -> list[int]:
        """The host issues a call: it was not asleep for good. Returns the calls that its stream got
        stuck at since."""
        self._naps = 0
        stuck, self._stuck_at = self._stuck_at, []
        return stuck

    def sleep(self, seconds: float) -> None:
        """time.sleep: virtual time passes, and others may act."""
        self.work_for(round(max(0.0, seconds) * 1e9))
        self._naps += 1
        self.yield_turn(asks=self._naps > NAPS)
