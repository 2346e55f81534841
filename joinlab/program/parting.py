"""Finds where the ways of ranks part, by comparing their steps between two calls.

rank 0   all-reduce  8 for x in inputs   7 for epoch ...       its next call is of another input
rank 1   all-reduce  8 for x in inputs   9 net(x).sum()        they part at line 8: len(inputs) is 3 and 4

The window begins at the last call that all ranks of a group made from the same place, and ends at
the first one that they did not. Ways that part in it and meet again after the statement do not
count: `if rank == 0: print(...)`. If such a statement sets a name that a later test reads, it is
listed first: `if rank == 1: start = 1`.
"""

from __future__ import annotations

import linecache
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import chain, pairwise, product, takewhile
from operator import gt
from typing import NamedTuple, NotRequired, TypedDict

from joinlab.ops import CallRow
from joinlab.program.branches import (
    Statement,
    guards_around,
    loops_around,
    outcome,
    statement_at,
)
from joinlab.program.ways import COMPREHENSIONS, Plain, Step, Way, Window

TRIED = 4
"""Ranks of a side that are compared with ranks of the other side."""


class Read(TypedDict):
    """A value that ranks read in a test: that of a name, "len(inputs)" or "loss.shape"."""

    ranks: list[int]
    name: str
    value: Plain


class Side(TypedDict):
    """Where some ranks went from a test: to `line`, of text `text`.

    how  "line", "call" (of a function of the program), "return", "leave" (the block of a `with` that begins at `line`),
         "raise" (then `text` is the exception's type), "issue": the next call came from the test's own line, "over":
         its comprehension there had ended, "end": its later steps are unknown; for an `if` on one line, "block": it
         ran the block, "past": it did not. Of an exception that the rank raised behind the last test: "caught" in
         line `line`, "swallowed" by the `with` or `finally` of that line, or "in flight" when the rank issued its next
         call from that line, which is in `text` behind the type ("ValueError finally")
    issued  number of calls that the first of the ranks had issued; left out by joinlab before 0.2
    """

    ranks: list[int]
    how: str
    line: int
    text: str
    issued: NotRequired[int]


class Test(TypedDict):
    """A line at which the ways of ranks part: its file, number and text, the values in it, and
    where each side went."""

    file: str
    line: int
    text: str
    values: list[Read]
    sides: list[Side]


class Key(TypedDict):
    """The key that selected the data of a call: `dist.all_reduce(m[k])` with k = "loss"."""

    rank: int
    group: str
    seq: int
    name: str
    value: Plain


class Parting(TypedDict):
    """Where the ways of a run's ranks part: `meta["parting"]`.

    tests    the tests: the ways finally part at the last one; those before it set the names that it read. [] without
             `why`: all ranks went the same way
    keys     two calls from one line that met although different keys selected their data; `tests` then led to the keys
    left_out  number of ranks that were not followed
    why      why no way is known: "pydevd already traces this program"
    """

    tests: list[Test]
    left_out: NotRequired[int]
    keys: NotRequired[list[Key]]
    why: NotRequired[str]


@dataclass(frozen=True, slots=True)
class Apart:
    """Ranks that did not issue the same calls, or calls that were not meant for each other.

    sides    the ranks of each side
    windows  by rank: its steps from the last call that all made from one place to the first that they did not
    places   by rank: the place of each call of the group among all calls of the rank; {} if join() makes calls of its
             own, since a rank that has issued more calls is then not ahead
    one_call  the first side issued a call that the second has not, and its window ends there
    turns    of one_call: places of the second side's calls that met such calls; `lacks`: how many more it lacks
    steps    all calls are alike, but the sides' optimizers made different numbers of steps
    """

    sides: Sequence[Sequence[int]]
    windows: Mapping[int, Window]
    places: Mapping[int, Sequence[int]] = field(default_factory=dict)
    one_call: bool = False
    turns: tuple[int, ...] = ()
    lacks: int = 0
    steps: bool = False

    def count(self, rank: int, issued: int) -> int:
        """How many of a rank's first `issued` calls are in the group."""
        return bisect_left(self.places[rank], issued)


def are_gradients(rows: Iterable[CallRow]) -> bool:
    """Whether these calls average gradients, by DDP."""
    return all("(DDP backward())" in (row["origin"] or "") for row in rows)


