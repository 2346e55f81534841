"""The forks that led to the last one: they set what its test reads, or shape what its function returns."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import chain, islice
from operator import and_, eq, gt, ne

from joinlab.program.branches import statement_at
from joinlab.program.divergence.comparison import TraceComparison
from joinlab.program.divergence.fork import (
    Fork,
    begun_at,
    index_of,
    statements_alone,
    statements_of,
)
from joinlab.program.divergence.search import Search
from joinlab.program.divergence.setters import (
    caller_of,
    changed_by_method,
    made_of,
    set_before,
    setters_of,
    shapes_result,
)
from joinlab.program.divergence.sides import values_returned
from joinlab.program.traces import Trace, TraceStep


def chain_of(search: Search, traces: Mapping[int, Trace], rank: int, peer: int) -> list[Fork]:
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
        whole = TraceComparison((), ())
    else:
        whole = TraceComparison(*steps)
    fork = whole.part()
    if search.replicas:
        for number, fork in enumerate(whole.forks):
            if _changes_one_replica(_held(fork, trace), _held(fork.turned(), peer_trace)):
                return [*setters_of(whole.forks[:number], fork, steps), fork]
        stepped = set[str]()  # optimizers, whose state is in no replica
        for statement in statements_of(trace.steps):
            stepped.update(re.findall(r"([\w.]+)\.step\(", statement.text))
        return changed_by_method(whole.forks, stepped, ())
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
        if tests and search.keys:
            tests = (
                _set_at(search.keys, tests[0], steps[0]),
                _set_at(search.keys, tests[1], steps[1]),
            )
        line = tests and statement_at(tests[0].file, tests[0].line)
        if tests and line:
            reads = made_of(line.reads, tests, steps)
            inside = [fork for fork in forks if _decided(fork, tests[0], trace.steps, reads)]
            setters = set_before(forks, reads, tests, steps, line=line.first)
            causes = [*setters, *inside[-1:]] or changed_by_method(forks, reads, tests)
            causes.sort(key=forks.index, reverse=True)
            if causes and not _fitted_before(causes[0], forks, line.reads):
                cause = causes[0]
                names = {*cause.statement.names}
                return [*set_before(forks[: forks.index(cause)], names, cause.tests, steps), cause]
        return []
    setters, test = setters_of(forks, fork, steps), fork.tests[0]
    if not setters:
        turned = fork.turned()
        values = {*test.values, *values_returned(fork, trace)}
        if values == {*turned.tests[0].values, *values_returned(turned, peer_trace)}:
            head = (
                earlier
                for earlier in reversed(forks)
                if _decided(earlier, test, trace.steps, set())
            )
            setters = [*islice(head, 1)]
    return [*setters, fork]


def _behind(
    until: tuple[Iterable[TraceStep], Iterable[TraceStep]],
    first: Sequence[TraceStep],
    second: Sequence[TraceStep],
) -> TraceComparison:
    """A comparison of two traces that begins where both ranks are after the steps in `until`, one
    sequence per rank."""
    common: dict[int, tuple[TraceStep, TraceStep]] = {}
    for first_step, second_step in zip(*map(_standing, until), strict=False):
        if first_step.key != second_step.key:
            break
        common[first_step.depth] = first_step, second_step
    return TraceComparison(first, second, common, depth=max(common, default=0))


def _fitted_before(fork: Fork, forks: Iterable[Fork], reads: Set[str]) -> bool:
    """Whether the ranks parted there before an earlier call, too, which fitted: what gave one of them a value
    of its own of what the call reads is not the cause."""
    made = set[str]().union(*(statement.replaces for statement in statements_alone(fork)))
    for earlier in forks if made & reads else ():
        if earlier.behind and earlier.statement == fork.statement:
            return earlier.behind[0] < fork.tests[0].issued
    return False


def _decided(fork: Fork, last: TraceStep, trace: Sequence[TraceStep], reads: Set[str]) -> bool:
    """Whether the ranks diverged in a function that the line of the step `last` called, or a `with`
    around it, or a line that sets what it reads, and the function returned accordingly."""
    caller = caller_of(fork.tests[0], trace) or last
    statement = statement_at(caller.file, caller.line)
    return (
        (fork.statement.returns or shapes_result(fork, trace))
        and caller.event == "line"
        and (caller.depth, caller.function) == (last.depth, last.function)
        and statement is not None
        and (
            caller.line == last.line
            or bool(statement.stores & reads)
            or (statement.text.startswith("with ") and last.line in statement.block)
        )
    )


def _set_at(names: Set[str], last: TraceStep, trace: Sequence[TraceStep]) -> TraceStep:
    """The step that gave one of these names its value at the step `last` of the function; of a loop, the
    step with which it began."""
    for step in reversed(trace[: index_of(last, trace)]):
        statement = statement_at(step.file, step.line)
        sets = step.event == "line" and statement is not None and statement.replaces & names
        if sets and (step.depth, step.function) == (last.depth, last.function):
            return trace[begun_at(step, trace)]
    return last


def _held(fork: Fork, trace: Trace) -> list[tuple[int, int]]:
    """Checksums of the first rank's replica at the statement, and where the traces met again."""
    test = fork.tests[0]
    *_, last = (test, *chain(*fork.alone[:1]))
    *_, after = (last, *trace.steps[index_of(last, trace.steps) + 1 :][:1])
    return [trace.held[id(test)], trace.held[id(after)]]


def _changes_one_replica(own: Sequence[tuple[int, int]], peer: Sequence[tuple[int, int]]) -> bool:
    """Whether two replicas, or their gradients, were equal at a statement, and differ behind it: of
    each what `_held` says."""
    (before, after), (peer_before, peer_after) = own, peer
    return any(map(and_, map(eq, before, peer_before), map(ne, after, peer_after)))


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
