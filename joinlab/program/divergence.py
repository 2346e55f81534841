"""Finds where the traces of ranks diverge, by comparing their steps between two calls.

rank 0   all-reduce  8 for x in inputs   7 for epoch ...       its next call is of another input
rank 1   all-reduce  8 for x in inputs   9 net(x).sum()        they diverge at line 8: len(inputs) is 3 and 4

The window begins at the last call that all ranks of a group made from the same line, and ends at
the first one that they did not. Traces that diverge in it and meet again after the statement do not
count: `if rank == 0: print(...)`. If such a statement sets a name that a later test reads, it is
listed first: `if rank == 1: start = 1`.
"""

from __future__ import annotations

import linecache
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, filterfalse, islice, pairwise, product, starmap, takewhile
from operator import and_, eq, gt, ne
from typing import NamedTuple, NotRequired, TypedDict

from joinlab.ops import CallRow
from joinlab.program.branches import (
    Statement,
    guards_around,
    loops_around,
    outcome,
    statement_at,
)
from joinlab.program.traces import COMPREHENSIONS, Plain, Trace, TraceStep, Window

TRIED = 4
"""Ranks of a side that are compared with ranks of the other side."""


class Read(TypedDict):
    """A value that ranks read in a test: that of a name, "len(inputs)" or "loss.shape"."""

    ranks: list[int]
    name: str
    value: Plain


class Branch(TypedDict):
    """Where some ranks went from a test: to `line`, of text `text`.

    how  "line", "in" (a comprehension of the test), "call" (of a function of the program), "resume" (a generator or
         coroutine at its `yield` or `await`), "return", "leave" (the
         block of a `with` that begins at `line`), "raise" (then `text` is the exception's type), "issue": the next call
         came from the test's own line, "over": its comprehension there had ended, "end": its later steps are unknown;
         for an `if` on one line, "block": it ran the block, "past": it did not. "round": it began another round of the
         loop at `line`. Of an exception that the rank raised behind the last test: "caught" in
         line `line`, "swallowed" by the `with` or `finally` of that line, or "in flight" when the rank issued its next
         call from that line, which is in `text` behind the type ("ValueError finally")
    issued  number of calls that the first of the ranks had issued; not in a file of format 1
    """

    ranks: list[int]
    how: str
    line: int
    text: str
    issued: NotRequired[int]


class Test(TypedDict):
    """A line at which the traces of ranks diverge: its file, number and text, the values in it, and
    where each side went."""

    file: str
    line: int
    text: str
    values: list[Read]
    sides: list[Branch]


class Key(TypedDict):
    """The key that selected the data of a call: `dist.all_reduce(m[k])` with k = "loss"."""

    rank: int
    group: str
    seq: int
    name: str
    value: Plain


class Divergence(TypedDict):
    """Where the traces of a run's ranks diverge: `meta["parting"]`.

    tests    the tests: the traces finally diverge at the last one; those before it set the names that it read.
             [] without `why`: all traces are equal
    keys     two calls from one line that met although different keys selected their data; `tests` then led to the keys
    data     the keys of two calls from one line whose data does not fit
    left_out  number of ranks that were not followed
    why      why no trace is known: "pydevd already traces this program"
    """

    tests: list[Test]
    left_out: NotRequired[int]
    keys: NotRequired[list[Key]]
    data: NotRequired[list[Key]]
    why: NotRequired[str]


@dataclass(frozen=True, slots=True)
class Search:
    """Ranks that did not issue the same calls, or calls that were not meant for each other.

    sides    the ranks of each side
    windows  by rank: its steps from the last call that all made from one line to the first that they did not
    positions  by rank: the position of each call of the group among all calls of the rank; {} if join() makes
             calls of its own, since a rank that has issued more calls is then not ahead
    one_call  the first side issued a call that the second has not, and its window ends there
    turns    of one_call: positions of the second side's calls that met such calls, and, in `met`, of these;
             `lacks`: how many more it lacks
    replicas  all calls are alike, but the sides' replicas differ
    """

    sides: Sequence[Sequence[int]]
    windows: Mapping[int, Window]
    positions: Mapping[int, Sequence[int]] = field(default_factory=dict)
    one_call: bool = False
    turns: tuple[int, ...] = ()
    met: tuple[int, ...] = ()
    lacks: int = 0
    replicas: bool = False

    def count(self, rank: int, issued: int) -> int:
        """How many of a rank's first `issued` calls are in the group."""
        return bisect_left(self.positions[rank], issued)


def are_gradients(rows: Iterable[CallRow]) -> bool:
    """Whether these calls average gradients, by DDP."""
    return all("(DDP backward())" in (row["origin"] or "") for row in rows)


# ---------------------------------------------------------------------------------------- which
# lines


