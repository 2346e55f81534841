"""Compares two traces step by step: where they diverge, and where they meet again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from joinlab.program.branches import loops_around, outcome, statement_at
from joinlab.program.divergence.fork import Fork
from joinlab.program.traces import TraceStep

NEAR = 256
"""Steps within which two traces mostly meet again: the rest of a long trace is looked at only if they do not."""


@dataclass(slots=True)
class TraceComparison:
    """Compares two traces step by step."""

    first: Sequence[TraceStep]
    second: Sequence[TraceStep]
    # by depth: the line that both ran last
    last: dict[int, tuple[TraceStep, TraceStep]] = field(default_factory=dict)
    forks: list[Fork] = field(default_factory=list)  # where they diverged, and met again
    depth: int = 0
    # indices of the steps that both ran, in order
    common: dict[tuple[int, int], None] = field(default_factory=dict)

    def part(self) -> Fork | None:
        """The statement at which they finally diverge, or None."""
        i = j = 0
        while True:
            while (
                i < len(self.first)
                and j < len(self.second)
                and self.first[i].key == self.second[j].key
            ):
                self._common(i, j)
                i, j = i + 1, j + 1
            first, second = (
                steps[index] if index < len(steps) else None
                for steps, index in ((self.first, i), (self.second, j))
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
            fork = fork or self._returned(first, second)
            alone = self.first[i : rejoin[0]], self.second[j : rejoin[1]]
            i, j, whole = rejoin
            if fork is not None:
                before = min(i, len(self.first) - 1), min(j, len(self.second) - 1)
                behind = self.first[before[0]].issued, self.second[before[1]].issued
                self.forks.append(fork._replace(behind=behind, alone=alone))
            # both functions have returned: the caller's next line says whether it matters
            if not whole:
                self.depth -= 1

    def _resumed(self, first: TraceStep | None, second: TraceStep | None) -> Fork | None:
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

    def _returned(self, *nexts: TraceStep | None) -> Fork | None:
        """The `return` of one rank, where it leaves the function from the end of a `with` or a
        `finally`."""
        steps = [step for step in nexts if step is not None and step.depth == self.depth]
        if {step.event for step in steps} != {"line", "return"}:
            return None
        for fork in reversed(self.forks):
            same_run = fork.depth == self.depth and fork.tests[0].function == steps[0].function
            if same_run and fork.statement.returns:
                return fork
        return None

    def _common(self, i: int, j: int) -> None:
        first, second = self.first[i], self.second[j]
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
                self.first[min(i + 1, len(self.first) - 1)],
                self.second[min(j + 1, len(self.second) - 1)],
            )
            behind = after[0].issued, after[1].issued
            self.forks.append(
                Fork(first.depth, statement, (first, second), (first, second), behind)
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
    ) -> Fork | None:
        statement = statement_at(tests[0].file, tests[0].line)
        events = [step.event for step in nexts if step is not None]
        if statement is None:
            return None
        # They called different functions, or one called the statement's, and the other had its result.
        called = [step.function for step in nexts if step is not None and step.event == "call"]
        alone = len(called) == 1 and called[0] in statement.reads
        if not (statement.decides or "raise" in events or len(called) == 2 or alone):
            return None
        return Fork(depth, statement, tests, nexts)

    def _meet(self, i: int, j: int, fork: Fork | None) -> tuple[int, int, bool] | None:
        """Where both traces continue after the statement: at the same line, or, False, in the
        function's caller.

        If an exception ends the function on one rank, both continue in the function that catches
        it.
        """
        if fork:
            inside = fork.statement.lines
        else:
            inside = range(0)
        for depth in range(self.depth, 0, -1):
            step, _ = self.last.get(depth, (None, None))
            loops = loops_around(step.file, step.line) if step else []
            for limit in (NEAR, len(self.first) + len(self.second)):
                first, end = lines_reached(self.first[i : i + limit], depth, inside, loops)
                second, other_end = lines_reached(self.second[j : j + limit], depth, inside, loops)
                both = [(first[key], second[key]) for key in first.keys() & second.keys()]
                nearest = min(both, key=sum, default=None)
                if nearest is not None and sum(nearest) <= limit:  # no step beyond it is nearer
                    return i + nearest[0], j + nearest[1], True
            if depth == self.depth and end is not None and other_end is not None:
                return i + end + 1, j + other_end + 1, False
            inside = range(0)
        return None


def taken(step: TraceStep) -> bool | None:
    """Whether the block of an `if` on one line ran, by the values in its test; None if they do not
    decide it."""
    statement = statement_at(step.file, step.line)
    if statement is None or statement.one_line is None:
        return None
    return outcome(statement.one_line, dict(step.values))


def lines_reached(
    steps: Sequence[TraceStep], depth: int, inside: range, loops: Sequence[range]
) -> tuple[dict[object, int], int | None]:
    """Where a trace first reaches each line of a function outside of a statement, and where it
    returns.

    `loops` are those around the statement. A loop's lines count as different lines in each round.

    A function that ends by an exception does not return; `__next__` returns by StopIteration.
    """
    reached: dict[object, int] = {}
    rounds = [0] * len(loops)
    raised = False
    for index, step in enumerate(steps):
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
