"""The lines of a story. A form of line is a class: its facts are typed fields, and `words` makes its
sentence of them.

    OtherCall(ranks=(0, 1), sides=((0,), (1,)), calls=(...), finished=())

`joinlab.story.forms` has the forms, each beside its finder; three writers make text, HTML and JSON
of a Story.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from difflib import SequenceMatcher
from enum import StrEnum
from itertools import groupby
from operator import itemgetter, le
from typing import Any, ClassVar, NamedTuple, TypeVar, dataclass_transform

from joinlab.analysis.wording import shown
from joinlab.backend.calls import Key
from joinlab.ops import peer_text
from joinlab.showing import short_site
from joinlab.story.words import Piece, Text, as_sentence, ends, listing, say
from joinlab.timeline import EndKind

Plain = str | int | float | bool | None


class LineKind(StrEnum):
    """What a line of a story is about."""

    HEADLINE = "headline"  # the ending and its cause in one sentence
    CAUSE = "cause"  # which calls met or not, and what a rank made of it
    PARTING = "parting"  # the test where the ranks' traces diverge, and the values in it
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

    @property
    def key(self) -> Key:
        return self.rank, self.group, self.seq

    @property
    def site_text(self) -> str:
        """Its line, as a suffix: " (train.py:12)"."""
        return f" ({short_site(self.site)})" if self.site else ""

    @property
    def peer_text(self) -> str:
        """The other rank, as a suffix: " to rank 1"."""
        return peer_text(self.op, self.peer)

    @property
    def number_text(self) -> str:
        """Its number, as a suffix: ", call 7"; "" if it is not known."""
        if self.number is None:
            return ""
        label = self.label or str(self.number)
        return f", call {label}" if label.isdecimal() else f", {label}"


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


class Hunk(NamedTuple):
    """Lines `begin`, `begin` + 1, ... of a program (`removed`), in whose place an edit puts `added`:
    the same lines, at most indented further, if it has `kept` them."""

    begin: int
    removed: tuple[str, ...]
    added: tuple[str, ...]
    kept: bool


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

    def hunks(self) -> Iterator[Hunk]:
        """Its lines in order; those that it only indents further, because it puts a block around
        them, are hunks of their own."""
        before, after = ([text.strip() for text in texts] for texts in (self.removed, self.added))
        matcher = SequenceMatcher(None, before, after, autojunk=False)
        for tag, first, last, begin, end in matcher.get_opcodes():
            old, new = self.removed[first:last], self.added[begin:end]
            if tag != "equal":
                yield Hunk(self.begin + first, old, new, False)
                continue
            at_least_as_far = map(le, map(len, old), map(len, new))
            for kept, lines in groupby(enumerate(at_least_as_far), itemgetter(1)):
                (start, _), *others = lines
                part = slice(start, start + 1 + len(others))
                yield Hunk(self.begin + first + start, old[part], new[part], kept)


L = TypeVar("L")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def form(line: type[L]) -> type[L]:
    """Decorates a form of line that has facts of its own, which come first where it is made."""
    return dataclass(frozen=True, slots=True)(line)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line(ABC):
    """One line of a story. Its subclasses are the forms.

    ranks   the ranks that it is about
    sides   the ranks of each side, one side per call
    calls   the calls behind it
    meant   pairs of places in `calls`: calls that should have met
    lines   the lines of the program behind it
    values  the values behind it
    edits   of a fix: the edits
    names   what ranks are called whose numbers nothing gives
    """

    kind: LineKind
    ranks: tuple[int, ...] = ()
    sides: tuple[tuple[int, ...], ...] = ()
    calls: tuple[NamedCall, ...] = ()
    meant: tuple[tuple[int, int], ...] = ()
    lines: tuple[SourceLine, ...] = ()
    values: tuple[Value, ...] = ()
    edits: tuple[Edit, ...] = ()
    names: Mapping[int, str] = field(default_factory=dict)

    inner: ClassVar[str] = ""
    """The field whose facts are the form's."""

    @abstractmethod
    def words(self) -> Text:
        """Its sentence."""

    @property
    def form(self) -> str:
        """The name of its form in plain data: of OtherCall, "other_call"."""
        return form_of(self)

    def facts(self) -> dict[str, Any]:
        """The facts of its form as plain data."""
        plain = asdict(self).items()  # `in_`: `in` is no name in Python
        facts = {name.rstrip("_"): fact for name, fact in plain if name not in _COMMON}
        facts |= facts.pop(self.inner, {})
        return facts

    def plain(self) -> dict[str, object]:
        """The line as plain data, with its words as "text" and as "pieces"."""
        common = {name: fact for name, fact in asdict(self).items() if name in _COMMON}
        words = {"text": self.sentence, "pieces": list(map(asdict, self.pieces()))}
        return {"form": self.form, **common, "facts": self.facts(), **words}

    # ---------------- words

    def complete(self) -> Text:
        """All its words, as a sentence."""
        return as_sentence(self.words())

    def pieces(self) -> Text:
        """Its words as marked pieces with safe characters; joined, they are its text."""
        return tuple(replace(piece, text=shown(self._named(piece))) for piece in self.complete())

    @property
    def sentence(self) -> str:
        return "".join(piece.text for piece in self.pieces())

    def _named(self, piece: Piece) -> str:
        """The text of a piece; ranks whose numbers nothing gives by their names."""
        if self.names and _RANKS.fullmatch(piece.text):
            known_names = [self.names[rank] for rank in piece.ranks if rank in self.names]
            unnamed = len(piece.ranks) - len(known_names)
            return ", ".join(
                [*known_names, *[f"{unnamed} ranks that no line names"][: bool(unnamed)]]
            )
        return piece.text

    def noun(self, index: int, quote: bool = True) -> Piece:
        """The name of a call, in quotes if it is more than one word."""
        call = self.calls[index]
        name = f'"{call.name}"' if quote and " " in call.name else call.name
        ranks = self.sides[index] if index < len(self.sides) else (call.rank,)
        return Piece(name, call=index, ranks=ranks)

    def with_site(self, index: int) -> Text:
        """A call with its line: "barrier (train.py:12)"."""
        return say("{}{}", self.noun(index), self.calls[index].site_text)

    def brief(self, index: int) -> Text:
        """A call for a headline: "send to rank 1 (train.py:12)"; of a file named before, ":14"; its
        number where its line is unknown."""
        call, name = self.calls[index], self.noun(index)
        before = (earlier.site.rpartition(":")[0] for earlier in self.calls[:index])
        file, _, number = call.site.rpartition(":")
        if file and file in before:
            location = f" (:{number})"
        else:
            location = call.site_text or call.number_text
        if call.name in PLAIN:
            name = replace(name, text=PLAIN[call.name])
        return name, Piece(call.peer_text + location)

    def full(self, index: int) -> Text:
        """A call with number and line: "barrier, call 7 of group 1 (mesh_dp) (train.py:12)"."""
        call = self.calls[index]
        tag = f" with tag {call.tag}" if call.tag else ""
        group = f" of group {call.within}" if call.within else ""
        return (
            self.noun(index),
            Piece(call.peer_text + tag + call.number_text + group + call.site_text),
        )


