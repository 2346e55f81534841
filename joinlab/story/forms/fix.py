"""Fixes: edits of the program's text, with the result of trying them; of an exception, the line
that raised.

`meta["fixes"]` has the tested edits. If none was tried, the line says so, and how to try some.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from joinlab.analysis.wording import by_key, good, short_site
from joinlab.story.forms.fates import is_peer_gone, raised_at
from joinlab.story.lines import Edit, Line, LineKind, SourceLine
from joinlab.story.scene import Scene
from joinlab.story.words import Text, code, say
from joinlab.timeline import EndKind

DOES = {
    "join": "Wrap the loop in join().",
    "behind": "Move the call behind the block of join().",
    "join, behind": "Wrap the loop in join(), and move the call behind it.",
    "out": "Take the call out of the branch.",
    "agree": "Let all ranks use the least value: all-reduce it. Ranks that had a greater one then run fewer rounds, or "
    "some again.",
    "flag": "Let all ranks take this branch together: all-reduce a flag.",
    "same": "Give every rank the same count.",
    "module": "Call the model's own module in evaluation.",
    "root": "Give the same root on every rank.",
}
"""What each kind of edit does."""


def find(scene: Scene) -> tuple[Line, ...]:
    """The lines that raised, and the edits that were tried."""
    raised = tuple(_raised(scene))
    fixes: Any = scene.meta.get("fixes") or ()
    tried = tuple(_plain(fix, len(set(scene.meta.get("inputs") or ())) == 1) for fix in fixes)
    if tried or raised or all(map(good, scene.ends)) or "fixes" in scene.meta:
        return (*raised, *tried)
    return _untried(scene)


def _raised(scene: Scene) -> Iterator[Line]:
    """The lines of the program that raised its own exceptions, each line once."""
    raised = [
        n
        for n, end in enumerate(scene.ends)
        if end.kind is EndKind.RAISED and not is_peer_gone(end.text)
    ]
    found = by_key(
        (site, rank) for rank in raised for site in raised_at(scene.timeline.output[rank])[:1]
    )
    for site, ranks in found.items():
        yield Line(
            LineKind.FIX, "raised_here", tuple(ranks), lines=(SourceLine(site, "", tuple(ranks)),)
        )


def _plain(fix: Mapping[str, Any], equal: bool) -> Line:
    facts = {name: fix[name] for name in ("kind", "fewer", "tried")} | {"equal": equal}
    return Line(LineKind.FIX, "edit", edits=tuple(map(Edit.of, fix["edits"])), facts=facts)


def _untried(scene: Scene) -> tuple[Line, ...]:
    meta = scene.meta
    over = not any(end.runs for end in scene.ends)
    if not over or meta.get("engine") not in ("launched", "recorded"):
        return ()
    given = f'{meta.get("program", "program")}, {tuple(meta.get("inputs") or ())}, "{meta.get("backend")}"'
    how = f"joinlab.emulate({given})" if meta["engine"] == "launched" else ""
    return (Line(LineKind.FIX, "untried", facts={"how": how}),)


# ---------------------------------------------------------------- words


def _edit(line: Line) -> Text:
    facts, tried = line.facts, line.facts["tried"]
    fewer = " Some inputs or calls are then left out." * bool(facts["fewer"])
    does = DOES.get(facts["kind"], "Change these lines.")
    counts = f"{tried} of {tried} counts of inputs{', equal on all ranks' * bool(facts['equal'])}"
    return say("{}{} Tried: every rank finishes, for {}.", does, fewer, counts)


def _untried_words(line: Line) -> Text:
    how = line.facts["how"]
    again = say("{} looks for one", code(how)) if how else "a recorded job is not run again"
    return say("No fix was tried: {}.", again)


def _raised_words(line: Line) -> Text:
    return say("Look at {}, where {} raised.", code(short_site(line.lines[0].site)), line.ranks)


WORDS: Mapping[str, Callable[[Line], Text]] = {
    "edit": _edit,
    "untried": _untried_words,
    "raised_here": _raised_words,
}
