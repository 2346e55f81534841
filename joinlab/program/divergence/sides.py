"""A fork as a test with its sides: the values that ranks read, and where each went."""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterator, Mapping

from joinlab.program.branches import statement_at
from joinlab.program.divergence import Test
from joinlab.program.divergence.comparison import taken
from joinlab.program.divergence.fork import Fork, begun_at, called_at, index_of, line_of
from joinlab.program.traces import COMPREHENSIONS, Plain, Trace


def test_of(
    line: tuple[str, int], chains: Mapping[int, list[Fork]], traces: Mapping[int, Trace] = {}
) -> Test:
    values: dict[tuple[str, Plain], list[int]] = {}
    sides: dict[tuple[str, int, str], list[int]] = {}
    issued: dict[tuple[str, int, str], int] = {}
    text = ""
    for rank, forks in chains.items():
        for fork in forks:
            if line_of(fork) == line:
                text = fork.statement.text
                returned = values_returned(fork, traces[rank]) if rank in traces else ()
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


def values_returned(fork: Fork, trace: Trace) -> Iterator[tuple[str, Plain]]:
    """The values in the `return` of each function of the program that the test called; of one that
    the head of a `for` names, when its loop began."""
    steps, test, text = trace.steps, fork.tests[0], fork.statement.text
    last = index_of(test, steps)
    for start in sorted({begun_at(test, steps), last}):
        for step in called_at(start, steps):
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


def _went(fork: Fork) -> tuple[str, int, str]:
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
        if step.event == "call" and step.line not in fork.statement.lines:
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
