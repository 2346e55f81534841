"""Calls that all met, in a run that finished, and that were used in a way that PyTorch forbids: a
Work that nobody waited for, a call of a group that its rank is not in."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from joinlab.analysis.wording import good, short_site
from joinlab.story.evidence import Evidence
from joinlab.story.lines import Line, LineKind, SourceLine
from joinlab.story.words import Text, brief, every_rank, say
from joinlab.timeline import EndKind


def find(scene: Evidence) -> tuple[Line, ...]:
    """The headline, and what to do about a Work."""
    if not all(good(end) and end.kind is EndKind.FINISHED for end in scene.ends):
        return ()
    return _unwaited(scene) or _outside(scene)


def _unwaited(scene: Evidence) -> tuple[Line, ...]:
    dropped = scene.meta.get("unwaited", ())
    rows = [scene.timeline.call(one["rank"], one["seq"], one["group"]) for one in dropped]
    if not rows:
        return ()
    site = rows[0]["call_site"]
    same = [row for row in rows if row["call_site"] == site]
    ranks = sorted({row["rank"] for row in same})
    lines = tuple(filter(None, [scene.line_of(rows[0], ranks)]))
    world = len(scene.ends)
    headline = scene.headline("not_waited", [ranks], same[:1], lines=lines, world=world)
    if scene.meta.get("fixes_hidden"):
        return (headline,)
    return (headline, Line(LineKind.FIX, "wait", tuple(ranks), facts={"site": site}))


def _outside(scene: Evidence) -> tuple[Line, ...]:
    outside = scene.meta.get("outside", ())
    if not outside:
        return ()
    first = outside[0]
    ranks = tuple(sorted({one["rank"] for one in outside if one["site"] == first["site"]}))
    lines = (SourceLine(first["site"], "", ranks),)
    facts = {"world": len(scene.ends), "name": first["name"]}
    return (Line(LineKind.HEADLINE, "outside", ranks, lines=lines, facts=facts),)


# ---------------------------------------------------------------- words


def _not_waited(line: Line) -> Text:
    said = "{} finished, but nobody waited for {}'s {}."
    return say(said, every_rank(line.facts["world"]), line.ranks, brief(line, 0))


def _outside_words(line: Line) -> Text:
    said = (
        "{} finished, but {} called {}{} for a group that [it is|they are] not in: it did nothing."
    )
    where = _place(line.lines[0].site)
    return say(said, every_rank(line.facts["world"]), line.ranks, line.facts["name"], where)


def _place(site: str | None) -> str:
    return f" ({short_site(site)})" if site else ""


WORDS: Mapping[str, Callable[[Line], Text]] = {
    "not_waited": _not_waited,
    "outside": _outside_words,
    "wait": lambda line: say(
        "Call wait() on what the call returned{} before its tensor is read.",
        _place(line.facts["site"]),
    ),
}