# ---------------------------------------------------------------------------------------- which
# lines


class _At(NamedTuple):
    """A statement at which two ways part, and the places of its test and of the next step in both
    ways."""

    depth: int
    statement: Statement
    tests: tuple[Step, Step]
    nexts: tuple[Step | None, Step | None]
    behind: tuple[int, int] | None = (
        None  # number of calls that each rank had issued when the ways met again
    )
    alone: tuple[Sequence[Step], ...] = ()  # the steps of each until they met again

    def turned(self) -> _At:
        """The same fork with the two ranks exchanged."""
        behind = self.behind and self.behind[::-1]
        return self._replace(
            tests=self.tests[::-1], nexts=self.nexts[::-1], behind=behind, alone=self.alone[::-1]
        )


@dataclass(slots=True)
class _Pair:
    """Compares two ways step by step."""

    one: Sequence[Step]
    other: Sequence[Step]
    last: dict[int, tuple[Step, Step]] = field(
        default_factory=dict
    )  # by depth: the line that both ran last
    met: list[_At] = field(default_factory=list)  # where they parted, and met again
    depth: int = 0
    common: dict[tuple[int, int], None] = field(
        default_factory=dict
    )  # places of the steps that both ran, in order

    def part(self) -> _At | None:
        """The statement at which they finally part, or None."""
        i = j = 0
        while True:
            while (
                i < len(self.one) and j < len(self.other) and self.one[i].key == self.other[j].key
            ):
                self._common(i, j)
                i, j = i + 1, j + 1
            one, other = (
                steps[at] if at < len(steps) else None
                for steps, at in ((self.one, i), (self.other, j))
            )
            if (one is None and other is None) or any(
                step is not None and step.event == "cut" for step in (one, other)
            ):
                return None
            here = self.last.get(self.depth)
            if here is None:
                return None
            found = self._at(self.depth, here, (one, other))
            again = self._meet(i, j, found)
            if again is None:
                return self._resumed(one, other) or found or self._returned(one, other)
            alone = self.one[i : again[0]], self.other[j : again[1]]
            i, j, whole = again
            if found is not None:
                before = min(i, len(self.one) - 1), min(j, len(self.other) - 1)
                behind = self.one[before[0]].issued, self.other[before[1]].issued
                self.met.append(found._replace(behind=behind, alone=alone))
            if (
                not whole
            ):  # both functions have returned: the caller's next line says whether it matters
                self.depth -= 1

    def _resumed(self, one: Step | None, other: Step | None) -> _At | None:
        """Where they parted last in a generator that each rank resumes at another `yield`."""
        if (
            one is None
            or other is None
            or {one.event, other.event} != {"call"}
            or one.function != other.function
        ):
            return None
        held = (
            at
            for at in reversed(self.met)
            if at.depth == one.depth and at.tests[0].function == one.function
        )
        return next(held, None)

    def _returned(self, *nexts: Step | None) -> _At | None:
        """The `return` of one rank, where it leaves the function from the end of a `with` or a
        `finally`."""
        events = {step.event for step in nexts if step is not None and step.depth == self.depth}
        held = (at for at in reversed(self.met) if at.depth == self.depth and at.statement.returns)
        return next(held, None) if events == {"line", "return"} else None

    def _common(self, i: int, j: int) -> None:
        one, other = self.one[i], self.other[j]
        self.common[i, j] = None
        self.depth = one.depth - (one.event == "return")
        if one.event == "line" and one.values != other.values and taken(one) != taken(other):
            statement = statement_at(one.file, one.line)
            assert statement is not None
            after = (
                self.one[min(i + 1, len(self.one) - 1)],
                self.other[min(j + 1, len(self.other) - 1)],
            )
            behind = after[0].issued, after[1].issued
            self.met.append(_At(one.depth, statement, (one, other), (one, other), behind))
        if one.event in ("line", "call"):  # a generator is called again at its yield
            self.last[one.depth] = one, other
            for deeper in [depth for depth in self.last if depth > one.depth]:
                del self.last[deeper]

    def _at(
        self, depth: int, here: tuple[Step, Step], nexts: tuple[Step | None, Step | None]
    ) -> _At | None:
        statement = statement_at(here[0].file, here[0].line)
        events = [step.event for step in nexts if step is not None]
        other = "raise" in events or events == ["call", "call"]  # they called different functions
        if statement is None or not (statement.decides or other):
            return None
        return _At(depth, statement, here, nexts)

    def _meet(self, i: int, j: int, found: _At | None) -> tuple[int, int, bool] | None:
        """Where both ways continue after the statement: at the same line, or, False, in the
        function's caller.

        If an exception ends the function on one rank, both continue in the function that catches
        it.
        """
        inside = range(found.statement.first, found.statement.last + 1) if found else range(0)
        for depth in range(self.depth, 0, -1):
            here, _ = self.last.get(depth, (None, None))
            loops = loops_around(here.file, here.line) if here else []
            one, end = _outside(self.one, i, depth, inside, loops)
            other, other_end = _outside(self.other, j, depth, inside, loops)
            if both := one.keys() & other.keys():
                return (*min(((one[key], other[key]) for key in both), key=sum), True)
            if depth == self.depth and end is not None and other_end is not None:
                return end + 1, other_end + 1, False
            inside = range(0)
        return None


