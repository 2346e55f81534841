"""The typed lines of a story, which hold facts and no sentences.

    Line(kind="headline", form="wrong_answer", ranks=(0, 1), calls=(...), ...)

A line has a `form`, which selects its sentence, and the facts behind it: ranks, calls, source lines
and values. `joinlab.story.forms` has the words of each form; three writers make text, HTML and JSON
of a Story.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

Plain = str | int | float | bool | None


class LineKind(StrEnum):
    """What a line of a story is about."""

    HEADLINE = "headline"  # the ending and its cause in one sentence
    CAUSE = "cause"  # which calls met or not, and what a rank made of it
    PARTING = "parting"  # the test where the ranks' ways part, and the values in it
    FATE = "fate"  # how ranks ended, and in which call
    FIX = "fix"  # an edit of the program
    NOTE = "note"  # limits of the story, and other remarks


@dataclass(frozen=True, slots=True)
class NamedCall:
    """A call as all writers name it.

    rank    global rank that issued it
    group   name of its process group
    seq     its key within rank and group in Timeline.calls
    number  its number in the group, from 1, as PyTorch's watchdog and dumps count; None: refused, or not known
    name    its question, "anyone left?": the same name everywhere
    op      all_reduce, barrier, ... (an Op)
    site    "file:line" of the learner's code; "" where it is not known
    label   its number as its record counts: "7", "opCount 28c"
    peer    the rank that a send goes to, or a recv comes from
    within  what people call its group, "1 (mesh_dp)"; "" where the run has one group
    tag     of a send or a recv; 0 on NCCL, where PyTorch ignores it
    """

    rank: int
    group: str
    seq: int
    number: int | None
    name: str
    op: str
    site: str = ""
    within: str = ""
    peer: int | None = None
    tag: int = 0
    label: str = ""


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of the program.

    text   "" if the program's text is unknown
    ranks  the ranks that were there
    via    the lines that led there, nearest first: the calls of the function that `site` is in
    """

    site: str
    text: str = ""
    ranks: tuple[int, ...] = ()
    via: tuple[SourceLine, ...] = ()


@dataclass(frozen=True, slots=True)
class Value:
    """A value that ranks had: of the name `name` in a test, or from a call, with its meaning to
    them (`taken`).

    >>> Value((0,), "best", 0.4).taken
    ''
    """

    ranks: tuple[int, ...]
    name: str
    value: Plain
    taken: str = ""


@dataclass(frozen=True, slots=True)
class Edit:
    """An edit of the program's text: lines `begin`, `begin` + 1, ... of `file` (`removed`) become
    `added`."""

    file: str
    begin: int
    removed: tuple[str, ...]
    added: tuple[str, ...]

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Edit:
        """The Edit from its plain data, in which JSON may have turned tuples into lists."""
        return cls(plain["file"], plain["begin"], tuple(plain["removed"]), tuple(plain["added"]))


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a story.

    form    selects its sentence: a name in WORDS of `joinlab.story.forms`
    ranks   the ranks that it is about
    calls   the calls behind it
    meant   pairs of places in `calls`: calls that should have met
    lines   the lines of the program behind it
    values  the values behind it
    edits   of a fix: the edits
    facts   other facts that its words need, as plain data
    names   what ranks are called whose numbers nothing gives
    """

    kind: LineKind
    form: str
    ranks: tuple[int, ...] = ()
    calls: tuple[NamedCall, ...] = ()
    meant: tuple[tuple[int, int], ...] = ()
    lines: tuple[SourceLine, ...] = ()
    values: tuple[Value, ...] = ()
    edits: tuple[Edit, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    names: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EndingLine:
    """How one rank ended. kind: an EndKind; `call`: the one it ended in; `proven`: of a hang, as in
    Ending."""

    rank: int
    kind: str
    proven: bool | None = None
    pending: bool = False
    call: NamedCall | None = None
    text: str = ""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a line's words: plain, code, or the name of what is drawn, so that a view can give
    both one colour.

    call   place in Line.calls of the call that this noun names; None: no call
    ranks  the ranks that this noun names
    """

    text: str
    call: int | None = None
    ranks: tuple[int, ...] = ()
    code: bool = False
