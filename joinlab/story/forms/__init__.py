"""The forms of a story's lines. A module has the finders of one kind of parting, and their words.

    def find(scene: Evidence) -> tuple[Line, ...]      the headline and its causes; () if this did not happen
    WORDS = {"form": words}                         by Line.form, the function that makes marked pieces of a line

To add a kind of parting, add a module to this folder and to `finders`, at its place in the order:

    def find(scene: Evidence) -> tuple[Line, ...]:
        sides = ...                                                     # the ranks of each side; none: return ()
        return (scene.headline("mine", sides, calls), *meeting.causes(scene))

    WORDS = {"mine": lambda line: say("{} wait[s|] in {}.", line.ranks, full(line, 0))}

Its test is a program in tests/material/unseen, with the facts about it in table.toml. If an edit
fixes it, add a generator of edited texts to `joinlab/story/fixes.py`, and a sentence about the edit
to DOES of `fix`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from joinlab.analysis.wording import shown
from joinlab.story.evidence import Evidence
from joinlab.story.forms import (
    even,
    fates,
    fix,
    kept_waiting,
    mismatch,
    misused,
    notes,
    parted,
    pasted,
    silent,
    standing,
    swapped,
)
from joinlab.story.lines import Line, Piece
from joinlab.story.words import Text, ends, every_rank, listing, say, told
from joinlab.timeline import EndKind

Finder = Callable[[Evidence], tuple[Line, ...]]


def finders(scene: Evidence) -> Iterator[Finder]:
    """The finders in order; the first that finds something gives the headline and its causes."""
    yield from (
        pasted.find,
        even.cut_short,
        misused.grouped,
        standing.apart,
        kept_waiting.find,
    )
    yield from () if scene.parting.clash is not None else silent.FIRST
    yield swapped.find
    yield from (
        mismatch.FINDERS
        if scene.parting.clash is not None
        else (*silent.FINDERS, mismatch.circle, misused.find, even.find)
    )


def cause_of(scene: Evidence) -> tuple[Line, ...]:
    return next(filter(None, (find(scene) for find in finders(scene))))


WORDS: Mapping[str, Callable[[Line], Text]] = {
    form: write
    for module in (
        pasted,
        kept_waiting,
        swapped,
        silent,
        misused,
        even,
        mismatch,
        parted,
        standing,
        fates,
        fix,
        notes,
    )
    for form, write in module.WORDS.items()
}
"""By form, the function that makes a line's words."""


def pieces_of(line: Line) -> tuple[Piece, ...]:
    """The words of a line as marked pieces with safe characters; joined, they are its text."""
    groups = line.facts.get("ends", ())
    pieces = told(WORDS[line.form](line))
    if line.form not in _SAY_ENDINGS:
        sentence = told((*pieces, *_endings(groups, line)))
        if sum(len(piece.text) for piece in sentence) > LONGEST:
            sentence = told((*pieces, *_endings(groups, line, counted=True)))
        pieces = sentence
    return tuple(replace(piece, text=shown(_named(piece, line.names))) for piece in pieces)


def _named(piece: Piece, names: Mapping[int, str]) -> str:
    """The text of a piece; ranks whose numbers nothing gives by their names."""
    if names and _RANKS.fullmatch(piece.text):
        known_names = [names[rank] for rank in piece.ranks if rank in names]
        unnamed = len(piece.ranks) - len(known_names)
        return ", ".join([*known_names, *[f"{unnamed} ranks that no line names"][: bool(unnamed)]])
    return piece.text


_RANKS = re.compile(r"[Rr]anks? [\d, -]+")


def said(line: Line) -> str:
    return "".join(piece.text for piece in pieces_of(line))


LONGEST = 140
"""Characters of a headline; in a longer one the ranks that did not end well are counted, and ENDED
names them."""

_SAY_ENDINGS = {*pasted.WORDS, *even.WORDS, *kept_waiting.WORDS, "stand_apart"}
"""Headlines that already include how the ranks ended."""


def _endings(groups: Sequence[Mapping[str, Any]], line: Line, counted: bool = False) -> Text:
    """The endings of ranks that did not finish, as a suffix of a headline that has not named them:
    " Rank 1 hangs.", " 2 ranks hang.". Where calls clashed and all finished nevertheless, it says
    so."""
    world = sum(len(group["ranks"]) for group in groups)
    if (
        line.form in mismatch.WORDS
        and groups
        and all(group["good"] and group["kind"] == EndKind.FINISHED for group in groups)
    ):
        ranks = Piece(every_rank(world), ranks=tuple(chain(*(group["ranks"] for group in groups))))
        return say(" {} finished, by luck.", told((ranks,)))
    bad = [
        group
        for group in groups
        if not group["good"] and not group["runs"] and group["kind"] != EndKind.UNKNOWN
    ]
    if line.facts.get("how") in ("timed_out", "all_killed"):  # its words say how they ended
        return ()
    if line.form == "alone" and len(groups) > 1:
        state, absent = line.facts["how"], {*line.facts["absent"]}
        named = [
            absent if group["kind"] == state and not group["pending"] else set() for group in bad
        ]
        bad = [
            {**group, "ranks": sorted({*group["ranks"]} - named_ranks)}
            for group, named_ranks in zip(bad, named, strict=True)
        ]
        bad = [group for group in bad if group["ranks"]]
    texts = [
        ends(group["ranks"], group["kind"], group["pending"], world=world, counted=counted)
        for group in bad
    ]
    return say(" {}.", told(listing(texts, "; "))) if texts else ()
