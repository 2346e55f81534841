"""The first call that sends between two ranks of a communicator connects them: their hosts meet inside that call.

Rings are connected when the communicator is made. Pairs are not: the first gather, scatter, all_to_all or batch of
sends and recvs that needs a pair sets it up. For one distance after the other, a host tells the rank so far behind it,
from which it receives, and the rank so far ahead, to which it sends, and waits until it has heard the same from them:

    3 ranks, gather to 0    distance 1    rank 2 tells 0 and hears it    rank 0 tells 2 and hears it
                            distance 2    rank 1 tells 0 and hears it    rank 0 tells 1 and hears it

If rank 2 never comes, rank 0 stands at distance 1, so rank 1 does not hear from it either. All this is inside the call:
a rank that waits so does not reach its next one, and the watchdog sees nothing, since no work is enqueued yet.

Source: ncclTransportP2pSetup in src/transport.cc, called by ncclGroupCommPreconnect in src/group.cc, v2.29.7-1.
Modelled, not measured: no GPU was at hand.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence

from joinlab.backend.model import EmulatedCall, Rank

_Word = tuple[int, int, int, int]
"""(from, to, distance, round): what one host tells another. The second round is the last loop of P2pSetup."""


class Connections:
    """The pairs of one communicator: which are set up, what was told, and which host waits to hear what."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._made: set[tuple[int, int, bool]] = set()  # (place, peer, whether it sends), as `place` sees it
        self._told: dict[_Word, deque[int]] = {}  # when, in virtual ns, each time that it was told and is not heard yet
        self._waiting: dict[_Word, Rank] = {}

    def make(self, place: int, sends: Collection[int], recvs: Collection[int], calls: Sequence[EmulatedCall]) -> None:
        """The host at `place` issues calls that send to, and receive from, these places: connect to new ones."""
        new = {(place, peer, True) for peer in sends} | {(place, peer, False) for peer in recvs}
        new -= self._made
        if not new:
            return
        now = calls[-1].row.get("enqueued_ns") or 0
        for turn in (0, 1):
            for distance in range(1, self._size):
                ahead, behind = (place + distance) % self._size, (place - distance) % self._size
                peers = [behind] if (place, behind, False) in new else []
                if (place, ahead, True) in new and ahead not in peers:
                    peers.append(ahead)
                for peer in peers:
                    self._tell((place, peer, distance, turn), now)
                for peer in peers:
                    now = self._hear((peer, place, distance, turn), now, calls)
        self._made |= new
        calls[0].host.reach(now)
        for call in calls:
            call.ready_ns = max(call.ready_ns, now)

    def _tell(self, word: _Word, now: int) -> None:
        self._told.setdefault(word, deque()).append(now)
        listener = self._waiting.pop(word, None)
        if listener is not None:
            listener.wake()

    def _hear(self, word: _Word, now: int, calls: Sequence[EmulatedCall]) -> int:
        """Wait to be told; returns the later of then and now."""
        while not self._told.get(word):
            self._waiting[word] = calls[0].host
            peer = f"the rank at place {word[0]} of group {calls[0].group.label!r}"
            calls[0].host.wait_inside(calls, f"inside its {calls[0].op} for {peer} to connect the two")
        return max(now, self._told[word].popleft())