class _Fork(NamedTuple):
    """A statement at which two traces diverge, its test and the next step in both
    traces."""

    depth: int
    statement: Statement
    tests: tuple[TraceStep, TraceStep]
    nexts: tuple[TraceStep | None, TraceStep | None]
    behind: tuple[int, int] | None = (
        None  # number of calls that each rank had issued when the traces met again
    )
    alone: tuple[Sequence[TraceStep], ...] = ()  # the steps of each until they met again

    def turned(self) -> _Fork:
        """The same fork with the two ranks exchanged."""
        behind = self.behind and self.behind[::-1]
        return self._replace(
            tests=self.tests[::-1], nexts=self.nexts[::-1], behind=behind, alone=self.alone[::-1]
        )


@dataclass(slots=True)
class _TraceComparison:
    """Compares two traces step by step."""

    one: Sequence[TraceStep]
    other: Sequence[TraceStep]
    last: dict[int, tuple[TraceStep, TraceStep]] = field(
        default_factory=dict
    )  # by depth: the line that both ran last
    forks: list[_Fork] = field(default_factory=list)  # where they diverged, and met again
    depth: int = 0
    common: dict[tuple[int, int], None] = field(
        default_factory=dict
    )  # indices of the steps that both ran, in order

    def part(self) -> _Fork | None:
        """The statement at which they finally diverge, or None."""
        i = j = 0
        while True:
            while (
                i < len(self.one) and j < len(self.other) and self.one[i].key == self.other[j].key
            ):
                self._common(i, j)
                i, j = i + 1, j + 1
            first, second = (
                steps[index] if index < len(steps) else None
                for steps, index in ((self.one, i), (self.other, j))
            )
            if (first is None and second is None) or any(
                step is not None and step.event == "cut" for step in (first, second)
            ):
                return None
            common = self.last.get(self.depth)
            if common is None:
                return None
            fork = self._fork(self.depth, common, (first, second))
            rejoin = self._meet(i, j, fork)
            if rejoin is None:
                return self._resumed(first, second) or fork or self._returned(first, second)
            alone = self.one[i : rejoin[0]], self.other[j : rejoin[1]]
            i, j, whole = rejoin
            if fork is not None:
                before = min(i, len(self.one) - 1), min(j, len(self.other) - 1)
                behind = self.one[before[0]].issued, self.other[before[1]].issued
                self.forks.append(fork._replace(behind=behind, alone=alone))
            if (
                not whole
            ):  # both functions have returned: the caller's next line says whether it matters
                self.depth -= 1

    def _resumed(self, first: TraceStep | None, second: TraceStep | None) -> _Fork | None:
        """Where they diverged last in a generator that each rank resumes at another `yield`."""
        if (
            first is None
            or second is None
            or {first.event, second.event} != {"call"}
            or first.function != second.function
        ):
            return None
        resumed = (
            fork
            for fork in reversed(self.forks)
            if fork.depth == first.depth and fork.tests[0].function == first.function
        )
        return next(resumed, None)

    def _returned(self, *nexts: TraceStep | None) -> _Fork | None:
        """The `return` of one rank, where it leaves the function from the end of a `with` or a
        `finally`."""
        events = {step.event for step in nexts if step is not None and step.depth == self.depth}
        returning = (
            fork
            for fork in reversed(self.forks)
            if fork.depth == self.depth and fork.statement.returns
        )
        if events == {"line", "return"}:
            return next(returning, None)
        return None

    def _common(self, i: int, j: int) -> None:
        first, second = self.one[i], self.other[j]
        self.common[i, j] = None
        self.depth = first.depth - (first.event == "return")
        if (
            first.event == "line"
            and first.values != second.values
            and {taken(first), taken(second)} == {True, False}
        ):
            statement = statement_at(first.file, first.line)
            assert statement is not None
            after = (
                self.one[min(i + 1, len(self.one) - 1)],
                self.other[min(j + 1, len(self.other) - 1)],
            )
            behind = after[0].issued, after[1].issued
            self.forks.append(
                _Fork(first.depth, statement, (first, second), (first, second), behind)
            )
        if first.event in ("line", "call"):  # a generator is called again at its yield
            self.last[first.depth] = first, second
            for deeper in [depth for depth in self.last if depth > first.depth]:
                del self.last[deeper]

    def _fork(
        self,
        depth: int,
        tests: tuple[TraceStep, TraceStep],
        nexts: tuple[TraceStep | None, TraceStep | None],
    ) -> _Fork | None:
        statement = statement_at(tests[0].file, tests[0].line)
        events = [step.event for step in nexts if step is not None]
        if statement is None:
            return None
        # They called different functions, or one called the statement's, and the other had its result.
        called = [step.function for step in nexts if step is not None and step.event == "call"]
        alone = len(called) == 1 and called[0] in statement.reads
        if not (statement.decides or "raise" in events or len(called) == 2 or alone):
            return None
        return _Fork(depth, statement, tests, nexts)

    def _meet(self, i: int, j: int, fork: _Fork | None) -> tuple[int, int, bool] | None:
        """Where both traces continue after the statement: at the same line, or, False, in the
        function's caller.

        If an exception ends the function on one rank, both continue in the function that catches
        it.
        """
        if fork:
            inside = range(fork.statement.first, fork.statement.last + 1)
        else:
            inside = range(0)
        for depth in range(self.depth, 0, -1):
            step, _ = self.last.get(depth, (None, None))
            loops = loops_around(step.file, step.line) if step else []
            first, end = _outside(self.one, i, depth, inside, loops)
            second, other_end = _outside(self.other, j, depth, inside, loops)
            both = first.keys() & second.keys()
            if both:
                return (*min(((first[key], second[key]) for key in both), key=sum), True)
            if depth == self.depth and end is not None and other_end is not None:
                return end + 1, other_end + 1, False
            inside = range(0)
        return None


