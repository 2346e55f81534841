"""The first call that sends between two ranks of a communicator connects them: their hosts meet
inside that call.

`ring.words` has the messages that they exchange. The emulator runs this with the hosts' clocks, the
rule without.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator

from joinlab.nccl.ring import RingStep, Word, mirrors, words


class Connections:
    """The pairs of one communicator: which are set up, and which messages were sent.

    made     those that are set up, as (group_rank, peer, whether it sends)
    crossed  those whose other end is not what the peer set up: see `mirrors`
    uneven   of two ranks that met, one set up more connections than the other
    met_ns   by group rank: when its host last received a message, in virtual ns
    waiting  by message: the function to call when it is sent
    """

    def __init__(self, size: int) -> None:
        self.made: set[tuple[int, int, bool]] = set()
        self.crossed: set[tuple[int, int, bool]] = set()
        self.uneven = False
        self.met_ns = [0] * size
        self.waiting: dict[Word, Callable[[], object]] = {}
        self._size = size
        # Sent messages that their receiver has not read: the time, and whether each connection
        # sends.
        self._sent: dict[Word, deque[tuple[int, set[bool]]]] = {}

    def make(self, group_rank: int, steps: Iterable[RingStep], now: int = 0) -> Iterator[Word]:
        """The host of `group_rank` issues a call with these steps: connect it to new peers.

        Yields each message that its host has to wait for; resume once that message has been sent.
        """
        new = {
            (group_rank, step.peer, step.send is not None)
            for step in steps
            if step.peer is not None
        } - self.made
        sends, recvs = (
            {peer for _, peer, is_send in new if is_send is side} for side in (True, False)
        )
        for meeting in words(group_rank, self._size, sends, recvs):
            directions = {
                hear[0]: {is_send for _, peer, is_send in new if peer == hear[0]}
                for _, hear in meeting
            }
            for tell, _ in meeting:
                self._sent.setdefault(tell, deque()).append((now, directions[tell[1]]))
                if tell in self.waiting:
                    self.waiting.pop(tell)()
            for _, hear in meeting:
                while not self._sent.get(hear):
                    yield hear
                peer = hear[0]
                sent_ns, peer_directions = self._sent[hear].popleft()
                now = self.met_ns[group_rank] = max(now, sent_ns)
                if not mirrors(self._size, group_rank, peer, directions[peer], peer_directions):
                    self.crossed |= {(group_rank, peer, is_send) for is_send in directions[peer]}
                    self.uneven |= len(directions[peer]) != len(peer_directions)
        self.made |= new
