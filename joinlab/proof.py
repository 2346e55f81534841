"""The proof of a hang, from the calls issued so far instead of the time that has passed.

When every living rank waits for a call, no rank will issue another one. So if the backend's
matching rule shows that the calls issued so far cannot end any of these waits, they never end.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from joinlab.backend.calls import (
    Blocked,
    Blocker,
    GroupCalls,
    IssuedCall,
    RuleContext,
    by_group,
    call_of,
)
from joinlab.gloo import rule as gloo_rule
from joinlab.nccl import rule as nccl_rule
from joinlab.ops import POINT_TO_POINT, CallRow

RULES: Mapping[str, Callable[[GroupCalls, Collection[int]], Blocked]] = {
    "gloo": gloo_rule.blocked,
    "nccl": nccl_rule.blocked,
}
"""By backend: which calls of a group can never complete, given those issued so far and the ranks
that have ended."""


@dataclass(frozen=True, slots=True)
class BlockedThread:
    """A host thread of `rank` that waits until all of `calls`, each a (group, seq), are
    complete.

    inside  it is inside the call, where NCCL connects the ranks: it goes on once all of them have come
    """

    rank: int
    calls: tuple[tuple[str, int], ...]
    inside: bool = False


@dataclass(frozen=True, slots=True)
class Stuck:
    """A call that can never complete on `rank`, and the reason: the other ranks' calls, or the lack
    of them."""

    rank: int
    group: str
    seq: int
    because: tuple[Blocker, ...]


@dataclass(frozen=True, slots=True)
class Proof:
    """Why no rank can go on: one stuck call per waiting thread, sorted by rank."""

    stuck: tuple[Stuck, ...]

    def of(self, rank: int) -> Stuck | None:
        """The stuck call that `rank` waits for; None if the proof does not cover it."""
        return next((stuck for stuck in self.stuck if stuck.rank == rank), None)


def prove(
    calls: Iterable[IssuedCall | CallRow],
    groups: Mapping[str, Sequence[int]],
    backend: str,
    waits: Iterable[BlockedThread],
    gone: Collection[int] = (),
    setting: RuleContext | None = None,
) -> Proof | None:
    """Prove that no living rank can ever go on; None if there is no proof.

    calls    every call issued so far, each rank's in its order of issue; `IssuedCall`s are read faster than rows
    groups   global ranks by name of the process group
    backend  "gloo" or "nccl"; no other backend has a rule
    waits    all waiting host threads; a living rank without one may still go on
    gone     ranks whose process has ended
    setting  where the ranks ran, see `setting_of`

        prove(calls, {"0": [0, 1]}, "gloo", [Wait(0, (("0", 7),)), Wait(1, (("0", 7),))])
    """
    waits = tuple(waits)
    rule = RULES.get(backend)
    waiting = {wait.rank for wait in waits}
    everyone = set(chain.from_iterable(groups.values()))
    if rule is None or not waits or waiting & set(gone) or not everyone <= waiting | set(gone):
        return None
    setting = setting or RuleContext()
    if backend == "nccl" and setting.transport == "sockets" and gone:
        return None
    issued = [call if isinstance(call, IssuedCall) else call_of(call) for call in calls]
    answers = blocked_calls(issued, groups, backend, gone, setting)
    stuck: list[Stuck] = []
    for wait in waits:
        for group, seq in wait.calls:
            why = answers.get(group, {}).get((wait.rank, seq))
            if why and not (
                wait.inside and _all_came(issued, groups[group], wait.rank, group, seq)
            ):
                stuck.append(Stuck(wait.rank, group, seq, why))
                break
        else:
            return None
    return Proof(tuple(sorted(stuck, key=lambda rank_stuck: rank_stuck.rank)))


def _all_came(
    issued: Iterable[IssuedCall], ranks: Sequence[int], rank: int, group: str, seq: int
) -> bool:
    """Whether every rank that NCCL connects inside this call has issued one: for a send or recv its
    peer, else the whole group. Then the host goes on, though the call may never complete."""
    calls_of_group = [call for call in issued if call.group == group and not call.refused]
    (call,) = [call for call in calls_of_group if (call.rank, call.seq) == (rank, seq)]
    if call.op in POINT_TO_POINT:
        return any(
            (counterpart.rank, counterpart.peer) == (call.peer, rank)
            for counterpart in calls_of_group
        )
    return {arrived.rank for arrived in calls_of_group} >= set(ranks)


def blocked_calls(
    calls: Iterable[IssuedCall | CallRow],
    groups: Mapping[str, Sequence[int]],
    backend: str,
    gone: Collection[int] = (),
    setting: RuleContext | None = None,
) -> dict[str, Blocked]:
    """By group, the calls that can never complete, and why: by the backend's rule and by the waits
    of streams.

    On NCCL a stuck call blocks its own communicator and, once the rank's stream waits for it, every
    later call of the rank in every group. Other ranks wait for those calls, so the rules run again
    without them:

        rank 0    a: all_reduce             stuck, since rank 1 never calls in a; the stream waits for it
                  b: all_reduce             issued, but never begins
        rank 1    b: all_reduce             waits for rank 0's, which never begins

    Arguments as for `prove`.
    """
    setting = setting or RuleContext()
    issued = [call if isinstance(call, IssuedCall) else call_of(call) for call in calls]
    lanes = by_group(issued, groups, setting)
    backends = {name: setting.backends.get(name, backend) for name in lanes}

    def ask(blocked: Mapping[str, Blocked]) -> dict[str, Blocked]:
        rules = {
            name: RULES.get(backend_name)
            for name, backend_name in backends.items()
            if name not in setting.captured
        }
        return {
            name: rule(replace(lanes[name], held=blocked.get(name, {})), gone) if rule else {}
            for name, rule in rules.items()
        }

    unblocked = answers = ask({})
    blocked: dict[str, dict[tuple[int, int], tuple[Blocker, ...]]] = {}
    while setting.streamed:
        before, blocked = blocked, {}
        behind: dict[int, tuple[Blocker, ...]] = {}
        for call in issued:
            for rank, group, seq in setting.streamed.get((call.rank, call.group, call.seq), ()):
                if (rank, seq) in answers.get(group, {}):
                    behind.setdefault(rank, (Blocker(rank, seq, group),))
            if call.rank in behind and backends.get(call.group) == "nccl":
                if call.completed:  # it did not wait: the program uses streams of its own
                    return unblocked
                blocked.setdefault(call.group, {})[call.rank, call.seq] = behind[call.rank]
        if blocked == before:
            break
        if any(
            not blocked.get(name, {}).keys() >= blocked_of_group.keys()
            for name, blocked_of_group in before.items()
        ):
            return unblocked  # the record contradicts the rule once calls are held
        answers = ask(blocked)
    return answers