def taken(step: TraceStep) -> bool | None:
    """Whether the block of an `if` on one line ran, by the values in its test; None if they do not
    decide it."""
    statement = statement_at(step.file, step.line)
    if statement is None or statement.one_line is None:
        return None
    return outcome(statement.one_line, dict(step.values))


def _outside(
    steps: Sequence[TraceStep], start: int, depth: int, inside: range, loops: Sequence[range]
) -> tuple[dict[object, int], int | None]:
    """Where a trace first reaches each line of a function outside of a statement, and where it
    returns.

    `loops` are those around the statement. A loop's lines count as different lines in each round.

    A function that ends by an exception does not return; `__next__` returns by StopIteration.
    """
    reached: dict[object, int] = {}
    rounds = [0] * len(loops)
    raised = False
    for index in range(start, len(steps)):
        step = steps[index]
        if step.depth != depth:
            continue
        if step.event == "return":
            return reached, None if raised else index
        raised = step.event == "raise" and step.values[0][1] != "StopIteration"
        if step.event == "line" and step.line not in inside:
            for n, loop in enumerate(loops):
                if step.line == loop.start:
                    rounds[n:] = [rounds[n] + 1, *[0] * (len(loops) - n - 1)]
            turns = tuple(
                turn for turn, loop in zip(rounds, loops, strict=True) if step.line in loop
            )
            reached.setdefault((step.key, turns), index)
    return reached, None


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
    chains: dict[int, list[_Fork]] = {}
    for index, side in enumerate(sides):
        against = closest[0 if index else 1]
        for rank in side:
            chain = _chain(search, traces, rank, against)
            if chain:
                chains[rank] = chain
    if search.one_call:
        issuer, peer = (side[0] for side in sides)
        deciding = _of_its_own(traces[peer], traces[issuer].steps, search.turns, search.lacks)
        if deciding:
            return [_test(_line_of(fork), {peer: deciding}) for fork in deciding]
    if search.one_call and chains:  # the trace of the rank that issued it shows the fork
        if search.turns and _each_has_a_branch(
            chains[issuer][-1], traces[peer].steps, search.turns[-2:]
        ):
            return []
        chains[peer] = [fork.turned() for fork in chains[issuer]]
    first = chains.get(closest[0], [])
    tests = [_test(_line_of(fork), chains, traces) for fork in first]
    for rank, test in zip(closest, first[-1].tests if first else (), strict=False):
        raised = _raised_behind(rank, traces[rank].steps, test)
        if raised is not None:
            tests.append(raised)
    return tests


class Role(NamedTuple):
    """Ranks with a part of their own in a program, and of their first rank the trace, and the positions
    of the calls of that part, which met those of the other part."""

    ranks: Sequence[int]
    steps: Sequence[TraceStep]
    calls: Sequence[int]

    def loop(self) -> _Fork | None:
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
                return _Fork(head.depth, loop, (head, head), (after, after))
        return None


def rounds_of(roles: Iterable[Role]) -> list[Test]:
    """The loops of two roles, of which one ended and the other goes on; [] if they show no such."""
    by_end: dict[bool, tuple[Role, _Fork]] = {}
    for role in roles:
        fork = role.loop()
        if fork is None or (after := fork.nexts[0]) is None:
            return []
        goes_on = (
            after.depth > fork.depth or fork.statement.first < after.line <= fork.statement.last
        )
        by_end[goes_on and after.event != "return"] = role, fork
    if len(by_end) != 2:
        return []
    (role, fork), (other, other_fork) = by_end[False], by_end[True]
    test = _test(_line_of(fork), {rank: [fork] for rank in role.ranks})
    test["sides"][0]["how"] = "over"
    further = _test(_line_of(other_fork), {rank: [other_fork] for rank in other.ranks})
    further["sides"][0] |= {"how": "round", "line": further["line"]}
    return [
        {
            **test,
            "sides": test["sides"] + further["sides"],
            "values": test["values"] + further["values"],
        }
    ]


