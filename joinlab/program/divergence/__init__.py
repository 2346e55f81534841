"""Finds where the traces of ranks diverge, by comparing their steps between two calls.

rank 0   all-reduce  8 for x in inputs   7 for epoch ...       its next call is of another input
rank 1   all-reduce  8 for x in inputs   9 net(x).sum()        they diverge at line 8: len(inputs) is 3 and 4

The window begins at the last call that all ranks of a group made from the same line, and ends at
the first one that they did not. Traces that diverge in it and meet again after the statement do not
count: `if rank == 0: print(...)`. If such a statement sets a name that a later test reads, it is
listed first: `if rank == 1: start = 1`.

Here is what a divergence consists of, as it is saved. comparison.py compares two traces and finds
forks, pairs.py chooses whose, chain.py adds the forks that led to the last one, and sides.py makes a
`Test` of a fork.
"""

from __future__ import annotations

from typing import NotRequired, TypedDict

from joinlab.program.traces import Plain


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