def taken(step: Step) -> bool | None:
    """Whether the block of an `if` on one line ran, by the values in its test; None if they do not
    decide it."""
    statement = statement_at(step.file, step.line)
    if statement is None or statement.one_line is None:
        return None
    return outcome(statement.one_line, dict(step.values))


def _outside(
    steps: Sequence[Step], at: int, depth: int, inside: range, loops: Sequence[range]
) -> tuple[dict[object, int], int | None]:
    """Where a way first reaches each line of a function outside of a statement, and where it
    returns.

    `loops` are those around the statement. A loop's lines count as different places in each round.

    A function that ends by an exception does not return; `__next__` returns by StopIteration.
    """
    found: dict[object, int] = {}
    rounds = [0] * len(loops)
    raised = False
    for place in range(at, len(steps)):
        step = steps[place]
        if step.depth != depth:
            continue
        if step.event == "return":
            return found, None if raised else place
        raised = step.event == "raise" and step.values[0][1] != "StopIteration"
        if step.event == "line" and step.line not in inside:
            for n, loop in enumerate(loops):
                if step.line == loop.start:
                    rounds[n:] = [rounds[n] + 1, *[0] * (len(loops) - n - 1)]
            turns = tuple(
                turn for turn, loop in zip(rounds, loops, strict=True) if step.line in loop
            )
            found.setdefault((step.key, turns), place)
    return found, None


def tests_of(apart: Apart, ways: Mapping[int, Way]) -> list[Test]:
    """The tests at which the ways of these ranks part; ranks without a way are left out."""
    sides = [some for side in apart.sides if (some := [rank for rank in side if rank in ways])]
    chains: dict[int, list[_At]] = {}
    closest = _closest(ways, *sides[:2]) if len(sides) > 1 else ()
    for at, side in enumerate(sides if closest else ()):
        against = closest[0 if at else 1]
        for rank in side:
            if chain := _chain(apart, (rank, ways[rank]), (against, ways[against])):
                chains[rank] = chain
    if apart.one_call and chains:  # the way of the rank that issued it shows the place
        one, other = (side[0] for side in sides)
        if found := _of_its_own(ways[other], ways[one].steps, apart.turns, apart.lacks):
            return [_test(_line_of(found), {other: [found]})]
        if apart.turns and _each_has_a_branch(chains[one][-1], ways[other].steps, apart.turns[-2:]):
            return []
        chains[other] = [at.turned() for at in chains[one]]
    first = chains.get(closest[0], []) if closest else []
    tests = [_test(_line_of(at), chains) for at in first]
    for rank, test in zip(closest, first[-1].tests if first else (), strict=False):
        if (raised := _raised_behind(rank, ways[rank].steps, test)) is not None:
            tests.append(raised)
    return tests


