"""Reasons: what a record shows of the ranks that keep others waiting, or leaves open.
`joinlab.story.forms.kept_waiting` has their sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from joinlab.timeline import EndKind


@dataclass(frozen=True, slots=True)
class CallName:
    """A call as the watchdog names it. op: "" if it is not known; number: 0 of a send or recv"""

    op: str
    number: int
    group: str


@dataclass(frozen=True, slots=True)
class Why:
    """Evidence about some ranks."""

    @property
    def about(self) -> tuple[int, ...]:
        """The ranks that it names; () if it is about all."""
        return ()


@dataclass(frozen=True, slots=True)
class OfRank(Why):
    rank: int

    @property
    def about(self) -> tuple[int, ...]:
        return (self.rank,)


@dataclass(frozen=True, slots=True)
class OfRanks(Why):
    ranks: Sequence[int]

    @property
    def about(self) -> tuple[int, ...]:
        return tuple(self.ranks)


@dataclass(frozen=True, slots=True)
class OddOne(OfRank):
    """It issued `issued` as a call, and most ranks the usual."""

    issued: str
    call: CallName
    most: Sequence[int]
    usual: str


@dataclass(frozen=True, slots=True)
class AnotherWay(OfRank):
    """It took another path than its peers, from a call on."""

    against: Sequence[int]
    where: str


@dataclass(frozen=True, slots=True)
class CircleOf(OfRanks):
    """They wait for each other, first in this call."""

    call: CallName
    gpu: bool


@dataclass(frozen=True, slots=True)
class Awaited(OfRank):
    """Ranks wait for it in a call.

    gpu        whether a GPU carries the call out
    waiting    who waits in the call; elsewhere: in other calls
    reached    how many collectives of the group it has enqueued, or completed; None of sends and recvs
    """

    call: CallName
    gpu: bool
    waiting: Sequence[int]
    elsewhere: Sequence[int]
    reached: int | None


@dataclass(frozen=True, slots=True)
class Ended(Awaited):
    kind: EndKind


class PartedFrom(Awaited):
    """It waits for them elsewhere."""


class NotBegun(Awaited):
    """It enqueued the call, but its device has not begun it."""


class StreamBehind(Awaited):
    """It enqueued the call, but its device is at an earlier one."""


class Stopped(Awaited):
    """It has not enqueued the call."""


class NoCounterpart(Awaited):
    """It has not issued the counterpart of a send or recv."""


@dataclass(frozen=True, slots=True)
class OneStands(OfRank):
    """`waiter` waits for it in `call`; it is in one with the ranks `level`, of which one stands."""

    waiter: int
    call: CallName
    level: Sequence[int]


@dataclass(frozen=True, slots=True)
class OneWaits(OfRank):
    """It alone waits, for the ranks `on`."""

    call: CallName
    on: Sequence[int]


@dataclass(frozen=True, slots=True)
class MayWait(OfRanks):
    """They may wait for ranks without a record. group: "" of a send or recv"""

    absent: Sequence[int]
    group: str


@dataclass(frozen=True, slots=True)
class OtherCalls(Why):
    """A call as which ranks issued different ones. wrong: ranks of which one is to blame"""

    call: CallName
    issued: Sequence[tuple[Sequence[int], str]]
    wrong: Sequence[int]


class AllReached(OfRanks):
    """They wait in calls that all peers have reached."""


class OneOf(OfRanks):
    """One of them has stalled in a call that all have reached."""


class NoneApart(Why):
    """All ranks got to the same calls."""
