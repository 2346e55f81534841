"""The later test by which ranks went past a call that others made."""

from __future__ import annotations

import linecache
from collections.abc import Sequence
from itertools import pairwise, takewhile

from joinlab.program.branches import statement_at
from joinlab.program.divergence import Branch, Test
from joinlab.program.divergence.fork import Fork, line_of
from joinlab.program.divergence.sides import test_of
from joinlab.program.traces import TraceStep


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
            decided = Fork(step.depth, statement, (step, step), (after, after))
            guarded = [line for line in statement.block if lines[line - 1].strip() == call]
            passed = after.line not in statement.block and not statement.loop
            first_test = begin.line in statement.lines  # it has both sides
            if guarded and passed and not first_test:
                return [test_of(line_of(decided), {rank: [decided] for rank in side["ranks"]})]
    if decided is None or (frame[-1].event, frame[-1].depth) != ("return", begin.depth):
        return []
    if frame[-1].line not in decided.statement.lines:
        return []  # an exception, or a later line, left the function
    indent = lines[begin.line - 1].partition(lines[begin.line - 1].strip())[0]
    for line in lines[decided.statement.last :]:
        if line.strip() == call:
            return [test_of(line_of(decided), {rank: [decided] for rank in side["ranks"]})]
        if line.strip() and not line.startswith(indent):
            break
    return []
