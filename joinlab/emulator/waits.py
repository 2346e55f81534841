"""One rank's thread: its two virtual clocks, and its waits.

On gloo a wait is the host's. On NCCL most waits are the stream's: the host runs on. Here, though,
tensors lie in the host's memory, and the program computes with them at once; so the thread of the
rank does stop at a stream's wait until the data is there, without its virtual host clock moving. If
it turns out that the data will never be there (every rank waits), the thread is let go, as the real
host never stopped: from then on its stream is `stuck`, nothing that it issues is carried out, and
the next time that its host waits for the stream it waits for ever.

    running --wait--> waiting --call completes--> running
                        |  of_stream, every rank waits: let go
                        +--> running, stuck --host waits--> waiting for ever: a hang
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from joinlab.backend.clock import POLL_NS
from joinlab.backend.model import EmulatedCall
from joinlab.emulator.futures import Futures
from joinlab.emulator.scheduler import Baton, RankThread
from joinlab.program.log_events import WaitBegins, WaitEnds

NAPS = 1_000
"""After so many sleeps without a call, a rank counts as waiting in a loop for another rank.

Before that it may still issue a call, so no other rank's stream is given up. The number is our own.
"""


@dataclass(slots=True)
class ThreadWait:
    """A wait of a thread: until all of `calls` end, or for something else, which `why` names.

    of_stream  only the stream waits; the real host would run on
    let_go     every rank waits, so this thread goes on as that host would
    called     every rank waits, so this thread runs the callbacks of its futures, as gloo's own threads would
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


