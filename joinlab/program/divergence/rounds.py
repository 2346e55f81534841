"""Tests and loops of one rank that led it to its calls, as often as they should or not."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from joinlab.program.branches import Statement, statement_at
from joinlab.program.divergence import Test
from joinlab.program.divergence.comparison import taken
from joinlab.program.divergence.fork import Fork, line_of
from joinlab.program.divergence.setters import set_before
from joinlab.program.divergence.sides import test_of
from joinlab.program.traces import Trace, TraceStep


def forks_of_one_rank(
    trace: Trace, peer: Sequence[TraceStep], turns: Sequence[int], lacks: int
) -> list[Fork]:
    """The one test that led the rank to each call of `turns`, and went the other way as often as it
    `lacks` such calls, or once and for good; of several, the one around these calls, behind one that
    sets what it reads.

    Without such a test, the one loop that led to each of these calls until it ended, if the peer
    ran more rounds.
    """
    steps, follow = trace.steps, [*trace.steps[1:], None]
    lines: dict[object, list[int]] = {}
    for index, step in enumerate(() if trace.dropped else steps):
        if step.event == "line":
            lines.setdefault(step.key, []).append(index)
    fitting = []
    for key, indices in lines.items():
        statement = statement_at(steps[indices[0]].file, steps[indices[0]].line)
        issued = (*(steps[index].issued for index in indices), steps[-1].issued)
        led = []
        for before, after in pairwise(bisect_left(turns, count) for count in issued):
            led.append(before < after)
        rounds, misses = led.count(True), led.count(False)
        if statement is None or not statement.decides or not rounds or not misses:
            continue
        went = {
            (_went_on_at(steps[index], follow[index]), leads)
            for index, leads in zip(indices, led, strict=True)
        }
        # it never came back, however many such calls it lacks
        never_came_back = misses == 1 and not led[-1]
        peer_came_more = sum(step.key == key for step in peer) > rounds
        missed, led_step = indices[led.index(False)], indices[led.index(True)]
        if statement.loop:
            # Its head must not issue such a call itself, as that of a loop over a batch's works does.
            behind = follow[led_step]
            by_head = behind is None or behind.issued > turns[0]
            fits = misses == 1 and peer_came_more and not by_head
        else:
            fits = misses == lacks or never_came_back
        if fits and len(went) == len(dict(went)):
            fitting.append(
                Fork(
                    steps[missed].depth,
                    statement,
                    (steps[missed], steps[led_step]),
                    (follow[missed], follow[led_step]),
                )
            )
    best = [fork for fork in fitting if not fork.statement.loop] or fitting
    if len(best) < 2:
        return best
    guards = best
    for step, next_step in pairwise(steps):
        if step.issued in turns and next_step.issued > step.issued:  # the line of such a call
            guards = list(filter(partial(_runs_in, step), guards))
    if len(guards) != 1:
        return []
    guard, two = guards[0], (steps, steps)
    names = {*guard.statement.names}
    return [*set_before(best[: best.index(guard)], names, guard.tests, two), guard]


def _runs_in(step: TraceStep, fork: Fork) -> bool:
    """Whether a step ran a line in the block of a statement."""
    return step.file == fork.tests[0].file and step.line in fork.statement.block


def _went_on_at(step: TraceStep, after: TraceStep | None) -> object:
    """Where a rank went from a test."""
    block = taken(step)
    if block is None:
        return after and after.key
    return block


class Role(NamedTuple):
    """Ranks with a part of their own in a program, and of their first rank the trace, and the positions
    of the calls of that part, which met those of the other part."""

    ranks: Sequence[int]
    steps: Sequence[TraceStep]
    calls: Sequence[int]

    def loop(self) -> Fork | None:
        """The innermost loop of which each round led to one of the calls, behind the last of them."""
        heads: dict[Statement, list[int]] = {}
        for index, step in enumerate(self.steps[:-1]):
            if step.event == "line":
                statement = statement_at(step.file, step.line)
            else:
                statement = None
            if statement is not None and statement.loop:
                heads.setdefault(statement, []).append(index)
        count = len(self.calls)
        for loop, indices in reversed(heads.items()):
            led = [bisect_left(self.calls, self.steps[index].issued) for index in indices]
            if led[: count + 1] == list(range(count + 1)):
                head, after = self.steps[indices[count]], self.steps[indices[count] + 1]
                return Fork(head.depth, loop, (head, head), (after, after))
        return None


def rounds_of(roles: Iterable[Role]) -> list[Test]:
    """The loops of two roles, of which one ended and the other goes on; [] if they show no such."""
    by_end: dict[bool, tuple[Role, Fork]] = {}
    for role in roles:
        fork = role.loop()
        if fork is None or (after := fork.nexts[0]) is None:
            return []
        goes_on = after.depth > fork.depth or after.line in fork.statement.block
        by_end[goes_on and after.event != "return"] = role, fork
    if len(by_end) != 2:
        return []
    (role, fork), (other, other_fork) = by_end[False], by_end[True]
    test = test_of(line_of(fork), {rank: [fork] for rank in role.ranks})
    test["sides"][0]["how"] = "over"
    further = test_of(line_of(other_fork), {rank: [other_fork] for rank in other.ranks})
    further["sides"][0] |= {"how": "round", "line": further["line"]}
    return [
        {
            **test,
            "sides": test["sides"] + further["sides"],
            "values": test["values"] + further["values"],
        }
    ]