def _raised_behind(rank: int, steps: Sequence[Step], test: Step) -> Test | None:
    """The first exception that a rank raised on its way from a test to its next call, unless it
    ended the rank."""
    after = list(
        takewhile(lambda step: step.issued == test.issued, steps[_place_of(test, steps) + 1 :])
    )
    raised = (at for at, step in enumerate(after) if step.event == "raise")
    first = next((at for at in raised if at and after[at].values[0][1] != "StopIteration"), None)
    fate = (
        None if first is None else _fate(after[first], after[first + 1 :], len(after) < len(steps))
    )
    if first is None or fate is None:
        return None
    step = after[first]
    kind = str(step.values[0][1])
    how, line, where = fate
    side: Side = {
        "ranks": [rank],
        "how": how,
        "line": line,
        "text": f"{kind} {where}".strip(),
        "issued": step.issued,
    }
    text = linecache.getline(step.file, step.line).strip()
    return {"file": step.file, "line": step.line, "text": text, "values": [], "sides": [side]}


def _fate(raised: Step, after: Sequence[Step], goes_on: bool) -> tuple[str, int, str] | None:
    """What became of an exception: how, the line, and where that is; None if it ended the rank.

    It is in flight in `finally`, in `__exit__` and in a generator that `with` resumes, however many
    lines they run. A function that it leaves is followed by a "raise" in its caller, unless a
    `return` in `finally` swallowed it. `goes_on`: the rank issues a call behind these steps.
    """
    at, passed, handler = raised, raised.line, None
    for step in after:
        if step.depth > at.depth:
            continue
        if handler is not None and (step.depth < at.depth or step.line not in handler):
            return "caught", handler.start, ""
        text = linecache.getline(step.file, step.line).strip()
        if step.event == "raise" or (handler is not None and text.startswith("raise")):
            at, passed, handler = step, step.line, None  # a bare `raise` is no event
            continue
        if step.depth < at.depth:
            return "swallowed", passed, ""
        if step.event != "line" or handler is not None:
            continue
        guards = guards_around(at.file, at.line)
        inside = (one for guard in guards for one in guard.handlers if step.line in one[1:])
        if (handler := next(inside, None)) is not None:
            if text.startswith("raise"):
                at, handler = step, None
        elif any(step.line in lines for guard in guards for lines in guard.cleanup):
            passed = step.line
        else:
            return "swallowed", passed, ""
    if handler is not None:
        return "caught", handler.start, ""
    last = after[-1] if after else raised
    if not goes_on or last.event != "line" or last is at:
        return None
    return "in flight", last.line, "finally" if last.depth == at.depth else last.function


def _closest(ways: Mapping[int, Way], *sides: Sequence[int]) -> tuple[int, ...]:
    """A rank of each side: the two whose ways have most steps in common, and of these the two that
    part least often."""

    def alike(two: tuple[int, ...]) -> tuple[int, int]:
        one, other = (ways[rank] for rank in two)
        pair = _Pair(() if one.dropped else one.steps, () if other.dropped else other.steps)
        pair.part()
        return len(pair.common), -len(pair.met)

    return max(product(*(side[:TRIED] for side in sides)), key=alike)


def _each_has_a_branch(parts: _At, steps: Sequence[Step], turns: Sequence[int]) -> bool:
    """Whether the other rank issues its calls in a branch of the same statement: `if a: send(),
    else: recv()`."""
    before = {step.issued: step for step in steps if step.depth == parts.depth}
    inside = range(parts.statement.first, parts.statement.last + 1)
    return all(at in before and before[at].line in inside for at in turns)


def _turn(step: Step, after: Step | None) -> object:
    """Where a rank went from a test."""
    return (after and after.key) if (block := taken(step)) is None else block