def skipped_by(side: Branch, steps: Sequence[TraceStep], test: Test, call: str) -> list[Test]:
    """The later test by which ranks went past a line that has the text `call`, or left a function
    before it: what the others issued on their side of `test`. [] if there is no such line."""
    tested = test["file"], test["line"], side.get("issued")
    indices = [n for n, step in enumerate(steps) if (step.file, step.line, step.issued) == tested]
    if not indices:
        return []
    begin = steps[indices[-1]]
    frame = list(takewhile(lambda step: step.depth >= begin.depth, steps[indices[-1] + 1 :]))
    lines, decided = linecache.getlines(begin.file), None
    for step, after in pairwise(frame):
        if step.depth == begin.depth:
            statement = statement_at(step.file, step.line)
        else:
            statement = None
        if statement is not None and statement.branches and statement.decides:
            decided = _Fork(step.depth, statement, (step, step), (after, after))
            inside = range(statement.first + 1, statement.last + 1)
            guarded = [line for line in inside if lines[line - 1].strip() == call]
            passed = after.line not in inside and not statement.loop
            first_test = statement.first <= begin.line <= statement.last  # it has both sides
            if guarded and passed and not first_test:
                return [_test(_line_of(decided), {rank: [decided] for rank in side["ranks"]})]
    if decided is None or (frame[-1].event, frame[-1].depth) != ("return", begin.depth):
        return []
    if not decided.statement.first <= frame[-1].line <= decided.statement.last:
        return []  # an exception, or a later line, left the function
    indent = lines[begin.line - 1].partition(lines[begin.line - 1].strip())[0]
    for line in lines[decided.statement.last :]:
        if line.strip() == call:
            return [_test(_line_of(decided), {rank: [decided] for rank in side["ranks"]})]
        if line.strip() and not line.startswith(indent):
            break
    return []


def erred_at(steps: Sequence[TraceStep]) -> TraceStep | None:
    """Where the exception was raised that ended a trace; None if none did."""
    raised = None
    for step in takewhile(lambda step: step.event in ("raise", "return"), reversed(steps)):
        if step.event == "raise":
            raised = step
    return raised


def _raised_behind(rank: int, steps: Sequence[TraceStep], test: TraceStep) -> Test | None:
    """The first exception that a rank raised on its way from a test to its next call, unless it
    ended the rank."""
    after = list(
        takewhile(lambda step: step.issued == test.issued, steps[_index_of(test, steps) + 1 :])
    )
    raised = (index for index, step in enumerate(after) if step.event == "raise")
    first = next(
        (index for index in raised if index and after[index].values[0][1] != "StopIteration"), None
    )
    if first is None:
        fate = None
    else:
        fate = _fate(after[first], after[first + 1 :], len(after) < len(steps))
    if first is None or fate is None:
        return None
    step = after[first]
    kind = str(step.values[0][1])
    ending, line, location = fate
    side: Branch = {
        "ranks": [rank],
        "how": ending,
        "line": line,
        "text": f"{kind} {location}".strip(),
        "issued": step.issued,
    }
    text = linecache.getline(step.file, step.line).strip()
    return {"file": step.file, "line": step.line, "text": text, "values": [], "sides": [side]}


def _fate(
    raised: TraceStep, after: Sequence[TraceStep], goes_on: bool
) -> tuple[str, int, str] | None:
    """What became of an exception: how, the line, and where that is; None if it ended the rank.

    It is in flight in `finally`, in `__exit__` and in a generator that `with` resumes, however many
    lines they run. A function that it leaves is followed by a "raise" in its caller, unless a
    `return` in `finally` swallowed it. `goes_on`: the rank issues a call behind these steps.
    """
    current, passed, handler = raised, raised.line, None
    for step in after:
        if step.depth > current.depth:
            continue
        if step.event == "call" and handler is None:  # from outside the program, as atexit does
            return None
        if handler is not None and (step.depth < current.depth or step.line not in handler):
            return "caught", handler.start, ""
        text = linecache.getline(step.file, step.line).strip()
        if step.event == "raise" or (handler is not None and text.startswith("raise")):
            current, passed, handler = step, step.line, None  # a bare `raise` is no event
            continue
        if step.depth < current.depth:
            return "swallowed", passed, ""
        if step.event != "line" or handler is not None:
            continue
        guards = guards_around(current.file, current.line)
        inside = (lines for guard in guards for lines in guard.handlers if step.line in lines[1:])
        handler = next(inside, None)
        if handler is not None:
            if text.startswith("raise"):
                current, handler = step, None
        elif any(step.line in lines for guard in guards for lines in guard.cleanup):
            passed = step.line
        else:
            return "swallowed", passed, ""
    if handler is not None:
        return "caught", handler.start, ""
    last = after[-1] if after else raised
    if not goes_on or last.event != "line" or last is current:
        return None
    return "in flight", last.line, "finally" if last.depth == current.depth else last.function


def _closest(traces: Mapping[int, Trace], *sides: Sequence[int]) -> list[tuple[int, ...]]:
    """A rank of each side, all pairs: first those whose traces have most steps in common, and of
    these those that diverge least often."""

    def likeness(two: tuple[int, ...]) -> tuple[int, int]:
        first, second = (traces[rank] for rank in two)
        pair = _TraceComparison(
            () if first.dropped else first.steps, () if second.dropped else second.steps
        )
        pair.part()
        return len(pair.common), -len(pair.forks)

    return sorted(product(*(side[:TRIED] for side in sides)), key=likeness, reverse=True)


