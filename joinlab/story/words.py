"""Words: turns a line's nouns into marked pieces, and endings into phrases. Every form builds its
sentences of these.

say("{} wait[s|] in {}", (0,), noun(line, 0))       # pieces: "rank 0", " waits in ", "barrier"
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from joinlab.analysis.wording import ranks_text, short_site
from joinlab.ops import Op
from joinlab.story.lines import Line, NamedCall, Piece
from joinlab.timeline import EndKind

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


ENDINGS: Mapping[EndKind, EndWords] = {
    EndKind.FINISHED: EndWords("finished", "finished", "finished", "finishes"),
    EndKind.HUNG: EndWords("hangs", "hang", "hung", "hangs"),
    EndKind.RAISED: EndWords("raised an error", "raised an error", "raised an error", "raises"),
    EndKind.KILLED: EndWords("was killed", "were killed", "been killed", "is killed"),
    EndKind.UNKNOWN: EndWords(
        "has no known ending", "have no known ending", "no known ending", "unknown"
    ),
}
"""The words of every ending."""


def ends(
    ranks: Sequence[int],
    kind: str,
    pending: bool = False,
    runs: bool = False,
    world: int = 0,
    counted: bool = False,
) -> Text:
    """How ranks ended: "rank 1 hangs"; of all in a `world` of several: "both ranks hang"; `counted`:
    "2 ranks hang"."""
    ending = ENDINGS[EndKind(kind)]
    if runs:
        verb = "[is|are] still running"
    else:
        verb = f"[{ending.one}|{ending.many}]"
    if len(ranks) == world > 1:
        them = Piece(every_rank(world), ranks=tuple(ranks))
    else:
        them = who(ranks)
    if counted and 1 < len(ranks) < world:
        them = Piece(f"{len(ranks)} ranks", ranks=tuple(ranks))
    return say("{} " + verb + ", a call still pending" * pending, them)


def every_rank(count: int) -> str:
    """All ranks of so many: "both ranks"."""
    if count == 1:
        return "the one rank"
    return "both ranks" if count == 2 else f"all {count} ranks"


PLAIN: Mapping[str, str] = {
    "forward 1": "forward",
    "forward 2": "forward",
    "buffers": "forward",
    "bucket rebuild": "forward",
}
"""What a headline calls DDP's calls within a step that the program makes."""


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


def told(text: Iterable[Piece]) -> Text:
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


def sides(line: Line) -> list[tuple[int, ...]]:
    """The ranks of each side of a line, one side per call."""
    return list(map(tuple, line.facts.get("sides") or [[call.rank] for call in line.calls]))


def noun(line: Line, index: int, quote: bool = True) -> Piece:
    """The name of a line's call, in quotes if it is more than one word."""
    call = line.calls[index]
    name = f'"{call.name}"' if quote and " " in call.name else call.name
    return Piece(
        name, call=index, ranks=sides(line)[index] if index < len(sides(line)) else (call.rank,)
    )


def place(call: NamedCall) -> str:
    """The line of a call, as a suffix: " (train.py:12)"."""
    return f" ({short_site(call.site)})" if call.site else ""


def at_place(line: Line, index: int) -> Text:
    """A call with its line: "barrier (train.py:12)"."""
    return say("{}{}", noun(line, index), place(line.calls[index]))


def brief(line: Line, index: int) -> Text:
    """A call for a headline: "send to rank 1 (train.py:12)"; of a file named before, ":14"; its
    number where its line is unknown."""
    call = line.calls[index]
    if call.peer is None:
        peer = ""
    else:
        peer = f" {_to_or_from(call)} rank {call.peer}"
    before = (earlier.site.rpartition(":")[0] for earlier in line.calls[:index])
    file, _, number = call.site.rpartition(":")
    if file and file in before:
        location = f" (:{number})"
    else:
        location = place(call)
    if not call.site and call.number is not None:
        location = f", {_numbered(call)}"
    if call.name in PLAIN:
        name = replace(noun(line, index), text=PLAIN[call.name])
    else:
        name = noun(line, index)
    return name, Piece(peer + location)


def _to_or_from(call: NamedCall) -> str:
    return "to" if call.op == Op.SEND else "from"


def _numbered(call: NamedCall) -> str:
    label = call.label or str(call.number)
    return f"call {label}" if label.isdecimal() else label


def full(line: Line, index: int) -> Text:
    """A call with number and line: "barrier, call 7 of group 1 (mesh_dp) (train.py:12)"."""
    call = line.calls[index]
    if call.peer is None:
        peer = ""
    else:
        peer = f" {_to_or_from(call)} rank {call.peer}"
    peer += f" with tag {call.tag}" if call.tag else ""
    number = f", {_numbered(call)}" if call.number is not None else ""
    return (
        noun(line, index),
        Piece(peer + number + (f" of group {call.within}" if call.within else "") + place(call)),
    )


def code(text: str) -> Piece:
    """A piece of the program."""
    return Piece(text, code=True)