def _of_its_own(way: Way, peer: Sequence[Step], turns: Sequence[int], lacks: int) -> _At | None:
    """The one test that led the rank to each call of `turns`, and went the other way as often as it
    `lacks` such calls, or once and for good.

    Without such a test, the one loop that led to each of these calls until it ended, if the peer
    ran more rounds.
    """
    steps, follow = way.steps, [*way.steps[1:], None]
    lines: dict[object, list[int]] = {}
    for at, step in enumerate(() if way.dropped else steps):
        if step.event == "line":
            lines.setdefault(step.key, []).append(at)
    found = []
    for key, places in lines.items():
        statement = statement_at(steps[places[0]].file, steps[places[0]].line)
        issued = (*(steps[at].issued for at in places), steps[-1].issued)
        led = [
            before < after for before, after in pairwise(bisect_left(turns, at) for at in issued)
        ]
        rounds, others = led.count(True), led.count(False)
        if statement is None or not statement.decides or not rounds or not others:
            continue
        went = {
            (_turn(steps[at], follow[at]), leads) for at, leads in zip(places, led, strict=True)
        }
        left = others == 1 and not led[-1]  # and never came back, however many such calls it lacks
        more = sum(step.key == key for step in peer) > rounds
        fits = others == 1 and more if statement.loop else others == lacks or left
        if fits and len(went) == len(dict(went)):
            odd, one = places[led.index(False)], places[led.index(True)]
            found.append(
                _At(
                    steps[odd].depth,
                    statement,
                    (steps[odd], steps[one]),
                    (follow[odd], follow[one]),
                )
            )
    best = [at for at in found if not at.statement.loop] or found
    return best[0] if len(best) == 1 else None


def _behind(
    until: tuple[Iterable[Step], Iterable[Step]], one: Sequence[Step], other: Sequence[Step]
) -> _Pair:
    """A comparison of two ways that begins where both ranks are after the steps in `until`, one
    sequence per rank."""
    here: dict[int, tuple[Step, Step]] = {}
    for mine, same in zip(*map(_standing, until), strict=False):
        if mine.key != same.key:
            break
        here[mine.depth] = mine, same
    return _Pair(one, other, here, depth=max(here, default=0))


def _chain(apart: Apart, one: tuple[int, Way], other: tuple[int, Way]) -> list[_At]:
    """The test where a rank's way parts from another's, after the tests whose statements set the
    names that it read."""
    (rank, way), (peer, theirs) = one, other
    steps = way.steps, theirs.steps
    whole = _Pair((), ()) if way.dropped or theirs.dropped else _Pair(*steps)
    found = whole.part()
    if apart.steps:
        at = next(
            (
                n
                for n, at in enumerate(whole.met)
                if _made_steps(at, way) != _made_steps(at.turned(), theirs)
            ),
            None,
        )
        return (
            [] if at is None else [*_setters(whole.met[:at], whole.met[at], steps), whole.met[at]]
        )
    pair = _behind((way.before, theirs.before), way.within, theirs.within)
    pair.met += whole.met
    begin = len(way.before) - 1, len(theirs.before) - 1
    if begin not in whole.common and any(map(gt, next(reversed(whole.common), begin), begin)):
        pair = whole  # the windows begin in different rounds of a loop
    elif pair.last or not way.before:  # both are at one line, or else join() shadowed a call
        found = pair.part()
    met = whole.met or pair.met
    if apart.places:  # one issued more calls than the other, and has been ahead since
        ahead = [
            at.behind and apart.count(rank, at.behind[0]) - apart.count(peer, at.behind[1])
            for at in met
        ]
        since = next((n for n in range(len(met), 0, -1) if not ahead[n - 1]), 0)
        if since < len(met):
            found = met[since]
            met = met[:since]
    if found is None:
        # Both ran a line from which only one issued a call: find the statement around it, or the
        # one that set a name.
        here = pair.last.get(pair.depth)
        line = here and statement_at(here[0].file, here[0].line)
        reads = _made_of(line.reads, here, steps) if here and line else set()
        return _set_before(met, reads, line.first) if line else []
    return [*_setters(met, found, steps), found]


def _made_steps(at: _At, way: Way) -> int:
    """How many steps the first rank's optimizer made from the statement until the ways met
    again."""
    return sum(id(step) in way.steps_made for step in (at.tests[0], *chain(*at.alone[:1])))


def _set_before(met: Sequence[_At], reads: Set[str], line: int = 0) -> list[_At]:
    """The last statement at which they parted earlier that set one of the names read, or that
    contains this line."""
    parts = {
        part for name in reads for part in name.replace("]", "").split("[")
    }  # "counts[rank]" reads two names
    here = (
        at
        for at in reversed(met)
        if _sets(at) & parts or at.statement.first <= line <= at.statement.last
    )
    return [at for at in [next(here, None)] if at]


def _sets(at: _At) -> Set[str]:
    """The names that the statement sets, or one of the ranks before their ways met again: `if skip:
    continue`."""
    ran = {(step.file, step.line) for steps in at.alone for step in steps if step.depth == at.depth}
    return at.statement.stores.union(*(one.stores for line in ran if (one := statement_at(*line))))


