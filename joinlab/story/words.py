"""Words: how a line's nouns become marked pieces, and how an ending reads. Every form says its sentences with these.

say("{} asked: {}", who((0,)), noun(line, 0))       # pieces: "rank 0", " asked: ", "anyone left?"
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from joinlab.analysis.wording import ranks_text, short_site
from joinlab.ops import Op
from joinlab.story.lines import Call, Line, Piece
from joinlab.timeline import EndKind

Text = tuple[Piece, ...]


class EndWords(NamedTuple):
    """How an ending reads: "rank 1 hangs", "ranks 1, 2 hang", "rank 1 has ...", and in the documented traces."""

    one: str
    many: str
    past: str
    trace: str


ENDINGS: Mapping[EndKind, EndWords] = {
    EndKind.FINISHED: EndWords("finished", "finished", "finished", "finishes"),
    EndKind.HUNG: EndWords("hangs", "hang", "hung", "hangs"),
    EndKind.RAISED: EndWords("raised an error", "raised an error", "raised an error", "raises"),
    EndKind.KILLED: EndWords("was killed", "were killed", "been killed", "is killed"),
    EndKind.UNKNOWN: EndWords("has no known ending", "have no known ending", "no known ending", "unknown"),
}
"""The one table of how endings read."""


def ends(ranks: Sequence[int], kind: str, pending: bool = False, runs: bool = False) -> Text:
    """How ranks ended: "rank 1 hangs"."""
    words = ENDINGS[EndKind(kind)]
    verb = words.many if len(ranks) > 1 else words.one
    verb = ("are still running" if len(ranks) > 1 else "is still running") if runs else verb
    return say("{} " + verb + ", a call still pending" * pending, who(ranks))


def say(template: str, *parts: str | Piece | Text) -> Text:
    """The template with each {} replaced by a part."""
    between = template.split("{}")
    assert len(between) == len(parts) + 1, template
    found: list[Piece] = [Piece(between[0])]
    for part, rest in zip(parts, between[1:], strict=True):
        found += part if not isinstance(part, str | Piece) else [Piece(part) if isinstance(part, str) else part]
        found.append(Piece(rest))
    return tuple(piece for piece in found if piece.text)


def listing(parts: Sequence[Text], last: str = " and ") -> Text:
    """Texts as a list is read: "a, b and c"."""
    found: list[Piece] = []
    for at, part in enumerate(parts):
        found += [Piece("" if not at else last if at == len(parts) - 1 else ", "), *part]
    return tuple(piece for piece in found if piece.text)


def told(text: Iterable[Piece]) -> Text:
    """A sentence: a capital letter in front, and plain pieces that follow each other as one."""
    found: list[Piece] = []
    for piece in text:
        plain = found and piece.call is found[-1].call is None and not (piece.ranks or found[-1].ranks)
        if plain and piece.code == found[-1].code:
            found[-1] = Piece(found[-1].text + piece.text, code=piece.code)
            continue
        found.append(piece)
    if found and not found[0].code:
        first = found[0]
        found[0] = Piece(first.text[:1].upper() + first.text[1:], first.call, first.ranks, first.code)
    return tuple(found)


def who(ranks: Sequence[int]) -> Piece:
    """Ranks: "ranks 0-2, 4"."""
    return Piece(ranks_text(ranks), ranks=tuple(ranks))


def is_or_are(ranks: Sequence[int]) -> str:
    """The verb that goes with so many."""
    return "are" if len(ranks) > 1 else "is"


def s(ranks: Sequence[int]) -> str:
    """The ending of a verb of one rank: "waits", "wait"."""
    return "" if len(ranks) > 1 else "s"


def sides(line: Line) -> list[tuple[int, ...]]:
    """The ranks that each of a line's calls stands for."""
    return [tuple(ranks) for ranks in line.facts.get("sides") or [[call.rank] for call in line.calls]]


def noun(line: Line, at: int, quote: bool = True) -> Piece:
    """The name of a line's call, in quotes if it is more than one word."""
    call = line.calls[at]
    name = f'"{call.name}"' if quote and " " in call.name else call.name
    return Piece(name, call=at, ranks=sides(line)[at] if at < len(sides(line)) else (call.rank,))


def place(call: Call) -> str:
    """The line of a call, to be said behind it: " (train.py:12)"."""
    return f" ({short_site(call.site)})" if call.site else ""


def at_place(line: Line, at: int) -> Text:
    """A call with its line: "barrier (train.py:12)"."""
    return say("{}" + place(line.calls[at]), noun(line, at))


def full(line: Line, at: int) -> Text:
    """A call with number and line: "barrier, call 7 of group 1 (mesh_dp) (train.py:12)"."""
    call = line.calls[at]
    number = f", call {call.number}" if call.number is not None else ""
    peer = "" if call.peer is None else f" {'to' if call.op == Op.SEND else 'from'} rank {call.peer}"
    return say("{}" + peer + number + (f" of group {call.within}" if call.within else "") + place(call), noun(line, at))


def code(text: str) -> Piece:
    """A piece of the program."""
    return Piece(text, code=True)
