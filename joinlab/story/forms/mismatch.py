"""The clash: calls that differ in one place, or that nothing meets, and what the ranks made of
them.

The finders are tried in the order of FINDERS: a question that another call answered, a call too
many, ranks that wait in a circle, different calls in one place, and a call that no other call
meets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain

from joinlab.analysis.first_difference import Lead
from joinlab.analysis.meanings import asks_of
from joinlab.analysis.wording import differing_text
from joinlab.ops import POINT_TO_POINT
from joinlab.story.evidence import Evidence
from joinlab.story.forms import meeting, silent
from joinlab.story.forms.fates import is_timeout
from joinlab.story.lines import Line
from joinlab.story.words import Part, Text, brief, ends, listing, noun, place, say, sides, told, who
from joinlab.timeline import CallRow, Ending, EndKind

FEW = 3
"""Up to this many sides, the headline says what each side gave."""


def circle(scene: Evidence) -> tuple[Line, ...]:
    """Ranks that wait for each other in a circle, each in a call that the next one left out."""
    rows = scene.parting.circle or _crossed(scene)
    if not rows:
        return ()
    by_call: dict[tuple[object, ...], tuple[CallRow, set[int]]] = {}
    for row, before in zip(rows, (rows[-1], *rows), strict=False):
        call = row["origin"], row["op"], row["number"], row["group"], row["call_site"]
        needs = scene.slot_of[before["rank"], before["group"], before["seq"]].needs
        by_call.setdefault(call, (row, set()))[1].update(
            {*scene.parting.ranks((row["rank"],))} & {*needs}
        )
    ranks_by_call = [sorted(ranks) for _, ranks in by_call.values()]
    first = (row for row, _ in by_call.values())
    call_rows = [
        row if len(ranks) == 1 else {**row, "peer": None}
        for row, ranks in zip(first, ranks_by_call, strict=True)
    ]
    headline = scene.headline("circle", ranks_by_call, call_rows)  # type: ignore[arg-type]
    return (headline, *(meeting.causes(scene) if scene.parting.circle else ()))


def _crossed(scene: Evidence) -> tuple[CallRow, ...]:
    """Sends and recvs in which ranks wait: each rank would issue the one that the next rank waits
    for only later."""
    waits: dict[int, CallRow] = {}
    for rank, end in enumerate(scene.ends):
        stands = end.pending or end.kind is EndKind.HUNG
        if stands and scene.parting.clash is None:
            key = scene.awaited(rank)
        else:
            key = None
        while key is not None and (held_up_by := scene.held_by(key)):
            key = held_up_by
        if key is not None and (row := scene.matched.row_of[key])["op"] in POINT_TO_POINT:
            slot, peer = scene.slot_of[key], row["peer"]
            if peer in slot.calls and (
                end.kind is EndKind.HUNG or scene.parting.call(slot, peer)["started_ns"] is None
            ):
                waits[rank] = row
    path: list[int] = []
    rank_there = next(iter(waits), None)
    while rank_there in waits and rank_there not in path:
        path.append(rank_there)
        rank_there = waits[rank_there]["peer"]
    if rank_there in path:
        return tuple(waits[rank] for rank in path[path.index(rank_there) :])
    return ()


def wrong_answer(scene: Evidence) -> tuple[Line, ...]:
    """Two calls that met, of which one asks and has read the other's value: "anyone left?" met a
    barrier."""
    parting, slot, present = scene.parting, scene.parting.slot, scene.parting.present
    for asker, answer in ((0, 1), (1, 0)) if len(present) > 1 and slot.met else ():
        asked, answered = (parting.call(slot, present[side][0]) for side in (asker, answer))
        if (
            asks_of(asked).endswith("?")
            and asked["completed_ns"] is not None
            and asked["value_out"]
        ):
            both, rows = scene.sides([present[asker], present[answer]]), (asked, answered)
            values = (meeting.value_of(scene, present[asker], asked),)
            headline = scene.headline(
                "wrong_answer", both, rows, lines=scene.lines_at(slot), values=values
            )
            return (headline, *meeting.causes(scene))
    return ()


def extra(scene: Evidence) -> tuple[Line, ...]:
    """Calls that one side issued more often than the other, by their counts."""
    parting = scene.parting
    shift, extra_calls = parting.shift, parting.extra
    if shift is None or len(extra_calls) != shift.by:
        return ()
    names = {*map(asks_of, extra_calls)}
    counts_by_side = []
    for side in (shift.ahead, shift.behind):
        counts_by_side.append({scene.count(rank, extra_calls) for rank in side})
    counts = list(map(max, counts_by_side))
    if (
        len(names) > 1
        or any(len(side_counts) > 1 for side_counts in counts_by_side)
        or counts[0] - counts[1] != shift.by
    ):
        return ()
    fewer = parting.odd == parting.ranks(shift.behind)
    both = scene.sides([shift.behind, shift.ahead] if fewer else [shift.ahead, shift.behind])
    facts = {"by": shift.by, "counts": counts[::-1] if fewer else counts}
    lines = {row["call_site"]: row for row in extra_calls[::-1]}
    headline = scene.headline("fewer" if fewer else "more", both, [*lines.values()][::-1], **facts)
    return (headline, *_since(scene, shift), *meeting.causes(scene))


def _since(scene: Evidence, shift: Lead) -> Iterator[Line]:
    """The call that met the first extra call, if both came from a line of their own."""
    parting, sides = scene.parting, (shift.ahead, shift.behind)
    slot = parting.slots[parting.first or 0]
    rows = [parting.call(slot, side[0]) for side in sides if side[0] in slot.calls]
    if (
        slot is not parting.slot
        and not parting.joins
        and len({row["call_site"] for row in rows}) > 1
    ):
        yield meeting.met(scene, slot, sides)


def different(scene: Evidence) -> tuple[Line, ...]:
    """Different calls in one place: their kind, origin or data differs."""
    parting, slot, present = scene.parting, scene.parting.slot, scene.parting.present
    if len(present) < 2:
        return ()
    rows = [parting.call(slot, side[0]) for side in present]
    differs = slot.differs
    both, lines = scene.sides(present), scene.lines_at(slot)
    if differs and not {"op", "origin"} & set(differs):
        facts = {"differs": list(differs), "given": [meeting.given(row, differs) for row in rows]}
        return (
            scene.headline("other_data", both, rows, lines=lines, **facts),
            *meeting.causes(scene),
            *meeting.keys(scene),
        )
    finished = [rank for rank in slot.absent if scene.ends[rank].kind is EndKind.FINISHED]
    ranks = tuple(sorted({*finished, *chain(*both)}))
    headline = scene.headline("other_call", both, rows, ranks=ranks, lines=lines, finished=finished)
    return (headline, *meeting.causes(scene))


def alone(scene: Evidence) -> tuple[Line, ...]:
    """A call that nothing meets: its peers have ended, or wait elsewhere."""
    parting, slot = scene.parting, scene.parting.slot
    side = parting.present[0]
    absent = slot.absent
    alongside = tuple(rank for rank in parting.ranks(side) if rank in slot.needs)
    which = [rank for rank in absent if scene.ends[rank].kind is not EndKind.HUNG] or absent
    unrecorded = [rank for rank in which if rank in scene.meta.get("missing_ranks", ())]
    state = "nothing"
    if unrecorded:
        done = parting.call(slot, side[0])["completed_ns"] is not None
        which, state = unrecorded, "completed" if done else "no_record"
    elif which:
        end = scene.ends[min(which, key=partial(_ended_later, scene))]
        which = [
            rank
            for rank in which
            if (scene.ends[rank].kind, scene.ends[rank].runs) == (end.kind, end.runs)
        ]
        if out_of_time(end):
            state = "out_of_time"
        elif end.runs:
            state = "runs"
        else:
            state = end.kind.value
        if state == EndKind.KILLED and all(is_timeout(scene.ends[rank].text) for rank in alongside):
            state = "timed_out"  # and then their launcher ended the others
        if state == EndKind.KILLED and all(
            scene.ends[rank].kind is EndKind.KILLED for rank in (*which, *alongside)
        ):
            # perhaps one was killed first, and its launcher then killed the others
            state = "all_killed"
    fields = {
        "ranks": tuple(sorted({*which, *alongside})),
        "lines": scene.lines_at(slot),
        "absent": which,
        "how": state,
    }
    return (
        scene.headline("alone", [alongside], [meeting.placed(scene, slot, side)], **fields),
        *meeting.causes(scene),
    )


def _ended_later(scene: Evidence, rank: int) -> tuple[bool, bool, bool]:
    """Orders ranks: those that were killed, that raised outside of all calls, that raised in one,
    that finished."""
    kind = scene.ends[rank].kind
    return kind is EndKind.FINISHED, kind is not EndKind.KILLED, scene.awaited(rank) is not None


def out_of_time(end: Ending) -> bool:
    """Whether joinlab ended a rank because its time was over."""
    return end.kind is EndKind.KILLED and "still running after" in end.text


FINDERS = (wrong_answer, extra, circle, silent.splits, different, alone)


# ---------------------------------------------------------------- words


def _circle(line: Line) -> Text:
    """Up to two calls by name; ENDED has each rank's own."""
    parts = [say("{} in {}", ranks, brief(line, index)) for index, ranks in enumerate(sides(line))]
    if len({(call.name, call.site) for call in line.calls}) == 1:
        return say("{} wait for each other, each in {}.", line.ranks, brief(line, 0))
    if len(parts) > 2:
        return say("{} wait for each other in a circle.", line.ranks)
    return say("{} wait for each other: {}.", line.ranks, listing(parts))


