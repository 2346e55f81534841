"""Which earlier fork set what a test reads: by names, and by attributes of known objects."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from functools import partial
from itertools import chain, product, takewhile

from joinlab.program.branches import statement_at
from joinlab.program.divergence.fork import (
    Fork,
    index_of,
    names_set_by,
    statements_alone,
    statements_of,
)
from joinlab.program.traces import TraceStep


def setters_of(
    forks: Sequence[Fork], fork: Fork, traces: Sequence[Sequence[TraceStep]]
) -> list[Fork]:
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
        after = trace[index_of(test, trace) + 1 :]
        called = list(takewhile(lambda step: step.depth > fork.depth, after))
        inside += called
        for statement in statements_of(called):
            if statement.decides or statement.returns:
                reads.update(statement.names)
    if branches:
        sources = made_of(reads, fork.tests, traces)
        return set_before(branches, sources, fork.tests, traces, inside)
    return []


def set_before(
    forks: Sequence[Fork],
    reads: Set[str],
    tests: Sequence[TraceStep],
    traces: Sequence[Sequence[TraceStep]],
    inside: Iterable[TraceStep] = (),
    line: int = 0,
) -> list[Fork]:
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
            for name, part in product(names_set_by(fork), parts)
            if name == part or name.startswith(f"{part}.")
        }
        still = partial(_still, fork, names, owned)
        if line in fork.statement.lines or any(map(still, range(len(tests)), tests, traces)):
            return [fork]
    return []


def _still(
    fork: Fork,
    names: Set[str],
    owned: Set[tuple[int, str]],
    which: int,
    test: TraceStep,
    trace: Sequence[TraceStep],
) -> bool:
    """Whether one of these names or attributes still had, at a test, the value that a rank (0 or 1) gave
    it at a fork, or before the traces met again."""
    ran = [fork.tests[which], *chain(*fork.alone[which : which + 1])]
    owned = owned & set[tuple[int, str]]().union(*(_sets_owned(fork, step) for step in ran))
    for step in trace[index_of(ran[-1], trace) + 1 : index_of(test, trace)]:
        statement = statement_at(step.file, step.line)
        if statement is not None and step.event == "line":
            owned = owned - _owned(step, statement.replaces)
            if (step.depth, step.function) == (test.depth, test.function):
                names = names - statement.replaces
    return bool(names or owned)


def _owned(step: TraceStep, names: Set[str]) -> set[tuple[int, str]]:
    """The attributes of a step that have these names: the `id` of the object, and the attribute."""
    return {(owner, name.rpartition(".")[2]) for name, owner in step.owners if name in names}


def _sets_owned(fork: Fork, step: TraceStep) -> set[tuple[int, str]]:
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
    for step in reversed(trace[: index_of(test, trace) + 1]):
        if step.depth == test.depth:
            before.append(step)
        if step.depth < test.depth or (step.event == "call" and step.depth == test.depth):
            break
    return before


def made_of(
    reads: Set[str], tests: Iterable[TraceStep], traces: Iterable[Sequence[TraceStep]]
) -> Set[str]:
    """These names, and those from which the function's earlier statements made them."""
    for test, trace in zip(tests, traces, strict=True):
        before = statements_of(
            step for step in trace[: index_of(test, trace)] if step.function == test.function
        )
        while (
            sources := {
                name for statement in before if statement.stores & reads for name in statement.reads
            }
            - reads
        ):
            reads = reads | sources
    return reads


def changed_by_method(
    forks: Sequence[Fork], reads: Set[str], last: Iterable[TraceStep]
) -> list[Fork]:
    """The only statement at which they diverged earlier, if one of them called a method there of one of
    these objects, or of one of which the `last` steps do, which may do more later: `if debug:
    net.register_forward_hook(sync)`. []: another branch may be the cause, too."""
    forks = [fork for fork in forks if fork.statement.branches]
    if len({fork.statement for fork in forks}) != 1:
        return []
    fork = forks[-1]
    calls = fork.statement.calls.union(*(statement.calls for statement in statements_alone(fork)))
    changed = _called(chain(*fork.alone))
    return [fork] if calls & reads or changed & _called(last) else []


def _called(steps: Iterable[TraceStep]) -> set[int]:
    """The `id` of each object of which these steps call a method."""
    return {id_ for step in steps for name, id_ in step.owners if name.endswith("()")}
