"""A fork: the statement at which the traces of two ranks diverge."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from itertools import starmap, takewhile
from typing import NamedTuple

from joinlab.program.branches import Statement, statement_at
from joinlab.program.traces import TraceStep


class Fork(NamedTuple):
    """A statement at which two traces diverge, its test and the next step in both
    traces."""

    depth: int
    statement: Statement
    tests: tuple[TraceStep, TraceStep]
    nexts: tuple[TraceStep | None, TraceStep | None]
    # number of calls that each rank had issued when the traces met again
    behind: tuple[int, int] | None = None
    alone: tuple[Sequence[TraceStep], ...] = ()  # the steps of each until they met again

    def turned(self) -> Fork:
        """The same fork with the two ranks exchanged."""
        behind = self.behind and self.behind[::-1]
        return self._replace(
            tests=self.tests[::-1], nexts=self.nexts[::-1], behind=behind, alone=self.alone[::-1]
        )


def line_of(fork: Fork) -> tuple[str, int]:
    return fork.tests[0].file, fork.statement.first


def statements_alone(fork: Fork) -> list[Statement]:
    """The statements that one of the ranks ran before their traces met again."""
    steps = (step for steps in fork.alone for step in steps if step.depth == fork.depth)
    return statements_of(steps)


def names_set_by(fork: Fork) -> Set[str]:
    """The names that the statement sets, or one of the ranks before their traces met again: `if skip:
    continue`."""
    return fork.statement.stores.union(*(statement.stores for statement in statements_alone(fork)))


def statements_of(steps: Iterable[TraceStep]) -> list[Statement]:
    """The statements that these steps ran, each once."""
    lines = dict.fromkeys((step.file, step.line) for step in steps if step.event == "line")
    return list(filter(None, starmap(statement_at, lines)))


def index_of(test: TraceStep, trace: Sequence[TraceStep]) -> int:
    return next(index for index, step in enumerate(trace) if step is test)


def begun_at(step: TraceStep, trace: Sequence[TraceStep]) -> int:
    """The index of a step; if it is the head of a `for`, of the step at which that loop began."""
    begin, statement = index_of(step, trace), statement_at(step.file, step.line)
    if statement is None or not statement.text.startswith("for "):
        return begin
    for index in range(begin, -1, -1):
        earlier = trace[index]
        if earlier.depth < step.depth or (
            earlier.depth == step.depth and earlier.line not in statement.lines
        ):
            break
        if earlier.depth == step.depth and earlier.line == statement.first:
            begin = index
    return begin


def called_at(index: int, trace: Sequence[TraceStep]) -> Iterable[TraceStep]:
    """The steps in functions that the step at an index called."""
    return takewhile(lambda step: step.depth > trace[index].depth, trace[index + 1 :])
