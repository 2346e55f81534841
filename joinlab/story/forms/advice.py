"""Advice for a recorded job, which is not run again: what follows from the relation of its ranks'
calls, and where to look."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import chain, islice
from operator import attrgetter

from joinlab.analysis.meanings import is_own
from joinlab.analysis.wording import differing_text, short_site
from joinlab.program.divergence import are_gradients
from joinlab.story.evidence import Evidence
from joinlab.story.forms import meeting, parted, standing
from joinlab.story.lines import Line, LineKind
from joinlab.story.words import Text, brief, code, listing, say, sides
from joinlab.timeline import EndKind

_DATA = {"dtype", "shape", "root", "reduce_op"}


def find(scene: Evidence, over: bool) -> tuple[Line, ...]:
    """One line at most; () where nothing follows. While it is not over, other calls may follow, and
    only where ranks stand is known."""
    if scene.meta.get("engine") != "recorded":
        return ()
    lines = _where(scene)
    if over:
        lines = chain(lines, _at_test(scene), _what_leads(scene))
    return tuple(islice(lines, 1))


def unused(scene: Evidence) -> Iterator[Line]:
    """The cure that DDP's own error names."""
    ranks: list[int] = []
    for rank, end in enumerate(scene.ends):
        if "find_unused_parameters" in end.text:
            ranks.append(rank)
    if ranks:
        yield Line(LineKind.FIX, "unused", tuple(ranks))


def _at_test(scene: Evidence) -> Iterator[Line]:
    """The test at which the ranks' ways part, where they were recorded."""
    for line in parted.find(scene):
        if line.form == "parted":
            is_loop = line.lines[0].text.startswith(("for ", "while "))
            is_loop &= all(side["how"] not in ("raise", "call") for side in line.facts["went"])
            form = "same_rounds" if is_loop else "same_way"
            facts = {"join": is_loop and _can_join(scene)}
            yield Line(LineKind.FIX, form, line.ranks, lines=line.lines, facts=facts)


def _can_join(scene: Evidence) -> bool:
    """Whether every rank made DDP's calls alone from its first backward pass to its last, so that
    join() can shadow all of them."""
    between: dict[int, bool] = {}
    for row in scene.matched.rows:
        rank = row["rank"]
        if are_gradients([row]):
            if between.get(rank):
                return False
            between[rank] = False
        elif rank in between and is_own(row["origin"] or ""):
            between[rank] = True
    return len(between) == len(scene.ends)


def _what_leads(scene: Evidence) -> Iterator[Line]:
    """The calls at which the ranks part, or that were given unlike data."""
    slot, present = scene.clash, scene.parting.present
    if slot:
        kinds = {scene.ends[rank].kind for rank in slot.absent}
    else:
        kinds = set()
    if slot is not None and EndKind.KILLED not in kinds:
        rows = [meeting.placed(scene, slot, side) for side in present]
        if slot.differs and {*slot.differs} <= _DATA:
            form = "same_data"
        elif "splits" in slot.differs:
            form = "exchange_sizes"
        else:
            form = "what_leads"
        facts = {"differs": list(slot.differs), "absent": list(slot.absent), "pair": slot.pair}
        yield scene.line(LineKind.FIX, form, scene.sides(present), rows, **facts, ways=_ways(scene))
    elif slot is not None and kinds == {EndKind.KILLED}:
        yield Line(LineKind.FIX, "look_at_output", tuple(slot.absent))
    elif slot is None and EndKind.HUNG in map(attrgetter("kind"), scene.ends):
        yield Line(LineKind.FIX, "in_turn", facts={"ways": _ways(scene)})


def _ways(scene: Evidence) -> bool:
    """Whether the ways of its ranks were recorded, too."""
    return bool(scene.meta.get("ways"))


def _where(scene: Evidence) -> Iterator[Line]:
    """Where ranks stand outside any call."""
    for line in standing.find(scene):
        if line.form == "stands":
            yield Line(LineKind.FIX, "look_there", line.ranks, lines=line.lines[:1])


# ---------------------------------------------------------------- words


def _place(line: Line) -> Text:
    test = line.lines[0]
    return say("{} ({})", code(parted.quoted(test.text)), short_site(test.site))


def _same_rounds(line: Line) -> Text:
    if line.facts["join"]:
        join = say(", or wrap it in {}", code("with model.join():"))
    else:
        join = ()
    return say("Give every rank as many rounds of {}{}.", _place(line), join)


def _what_leads_words(line: Line) -> Text:
    parts = [say("{} to {}", ranks, brief(line, index)) for index, ranks in enumerate(sides(line))]
    if len(parts) == 1 and line.facts["absent"] and not line.facts["pair"]:
        parts.append(say("not {}", line.facts["absent"]))
    if line.facts["pair"]:
        rule = _IN_TURN
    else:
        rule = "All ranks have to issue the same calls in one order."
    return say("{} Look at what leads {}.{}", rule, listing(parts), _hint(line))


def _hint(line: Line) -> Text:
    """How to see more, unless that was done."""
    if line.facts["ways"]:
        return ()
    return say(" Recorded with {}, the job can name the branch.", code("joinlab record --ways"))


_IN_TURN = "Each send needs a recv that its peer issues before it waits for another call."


def _same_data_words(line: Line) -> Text:
    differs = differing_text(line.facts["differs"])
    return say("Let all ranks give {} the same {}.", brief(line, 0), differs)


WORDS: Mapping[str, Callable[[Line], Text]] = {
    "unused": lambda line: say(
        "{}'s error names a cure: {} looks for parameters that a backward pass leaves out.",
        line.ranks,
        code("DDP(..., find_unused_parameters=True)"),
    ),
    "same_way": lambda line: say(
        "Let all ranks go the same way at {}, or issue the same calls on each.", _place(line)
    ),
    "same_rounds": _same_rounds,
    "in_turn": lambda line: say("{}{}", _IN_TURN, _hint(line)),
    "same_data": _same_data_words,
    "what_leads": _what_leads_words,
    "exchange_sizes": lambda line: say(
        "Exchange the sizes first: what a rank sends another is what that one has to expect in {}.",
        brief(line, 0),
    ),
    "look_at_output": lambda line: say(
        "Look at the last output of {}, and whether [its host|their hosts] ran out of memory.",
        line.ranks,
    ),
    "look_there": lambda line: say(
        "Look at {}, where {} stood.", code(short_site(line.lines[0].site)), line.ranks
    ),
}
