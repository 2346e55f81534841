"""The first call that sends between two ranks of a communicator connects them: their hosts meet inside that call.

What they tell each other is in `ring.words`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from joinlab.backend.model import EmulatedCall, Rank
from joinlab.nccl.ring import Step, Word, words


class Connections:
    """The pairs of one communicator: which are set up, what was told, and which host waits to hear what."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._made: set[tuple[int, int, bool]] = set()  # (place, peer, whether it sends), as `place` sees it
        self._told: dict[Word, deque[int]] = {}  # when, in virtual ns, each time that it was told and is not heard yet
        self._waiting: dict[Word, Rank] = {}

    def make(self, place: int, steps: Iterable[Step], calls: Sequence[EmulatedCall]) -> None:
        """The host at `place` issues `calls`, which have these steps: connect to places that are new."""
        new = {(place, step.peer, step.send is not None) for step in steps if step.peer is not None} - self._made
        if not new:
            return
        now = calls[-1].row.get("enqueued_ns") or 0
        sends, recvs = ({peer for _, peer, is_send in new if is_send is side} for side in (True, False))
        for meeting in words(place, self._size, sends, recvs):
            for tell, _ in meeting:
                self._tell(tell, now)
            for _, hear in meeting:
                now = self._hear(hear, now, calls)
        self._made |= new
        calls[0].host.reach(now)
        for call in calls:
            call.ready_ns = max(call.ready_ns, now)

    def _tell(self, word: Word, now: int) -> None:
        self._told.setdefault(word, deque()).append(now)
        listener = self._waiting.pop(word, None)
        if listener is not None:
            listener.wake()

    def _hear(self, word: Word, now: int, calls: Sequence[EmulatedCall]) -> int:
        """Wait to be told; returns the later of then and now."""
        while not self._told.get(word):
            self._waiting[word] = calls[0].host
            peer = f"the rank at place {word[0]} of group {calls[0].group.label!r}"
            calls[0].host.wait_inside(calls, f"inside its {calls[0].op} for {peer} to connect the two")
        return max(now, self._told[word].popleft())
