"""Reasons: what a record shows of the ranks that keep others waiting, or leaves open.

`text` is the sentence, with the names of facts in braces: {about} are the ranks that it names, and
{Either} says "Rank 1 or rank 2" of those of which one is meant. `joinlab.story.words.say` fills it in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_OPEN = "the record does not show which."


@dataclass(frozen=True, slots=True)
class CallName:
    """A call as the watchdog names it. op: "" if it is not known; number: 0 of a send or recv"""

    op: str
    number: int
    group: str

    def __str__(self) -> str:
        """ "collective 5 (all_reduce) of group 73"; of a send or recv, its op."""
        if not self.number:
            return f"a {self.op} of group {self.group}"
        op = f" ({self.op})" if self.op else ""
        return f"collective {self.number}{op} of group {self.group}"


@dataclass(frozen=True, slots=True)
class Why:
    """Evidence about some ranks."""

    @property
    def about(self) -> tuple[int, ...]:
        """The ranks that it names; () if it is about all."""
        return ()

    @property
    def either(self) -> Sequence[int]:
        """Ranks of which one is meant."""
        return self.about

    @property
    def text(self) -> str:
        raise NotImplementedError


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
class UnusualCall(OfRank):
    """It issued `issued` as a call, and most ranks the usual."""

    issued: str
    call: CallName
    most: Sequence[int]
    usual: str

    text = (
        "{about} issued {issued} as {call}, where {most} issued {usual}. Look at what it did before: "
        "it skipped a call, made one more, or has other data."
    )


@dataclass(frozen=True, slots=True)
class OtherPath(OfRank):
    """It took another path than its peers, from a call on."""

    against: Sequence[int]
    where: str

    text = (
        "{about} took a different path from {against}, which [has|have] the same part in the job, at "
        "{where}: it skipped a call, made one more, changed their order, or has other data."
    )


@dataclass(frozen=True, slots=True)
class CircleOf(OfRanks):
    """They wait for each other, first in this call."""

    call: CallName
    gpu: bool

    text = (
        "{about} wait for each other, first in {call}. {Either} took a different path from the rest "
        "of the job: " + _OPEN
    )


@dataclass(frozen=True, slots=True)
class Awaited(OfRank):
    """Ranks wait for it in a call.

    gpu        whether a GPU carries the call out
    waiting    who waits in the call; elsewhere: in other calls, perhaps of other groups
    reached    how many collectives of the group it has enqueued, or completed; None of sends and recvs
    """

    call: CallName
    gpu: bool
    waiting: Sequence[int]
    elsewhere: Sequence[int]
    reached: int | None

    @property
    def text(self) -> str:
        elsewhere = ", and {elsewhere} elsewhere" if self.elsewhere else ""
        return "{waiting} wait[s|] for {about} in {call}" + elsewhere + self.holds

    @property
    def holds(self) -> str:
        """What keeps it from the call."""
        raise NotImplementedError

    @property
    def device(self) -> str:
        return "GPU" if self.gpu else "process"


@dataclass(frozen=True, slots=True)
class Ended(Awaited):
    kind: str

    holds = ", but it has {kind}."


class WaitsElsewhere(Awaited):
    """It waits for them elsewhere."""

    holds = (
        ", and it waits for them elsewhere. It took a different path: it skipped a call, or made one "
        "more."
    )


class NotBegun(Awaited):
    """It enqueued the call, but its device has not begun it."""

    @property
    def holds(self) -> str:
        enqueued = "enqueued that call" if self.call.number else "issued the counterpart"
        return (
            f". It {enqueued}, but its {self.device} has not begun it. Look at its {self.device}."
        )


class StreamBehind(Awaited):
    """It enqueued the call, but its device is at an earlier one."""

    @property
    def holds(self) -> str:
        return (
            f". It enqueued that call, but it has completed only {self.reached}, and it waits for no "
            f"other rank. Look at its {self.device}."
        )


class Stopped(Awaited):
    """It has not enqueued the call."""

    @property
    def holds(self) -> str:
        return (
            f". It stopped after {self.reached}, and it waits for no other rank. Look at its host."
        )


class NoCounterpart(Awaited):
    """It has not issued the counterpart of a send or recv."""

    holds = ", to which it issued no counterpart, and it waits for no other rank. Look at its host."


@dataclass(frozen=True, slots=True)
class OneStands(OfRank):
    """`waiter` waits for it in `call`; it is in one with the ranks `level`, of which one stands."""

    waiter: int
    call: CallName
    level: Sequence[int]

    text = (
        "{waiter} waits for {about} in {call}. {About} is in a call with {level}. {Either} has "
        "stalled: " + _OPEN
    )

    @property
    def either(self) -> Sequence[int]:
        return sorted({self.rank, *self.level})


@dataclass(frozen=True, slots=True)
class OneWaits(OfRank):
    """It alone waits, for the ranks `on`."""

    call: CallName
    on: Sequence[int]

    text = (
        "{about} alone waits, in {call}, for {on}. Either {on} [has|have] stalled, or {about} made a "
        "call that {on} [does|do] not make: " + _OPEN
    )


@dataclass(frozen=True, slots=True)
class MayWait(OfRanks):
    """They may wait for ranks without a record. group: "" of a send or recv"""

    absent: Sequence[int]
    group: str

    @property
    def text(self) -> str:
        where = "group {group}" if self.group else "a send or recv"
        return "{about} may wait for {absent} in " + where + ": there is no record of {absent}."


@dataclass(frozen=True, slots=True)
class OtherCalls(Why):
    """A call as which ranks issued different ones. wrong: ranks of which one is to blame"""

    call: CallName
    issued: Sequence[tuple[Sequence[int], str]]
    wrong: Sequence[int]

    @property
    def either(self) -> Sequence[int]:
        return self.wrong

    @property
    def text(self) -> str:
        wrong = " {Either} is wrong: " + _OPEN if self.wrong else ""
        return "In {call} the ranks issued different calls: {issued}." + wrong


class AllReached(OfRanks):
    """They wait in calls that all peers have reached."""

    text = "{about} wait[s|] in calls that all peers have reached."


class OneOf(OfRanks):
    """One of them has stalled in a call that all have reached."""

    text = "{Either} has stalled in a call that all its ranks have reached: " + _OPEN


class NoDifference(Why):
    """All ranks got to the same calls."""

    text = (
        "Every rank got to the same calls, and none completes: the record does not tell the ranks "
        "apart."
    )