def form_of(line: object) -> str:
    """The name of a class in plain data."""
    return _CAPITAL.sub("_", type(line).__name__).lower()


_COMMON = {entry.name for entry in fields(Line)} - {"sides"}
_CAPITAL = re.compile(r"(?<!^)(?=[A-Z])")
_RANKS = re.compile(r"[Rr]anks? [\d, -]+")

PLAIN: Mapping[str, str] = {
    "forward 1": "forward",
    "forward 2": "forward",
    "buffers": "forward",
    "bucket rebuild": "forward",
}
"""What a headline calls DDP's calls within a step that the program makes."""


@dataclass(frozen=True, slots=True)
class RankEnds:
    """How some ranks ended alike; good: they finished and left nothing pending, or still run."""

    ranks: tuple[int, ...]
    kind: str
    pending: bool = False
    runs: bool = False
    good: bool = False


LONGEST = 140
"""Characters of a headline; in a longer one the ranks that did not end well are counted, and ENDED
names them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline(Line):
    """The ending and its cause in one sentence.

    ends    how all ranks ended
    caught  ranks that finished, though a call of theirs had failed
    """

    kind: LineKind = LineKind.HEADLINE
    ends: tuple[RankEnds, ...] = ()
    caught: tuple[int, ...] = ()

    says_ends: ClassVar[bool] = False
    """Whether its words already say how the ranks ended."""

    def complete(self) -> Text:
        text = as_sentence(self.words())
        if self.says_ends:
            return text
        sentence = as_sentence((*text, *self.endings()))
        if sum(len(piece.text) for piece in sentence) > LONGEST:
            sentence = as_sentence((*text, *self.endings(counted=True)))
        return sentence

    def endings(self, counted: bool = False) -> Text:
        """The endings of ranks that did not finish, as a suffix of a headline that has not named
        them: " Rank 1 hangs.", " 3 ranks hang."."""
        world = sum(len(group.ranks) for group in self.ends)
        texts = [
            ends(group.ranks, group.kind, group.pending, world=world, counted=counted)
            for group in self.bad_ends()
        ]
        return say(" {}.", as_sentence(listing(texts, "; "))) if texts else ()

    def bad_ends(self) -> list[RankEnds]:
        """How ranks ended that did not end well, as far as it is known."""
        return [
            group
            for group in self.ends
            if not group.good and not group.runs and group.kind is not EndKind.UNKNOWN
        ]


@form
class Cause(Line):
    """Which calls met or not, and what a rank made of it."""

    kind: LineKind = field(default=LineKind.CAUSE, kw_only=True)


@form
class Fix(Line):
    """An edit of the program, or where to look."""

    kind: LineKind = field(default=LineKind.FIX, kw_only=True)


@form
class Note(Line):
    """Limits of the story, and other remarks."""

    kind: LineKind = field(default=LineKind.NOTE, kw_only=True)


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
