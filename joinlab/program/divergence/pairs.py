"""Chooses the ranks of two sides whose traces are compared, and lists the tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import filterfalse, product

from joinlab.program.divergence import Test
from joinlab.program.divergence.chain import chain_of
from joinlab.program.divergence.comparison import TraceComparison
from joinlab.program.divergence.fork import Fork, line_of
from joinlab.program.divergence.raised import raised_behind
from joinlab.program.divergence.rounds import forks_of_one_rank
from joinlab.program.divergence.search import Search
from joinlab.program.divergence.sides import test_of
from joinlab.program.traces import Trace, TraceStep

TRIED = 4
"""Ranks of a side that are compared with ranks of the other side."""


def tests_of(search: Search, traces: Mapping[int, Trace]) -> list[Test]:
    """The tests at which the traces of these ranks diverge; ranks without a trace are left out.

    Of tests at which ranks of both sides went one way, as each does that has a part of its own,
    another pair of ranks may know better.
    """
    recorded = ([rank for rank in side if rank in traces] for side in search.sides)
    sides = list(filter(None, recorded))
    for closest in _closest(traces, *sides[:2]) if len(sides) > 1 else ():
        tests = _tests_between(search, traces, sides, closest)
        telling = list(filterfalse(partial(_mixes, sides), tests))
        if telling or not tests:
            return telling
    return []


def _mixes(sides: Sequence[Sequence[int]], test: Test) -> bool:
    """Whether ranks of both sides went the same way at a test, and others another."""
    for branch in test["sides"]:
        if all({*branch["ranks"]}.intersection(side) for side in sides[:2]):
            return len(test["sides"]) > 1
    return False


def _tests_between(
    search: Search,
    traces: Mapping[int, Trace],
    sides: Sequence[Sequence[int]],
    closest: tuple[int, ...],
) -> list[Test]:
    """The tests at which the traces of the sides diverge from that of one rank of the other."""
    chains: dict[int, list[Fork]] = {}
    for index, side in enumerate(sides):
        against = closest[0 if index else 1]
        for rank in side:
            chain = chain_of(search, traces, rank, against)
            if chain:
                chains[rank] = chain
    if search.one_call:
        issuer, peer = (side[0] for side in sides)
        deciding = forks_of_one_rank(traces[peer], traces[issuer].steps, search.turns, search.lacks)
        if deciding:
            return [test_of(line_of(fork), {peer: deciding}) for fork in deciding]
    if search.one_call and chains:  # the trace of the rank that issued it shows the fork
        if search.turns and _each_has_a_branch(
            chains[issuer][-1], traces[peer].steps, search.turns[-2:]
        ):
            return []
        chains[peer] = [fork.turned() for fork in chains[issuer]]
    first = chains.get(closest[0], [])
    tests = [test_of(line_of(fork), chains, traces) for fork in first]
    for rank, test in zip(closest, first[-1].tests if first else (), strict=False):
        raised = raised_behind(rank, traces[rank].steps, test)
        if raised is not None:
            tests.append(raised)
    return tests


def _closest(traces: Mapping[int, Trace], *sides: Sequence[int]) -> list[tuple[int, ...]]:
    """A rank of each side, all pairs: first those whose traces have most steps in common, and of
    these those that diverge least often."""

    def likeness(two: tuple[int, ...]) -> tuple[int, int]:
        first, second = (traces[rank] for rank in two)
        pair = TraceComparison(
            () if first.dropped else first.steps, () if second.dropped else second.steps
        )
        pair.part()
        return len(pair.common), -len(pair.forks)

    return sorted(product(*(side[:TRIED] for side in sides)), key=likeness, reverse=True)


def _each_has_a_branch(parts: Fork, steps: Sequence[TraceStep], turns: Sequence[int]) -> bool:
    """Whether the other rank issues its calls in a branch of the same statement: `if a: send(),
    else: recv()`."""
    before = {step.issued: step for step in steps if step.depth == parts.depth}
    inside = parts.statement.lines
    return all(turn in before and before[turn].line in inside for turn in turns)