def _wrong_answer(line: Line) -> Text:
    asker, answer = sides(line)[:2]
    return say(
        "{} asked: {} {}'s {} answered.",
        asker,
        noun(line, 0, quote=False),
        told((who(answer),)),
        noun(line, 1),
    )


def _extra(line: Line) -> Text:
    who_has, lagging = sides(line)
    by, counts = line.facts["by"], line.facts["counts"]
    many = "one" if by == 1 else f"{by} calls of"
    call = say("{} {}{}", many, noun(line, 0, quote=False), "".join(map(place, line.calls)))
    return say(
        "{} issued {} {} than {} ({} and {}).", who_has, call, line.form, lagging, *map(str, counts)
    )


def _other_call(line: Line) -> Text:
    parts = []
    for index, ranks in enumerate(sides(line)):
        parts.append(say("{} called {}", ranks, noun(line, index)))
    if line.facts["finished"]:
        finished = [say("{} finished", line.facts["finished"])]
    else:
        finished = []
    return say("{}, where {}.", parts[0], listing([*parts[1:], *finished]))


def _other_data(line: Line) -> Text:
    if len(line.calls) > FEW:
        return say(
            "{} called {}, but differ in {}.",
            line.ranks,
            noun(line, 0),
            differing_text(line.facts["differs"]),
        )
    values = line.facts["given"]
    names = [
        say(" called {}", noun(line, index)) if call.op != line.calls[0].op else ()
        for index, call in enumerate(line.calls)
    ]
    others_text = [
        say("{}{} with {}", ranks, names[index], values[index])
        for index, ranks in enumerate(sides(line))
        if index
    ]
    return say(
        "{} called {} with {}, {}.", sides(line)[0], noun(line, 0), values[0], listing(others_text)
    )


