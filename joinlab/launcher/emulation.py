"""What a keeper does for an emulation: it holds the network, and says what became of the run.

The ranks' messages come over their sockets. While every rank computes, the keeper waits for them,
for a signal that a rank's process has ended, for the launcher, and for the end of the time limit.
"""

from __future__ import annotations

import select
import selectors
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from joinlab.backend.model import Knobs
from joinlab.backend.session import End
from joinlab.emulator.exchange import Exchange, Lost
from joinlab.emulator.messages import RankMessage, Reply
from joinlab.errors import LaunchError
from joinlab.launcher.frames import receive, send
from joinlab.launcher.rank_output import cause_of_death

if TYPE_CHECKING:
    from joinlab.launcher.keeper import Child, Keeper

LOOK_S = 0.2
"""How often the outputs of ranks are read that print without end."""

LAST_WORDS = ("end", "die", "broken")
"""Requests after which a rank's process ends."""


class RankOutcome(NamedTuple):
    """What became of an emulated rank.

    log       its events, with those of the network
    kind      "finished", "hung" or "killed"; the log says whether its program raised
    call      id of the call that it waited for
    text      why it waited, or how it was killed
    output    what it printed; its middle is missing if not `whole`
    returned  what its program returned, as cloudpickle has it
    modules   installed modules that its program imported
    """

    log: str
    kind: str
    call: int | None
    text: str
    output: str
    whole: bool
    returned: bytes | None = None
    modules: tuple[str, ...] = ()


class Outcome(NamedTuple):
    """What became of an emulation.

    watched  how NCCL's watchdog would end ranks that hang: rank, seconds, text
    broken   why there is no Timeline: what real ranks would do is not modelled
    trouble  why a rank could not run at all
    """

    ranks: list[RankOutcome]
    groups: dict[str, tuple[int, ...]]
    assumes: list[str]
    watched: list[tuple[int, float, str]]
    broken: str = ""


class GivenUp(Exception):
    """The run is over before its ranks are: the text says why, for those that still run."""


def emulate(keeper: Keeper, knobs: Knobs, request: bytes) -> None:
    """Run an emulation, whose ranks the keeper has forked; `request` is what each of them gets."""
    Emulation(keeper, knobs, request).go()


class Emulation:
    """An emulation, from its request to its outcome."""

    def __init__(self, keeper: Keeper, knobs: Knobs, request: bytes) -> None:
        self.keeper = keeper
        self.request = request
        self.children = keeper.children[: keeper.ranks]
        self.exchange = Exchange(
            knobs, [child.log for child in self.children], self._answer, self._hear
        )
        self._timeout_s = knobs.timeout_s
        self._deadline = time.monotonic() + knobs.timeout_s
        self._next_look = time.monotonic() + LOOK_S
        self._said_last: set[int] = set()  # ranks that have said how their process ends
        self._heard: list[tuple[int, RankMessage | Lost]] = []

    def go(self) -> None:
        """Run it, end its processes, and send the outcome to the launcher."""
        keeper, broken = self.keeper, ""
        keeper.ended = self._ended
        for child in self.children:
            keeper.selector.register(child.link, selectors.EVENT_READ, child)
        keeper.send_request(self.request)
        try:
            self.exchange.go()
        except LaunchError as error:
            broken = str(error)
        except GivenUp as given_up:
            for host in self.exchange.hosts:
                host.end = host.end or End("killed", host.awaited, str(given_up))
        keeper.end_ranks()
        keeper.end_everything()
        self.exchange.take_rest()
        keeper.tell(self._outcome(broken))

    def _answer(self, rank: int, reply: Reply) -> None:
        with suppress(OSError):  # it has been killed meanwhile
            send(self.children[rank].link, reply)

    def _hear(self) -> list[tuple[int, RankMessage | Lost]]:
        """What the ranks have sent, once there is something."""
        keeper = self.keeper
        while not self._heard:
            now = time.monotonic()
            if now >= self._deadline:
                text = f"ended by joinlab: still running after timeout={self._timeout_s:g} s"
                raise GivenUp(text)
            if now >= self._next_look:
                self._next_look = now + LOOK_S
                for child in self.children:
                    child.output.read_all()
            for key, _ in keeper.selector.select(min(LOOK_S, self._deadline - now)):
                if key.data is not None:
                    self._receive(key.data)
                    continue
                keeper.handle(key.fd)
                if key.fd == keeper.child_pipe:
                    keeper.reap()
            if keeper.interrupted:
                raise GivenUp("interrupted by the user")
            if keeper.over:
                raise GivenUp("its caller is gone")
        heard, self._heard = self._heard, []
        return heard

    def _receive(self, child: Child) -> bool:
        """Take a rank's next message; False if there is none any more."""
        try:
            message: RankMessage = receive(child.link)
        except (EOFError, OSError):
            with suppress(KeyError):
                self.keeper.selector.unregister(child.link)
            return False
        if message.request is not None and message.request[0] in LAST_WORDS:
            self._said_last.add(child.rank)
        self._heard.append((child.rank, message))
        return True

    def _ended(self, child: Child, status: int) -> None:
        """A rank's process has ended, perhaps without a word."""
        if child.rank >= len(self.children):
            return
        while select.select([child.link], [], [], 0)[0] and self._receive(child):
            pass
        if child.rank not in self._said_last:
            child.output.read_all()
            text = cause_of_death(status, child.output.last(4000))
            self._heard.append((child.rank, Lost(text)))

    def _outcome(self, broken: str) -> Outcome:
        exchange = self.exchange
        assumes = [text for fabric in exchange.fabrics.values() for text in fabric.assumes()]
        ranks = [self._rank(rank) for rank in range(len(self.children))]
        groups = dict(exchange.ranks_of)
        return Outcome(ranks, groups, [*dict.fromkeys(assumes)], exchange.watched(), broken)

    def _rank(self, rank: int) -> RankOutcome:
        host, child = self.exchange.hosts[rank], self.children[rank]
        child.output.read_all()
        end = host.end or End("killed", None, "it never ran")
        call = end.call.id if end.call is not None and end.call.id >= 0 else None
        return RankOutcome(
            "".join(host.text),
            end.kind,
            call,
            end.text,
            child.output.text(),
            child.output.whole,
            *host.returned,
        )
