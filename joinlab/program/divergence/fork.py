"""A fork: the statement at which the traces of two ranks diverge."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from itertools import starmap
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
    behind: tuple[int, int] | None = (
        None  # number of calls that each rank had issued when the traces met again
    )
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
