"""Judges of notebook 10: six programs that hang, judged by running what the learner made of them.

A repair is right if every rank finishes on NCCL and on gloo, nothing is left pending, no call meets one that was not
meant for it, and the program still does what it is for.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from joinlab.analysis.matching import match
from joinlab.course.judge import Answer, Judge, Wrong, compare, issued, run
from joinlab.timeline import Timeline

GRADIENTS = "all-reduce (DDP backward())"

Counts = tuple[int, ...]
Purpose = Callable[[Timeline, Counts, str], None]


def nothing_crosses(timeline: Timeline, given: str) -> None:
    """Raise Wrong if calls met that were not meant for each other, even if nothing hung."""
    for slot in match(timeline):
        if slot.met and not slot.expected:
            calls = (f"{timeline.call(rank, seq)['origin']} of rank {rank}" for rank, seq in slot.calls.items())
            raise Wrong(f"with {given}, calls met that were not meant for each other: {' and '.join(calls)}.")


def reductions(timeline: Timeline, rank: int) -> int:
    """How often a rank reduced the gradients of a model with one bucket."""
    return sum(row["origin"] == GRADIENTS for row in issued(timeline, rank))


def _repair(purpose: Purpose, *known: Counts) -> Judge:
    def hold(answer: Answer, counts: Counts) -> None:
        for backend in ("gloo", "nccl"):
            given = f"inputs={counts} on {backend}"
            timeline = run(answer, counts, given, backend=backend)
            nothing_crosses(timeline, given)
            purpose(timeline, counts, given)

    return Judge(known, _even, hold)


def _even(rng: random.Random) -> Counts:
    return (rng.choice((4, 6)),) * rng.randint(2, 3)


def _reduced(timeline: Timeline, wanted: Sequence[int], given: str) -> None:
    made = [reductions(timeline, rank) for rank in range(len(wanted))]
    compare(made, list(wanted), given, "how often each rank reduced its gradients")


def _reports(timeline: Timeline, counts: Counts, given: str) -> None:
    _reduced(timeline, counts, given)
    own = {row["input"] for row in issued(timeline, 0) if "DDP" not in row["origin"]}
    compare(sorted(own), [1], given, "the list of inputs in which rank 0 makes a call for the loss")
    mean = sum(range(1, len(counts) + 1)) / len(counts)
    said = [text.split() for text in timeline.output]
    compare(said, [["mean", "loss", str(mean)]] + [[]] * (len(counts) - 1), given, "the words that each rank printed")


def _stops(timeline: Timeline, counts: Counts, given: str) -> None:
    steps = timeline.returns[0]
    compare(list(timeline.returns), [steps] * len(counts), given, "how many steps each rank returns")
    if steps not in (1, len(counts)):
        raise Wrong(
            f"with {given}, the ranks stopped after {steps} steps. Stop when the first rank has learnt enough "
            f"(after 1), or when all have (after {len(counts)})."
        )
    _reduced(timeline, [steps] * len(counts), given)


def _skips(timeline: Timeline, counts: Counts, given: str) -> None:
    made = [reductions(timeline, rank) for rank in range(len(counts))]
    if made[0] != counts[0]:
        raise Wrong(f"with {given}, rank 0 reduced its gradients {made[0]} times; it has {counts[0]} good inputs.")
    # Every input is a 1, so each gives a gradient of 1 for the weight and for the bias; one of rank 1 is left out.
    wanted = counts[0] - 1 / len(counts)
    compare(timeline.returns[0], [wanted, wanted], given, "the gradients that rank 0 returns")


def _saves(timeline: Timeline, counts: Counts, given: str) -> None:
    _reduced(timeline, counts, given)
    compare(timeline.returns[0], [float(rank) for rank in range(len(counts))], given, "what rank 0 returns")


def _accumulates(timeline: Timeline, counts: Counts, given: str) -> None:
    _reduced(timeline, [count // 2 for count in counts], given)
    inputs = [row["input"] for row in issued(timeline, 0) if row["origin"] == GRADIENTS]
    compare(inputs, [*range(1, counts[0], 2)], given, "the list of inputs in which rank 0 reduces")


report = _repair(_reports, (2, 2), (3, 3, 3))
stop_early = _repair(_stops, (4, 4), (5, 5, 5))
skip_bad = _repair(_skips, (3, 3), (4, 4, 4))
save_all = _repair(_saves, (2, 2), (1, 1, 1))
every_second = _repair(_accumulates, (4, 4), (2, 2, 2))
unused = _repair(lambda timeline, counts, given: _reduced(timeline, counts, given), (3, 3), (2, 2, 2))
