"""A call too many: one side issued the same calls as the other, and some more. "More" is said of counts that are so."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from joinlab.analysis.parting import Shift
from joinlab.analysis.wording import at_input
from joinlab.story.forms import meeting
from joinlab.story.lines import Line, LineKind
from joinlab.story.scene import Scene
from joinlab.story.words import Text, is_or_are, noun, place, say, sides, who


def find(scene: Scene) -> tuple[Line, ...]:
    """Calls that one side issued more than the other, where their counts say so, too."""
    parting = scene.parting
    shift, more = parting.shift, parting.extra
    if shift is None or len(more) != shift.by:
        return ()
    names = {scene.call(row).name for row in more}
    ahead, behind = shift.ahead[0], shift.behind[0]
    counts = [scene.count(rank, more[0]) for rank in (ahead, behind)]
    if len(names) > 1 or counts[0] - counts[1] != shift.by:
        return ()
    fewer = parting.odd == parting.ranks(shift.behind)
    both = [shift.behind, shift.ahead] if fewer else [shift.ahead, shift.behind]
    headline = Line(
        LineKind.HEADLINE,
        "fewer" if fewer else "more",
        tuple(sorted(rank for side in both for rank in scene.ranks(side))),
        (scene.call(more[0]),),
        facts={"sides": scene.sides(both), "by": shift.by, "counts": counts[::-1] if fewer else counts},
    )
    return (headline, *_since(scene, shift), *meeting.causes(scene))


def _since(scene: Scene, shift: Shift) -> Iterator[Line]:
    parting = scene.parting
    if parting.first == parting.clash:
        return
    row, other = parting.extra[0], parting.collectives(shift.behind[0])[shift.at]
    same_line = row["call_site"] == other["call_site"]
    yield Line(
        LineKind.CAUSE,
        "ahead_since",
        (*scene.ranks(shift.ahead), *scene.ranks(shift.behind)),
        (scene.call(row), scene.call(other)),
        lines=scene.lines_at(parting.slots[parting.first or 0]),
        facts={
            "sides": scene.sides((shift.ahead, shift.behind)),
            "by": shift.by,
            "input": at_input(other["input"] or 0, scene.meta) if same_line else "",
        },
    )


def _words(line: Line) -> Text:
    who_has, other = sides(line) if len(sides(line)) == 2 else (line.ranks, line.ranks)
    by, counts = line.facts["by"], line.facts["counts"]
    count = "one" if by == 1 else str(by)
    return say(
        "{} issued " + count + " {} " + f"{line.form} than " + "{}" + f" ({counts[0]} and {counts[1]}).",
        who(who_has), noun(line, 0, quote=False), who(other),
    )  # fmt: skip


def _since_words(line: Line) -> Text:
    ahead, behind = sides(line)
    by, number = line.facts["by"], line.calls[0].number
    count = "one call" if by == 1 else f"{by} calls"
    same = f"the same for {line.facts['input']}" if line.facts["input"] else "the same from another line"
    return say(
        "{} " + f"{is_or_are(ahead)} {count} ahead since call {number}{place(line.calls[0])}, where " + "{} called "
        + f"{same}{place(line.calls[1])}.", who(ahead), who(behind),
    )  # fmt: skip


WORDS: Mapping[str, Callable[[Line], Text]] = {"more": _words, "fewer": _words, "ahead_since": _since_words}
