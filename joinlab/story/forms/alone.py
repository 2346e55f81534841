"""A call that nothing meets: its peers have ended, or wait elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from joinlab.story.forms import meeting
from joinlab.story.lines import Line, LineKind
from joinlab.story.scene import Scene
from joinlab.story.words import ENDINGS, Text, full, s, say, sides, who
from joinlab.timeline import Ending, EndKind


def find(scene: Scene) -> tuple[Line, ...]:
    """The one side that issued a call at the clash, and those that did not."""
    parting, slot = scene.parting, scene.parting.slot
    side = parting.present[0]
    row = parting.call(slot, side[0])
    absent, beside = parting.absent(slot), parting.ranks(side)
    gone = [rank for rank in absent if scene.ends[rank].kind is not EndKind.HUNG]
    which = gone or absent
    unrecorded = [rank for rank in which if rank in scene.meta.get("missing_ranks", ())]
    how = "nothing"
    if unrecorded:
        which, how = unrecorded, "no_record"
    elif which:
        how = scene.ends[which[0]].kind.value
        if out_of_time(scene.ends[which[0]]):
            how = "out_of_time"
        elif all(scene.ends[rank].kind is EndKind.KILLED for rank in (*which, *beside)):
            how = "all_killed"  # one may have been killed first, and its launcher ended the rest
        elif scene.ends[which[0]].runs:
            how = "runs"
    headline = Line(
        LineKind.HEADLINE,
        "alone",
        tuple(sorted({*which, *beside})),
        (scene.call(row),),
        lines=scene.lines_at(slot),
        facts={"sides": [list(beside)], "absent": which, "how": how},
    )
    return (headline, *meeting.causes(scene))


def out_of_time(end: Ending) -> bool:
    """Whether joinlab ended a rank because its time was over."""
    return end.kind is EndKind.KILLED and "still running after" in end.text


def _words(line: Line) -> Text:
    absent, how, mine = line.facts["absent"], line.facts["how"], sides(line)[0]
    call = full(line, 0)
    if how == "nothing":
        return say("No call meets {}'s {}.", who(mine), call)
    if how == "all_killed":
        return say("{} were killed; {} had not come to {}'s {}.", who(line.ranks), who(absent), who(mine), call)
    if how == "no_record":
        wait = f"wait{s(mine)}"
        return say("There is no record of {}; {} " + wait + " in {}.", who(absent), who(mine), call)
    several = len(absent) > 1
    are = "are" if several else "is"
    verb = {
        "out_of_time": f"{'were' if several else 'was'} still running when the time was over",
        "runs": f"{are} still running",
        EndKind.HUNG: f"wait{s(absent)} elsewhere",
        EndKind.UNKNOWN: f"{'have' if several else 'has'} no more calls on record",
    }.get(how)
    if verb is None:
        verb = ENDINGS[EndKind(how)].many if several else ENDINGS[EndKind(how)].one
    return say("{} " + verb + "; nothing meets {}'s {}.", who(absent), who(mine), call)


WORDS: Mapping[str, Callable[[Line], Text]] = {"alone": _words}