def _each_has_a_branch(parts: _Fork, steps: Sequence[TraceStep], turns: Sequence[int]) -> bool:
    """Whether the other rank issues its calls in a branch of the same statement: `if a: send(),
    else: recv()`."""
    before = {step.issued: step for step in steps if step.depth == parts.depth}
    inside = range(parts.statement.first, parts.statement.last + 1)
    return all(turn in before and before[turn].line in inside for turn in turns)


def _turn(step: TraceStep, after: TraceStep | None) -> object:
    """Where a rank went from a test."""
    block = taken(step)
    if block is None:
        return after and after.key
    return block


def _of_its_own(
    trace: Trace, peer: Sequence[TraceStep], turns: Sequence[int], lacks: int
) -> list[_Fork]:
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
            (_turn(steps[index], follow[index]), leads)
            for index, leads in zip(indices, led, strict=True)
        }
        never_came_back = (
            misses == 1 and not led[-1]
        )  # and never came back, however many such calls it lacks
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
                _Fork(
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
            guards = list(filter(partial(_guards, step), guards))
    if len(guards) != 1:
        return []
    guard, two = guards[0], (steps, steps)
    names = {*guard.statement.names}
    return [*_set_before(best[: best.index(guard)], names, guard.tests, two), guard]


def _guards(step: TraceStep, fork: _Fork) -> bool:
    """Whether a step ran a line in the block of a statement."""
    lines = range(fork.statement.first + 1, fork.statement.last + 1)
    return step.file == fork.tests[0].file and step.line in lines


def _behind(
    until: tuple[Iterable[TraceStep], Iterable[TraceStep]],
    first: Sequence[TraceStep],
    second: Sequence[TraceStep],
) -> _TraceComparison:
    """A comparison of two traces that begins where both ranks are after the steps in `until`, one
    sequence per rank."""
    common: dict[int, tuple[TraceStep, TraceStep]] = {}
    for first_step, second_step in zip(*map(_standing, until), strict=False):
        if first_step.key != second_step.key:
            break
        common[first_step.depth] = first_step, second_step
    return _TraceComparison(first, second, common, depth=max(common, default=0))


def _chain(search: Search, traces: Mapping[int, Trace], rank: int, peer: int) -> list[_Fork]:
    """The test where a rank's trace leaves another's, after the tests whose statements set the
    names that it read.

    The traces are compared twice. `whole`, from their beginnings, has every statement at which they
    diverged and met again: one of these may have set a name. `pair`, in the windows alone, finds where
    they diverge for good, since ranks may have been in other rounds of a loop long before:

        rank 0   3 if rank == 0:   4 start = 1   6 for epoch ...   | 9 if start:   10 all_reduce
        rank 1   3 if rank == 0:                 6 for epoch ...   | 9 if start:   12 barrier
                 whole.forks: line 3, which set what line 9 reads      pair.part(): line 9
    """
    trace, peer_trace = traces[rank], traces[peer]
    steps = trace.steps, peer_trace.steps
    if trace.dropped or peer_trace.dropped:
        whole = _TraceComparison((), ())
    else:
        whole = _TraceComparison(*steps)
    fork = whole.part()
    if search.replicas:
        for number, fork in enumerate(whole.forks):
            if _changes_one_replica(_held(fork, trace), _held(fork.turned(), peer_trace)):
                return [*_setters(whole.forks[:number], fork, steps), fork]
        stepped = set[str]()  # optimizers, whose state is in no replica
        for statement in _statements(trace.steps):
            stepped.update(re.findall(r"([\w.]+)\.step\(", statement.text))
        return _changed(whole.forks, stepped, ())
    pair = _behind((trace.before, peer_trace.before), trace.within, peer_trace.within)
    pair.forks += whole.forks
    begin = len(trace.before) - 1, len(peer_trace.before) - 1
    if begin not in whole.common and any(map(gt, next(reversed(whole.common), begin), begin)):
        pair = whole  # the windows begin in different rounds of a loop
    elif pair.last or not trace.before:  # both are at one line, or else join() shadowed a call
        fork = pair.part()
    forks = whole.forks or pair.forks
    if search.positions:  # one issued more calls than the other, and has been ahead since
        ahead = [
            fork.behind and search.count(rank, fork.behind[0]) - search.count(peer, fork.behind[1])
            for fork in forks
        ]
        since = next((n for n in range(len(forks), 0, -1) if not ahead[n - 1]), 0)
        if since < len(forks):
            fork = forks[since]
            forks = forks[:since]
    if fork is None:
        # Both ran a line from which only one issued a call: find the statement around it, or the
        # one that set a name.
        tests = pair.last.get(pair.depth)
        line = tests and statement_at(tests[0].file, tests[0].line)
        if tests and line:
            reads = _made_of(line.reads, tests, steps)
        else:
            reads = set()
        if tests and line:
            inside = [fork for fork in forks if _decided(fork, tests[0], trace.steps, reads)]
            setters = _set_before(forks, reads, tests, steps, line=line.first)
            causes = [*setters, *inside[-1:]] or _changed(forks, reads, tests)
            causes.sort(key=forks.index, reverse=True)
            if causes:
                cause = causes[0]
                names = {*cause.statement.names}
                return [*_set_before(forks[: forks.index(cause)], names, cause.tests, steps), cause]
        return []
    setters, test = _setters(forks, fork, steps), fork.tests[0]
    if not setters:
        turned = fork.turned()
        values = {*test.values, *_returned(fork, trace)}
        if values == {*turned.tests[0].values, *_returned(turned, peer_trace)}:
            head = (
                earlier
                for earlier in reversed(forks)
                if _decided(earlier, test, trace.steps, set())
            )
            setters = [*islice(head, 1)]
    return [*setters, fork]


def _decided(fork: _Fork, last: TraceStep, trace: Sequence[TraceStep], reads: Set[str]) -> bool:
    """Whether the ranks diverged in a function that the line of the step `last` called, or a `with`
    around it, or a line that sets what it reads, and the function returned accordingly."""
    before = reversed(trace[: _index_of(fork.tests[0], trace)])
    caller = next((step for step in before if step.depth < fork.depth), last)
    statement = statement_at(caller.file, caller.line)
    return (
        (fork.statement.returns or _shapes_result(fork, trace))
        and caller.event == "line"
        and (caller.depth, caller.function) == (last.depth, last.function)
        and statement is not None
        and (
            caller.line == last.line
            or bool(statement.stores & reads)
            or (statement.text.startswith("with ") and last.line in _block(statement))
        )
    )


def _block(statement: Statement) -> range:
    """The lines of a statement's block."""
    return range(statement.first + 1, statement.last + 1)


def _shapes_result(fork: _Fork, trace: Sequence[TraceStep]) -> bool:
    """Whether the statement, or a rank alone, set what the function's `return` reads."""
    for step in trace[_index_of(fork.tests[0], trace) :]:
        if step.depth == fork.depth and step.event == "return":
            break
    statement = statement_at(step.file, step.line)
    if step.event == "return" and step.function == "__init__":
        changed = {*_sets(fork)}.union(*(statement.calls for statement in _alone(fork)))
        return any(name.partition(".")[0] == "self" for name in changed)
    if step.event != "return" or statement is None or not statement.text.startswith("return"):
        return False
    return bool(_sets(fork) & _made_of(statement.reads, [step], [trace]))


def _held(fork: _Fork, trace: Trace) -> list[tuple[int, int]]:
    """Checksums of the first rank's replica at the statement, and where the traces met again."""
    test = fork.tests[0]
    *_, last = (test, *chain(*fork.alone[:1]))
    *_, after = (last, *trace.steps[_index_of(last, trace.steps) + 1 :][:1])
    return [trace.held[id(test)], trace.held[id(after)]]


def _changes_one_replica(own: Sequence[tuple[int, int]], peer: Sequence[tuple[int, int]]) -> bool:
    """Whether two replicas, or their gradients, were equal at a statement, and differ behind it: of
    each what `_held` says."""
    (before, after), (peer_before, peer_after) = own, peer
    return any(map(and_, map(eq, before, peer_before), map(ne, after, peer_after)))


def _set_before(
    forks: Sequence[_Fork],
    reads: Set[str],
    tests: Sequence[TraceStep],
    traces: Sequence[Sequence[TraceStep]],
    inside: Iterable[TraceStep] = (),
    line: int = 0,
) -> list[_Fork]:
    """The last statement at which they diverged earlier that set one of the names that these tests, and
    steps in functions that they call, read; or that contains this line. What was set anew since does
    not count, nor, where the object that has an attribute is known, its name alone."""
    parts = {
        part for name in reads for part in name.replace("]", "").split("[")
    }  # "counts[rank]" reads two names
    owned = set[tuple[int, str]]()
    for step in inside:
        owned |= _owned(step, parts)
    for test, trace in zip(tests, traces, strict=True):
        unread = parts  # "worker.active" is another object's in each round of a loop over workers
        for step in _frame(test, trace):
            owned |= _owned(step, unread)
            unread = unread.difference(name for name, _ in step.owners)
    if owned:
        parts = {part for part in parts if "." not in part}
    for fork in reversed(forks):
        names = {
            name
            for name, part in product(_sets(fork), parts)
            if name == part or name.startswith(f"{part}.")
        }
        still = partial(_still, fork, names, owned)
        if fork.statement.first <= line <= fork.statement.last or any(
            map(still, range(len(tests)), tests, traces)
        ):
            return [fork]
    return []


def _still(
    fork: _Fork,
    names: Set[str],
    owned: Set[tuple[int, str]],
    which: int,
    test: TraceStep,
    trace: Sequence[TraceStep],
) -> bool:
    """Whether a rank, the first or the second, set one of these names or attributes at a statement,
    or before the traces met again, and not anew until a test."""
    ran = [fork.tests[which], *chain(*fork.alone[which : which + 1])]
    owned = owned & set[tuple[int, str]]().union(*(_sets_owned(fork, step) for step in ran))
    for step in trace[_index_of(ran[-1], trace) + 1 : _index_of(test, trace)]:
        statement = statement_at(step.file, step.line)
        if statement is not None and step.event == "line":
            owned = owned - _owned(step, statement.replaces)
            if (step.depth, step.function) == (test.depth, test.function):
                names = names - statement.replaces
    return bool(names or owned)


def _owned(step: TraceStep, names: Set[str]) -> set[tuple[int, str]]:
    """The attributes of a step that have these names: the `id` of the object, and the attribute."""
    return {(owner, name.rpartition(".")[2]) for name, owner in step.owners if name in names}


def _sets_owned(fork: _Fork, step: TraceStep) -> set[tuple[int, str]]:
    """The attributes that a step set, also in a function that the statement called."""
    statement = statement_at(step.file, step.line)
    if statement is None:
        return set()
    has_block = statement.branches and statement.decides  # whose lines are steps, if they ran
    return _owned(step, frozenset() if has_block and step not in fork.tests else statement.stores)


def _frame(test: TraceStep, trace: Sequence[TraceStep]) -> list[TraceStep]:
    """The steps of the function's run until a test, the last one first, without those of functions
    that it called."""
    before = list[TraceStep]()
    for step in reversed(trace[: _index_of(test, trace) + 1]):
        if step.depth == test.depth:
            before.append(step)
        if step.depth < test.depth or (step.event == "call" and step.depth == test.depth):
            break
    return before


def _changed(forks: Sequence[_Fork], reads: Set[str], last: Iterable[TraceStep]) -> list[_Fork]:
    """The only statement at which they diverged earlier, if one of them called a method there of one of
    these objects, or of one of which the `last` steps do, which may do more later: `if debug:
    net.register_forward_hook(sync)`. []: another branch may be the cause, too."""
    forks = [fork for fork in forks if fork.statement.branches]
    if len({fork.statement for fork in forks}) != 1:
        return []
    fork = forks[-1]
    calls = fork.statement.calls.union(*(statement.calls for statement in _alone(fork)))
    changed = _called(chain(*fork.alone))
    return [fork] if calls & reads or changed & _called(last) else []


def _called(steps: Iterable[TraceStep]) -> set[int]:
    """The `id` of each object of which these steps call a method."""
    return {id_ for step in steps for name, id_ in step.owners if name.endswith("()")}


def _alone(fork: _Fork) -> list[Statement]:
    """The statements that one of the ranks ran before their traces met again."""
    steps = (step for steps in fork.alone for step in steps if step.depth == fork.depth)
    return _statements(steps)


def _sets(fork: _Fork) -> Set[str]:
    """The names that the statement sets, or one of the ranks before their traces met again: `if skip:
    continue`."""
    return fork.statement.stores.union(*(statement.stores for statement in _alone(fork)))


def _standing(steps: Iterable[TraceStep]) -> list[TraceStep]:
    """The line that each frame of the program is at after these steps, outermost first."""
    stack: dict[int, TraceStep] = {}
    for step in steps:
        if step.event == "line":
            stack[step.depth] = step
        if step.event in ("line", "call", "return"):
            for deeper in [
                depth for depth in stack if depth > step.depth - (step.event == "return")
            ]:
                del stack[deeper]
    return [stack[depth] for depth in sorted(stack)]


def _setters(
    forks: Sequence[_Fork], fork: _Fork, traces: Sequence[Sequence[TraceStep]]
) -> list[_Fork]:
    """The last statement at which they diverged earlier and that set what the test reads, itself or
    in its functions.

    A name may pass through assignments: `epoch = start`. A loop over the same values on both ranks
    explains nothing, nor does a name with one value on both, and that a conditional expression gave
    ranks unlike values not why a call raised.
    """
    branches, raises = [], any(step is not None and step.event == "raise" for step in fork.nexts)
    for earlier in forks:
        first, second = earlier.tests
        same_loop = earlier.statement.loop and () != first.values == second.values
        sets_it = earlier.statement.branches or not raises
        if sets_it and earlier.statement != fork.statement and not same_loop:
            branches.append(earlier)
    reads = {*fork.statement.names, *(() if fork.statement.decides else fork.statement.reads)}
    reads -= {name for name, _ in {*fork.tests[0].values}.intersection(fork.tests[1].values)}
    inside = list[TraceStep]()
    for test, trace in zip(fork.tests, traces, strict=True) if branches else ():
        after = trace[_index_of(test, trace) + 1 :]
        called = list(takewhile(lambda step: step.depth > fork.depth, after))
        inside += called
        for statement in _statements(called):
            if statement.decides or statement.returns:
                reads.update(statement.names)
    if branches:
        made_of = _made_of(reads, fork.tests, traces)
        return _set_before(branches, made_of, fork.tests, traces, inside)
    return []


def _made_of(
    reads: Set[str], tests: Iterable[TraceStep], traces: Iterable[Sequence[TraceStep]]
) -> Set[str]:
    """These names, and those from which the function's earlier statements made them."""
    for test, trace in zip(tests, traces, strict=True):
        before = _statements(
            step for step in trace[: _index_of(test, trace)] if step.function == test.function
        )
        while (
            sources := {
                name for statement in before if statement.stores & reads for name in statement.reads
            }
            - reads
        ):
            reads = reads | sources
    return reads


def _index_of(test: TraceStep, trace: Sequence[TraceStep]) -> int:
    return next(index for index, step in enumerate(trace) if step is test)


def _statements(steps: Iterable[TraceStep]) -> list[Statement]:
    """The statements that these steps ran, each once."""
    lines = dict.fromkeys((step.file, step.line) for step in steps if step.event == "line")
    return list(filter(None, starmap(statement_at, lines)))


def _line_of(fork: _Fork) -> tuple[str, int]:
    return fork.tests[0].file, fork.statement.first


def _returned(fork: _Fork, trace: Trace) -> Iterator[tuple[str, Plain]]:
    """The values in the `return` of each function of the program that the test called; of one that
    the head of a `for` names, when its loop began."""
    steps, test, text = trace.steps, fork.tests[0], fork.statement.text
    last = begin = _index_of(test, steps)
    lines = range(fork.statement.first, fork.statement.last + 1)
    for index in range(last, -1, -1) if text.startswith("for ") else ():
        step = steps[index]
        if step.depth < test.depth or (step.depth == test.depth and step.line not in lines):
            break
        if step.depth == test.depth and step.line == fork.statement.first:
            begin = index
    for start in sorted({begin, last}):
        for step in takewhile(lambda step: step.depth > test.depth, steps[start + 1 :]):
            statement = statement_at(step.file, step.line)
            # "for x in filter(f, data)" calls f in each round
            named = step.function in ("__iter__", "__len__") or re.search(
                rf"\b{re.escape(step.function)}[(:]", text
            )
            if (
                step.depth == test.depth + 1
                and statement
                and statement.text.startswith("return")
                and (start == last or named)
            ):
                yield from step.values


def _test(
    line: tuple[str, int], chains: Mapping[int, list[_Fork]], traces: Mapping[int, Trace] = {}
) -> Test:
    values: dict[tuple[str, Plain], list[int]] = {}
    sides: dict[tuple[str, int, str], list[int]] = {}
    issued: dict[tuple[str, int, str], int] = {}
    text = ""
    for rank, forks in chains.items():
        for fork in forks:
            if _line_of(fork) == line:
                text = fork.statement.text
                returned = _returned(fork, traces[rank]) if rank in traces else ()
                raised = [step for step in fork.nexts if step is not None and step.event == "raise"]
                tests = fork.statement.decides or fork.statement.one_line is not None
                explains = tests or not raised  # why a call raised, no value tells
                for read in dict.fromkeys((*fork.tests[0].values * explains, *returned)):
                    values.setdefault(read, []).append(rank)
                sides.setdefault(_went(fork), []).append(rank)
                issued.setdefault(_went(fork), fork.tests[0].issued)
    return {
        "file": line[0],
        "line": line[1],
        "text": text,
        "values": [
            {"ranks": sorted(ranks), "name": name, "value": value}
            for (name, value), ranks in values.items()
        ],
        "sides": [
            {
                "ranks": sorted(ranks),
                "how": went[0],
                "line": went[1],
                "text": went[2],
                "issued": issued[went],
            }
            for went, ranks in sides.items()
        ],
    }


def _went(fork: _Fork) -> tuple[str, int, str]:
    step, test = fork.nexts[0], fork.tests[0]
    if step is test:
        return "block" if taken(step) else "past", test.line, fork.statement.text
    inside, peer_inside = (
        after and after.issued > before.issued
        for before, after in zip(fork.tests, fork.nexts, strict=True)
    )
    if step is None or (inside and not peer_inside and step.event != "raise"):
        # from another line of the statement: `match rank:`, and behind it `case 0: barrier()`
        how = "issue" if test.line == fork.statement.first else "line"
        return how, test.line, linecache.getline(test.file, test.line).strip()
    if step.event == "raise":
        return "raise", step.line, str(step.values[0][1])
    text = linecache.getline(step.file, step.line).strip()
    if step.event in ("return", "call") and step.function in COMPREHENSIONS:
        if step.event == "call" and not fork.statement.first <= step.line <= fork.statement.last:
            return "line", step.line, text
        return "over" if step.event == "return" else "in", test.line, fork.statement.text
    around = statement_at(step.file, step.line)
    if (
        step.event == "line"
        and around
        and not around.loop
        and step.line == around.first < test.line <= around.last
    ):
        return "leave", step.line, around.text
    how = step.event
    if step.depth == fork.depth and step.event == "line":
        how = "line"
    elif step.event == "call" and not _BEGINS_CODE.search(text):
        how = "resume"
    return how, step.line, text


_BEGINS_CODE = re.compile(r"^(@|(async )?def |class )|\blambda\b")
"""The first line of a function or class."""