class ThreadWaits:
    """A rank's thread as a host and its stream: clocks in virtual ns, and every kind of wait."""

    def __init__(
        self, rank: int, host: Any, baton: Baton, live: Callable[[], None], futures: Futures
    ) -> None:
        self.thread = RankThread(rank, host, live)
        self.stream_ns = 0
        self.stuck = False
        self.standing: ThreadWait | None = None
        self._naps = 0  # how often it has slept since its last call
        self.died_at: Sequence[
            EmulatedCall
        ] = ()  # a rank that was killed while it ran next came to wait for these
        self._baton = baton
        self._take = host.take
        self._futures = futures
        self._streamed: dict[EmulatedCall, None] = {}  # the stream has been made to wait for these
        self._stuck_at: list[
            int
        ] = []  # of them, the ids of those that it was stuck at since the last call was issued

    @property
    def now(self) -> int:
        """The host's virtual clock, ns."""
        return self.thread.now

    def work_for(self, ns: int) -> None:
        """The host is busy for so long."""
        self.thread.now += ns

    def reach(self, ns: int) -> None:
        """The host has come to this time, if it was not there yet."""
        self.thread.now = max(self.thread.now, ns)

    @property
    def awaited(self) -> list[EmulatedCall]:
        """The open calls that the thread waits for."""
        if self.standing is None:
            return []
        return [call for call in self.standing.calls if not call.done]

    # ------------------------------------------------------------------------------------ stopping
    # the thread

    def stand_still(self, wait: ThreadWait, until: int | None = None) -> None:
        """Stop this thread until the wait is over (never, if the stream is stuck before it), or
        until that time."""
        if self.thread.doomed:
            self.died_at = wait.calls
        elif wait.over:
            return
        while not wait.let_go:
            self.standing = wait
            self._baton.wait(self.thread, until)
            self.standing = None
            if not wait.called:
                break
            wait.called = False
            self._futures.fulfil()
            if wait.over:
                break
        if wait.let_go:
            self.stuck = True

    def wake(self) -> None:
        """Let the thread go on."""
        self._baton.wake(self.thread)

    def end(self) -> None:
        """End the thread in its wait, or, if it runs, in its next one."""
        if self.standing is None:
            self.thread.doomed = True
        else:
            self._baton.doom(self.thread)

    def let_go(self) -> bool:
        """Every rank waits: go on if only the stream does. False if the host waits, too, or the
        wait is for no call."""
        wait = self.standing
        if wait is None or not wait.of_stream or not wait.calls or self.stuck:
            return False
        wait.let_go = True
        self.wake()
        return True

    def call_back(self) -> bool:
        """Every rank waits: run callbacks that gloo's own threads would have run by now. False if
        there are none."""
        if self.standing is None or not self._futures.ready:
            return False
        self.standing.called = True
        self.wake()
        return True

    def completed(self, call: EmulatedCall) -> bool:
        """A call is done, which may end the thread's wait. False if a stuck stream would have moved
        on by it."""
        if self.stuck and call in self._streamed:
            return False
        if (
            self.standing is not None
            and self.standing.calls
            and all(one.done for one in self.standing.calls)
        ):
            self.wake()
        return True

    # ------------------------------------------------------------------------------------ waits of
    # a program

    def for_host(self, calls: Sequence[EmulatedCall]) -> None:
        """Make the host wait until all of `calls` are complete; raises the backend's error."""
        late = [
            call
            for call in calls
            if not (call.done and call.error is None and call.ended_ns <= self.now)
        ]
        if not late:
            for call in calls:
                call.settle()
            self._futures.fulfil()
            return
        if (
            late[0].group.fabric.streams
        ):  # it waits for the stream, and so for all that this has been made to wait for
            late += [call for call in self._streamed if not call.done and call not in late]
        self._begin_wait(late)
        self.stand_still(ThreadWait(late))
        until = max(call.ended_ns for call in late)
        self.reach(until)
        if late[0].group.fabric.streams:
            self.stream_ns = max(self.stream_ns, until)
        self._end_wait(late)
        self._futures.fulfil()
        for call in late:
            if call.error is not None:
                raise RuntimeError(call.error)
        for call in calls:
            call.settle()

    def for_host_until(self, call: EmulatedCall, until: int) -> bool:
        """The host waits for `call`, but not longer than until then. False if it was not complete
        in time."""
        self._begin_wait([call])
        if not call.done:
            self.stand_still(ThreadWait([call]), until)
        if call.done and call.ended_ns <= until:
            self.for_host([call])
            return True
        self.reach(until)
        self._end_wait([call])
        return False

    def _begin_wait(self, calls: Sequence[EmulatedCall]) -> None:
        awaited = [call.id for call in calls]
        self._take(WaitBegins(calls=awaited, time_ns=self.now, thread=0, threads=1))

    def _end_wait(self, calls: Sequence[EmulatedCall]) -> None:
        """The host is let go. The calls themselves tell that they completed."""
        awaited = [call.id for call in calls]
        self._take(WaitEnds(calls=awaited, still_open=awaited, time_ns=self.now, thread=0))

    def for_stream(self, calls: Sequence[EmulatedCall]) -> None:
        """The stream waits until all of `calls` are complete."""
        late = [call for call in calls if not call.done]
        if (late or self.thread.doomed) and not self.stuck:
            self.stand_still(ThreadWait(late, of_stream=True))
        for call in calls:
            self._streamed[call] = None
            if call.done:
                self.stream_ns = max(self.stream_ns, call.ended_ns)
            else:
                self._stuck_at.append(call.id)
        self._futures.fulfil()

    def sync(self) -> None:
        """The host waits for its stream: .item(), .cpu(), print(tensor),
        torch.cuda.synchronize()."""
        late = [call for call in self._streamed if not (call.done and call.ended_ns <= self.now)]
        self._streamed = {}
        if late:
            self.for_host(late)
        self.reach(self.stream_ns)

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
                self._baton.yield_turn(self.thread)
        return False

    def sleep(self, seconds: float) -> None:
        """time.sleep: virtual time passes, and others may run."""
        self.work_for(round(max(0.0, seconds) * 1e9))
        self._naps += 1
        self._baton.yield_turn(self.thread, asks=self._naps > NAPS)

    def issues(self) -> list[int]:
        """The host issues a call: it was not asleep for good. Returns the calls that its stream got
        stuck at since."""
        self._naps = 0
        stuck, self._stuck_at = self._stuck_at, []
        return stuck

    def yield_if_ready(self) -> None:
        """Let the others run, where any can."""
        if self._baton.somebody_is_ready:
            self._baton.yield_turn(self.thread)
