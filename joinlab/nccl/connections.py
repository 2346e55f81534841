"""The first call that sends between two ranks of a communicator connects them: their hosts meet inside that call.

What they tell each other is in `ring.words`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from joinlab.backend.model import EmulatedCall, Rank
from joinlab.nccl.ring import Step, Word, mirrors, words


class Connections:
    """The pairs of one communicator: which are set up, which messages were sent, which host waits for which message.

    crossed  those whose other end is not what the peer set up, as (place, peer, whether it sends): see `mirrors`
    """

    def __init__(self, size: int) -> None:
        self.crossed: set[tuple[int, int, bool]] = set()
        self._size = size
        self._made: set[tuple[int, int, bool]] = set()  # (place, peer, whether it sends), as `place` sees it
        # By word: when, in virtual ns, it was told each time that is not heard yet, and of which connections.
        self._told: dict[Word, deque[tuple[int, set[bool]]]] = {}
        self._waiting: dict[Word, Rank] = {}

    def make(self, place: int, steps: Iterable[Step], calls: Sequence[EmulatedCall]) -> None:
        """The host at `place` issues `calls`, which have these steps: connect to places that are new."""
        new = {(place, step.peer, step.send is not None) for step in steps if step.peer is not None} - self._made
        if not new:
            return
        now = calls[-1].row.get("enqueued_ns") or 0
        sends, recvs = ({peer for _, peer, is_send in new if is_send is side} for side in (True, False))
        for meeting in words(place, self._size, sends, recvs):
            mine = {hear[0]: {is_send for _, peer, is_send in new if peer == hear[0]} for _, hear in meeting}
            for tell, _ in meeting:
                self._tell(tell, now, mine[tell[1]])
            for _, hear in meeting:
                peer = hear[0]
                told_ns, theirs = self._hear(hear, calls)
                now = max(now, told_ns)
                if not mirrors(self._size, place, peer, mine[peer], theirs):
                    if len(mine[peer]) != len(theirs):
                        raise NotImplementedError(
                            f"{calls[0]!r} and its peer connect to each other for different sends and recvs, of which "
                            "one of the two has more: NCCL may end in an error, 'Message truncated'"
                        )
                    self.crossed |= {(place, peer, is_send) for is_send in mine[peer]}
        self._made |= new
        calls[0].host.reach(now)
        for call in calls:
            call.ready_ns = max(call.ready_ns, now)

    def _tell(self, word: Word, now: int, connections: set[bool]) -> None:
        self._told.setdefault(word, deque()).append((now, connections))
        listener = self._waiting.pop(word, None)
        if listener is not None:
            listener.wake()

    def _hear(self, word: Word, calls: Sequence[EmulatedCall]) -> tuple[int, set[bool]]:
        """Wait to be told; returns when that was, and of which connections."""
        while not self._told.get(word):
            self._waiting[word] = calls[0].host
            peer = f"the rank at place {word[0]} of group {calls[0].group.label!r}"
            calls[0].host.wait_inside(calls, f"inside its {calls[0].op} for {peer} to connect the two")
        return self._told[word].popleft()