def _standing(steps: Iterable[Step]) -> list[Step]:
    """The line that each frame of the program is at after these steps, outermost first."""
    stack: dict[int, Step] = {}
    for step in steps:
        if step.event == "line":
            stack[step.depth] = step
        if step.event in ("line", "call", "return"):
            for deeper in [
                depth for depth in stack if depth > step.depth - (step.event == "return")
            ]:
                del stack[deeper]
    return [stack[depth] for depth in sorted(stack)]


def _setters(met: Sequence[_At], found: _At, ways: Sequence[Sequence[Step]]) -> list[_At]:
    """The last statement at which they parted earlier and that set what the test reads, itself or
    in its functions.

    A name may pass through assignments: `epoch = start`. A loop over the same values on both ranks
    explains nothing.
    """
    alike = [
        at for at in met if at.statement.loop and () != at.tests[0].values == at.tests[1].values
    ]
    others = [
        at
        for at in met
        if at.statement.branches and at.statement != found.statement and at not in alike
    ]
    reads = set(found.statement.names)
    for test, way in zip(found.tests, ways, strict=True) if others else ():
        after = way[_place_of(test, way) + 1 :]
        inside = _statements(takewhile(lambda step: step.depth > found.depth, after))
        reads |= {name for one in inside if one.decides or one.returns for name in one.names}
    return _set_before(others, _made_of(reads, found.tests, ways)) if others else []


def _made_of(reads: Set[str], tests: Iterable[Step], ways: Iterable[Sequence[Step]]) -> Set[str]:
    """These names, and those from which the function's earlier statements made them."""
    for test, way in zip(tests, ways, strict=True):
        before = _statements(
            step for step in way[: _place_of(test, way)] if step.function == test.function
        )
        while more := {name for one in before if one.stores & reads for name in one.reads} - reads:
            reads = reads | more
    return reads


def _place_of(test: Step, way: Sequence[Step]) -> int:
    return next(at for at, step in enumerate(way) if step is test)


def _statements(steps: Iterable[Step]) -> list[Statement]:
    """The statements that these steps ran, each once."""
    places = dict.fromkeys((step.file, step.line) for step in steps if step.event == "line")
    return [one for place in places if (one := statement_at(*place))]


def _line_of(at: _At) -> tuple[str, int]:
    return at.tests[0].file, at.statement.first


def _test(line: tuple[str, int], chains: Mapping[int, list[_At]]) -> Test:
    values: dict[tuple[str, Plain], list[int]] = {}
    sides: dict[tuple[str, int, str], list[int]] = {}
    issued: dict[tuple[str, int, str], int] = {}
    text = ""
    for rank, parted in chains.items():
        for at in parted:
            if _line_of(at) == line:
                text = at.statement.text
                for read in at.tests[0].values:
                    values.setdefault(read, []).append(rank)
                sides.setdefault(_went(at), []).append(rank)
                issued.setdefault(_went(at), at.tests[0].issued)
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


def _went(at: _At) -> tuple[str, int, str]:
    step, test = at.nexts[0], at.tests[0]
    if step is test:
        return "block" if taken(step) else "past", test.line, at.statement.text
    inside, theirs = (
        after and after.issued > before.issued
        for before, after in zip(at.tests, at.nexts, strict=True)
    )
    if step is None or (inside and not theirs and step.event != "raise"):
        # from another line of the statement: `match rank:`, and behind it `case 0: barrier()`
        how = "issue" if test.line == at.statement.first else "line"
        return how, test.line, linecache.getline(test.file, test.line).strip()
    if step.event == "raise":
        return "raise", step.line, str(step.values[0][1])
    if step.event == "return" and step.function in COMPREHENSIONS:
        return "over", test.line, at.statement.text
    around = statement_at(step.file, step.line)
    if (
        step.event == "line"
        and around
        and not around.loop
        and step.line == around.first < test.line <= around.last
    ):
        return "leave", step.line, around.text
    how = "line" if step.depth == at.depth and step.event == "line" else step.event
    return how, step.line, linecache.getline(step.file, step.line).strip()
