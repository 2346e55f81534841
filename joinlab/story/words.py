"""Words: marked pieces of sentences, and endings as phrases. Every form builds its sentence of
these.

say("{} wait[s|] in {}", (0,), line.noun(0))        # pieces: "rank 0", " waits in ", "barrier"
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from joinlab.analysis.wording import ranks_text
from joinlab.timeline import ABRUPT, FAILED, STOPPED, EndKind


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a line's words: plain text, code, or the name of something in the picture, which a view
    shows in the same colour.

    call   place in Line.calls of the call that this noun names; None: no call
    ranks  the ranks that this noun names
    """

    text: str
    call: int | None = None
    ranks: tuple[int, ...] = ()
    code: bool = False


Text = tuple[Piece, ...]
Part = str | Piece | Text | Sequence[int]
"""A part of a sentence: a string, a piece, a text, or ranks."""

_SLOTS = re.compile(r"(\{\w*\}|\[[^][|]*\|[^][|]*\])")


class EndWords(NamedTuple):
    """The words of an ending: "rank 1 hangs", "ranks 1, 2 hang", "rank 1 has ...", and in the
    documented traces."""

    one: str
    many: str
    past: str
    trace: str


ENDINGS: Mapping[str, EndWords] = {
    EndKind.FINISHED: EndWords("finished", "finished", "finished", "finishes"),
    EndKind.HUNG: EndWords("hangs", "hang", "hung", "hangs"),
    EndKind.RAISED: EndWords("raised an error", "raised an error", "raised an error", "raises"),
    EndKind.KILLED: EndWords("was killed", "were killed", "been killed", "is killed"),
    FAILED: EndWords("failed", "failed", "failed", "fails"),
    ABRUPT: EndWords("ended abruptly", "ended abruptly", "ended abruptly", "is killed"),
    STOPPED: EndWords("was stopped", "were stopped", "been stopped", "is stopped"),
    EndKind.UNKNOWN: EndWords(
        "has no known ending", "have no known ending", "no known ending", "unknown"
    ),
}
"""The words of every ending."""


EMULATED = ", emulated; the emulation ended as this run did"
"""Behind what an emulation of a launched program showed."""


def ends(
    ranks: Sequence[int],
    kind: str,
    pending: bool = False,
    runs: bool = False,
    world: int = 0,
    counted: bool = False,
) -> Text:
    """How ranks ended: "rank 1 hangs"; of all in a `world` of several: "both ranks hang"; `counted`:
    "3 ranks hang", but of two their numbers."""
    ending = ENDINGS[kind]
    if runs:
        verb = "[is|are] still running"
    else:
        verb = f"[{ending.one}|{ending.many}]"
    if len(ranks) == world > 1:
        them = Piece(every_rank(world), ranks=tuple(ranks))
    else:
        them = who(ranks)
    if counted and 2 < len(ranks) < world:
        them = Piece(f"{len(ranks)} ranks", ranks=tuple(ranks))
    if pending:
        verb += ", a call still pending"
    return say("{} " + verb, them)


def every_rank(count: int) -> str:
    """All ranks of so many: "both ranks"."""
    if count == 1:
        return "the one rank"
    return "both ranks" if count == 2 else f"all {count} ranks"


def say(template: str, *parts: Part, **named: Part) -> Text:
    """The template with each {}, or {name}, replaced by a part, and each [one|many] chosen by the
    number of ranks.

    >>> "".join(piece.text for piece in say("{} wait[s|] for {on}", (0,), on=(1, 2)))
    'rank 0 waits for ranks 1, 2'
    """
    pieces, values, many = list[Piece](), iter(parts), False
    for index, token in enumerate(_SLOTS.split(template)):
        if index % 2 == 0:
            pieces.append(Piece(token))
        elif token[0] == "[":
            pieces.append(Piece(token[1:-1].split("|")[many]))
        else:
            new = _pieces(named[token[1:-1]] if token[1:-1] else next(values))
            if len(new) == 1 and new[0].ranks and new[0].call is None:
                many = len(new[0].ranks) > 1
            pieces += new
    assert next(values, None) is None, template
    return tuple(piece for piece in pieces if piece.text)


def _pieces(part: Part) -> Sequence[Piece]:
    if isinstance(part, str | Piece):
        return [Piece(part) if isinstance(part, str) else part]
    ranks = [item for item in part if isinstance(item, int)]
    if ranks:
        return [who(ranks)]
    return [item for item in part if isinstance(item, Piece)]


def listing(parts: Sequence[Text], between: str = "") -> Text:
    """Texts joined as a list: "a, b and c", or with `between` between them."""
    pieces: list[Piece] = []
    for index, part in enumerate(parts):
        pieces += [
            Piece("" if not index else between or (" and " if index == len(parts) - 1 else ", ")),
            *part,
        ]
    return tuple(piece for piece in pieces if piece.text)


def as_sentence(text: Iterable[Piece]) -> Text:
    """A sentence: begins with a capital letter; adjacent plain pieces become one."""
    pieces: list[Piece] = []
    for piece in text:
        plain = (
            pieces
            and piece.call is pieces[-1].call is None
            and not (piece.ranks or pieces[-1].ranks)
        )
        if plain and piece.code == pieces[-1].code:
            pieces[-1] = Piece(pieces[-1].text + piece.text, code=piece.code)
            continue
        pieces.append(piece)
    if pieces and not pieces[0].code:
        first = pieces[0]
        pieces[0] = Piece(
            first.text[:1].upper() + first.text[1:], first.call, first.ranks, first.code
        )
    return tuple(pieces)


def who(ranks: Sequence[int]) -> Piece:
    """Ranks: "ranks 0-2, 4"."""
    return Piece(ranks_text(ranks), ranks=tuple(ranks))


def code(text: str) -> Piece:
    """A piece of the program."""
    return Piece(text, code=True)
