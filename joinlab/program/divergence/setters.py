"""Which earlier fork set what a test reads: by names, and by attributes of known objects."""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterable, Sequence, Set
from functools import partial
from itertools import chain

from joinlab.program.branches import statement_at
from joinlab.program.divergence.fork import (
    Fork,
    begun_at,
    called_at,
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
    begun = tuple(
        trace[begun_at(test, trace)] for test, trace in zip(fork.tests, traces, strict=True)
    )
    for tests in (fork.tests, begun) if branches else ():
        read, inside = reads, list[TraceStep]()
        for test, trace in zip(tests, traces, strict=True):
            called = list(called_at(index_of(test, trace), trace))
            inside += called
            for statement in statements_of(called):
                if statement.decides or statement.returns:
                    read = read.union(statement.names)
        setters = set_before(branches, made_of(read, tests, traces), tests, traces, inside)
        if setters:
            return setters
    return _raised_through(branches, fork)


def _raised_through(forks: Sequence[Fork], fork: Fork) -> list[Fork]:
    """The fork behind which a rank raised the exception whose type its `__exit__` is asking for."""
    asked = {
        value for test in fork.tests for name, value in test.values if name.endswith(".__name__")
    }
    for earlier in reversed(forks if fork.tests[0].function == "__exit__" else ()):
        last = (steps[-1] for steps in earlier.alone if steps)
        if any(step.event == "raise" and step.values[0][1] in asked for step in last):
            return [earlier]
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
    steps in functions that they call, read, or decided what a function returned to a line that did;
    or that contains this line. What was set anew since does not count, nor, where the object that has
    an attribute is known, its name alone."""
    # "counts[rank]" reads two names
    parts = {part for name in reads for part in name.replace("]", "").split("[")}
    whole = {name[: dot.start()] for name in parts for dot in re.finditer(r"\.", name)} | parts
    owned = set[tuple[int, str]]()
    for step in inside:
        owned |= _owned(step, whole)
    for test, trace in zip(tests, traces, strict=True):
        unread = whole  # "worker.active" is another object's in each round of a loop over workers
        for step in _frame(test, trace):
            owned |= _owned(step, unread)
            unread = unread.difference(name for name, _ in step.owners)
    if owned:
        whole, parts = ({name for name in names if "." not in name} for names in (whole, parts))
    for fork in reversed(forks):
        names = {
            name
            for name in names_set_by(fork)
            if name in whole or any(name.startswith(f"{part}.") for part in parts)
        }
        still = partial(_still, fork, names, whole, owned)
        if line in fork.statement.lines or any(map(still, range(len(tests)), tests, traces)):
            return [fork]
    return []


def _still(
    fork: Fork,
    names: Set[str],
    whole: Set[str],
    owned: Set[tuple[int, str]],
    which: int,
    test: TraceStep,
    trace: Sequence[TraceStep],
) -> bool:
    """Whether one of these names or attributes still had, at a test, the value that a rank (0 or 1) gave
    it at a fork, or before the traces met again, or with what a function returned accordingly."""
    ran = [fork.tests[which], *chain(*fork.alone[which : which + 1])]
    begin, end = index_of(ran[-1], trace) + 1, index_of(test, trace)
    if begin > end and fork.tests[which] not in called_at(end, trace):
        return False
    frame = test.depth, test.function
    caller = _result_at(fork.tests[which], trace)
    if caller is not None:
        argument = caller is caller_of(test, trace) and fork.tests[which].function != test.function
        statement = statement_at(caller.file, caller.line)
        made: Set[str] = frozenset()
        if statement is not None and (caller.depth, caller.function) == frame:
            made = statement.stores & whole
        side = fork.turned() if which else fork
        if not (argument or made or owned & _sets_owned(fork, caller)) or not (
            fork.statement.returns or shapes_result(side, trace)
        ):
            caller = None
        elif argument:
            return True
        else:
            names, ran = names | made, [caller, *ran]
    owned = owned & set[tuple[int, str]]().union(*(_sets_owned(fork, step) for step in ran))
    if not names and not owned:
        return False
    for step in trace[begin:end]:
        statement = statement_at(step.file, step.line)
        if statement is not None and step.event == "line" and step.key != (caller and caller.key):
            owned = owned - _owned(step, statement.replaces)
            if (step.depth, step.function) == frame:
                names = names - statement.replaces
    return bool(names or owned)


def _result_at(step: TraceStep, trace: Sequence[TraceStep]) -> TraceStep | None:
    """The line that gets what the function of a step returns."""
    caller = caller_of(step, trace)
    while caller and linecache.getline(caller.file, caller.line).lstrip().startswith("return "):
        caller = caller_of(caller, trace)
    return caller


def caller_of(step: TraceStep, trace: Sequence[TraceStep]) -> TraceStep | None:
    """The line that called the function of a step."""
    before = reversed(trace[: index_of(step, trace)])
    return next((earlier for earlier in before if earlier.depth < step.depth), None)


def shapes_result(fork: Fork, trace: Sequence[TraceStep]) -> bool:
    """Whether each rank left the function from a line of its own, or the statement, or a rank alone, set
    what the function's `return` reads."""
    ends = [steps[-1] for steps in fork.alone if steps]
    if len(ends) == 2 and all((end.event, end.depth) == ("return", fork.depth) for end in ends):
        return ends[0].line != ends[1].line
    for step in trace[index_of(fork.tests[0], trace) :]:
        if step.depth == fork.depth and step.event == "return":
            break
    statement = statement_at(step.file, step.line)
    if step.event == "return" and step.function == "__init__":
        changed = {*names_set_by(fork)}.union(
            *(statement.calls for statement in statements_alone(fork))
        )
        return any(name.partition(".")[0] == "self" for name in changed)
    if step.event != "return" or statement is None or not statement.text.startswith("return"):
        return False
    return bool(names_set_by(fork) & made_of(statement.reads, [step], [trace]))


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
