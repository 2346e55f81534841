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
from typing import Any

from joinlab.backend.model import EmulatedCall
from joinlab.backend.turns import HostWait, RankWaits
from joinlab.emulator.futures import Futures
from joinlab.emulator.scheduler import Baton, RankThread
from joinlab.program.log_events import WaitBegins, WaitEnds


class ThreadWaits(RankWaits[RankThread]):
    """A rank's thread as a host and its stream.

    died_at  a rank that was killed while it ran next came to wait for these
    """

    def __init__(
        self, rank: int, host: Any, baton: Baton, live: Callable[[], None], futures: Futures
    ) -> None:
        super().__init__(RankThread(rank, host, live), baton.turns)
        self.died_at: Sequence[EmulatedCall] = ()
        self._baton = baton
        self._take = host.take
        self._futures = futures

    def pause(self, until: int | None = None) -> None:
        """Hand the baton on, until this rank has been woken and it is its turn again."""
        self._baton.wait(self.turn, until)

    def begins(self, calls: Sequence[EmulatedCall]) -> None:
        """Record that the host begins to wait for these."""
        awaited = [call.id for call in calls]
        self._take(WaitBegins(calls=awaited, time_ns=self.now, thread=0, threads=1))

    def ends(self, calls: Sequence[EmulatedCall]) -> None:
        """Record that the host is let go. The calls themselves tell that they completed."""
        awaited = [call.id for call in calls]
        self._take(WaitEnds(calls=awaited, still_open=awaited, time_ns=self.now, thread=0))

    def goes_on(self) -> None:
        """Run the callbacks of futures that are there now."""
        self._futures.fulfil()

    def stand_still(self, wait: HostWait, until: int | None = None) -> None:
        """Stop this thread until the wait is over (never, if the stream is stuck before it), or
        until that time."""
        if self.turn.doomed:
            self.died_at = wait.calls
        super().stand_still(wait, until)
        while wait.called:
            wait.called = False
            self._futures.fulfil()
            super().stand_still(wait, until)

    def end(self) -> None:
        """End the thread in its wait, or, if it runs, in its next one."""
        if self.standing is None:
            self.turn.doomed = True
        else:
            self._baton.doom(self.turn)

    def call_back(self) -> bool:
        """Every rank waits: run callbacks that gloo's own threads would have run by now. False if
        there are none."""
        if self.standing is None or not self._futures.ready:
            return False
        self.standing.called = True
        self.wake()
        return True