_ALONE = {
    "nothing": "No call meets {mine}'s {call}.",
    "all_killed": "{ranks} were killed; {absent} had not come to {mine}'s {call}.",
    "timed_out": "{absent} had not come to {mine}'s {call}, and their time was up.",
    "completed": "There is no record of {absent}; {mine} completed {call}.",
    "no_record": "There is no record of {absent}; {mine} wait[s|] in {call}.",
    "out_of_time": "{absent} [was|were] still running when the time was up; nothing meets {mine}'s {call}.",
    "runs": "{absent} [is|are] still running; nothing meets {mine}'s {call}.",
    EndKind.HUNG: "{absent} wait[s|] elsewhere; nothing meets {mine}'s {call}.",
    EndKind.UNKNOWN: "{absent} [has|have] no more calls on record; nothing meets {mine}'s {call}.",
}
"""By the reason why the other ranks do not issue the call; otherwise, they have ended."""


def _alone(line: Line) -> Text:
    absent, state = line.facts["absent"], line.facts["how"]
    parts: dict[str, Part] = {
        "ranks": line.ranks,
        "absent": absent,
        "mine": sides(line)[0],
        "call": brief(line, 0),
    }
    if state in _ALONE:
        return say(_ALONE[state], **parts)
    return say("{ends}; nothing meets {mine}'s {call}.", ends=ends(absent, state), **parts)


WORDS: Mapping[str, Callable[[Line], Text]] = {
    "circle": _circle,
    "wrong_answer": _wrong_answer,
    "more": _extra,
    "fewer": _extra,
    "other_call": _other_call,
    "other_data": _other_data,
    "alone": _alone,
    **meeting.WORDS,
}
