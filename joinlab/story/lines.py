"""The story: what happened in a run, as typed lines. It holds facts, no sentence.

    story.headline                    Line(kind="headline", form="wrong_answer", ranks=(0, 1), calls=(...), ...)
    story.of(LineKind.FIX)            the fixes
    story.ranks[1].proven             True

A line says its `form`, which names the words that the writers make of it, and what it rests on: ranks, calls, source
lines and values. Three writers make text, HTML and JSON of it; `joinlab.story.forms` holds the words of each form.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

Plain = str | int | float | bool | None


class LineKind(StrEnum):
    """What a line of a story tells."""

    HEADLINE = "headline"  # the ending and its cause in one sentence
    CAUSE = "cause"  # what met, or did not, and what a rank made of it
    PARTING = "parting"  # the test where the ranks' ways part, and the values in it
    FATE = "fate"  # how ranks ended, and in which call
    FIX = "fix"  # an edit of the program
    NOTE = "note"  # how far the story reaches, and what else to know


@dataclass(frozen=True, slots=True)
class Call:
    """A call, as every writer names it.

    rank    global rank that issued it
    group   name of its process group
    seq     its key within rank and group in Timeline.calls
    number  its number in the group, from 1, as PyTorch's watchdog and dumps count; None: refused, or not known
    name    what it asks, "anyone left?": one name everywhere
    op      all_reduce, barrier, ... (an Op)
    site    "file:line" of the learner's code; "" where it is not known
    """

    rank: int
    group: str
    seq: int
    number: int | None
    name: str
    op: str
    site: str = ""


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of the program. `ranks`: those that stood there; `text`: "" where the program's text is not known."""

    site: str
    text: str = ""
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Value:
    """A value that ranks had: the name `name` in a test, or what a call gave them, and what they took it for.

    >>> Value((0,), "best", 0.4).taken
    ''
    """

    ranks: tuple[int, ...]
    name: str
    value: Plain
    taken: str = ""


@dataclass(frozen=True, slots=True)
class Tried:
    """How many of the emulated counts of inputs finished on every rank after an edit."""

    finished: int
    counts: int


@dataclass(frozen=True, slots=True)
class Edit:
    """An edit of the program's text: lines `begin`, `begin` + 1, ... of `file` (`removed`) become `added`.

    tried   None: not tried
    how     the call that tries it, where it was not tried
    """

    file: str
    begin: int
    removed: tuple[str, ...]
    added: tuple[str, ...]
    tried: Tried | None = None
    how: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a story.

    form    which words it gets: a name of `joinlab.story.forms`
    ranks   whom it is about
    calls   the calls it rests on
    meant   pairs of places in `calls`: calls that should have met
    lines   the lines of the program that it rests on
    values  the values that it rests on
    edits   of a fix: what to change
    facts   what else its words need, as plain data
    """

    kind: LineKind
    form: str
    ranks: tuple[int, ...] = ()
    calls: tuple[Call, ...] = ()
    meant: tuple[tuple[int, int], ...] = ()
    lines: tuple[SourceLine, ...] = ()
    values: tuple[Value, ...] = ()
    edits: tuple[Edit, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RankEnd:
    """How one rank ended. kind: an EndKind; `call`: the one it ended in; `proven`: of a hang, as in Ending."""

    rank: int
    kind: str
    proven: bool | None = None
    pending: bool = False
    call: Call | None = None
    text: str = ""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a line's words: plain, code, or the name of what is drawn, so that a view can give both one colour.

    call   place in Line.calls of the call that this noun names; None: no call
    ranks  the ranks that this noun names
    """

    text: str
    call: int | None = None
    ranks: tuple[int, ...] = ()
    code: bool = False


@dataclass(frozen=True, slots=True)
class Story:
    """What happened in a run.

    lines       the headline first, then in the order in which they are told
    ranks       every rank's ending
    provenance  "modelled", "recorded" or "imported"
    """

    lines: tuple[Line, ...]
    ranks: tuple[RankEnd, ...]
    provenance: str

    def __post_init__(self) -> None:
        kinds = [line.kind for line in self.lines]
        assert kinds[:1] == [LineKind.HEADLINE] and LineKind.HEADLINE not in kinds[1:], "the headline comes first"

    @property
    def headline(self) -> Line:
        """The ending and its cause in one sentence."""
        return self.lines[0]

    def of(self, kind: LineKind) -> tuple[Line, ...]:
        """The lines of one kind."""
        return tuple(line for line in self.lines if line.kind is kind)

    def plain(self) -> dict[str, Any]:
        """The story as plain data, which `json.dumps` takes: what `json_of` adds each line's pieces to."""
        return {
            "provenance": self.provenance,
            "lines": [asdict(line) for line in self.lines],
            "ranks": [asdict(rank) for rank in self.ranks],
        }
