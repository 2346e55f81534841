"""The forms: what a line of a story can say. One module holds one kind of parting: its finder and its words.

    def find(scene: Scene) -> tuple[Line, ...]      the headline and its causes; () where this is not what happened
    WORDS = {"form": words}                         by Line.form, what makes marked pieces of a line

To add a kind of parting, write such a module, add it to PARTINGS at the place where it is to be asked, and its test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

from joinlab.analysis.wording import shown
from joinlab.story.forms import (
    alone,
    circle,
    different,
    even,
    extra,
    fates,
    fix,
    kept_waiting,
    left_over,
    monitored,
    notes,
    other_lines,
    out_of_phase,
    parted,
    pasted,
    replicas,
    splits,
    standing,
    swapped,
    wrong_answer,
)
from joinlab.story.lines import Line, Piece
from joinlab.story.words import ENDINGS, Text, ends, listing, say, told
from joinlab.timeline import EndKind

PARTINGS: tuple[ModuleType, ...] = (
    pasted,
    kept_waiting,
    monitored,
    swapped,
    left_over,
    out_of_phase,
    other_lines,
    splits,
    circle,
    replicas,
    even,
    wrong_answer,
    extra,
    different,
    alone,
)
"""Asked in this order; the first that finds something tells the headline and its causes."""

WORDS: Mapping[str, Callable[[Line], Text]] = {
    form: words for module in (*PARTINGS, parted, standing, fates, fix, notes) for form, words in module.WORDS.items()
}
"""By form, what makes a line's words."""


def pieces_of(line: Line) -> tuple[Piece, ...]:
    """The words of a line as marked pieces, fit for any screen; joined they are its text."""
    groups = line.facts.get("ends", ())
    words = told((*WORDS[line.form](line), *(_endings(groups) if line.form not in _SAY_ENDINGS else ())))
    return tuple(replace(piece, text=shown(piece.text)) for piece in words)


def said(line: Line) -> str:
    """The words of a line."""
    return "".join(piece.text for piece in pieces_of(line))


_SAY_ENDINGS = {*pasted.WORDS, *even.WORDS, *kept_waiting.WORDS}
"""Headlines that say themselves how the ranks ended."""


def _endings(groups: Sequence[Mapping[str, Any]]) -> Text:
    """How the ranks ended that did not finish, behind a headline: " Rank 1 hangs."."""
    world = sum(len(one["ranks"]) for one in groups)
    bad = [one for one in groups if not one["good"] and not one["runs"] and one["kind"] != EndKind.UNKNOWN]
    if len(groups) == 1 and bad and world > 1:
        words = ENDINGS[EndKind(groups[0]["kind"])].many
        return say(
            f" {'Both' if world == 2 else f'All {world}'} ranks {words}{', a call still pending' * bad[0]['pending']}."
        )
    each = [ends(one["ranks"], one["kind"], one["pending"]) for one in bad]
    return say(" {}.", told(listing(each, "; "))) if each else ()
